"""`minidl train --sweep`: a net for each combination of settings, as `minidl train` trains each."""

from __future__ import annotations

import argparse
import re
import shlex
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from minidl import zoo
from minidl.data.once import unchanging
from minidl.distributed import by_first, current
from minidl.tools import sweep as nets_of
from minidl.tools.workers import most_at_once
from minidl.training import read_config
from minidl.zoo.own import is_code

from . import train
from .common import Parser, complain, say, warned

OF_RESUME = ("data_dir", "debug", "model", "no_progress", "plugin", "resume", "threads", "workers")
OF_PROCESS = ("plugin", "threads")         # what a sweep that goes on is told again
FORMS = "A:B:N or A:B:N:log (N numbers from A to B), A:B (ints from A to below B), or V|V|V"


def names() -> list[str]:
    """The flags that can be swept."""
    p = Parser(add_help=False)
    train._of_training(p)
    flags = [action.option_strings[0][2:] for action in p._actions]
    return [flag for flag in (*flags, "seed", "limit-train", "precision") if not flag.endswith("-rank")]


def values_of(spec: str) -> dict[str, list[Any]]:
    """What --sweep says: the values of each name, numbers and texts. Raises ValueError for what it cannot be.

    >>> values_of("lr=0.01:1:3:log,seed=0:2,option.act=relu|tanh")
    {'lr': [0.01, 0.1, 1], 'seed': [0, 1], 'option.act': ['relu', 'tanh']}
    """
    known, found = names(), dict[str, list[Any]]()
    for part in re.split(rf",(?=(?:{'|'.join(known)}|option\.\w+)=)", spec):
        name, equals, text = part.partition("=")
        if name not in known and not re.fullmatch(r"option\.\w+", name):
            raise ValueError(f"--sweep: {name!r} is not one of {', '.join(known)}, nor option.NAME of the model")
        if not equals or not text:
            raise ValueError(f"--sweep: {part!r} has no values; write {name}={FORMS}")
        if "," in text and name != "augment":
            raise ValueError(f"--sweep: {text.partition(',')[2].partition('=')[0]!r} in {part!r} is not one of "
                             f"{', '.join(known)}, nor option.NAME of the model; several values are V|V")
        if name in found:
            raise ValueError(f"--sweep: {name} has values twice, at last {text}; give all in one: {name}=V|V")
        found[name] = _values(name, text)
    return found


def _values(name: str, text: str) -> list[Any]:
    """Those of one setting."""
    if re.fullmatch(r"[\d.eE+-]*:[\d.eE:+-]*(log)?", text) is None:
        return [_number(each) for each in text.split("|")]
    try:
        first, last, *more = text.removesuffix(":log").split(":")
        log = text.endswith(":log")
        if not more and not log:
            found = [*range(int(first), int(last))]
        else:
            low, high, count = float(first), float(last), int(*more)
            if count < 2 or (log and not (low > 0 and high > 0)):
                raise ValueError
            steps = [i / (count - 1) for i in range(count)]
            between = [low * (high / low) ** s if log else low + (high - low) * s for s in steps]
            found = [_number(f"{each:.6g}") for each in between]
        if not found:
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(f"--sweep: {name}={text} cannot be read; write {name}={FORMS}, with N of at least 2, and A "
                         "and B above 0 for log") from None
    return found


def _number(text: str) -> Any:
    """The number that a text is, else the text."""
    for kind in (int, float) if re.fullmatch(r"[\d.eE+-]+", text) else ():
        with suppress(ValueError):
            return kind(text)
    return text


def _flags(settings: dict[str, Any]) -> list[str]:
    return [f"--option={name[7:]}={value}" if name.startswith("option.") else f"--{name}={value}"
            for name, value in settings.items()]


