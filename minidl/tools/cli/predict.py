"""`minidl predict`: classes and probabilities of pictures, or of the rows of tables, by a net from a weights file."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import minidl
from minidl import data, nn, ops
from minidl.core import device
from minidl.data.sets.picture import FORMATS, MODES, read_picture
from minidl.data.sets.table import numbers, read_cells, unnamed
from minidl.nn.weights import warn_of_transform
from minidl.training.stored import read_net
from minidl.training.views import are_shares

from .common import Parser, add_code, add_json, complain, run, say, say_json

BATCH = 256                                # items at a time: a net's arrays between layers grow with them
BRIGHT = 64                                # a border this much brighter than the training images' mean is pointed out


def main(argv: list[str] | None = None, prog: str = "minidl predict") -> int:
    """Run with these arguments; returns the exit status."""
    parser = Parser(prog=prog, description="Print the classes that a net gives to pictures, or to the rows of tables, "
                    "with their probabilities.",
                    epilog="Each picture is read as in training: turned as its EXIF data say, put on white where it is "
                    "transparent, made grey or RGB of 8 bits, cut to its middle where it is not square, resized, and "
                    "normalised as the weights file says. "
                    "Needs the extra image. Of a table the columns must be those of the training: by their names, or "
                    "in their order where the file, or that of the training, names none.")
    parser.add_argument("files", nargs="+", metavar="FILE", help=f"pictures ({', '.join(FORMATS)}); for a net "
                        "that reads tables, CSV files without the column of the label")
    parser.add_argument("--weights", metavar="FILE", help="a weights.h5 of minidl train, or a run's folder (default: "
                        "the first FILE)")
    add_code(parser)
    parser.add_argument("--invert", action="store_true", help="use the negative: for dark digits on white paper, where "
                        "the net was trained on white digits on black, as MNIST's are")
    parser.add_argument("--header", action=argparse.BooleanOptionalAction, help="whether a table's first line names "
                        "its columns (default: by its values)")
    parser.add_argument("--top", type=int, default=3, metavar="N",
                        help="classes per picture or row (default: %(default)s)")
    add_json(parser)
    parser.add_argument("--device", default="auto", choices=device.DEVICES, help="(default: %(default)s)")
    parser.mixed = True
    return run(parser, argv, command)


def command(args: argparse.Namespace) -> None:
    """Print a line per picture, or per row."""
    if args.weights is None:
        args.weights, *args.files = args.files
    if args.top < 1:
        raise ValueError(f"--top is {args.top} but must be at least 1")
    if not args.files:
        raise ValueError(f"there is nothing to predict; name pictures or tables after {args.weights}")
    net, metadata, shape = read_net(args.weights, args.code)
    preprocessing = metadata["preprocessing"]
    if preprocessing is None:
        raise ValueError(f"{args.weights} does not say how pictures are normalised; save the net by "
                         "minidl.save(model, path, data=loader), as minidl train does")
    warn_of_transform(args.weights, metadata)
    if len(shape) == 1:
        of_rows(args, net, metadata)
    elif 0 in shape[1:]:
        raise ValueError(f"{args.weights} does not say the size of pictures; save the net by minidl.save(model, path, "
                         "data=loader)")
    else:
        _, rows, columns = (size - 2 * preprocessing["padding"] for size in shape)
        of_pictures(args, net, metadata, (rows, columns))


def answers(args: argparse.Namespace, net: nn.Module, metadata: dict[str, Any], given: data.Data
            ) -> list[dict[str, float]]:
    """The likeliest classes of each item, with their probabilities."""
    where = device.resolve(args.device)
    found = []
    net.eval().to(where)
    for items, _ in data.DataLoader(given, BATCH, shuffle=False, device=where, **metadata["preprocessing"]):
        with minidl.no_grad():
            outputs = net(minidl.Tensor(items))
            if outputs.ndim != 2:
                raise ValueError(f"{args.weights} is of {metadata['model']}, which answers with {outputs.shape} for "
                                 f"{len(items)} items, not with classes; use it in Python: minidl.load(path)")
            classes = [*(metadata["classes"] or map(str, range(outputs.shape[1])))]
            if len(classes) != outputs.shape[1] or len(classes) < 2:
                raise ValueError(f"{args.weights} is of {metadata['model']}, which answers with {outputs.shape[1]} "
                                 f"numbers per item, but has {len(classes)} classes ({', '.join(classes[:9])}); give "
                                 "it a logit for each, or use it in Python: minidl.load(path)")
            if len({*classes}) < len(classes):
                raise ValueError(f"{args.weights} has classes of the same name ({', '.join(classes[:9])}), which "
                                 "cannot be told apart; save the net with a name of its own for each")
            logits = net.or_none(outputs) if hasattr(net, "or_none") else outputs
            probabilities = (outputs if are_shares(outputs) else ops.softmax(logits, axis=1)).numpy()
        classes.append("none of them")
        found += [{classes[i]: float(row[i]) for i in np.argsort(-row, kind="stable")[:args.top]}
                  for row in probabilities]
    return found


def tell(args: argparse.Namespace, item: str, likely: dict[str, float], done: str = "") -> None:
    """Print an item's line."""
    if args.json:
        say_json({"item": item, "classes": likely})
    else:
        say(f"{item}: {', '.join(f'{name} {100 * share:.1f} %' for name, share in likely.items())}{done}")


