"""One whole training step, measured against peers in the same run.

    python benchmarks/train_step.py --device cpu --peers torch
    python benchmarks/train_step.py --device cuda --peers minidl-compiled,minidl-fit,torch-graph,jax --precision tf32
    python benchmarks/train_step.py --models krizhevsky2009 --profile        # minidl alone: where the time goes

A step is zero_grad, forward, cross-entropy, backward and an update of SGD with momentum 0.9, float32, on batches
that are on the device already; tf32 is allowed to all peers or to none, and with it, and with bf16, PyTorch has its
images channels last, and in bf16 runs under autocast. Where ours is 3xtf32, which the peers do not have, theirs is
fp32, and their rows say so. minidl-compiled is `minidl.compile`, minidl-fit the same as `fit`
and train.py run it (the step itself picks its batch among bytes on the device, scales them, and adds up loss and
right answers; after each 51,200 images, or a GiB of them, an epoch ends), torch-graph a CUDA graph of PyTorch's whole
step, jax a
jitted `lax.scan` over the steps between two readings of the clock, which picks its batch on the device, too. The peers
take turns (A B, then B A, ...), so that whatever else the machine does meets all of them; each turn starts with a
step that is not counted. Reported are the median of all counted steps, the smallest and the largest median of a
turn, and the speed relative to a peer, which is the ratio of the medians. On a GPU, which works behind the host's back,
many steps in a row (--in-a-row) are timed until the last has ended and count as one, their mean; and two columns
are added. Share of limit: the time that the net's multiply-adds, forward and backward, would take at the device's
limit in the row's precision (3xtf32: a third of tf32's), over the time that the step took. Peak MiB: the most memory
of the device that the peer's arrays, graphs and workspaces held at once, from its building to the end of the
warm-up, measured when algorithms have been chosen already.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))   # minidl and zoo as they lie here, installed or not

import machine
import results
from results import Result, digits

LR, MOMENTUM = 0.01, 0.9
MODELS = dict.fromkeys(("lenet5", "krizhevsky2009", "cifar10-quick", "cifar10-18", "alexnet", "resnet", "resnet-56",
                        "resnet-224", "airbench", "vgg6"))
PROFILED = (*MODELS, "mlp", "perceptron", "table-mlp")         # what --profile takes, which has no peers
IN_A_ROW = {"cpu": 1, "cuda": 100}                             # steps between two readings of the clock
BATCHES = 4                                                    # taken in turn: no step finds its images cached
EPOCH = 51_200                                                 # images of an epoch of minidl-fit, at least 4 batches
MAX_BYTES = 1 << 30                                            # of these images, which lie on the device

# Ours, and what the peers use beside it
PRECISIONS = {"fp32": "fp32", "tf32": "tf32", "3xtf32": "fp32", "bf16": "bf16"}
TURNS = ("net", "batch", "beside")                             # rows alike in these took turns; beside: our precision
SEARCHING = ("minidl", "torch")                                # they borrow memory at first, to choose algorithms

Batch = tuple[Any, Any]                                        # NumPy images (n,c,32,32) and labels (n,)
Steps = Callable[[int], None]                                  # so many steps, one after the other


# ---------------------------------------------------------------- peers: model, batches, device -> steps in a row
def minidl_step(model: str, batches: Sequence[Batch], device: str, compiled: bool = False) -> Steps:
    import measured_nets

    import minidl
    from minidl import Tensor, ops, optim

    net = measured_nets.build(model).to(device)
    sgd = optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
    turn = itertools.cycle([(Tensor(x, device=device), Tensor(labels, device=device)) for x, labels in batches])

    def step(x: Tensor, labels: Tensor) -> None:
        sgd.zero_grad()
        ops.cross_entropy(net(x), labels).backward()
        sgd.step()
    run = minidl.compile(step) if compiled else step
    return repeated(lambda: run(*next(turn)))


def random_source(model: str, size: int) -> Any:
    """A data set of bytes as large as an epoch of minidl-fit."""
    import measured_nets
    import numpy as np

    from minidl import data

    rng, shape = np.random.default_rng(0), measured_nets.item_shape(model)
    count = size * max(BATCHES, min(EPOCH, MAX_BYTES // math.prod(shape)) // size)
    return data.Dataset("random", "train", rng.integers(0, 256, (count, *shape), np.uint8),
                        rng.integers(0, 10, count))


def fit_step(model: str, batches: Sequence[Batch], device: str, source: Any = None) -> Steps:
    import measured_nets
    import numpy as np

    from minidl import Tensor, data, optim
    from minidl.training import RunningMetrics, compiled_step

    size, channels = len(batches[0][1]), measured_nets.item_shape(model)[0]
    taken = data.DeviceBatches(data.DataLoader(source or random_source(model, size), size, mean=[0.5] * channels,
                                               std=[0.3] * channels, device=device))
    net = measured_nets.build(model).to(device)
    rates = optim.Rates(Tensor(np.full((1, len(taken.sizes)), LR), device=device), taken.position)
    step = compiled_step(net, optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM), taken, RunningMetrics(device),
                         rates)
    sizes = itertools.chain.from_iterable(itertools.repeat(taken))
    return repeated(lambda: step(next(sizes)))


def torch_step(model: str, batches: Sequence[Batch], device: str, graph: bool = False) -> Steps:
    import torch
    import torch_nets

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.backends.cudnn.benchmark = True
    net = torch_nets.build(model).to(device)
    forward = torch_nets.forward(net)
    sgd = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM, fused=not graph)
    turn = itertools.cycle([(torch.tensor(x, device=device), torch.tensor(labels, device=device))
                            for x, labels in batches])

    def step(x: Any, labels: Any) -> None:
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(forward(x), labels).backward()
        sgd.step()
    if not graph:
        return repeated(lambda: step(*next(turn)))
    inputs = [t.clone() for t in next(turn)]                   # where the graph reads its batch
    captured = torch_nets.captured(lambda: step(*inputs), sgd)

    def replay() -> None:
        for mine, given in zip(inputs, next(turn), strict=True):
            mine.copy_(given)
        captured()
    return repeated(replay)


def jax_step(model: str, batches: Sequence[Batch], device: str) -> Steps:
    import jax
    import jax_nets

    return jax_nets.steps(model, [jax.device_put(batch) for batch in batches], LR, MOMENTUM)


def repeated(step: Callable[[], object]) -> Steps:
    """Steps in a row from a single one."""
    def run(count: int) -> None:
        for _ in range(count):
            step()
    return run


# A peer's name starts with the module whose version the report states ("torch", "torch-graph", ...).
PEERS: dict[str, Callable[[str, Sequence[Batch], str], Steps]] = {
    "minidl": minidl_step, "minidl-compiled": functools.partial(minidl_step, compiled=True), "minidl-fit": fit_step,
    "torch": torch_step, "torch-graph": functools.partial(torch_step, graph=True), "jax": jax_step}


def set_precision(precision: str, peers: Sequence[str]) -> None:
    """How products are computed, for every peer that is measured: PRECISIONS says what the others use."""
    loaded, theirs = machine.modules(peers), PRECISIONS[precision]
    if "minidl" in loaded:
        import minidl

        minidl.set_precision(precision)
    if "torch" in loaded:
        import torch
        import torch_nets

        torch_nets.precision = theirs
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = theirs != "fp32"
    if "jax" in loaded:
        import jax

        jax.config.update("jax_default_matmul_precision", {
            "fp32": "highest", "tf32": "tensorfloat32", "bf16": "bfloat16"}[theirs])


# ---------------------------------------------------------------- measuring
def random_batches(model: str, size: int) -> list[Batch]:
    import measured_nets
    import numpy as np

    rng, shape = np.random.default_rng(0), measured_nets.item_shape(model)
    return [(rng.standard_normal((size, *shape), dtype=np.float32), rng.integers(0, 10, size))
            for _ in range(BATCHES)]


def seconds(steps: Steps, device: str, in_a_row: int) -> float:
    """Of one step, out of so many in a row."""
    begin = time.perf_counter()
    steps(in_a_row)
    machine.finish(device)
    return (time.perf_counter() - begin) / in_a_row


def build(model: str, batches: Sequence[Batch], peers: Sequence[str],
          args: argparse.Namespace) -> tuple[dict[str, Steps], dict[str, int | None]]:
    """Each peer, warmed up, and the most bytes that it held on the way."""
    steps, held = {}, {}

    def warm(peer: str) -> Steps:
        run = PEERS[peer](model, batches, args.device)
        for _ in range(args.warmup):
            run(args.in_a_row)
        machine.finish(args.device)
        return run
    for peer in peers:
        (module,) = machine.modules([peer])
        if args.device == "cuda" and module in SEARCHING:
            warm(peer)                                         # chooses algorithms, and lets go of the memory
            gc.collect()
        with machine.memory(module, args.device) as memory:
            steps[peer] = warm(peer)
        held[peer] = memory.bytes
    return steps, held


def take_turns(steps: dict[str, Steps], args: argparse.Namespace) -> dict[str, list[list[float]]]:
    """Seconds of each counted step, by peer and round."""
    taken: dict[str, list[list[float]]] = {peer: [] for peer in steps}
    for i in range(args.repeats):
        for peer in list(steps)[::-1 if i % 2 else 1]:
            steps[peer](args.in_a_row)                         # the peer before left its own data in the caches
            machine.finish(args.device)
            taken[peer].append([seconds(steps[peer], args.device, args.in_a_row) for _ in range(args.steps)])
    return taken


def multiply_adds(model: str, size: int) -> int:
    """Of a batch's forward and backward pass: in the gradients each product of a weight comes back twice, but only once
    in the first layer, whose images need none."""
    import measured_nets

    from minidl import nn

    summary = nn.summary(measured_nets.build(model), measured_nets.item_shape(model))
    forward = [row.multiply_adds for row in summary.rows if row.multiply_adds]
    return size * (3 * sum(forward) - forward[0])


def rows(model: str, size: int, precision: str, peers: Sequence[str], args: argparse.Namespace) -> list[Result]:
    """A row for each peer, of one model, batch size and precision."""
    set_precision(precision, peers)
    batches = random_batches(model, size)
    steps, held = build(model, batches, peers, args)
    found = []
    for peer, turns in take_turns(steps, args).items():
        medians = [statistics.median(turn) for turn in turns]
        found.append({"net": model, "batch": size, "beside": precision, "peer": peer,
                      "precision": precision if peer.startswith("minidl") else PRECISIONS[precision],
                      "flop": 2 * multiply_adds(model, size), "median_s": statistics.median(itertools.chain(*turns)),
                      "least_s": min(medians), "largest_s": max(medians), "rounds_s": medians,
                      "peak_mib": mebibytes(held[peer])})
    return found


def mebibytes(held: int | None) -> float | None:
    return None if held is None else round(held / 2**20, 1)


def measure(args: argparse.Namespace, peers: Sequence[str]) -> Result:
    return {**results.about("train_step", peers, args.device, args.threads, warmup=args.warmup, steps=args.steps,
                            repeats=args.repeats, in_a_row=args.in_a_row),
            "rows": [row for model, size, precision in itertools.product(args.models, args.batch_size, args.precision)
                     for row in rows(model, size, precision, peers, args)]}


# ---------------------------------------------------------------- the report
def table(several: Sequence[Result]) -> list[str]:
    """The rows of one or more runs; those that measured the same are told apart by a number."""
    rows = [row for result in several for row in result["rows"]]
    on_gpu, peers = several[0]["limits"] is not None, dict.fromkeys(row["peer"] for row in rows)
    numbered = len({tuple(row[key] for key in (*TURNS, "peer")) for row in rows}) < len(rows)
    against = [peer for peer in peers if not peer.startswith("minidl")]
    unit, scale = ("us", 1e6) if on_gpu else ("ms", 1e3)
    body = []
    for run, result in enumerate(several, 1):
        for row in result["rows"]:
            median = row["median_s"]
            line = [row["net"], str(row["batch"]), row["precision"], row["peer"], digits(median * scale),
                    results.span(row["least_s"] * scale, row["largest_s"] * scale), f"{row['batch'] / median:,.0f}"]
            if on_gpu:
                share = machine.share(result["limits"], row["precision"], row["flop"], 0, median)
                line += [f"{100 * share:.1f} %" if share else "",
                         "" if row["peak_mib"] is None else f"{row['peak_mib']:,.1f}"]
            speeds = [speed(result, row, peer) for peer in against]
            body.append([*([str(run)] if numbered else []), *line, *(f"{s:.2f}" if s else "" for s in speeds)])
    columns = [*(["run"] if numbered else []), "net", "batch", "precision", "peer", f"{unit} per step",
               "medians of the rounds", "images/s", *(["share of limit", "peak MiB"] if on_gpu else []),
               *(f"speed / {peer}" for peer in against)]
    return results.table(", ".join(columns), body, 4 + numbered)


def speed(result: Result, row: Result, peer: str) -> float | None:
    """How many times as fast a row is as a peer that took turns with it."""
    for other in result["rows"]:
        if other["peer"] == peer and all(other[key] == row[key] for key in TURNS):
            return float(other["median_s"] / row["median_s"])
    return None


def counted(result: Result) -> str:
    """What the medians are medians of."""
    of = result["method"]
    block = of["in_a_row"]
    readings = f", {block} between two readings of the clock" if block > 1 else ""
    return (f"{block * of['warmup']} steps of warm-up, then {of['repeats']} rounds in which the peers take turns of "
            f"{block} uncounted and {block * of['steps']} counted steps{readings}.")


def report(several: Sequence[Result]) -> list[str]:
    counts = dict.fromkeys(counted(result) for result in several)
    return [*table(several), *counts, "", *results.facts(several),
            *machine.limits_line(several[0]["limits"])]


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


def parser(description: str | None, models: dict[str, Any]) -> argparse.ArgumentParser:
    """The flags of every script that trains: on which device, which models, and where the results go."""
    flags = argparse.ArgumentParser(description=(description or "").split("\n\n")[0],
                                    formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    flags.add_argument("--device", choices=list(IN_A_ROW), default="cpu")
    flags.add_argument("--models", type=names(models), default="lenet5,krizhevsky2009")
    flags.add_argument("--threads", type=positive, default=os.cpu_count() or 1, help="for every peer")
    flags.add_argument("--json", type=Path, metavar="FILE", help="keep what was measured, for render.py")
    return flags


def add_precision(flags: argparse.ArgumentParser) -> None:
    flags.add_argument("--precision", type=names(PRECISIONS), default="fp32",
                       help=f"on a GPU: one or more of {', '.join(PRECISIONS)}")


def publish(measure: Callable[[argparse.Namespace, list[str]], Result],
            report: Callable[[list[Result]], list[str]], args: argparse.Namespace) -> None:
    """Measure minidl and the peers that were asked for, once all that they need is there; keep it and print it."""
    machine.set_threads(args.threads)
    left_out = machine.let_openblas_choose()
    peers = list(dict.fromkeys(["minidl", *args.peers]))
    machine.require(peers, args.device)
    sys.stderr.write(left_out)
    result = measure(args, peers)
    if args.json:
        results.save(result, args.json)
    print("\n".join(report([result])))


def main(argv: Sequence[str] | None = None) -> None:
    flags = parser(__doc__, dict.fromkeys(PROFILED))
    add_precision(flags)
    flags.add_argument("--peers", type=names(PEERS), default="torch", help="beside minidl, separated by commas")
    flags.add_argument("--batch-size", type=sizes, default="128", help="one or more, separated by commas")
    flags.add_argument("--warmup", type=positive, default=5, help="steps before the first round")
    flags.add_argument("--steps", type=positive, default=10, help="counted steps in each peer's turn")
    flags.add_argument("--repeats", type=positive, default=9, help="rounds")
    flags.add_argument("--in-a-row", type=positive, default=argparse.SUPPRESS,
                       help=f"steps between two readings of the clock (default: {IN_A_ROW})")
    flags.add_argument("--profile", nargs="?", const="compiled", choices=("compiled", "recorded"),
                       help="measure each call of minidl's program instead: as it is replayed, or as it was before the "
                       "passes, where each op is a call")
    args = flags.parse_args(argv)
    if args.profile:
        import step_profile

        args.peers = []
        return publish(step_profile.measure, step_profile.report, args)
    for model in args.models:
        if model not in MODELS:
            flags.error(f"argument --models: {model!r} has no peer, and is measured by --profile alone; leave it out")
    publish(measure, report, argparse.Namespace(**{"in_a_row": IN_A_ROW[args.device], **vars(args)}))


if __name__ == "__main__":
    main()
