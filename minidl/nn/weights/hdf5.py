"""Arrays in an HDF5 file: in the group "model", the dataset /model/c1/weight is the array "c1.weight".

Only a plain file is read: links, virtual and external storage, filters and types of other kinds are refused before a
value is read. HDF5 is given no more bytes than such a file needs.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import h5py
import numpy as np
from h5py import h5a, h5d, h5p, h5s, h5t

from .common import DTYPES, TEXT, File, Kind, Meter, WeightsError, choose_another, describe, digest, part, too_much

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_OVERHEAD = 4 * 2**20                      # bytes that HDF5 may read besides values: for the root, and for each array
_OVERHEAD_PER_ARRAY = 2**13
_TYPES = {dtype: h5t.py_create(dtype, logical=True) for dtype in (np.dtype(name).newbyteorder("<") for name in DTYPES)}
_SCALAR = h5s.create_simple(())


# ---------------------------------------------------------------------- writing
def image(kind: Kind, state: Mapping[str, np.ndarray], attributes: Mapping[str, str | int]) -> bytes:
    """The file's bytes, made in memory: HDF5 cannot close a file cleanly once the disk is full."""
    written, storage, links = io.BytesIO(), h5p.create(h5p.DATASET_CREATE), h5p.create(h5p.LINK_CREATE)
    storage.set_obj_track_times(False)     # no times are recorded, so the bytes are fixed
    links.set_create_intermediate_group(True)
    # v108 is the oldest layout with checksums over the metadata. h5py's create_dataset takes more than twice as long.
    with h5py.File(written, "w", libver=("v108", "v108")) as file:
        for name, value in attributes.items():
            _put(file.id, name, value)
        for name, array in state.items():
            plain = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
            stored_as = _TYPES[plain.dtype]
            path = f"{kind.group}.{name}".replace(".", "/").encode()
            dataset = h5d.create(file.id, path, stored_as, h5s.create_simple(plain.shape), storage, links)
            dataset.write(h5s.ALL, h5s.ALL, plain, stored_as)
            _put(dataset, "sha256", digest(plain))
    return written.getvalue()              # not getbuffer(): Python complains if an interrupt drops a view


def _put(owner: h5py.h5f.FileID | h5d.DatasetID, name: str, value: str | int) -> None:
    """Set an attribute. A text has fixed length, since HDF5 has no checksum over those of variable length."""
    if isinstance(value, str):
        encoded = value.encode() or b"\0"  # no type of HDF5 has length 0
        stored_as, array = _text(len(encoded)), np.array(encoded)
    else:
        array = np.array(value, "<i8")
        stored_as = _TYPES[array.dtype]
    h5a.create(owner, name.encode(), stored_as, _SCALAR).write(array, stored_as)


@functools.lru_cache
def _text(length: int) -> h5t.TypeID:
    return h5t.py_create(h5py.string_dtype("utf-8", length), logical=True)


# ---------------------------------------------------------------------- reading
@contextmanager
def opened(kind: Kind, raw: BinaryIO, arrays: int) -> Iterator[File]:
    """An open file as HDF5. No more of it is read than `arrays` arrays need."""
    choose = choose_another(kind)
    header = raw.read(48)
    if (start := header[:len(_SIGNATURE)]) != _SIGNATURE:
        raise WeightsError(f"is not an HDF5 file (it starts with {start!r} instead of {_SIGNATURE!r}); {choose}")
    # Superblock 2, addresses of 8 bytes, none of them relative, no extension: as `image` writes it.
    if len(header) == 48 and (header[8:11] != b"\x02\x08\x08" or header[12:28] != bytes(8) + b"\xff" * 8):
        renamed = "if Keras 3's save_weights wrote it, rename it to end in .weights.h5, or "
        raise WeightsError(f"is HDF5 of another layout (its superblock is {header[8:28].hex()}); "
                           f"{renamed * (kind.group == 'model' and header[8] == 0)}{choose}")
    meter = Meter(raw, overhead(arrays), too_much(kind))
    with metered(meter), h5py.File(meter, "r") as file:
        size, end = raw.seek(0, os.SEEK_END), int.from_bytes(header[28:36], "little")
        if size > end:
            raise WeightsError(f"has {size - end} bytes after its end; {choose}")
        yield Hdf5(file, meter, kind.group, file.attrs, {})


def overhead(arrays: int) -> int:
    """How many bytes HDF5 may read besides the values of `arrays` arrays."""
    return _OVERHEAD + arrays * _OVERHEAD_PER_ARRAY


@contextmanager
def metered(meter: Meter) -> Iterator[None]:
    """Within this, HDF5 reads through a meter. HDF5 turns the meter's error into its own; this raises the meter's."""
    try:
        yield
    except Exception:
        if meter.left < 0:
            raise WeightsError(meter.verdict) from None
        raise


