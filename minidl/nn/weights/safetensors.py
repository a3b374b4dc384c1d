"""Arrays in a .safetensors file, by the package of that name; the attributes are a text under "minidl" in its metadata.

Other programs can read it, and their files can be read here: names and layouts are PyTorch's. The package maps the
file into memory and refuses headers whose arrays overlap, leave gaps or end elsewhere than the file. The length of a
header is checked before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ...core.host import install
from ..habits import without_counts
from .common import DTYPES, File, Kind, WeightsError, allowance, as_text, choose_another, describe, of_text, too_much

if TYPE_CHECKING:
    import safetensors

_CODES = dict(zip(("F32", "F64", "BOOL", "U8", "I8", "I16", "I32", "I64"), DTYPES, strict=True))


def _package(op: str) -> ModuleType:
    try:
        import safetensors.numpy
    except ImportError:
        raise ImportError(f"{op}: a .safetensors file needs the package safetensors; run "
                          f"{install('safetensors')}") from None
    return safetensors


def image(kind: Kind, state: Mapping[str, np.ndarray], attributes: Mapping[str, str | int]) -> bytes:
    """The file's bytes. The metadata is one text: the package writes several texts in any order."""
    plain = {name: np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
             for name, array in state.items()}
    return _package("save").numpy.save(plain, {"minidl": as_text(state, attributes)})


@contextmanager
def opened(kind: Kind, raw: BinaryIO, arrays: int) -> Iterator[File]:
    """An open file as .safetensors. Its header is no longer than `arrays` arrays need."""
    package = _package(kind.reader)
    length, size = int.from_bytes(raw.read(8), "little"), raw.seek(0, os.SEEK_END)
    if not 2 <= length <= size - 8:
        raise WeightsError(f"is not a .safetensors file (its header would have {length} of its {size} bytes); "
                           f"{choose_another(kind)}")
    if length > allowance(arrays):
        raise WeightsError(too_much(kind))
    try:
        with package.safe_open(raw.name, framework="np") as file:
            noted = (file.metadata() or {}).get("minidl")
            told = ({"model": "another program"}, None) if noted is None else of_text(kind, noted)
            yield Safetensors(file, *told)
    except package.SafetensorError as error:
        raise OSError(str(error)) from error


class Safetensors(File[str]):
    """An open .safetensors file: its entries are the names of arrays, those of PyTorch."""

    def __init__(self, file: safetensors.safe_open, attributes: dict[str, Any], sums: dict[str, Any] | None):
        self.file = file
        super().__init__(attributes, sums)

    def listing(self, own: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str]]:
        return ((name, name) for name in without_counts(dict.fromkeys(self.file.keys()), own))

    def describe(self, entry: str) -> str:
        values = self.file.get_slice(entry)
        code = values.get_dtype()
        return describe(tuple(values.get_shape()), _CODES.get(code, f"of type {code}"))

    def values(self, entry: str, like: np.ndarray) -> np.ndarray:
        return self.file.get_tensor(entry).astype(like.dtype, copy=False)
