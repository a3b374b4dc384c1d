"""Where the time of a training step goes: each call of its program, for `train_step.py --profile`.

`minidl.lab.profile` measures. A program is profiled as it is replayed, `compiled`, or as it was before the passes,
`recorded`, where each op is a call of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import results
from results import Result, digits
from train_step import LR, MOMENTUM, random_batches, set_precision

from minidl.lab.profile import profile


def rows(model: str, size: int, precision: str, args: argparse.Namespace) -> list[Result]:
    """A row for each call of a model's step, in their order."""
    import measured_nets

    import minidl
    from minidl import Tensor, ops, optim

    set_precision(precision, ["minidl"])
    net = measured_nets.build(model).to(args.device)
    sgd = optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)

    @minidl.compile
    def step(x: Tensor, labels: Tensor) -> None:
        sgd.zero_grad()
        ops.cross_entropy(net(x), labels).backward()
        sgd.step()
    for images, labels in random_batches(model, size)[:2]:
        given = [Tensor(images, device=args.device), Tensor(labels, device=args.device)]
        step(*given)
    return [{"net": model, "batch": size, "precision": precision, "program": args.profile, **row} for row in profile(
        step, *given, passes=args.profile == "compiled", warmup=args.warmup, repeats=args.steps * args.repeats)]


def measure(args: argparse.Namespace, peers: Sequence[str]) -> Result:
    result = results.about("step_profile", peers, args.device, args.threads, warmup=args.warmup,
                           repeats=args.steps * args.repeats)
    result["rows"] = [row for model in args.models for size in args.batch_size for precision in args.precision
                      for row in rows(model, size, precision, args)]
    return result


# ---------------------------------------------------------------- the report
def calls_table(of: Sequence[Result]) -> list[str]:
    """The calls of one program, the longest first."""
    whole = sum(row["median_s"] for row in of)
    body = [[f"`{row['primitive']}`", " ".join("x".join(map(str, shape)) or "1" for shape in row["result"]),
             digits(1e6 * row["median_s"]), f"{row['median_s'] / whole:.1%}", digits(row["bytes"] / 1e6),
             digits(row["flop"] / 1e6)] for row in sorted(of, key=lambda row: -row["median_s"])]
    return results.table("primitive, makes, us, share, MB, MFLOP", body, 2)


def kinds_table(of: Sequence[Result]) -> list[str]:
    """The same by kinds."""
    whole, body = sum(row["median_s"] for row in of), []
    for each in dict.fromkeys(row["kind"] for row in sorted(of, key=lambda row: -row["median_s"])):
        mine = [row for row in of if row["kind"] == each]
        seconds = sum(row["median_s"] for row in mine)
        body.append((seconds, [each, str(len(mine)), digits(1e6 * seconds), f"{seconds / whole:.1%}",
                               digits(sum(row["bytes"] for row in mine) / 1e6),
                               digits(sum(row["flop"] for row in mine) / 1e6)]))
    return results.table("kind, calls, us, share, MB, MFLOP", [line for _, line in sorted(body, reverse=True)], 1)


def report(several: Sequence[Result]) -> list[str]:
    lines = []
    for result in several:
        names = [(row["net"], row["batch"], row["precision"], row["program"]) for row in result["rows"]]
        for name in dict.fromkeys(names):
            of = [row for row, each in zip(result["rows"], names) if each == name]
            net, size, precision, program = name
            lines += [f"`{net}`, batch {size}, {precision}, the {program} program: {len(of)} calls, together "
                      f"{results.time_of(sum(row['median_s'] for row in of))}.", "", *kinds_table(of), *calls_table(of)]
        lines += [f"Medians of {result['method']['repeats']} runs, after {result['method']['warmup']}.", ""]
    return [*lines, *results.facts(several)]
