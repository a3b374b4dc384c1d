"""`minidl train`, and train.py: train a model of the zoo, or of one's own. Flags left out come from its recipe."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import minidl
from minidl import data, distributed, nn, ops, optim, zoo
from minidl.core import device
from minidl.data import once
from minidl.distributed import by_first
from minidl.distributed.world import alone
from minidl.nn.weights import OF_DATA, WeightsError, read_metadata, require_described, warn_of_change, warn_of_transform
from minidl.nn.weights.common import shown
from minidl.ops.cpu import parallel
from minidl.training import Interrupted, RunFolder, Views, check_gradients, evaluate, fit, read_config, top_k_accuracy
from minidl.training.record import Record
from minidl.training.run_folder import versions
from minidl.training.stored import contradictions
from minidl.training.views import TTA
from minidl.zoo.own import import_file, is_code

from .common import FORESEEN, Parser, add_model, add_option, complain, ended, interrupted, quiet, say, typed, warned

OF_ONE_CALL = ("check_grads", "config", "debug", "eval", "list_models", "no_progress", "output_dir", "resume",
               "sweep", "workers")         # no settings
FREE = ("data_dir", "plugin", "save_every", "tensorboard", "threads")      # may differ when a run goes on
OWN = "own"                                # the optimizer that the model brings, with the recipe's numbers
OF_TRAINING = "name the data that it was trained on, in its order"
FREELY_BUILT = 2**26                       # bytes of a net that are built whatever the size of its weights' file
SAMPLES = 4                                # of which --check-grads takes gradients
WHITENED = 5000                            # images that a net which starts from images is given


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


WHOLE, POSITIVE, REAL = number(int, 0, "an int"), number(int, 1, "an int"), number(float, 0, "a number")


def augmentation(text: str) -> data.Augment | None:
    """What --augment says: "crop=4,flip,cutout=8", "flip=alternate,color=0.1", "none"."""
    kinds: dict[str, Callable[[str], Any]] = {name: type(value) for name, value in data.Augment()._asdict().items()}
    kinds |= {"flip": {"": True, "alternate": "alternate"}.__getitem__, "reflect": {"": True}.__getitem__}
    parts = [part.partition("=") for part in text.split(",") if text != "none"]
    try:
        given = {name: kinds[name](value) for name, _, value in parts}
        data.loader.check_augment(data.Augment(**given))
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} is not none, nor some of crop=PIXELS, reflect, flip, "
                                         "flip=alternate, cutout=PIXELS, brightness=X, contrast=X, color=X, separated "
                                         "by commas, numbers of at least 0") from None
    return data.Augment(**given) if given else None


def augment(text: str) -> str:
    """An argparse type: what `augmentation` understands."""
    augmentation(text)
    return text


def source(text: str) -> str:
    """An argparse type: "auto", a data set's name, or the path of a folder or file, made absolute."""
    if text in ("auto", *data.DATASETS):
        return text
    if not Path(text).expanduser().exists():
        raise argparse.ArgumentTypeError(f"{text!r} is not one of auto, {', '.join(data.DATASETS)}, nor a folder or a "
                                         "CSV file")
    return str(Path(text).expanduser().resolve())


def parser(prog: str = "train.py") -> Parser:
    """The flags."""
    p = Parser(prog=prog, description="Train a model of the zoo, or a net of your own, and write "
               "a run folder.",
               epilog="Flags without a default take it from the model's recipe; see --list-models.")
    _of_data(p)
    _of_training(p)
    _of_computing(p)
    _of_runs(p)
    return p


def _of_data(p: Parser) -> None:
    add_model(p, default="lenet5")
    add_option(p)
    p.add_argument("--data", default="auto", type=source, metavar="NAME",
                   help=f"which data: {', '.join(data.DATASETS)}, or a folder of pictures that has a folder for each "
                        "class, or train and test (or val) with these (needs the extra image), or a table: a CSV file, "
                        "or a folder of train.csv and test.csv; auto: the recipe's, or without --data-dir generated "
                        "ones where they cannot be had")
    p.add_argument("--label", metavar="COLUMN", help="the column of a table's classes (default: the last)")
    p.add_argument("--header", action=argparse.BooleanOptionalAction, help="whether a table's first line names its "
                   "columns (default: by its values)")
    p.add_argument("--data-dir", metavar="DIR", help="the folder of data sets (default: $MINIDL_DATA, ./data, "
                   "torchvision's and Keras's folders, the user's cache; else they are downloaded)")
    p.add_argument("--device", default="auto", choices=device.DEVICES, help="(default: %(default)s)")


