"""`minidl train`, and train.py: train a zoo model. Flags left out come from the model's recipe."""

from __future__ import annotations

import argparse
import platform
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import minidl
from minidl import data, device, nn, optim, zoo
from minidl.training import RunFolder, evaluate, fit

from .common import Parser, complain, say

IMAGE_SIZE = 32                            # every zoo model reads 32x32; smaller images are padded to it


def number(kind: type, least: float, what: str) -> Any:
    """An argparse type: an int or float of at least `least`."""
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not least <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what} of at least {least}")
        return value
    return parse


def parser(prog: str = "train.py") -> Parser:
    """The flags."""
    p = Parser(prog=prog, description="Train a model of the zoo and write a run folder.",
               epilog="Flags without a default take it from the model's recipe; see --list-models.")
    whole, positive = number(int, 0, "an int"), number(int, 1, "an int")
    real = number(float, 0, "a number")
    p.add_argument("--model", default="lenet5", choices=zoo.MODELS, help="which net (default: %(default)s)")
    p.add_argument("--data", default="auto", choices=["auto", *data.DATASETS],
                   help="which images; auto: the recipe's, or without --data-dir generated ones where they "
                        "cannot be had")
    p.add_argument("--data-dir", metavar="DIR", help="where data sets lie (default: $MINIDL_DATA, ./data, "
                   "torchvision's and Keras's folders, the user's cache; else they are downloaded)")
    p.add_argument("--device", default="auto", choices=device.DEVICES, help="(default: %(default)s)")
    p.add_argument("--epochs", type=whole, help="passes over the training set; 0 only evaluates")
    p.add_argument("--batch-size", type=positive, help="images a step")
    p.add_argument("--lr", type=real, help="learning rate")
    p.add_argument("--momentum", type=real)
    p.add_argument("--weight-decay", type=real)
    p.add_argument("--lr-schedule", choices=optim.SCHEDULES)
    p.add_argument("--conv-algorithm", default="auto", metavar="NAME",
                   help="how convolutions are computed; a wrong name lists the device's (default: %(default)s)")
    p.add_argument("--precision", default="fp32", choices=device.PRECISIONS,
                   help="of products on a GPU (default: %(default)s)")
    p.add_argument("--compile", action=argparse.BooleanOptionalAction, default=None,
                   help="replay the recorded training step, and read losses once an epoch (default: on a GPU)")
    p.add_argument("--seed", type=whole, default=0, help="decides parameters and order (default: %(default)s)")
    p.add_argument("--output-dir", metavar="DIR", help="the run folder (default: a new one under runs/)")
    p.add_argument("--load", metavar="FILE", help="start from these weights (HDF5)")
    p.add_argument("--limit-train", type=positive, metavar="N", help="only the first N training images")
    p.add_argument("--limit-test", type=positive, metavar="N", help="only the first N test images")
    p.add_argument("--list-models", action="store_true", help="name the models and their recipes, and stop")
    p.add_argument("--no-progress", action="store_true", help="no progress bar")
    p.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return p


def list_models() -> None:
    """Print the zoo's models and their recipes."""
    for model in zoo.MODELS.values():
        settings = ", ".join(f"{name} {value}" for name, value in asdict(model.recipe).items())
        say(f"{model.name:15} {model.summary}\n{'':15} {settings}")


def with_recipe(args: argparse.Namespace) -> argparse.Namespace:
    """Fill the flags that were left out from the model's recipe."""
    for name, value in asdict(zoo.MODELS[args.model].recipe).items():
        if name != "data" and getattr(args, name) is None:
            setattr(args, name, value)
    return args


def load_data(args: argparse.Namespace) -> tuple[data.Dataset, data.Dataset, str | None]:
    """Both splits, and the warning where generated images stand in for the recipe's."""
    train, test, note = data.resolve(args.data, zoo.MODELS[args.model].recipe.data, args.data_dir)
    if note:
        complain(f"warning: {note}")
    return train.first(args.limit_train), test.first(args.limit_test), note


