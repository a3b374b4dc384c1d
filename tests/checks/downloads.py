"""Small files in place of the official ones, as data sets arrive: served by mirrors, packed, pickled; what is read."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from minidl import data
from minidl.data.sets import catalog, datasets

COUNT = 3                                  # images a file
REAL = ("mnist", "fashion-mnist", "cifar10")


def idx(values: np.ndarray) -> bytes:
    header = np.array([0x800 + values.ndim, *values.shape], ">u4")
    return header.tobytes() + values.tobytes()


def content(name: str, file: str) -> bytes:
    """What stands for an official file: random pixels, and labels below 10."""
    rng = np.random.default_rng(list(f"{name}/{file}".encode()))
    labels = rng.integers(0, 10, COUNT, np.uint8)
    if file.endswith(".bin"):
        pixels = rng.integers(0, 256, (COUNT, 3072), np.uint8)
        return np.concatenate([labels[:, None], pixels], axis=1).tobytes()
    return idx(rng.integers(0, 256, (COUNT, 28, 28), np.uint8) if "images" in file else labels)


def tar(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, held in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(held)
            archive.addfile(member, io.BytesIO(held))
    return packed.getvalue()


def sha256(held: bytes) -> str:
    return hashlib.sha256(held).hexdigest()


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reaches the network, a home folder or a data set that lies around."""
    monkeypatch.setenv("MINIDL_OFFLINE", "1")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MINIDL_CACHE", raising=False)
    monkeypatch.delenv("MINIDL_DATA", raising=False)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The catalog pinned to small files; what each address of a mirror serves."""
    for split, size in (("train", 20), ("test", 10)):      # of the stand-ins
        monkeypatch.setitem(datasets.SYNTHETIC_SIZES, split, size)
    pages: dict[str, bytes] = {}
    for name in REAL:
        spec = catalog.SPECS[name]
        held = {file.name: content(name, file.name) for files in spec.splits.values() for file in files}
        splits = {split: tuple(replace(file, size=len(held[file.name]), sha256=sha256(held[file.name]))
                               for file in files) for split, files in spec.splits.items()}
        downloads = []
        for wanted in spec.downloads:
            if wanted.name.endswith(".tar.gz"):
                sent = tar({"batches/readme.html": b"hello", **{f"batches/{n}": c for n, c in held.items()}})
            else:
                sent = gzip.compress(held[wanted.name.removesuffix(".gz")])
            pages |= dict.fromkeys(wanted.mirrors, sent)
            downloads.append(replace(wanted, size=len(sent), sha256=sha256(sent)))
        monkeypatch.setitem(catalog.SPECS, name, replace(spec, splits=splits, downloads=tuple(downloads)))
        for files in splits.values():
            for file in files:
                monkeypatch.setitem(catalog.OWNERS, file.sha256, name)
    return pages


def check(dataset: data.Dataset, name: str, split: str, source: Path | str) -> None:
    """The very pixels and labels of the official files, in their order."""
    held = [content(name, file.name) for file in catalog.SPECS[name].splits[split]]
    if name == "cifar10":
        records = np.frombuffer(b"".join(held), np.uint8).reshape(-1, 3073)
        images, labels = records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]
    else:
        images = np.frombuffer(held[0][16:], np.uint8).reshape(-1, 1, 28, 28)
        labels = np.frombuffer(held[1][8:], np.uint8)
    assert (dataset.name, dataset.split, dataset.source) == (name, split, str(source))
    assert dataset.images.dtype == dataset.labels.dtype == np.uint8
    np.testing.assert_array_equal(dataset.images, images)
    np.testing.assert_array_equal(dataset.labels, labels)
    assert len(dataset.classes) == 10


def python2_pickle(held: bytes) -> bytes:
    """A batch as the official archive has it: protocol 2 written by Python 2, byte strings and one array."""
    records = np.frombuffer(held, np.uint8).reshape(-1, 3073)
    pixels = records[:, 1:].tobytes()
    labels = b"".join(b"K" + bytes([label]) for label in records[:, 0])
    array = (b"cnumpy.core.multiarray\n_reconstruct\n" b"cnumpy\nndarray\n" b"K\x00\x85" b"U\x01b" b"\x87R"
             b"(K\x01" + b"K" + bytes([len(records)]) + b"M\x00\x0c\x86"
             b"cnumpy\ndtype\n" b"U\x02u1" b"K\x00K\x01\x87R"
             b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb" b"\x89"
             b"T" + len(pixels).to_bytes(4, "little") + pixels + b"tb")
    return (b"\x80\x02}(" b"U\x0bbatch_labelU\x15training batch 1 of 5" b"U\x06labels](" + labels + b"e"
            b"U\x04data" + array + b"U\x09filenames](U\x05a.pngU\x05b.pnge" b"u.")


def python3_pickle(held: bytes, protocol: int = 4) -> bytes:
    records = np.frombuffer(held, np.uint8).reshape(-1, 3073)
    return pickle.dumps({b"labels": records[:, 0].tolist(), b"data": records[:, 1:].copy()}, protocol)
