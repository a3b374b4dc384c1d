"""What all formats of files share: what may be stored, what a format must do, and how messages describe a file."""

from __future__ import annotations

import hashlib
import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar

import numpy as np

DTYPES = ("float32", "float64", "bool", "uint8", "int8", "int16", "int32", "int64")
NAME = re.compile(r"[\w-]+(\.[\w-]+)*")

Entry = TypeVar("Entry")                 # what a format has in the place of an array

TEXT = 2**20                               # the longest text among a file's attributes, in bytes
MAX_NAMED = 20                             # at most this many errors are named in a message,
MAX_CHARACTERS = 3000                      # in at most this many characters,
CUT = 80                                   # and at most this many of each text from the file


class WeightsError(ValueError):
    """A file is not the weights that the model needs."""

    __module__ = "minidl.nn.weights"          # where users find it


class Kind(NamedTuple):
    """A kind of file: its attributes "format" and "format_version", the group that holds its arrays, and what
    messages name as its reader and its writer."""

    format: str
    version: int
    group: str
    reader: str
    writer: str


def choose_another(kind: Kind) -> str:
    """The advice that most refusals give."""
    return f"choose a file that {kind.writer} wrote"


def allowance(arrays: int) -> int:
    """The bytes that a file of `arrays` arrays may have besides their values, in formats with one list of arrays."""
    return 2**21 + arrays * 2**10


def too_much(kind: Kind) -> str:
    """The message about a file that hides work."""
    return f"has more beside its arrays than {kind.writer} writes; {choose_another(kind)}"


class Meter(io.RawIOBase):
    """A file of which a format may read at most `left` bytes: a format would believe any length that a file claims."""

    def __init__(self, raw: BinaryIO, left: int, verdict: str):
        self.raw, self.left, self.verdict = raw, left, verdict

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.raw.seek(offset, whence)

    def tell(self) -> int:
        return self.raw.tell()

    def read(self, size: int = -1) -> bytes:
        content = self.raw.read(self.left + 1 if size < 0 else min(size, self.left + 1))
        self._count(len(content))
        return content

    def readinto(self, buffer: Any) -> int:
        self._count(len(buffer))
        return self.raw.readinto(buffer)  # type: ignore[attr-defined]

    def _count(self, read: int) -> None:
        self.left -= read
        if self.left < 0:
            raise WeightsError(self.verdict)


class File(ABC, Generic[Entry]):
    """An open file of arrays, with the checks that protect its reader in every format. Its methods raise WeightsError
    with a sentence without subject.

    A format is a subclass. It lists what is in the file (`listing`), says which entries are plain arrays, of which
    shape and dtype (`describe`), and reads an array (`values`). Names and texts of the file are shown quoted and cut,
    and only as many entries are read as needed. sums: the checksums of arrays by their names; None if another program
    wrote the file, which then has only arrays: the checksum is then that of the values themselves.
    """

    most = MAX_NAMED                       # reading stops after this many entries that were not requested

    def __init__(self, attributes: Mapping[str, object], sums: Mapping[str, object] | None):
        self.attributes, self.sums, self.foreign = attributes, sums, sums is None
        self.stored: dict[str, Entry] = {}

    # ------------------------------------------------------------------ of a format
    @abstractmethod
    def listing(self, own: Mapping[str, np.ndarray]) -> Iterable[tuple[str, Entry]]:
        """All that is in the file: the names of arrays, or what else has a name, each with its entry."""

    @abstractmethod
    def describe(self, entry: Entry) -> str:
        """An entry as the function `describe` shows it, or in words why it is not a plain array."""

    @abstractmethod
    def values(self, entry: Entry, like: np.ndarray) -> np.ndarray:
        """An entry's values: an array of the shape and dtype that `describe` gave and `like` has."""

    def checksum(self, name: str) -> str | int | None:
        """The checksum that the file has for an array."""
        return plain((self.sums or {}).get(name))

    # ------------------------------------------------------------------ of every file
    def has(self, attribute: str) -> bool:
        """Whether there is an attribute of this name, whatever it holds."""
        return attribute in self.attributes

    def attribute(self, name: str) -> str | int | None:
        """A text or whole number; None if it is missing or anything else."""
        return plain(self.attributes.get(name))

    def entries(self, own: Mapping[str, np.ndarray]) -> tuple[dict[str, str], bool]:
        """All that is in the file, by the names of arrays, as `describe` shows it.

        It may stop at entry number `most` that is not in `own`. The second result is then False.
        """
        found: dict[str, str] = {}
        strange = 0
        for name, entry in self.listing(own):
            if strange >= self.most:
                return found, False
            if name not in own:
                name, strange = quoted(name), strange + 1
            found[name] = "stored twice" if name in found else self.describe(entry)
            self.stored[name] = entry
        return found, True

    def read(self, name: str, like: np.ndarray) -> tuple[np.ndarray, str | int | None]:
        """The values of an array that `entries` described in the same way as `like`, and its checksum."""
        array = self.values(self.stored[name], like)
        return array, digest(array) if self.foreign else self.checksum(name)