def _of_training(p: Parser) -> None:
    p.add_argument("--epochs", type=WHOLE, help="passes over the training set; 0 only evaluates")
    sizes = p.add_mutually_exclusive_group()
    sizes.add_argument("--batch-size", type=POSITIVE, help="images or rows a step, of all ranks together (mpiexec -n)")
    sizes.add_argument("--batch-size-per-rank", dest="batch_size", metavar="N", help="the same said by the images of a "
                       "rank", type=lambda text: POSITIVE(text) * distributed.current().size)
    p.add_argument("--accumulate", type=POSITIVE, default=1, metavar="N", help="batches whose gradients each step adds "
                   "up, as of one batch that has all their images (default: %(default)s)")
    p.add_argument("--clip", type=REAL, metavar="NORM", help="what the norm of all gradients of a step is at most "
                   "(default: any)")
    p.add_argument("--optimizer", choices=(*optim.OPTIMIZERS, OWN), help="what updates parameters (default: the "
                   "recipe's, mostly sgd; of others, rate and decay have defaults of their own); own: the model's, as "
                   "airbench's")
    p.add_argument("--lr", type=REAL, help="learning rate")
    p.add_argument("--momentum", type=REAL)
    p.add_argument("--weight-decay", type=REAL)
    p.add_argument("--lr-schedule", choices=optim.SCHEDULES)
    p.add_argument("--augment", type=augment, metavar="HOW", help="how training images are seen at random: some of "
                   "crop=PIXELS, reflect, flip, flip=alternate, cutout=PIXELS, brightness=X, contrast=X, color=X, "
                   "separated by commas; or none")
    p.add_argument("--label-smoothing", type=REAL, metavar="S", help="the share of each label "
                   "that all classes get alike")
    p.add_argument("--tta", choices=TTA, help="which views of each test image are averaged: flip: it and its mirror "
                   "image; flip-shift: also both moved by a pixel")


def _of_computing(p: Parser) -> None:
    p.add_argument("--conv-algorithm", default="auto", metavar="NAME",
                   help="how convolutions are computed; a wrong name lists the device's (default: %(default)s)")
    p.add_argument("--plugin", action="append", metavar="FILE.py", help="import this file first: it registers a "
                   "convolution algorithm of your own (minidl.register_conv); may be given several times")
    p.add_argument("--precision", default="fp32", choices=device.PRECISIONS,
                   help="of products on a GPU (default: %(default)s)")
    p.add_argument("--compile", action=argparse.BooleanOptionalAction, default=None,
                   help="replay the recorded training step, and read losses once an epoch (default: on a GPU)")


def _of_runs(p: Parser) -> None:
    p.add_argument("--seed", type=WHOLE, default=0, help="decides parameters and order (default: %(default)s)")
    p.add_argument("--output-dir", metavar="DIR", help="the run folder (default: a new one under runs/)")
    p.add_argument("--load", metavar="FILE", help="start from these weights (HDF5), and normalise as they were trained")
    p.add_argument("--limit-train", type=POSITIVE, metavar="N", help="only the first N training images")
    p.add_argument("--limit-test", type=POSITIVE, metavar="N", help="only the first N test images")
    other = p.add_mutually_exclusive_group()
    other.add_argument("--resume", metavar="RUN", help="go on with the run of this folder, by its own settings; "
                       "--epochs may grow, which changes any schedule but constant")
    other.add_argument("--eval", metavar="RUN", nargs="?", const="", help="only evaluate: the weights of this run's "
                   "folder, or --load FILE")
    other.add_argument("--config", metavar="FILE", help="take the flags that are left out from a run's config.json")
    other.add_argument("--sweep", metavar="NAME=VALUES,...", help="train a net for each combination of these settings, "
                       "in run folders in one: lr=0.01:0.3:16:log (16 numbers), seed=0:8 (0 to 7), "
                       "optimizer=sgd|adamw, option.NAME=V|V")
    p.add_argument("--workers", type=WHOLE, metavar="N", help="nets of a sweep that are trained at once, each in a "
                   "process; 0: one after another in this one (default: one for each core; on a GPU one for two cores, "
                   "up to 8)")
    p.add_argument("--check-grads", action="store_true", help="do not train: compare the gradients of the whole net "
                   f"with finite differences in float64, on {SAMPLES} training images or rows")
    p.add_argument("--save-every", type=WHOLE, default=0, metavar="N", help="write a checkpoint each N steps, beside "
                   "that after each epoch")
    p.add_argument("--threads", type=POSITIVE, metavar="N", help="CPU threads (default: $MINIDL_NUM_THREADS, or all "
                   "cores)")
    p.add_argument("--top-k", type=POSITIVE, metavar="K", help="also tell how often the label is among the K likeliest "
                   "classes")
    p.add_argument("--tensorboard", action=argparse.BooleanOptionalAction, default=False,
                   help="write the metrics for TensorBoard, too (extra tensorboard)")
    p.add_argument("--list-models", action="store_true", help="name the models and their recipes, and stop")
    p.add_argument("--no-progress", action="store_true", help="no progress bar")
    p.add_argument("--debug", action="store_true", help="show the traceback of an error")