@unchanging()
def sweep(args: argparse.Namespace, prog: str) -> None:
    """Train all nets, or those that are left, and say what came of it."""
    if args.check_grads:
        raise ValueError("--check-grads does not train, and --sweep trains nets; leave one of them out")
    known, flags = _given(args, prog)
    swept = values_of(known["spec"])
    for name in swept:
        if any(flag.startswith(_flags({name: ""})[0]) for flag in known["flags"]):
            raise ValueError(f"--{name} contradicts --sweep {name}=..., which gives its values; leave one out")
    first = train.parser(prog).parse_args(flags)
    where = train.prepare(first)           # imports plugins, whose convolutions flags may name
    options = zoo.find(first.model).options
    for name in swept:
        if name.startswith("option.") and name[7:] not in options:
            raise ValueError(f"--sweep: model {first.model!r} has no option {name[7:]!r}; it has "
                             f"{', '.join(options) or 'none'}")

    def settings(each: dict[str, Any]) -> argparse.Namespace:
        found = train.settings([*flags, *_flags(each)], prog)
        train.check(found)
        return found
    nets = nets_of.combined(swept, lambda each: settings(each).epochs)
    found = settings(nets[0].settings)
    data, test, _ = train.same_data(found)             # downloads, and warns, once
    if "seed" in swept and train.splits_by_seed(found.data):
        complain(f"warning: the seed also decides which {data.items} of {data.name} are for the test, so nets of other "
                 "seeds have other test sets; for one test set, give it a file or folder of its own (docs/data.md)")
    folder = by_first(lambda: Path(args.resume or args.output_dir or nets_of.new_folder(zoo.find(found.model).name)))
    workers = min(len(nets), most_at_once(where) if args.workers is None else args.workers)
    ranks = f" on each of {current().size} ranks" * (current().size > 1)
    say(f"{found.model} on {data.name} ({data.source}): {len(data.labels)} training and {len(test.labels)} test "
        f"{test.items}, {where}, {len(nets)} nets, {workers or 1} at once{ranks}, sweep folder {folder}")
    facts = {"spec": known["spec"], "flags": known["flags"], "code": zoo.find(found.model).code,
             "data": nets_of.of_data(data, test)}
    with train.going_on("sweep", folder, args) as again:
        done = nets_of.trained(nets, nets_of.Job(folder, train_one, (prog, flags), as_a_worker), workers,
                               where, facts=facts, resume=bool(args.resume), progress=not args.no_progress)
    _tell(done, again)


def _tell(done: nets_of.Sweep, again: str) -> None:
    """What came of it, and how it goes on if nets failed."""
    say(done.table())
    failed = sum(row["state"] == "failed" for row in done.rows)
    if failed:
        say(f"{failed} of {len(done.rows)} nets failed; their lines are in {done.folder}/NAME.log; when it is mended, "
            f"{again}")
    best = done.best
    say(f"best: {best['folder']}; look at it with: minidl report {shlex.quote(best['folder'])}; settings beside "
        f"results: {done.folder / nets_of.PAGE}")


def _given(args: argparse.Namespace, prog: str) -> tuple[dict[str, Any], list[str]]:
    """(spec and flags, as sweep.json says them; the flags of each net's training but for what is swept)"""
    default = vars(train.parser(prog).parse_args([]))
    if args.resume:
        known = _settings_of(args, default)
    else:
        given = {name: value for name, value in vars(args).items() if name not in train.OF_ONE_CALL
                 and name not in OF_PROCESS and value != default[name]}
        known = {"spec": args.sweep, "flags": [flag for name, value in given.items()
                                               for flag in train._flags(name, value)]}
    free = [flag for name in train.FREE if getattr(args, name) not in (None, default[name])
            for flag in train._flags(name, getattr(args, name))]
    return known, [*known["flags"], *free, *([f"--model={args.model}"] if is_code(args.model) else [])]


def _settings_of(args: argparse.Namespace, default: dict[str, Any]) -> dict[str, Any]:
    """What sweep.json says of the sweep that is to go on. Raises ValueError for flags that would change it, and for
    code that the command line does not name."""
    file = Path(args.resume) / nets_of.FILE
    for name, value in vars(args).items():
        if name not in OF_RESUME and value != default[name]:
            raise ValueError(f"{' '.join(train._flags(name, value))} contradicts the sweep in {args.resume}, which "
                             "goes on by its own settings; leave it out")
    known = read_config(file)
    if known.get("program"):
        raise ValueError(f"{args.resume} is the sweep of a program, which alone can go on with it: minidl.sweep(..., "
                         "resume=True)")
    flags = known.get("flags")
    if not isinstance(known.get("spec"), str) or not isinstance(flags, list) or not all(
            isinstance(flag, str) for flag in flags):
        raise ValueError(f"'{file}' does not say what was swept; begin anew in another folder")
    model = next((flag.partition("=")[2] for flag in flags if flag.startswith("--model=")), "")
    if is_code(model) and not is_code(args.model):     # the file may be a stranger's
        raise ValueError(f"'{file}' names code, which is run only if the command line names it; if you trust it, add "
                         f"{repr(shlex.quote(model)[:1000])[1:-1]}")
    return known


def train_one(shared: tuple[str, list[str]], net: nets_of.Net, path: Path, told: object) -> None:
    """Train a net in its process, by the command line that would train it alone."""
    prog, flags = shared
    begun = (path / "config.json").exists()
    if not begun:                          # what a kill left before the run began
        for name in ("metrics.jsonl", ".config.json.part"):
            (path / name).unlink(missing_ok=True)
    argv = [*flags, *_flags(net.settings), "--no-progress", f"--{'resume' if begun else 'output-dir'}={path}"]
    args = train.settings(argv, prog)
    args.threads = None                    # the process has its share
    train.run(args, report=False)


@contextmanager
def as_a_worker() -> Iterator[None]:
    """Within this, data do not change, and a warning is a line. There is none of numbers that overflow: such a net
    diverges."""
    with warned(), unchanging():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
