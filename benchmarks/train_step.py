"""One whole training step, measured against peers in the same run.

    python benchmarks/train_step.py --device cpu --peers torch
    python benchmarks/train_step.py --device cuda --peers minidl-compiled,torch,torch-graph,jax --precision fp32,tf32

A step is zero_grad, forward, cross-entropy, backward and an update of SGD with momentum 0.9, float32, on batches
that are on the device already; tf32 is allowed to all peers or to none. minidl-compiled is `minidl.compile`,
torch-graph a CUDA graph of PyTorch's whole step, jax a jitted `lax.scan` over the steps between two looks at the
clock. The peers take turns (A B, then B A, ...), so that whatever else the machine does meets all of them; each turn
starts with a step that is not counted. Reported are the median of all counted steps, the smallest and the largest
median of a turn, and the median over the rounds of the speed relative to a peer. On a GPU, which works behind the
host's back, 20 steps in a row are timed until the last has ended and count as one, their mean.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))   # minidl and zoo as they lie here, installed or not

LR, MOMENTUM = 0.01, 0.9
CHANNELS = {"lenet5": 1, "krizhevsky2009": 3}                  # the models, and the channels of their images
IN_A_ROW = {"cpu": 1, "cuda": 20}                              # steps between two looks at the clock
BATCHES = 4                                                    # taken in turn: no step finds its images cached

Batch = tuple[Any, Any]                                        # NumPy images (n,c,32,32) and labels (n,)
Steps = Callable[[int], None]                                  # so many steps, one after the other


# ---------------------------------------------------------------- peers: model, batches, device -> steps in a row
def minidl_step(model: str, batches: Sequence[Batch], device: str, compiled: bool = False) -> Steps:
    import minidl
    import zoo
    from minidl import Tensor, ops, optim

    net = zoo.build(model).to(device)
    sgd = optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
    turn = itertools.cycle([(Tensor(x, device=device), Tensor(labels, device=device)) for x, labels in batches])

    def step(x: Tensor, labels: Tensor) -> None:
        sgd.zero_grad()
        ops.cross_entropy(net(x), labels).backward()
        sgd.step()
    run = minidl.compile(step) if compiled else step
    return repeated(lambda: run(*next(turn)))


def torch_step(model: str, batches: Sequence[Batch], device: str, graph: bool = False) -> Steps:
    import torch
    import torch_nets

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.backends.cudnn.benchmark = True
    net = torch_nets.build(model).to(device)
    sgd = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM, fused=not graph)
    turn = itertools.cycle([(torch.tensor(x, device=device), torch.tensor(labels, device=device))
                            for x, labels in batches])

    def step(x: Any, labels: Any) -> None:
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(net(x), labels).backward()
        sgd.step()
    if not graph:
        return repeated(lambda: step(*next(turn)))
    inputs = [t.clone() for t in next(turn)]                   # where the graph reads its batch
    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):                             # as PyTorch's guide has it: three steps before
        for _ in range(3):
            step(*inputs)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    sgd.zero_grad()
    with torch.cuda.graph(captured):
        torch.nn.functional.cross_entropy(net(inputs[0]), inputs[1]).backward()
        sgd.step()

    def replay() -> None:
        for mine, given in zip(inputs, next(turn), strict=True):
            mine.copy_(given)
        captured.replay()
    return repeated(replay)


def jax_step(model: str, batches: Sequence[Batch], device: str) -> Steps:
    import jax
    import jax_nets

    return jax_nets.steps(model, [jax.device_put(batch) for batch in batches], LR, MOMENTUM)


def repeated(step: Callable[[], None]) -> Steps:
    """Steps in a row from a single one."""
    def run(count: int) -> None:
        for _ in range(count):
            step()
    return run


# A peer's name starts with the module whose version the report states ("torch", "torch-graph", ...).
PEERS: dict[str, Callable[[str, Sequence[Batch], str], Steps]] = {
    "minidl": minidl_step, "minidl-compiled": functools.partial(minidl_step, compiled=True),
    "torch": torch_step, "torch-graph": functools.partial(torch_step, graph=True), "jax": jax_step}


def set_precision(precision: str, peers: Sequence[str]) -> None:
    """fp32 or tf32 products, for every peer that is measured."""
    import minidl

    minidl.set_precision(precision)
    if any(peer.startswith("torch") for peer in peers):
        import torch

        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    if "jax" in peers:
        import jax

        jax.config.update("jax_default_matmul_precision", {"fp32": "highest", "tf32": "tensorfloat32"}[precision])


# ---------------------------------------------------------------- measuring
def random_batches(model: str, size: int) -> list[Batch]:
    import numpy as np

    rng = np.random.default_rng(0)
    return [(rng.standard_normal((size, CHANNELS[model], 32, 32), dtype=np.float32), rng.integers(0, 10, size))
            for _ in range(BATCHES)]


def finish(device: str) -> None:
    """Wait until the device has done all it was given."""
    if device == "cuda":
        import cupy

        cupy.cuda.runtime.deviceSynchronize()


def seconds(steps: Steps, device: str) -> float:
    """Of one step, out of a few in a row."""
    begin = time.perf_counter()
    steps(IN_A_ROW[device])
    finish(device)
    return (time.perf_counter() - begin) / IN_A_ROW[device]


def take_turns(steps: dict[str, Steps], warmup: int, count: int, rounds: int,
               device: str) -> dict[str, list[list[float]]]:
    """Seconds of each counted step, by peer and round."""
    for run in steps.values():
        for _ in range(warmup):
            run(IN_A_ROW[device])
    taken: dict[str, list[list[float]]] = {peer: [] for peer in steps}
    for i in range(rounds):
        for peer in list(steps)[::-1 if i % 2 else 1]:
            steps[peer](IN_A_ROW[device])                      # the peer before left its own data in the caches
            finish(device)
            taken[peer].append([seconds(steps[peer], device) for _ in range(count)])
    return taken


def rows(model: str, size: int, precision: str, peers: Sequence[str], args: argparse.Namespace) -> list[str]:
    """The table's rows of one model, batch size and precision."""
    set_precision(precision, peers)
    batches = random_batches(model, size)
    steps = {peer: PEERS[peer](model, batches, args.device) for peer in peers}
    taken = take_turns(steps, args.warmup, args.steps, args.repeats, args.device)
    medians = {peer: [statistics.median(turn) for turn in turns] for peer, turns in taken.items()}
    lines = []
    for peer, turns in taken.items():
        median = statistics.median(itertools.chain(*turns))
        against = [f"{statistics.median(b / a for a, b in zip(medians[peer], medians[other], strict=True)):.2f}"
                   for other in peers if not other.startswith("minidl")]
        lines.append(" | ".join([f"| {model}", f"{size}", precision, peer, f"{median * 1e3:.3f}",
                                 f"{min(medians[peer]) * 1e3:.3f}-{max(medians[peer]) * 1e3:.3f}",
                                 f"{size / median:,.0f}", *against]) + " |")
    return lines


