"""What the commands share: a parser whose errors are one line, and prints that end no run."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """argparse, with one line instead of the whole usage for a wrong flag."""

    running = "minidl"                     # the prog of the parser that read this process's flags: messages start so

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """What parse_args calls."""
        Parser.running = self.prog
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the line and exit with status 2."""
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


class _Option(argparse.Action):
    """NAME=VALUE, several times, as a dict: true, false and numbers as JSON has them, all else as a text."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        name, equals, text = values.partition("=")
        if not (name and equals):
            parser.error(f"argument {option_string}: {values!r} is not NAME=VALUE")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), name: value})


def add_option(parser: argparse.ArgumentParser) -> None:
    """The flag --option of the commands that build a model of the zoo."""
    parser.add_argument("--option", action=_Option, default={}, metavar="NAME=VALUE",
                        help="an option of the model, such as activation=relu or original=true; may be repeated")


def say(text: str, stream: Any = None) -> None:
    """Print a line. What goes wrong with that, a closed pipe or a full disk, does not end a run."""
    stream = stream or sys.stdout
    try:
        try:
            print(text, file=stream, flush=True)
        except UnicodeEncodeError:
            print(text.encode("ascii", "backslashreplace").decode(), file=stream, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())     # also what is still in its buffer goes there
        if stream is sys.stdout:
            complain(f"warning: the output cannot be written ({error.strerror}); the run goes on without it")


def complain(text: str, prog: str = "") -> None:
    """Print a line on stderr that starts with the program's name."""
    say(f"{prog or Parser.running}: {text}", sys.stderr)


def run(parser: Parser, argv: list[str] | None, command: Callable[[argparse.Namespace], int | None]) -> int:
    """A command's main: parse its flags, and an error of any foreseen kind is one line and status 2."""
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    args = parser.parse_args(argv)
    try:
        return command(args) or 0
    except (ValueError, TypeError, OSError, RuntimeError, ImportError, AssertionError, MemoryError) as error:
        if args.debug:
            raise
        complain(f"error: {' '.join(str(error).split()) or type(error).__name__}")
        return 2
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
