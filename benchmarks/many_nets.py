"""Many nets of the same layers trained at once, beside JAX's and PyTorch's vmap of one net's step.

    python benchmarks/many_nets.py --device cuda --nets 1,8,64,512 --peers jax-vmap,torch-vmap

Each net has weights of its own, begins with another batch, and takes steps of SGD with momentum 0.9, fp32 or as
--precision says. minidl: a compiled step of each net, as `fit` runs it, eight nets at a time as in a sweep, a stream
each, whose kernels one thread starts in turn; several leave each other room, as the processes of a sweep do. The
other nets take their steps when these have taken theirs. jax-vmap: a jitted `lax.scan`
over `jax.vmap` of one net's step. torch-vmap: `torch.func.vmap` of one net's gradients and the update of all nets'
parameters, on a GPU as one CUDA graph. The peers take turns, so that whatever else the machine does meets all of them.
Counted are the images of all nets per second.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))   # minidl and zoo as they lie here, installed or not

import machine
import results
import train_step
from results import Result, digits
from train_step import LR, MOMENTUM, Batch, Steps

MODELS = dict.fromkeys(("lenet5", "krizhevsky2009"))           # jax_nets.py has these
STEPS, ALL = 1000, 20              # between two readings of the clock: steps of one net; at least so many of all nets
AT_ONCE = 8                        # nets of minidl: more gain nothing, and their numbers leave the second-level cache


# ---------------------------------------------------------------- peers: model, batches, device, nets -> steps of all
def minidl_steps(model: str, batches: Sequence[Batch], device: str, nets: int) -> Steps:
    import minidl
    from minidl.core.device import leave_room

    source = train_step.random_source(model, len(batches[0][1]))
    streams, steps = [stream(device) for _ in range(min(nets, AT_ONCE))], []
    leave_room(nets > 1)
    try:
        for seed in range(nets):
            minidl.manual_seed(seed)
            with streams[seed % AT_ONCE]:
                step = train_step.fit_step(model, batches, device, source)
                step(4)                                        # twice recorded, then captured, and replayed
                machine.finish(device)
                steps.append(step)
    finally:
        leave_room(False)

    def run(count: int) -> None:
        for begin in range(0, nets, AT_ONCE):
            for _ in range(count):
                for aside, step in zip(streams, steps[begin:begin + AT_ONCE]):
                    with aside:
                        step(1)
    return run


def stream(device: str) -> Any:
    """On a CPU there is none."""
    if device == "cpu":
        return contextlib.nullcontext()
    import cupy

    return cupy.cuda.Stream(non_blocking=True)


def jax_steps(model: str, batches: Sequence[Batch], device: str, nets: int) -> Steps:
    import jax
    import jax_nets

    return jax_nets.steps(model, [jax.device_put(batch) for batch in batches], LR, MOMENTUM, nets)


def torch_steps(model: str, batches: Sequence[Batch], device: str, nets: int) -> Steps:
    import torch
    import torch_nets

    torch.backends.cudnn.benchmark = True
    several = [torch_nets.build(model).to(device) for _ in range(nets)]
    return train_step.repeated(torch_step(several[0], several, batches, device)[1])


def torch_step(net: Any, several: Sequence[Any], batches: Sequence[Batch],
               device: str) -> tuple[dict[str, Any], Callable[[], None]]:
    """The parameters of several nets, and what takes a step of each; the net says how one of them is computed."""
    import torch
    import torch_nets

    params, _ = torch.func.stack_module_state(list(several))
    sgd = torch.optim.SGD(params.values(), lr=LR, momentum=MOMENTUM)
    images, labels = (torch.stack([torch.as_tensor(batch[i], device=device) for batch in batches]) for i in range(2))
    turn = torch.arange(len(several), device=device) % len(batches)    # which batch each net takes

    def loss(p: Any, x: Any, y: Any) -> Any:
        return torch.nn.functional.cross_entropy(torch.func.functional_call(net, p, (x,)), y)

    def step() -> None:
        grads = torch.func.vmap(torch.func.grad(loss))(params, images[turn], labels[turn])
        for name, p in params.items():
            p.grad = grads[name]
        sgd.step()
        turn.add_(1).remainder_(len(batches))
    return params, step if device == "cpu" else torch_nets.captured(step, sgd)


# A peer's name starts with the module whose version the report states.
PEERS: dict[str, Callable[[str, Sequence[Batch], str, int], Steps]] = {
    "minidl": minidl_steps, "jax-vmap": jax_steps, "torch-vmap": torch_steps}


# ---------------------------------------------------------------- measuring and the report
def rows(model: str, nets: int, precision: str, peers: Sequence[str], args: argparse.Namespace) -> list[Result]:
    """A row for each peer, of one model and number of nets."""
    train_step.set_precision(precision, peers)
    batches = train_step.random_batches(model, args.batch_size)
    count = max(ALL, args.steps // nets)
    runs = {peer: PEERS[peer](model, batches, args.device, nets) for peer in peers}
    for run in runs.values():
        run(count)
    taken: dict[str, list[float]] = {peer: [] for peer in peers}
    for i in range(args.repeats):
        for peer in list(runs)[::-1 if i % 2 else 1]:
            runs[peer](1)                                      # the peer before left its own data in the caches
            machine.finish(args.device)
            taken[peer].append(train_step.seconds(runs[peer], args.device, count) / nets)
    del runs
    gc.collect()
    return [{"net": model, "nets": nets, "batch": args.batch_size, "peer": peer,
             "precision": precision if peer == "minidl" else train_step.PRECISIONS[precision],
             "median_s": statistics.median(times), "least_s": min(times), "largest_s": max(times)}
            for peer, times in taken.items()]


def measure(args: argparse.Namespace, peers: Sequence[str]) -> Result:
    return {**results.about("many_nets", peers, args.device, args.threads, steps=args.steps, of_all=ALL,
                            repeats=args.repeats),
            "rows": [row for model, nets, precision in itertools.product(args.models, args.nets, args.precision)
                     for row in rows(model, nets, precision, peers, args)]}


def report(several: Sequence[Result]) -> list[str]:
    body = []
    for result in several:
        one = {(row["net"], row["precision"], row["peer"]): row["median_s"] for row in result["rows"]
               if row["nets"] == 1}
        for row in result["rows"]:
            s, alone = row["median_s"], one.get((row["net"], row["precision"], row["peer"]))
            body.append([row["net"], row["peer"], row["precision"], str(row["nets"]), digits(s * 1e6),
                         results.span(row["least_s"] * 1e6, row["largest_s"] * 1e6),
                         f"{row['batch'] / s / 1e6:.2f}", f"{alone / s:.2f}" if alone else ""])
    of, batch = several[0]["method"], several[0]["rows"][0]["batch"]
    return [*results.table("net, peer, precision, nets, us per step of one net, least and most, million images/s, "
                           "speed / one net", body, 3),
            f"The median of {of['repeats']} rounds, in which the peers take turns, of some {of['steps']:,} steps of "
            f"one net each, at least {of['of_all']} of all nets; batches of {batch}.", "", *results.facts(several)]


def main(argv: Sequence[str] | None = None) -> None:
    flags = train_step.parser(__doc__, MODELS)
    flags.set_defaults(models="lenet5")
    train_step.add_precision(flags)
    flags.add_argument("--peers", type=train_step.names(PEERS), default="jax-vmap", help="beside minidl")
    flags.add_argument("--nets", type=train_step.sizes, default="1,8", help="one or more numbers of nets")
    flags.add_argument("--batch-size", type=train_step.positive, default=128)
    flags.add_argument("--steps", type=train_step.positive, default=STEPS,
                       help="of one net, counted over all nets, between two readings of the clock")
    flags.add_argument("--repeats", type=train_step.positive, default=7, help="rounds")
    train_step.publish(measure, report, flags.parse_args(argv))


if __name__ == "__main__":
    main()