def list_models() -> None:
    """Print the zoo's models and their recipes."""
    for model in zoo.MODELS.values():
        say(f"{model.name:15} {model.summary}\n{'':15} {_listed(model.recipe)}")
        for option, recipe in model.of_options.items():
            say(f"{'':15} with --option {option}: {_listed(recipe)}")


def _listed(recipe: zoo.Recipe) -> str:
    return ", ".join(f"{name} {value}" for name, value in asdict(recipe).items())


def settings(argv: list[str] | None, prog: str) -> argparse.Namespace:
    """The flags; those left out come from the run that --resume, --eval or --config names, else from the recipe.

    Raises ValueError, which names it, for a flag that contradicts the run that is to go on; with --eval, for one by
    which other items of a user's own data would be for the test.
    """
    argv = sys.argv[1:] if argv is None else argv
    args = parser(prog).parse_args(argv)
    run = args.resume or args.eval
    if args.resume and args.output_dir:
        raise ValueError(f"--output-dir={args.output_dir} contradicts --resume={run}, which goes on in its own folder; "
                         "leave it out")
    if not (run or args.config):
        return with_recipe(args)
    config = by_first(lambda: read_config(Path(run) / "config.json" if run else args.config))
    file = str(Path(run) / "config.json") if run else args.config
    of_run = _flags_of(config, file, args)
    if config.get("program"):              # as RunFolder writes it
        if args.resume:
            raise ValueError(f"{run} is the run of a program, which alone can go on with it: fit(..., resume=True); "
                             f"--eval {run} evaluates its net")
        if config.get("data") is None and args.data == "auto":
            raise ValueError(f"'{file}' does not say on which data the net was trained; name them: --data")
    before, both = (with_recipe(parser(prog).parse_args(flags)) for flags in (of_run, [*of_run, *argv]))
    chosen = before.data if both.data == "auto" else both.data
    of_split = [*["seed"] * splits_by_seed(chosen),
                *["label", "header"] * (chosen == before.data and chosen not in data.DATASETS)]
    for name, value in vars(before).items():
        asked = getattr(both, name)
        if asked == "auto":                # the run knows what that was
            setattr(both, name, value)
        elif asked != value and (name in of_split and name in config if args.eval else args.resume and name not in (
                *OF_ONE_CALL, *FREE) and (name != "epochs" or asked < value)):     # else training items would be tested
            had = " ".join(_flags(name, value)) or "none" if isinstance(value, dict) else value
            raise ValueError(f"{' '.join(_flags(name, asked))} contradicts the run in {run}, which has {had}; leave it "
                             "out")
    return both


def _flags_of(config: dict[str, Any], file: str, args: argparse.Namespace) -> list[str]:
    """The settings of a config.json as flags. Raises ValueError for what is not a setting, and for code that the
    command line does not name."""
    flags = []
    for name in vars(args):
        if name in OF_ONE_CALL or (value := config.get(name)) is None or (args.eval and name == "load"):
            continue                       # a run began with the weights of its --load, and has others now
        if name == "model":                # the user says where its code is
            value = args.model if value not in list(zoo.MODELS) and is_code(args.model) else str(value)
        if not _is_setting(value):
            raise ValueError(f"run folder: '{file}' has a {name} of {shown(value)} but a setting is a number, a text, "
                             "or a list or an object of these; correct it")
        if name != "plugin" and not (name == "model" and is_code(value) and value != args.model):
            flags += _flags(name, value)
        elif name == "model" or not args.plugin:       # the file may be a stranger's
            raise ValueError(f"'{file}' names code, which is run only if the command line names it; if you trust it, "
                             f"add {repr(shlex.join(_flags(name, value))[:1000])[1:-1]}, else remove \"{name}\" from "
                             "that file")
    return flags


def splits_by_seed(chosen: str) -> bool:
    """Whether the seed decides which items of these data are for the test: of a user's own without a test set."""
    return chosen not in ("auto", *data.DATASETS) and not any(
        (Path(chosen).expanduser() / name).exists() for name in ("train", "train.csv"))


def _is_setting(value: object) -> bool:
    """Whether a value of config.json can be a flag's; what is nested deeper would also be endless work to print."""
    within = value if isinstance(value, list) else value.values() if isinstance(value, dict) else (value,)
    return all(each is None or isinstance(each, (str, int, float)) for each in within)