def loaders(args: argparse.Namespace, train: data.Dataset, test: data.Dataset,
            where: str) -> tuple[data.DataLoader, data.DataLoader]:
    """Both sets in batches, normalised by the training set's statistics and padded to the zoo's size."""
    mean, std = data.channel_statistics(train)
    common: dict[str, Any] = {"mean": mean, "std": std, "padding": (IMAGE_SIZE - train.images.shape[2]) // 2,
                              "device": where}
    return (data.DataLoader(train, args.batch_size, seed=args.seed, **common),
            data.DataLoader(test, 500, shuffle=False, **common))


def build(args: argparse.Namespace, train: data.Dataset, where: str) -> nn.Module:
    """The model on its device with its first parameters, seen to run on one image of this data set."""
    minidl.manual_seed(args.seed)
    model = zoo.build(args.model, in_channels=train.images.shape[1], classes=len(train.classes))
    for _, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            module.algorithm = args.conv_algorithm
    if args.load:
        minidl.load(model, args.load)
    model.to(where)
    with minidl.no_grad():
        model(minidl.Tensor(np.zeros((1, train.images.shape[1], IMAGE_SIZE, IMAGE_SIZE), np.float32), device=where))
    return model


def run(args: argparse.Namespace) -> None:
    """Train, and leave the run folder."""
    where = device.resolve(args.device)
    args.compile = where == "cuda" if args.compile is None else args.compile
    minidl.set_precision(args.precision)
    train, test, note = load_data(args)
    model = build(args, train, where)
    train_loader, test_loader = loaders(args, train, test, where)
    folder = (RunFolder(args.output_dir) if args.output_dir else
              RunFolder.beside(Path("runs") / f"{args.model}-{train.name}"))
    folder.write_config({
        **{key: value for key, value in vars(args).items() if key not in ("list_models", "no_progress", "debug")},
        "data": train.name, "data_asked": args.data, "data_source": train.source, "data_note": note,
        "device": where, "train_images": len(train.labels), "test_images": len(test.labels),
        "minidl": minidl.__version__, "numpy": np.__version__, "python": platform.python_version()})
    optimizer = optim.SGD(model.parameters(), args.lr, args.momentum, args.weight_decay)
    schedule = optim.schedule(args.lr_schedule, args.epochs * len(train_loader))
    say(f"{args.model} on {train.name} ({train.source}): {len(train.labels)} training and {len(test.labels)} "
        f"test images, {where}, run folder {folder.path}")

    def report(metrics: dict[str, Any]) -> None:
        folder.append_metrics({"model": args.model, "data": train.name, **metrics})
        say(f"epoch {metrics['epoch']:2}/{args.epochs}: loss {metrics['train_loss']:.4f}, "
            f"accuracy {100 * metrics['train_accuracy']:.2f} %, test loss {metrics['test_loss']:.4f}, "
            f"test accuracy {100 * metrics['test_accuracy']:.2f} %, lr {metrics['lr']:.3g}, "
            f"{metrics['seconds']:.1f} s, {metrics['images_per_second']:.0f} images/s")

    start = time.perf_counter()
    try:
        history = fit(model, optimizer, train_loader, test_loader, epochs=args.epochs, schedule=schedule,
                      progress=not args.no_progress, on_epoch=report, compiled=args.compile)
        accuracy = history[-1]["test_accuracy"] if history else evaluate(model, test_loader)[1]
        minidl.save(model, folder.weights)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"the epochs so far are in {folder.path / 'metrics.jsonl'}") from None
    say(f"{args.model} on {train.name}: test accuracy {100 * accuracy:.2f} % after {args.epochs} "
        f"epoch{'' if args.epochs == 1 else 's'} in {time.perf_counter() - start:.1f} s ({where})")


def main(argv: list[str] | None = None, prog: str = "train.py") -> int:
    """Run with these arguments, else those of the process; returns the exit status. Messages start with `prog`."""
    args = parser(prog).parse_args(argv)
    if args.list_models:
        list_models()
        return 0
    warnings.simplefilter("ignore", RuntimeWarning)    # overflow on the way to a loss that fit() refuses
    try:
        run(with_recipe(args))
    except (ValueError, TypeError, OSError, FloatingPointError, MemoryError) as error:
        if args.debug:
            raise
        complain(f"error: {error}")
        return 2
    except KeyboardInterrupt as stop:
        complain(f"interrupted; {str(stop) or 'there is no run folder yet'}")
        return 130
    return 0
