"""How long a fresh process takes to its first training step, and to its first compiled one.

    python benchmarks/cold_start.py --device cpu --peers torch
    python benchmarks/cold_start.py --device cuda --peers torch,jax

Clocked are whole processes, from just before the operating system is asked for one: the interpreter's start, imports,
the net and its batches, kernels compiled or loaded, algorithms chosen. "First step" ends when the device has finished
the first training step (that of train_step.py), "first replay" when it has finished the first one that is not run from
Python: minidl's third call of a compiled step (the first two record it); the first replay of PyTorch's CUDA graph, of a
second net, after the three steps that its guide wants before the capture; JAX's second call of its jitted step.

Caches: empty means a new folder for each of CUPY_CACHE_DIR, MINIDL_CACHE and CUDA_CACHE_PATH; filled means that the
same process has run before on these folders. Whatever else PyTorch and JAX keep on disk is as they have it by default.
The peers take turns; the first round, which finds the libraries' files on the disk, is not counted.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))   # minidl and zoo as they lie here, installed or not

import machine
import results
from results import Result
from train_step import MODELS, PEERS, names, parser, positive, publish, random_batches, set_precision

FOLDERS = ("CUPY_CACHE_DIR", "MINIDL_CACHE", "CUDA_CACHE_PATH")
CACHES = ("empty", "filled")

# By peer: whose first step, and whose first replay.
KINDS = {"minidl": ("minidl-compiled", "minidl-compiled"), "torch": ("torch", "torch-graph"), "jax": ("jax", "jax")}
GRAPHS = ("torch-graph",)                                      # on a GPU alone

Times = tuple[float, float | None]                             # seconds to the first step, and to the first replay


# ---------------------------------------------------------------- within the fresh process
def first_steps(peer: str, model: str, size: int, device: str) -> Iterator[float]:
    """The time of day after the first step, and after the first replay where there is one."""
    batches = random_batches(model, size)
    first, replayed = KINDS[peer]
    set_precision("fp32", [peer])
    run = PEERS[first](model, batches, device)
    for kind, steps in ((first, 1), (replayed, 2 if peer == "minidl" else 1)):
        if device == "cpu" and kind in GRAPHS:
            return
        if kind != first:
            run = PEERS[kind](model, batches, device)
        run(steps)
        wait(peer, device)
        yield time.time()


def wait(peer: str, device: str) -> None:
    """Until the device has finished, by the peer's own means: another's would have to be imported."""
    if peer == "torch" and device == "cuda":
        import torch

        torch.cuda.synchronize()
    elif peer == "minidl":
        machine.finish(device)                                 # JAX's steps wait by themselves


# ---------------------------------------------------------------- from outside
def started(peer: str, model: str, args: argparse.Namespace, folder: Path) -> Times:
    """Seconds that a process took which keeps its caches in this folder."""
    caches = {name: str(folder / name.lower()) for name in FOLDERS}
    command = [sys.executable, __file__, "--inside", peer, "--models", model, "--batch-size", str(args.batch_size),
               "--device", args.device, "--threads", str(args.threads)]
    begin = time.time()
    done = subprocess.run(command, env={**os.environ, **caches}, stdout=subprocess.PIPE, text=True, check=True)
    first, *replayed = (float(line) - begin for line in done.stdout.split())
    return first, replayed[0] if replayed else None


def take_turns(peers: Sequence[str], args: argparse.Namespace) -> dict[tuple[str, str, str], list[Times]]:
    """By model, peer and state of the caches: the times of the counted rounds."""
    taken: dict[tuple[str, str, str], list[Times]] = {
        key: [] for key in itertools.product(args.models, peers, CACHES)}
    for i in range(args.repeats + 1):
        for model, peer in itertools.product(args.models, peers[::-1 if i % 2 else 1]):
            with tempfile.TemporaryDirectory() as folder:
                for caches in CACHES:
                    times = started(peer, model, args, Path(folder))
                    if i:
                        taken[model, peer, caches].append(times)
    return taken


def spread(name: str, times: Sequence[float | None]) -> Result:
    """Fields of a row: median, least and largest; none where there is no such time."""
    known = [t for t in times if t is not None]
    return {f"{name}_s": statistics.median(known), f"{name}_least_s": min(known),
            f"{name}_largest_s": max(known)} if known else {}


def cell(row: Result, name: str) -> str:
    """Median (least-largest), as far as there are such."""
    if f"{name}_s" not in row:
        return ""
    median, least, largest = (f"{row.get(f'{name}_{which}', 0):.2f}" for which in ("s", "least_s", "largest_s"))
    return median if f"{name}_least_s" not in row or least == largest else f"{median} ({least}-{largest})"


def measure(args: argparse.Namespace, peers: Sequence[str]) -> Result:
    result = results.about("cold_start", peers, args.device, args.threads, batch=args.batch_size,
                           repeats=args.repeats)
    rows = []
    for (model, peer, caches), times in take_turns(peers, args).items():
        first, replayed = zip(*times, strict=True)
        rows.append({"net": model, "peer": peer, "caches": caches, **spread("first", first),
                     **spread("replay", replayed)})
    return {**result, "rows": rows}


def report(several: Sequence[Result]) -> list[str]:
    body = [[row["net"], row["peer"], row["caches"], cell(row, "first"), cell(row, "replay")]
            for result in several for row in result["rows"]]
    of = several[0]["method"]
    return [*results.table("net, peer, caches, first step s, first replay s", body, 3),
            f"Batches of {of['batch']}; 1 uncounted and {of['repeats']} counted round{'s' * (of['repeats'] > 1)}.", "",
            *results.facts(several)]


def main(argv: Sequence[str] | None = None) -> None:
    flags = parser(__doc__, MODELS)
    flags.add_argument("--peers", type=names(KINDS), default="", help="beside minidl, separated by commas")
    flags.add_argument("--batch-size", type=positive, default=128)
    flags.add_argument("--repeats", type=positive, default=5, help="counted rounds")
    flags.add_argument("--inside", choices=list(KINDS), help=argparse.SUPPRESS)
    args = flags.parse_args(argv)
    if args.inside:
        machine.set_threads(args.threads)
        print(*first_steps(args.inside, args.models[0], args.batch_size, args.device))
    else:
        publish(measure, report, args)


if __name__ == "__main__":
    main()