def _flags(name: str, value: object) -> list[str]:
    """A setting as flags: a list, or an option's dict, gives several or none."""
    flag = name.replace("_", "-")
    if isinstance(value, list):
        return [f"--{flag}={each}" for each in value]
    if isinstance(value, dict):
        return [f"--{flag}={key}={each if isinstance(each, str) else json.dumps(each)}" for key, each in value.items()]
    return [f"--{'' if value else 'no-'}{flag}" if isinstance(value, bool) else f"--{flag}={value}"]


def with_recipe(args: argparse.Namespace) -> argparse.Namespace:
    """Fill the flags that were left out from the model's recipe, which is read like flags. An optimizer's own numbers
    replace the recipe's if that is for another optimizer."""
    recipe = asdict(zoo.find(args.model).recipe_for(**args.option))
    stated = vars(parser(Parser.running).parse_args([f for name, value in recipe.items() for f in _flags(name, value)]))
    args.optimizer = args.optimizer or recipe["optimizer"]
    own = optim.OPTIMIZERS.get(args.optimizer, (None, {}))[1]
    numbers = {name: value for name, value in own.items() if value is None or args.optimizer != recipe["optimizer"]}
    for name, value in {**{name: stated[name] for name in recipe}, **numbers}.items():
        if name != "data" and getattr(args, name) is None:
            setattr(args, name, value)
    if args.data == "auto" and recipe["data"] not in data.DATASETS:
        args.data = stated["data"]
    return args


def load_data(args: argparse.Namespace) -> tuple[data.Data, data.Data, str | None]:
    """Both splits, and the warning if generated images replace the recipe's."""
    train: data.Data
    test: data.Data
    model = zoo.find(args.model)
    if args.data in ("auto", *data.DATASETS):
        for flag in ("label", "header"):
            if (value := getattr(args, flag)) is not None:
                raise ValueError(f"--{flag}={value} has no meaning for --data={args.data}, whose labels are known; "
                                 "leave it out")
        own, counts = model.recipe_for(**args.option).data, (args.limit_train, args.limit_test)
        train, test, note = once.last((args.data, own, args.data_dir, counts), lambda: data.resolve(
            args.data, own, args.data_dir, counts=counts))
    else:
        shape = model.item(model.shape, **args.option)
        if 0 in shape[1:] and Path(args.data).is_dir() and not (Path(args.data) / "train.csv").exists():
            raise ValueError(f"--data {args.data} has pictures of any size, and {args.model} does not say which it "
                             f"reads; give {model.code['name'] if model.code else 'it'} an option image_size")
        shape = (shape[0] or args.option.get("in_channels", 3), *shape[1:])
        given = {"seed": args.seed, "label": args.label, "header": args.header}
        train, test = once.last((args.data, shape, given), lambda: data.own_splits(args.data, shape, **given))
        note = None
    if note:
        complain(f"warning: {note}")
    reads = model.item(model.shape, **args.option)
    if 0 not in reads and model.code is None and (len(train.shape) != len(reads) or train.shape[1:] > reads[1:]):
        raise ValueError(f"--data {train.name} has {items(train.shape)}, but --model {args.model} reads "
                         f"{items(reads)}; use another of both")
    return train.first(args.limit_train), test.first(args.limit_test), note


def items(shape: tuple[int, ...]) -> str:
    """What has this shape, in words.

    >>> items((3, 32, 32)), items((7,))
    ('images of 32x32', 'rows of a table')
    """
    return f"images of {shape[1]}x{shape[2]}" if len(shape) == 3 else "rows of a table"


def same_data(args: argparse.Namespace) -> tuple[data.Data, data.Data, str | None]:
    """`load_data` of each rank; the first goes ahead, since it may have to download. Raises ValueError if the ranks
    found different data."""
    world, found = distributed.current(), None

    def load() -> None:
        nonlocal found
        found = load_data(args)

    by_first(load)
    train, test, note = found or load_data(args)
    seen = world.gather(f"{train.name} ({train.source}), {len(train.labels)} and {len(test.labels)} {train.items}")
    if len(set(seen)) > 1:
        other = next(rank for rank, each in enumerate(seen) if each != seen[0])
        raise ValueError(f"--data {args.data} is {seen[0]} for rank 0 but {seen[other]} for rank {other}; put the same "
                         "data where each rank finds it, and name its place with --data-dir")
    return train, test, note


def loaders(args: argparse.Namespace, train: data.Data, test: data.Data, where: str,
            preprocessing: dict[str, Any]) -> tuple[data.DataLoader, data.DataLoader]:
    """Both sets in batches."""
    return (data.DataLoader(train, args.batch_size, seed=args.seed, device=where,
                            augment=augmentation(args.augment), **preprocessing),
            data.DataLoader(test, 500, shuffle=False, device=where, **preprocessing))