def processor() -> str:
    """The CPU's model name, as the system knows it."""
    cpuinfo = Path("/proc/cpuinfo")
    found = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines()
             if line.startswith("model name")] if cpuinfo.exists() else []
    return found[0] if found else platform.processor() or platform.machine()


def gpu(device: str) -> str:
    """" (NVIDIA ...)", or nothing for the CPU."""
    if device == "cpu":
        return ""
    import cupy

    return f" ({cupy.cuda.runtime.getDeviceProperties(0)['name'].decode()}, CuPy {cupy.__version__})"


def header(peers: Sequence[str], args: argparse.Namespace) -> list[str]:
    import numpy as np

    modules = dict.fromkeys(peer.split("-")[0] for peer in peers)
    versions = [f"{module} {importlib.import_module(module).__version__}" for module in modules]
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return [
        f"Device: {args.device}{gpu(args.device)}, {processor()}, {os.cpu_count()} cores, {platform.system()}; "
        f"{args.threads} threads for every peer; load average before the run {os.getloadavg()[0]:.1f}.",
        f"Versions: {', '.join(versions)}, NumPy {np.__version__} with {blas['name']} {blas['version']}, "
        f"Python {platform.python_version()}.",
        f"{args.warmup} times {IN_A_ROW[args.device]} steps of warm-up, then {args.repeats} rounds in which the peers "
        f"take turns of 1 uncounted and {args.steps} counted times {IN_A_ROW[args.device]} steps.",
        "",
    ]


def report(args: argparse.Namespace) -> str:
    peers = list(dict.fromkeys(["minidl", *args.peers]))
    columns = ["net", "batch", "precision", "peer", "median ms/step", "medians of the rounds", "images/s",
               *(f"speed / {peer}" for peer in peers if not peer.startswith("minidl"))]
    lines = [*header(peers, args), f"| {' | '.join(columns)} |", "|---|---:|---|---|" + "---:|" * (len(columns) - 4)]
    for model, size, precision in itertools.product(args.models, args.batch_size, args.precision):
        lines += rows(model, size, precision, peers, args)
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- the command line
def names(known: dict[str, Any]) -> Callable[[str], list[str]]:
    """An argument type: names of a table, separated by commas; nothing for ''."""
    def parse(text: str) -> list[str]:
        asked = [name for name in text.split(",") if name]
        for name in asked:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return asked
    return parse


def positive(text: str) -> int:
    """An argument type: an int of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an int of at least 1")
    return int(text)


def sizes(text: str) -> list[int]:
    """An argument type: ints of at least 1, separated by commas."""
    return [positive(part) for part in text.split(",")]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--device", choices=list(IN_A_ROW), default="cpu")
    parser.add_argument("--peers", type=names(PEERS), default="torch", help="beside minidl, separated by commas")
    parser.add_argument("--models", type=names(CHANNELS), default=",".join(CHANNELS))
    parser.add_argument("--batch-size", type=sizes, default="128", help="one or more, separated by commas")
    parser.add_argument("--precision", type=names({"fp32": 0, "tf32": 0}), default="fp32",
                        help="fp32, tf32 or both, on a GPU")
    parser.add_argument("--threads", type=positive, default=os.cpu_count() or 1, help="for every peer")
    parser.add_argument("--warmup", type=positive, default=5, help="steps before the first round")
    parser.add_argument("--steps", type=positive, default=10, help="counted steps in each peer's turn")
    parser.add_argument("--repeats", type=positive, default=9, help="rounds")
    parser.add_argument("--output", type=Path, help="write the report to this file too")
    args = parser.parse_args(argv)
    for library in ("MINIDL", "OPENBLAS", "OMP", "MKL"):       # they read it as they are imported, which is later
        os.environ[f"{library}_NUM_THREADS"] = str(args.threads)
    text = report(args)
    print(text, end="")
    if args.output:
        args.output.write_text(text)


if __name__ == "__main__":
    main()
