"""`minidl profile`: where the time of a net's training step goes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import minidl
from minidl import Tensor, nn, ops, optim
from minidl.core import device
from minidl.lab.profile import HEAD, cells, limits, profile
from minidl.nn.table import floats_or_ids
from minidl.tools.plot.figures import write

from .common import Parser, add_json, add_net, net_of, run, say, say_json
from .runs import aligned
from .train import POSITIVE


def main(argv: list[str] | None = None, prog: str = "minidl profile") -> int:
    """Run with these arguments; returns the exit status."""
    parser = Parser(prog=prog, description="Time each call of a net's training step (forward, backward, SGD with "
                    "momentum), on random inputs (zeros for a net that reads token ids), and print a table: time, "
                    "bytes, FLOP, and the least time for these.")
    add_net(parser)
    parser.add_argument("--batch-size", type=POSITIVE, default=128, help="(default: %(default)s)")
    parser.add_argument("--device", default="auto", choices=device.DEVICES, help="(default: %(default)s)")
    parser.add_argument("--precision", default="fp32", choices=device.PRECISIONS, help="of products on a GPU "
                        "(default: %(default)s)")
    parser.add_argument("--ops", action="store_true", help="the calls of the ops, not those of the optimised program")
    parser.add_argument("--steps", type=POSITIVE, default=20, help="of which the median is taken "
                        "(default: %(default)s)")
    parser.add_argument("--run", metavar="RUN", help="write it into this run folder, too, whose report shows it; "
                        "where no net is named, it is the run's")
    add_json(parser)
    return run(parser, argv, command)


def command(args: argparse.Namespace) -> None:
    """Measure, and print the table."""
    where = device.resolve(args.device)
    minidl.set_precision(args.precision)
    if args.model is None and args.weights is None:
        args.weights = args.run
    name, net, given = net_of(args)
    net.to(where)

    def inputs(ids: bool) -> tuple[Tensor, Any, Tensor]:
        generator, size = np.random.default_rng(0), (args.batch_size, *given)
        numbers = np.zeros(size, np.int64) if ids else generator.normal(size=size).astype(np.float32)
        x = Tensor(numbers, device=where)
        return x, *target_of(net, x, generator)

    x, loss, target = floats_or_ids(inputs)
    sgd = optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)

    def step(x: Tensor, target: Tensor) -> None:
        sgd.zero_grad()
        loss(net(x), target).backward()
        sgd.step()

    rows = profile(step, x, target, passes=not args.ops, repeats=args.steps)
    title = (f"{name}, batch {args.batch_size}, {args.precision}, {where}: {len(rows)} calls, medians of "
             f"{args.steps} steps")
    limit = limits(where)
    found = {"title": title, "rows": rows, "limits": limit}
    if args.run:
        write(Path(args.run) / "profile.json", json.dumps(found).encode())
    if args.json:
        say_json(found)
        return
    say("\n".join([title, *aligned(HEAD, cells(rows, limit), numbers=len(HEAD) - 2)]))
    say(f"limit: {limit['bytes'] / 1e9:,.1f} GB/s and {limit['flop'] / 1e9:,.0f} GFLOP/s, which a "
        "copy and a product reach here; what stays in a cache is faster")


def target_of(net: nn.Module, x: Tensor, generator: np.random.Generator) -> tuple[Any, Tensor]:
    """A loss, and targets for it: the net's own with its input, or classes for outputs (n,classes), or numbers."""
    with minidl.no_grad():
        y = net(x)
    if not isinstance(y, Tensor):
        raise TypeError(f"the net returns a {type(y).__name__} but must return a Tensor, for which there is a loss")
    if y.ndim == 2 and y.shape[1] > 1:
        labels = generator.integers(0, y.shape[1], len(y))
        return getattr(net, "loss", ops.cross_entropy), Tensor(labels, device=x.device)
    return getattr(net, "loss", ops.mse_loss), x if y.shape == x.shape else Tensor(
        generator.normal(size=y.shape).astype(np.float32), device=x.device)