def build(args: argparse.Namespace, train: data.Data, where: str, weights: str | Path | None) -> nn.Module:
    """The model on its device with its first parameters, which has run on one image of this data set's shape. Raises
    ValueError for a --top-k that its answer has not enough classes for."""
    known = zoo.find(args.model)
    shape = known.item(train.shape, **args.option)
    of_data = known.of_data(shape, len(train.classes))
    for name, value in of_data.items():
        if name in args.option and name != "image_size":
            raise ValueError(f"--option {name}={args.option[name]}: {name} is {value} by the data set; leave it out")
    minidl.manual_seed(args.seed)
    model = known.build(**{**of_data, **args.option})
    for _, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            module.algorithm = args.conv_algorithm
    if weights and distributed.current().rank == 0:    # the others are sent the parameters
        minidl.load(model, weights)
    model.to(where).eval()                 # in training mode, running values would include the image
    with minidl.no_grad():
        answer = model(minidl.Tensor(np.zeros((1, *shape), np.float32), device=where))
    if args.top_k and known.target == "label" and getattr(answer, "ndim", 0) == 2 and args.top_k >= answer.shape[1]:
        raise ValueError(f"--top-k={args.top_k} must be below {answer.shape[1]}, the number of classes that "
                         f"{args.model} answers with: the label is always among all of them")
    return model.train()


class WithImages(nn.Module):
    """A net whose target is its input, for `fit`: images -> (what the net makes of them, images)."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, images: minidl.Tensor) -> tuple[minidl.Tensor, minidl.Tensor]:
        return self.net(images), images

    def loss(self, both: tuple[minidl.Tensor, minidl.Tensor], labels: object) -> minidl.Tensor:
        """The net's own, whatever the labels."""
        loss: minidl.Tensor = loss_of(self.net)(*both)
        return loss


def as_trained(args: argparse.Namespace, model: nn.Module) -> nn.Module:
    """A model in the form that `fit` and `evaluate` take."""
    if zoo.find(args.model).target == "label":
        return _named(Views(model, **TTA[args.tta]), model) if TTA[args.tta] else model
    for name, given in (("--top-k", args.top_k), ("--tta", TTA[args.tta] and args.tta)):
        if given:
            raise ValueError(f"{name}={given} has no meaning for --model={args.model}, which answers with images; "
                             "leave it out")
    return _named(WithImages(model), model)


def _named(whole: nn.Module, net: nn.Module) -> nn.Module:
    """A Module around a net says which net that is."""
    whole.model_name, whole.model_args, whole.model_code = net.model_name, net.model_args, net.model_code
    return whole


def optimizer_of(args: argparse.Namespace, model: nn.Module, steps: int) -> tuple[optim.Optimizer, Any]:
    """The model's optimizer for `steps` steps, and its schedule, or one for each group."""
    numbers = {name: getattr(args, name) for name in ("lr", "momentum", "weight_decay")}
    numbers = {name: value for name, value in numbers.items() if value is not None}
    own = zoo.find(args.model).optimizer
    if args.optimizer != OWN:
        make, _ = optim.OPTIMIZERS[args.optimizer]
        return make(model.parameters(), **numbers), optim.schedule(args.lr_schedule, steps)
    if own is None:
        raise ValueError(f"--optimizer={OWN}: --model={args.model} brings none; use {', '.join(optim.OPTIMIZERS)}")
    return own(model, args.lr_schedule, max(1, steps), args.batch_size * args.accumulate, **numbers)


def start_from_images(model: nn.Module, train: data.Data, where: str, preprocessing: dict[str, Any]) -> None:
    """Show the first images to a net that starts from images."""
    if hasattr(model, "start_from"):
        few = train.first(WHITENED)
        images, _ = next(iter(data.DataLoader(few, len(few.labels), shuffle=False, device=where, **preprocessing)))
        model.start_from(minidl.Tensor(images))


def loss_of(model: nn.Module, smoothing: float = 0.0) -> Callable[..., minidl.Tensor]:
    """The loss that a model brings, also a model inside Views; else the cross entropy."""
    model = model.net if isinstance(model, Views) else model
    if smoothing and hasattr(model, "loss"):
        raise ValueError(f"--label-smoothing={smoothing} has no meaning for a model that brings its loss; leave it out")
    return getattr(model, "loss", partial(ops.cross_entropy, label_smoothing=smoothing) if smoothing else
                   ops.cross_entropy)


def metrics_of(args: argparse.Namespace) -> dict[str, Callable[..., minidl.Tensor]]:
    """What is measured in addition to loss and accuracy."""
    return {f"top{args.top_k}_accuracy": top_k_accuracy(args.top_k)} if args.top_k else {}


