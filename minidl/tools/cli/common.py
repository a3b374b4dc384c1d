"""What the commands share: a parser whose errors are one line, and prints that end no run."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shlex
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TextIO

from minidl import distributed, nn
from minidl.core.host import can_print


class Parser(argparse.ArgumentParser):
    """argparse, with one line instead of the whole usage for a wrong flag."""

    running = "minidl"                     # the prog of the parser that read this process's flags: messages start so
    lost = False                           # whether some of stdout could not be written
    mixed = False                          # whether flags may come between the arguments of a list

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: object = None) -> Any:
        """What parse_args calls."""
        Parser.running = self.prog
        args = [*(sys.argv[1:] if args is None else args)]
        if self.mixed and "--" not in args:            # which that method loses
            self.mixed = False             # it calls this method for both kinds
            return self.parse_known_intermixed_args(args, namespace)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the line and exit with status 2."""
        self.exit(2, f"{self.prog}: error: {message}{meant(message)}; see {self.prog} --help\n")


def meant(message: str) -> str:
    """What a message that lists the choices can add: which of them is nearly what was given, the last text in quotes.

    >>> meant("argument --model: invalid choice: 'Lenet' (choose from 'lenet5', 'mlp')")
    "; did you mean 'lenet5'?"
    >>> meant("'vgg' is not a command; it must be one of train, predict; see minidl --help")
    ''
    """
    found = re.search(r"'([^']+)'[^']*(?:one of|choose from|it has) ([^;)]*)", message)
    if found is None:
        return ""
    near = difflib.get_close_matches(found[1].lower(), re.findall(r"[\w./-]+", found[2].partition(", nor ")[0]), 1)
    return f"; did you mean '{near[0]}'?" if near else ""


def add_json(parser: argparse.ArgumentParser) -> None:
    """The flag --json of the commands that print a table."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def say_json(value: object) -> None:
    """Print a value; what JSON does not know is a text."""
    say(json.dumps(value, default=str))


class _Option(argparse.Action):
    """NAME=VALUE, several times, as a dict: true, false and numbers as JSON has them, all else as a text."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: object, values: Any,
                 option_string: str | None = None) -> None:
        name, equals, text = values.partition("=")
        if not (name and equals):
            parser.error(f"argument {option_string}: {values!r} is not NAME=VALUE")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), name: value})


def model_name(text: str) -> str:
    """An argparse type: a model of the zoo, or a place in code, which is not imported yet."""
    from minidl import zoo

    try:
        return text if text == argparse.SUPPRESS else zoo.known(text)          # a default is parsed, too
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("zoo: model ")) from None


def add_model(parser: argparse.ArgumentParser, default: str | None) -> None:
    """The argument MODEL and the flag --model, which are the same, of the commands that build a net."""
    parser.add_argument("model", nargs="?", default=argparse.SUPPRESS, type=model_name, metavar="MODEL", help="which "
                        "net: a name of the zoo, or FILE.py:FUNCTION or package.module:FUNCTION, a function of yours "
                        f"that returns one{f' (default: {default})' * bool(default)}")
    parser.add_argument("--model", default=default, type=model_name, help="the same")


def add_net(parser: argparse.ArgumentParser) -> None:
    """The arguments of the commands that look at one net, as `net_of` reads them."""
    add_model(parser, default=None)
    add_option(parser)
    parser.add_argument("--weights", metavar="FILE", help="the net that a weights file holds, or a run's folder, in "
                        "place of a model")
    add_code(parser)
    parser.add_argument("--input", type=shape, metavar="C,H,W", help="shape of one image, or the columns of a "
                        "table (default: the model's own)")


def net_of(args: argparse.Namespace) -> tuple[str, nn.Module, tuple[int, ...]]:
    """The net that the arguments name, its name, and the shape of an item that it reads. Raises ValueError if none is
    named, and if nothing says the shape."""
    from minidl import zoo
    from minidl.training.stored import read_net

    if (args.model is None) == (args.weights is None):
        raise ValueError("one of --model and --weights must be given")
    if args.weights is not None:
        net, known, reads = read_net(args.weights, args.code)
        name = known["model"]
    else:
        model = zoo.find(args.model)
        net = model.build(**{**(model.of_data(args.input) if args.input else {}), **args.option})
        name, reads = model.name, model.read_by(net)
    wanted = args.input or reads
    if 0 in wanted:
        raise ValueError(f"{name} does not say the shape of what it reads; name it: --input 3,32,32")
    return name, net, wanted


