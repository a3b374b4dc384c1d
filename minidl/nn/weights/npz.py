"""Arrays in NumPy's .npz: a zip of .npy files, c1.weight.npy for the array "c1.weight", and minidl.json.

`numpy.load(path)["c1.weight"]` reads one. Nothing is compressed and nothing is a pickle. Before a value is read, its
header must be that of a plain array, letter by letter.
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

from . import common
from .common import File, Kind, Meter, WeightsError

_METADATA = "minidl.json"
_NPY = b"\x93NUMPY\x01\x00"
_END = struct.Struct("<4s4H2LH")           # a zip's last bytes; its comment's length is the last of them
_HEADER = re.compile(r"\{'descr': '([<|]\w\d{1,9})', 'fortran_order': False, 'shape': "
                     r"\(((?:\d{1,19}, ){0,31}(?:\d{1,19},?)?)\), \} *\n")
_LONGEST = 1000                            # bytes of a header
_CODES = {np.dtype(name).newbyteorder("<").str: name for name in common.DTYPES}
_DAMAGED = (zipfile.BadZipFile, struct.error, EOFError, LookupError, OverflowError, NotImplementedError)


# ---------------------------------------------------------------------- writing
def image(kind: Kind, state: Mapping[str, np.ndarray], attributes: Mapping[str, str | int]) -> bytes:
    """The file's bytes."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr(_entry(_METADATA), common.as_text(state, attributes))
        for name, array in state.items():
            with archive.open(_entry(f"{name}.npy"), "w", force_zip64=array.nbytes >= 2**31) as member:
                plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
                np.lib.format.write_array(member, plain, version=(1, 0), allow_pickle=False)
    return written.getvalue()              # not getbuffer(): Python complains if an interrupt drops a view


def _entry(name: str) -> zipfile.ZipInfo:
    """A member without a time or a system, so that the bytes are fixed."""
    entry = zipfile.ZipInfo(name)
    entry.create_system, entry.external_attr = 3, 0o644 << 16
    return entry


# ---------------------------------------------------------------------- reading
@contextmanager
def opened(kind: Kind, raw: BinaryIO, arrays: int) -> Iterator[File]:
    """An open file as .npz. No more of it is read than `arrays` arrays need."""
    limit = common.allowance(arrays)       # of the directory, and of minidl.json
    if (start := raw.read(4)) != b"PK\3\4":
        raise WeightsError(f"is not a .npz file (it starts with {start!r} instead of {b'PK' + bytes([3, 4])!r}); "
                           f"{common.choose_another(kind)}")
    raw.seek(max(0, raw.seek(0, os.SEEK_END) - _END.size))
    signature, *_, comment = _END.unpack(raw.read(_END.size).rjust(_END.size))
    if signature != b"PK\5\6" or comment:
        raise WeightsError(f"is truncated or has bytes after its end; {common.choose_another(kind)}")
    meter = Meter(raw, limit, common.too_much(kind))
    try:
        with zipfile.ZipFile(meter) as archive:
            meter.left = sys.maxsize       # below, no more is read of a member than it may have
            yield Npz(kind, archive, limit)
    except _DAMAGED as error:
        raise OSError(str(error)) from error


class Npz(File[zipfile.ZipInfo]):
    """An open .npz file: its entries are the archive's."""

    def __init__(self, kind: Kind, archive: zipfile.ZipFile, limit: int):
        self.archive = archive
        known = {entry.filename: entry for entry in archive.infolist()}
        if _METADATA not in known or known[_METADATA].header_offset:
            raise WeightsError(f"does not begin with {_METADATA}; {common.choose_another(kind)}")
        if known[_METADATA].file_size > limit or not _is_plain(known[_METADATA]):
            raise WeightsError(common.too_much(kind))
        super().__init__(*common.of_text(kind, archive.read(_METADATA).decode("utf-8", "backslashreplace")))

    def listing(self, own: Mapping[str, np.ndarray]) -> Iterator[tuple[str, zipfile.ZipInfo]]:
        for entry in self.archive.infolist():
            if (name := entry.filename) != _METADATA:
                yield name.removesuffix(".npy") if name.endswith(".npy") else f"/{name}", entry

    def describe(self, entry: zipfile.ZipInfo) -> str:
        if not entry.filename.endswith(".npy"):
            return "no array"
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
            return common.describe(shape, f"of type {header[1]}")
        values = entry.file_size - len(start) - length
        wanted = math.prod(shape) * np.dtype(header[1]).itemsize
        kind = _CODES[header[1]]
        return common.describe(shape, kind) if values == wanted else f"{values} bytes where {wanted} must be"

    def values(self, entry: zipfile.ZipInfo, like: np.ndarray) -> np.ndarray:
        with self.archive.open(entry) as member:
            member.read(int.from_bytes(member.read(len(_NPY) + 2)[len(_NPY):], "little"))
            values = member.read(like.nbytes)
            if len(values) < like.nbytes or member.read(1):        # at its end, the archive's own checksum is compared
                raise EOFError(f"{entry.filename} does not hold the values that its header promises")
        array: np.ndarray = np.ndarray(like.shape, like.dtype.newbyteorder("<"), values)
        return array.astype(like.dtype)


def _is_plain(entry: zipfile.ZipInfo) -> bool:
    """Whether a member is stored unchanged."""
    return (entry.compress_type == zipfile.ZIP_STORED and entry.file_size == entry.compress_size
            and not entry.flag_bits & 0x21)                        # encrypted, or a patch