def check(args: argparse.Namespace) -> None:
    """Refuse flags that contradict each other."""
    if args.eval == "" and not args.load:
        raise ValueError("--eval needs weights; name a run's folder, --eval RUN, or a file, --load FILE")
    own = optim.OPTIMIZERS.get(args.optimizer, (None, {}))[1]
    if args.label_smoothing > 1:
        raise ValueError(f"--label-smoothing={args.label_smoothing} must be in [0, 1]")
    if args.clip == 0:
        raise ValueError("--clip=0 must be above 0; leave it out to clip nothing")
    if args.momentum is not None and own.get("momentum", 0.0) is None:
        raise ValueError(f"--momentum={args.momentum} has no meaning for --optimizer={args.optimizer}; leave it out")


def prepare(args: argparse.Namespace) -> str:
    """Set threads and precision, and import plugins. Returns the device."""
    if args.threads:
        os.environ["MINIDL_NUM_THREADS"] = str(args.threads)
        parallel.threads.cache_clear()
    for file in args.plugin or ():
        import_file(file)
    where = device.resolve(args.device)
    args.compile = where == "cuda" if args.compile is None else args.compile
    minidl.set_precision(args.precision)
    return where


def config_of(args: argparse.Namespace, train: data.Data, test: data.Data, note: str | None, where: str,
              before: dict[str, Any]) -> dict[str, Any]:
    """What config.json says of a run. before: what it says of the run that goes on, or {}."""
    facts = {key: value for key, value in vars(args).items() if key not in OF_ONE_CALL or key == "output_dir"}
    return {
        **facts, "code": zoo.find(args.model).code, "data": train.name if args.data == "auto" else args.data,
        "data_asked": args.data, "data_source": train.source, "data_note": note, "device": where,
        "train_images": len(train.labels), "test_images": len(test.labels), **versions(),
        **{key: before[key] for key in ("data_asked", "data_note", "output_dir") if key in before}}


def run(args: argparse.Namespace, report: bool = True) -> None:
    """Train, and leave the run folder; with --eval only evaluate. report: draw the run, too."""
    check(args)
    where = prepare(args)
    world = distributed.current()
    train, test, note = same_data(args)
    if args.eval is not None:
        if world.rank == 0:
            look(args, train, test, where)
        return
    world.prepare(where)
    again = RunFolder.of_first(lambda: RunFolder.again(args.resume)) if args.resume else None
    # Weights to start from are in the checkpoint; without one, it starts again.
    weights = None if again is not None and by_first(again.has_checkpoint) else args.load
    before: dict[str, Any] = {} if again is None else by_first(
        partial(read_config, again.path / "config.json"))
    start_from = before if weights is None else _known_of(Path(weights), train)
    model = build(args, train, where, weights)
    trained = as_trained(args, model)
    preprocessing = _preprocessing(args, train, start_from)
    if args.check_grads:
        return see_gradients(args, trained, train, where, preprocessing)
    train_loader, test_loader = loaders(args, train, test, where, preprocessing)
    require_described(model, train_loader)
    world.barrier()                        # a rank that has come to its end above leaves no folder behind
    kept = {"preprocessing": preprocessing} if args.load else {}       # the file may be gone when the run goes on
    folder = _folder(args, {**config_of(args, train, test, note, where, before), **kept}, train.name, before, again)
    optimizer, schedule = optimizer_of(args, model, args.epochs * math.ceil(len(train_loader) / args.accumulate))
    loss = loss_of(trained, args.label_smoothing)
    if weights is None:
        start_from_images(model, train, where, preprocessing)
    say(f"{args.model} on {train.name} ({train.source}): {len(train.labels)} training and {len(test.labels)} "
        f"test {test.items}, {where}{f', {world.size} ranks' if world.size > 1 else ''}, run folder {folder.path}")

    folder.record = Record(folder, model)
    boards = [minidl.plot.TensorBoard(folder.path)] if args.tensorboard and world.rank == 0 else []
    start = time.perf_counter()
    with folder, going_on("run", folder.path, args):
        history = fit(trained, optimizer, train_loader, test_loader, epochs=args.epochs, schedule=schedule,
                      progress=not args.no_progress, say=say, callbacks=[folder, *boards], compiled=args.compile,
                      checkpoints=folder.path, save_every=args.save_every, resume=bool(args.resume),
                      accumulate=args.accumulate, clip=args.clip, loss=loss, metrics=metrics_of(args))
        last = history[-1] if history else dict(zip(
            ("test_loss", "test_accuracy"), evaluate(trained, test_loader, loss=loss), strict=True))
        by_first(lambda: minidl.save(model, folder.weights, data=train_loader))
        if report and world.rank == 0:
            _pictures(folder, model, test_loader)
    say(f"{args.model} on {train.name}: {_reached(args, last)} in {time.perf_counter() - start:.1f} s ({where}); "
        + _next(folder, last))


