"""From the bytes of official files to arrays, and from other packages' containers to those bytes."""

from __future__ import annotations

import gzip
import io
import lzma
import math
import pickle
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .catalog import File

Array = np.ndarray


# ---------------------------------------------------------------- bytes -> arrays
def parse_idx(content: bytes, axes: int) -> Array:
    """An IDX file of unsigned bytes: big-endian magic 0x0000080<axes>, the sizes, then the values.

    Raises ValueError where the magic number or the count of values is not what it must be.
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


def from_idx(contents: list[bytes]) -> tuple[Array, Array]:
    """An image file and a label file -> images (n,1,h,w), labels (n,)."""
    images, labels = contents
    return parse_idx(images, 3)[:, None], parse_idx(labels, 1)


RECORD = 3073                              # CIFAR-10: a label byte, then 3 planes of 32x32


def from_records(contents: list[bytes]) -> tuple[Array, Array]:
    """CIFAR-10's binary files -> images (n,3,32,32), labels (n,)."""
    records = [np.frombuffer(content, np.uint8).reshape(-1, RECORD) for content in contents]
    images = np.concatenate([part[:, 1:] for part in records]).reshape(-1, 3, 32, 32)
    return images, np.concatenate([part[:, 0] for part in records])


# ---------------------------------------------------------------- containers -> bytes
OPENERS: dict[str, Callable[..., Any]] = {"": open, ".gz": gzip.open, ".xz": lzma.open}


def _reason(error: Exception) -> str:
    """An error of another library in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def read(path: Path, file: File) -> bytes:
    """The uncompressed content of a plain, .gz or .xz file, but never more than one byte too much."""
    try:
        with OPENERS.get(path.suffix, open)(path, "rb") as opened:
            return opened.read(file.size + 1)
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"data: {path} is damaged ({_reason(error)}); remove it or get the file anew") from None


class _Inert:
    """Stands for what a pickle asks NumPy for: takes any arguments, keeps the state that it is given, does nothing."""

    def __init__(self, *arguments: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _OnlyArrays(pickle.Unpickler):
    """Builds dictionaries, lists and byte strings, keeps the state of NumPy arrays, refuses every other class.

    Not even NumPy's own functions are run: some wrong state of a dtype is enough to damage NumPy itself.
    """

    ARRAY_PARTS = {("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"),
                   ("numpy", "ndarray"), ("numpy", "dtype")}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ARRAY_PARTS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no image file needs")
        return _Inert


def records_from_pickle(path: Path, file: File) -> bytes:
    """The binary record file's bytes from the pickled version of one of CIFAR-10's batches.

    Raises ValueError for a pickle that is damaged, asks for anything but arrays, or holds other things.
    """
    held = io.BytesIO(path.read_bytes())
    try:
        batch = _OnlyArrays(held, encoding="bytes").load()
        labels = np.array(batch[b"labels"], np.uint8)
        *_, values = batch[b"data"].state  # version, shape, dtype, order, bytes
        pixels = np.frombuffer(values, np.uint8).reshape(len(labels), RECORD - 1)
        return np.concatenate([labels[:, None], pixels], axis=1).tobytes()
    except (pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError, AttributeError, OverflowError,
            MemoryError) as error:
        raise ValueError(f"data: {path} is no batch of CIFAR-10 ({_reason(error)}); remove it or get the file "
                         "anew") from None


def idx_from_npz(path: Path, file: File) -> bytes:
    """An IDX file's bytes from Keras's archive, which holds x_train, y_train, x_test and y_test.

    Raises ValueError for a damaged archive or one without that array.
    """
    key = ("x" if "images" in file.name else "y") + ("_train" if file.name.startswith("train") else "_test")
    held = io.BytesIO(path.read_bytes())
    try:
        with np.load(held, allow_pickle=False) as archive:
            values = archive[key].astype(np.uint8)
    except (EOFError, LookupError, TypeError, ValueError, AttributeError, zipfile.BadZipFile, zlib.error,
            RuntimeError, MemoryError) as error:
        raise ValueError(f"data: {path} has no array {key} to read ({_reason(error)}); remove it or get the "
                         "file anew") from None
    header = [0x800 + values.ndim, *values.shape]
    return b"".join(n.to_bytes(4, "big") for n in header) + values.tobytes()


class Format(NamedTuple):
    """How official files become arrays, and which other package's container may stand for one of them."""

    parse: Callable[[list[bytes]], tuple[Array, Array]]
    container: Callable[[str, str], str]   # names of the set and of the file -> the container's name
    restore: Callable[[Path, File], bytes]


FORMATS = {
    "idx": Format(from_idx, lambda name, file: f"{name}.npz", idx_from_npz),
    "records": Format(from_records, lambda name, file: file.removesuffix(".bin"), records_from_pickle),
}
