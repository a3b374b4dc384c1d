"""Arrays in a .safetensors file, by the package of that name; the attributes are a text under "minidl" in its metadata.

Others read it too, and their files are read: names and layouts are PyTorch's. The package maps the file into memory
and refuses headers whose arrays overlap, leave gaps or end elsewhere than the file; how long a header may be is looked
at before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from ..habits import without_counts
from .common import DTYPES, MAX_NAMED, Kind, Noted, WeightsError, choose_another, describe, digest, quoted, too_much

if TYPE_CHECKING:
    import safetensors

_LIMIT = 2**21                             # bytes of the header; more for each array
_LIMIT_PER_ARRAY = 2**10
_CODES = dict(zip(("F32", "F64", "BOOL", "U8", "I8", "I16", "I32", "I64"), DTYPES, strict=True))


def _package(op: str) -> ModuleType:
    try:
        import safetensors.numpy
    except ImportError:
        raise ImportError(f"{op}: a .safetensors file needs the package safetensors; run pip install "
                          "'minidl[safetensors]'") from None
    return safetensors


def image(kind: Kind, state: Mapping[str, np.ndarray], attributes: Mapping[str, str | int]) -> bytes:
    """The file's bytes. One text of metadata: the package writes several in any order."""
    plain = {name: np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
             for name, array in state.items()}
    return _package("save").numpy.save(plain, {"minidl": Noted.text(state, attributes)})


@contextmanager
def opened(kind: Kind, raw: BinaryIO, arrays: int) -> Iterator[File]:
    """An open file as .safetensors, whose header is no longer than that of so many arrays."""
    package = _package(kind.reader)
    length, size = int.from_bytes(raw.read(8), "little"), raw.seek(0, os.SEEK_END)
    if not 2 <= length <= size - 8:
        raise WeightsError(f"is not a .safetensors file (its header would have {length} of its {size} bytes); "
                           f"{choose_another(kind)}")
    if length > _LIMIT + arrays * _LIMIT_PER_ARRAY:
        raise WeightsError(too_much(kind))
    try:
        with package.safe_open(raw.name, framework="np") as file:
            noted = (file.metadata() or {}).get("minidl")
            yield Foreign(file) if noted is None else File(kind, file, noted)
    except package.SafetensorError as error:
        raise OSError(str(error)) from error


class File(Noted):
    """An open .safetensors file; its methods are those of common.File."""

    def __init__(self, kind: Kind, file: safetensors.safe_open, noted: str):
        self.file = file
        super().__init__(kind, noted)

    def entries(self, own: Mapping[str, np.ndarray]) -> tuple[dict[str, str], bool]:
        found: dict[str, str] = {}
        strange = 0
        for name in without_counts(dict.fromkeys(self.file.keys()), own):
            if strange >= MAX_NAMED:
                return found, False
            strange += name not in own
            values = self.file.get_slice(name)
            kind = values.get_dtype()
            found[name if name in own else quoted(name)] = describe(tuple(values.get_shape()),
                                                                    _CODES.get(kind, f"of type {kind}"))
        return found, True

    def read(self, name: str, like: np.ndarray) -> tuple[np.ndarray, str | int | None]:
        return self.file.get_tensor(name).astype(like.dtype, copy=False), self.checksum(name)


class Foreign(File):
    """An open file that another program wrote: arrays by PyTorch's names, and nothing of minidl's beside them."""

    foreign = True

    def __init__(self, file: safetensors.safe_open):
        self.file, self.attributes, self.sums = file, {"model": "another program"}, {}

    def read(self, name: str, like: np.ndarray) -> tuple[np.ndarray, str | int | None]:
        array, _ = super().read(name, like)
        return array, digest(array)