def _folder(args: argparse.Namespace, config: dict[str, Any], data_name: str, before: dict[str, Any],
            again: RunFolder | None) -> RunFolder:
    """The run's folder, with its configuration: the one that goes on, the one that was named, or a new one."""
    name = re.sub(r"\.py:|[^\w.-]+", "-", f"{zoo.find(args.model).name}-{data_name}")
    folder = again or RunFolder.of_first(lambda: RunFolder(args.output_dir) if args.output_dir else
                                         RunFolder.beside(Path("runs") / name))
    if not args.resume:                    # else once the checkpoint is accepted
        by_first(lambda: folder.write_config(config))
    elif folder.has_checkpoint() and 0 < before.get("epochs", 0) < args.epochs and args.lr_schedule != "constant":
        complain(f"warning: --epochs grows from {before['epochs']} to {args.epochs}, and the {args.lr_schedule} "
                 "schedule with it: the run goes on at the rates of the longer one, and is not what "
                 f"{args.epochs} epochs from the start give")
    folder.config, folder.names = config, {"model": args.model, "data": data_name}
    return folder


def _reached(args: argparse.Namespace, last: dict[str, Any]) -> str:
    """How good a finished run is on the test set: the accuracy, if there is one; and after how many epochs."""
    accuracy = last.get("test_accuracy", math.nan)
    result = f"test loss {last['test_loss']:.4f}" if math.isnan(accuracy) else f"test accuracy {100 * accuracy:.2f} %"
    of_views = f" (mean of views, --tta {args.tta}; minidl predict takes one)" * bool(TTA[args.tta])
    return f"{result}{of_views} after {args.epochs} epoch{'' if args.epochs == 1 else 's'}"


def _next(folder: RunFolder, last: dict[str, Any]) -> str:
    """Where a finished run's weights are, and what can be done with it."""
    run, weights = (shlex.quote(str(path)) for path in (folder.path, folder.weights))
    answers = not math.isnan(last.get("test_accuracy", math.nan))
    predict = f"{typed('minidl predict')} --weights {weights} FILE, or " if answers else ""
    return f"weights in {folder.weights}; next: {predict}{typed('minidl plot')} {run}"


def see_gradients(args: argparse.Namespace, model: nn.Module, train: data.Data, where: str,
                preprocessing: dict[str, Any]) -> None:
    """Print how far the gradients of a net are from differences. Raises GradcheckError if one is wrong."""
    images, labels = next(iter(data.DataLoader(train.first(SAMPLES), SAMPLES, shuffle=False, device=where,
                                               **preprocessing)))
    share = check_gradients(model, minidl.Tensor(images), minidl.Tensor(labels), loss_of(model, args.label_smoothing),
                            seed=args.seed)
    sizes = [parameter.size for parameter in model.parameters()]
    say(f"{args.model} on {SAMPLES} {train.items} of {train.name}: the gradients of its {len(sizes)} parameters "
        f"({sum(sizes):,} numbers) are those of finite differences in float64, at most {share:.2g} of the tolerance "
        "off")


def look(args: argparse.Namespace, train: data.Data, test: data.Data, where: str) -> None:
    """Print how good weights are on the test set: those of --load, or of the run of --eval."""
    weights = Path(args.load if args.load else Path(args.eval) / "weights.h5")
    if not args.load and not weights.exists():
        raise ValueError(f"{weights} does not exist, since the run in {args.eval} is not finished; go on with --resume "
                         f"{args.eval}")
    known = read_metadata(weights)
    warn_of_change(weights, known["code"], zoo.find(args.model).code)
    warn_of_transform(weights, known)
    for differ, _ in contradictions(weights, known, test):
        raise ValueError(f"{differ}; {OF_TRAINING}")
    size = os.path.getsize(weights)
    with nn.init.at_most(max(size, FREELY_BUILT)):         # the options may be those of a stranger's config.json
        try:
            model = build(args, train, where, weights)
        except ValueError as error:
            if not str(error).startswith("init: "):
                raise
            raise ValueError(f"{weights} has {size} bytes, too few for --model {args.model} and its options ({error}); "
                             "name the weights of this model") from None
    preprocessing = known["preprocessing"] or train.preprocessing(zoo.find(args.model).item(train.shape, **args.option))
    model = as_trained(args, model)
    loss, accuracy, more = evaluate(model, loaders(args, train, test, where, preprocessing)[1],
                                    loss=loss_of(model, args.label_smoothing), metrics=metrics_of(args))
    shown = "" if math.isnan(accuracy) else f"test accuracy {100 * accuracy:.2f} %, "
    shown += "".join(f"top-{args.top_k} accuracy {100 * share:.2f} %, " for share in more.values())
    say(f"{args.model} on {test.name}: {shown}test loss {loss:.4f}, {len(test.labels)} {test.items}, weights {weights} "
        f"({where})")