def shape(text: str) -> tuple[int, ...]:
    """An argparse type: "3,32,32".

    >>> shape("3,32,32")
    (3, 32, 32)
    """
    sizes = tuple(int(size) if size.strip().isdigit() else 0 for size in text.split(","))
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape, ints of at least 1 such as 3,32,32")
    return sizes


def add_option(parser: argparse.ArgumentParser) -> None:
    """The flag --option of the commands that build a net."""
    parser.add_argument("--option", action=_Option, default={}, metavar="NAME=VALUE",
                        help="an option of the model, such as activation=relu or original=true; may be repeated")


def say(text: str, where: str = "stdout") -> None:
    """Print a line. What goes wrong with that, a closed pipe or a full disk, does not end a run."""
    stream: TextIO = getattr(sys, where)
    if not can_print(stream):
        return
    try:
        try:
            print(text, file=stream, flush=True)
        except UnicodeEncodeError:
            print(text.encode("ascii", "backslashreplace").decode(), file=stream, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())     # also what is still in its buffer goes there
        if where == "stdout":
            Parser.lost = not isinstance(error, BrokenPipeError)       # `| head` wants no more
            complain(f"warning: the output cannot be written ({error.strerror}); the run goes on without it")


def complain(text: str, prog: str = "") -> None:
    """Print a line on stderr that starts with the program's name."""
    say(f"{prog or Parser.running}: {text}", "stderr")


def add_code(parser: argparse.ArgumentParser) -> None:
    """The flag --code of the commands that read weights."""
    parser.add_argument("--code", metavar="FILE.py:FUNCTION", help="the function that a net of your own was built by, "
                        "or package.module:FUNCTION: it is run; what the weights name is not")


@contextmanager
def warned() -> Iterator[None]:
    """Within, a warning is a line."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: complain(f"warning: {message}")
        yield


FORESEEN = ValueError, TypeError, OSError, RuntimeError, ImportError, AssertionError, FloatingPointError, MemoryError


def run(parser: Parser, argv: list[str] | None, command: Callable[[argparse.Namespace], int | None]) -> int:
    """A command's main: parse its flags, and an error of any foreseen kind is one line and status 2. So is output that
    is lost, to a full disk for example."""
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    args, Parser.lost = parser.parse_args(argv), False
    try:
        with warned():
            return command(args) or 2 * Parser.lost
    except FORESEEN as error:
        if args.debug:
            raise
        text = " ".join(str(error).split()) or type(error).__name__
        complain(f"error: {text}{meant(text)}")
        return 2


def quiet() -> None:
    """Of several ranks only the first prints; what ends a run is printed by the rank that it happened to."""
    if distributed.current().rank:
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")      # noqa: SIM115  # until the end


def ended(text: str, status: int, kind: str = "error: ") -> int:
    """The end by an error, printed once by the ranks of a run; returns the exit status."""
    def tell(told: str) -> None:
        if distributed.current().rank:
            sys.stderr = sys.__stderr__
        complain(kind + told + (meant(told) if kind else ""))

    return distributed.current().end(text, status, tell)


def interrupted(stop: KeyboardInterrupt, argv: list[str] | None) -> int:
    """A main's end by Ctrl-C or SIGTERM: a line, and status 130 or 143.

    A main that got its arguments from Python raises it: a loop over trainings would otherwise go on with the next.
    """
    if argv is not None:
        raise stop
    signum = getattr(stop, "signum", None)             # of training.Interrupted, whose text begins with its name
    text = f"interrupted{'' if not stop.args else ' ' if signum else '; '}{stop}"
    return ended(text, 128 + (signum or signal.SIGINT), "")


def typed(prog: str) -> str:
    """What the user types for `prog`, "minidl train" or "train.py", to start it as this process was started."""
    name, *command = prog.split()
    script, flags = Path(*sys.argv[:1]), sys.argv[1:]
    start = sys.orig_argv[:len(sys.orig_argv) - len(flags)]
    ours = script.name == name or script.parts[-2:] == (name, "__main__.py")
    if ours and [*start, *flags] == sys.orig_argv:
        if script.name == "minidl":        # the console script: the system found the Python of its first line
            found = shutil.which("minidl")
            start = ["minidl" if found and os.path.realpath(found) == os.path.realpath(script) else sys.argv[0]]
    else:                                  # called from another program
        start = ["python", name] if name.endswith(".py") else [name]
    return shlex.join([*start, *command])
