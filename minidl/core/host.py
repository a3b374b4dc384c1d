"""What surrounds a run: where files are kept between runs, files from strangers, what pip is to install, whether there
is a stream to print to, and which names can be printed."""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from pathlib import Path
from typing import BinaryIO

ROOT = Path(__file__).resolve().parents[2]             # of a checkout, or site-packages
MAX_NAME = 200                                         # characters
TURNING = {*map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A)))}        # they turn what follows


def is_name(text: object) -> bool:
    """Whether it is a text that may name a class or a column: of characters that no terminal obeys. Format characters
    belong to the words of some scripts."""
    return isinstance(text, str) and 0 < len(text) <= MAX_NAME and all(
        letter.isprintable() or (unicodedata.category(letter) in ("Cf", "Zs") and letter not in TURNING)
        for letter in text)


def cache_folder() -> Path:
    """The folder for data sets and for the record of the fastest convolutions: $MINIDL_CACHE, or minidl in
    $XDG_CACHE_HOME, or ~/.cache/minidl, on every system.

    >>> cache_folder().is_absolute() or "MINIDL_CACHE" in os.environ
    True
    """
    own = os.environ.get("MINIDL_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minidl"


def open_file(who: str, path: str | os.PathLike[str]) -> BinaryIO:
    """A file, open for reading. Raises, in the name of `who`, ValueError for a pipe, a device or a folder, and OSError
    for what cannot be opened."""
    path = Path(path).expanduser()
    if path.exists() and not path.is_file():               # a pipe may have no end
        raise ValueError(f"{who}: {path} is not a file, but a folder, a pipe or a device; write its content to a file, "
                         "and name that")
    try:
        return open(path, "rb")
    except OSError as error:
        raise type(error)(f"{who}: {path} cannot be opened ({error.strerror}); name a file that is there and may be "
                          "read") from None


def install(extra: str) -> str:
    """The command that installs what an extra needs: in a checkout the extra itself, elsewhere its packages, since
    minidl may be on no index. Every message that names an extra takes it from here."""
    if not (ROOT / "setup.cfg").exists():
        names = " ".join(map(shlex.quote, requirements(extra)))
        return f"pip install {names or f'the packages of the extra {extra!r} of minidl'}"
    here = "." if os.path.samefile(".", ROOT) else ROOT
    return f"pip install -e {shlex.quote(f'{here}[{extra}]')}"


def requirements(extra: str = "") -> list[str]:
    """What the installed minidl says that it needs, or that an extra needs: ["numpy>=2", ...]; [] if minidl is not
    installed."""
    from importlib import metadata  # which takes longer than the rest of this module

    try:
        lines = [line.partition(";") for line in metadata.requires("minidl") or []]
    except metadata.PackageNotFoundError:
        return []
    wanted = [extra] if extra else []
    return [name.strip() for name, _, mark in lines if re.findall(r"""extra == ['"]([\w-]+)""", mark) == wanted]


def can_print(stream: object) -> bool:
    """Whether a stream is there and open: a service, pythonw and `2>&-` have no stderr.

    >>> can_print(None)
    False
    """
    return stream is not None and not getattr(stream, "closed", False)