def _known_of(weights: Path, items: data.Data) -> dict[str, Any]:
    """What weights to start from say of their data. Classes or columns in another order are refused. The net may learn
    others again, and a warning says so."""
    try:
        known = read_metadata(weights)
    except WeightsError:                   # another program's file says nothing of its data, and loading what is wrong
        return {}
    for differ, in_order in contradictions(weights, known, items):
        if in_order:
            raise ValueError(f"{differ}; {OF_TRAINING}")
        warnings.warn(f"{differ}: what it has learned of its own is of use only as far as these are like them",
                      UserWarning, stacklevel=2)
    return known


def _preprocessing(args: argparse.Namespace, train: data.Data, known: dict[str, Any]) -> dict[str, Any]:
    """How items are normalised: as those were that the weights to start from have learned from, if that fits this data,
    else by the training set. known: what the weights, or the config.json of the run that goes on, say."""
    own, found = train.preprocessing(zoo.find(args.model).item(train.shape, **args.option)), known.get("preprocessing")
    columns = [*getattr(train, "columns", ())]
    if not (OF_DATA["preprocessing"][1](found) and isinstance(found, dict) and found["padding"] == own["padding"]
            and len(found["mean"]) == len(own["mean"]) and (known.get("columns") or columns) == columns):
        return own
    if found != own:
        say(f"{train.items} are normalised as those that {args.load} was trained on")
    return found


@contextmanager
def going_on(what: str, folder: Path, args: argparse.Namespace) -> Iterator[str]:
    """Whatever ends a run, or a sweep, early also says where it is and how to go on. Gives how to go on."""
    ranks = f"mpiexec -n {distributed.current().size} " if distributed.current().size > 1 else ""
    plugins = "".join(f" --plugin {shlex.quote(file)}" for file in args.plugin or ())      # no run folder may name them
    code = f" {shlex.quote(args.model)}" * is_code(args.model)
    again = f"go on with: {ranks}{typed(Parser.running)}{code} --resume {shlex.quote(str(folder))}{plugins}"
    command = f"the {what} is in {folder}, {again}"
    try:
        yield again
    except Interrupted as stop:
        raise Interrupted(f"by {signal.Signals(stop.signum).name}; {command}", stop.signum) from None
    except KeyboardInterrupt:
        raise KeyboardInterrupt(command) from None
    except (OSError, MemoryError) as error:
        raise type(error)(f"{error}; {command}") from None


def _pictures(folder: RunFolder, model: nn.Module, test_loader: data.DataLoader) -> None:
    """The report of a finished run, and curves, filters and confusion matrix if the extra `plot` is installed."""
    try:
        made = (minidl.plot.pictures(folder.path, model, test_loader) if find_spec("matplotlib") else
                [minidl.plot.report(folder.path, model, test_loader)])
        say(f"pictures: {', '.join(path.name for path in made)}")
    except (ValueError, OSError) as error:
        complain(f"warning: no pictures of this run: {error}")


def main(argv: list[str] | None = None, prog: str = "train.py") -> int:
    """Run with these arguments, else those of the process; returns the exit status. Messages start with `prog`.

    Ctrl-C is a line and status 130 if the arguments are the process's, and KeyboardInterrupt if a program gives them.
    """
    distributed.start()
    quiet()
    flags = parser(prog).parse_args(argv)
    if flags.list_models:
        list_models()
        return 0
    with warned():
        warnings.simplefilter("ignore", RuntimeWarning)    # overflow on the way to a loss that fit() refuses
        try:
            if flags.sweep or (flags.resume and (Path(flags.resume) / "sweep.json").exists()):
                from .sweep import sweep

                with alone():              # each net is of one rank, as --batch-size-per-rank then means it
                    flags = parser(prog).parse_args(argv)
                sweep(flags, prog)
            elif flags.workers is not None:
                raise ValueError(f"--workers={flags.workers} is for a sweep; add --sweep, or leave it out")
            else:
                run(settings(argv, prog))
        except distributed.OtherRank:
            return ended("", 0)
        except FORESEEN as error:
            if flags.debug:
                raise
            return ended(str(error), 2)
        except KeyboardInterrupt as stop:
            stop.args = stop.args or ("there is no run folder yet",)
            return interrupted(stop, argv)
    return distributed.current().end()