def of_rows(args: argparse.Namespace, net: nn.Module, metadata: dict[str, Any]) -> None:
    """Print a line per row of CSV files."""
    if args.invert:
        raise ValueError("--invert has no meaning for the rows of a table; leave it out")
    wanted, known = len(metadata["preprocessing"]["mean"]), metadata.get("columns") or ()
    for path in args.files:
        columns, lines = read_cells("predict", path, args.header, known)
        if len(columns) != wanted:
            other = next((each for each in ";|\t" if len(columns) == 1 and each in columns[0] + lines[0][1][0]), "")
            raise ValueError(f"{path} has {len(columns)} columns but the net reads {wanted}; "
                             + f"its values are separated by {other!r}: separate them by commas, and " * bool(other)
                             + "give it those that it was trained on, without the label"
                             f"{': ' * bool(known)}{', '.join(known)}")
        order = list(range(wanted))
        # By their names, unless one of the two files has none: those that the training's columns got count the label's.
        if known and columns != unnamed(wanted) and ({*known} <= {*columns} or not {*known} <= {*unnamed(wanted + 1)}):
            if missing := [name for name in known if name not in columns]:
                raise ValueError(f"{path} has no column {missing[0]!r}; the net reads {', '.join(known)}, and this has "
                                 f"{', '.join(columns)}; rename or add it")
            order = [columns.index(name) for name in known]
        rows = numbers("predict", path, columns, lines, order)
        table = data.Table(str(path), "test", rows, np.zeros(len(rows), np.int64))
        for (line, _), likely in zip(lines, answers(args, net, metadata, table), strict=True):
            tell(args, f"{path}, line {line}", likely)


def of_pictures(args: argparse.Namespace, net: nn.Module, metadata: dict[str, Any],
                size: tuple[int, int]) -> None:
    """Print a line per picture."""
    mean = 255 * metadata["preprocessing"]["mean"][0]
    channels = len(metadata["preprocessing"]["mean"])
    if channels not in MODES:
        raise ValueError(f"the net takes {channels} channels but pictures have 1 (grey) or 3 (RGB); use a net of these")
    read = [read_picture("predict", path, size, channels) for path in args.files]
    pixels = np.stack([255 - image if args.invert else image for image, _ in read])
    found = answers(args, net, metadata, data.Dataset("pictures", "test", pixels, np.zeros(len(pixels), np.int64)))
    for path, (_, done), image, likely in zip(args.files, read, pixels, found, strict=True):
        tell(args, path, likely, f"  ({done}{', inverted' if args.invert else ''})")
        border = np.concatenate([image[:, [0, -1]].ravel(), image[:, :, [0, -1]].ravel()]).mean()
        if channels == 1 and border > mean + BRIGHT:
            complain(f"warning: {path} has a bright border ({border:.0f} of 255), but the net was trained on dark "
                     f"images (mean {mean:.0f}); "
                     + ("try it without --invert" if args.invert else "if it is dark on white, use --invert"))
