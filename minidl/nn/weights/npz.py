"""Arrays in NumPy's .npz: a zip of .npy files, c1.weight.npy for the array "c1.weight", and minidl.json.

`numpy.load(path)["c1.weight"]` reads one. Nothing is compressed and nothing is a pickle: a header must be, letter by
letter, that of a plain array before a value is read.
"""

from __future__ import annotations

import io
import math
import os
import re
import struct
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import BinaryIO

import numpy as np

from .common import DTYPES, MAX_NAMED, Kind, Meter, Noted, WeightsError, choose_another, describe, quoted, too_much

_METADATA = "minidl.json"
_NPY = b"\x93NUMPY\x01\x00"
_END = struct.Struct("<4s4H2LH")           # a zip's last bytes; its comment's length is the last of them
_LIMIT = 2**21                             # bytes of the directory, and of minidl.json; more for each array
_LIMIT_PER_ARRAY = 2**10
_HEADER = re.compile(r"\{'descr': '([<|]\w\d{1,9})', 'fortran_order': False, 'shape': "
                     r"\(((?:\d{1,19}, ){0,31}(?:\d{1,19},?)?)\), \} *\n")
_LONGEST = 1000                            # bytes of a header
_CODES = {np.dtype(name).newbyteorder("<").str: name for name in DTYPES}
_DAMAGED = (zipfile.BadZipFile, struct.error, EOFError, LookupError, OverflowError, NotImplementedError)


# ---------------------------------------------------------------------- writing
def image(kind: Kind, state: Mapping[str, np.ndarray], attributes: Mapping[str, str | int]) -> bytes:
    """The file's bytes."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr(_entry(_METADATA), Noted.text(state, attributes))
        for name, array in state.items():
            with archive.open(_entry(f"{name}.npy"), "w", force_zip64=array.nbytes >= 2**31) as member:
                plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
                np.lib.format.write_array(member, plain, version=(1, 0), allow_pickle=False)
    return written.getvalue()              # not getbuffer(): Python complains where an interrupt drops a view


def _entry(name: str) -> zipfile.ZipInfo:
    """A member without a time or a system, so that the bytes are fixed."""
    entry = zipfile.ZipInfo(name)
    entry.create_system, entry.external_attr = 3, 0o644 << 16
    return entry


# ---------------------------------------------------------------------- reading
@contextmanager
def opened(kind: Kind, raw: BinaryIO, arrays: int) -> Iterator[File]:
    """An open file as .npz, of which as much is read as so many arrays need."""
    limit = _LIMIT + arrays * _LIMIT_PER_ARRAY
    if (start := raw.read(4)) != b"PK\3\4":
        raise WeightsError(f"is not a .npz file (it starts with {start!r} instead of {b'PK' + bytes([3, 4])!r}); "
                           f"{choose_another(kind)}")
    raw.seek(max(0, raw.seek(0, os.SEEK_END) - _END.size))
    signature, *_, comment = _END.unpack(raw.read(_END.size).rjust(_END.size))
    if signature != b"PK\5\6" or comment:
        raise WeightsError(f"is truncated or has bytes after its end; {choose_another(kind)}")
    meter = Meter(raw, limit, too_much(kind))
    try:
        with zipfile.ZipFile(meter) as archive:
            meter.left = sys.maxsize       # of each member, no more is asked than it may have
            yield File(kind, archive, limit)
    except _DAMAGED as error:
        raise OSError(str(error)) from error


class File(Noted):
    """An open .npz file; its methods are those of common.File."""

    def __init__(self, kind: Kind, archive: zipfile.ZipFile, limit: int):
        self.archive = archive
        known = {entry.filename: entry for entry in archive.infolist()}
        if _METADATA not in known or known[_METADATA].header_offset:
            raise WeightsError(f"does not begin with {_METADATA}; {choose_another(kind)}")
        if known[_METADATA].file_size > limit or not _is_plain(known[_METADATA]):
            raise WeightsError(too_much(kind))
        super().__init__(kind, archive.read(_METADATA).decode("utf-8", "backslashreplace"))

    def entries(self, own: Mapping[str, np.ndarray]) -> tuple[dict[str, str], bool]:
        found: dict[str, str] = {}
        strange = 0
        for entry in self.archive.infolist():
            if entry.filename == _METADATA:
                continue
            if strange >= MAX_NAMED:
                return found, False
            plain = entry.filename.endswith(".npy")
            name = entry.filename.removesuffix(".npy") if plain else f"/{entry.filename}"
            if name not in own:
                name, strange = quoted(name), strange + 1
            found[name] = "stored twice" if name in found else self._describe(entry) if plain else "no array"
        return found, True

    def _describe(self, entry: zipfile.ZipInfo) -> str:
        """An array as `describe` has it, or in words what keeps it from being a plain array."""
        if not _is_plain(entry):
            return "compressed or encrypted"
        with self.archive.open(entry) as member:
            start = member.read(len(_NPY) + 2)
            length = int.from_bytes(start[len(_NPY):], "little")
            if start[:len(_NPY)] != _NPY or length > _LONGEST:
                return "no plain array"
            header = _HEADER.fullmatch(member.read(length).decode("latin-1"))
        if header is None:
            return "no plain array"
        shape = tuple(int(n) for n in header[2].replace(",", " ").split())
        if header[1] not in _CODES:
            return describe(shape, f"of type {header[1]}")
        values = entry.file_size - len(start) - length
        wanted = math.prod(shape) * np.dtype(header[1]).itemsize
        return describe(shape, _CODES[header[1]]) if values == wanted else f"{values} bytes where {wanted} must be"

    def read(self, name: str, like: np.ndarray) -> tuple[np.ndarray, str | int | None]:
        with self.archive.open(f"{name}.npy") as member:
            member.read(int.from_bytes(member.read(len(_NPY) + 2)[len(_NPY):], "little"))
            values = member.read(like.nbytes)
            if len(values) < like.nbytes or member.read(1):        # at its end, the archive's own checksum is compared
                raise EOFError(f"{name} does not hold the values that its header promises")
        array: np.ndarray = np.ndarray(like.shape, like.dtype.newbyteorder("<"), values)
        return array.astype(like.dtype), self.checksum(name)


def _is_plain(entry: zipfile.ZipInfo) -> bool:
    """Whether a member is stored as it is."""
    return (entry.compress_type == zipfile.ZIP_STORED and entry.file_size == entry.compress_size
            and not entry.flag_bits & 0x21)                        # encrypted, or a patch