class Hdf5(File[Any]):
    """An open HDF5 file: its entries are datasets, or in words what is there instead."""

    def __init__(self, file: h5py.File, meter: Meter, group: str, attributes: Mapping[str, object],
                 sums: Mapping[str, object] | None):
        super().__init__(attributes, sums)
        self.file, self.meter, self.group = file, meter, group

    def attribute(self, name: str) -> str | int | None:
        return _get(self.file, name)

    def checksum(self, name: str) -> str | int | None:
        return _get(h5py.Dataset(self.stored[name]), "sha256")

    def listing(self, own: Mapping[str, np.ndarray]) -> Iterator[tuple[str, Any]]:
        links = {h5py.h5l.TYPE_SOFT: "a soft link", h5py.h5l.TYPE_EXTERNAL: "an external link"}
        deepest = 1 + max(name.count(".") for name in own)
        most = len(own) + self.most
        seen: set[int] = set()
        waiting: list[tuple[tuple[str, ...], bytes, Any]] = [(("/" + _part(link),), link, self.file.id)
                                                             for link in _links(self.file.id, most)]
        while waiting:
            parts, link, group = waiting.pop()
            name, top = ".".join(parts), parts == ("/" + self.group,)
            parts = () if top else parts
            # HDF5 would take a "/" within a link's name for a path, and follow every link along it.
            kind = None if b"/" in link else group.links.get_info(link).type
            if kind != h5py.h5l.TYPE_HARD:
                yield name, links.get(kind, "an unknown link")
                continue
            entry = h5py.h5o.open(group, link)
            address = h5py.h5o.get_info(entry).addr
            if address in seen:
                yield name, "a second link to another entry"
            elif not isinstance(entry, h5py.h5g.GroupID):
                yield name, entry if isinstance(entry, h5py.h5d.DatasetID) else "a named type"
            elif not top and (name.startswith("/") or len(parts) >= deepest):
                yield name, "a group"
            elif below := _links(entry, most):
                waiting += [((*parts, _part(child)), child, entry) for child in reversed(below)]
            else:
                yield name, "an empty group"
            seen.add(address)

    def describe(self, entry: h5py.h5d.DatasetID | str) -> str:
        if isinstance(entry, str):
            return entry
        storage = entry.get_create_plist()
        layout = storage.get_layout()
        # Checked before the shape: to find that of a virtual dataset, HDF5 may open the files it is made of.
        refused = {"a virtual dataset": layout == h5py.h5d.VIRTUAL,
                   "kept in another file": storage.get_external_count() > 0,
                   "compressed or filtered": storage.get_nfilters() > 0,
                   "chunked or compact": layout != h5py.h5d.CONTIGUOUS}
        for reason, applies in refused.items():
            if applies:
                return reason
        if entry.get_space().get_simple_extent_type() == h5py.h5s.NULL:
            return "empty"
        return describe(entry.shape, _type_name(entry.get_type()))

    def values(self, entry: h5py.h5d.DatasetID, like: np.ndarray) -> np.ndarray:
        self.meter.left += like.nbytes
        array = np.empty(like.shape, like.dtype)
        entry.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
        return array


def _get(owner: h5py.Group, name: str) -> str | int | None:
    """An attribute that is one fixed-length text or whole number; None if it is missing or anything else.

    A text of variable length is not even read: if one bit in the heap of such texts is flipped, HDF5 (2.0) never
    returns.
    """
    if name not in owner.attrs:
        return None
    attribute = owner.attrs.get_id(name)
    kind = attribute.get_type()
    if attribute.get_storage_size() > TEXT:
        return None
    if attribute.shape == () and kind.get_class() == h5t.INTEGER:
        return int(owner.attrs[name])
    if attribute.shape == () and kind.get_class() == h5t.STRING and not kind.is_variable_str():
        return owner.attrs[name].decode("utf-8", "backslashreplace")
    return None


def _links(group: h5py.Group, most: int) -> list[bytes]:
    """The names in a group, up to one more than `most`."""
    names: list[bytes] = []

    def note(name: bytes) -> bool:
        names.append(name)
        return len(names) > most

    group.links.iterate(note, order=h5py.h5.ITER_NATIVE)       # in another order, HDF5 would read all names first
    return names


def _part(link: bytes) -> str:
    return part(link.decode("utf-8", "backslashreplace"))


def _type_name(kind: h5py.h5t.TypeID) -> str:
    """A type that may be stored by name, any other HDF5 type by class and size."""
    for dtype, known in _TYPES.items():
        if kind == known:
            return dtype.name
    names = {getattr(h5t, name): name.lower() for name in ("INTEGER", "FLOAT", "STRING", "COMPOUND", "VLEN",
                                                           "REFERENCE", "ENUM", "ARRAY", "OPAQUE", "BITFIELD")}
    return f"{names.get(kind.get_class(), 'unknown type')} of {kind.get_size()} bytes"
