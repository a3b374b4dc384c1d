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

from minidl import distributed
from minidl.core.host import can_print


class Parser(argparse.ArgumentParser):
    """argparse, with one line instead of the whole usage for a wrong flag."""

    running = "minidl"                     # the prog of the parser that read this process's flags: messages start so

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: object = None) -> Any:
        """What parse_args calls."""
        Parser.running = self.prog
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the line and exit with status 2."""
        self.exit(2, f"{self.prog}: error: {message}{meant(message)}; see {self.prog} --help\n")


def meant(message: str) -> str:
    """What a message that lists the choices can add: which of them is nearly what was given.

    >>> meant("argument --model: invalid choice: 'Lenet' (choose from 'lenet5', 'mlp')")
    "; did you mean 'lenet5'?"
    >>> meant("'vgg' is not a command; it must be one of train, predict; see minidl --help")
    ''
    """
    found = re.search(r"'([\w.-]+)'.*?(?:one of|choose from) ([^;)]*)", message)
    if found is None:
        return ""
    near = difflib.get_close_matches(found[1].lower(), re.findall(r"[\w.-]+", found[2].partition(", nor ")[0]), 1)
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

    if text not in (argparse.SUPPRESS, *zoo.MODELS) and not zoo.own.is_code(text):     # a default is parsed, too
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(zoo.MODELS)}, nor the place of a net of "
                                         "your own, FILE.py:FUNCTION or package.module:FUNCTION")
    return text


def add_model(parser: argparse.ArgumentParser, default: str | None) -> None:
    """The argument MODEL and the flag --model, which are the same, of the commands that build a net."""
    parser.add_argument("model", nargs="?", default=argparse.SUPPRESS, type=model_name, metavar="MODEL", help="which "
                        "net: a name of the zoo, or FILE.py:FUNCTION or package.module:FUNCTION, a function of yours "
                        f"that returns one{f' (default: {default})' * bool(default)}")
    parser.add_argument("--model", default=default, type=model_name, help="the same")


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
            complain(f"warning: the output cannot be written ({error.strerror}); the run goes on without it")


def complain(text: str, prog: str = "") -> None:
    """Print a line on stderr that starts with the program's name."""
    say(f"{prog or Parser.running}: {text}", "stderr")


def add_code(parser: argparse.ArgumentParser) -> None:
    """The flag --code of the commands that read weights."""
    parser.add_argument("--code", metavar="FILE.py:FUNCTION", help="the function that a net of your own was built by, "
                        "or package.module:FUNCTION: it is run; what the weights name is not")


def weights_in(path: str) -> Path:
    """The weights file of a run's folder, or of a path itself."""
    return Path(path) / "weights.h5" if Path(path).is_dir() else Path(path)


@contextmanager
def warned() -> Iterator[None]:
    """Within, a warning is a line."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: complain(f"warning: {message}")
        yield


def run(parser: Parser, argv: list[str] | None, command: Callable[[argparse.Namespace], int | None]) -> int:
    """A command's main: parse its flags, and an error of any foreseen kind is one line and status 2."""
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    args = parser.parse_args(argv)
    try:
        with warned():
            return command(args) or 0
    except (ValueError, TypeError, OSError, RuntimeError, ImportError, AssertionError, MemoryError) as error:
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
