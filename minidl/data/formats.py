"""From the bytes of official files to arrays, and from other packages' containers to those bytes."""

from __future__ import annotations

import gzip
import io
import lzma
import pickle
import zlib
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray


# ---------------------------------------------------------------- bytes -> arrays
def parse_idx(name: str, content: bytes) -> Array:
    """An IDX file of unsigned bytes: big-endian magic 0x0000080<axes>, the sizes, then the values.

    Raises ValueError where the magic number or the count of values is not what the header promises.
    """
    axes = 3 if "images" in name else 1
    magic, wanted = int.from_bytes(content[:4], "big"), 0x800 + axes
    if magic != wanted:
        raise ValueError(f"{name} has magic number {magic} but must have {wanted}; get the file anew")
    shape = [int.from_bytes(content[4 * i:4 * i + 4], "big") for i in range(1, axes + 1)]
    values, promised = len(content) - 4 * (axes + 1), int(np.prod(shape, dtype=object))
    if values != promised:
        raise ValueError(f"{name} holds {values} values but its header promises {promised}; get the file anew")
    return np.frombuffer(content, np.uint8, offset=4 * (axes + 1)).reshape(shape)


def from_idx(names: list[str], contents: list[bytes]) -> tuple[Array, Array]:
    """An image file and a label file -> images (n,1,h,w), labels (n,)."""
    images, labels = (parse_idx(name, content) for name, content in zip(names, contents, strict=True))
    if len(images) != len(labels):
        raise ValueError(f"{names[0]} holds {len(images)} images but {names[1]} {len(labels)} labels; "
                         "get both files anew")
    return images[:, None], labels


RECORD = 3073                              # CIFAR-10: a label byte, then 3 planes of 32x32


def from_records(names: list[str], contents: list[bytes]) -> tuple[Array, Array]:
    """CIFAR-10's binary files -> images (n,3,32,32), labels (n,)."""
    for name, content in zip(names, contents, strict=True):
        if len(content) % RECORD or not content:
            raise ValueError(f"{name} holds {len(content)} bytes but must hold records of {RECORD}; "
                             "get the file anew")
    records = np.frombuffer(b"".join(contents), np.uint8).reshape(-1, RECORD)
    return np.ascontiguousarray(records[:, 1:]).reshape(-1, 3, 32, 32), records[:, 0].copy()


PARSERS = {"idx": from_idx, "records": from_records}


# ---------------------------------------------------------------- containers -> bytes
OPENERS = {"": open, ".gz": gzip.open, ".xz": lzma.open}


def read(path: Path, most: int) -> bytes:
    """The uncompressed content of a plain, .gz or .xz file, but never more than `most` + 1 bytes."""
    opener: Any = OPENERS.get(path.suffix, open)
    try:
        with opener(path, "rb") as file:
            return file.read(most + 1)
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}); remove it or get the file anew") from None


class _OnlyArrays(pickle.Unpickler):
    """Builds dictionaries of lists, text and NumPy byte arrays, and refuses every other class or function."""

    ALLOWED = {("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"),
               ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no image file needs")
        return super().find_class(module, name)


def records_from_pickle(path: Path) -> bytes:
    """The binary record file's bytes from the pickled version of one of CIFAR-10's batches.

    Raises ValueError for a pickle that is damaged, asks for anything but arrays, or holds other things.
    """
    try:
        batch = _OnlyArrays(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        pixels, labels = batch[b"data"], np.asarray(batch[b"labels"], np.uint8)
        return np.concatenate([labels[:, None], np.asarray(pixels, np.uint8)], axis=1).tobytes()
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, AttributeError, IndexError,
            ImportError, OverflowError) as error:
        raise ValueError(f"{path} is no batch of CIFAR-10 ({error}); remove it or get the file anew") from None


def idx_from_npz(path: Path, name: str) -> bytes:
    """An IDX file's bytes from Keras's mnist.npz, which holds x_train, y_train, x_test and y_test.

    Raises ValueError for a damaged archive or one without that array.
    """
    key = ("x" if "images" in name else "y") + ("_train" if name.startswith("train") else "_test")
    try:
        with np.load(path, allow_pickle=False) as archive:
            values = archive[key].astype(np.uint8)
    except (OSError, ValueError, KeyError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} has no array {key} to read ({error}); remove it or get the file anew") from None
    header = [0x800 + values.ndim, *values.shape]
    return b"".join(n.to_bytes(4, "big") for n in header) + values.tobytes()
