"""From the bytes of official files to arrays, and from other packages' containers to those bytes."""

from __future__ import annotations

import io
import lzma
import math
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np

from .catalog import DataFile

Array = np.ndarray
Content = bytes | memoryview              # a whole file's, read-only


# ---------------------------------------------------------------- bytes -> arrays
def parse_idx(content: Content, axes: int) -> Array:
    """An IDX file of unsigned bytes: big-endian magic 0x0000080<axes>, the sizes, then the values.

    Raises ValueError if the magic number or the count of values is not what it must be.
    """
    header = 4 * (axes + 1)
    if len(content) < header:
        raise ValueError(f"holds {len(content)} bytes but an IDX header alone has {header}")
    magic, *shape = (int.from_bytes(content[i:i + 4], "big") for i in range(0, header, 4))
    if magic != 0x800 + axes:
        raise ValueError(f"has magic number {magic} but must have {0x800 + axes}")
    values, promised = len(content) - header, math.prod(shape)
    if values != promised:
        raise ValueError(f"holds {values} values but its header promises {promised}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def from_idx(contents: Sequence[Content]) -> tuple[Array, Array]:
    """An image file and a label file -> images (n,1,h,w), labels (n,)."""
    images, labels = contents
    return parse_idx(images, 3)[:, None], parse_idx(labels, 1)


RECORD = 3073                              # CIFAR-10: a label byte, then 3 planes of 32x32


def from_records(contents: Sequence[Content]) -> tuple[Array, Array]:
    """CIFAR-10's binary files -> images (n,3,32,32), labels (n,)."""
    records = [np.frombuffer(content, np.uint8).reshape(-1, RECORD) for content in contents]
    images = np.concatenate([part[:, 1:] for part in records]).reshape(-1, 3, 32, 32)
    return images, np.concatenate([part[:, 0] for part in records])


# ---------------------------------------------------------------- containers -> bytes
# A file is data from a stranger: its size is checked before its bytes, and its headers before its values. No more is
# ever held than the official file has.
SUFFIXES = ("", ".gz", ".xz")
BLOCK = 1 << 16                            # bytes of a compressed file at a time
PIECE = 1 << 20                            # bytes that it may decompress to at a time
XZ_MEMORY = 72 << 20                       # xz -9 needs 65 MiB to decompress


def _reason(error: Exception) -> str:
    """An error of another library in one short line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def read(path: Path, file: DataFile) -> Content:
    """The uncompressed content of a plain, .gz or .xz file, but at most one byte more than the official file has.

    Raises ValueError for a compressed file that is damaged, or that hides work: more than one stream, or many bytes
    that decompress to nothing.
    """
    with open(path, "rb") as opened:
        if path.suffix not in (".gz", ".xz"):
            return opened.read(file.size + 1)
        try:
            return _decompress(opened, _Gzip() if path.suffix == ".gz" else lzma.LZMADecompressor(memlimit=XZ_MEMORY),
                               file.size + 1)
        except (EOFError, ValueError, lzma.LZMAError, zlib.error) as error:
            raise ValueError(f"data: {path} is damaged ({_reason(error)}); remove it or get the file anew") from None


class _Gzip:
    """zlib's decompressor of one gzip stream, with the interface of lzma's."""

    def __init__(self) -> None:
        self.inner = zlib.decompressobj(wbits=31)

    def decompress(self, block: bytes, most: int) -> bytes:
        return self.inner.decompress(self.inner.unconsumed_tail + block, most)

    @property
    def needs_input(self) -> bool:
        return not self.inner.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self.inner.eof

    @property
    def unused_data(self) -> bytes:
        return self.inner.unused_data


def _decompress(opened: BinaryIO, stream: _Gzip | lzma.LZMADecompressor, most: int) -> Content:
    """The one stream of a compressed file, at most `most` bytes of it."""
    content, size, taken = bytearray(most), 0, 0
    while size < most and not stream.eof:
        block = b""
        if stream.needs_input:
            block = opened.read(BLOCK)
            taken += len(block)
            if not block:
                raise EOFError("it ends before its content does")
        piece = stream.decompress(block, min(PIECE, most - size))
        content[size:size + len(piece)] = piece
        size += len(piece)
        if taken > size + 2 * BLOCK + size // 64:      # data that cannot be compressed grows by less
            raise ValueError(f"{taken} bytes of it become only {size}")
    if stream.eof and (stream.unused_data or opened.read(1)):
        raise ValueError("there is more after its end")
    return memoryview(content)[:size].toreadonly()


# ---------------------------------------------------------------- pickled batches
KNOWN = frozenset(".(N)]}aesuthjqrbcRKMJUTBCX\x80\x85\x86\x87\x88\x89\x8c\x93\x94\x95")     # instructions of such files
ARRAY_PARTS = {("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"),
               ("numpy", "ndarray"), ("numpy", "dtype")}
MAX_TUPLES = 12                            # official files have 6; nested tuples as a key can take for ever


class _Array:
    """Replaces an array or a dtype of a pickle, and keeps the state that it is given. No code of NumPy is run."""

    def __init__(self, *_: object):
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Calls nothing but _Array, in the standard library's way: https://docs.python.org/3/library/pickle.html."""

    def find_class(self, module: str, name: str) -> type:
        if (module, name) not in ARRAY_PARTS:
            raise UnpicklingError(f"it asks for {module[:40]}.{name[:40]}, which no image file needs")
        return _Array


def _unpickled(content: bytes, most: int) -> Any:
    """What a pickled batch of CIFAR-10 holds: protocol 2 as Python 2 wrote the official files, 3 and 4 as Python 3
    writes them anew. Its time and memory are bounded by the length of the file and the count of instructions."""
    import pickletools  # 4 ms, which a program that reads no such file need not wait

    tuples = 0
    for count, (code, value, _) in enumerate(pickletools.genops(content)):
        tuples += "TUPLE" in code.name
        if code.code not in KNOWN:
            raise UnpicklingError(f"it has instruction {code.code!r}, which no image file needs")
        if count >= most or tuples > MAX_TUPLES or (code.name == "LONG_BINPUT" and (value or 0) > most):
            raise UnpicklingError(f"it has more than {most} instructions or {MAX_TUPLES} tuples")
    return _Unpickler(io.BytesIO(content), encoding="bytes").load()


def records_from_pickle(path: Path, file: DataFile) -> Content:
    """The binary record file's bytes from the pickled version of one of CIFAR-10's batches.

    Raises ValueError for a pickle that is damaged, asks for anything but arrays, or holds other things.
    """
    images = file.size // RECORD
    most = file.size + 64 * images + 4096      # the official files have 31 more bytes per image, mostly for its name
    try:
        content = _read_sized(path, file.size, most)
        batch = _unpickled(content, 8 * images + 1000)    # the official files have 4 instructions per image
        labels, (_, shape, _, by_columns, pixels) = batch[b"labels"], batch[b"data"].state
        if (not isinstance(labels, list) or len(labels) != images
                or not all(type(label) is int and 0 <= label < 256 for label in labels)):
            raise ValueError(f"its labels are not {images} numbers from 0 to 255")
        if shape != (images, RECORD - 1) or len(pixels) != images * (RECORD - 1):
            raise ValueError(f"its data are not ({images}, {RECORD - 1}) bytes")
        records = np.empty((images, RECORD), np.uint8)
        records[:, 0] = labels
        records[:, 1:] = np.frombuffer(pixels, np.uint8).reshape(shape, order="F" if by_columns else "C")
        return records.data.toreadonly().cast("B")
    except (UnpicklingError, LookupError, TypeError, ValueError, AttributeError, EOFError, OverflowError) as error:
        raise ValueError(f"data: {path} is not a batch of CIFAR-10 ({_reason(error)}); remove it or get the file "
                         "anew") from None


def _read_sized(path: Path, least: int, most: int) -> bytes:
    """A file's content, if it has about the size that it must have."""
    with open(path, "rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        if not least <= size <= most:
            raise ValueError(f"it has {size} bytes but must have {least} to {most}")
        return opened.read(most)


# ---------------------------------------------------------------- Keras's archive
MAX_ARCHIVE_BYTES = 1 << 26                # Keras's own has 11,490,434, uncompressed 54,951,000
MAX_DIRECTORY_BYTES = 1 << 17              # bytes of its directory that are looked at


class _Frugal(io.FileIO):
    """A file that gives no more than `left` bytes in all, which limits the cost of opening an archive."""

    left = MAX_DIRECTORY_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = self.left + 1 if size is None or size < 0 else size
        held = super().read(min(wanted, self.left + 1))
        self.left -= len(held)
        if self.left < 0:
            raise ValueError("it has more in it than four arrays need")
        return held


def idx_from_npz(path: Path, file: DataFile) -> Content:
    """An IDX file's bytes from Keras's archive, which holds x_train, y_train, x_test and y_test.

    Raises ValueError for a damaged archive or one without that array of bytes.
    """
    axes = 3 if "images" in file.name else 1
    key = ("x" if axes == 3 else "y") + ("_train" if file.name.startswith("train") else "_test")
    shape = ((file.size - 16) // 784, 28, 28) if axes == 3 else (file.size - 8,)
    content, at = bytearray(file.size), 4 * (axes + 1)
    content[:at] = b"".join(n.to_bytes(4, "big") for n in (0x800 + axes, *shape))
    try:
        with _Frugal(path) as opened:
            size = os.fstat(opened.fileno()).st_size
            if size > MAX_ARCHIVE_BYTES:
                raise ValueError(f"it has {size} bytes but must have at most {MAX_ARCHIVE_BYTES}")
            with zipfile.ZipFile(opened) as archive:
                entry = archive.getinfo(f"{key}.npy")
                if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError("it is not compressed as NumPy does it")
                opened.left = size
                with archive.open(entry) as member:
                    _npy_header(member, shape)
                    while piece := member.read(min(PIECE, file.size - at)):
                        content[at:at + len(piece)] = piece
                        at += len(piece)
                    if at < file.size or member.read(1):
                        raise ValueError("it does not hold the values that its header promises")
    except (EOFError, LookupError, TypeError, ValueError, OSError, zipfile.BadZipFile, zlib.error, struct.error,
            RuntimeError, OverflowError) as error:                       # OSError: it may point before its start
        raise ValueError(f"data: {path} has no array {key} to read ({_reason(error)}); remove it or get the "
                         "file anew") from None
    return memoryview(content).toreadonly()


def _npy_header(member: IO[bytes], shape: tuple[int, ...]) -> None:
    """Skip the header of an array. Raises ValueError if it is not the header of bytes of this shape."""
    start = member.read(10)                # "\x93NUMPY", the version, the length of the rest
    if start[:8] != b"\x93NUMPY\1\0":
        raise ValueError(f"it begins with {start!r} but must begin as an array of NumPy")
    length = int.from_bytes(start[8:], "little")
    header = member.read(min(length, 256)).decode("latin-1").strip()
    wanted = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
    if length > 256 or header.replace("L", "") != wanted:        # Python 2 may have written (60000L, 28L, 28L)
        raise ValueError(f"its header is {header[:120]!r} but must be {wanted!r}")


class Format(NamedTuple):
    """How official files become arrays, and which other package's container may replace one of them."""

    parse: Callable[[Sequence[Content]], tuple[Array, Array]]
    container: Callable[[str, str], str]   # names of the set and of the file -> the container's name
    restore: Callable[[Path, DataFile], Content]


FORMATS = {
    "idx": Format(from_idx, lambda name, file: f"{name}.npz", idx_from_npz),
    "records": Format(from_records, lambda name, file: file.removesuffix(".bin"), records_from_pickle),
}