def as_text(state: Mapping[str, np.ndarray], attributes: Mapping[str, str | int]) -> str:
    """The attributes and all checksums as one text, for a format that has no other place for them: a JSON object."""
    return json.dumps({**attributes, "sha256": {name: digest(array) for name, array in state.items()}})


def of_text(kind: Kind, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(attributes, checksums) of what `as_text` made."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("sha256"), dict):
        raise WeightsError(f"has metadata {shown(text)} but must have a JSON object with checksums; "
                           f"{choose_another(kind)}")
    return found, found.pop("sha256")


def plain(value: object) -> str | int | None:
    """The value if it is a text of allowed length or a whole number, else None."""
    if isinstance(value, str):
        return value if len(value) <= TEXT else None
    return value if type(value) is int else None


def describe(shape: tuple[int, ...], dtype: str) -> str:
    """All that must be equal in two arrays, as messages show it: "(6,1,5,5) float32"."""
    return f"{str(shape).replace(' ', '')} {dtype}"


def digest(array: np.ndarray) -> str:
    """SHA-256 of an array's values in C order, little-endian."""
    return hashlib.sha256(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data).hexdigest()


def shown(value: object) -> str:
    """A value of a file as it is printed: quoted, without control characters, cut."""
    return cut(repr(value[:CUT] if isinstance(value, str) else value))


def cut(text: str) -> str:
    """A text's first 80 characters."""
    return text if len(text) <= CUT else text[:CUT - 3] + "..."


def listed(items: list[str], all_seen: bool = True) -> str:
    """The first of the items that are wrong, and how many more there are."""
    told = items[:1]
    for item in items[1:MAX_NAMED]:
        if len("; ".join(told)) + len(item) > MAX_CHARACTERS:
            break
        told.append(item)
    if len(told) < len(items) or not all_seen:
        told.append(f"{len(items) - len(told)} more" if all_seen else "more")
    return "; ".join(told)


def part(text: str) -> str:
    """A name in a file as a part of an array's name; quoted if it would read as two parts or two lines."""
    return text if text and text.isprintable() and "." not in text else ascii(text)


def quoted(name: str) -> str:
    """A name from a file as it is shown: its parts between the dots, quoted if they need it."""
    return ".".join(map(part, name.split(".")))


def require_file(op: str, path: Path) -> None:
    """Refuse a path that is a folder, a device or a pipe."""
    if path.is_dir():
        raise IsADirectoryError(f"{op}: '{path}' is a folder but must be a file, such as '{path / 'weights.h5'}'")
    if not path.is_file():  # opening a pipe could wait for ever, replacing a device would break the system
        raise OSError(f"{op}: '{path}' is a device or pipe but must be an ordinary file; choose another path")
