"""`minidl data`: where the data sets are found and whether they are whole; `minidl data fetch NAME` downloads one."""

from __future__ import annotations

import argparse

from minidl.data import DATASETS, load
from minidl.data.sets.catalog import SPECS
from minidl.data.sets.datasets import SYNTHETIC

from .common import Parser, add_json, complain, run, say, say_json


def main(argv: list[str] | None = None, prog: str = "minidl data") -> int:
    """Run with these arguments; returns the exit status."""
    parser = Parser(prog=prog, description="List the data sets: where they are found, and whether their files have "
                    "the official checksums. Or fetch them.")
    parser.add_argument("action", nargs="?", choices=("list", "fetch"), default="list",
                        help="fetch: download what is not found (default: list)")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones: {', '.join(DATASETS)}")
    parser.add_argument("--data-dir", metavar="DIR", help="look there first (default: $MINIDL_DATA, ./data, "
                        "torchvision's and Keras's folders, the user's cache)")
    add_json(parser)
    return run(parser, argv, command)


def command(args: argparse.Namespace) -> int:
    """List or fetch; status 1 if a set that was asked for by name is not there afterwards."""
    unknown = [name for name in args.names if name not in DATASETS]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a data set; it must be one of {', '.join(DATASETS)}")
    if args.action == "fetch" and not args.names:
        raise ValueError(f"fetch: no data set is named; name some of {', '.join(SPECS)}")
    status, listed = 0, []
    for name in args.names or DATASETS:
        found, told = state(name, args.data_dir, download=args.action == "fetch")
        if args.action == "fetch" and not found:
            complain(f"error: {told}")
        elif not args.json:
            say(f"{name:20} {told}")
        listed.append({"name": name, "found": found, "text": told})
        status = status or int(bool(args.names) and not found)
    if args.json:
        say_json(listed)
    return status


def state(name: str, data_dir: str | None = None, download: bool = False) -> tuple[bool, str]:
    """Whether a data set is there and whole, and a line about it: sizes and folder, or what is wrong and the cure.

    >>> state("synthetic-digits")
    (True, '12,000 images (1,28,28), 10 classes, generated')
    """
    if name in SYNTHETIC:
        draw, classes, sizes = SYNTHETIC[name]
        return True, _told(sum(sizes.values()), draw("test", 1)[0].shape[1:], len(classes), "generated")
    try:
        splits = [load(name, split, data_dir, download=download) for split in ("train", "test")]
    except FileNotFoundError as error:
        if download or data_dir:
            return False, str(error)
        size = sum(each.size for each in SPECS[name].downloads)
        return False, f"not found; minidl data fetch {name} downloads it ({size / 1e6:.1f} MB)"
    except (ValueError, OSError) as error:
        return False, f"damaged: {error}"
    return True, _told(sum(map(len, splits)), splits[0].shape, len(splits[0].classes),
                       f"checksums right, in {' and '.join({s.source: 0 for s in splits})}")


def _told(count: int, shape: tuple[int, ...], classes: int, source: str) -> str:
    items = "images" if len(shape) == 3 else "rows"
    return f"{count:,} {items} ({','.join(map(str, shape))}), {classes} classes, {source}"
