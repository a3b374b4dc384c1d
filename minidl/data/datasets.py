"""Data sets by name: found on disk, downloaded, generated, or refused with the reason."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from .catalog import OWNERS, SPECS, File, Spec
from .download import cache_folder, install
from .formats import OPENERS, PARSERS, idx_from_npz, parse_idx, read, records_from_pickle
from .synthetic import SHAPE_CLASSES, synthetic_digits, synthetic_shapes

Generator = Callable[[str, int], tuple[np.ndarray, np.ndarray]]

# Generated sets: how to draw a split, and its classes.
SYNTHETIC: dict[str, tuple[Generator, tuple[str, ...]]] = {
    "synthetic-digits": (synthetic_digits, tuple("0123456789")),
    "synthetic-shapes": (synthetic_shapes, SHAPE_CLASSES),
}
SYNTHETIC_SIZES = {"train": 10_000, "test": 2_000}

DATASETS: tuple[str, ...] = (*SPECS, *SYNTHETIC)


@dataclass(frozen=True)
class Dataset:
    """Images uint8 (n,c,h,w) with labels uint8 (n,): name, split, class names, and where they came from."""

    name: str
    split: str
    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    source: str

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int | None) -> Dataset:
        """The first `count` images; all of them for None.

        >>> len(load("synthetic-digits", "test").first(10))
        10
        """
        return self if count is None else replace(self, images=self.images[:count], labels=self.labels[:count])


def load(name: str, split: str, data_dir: str | os.PathLike[str] | None = None, *,
         download: bool = True) -> Dataset:
    """A data set's "train" or "test" split.

    Real sets are looked for in data_dir, $MINIDL_DATA, ./data, Keras's folder and the user's cache, in each
    also in the subfolders that minidl, torchvision and Keras use; files may be plain, .gz or .xz. What is not
    found is downloaded to the cache, unless download is False or $MINIDL_OFFLINE is set.

    Raises ValueError for an unknown name or split and for a damaged file; FileNotFoundError where the set
    is neither on disk nor to be had, and for a data_dir that does not exist.

    >>> load("synthetic-shapes", "test").images.shape
    (2000, 3, 32, 32)
    """
    if name not in DATASETS:
        raise ValueError(f"data: {name!r} is not one of {', '.join(DATASETS)}")
    if split not in SYNTHETIC_SIZES:
        raise ValueError(f"data: split {split!r} is not one of {', '.join(SYNTHETIC_SIZES)}")
    if name in SYNTHETIC:
        draw, classes = SYNTHETIC[name]
        return Dataset(name, split, *draw(split, SYNTHETIC_SIZES[split]), classes, "generated")
    spec = SPECS[name]
    roots = list(_roots(name, data_dir))
    found = _find(spec, split, roots)
    if found is None:
        found = _find(spec, split, [_fetched(spec, roots, download)])
        assert found is not None           # the download was checked against the same checksums
    folder, contents = found
    images, labels = PARSERS[spec.format]([file.name for file in spec.splits[split]], contents)
    return Dataset(name, split, images, labels, spec.classes, str(folder))


def resolve(name: str, preferred: str, data_dir: str | os.PathLike[str] | None = None, *,
            download: bool = True) -> tuple[Dataset, Dataset, str | None]:
    """(train, test, note) of a named set; "auto" is the preferred one, or where it cannot be had the generated
    set of its shape, and then `note` says why and how to get the real one.

    Raises what `load` raises; a damaged file is never passed over.
    """
    wanted = preferred if name == "auto" else name
    note = None
    try:
        train = load(wanted, "train", data_dir, download=download)
    except FileNotFoundError as error:
        if name != "auto" or (data_dir is not None and not Path(data_dir).is_dir()):
            raise
        wanted, note = SPECS[wanted].stand_in, f"using {SPECS[wanted].stand_in} instead of {wanted}: {error}"
        train = load(wanted, "train")
    return train, load(wanted, "test", data_dir, download=download), note


# ---------------------------------------------------------------- on disk
def _roots(name: str, data_dir: str | os.PathLike[str] | None) -> Iterator[Path]:
    """The folders that data sets are looked for under, the user's word first."""
    if data_dir is not None:
        if not Path(data_dir).is_dir():
            raise FileNotFoundError(f"data: the folder {data_dir} does not exist; name one that holds data sets")
        yield Path(data_dir)
    if "MINIDL_DATA" in os.environ:
        yield Path(os.environ["MINIDL_DATA"])
    yield from (Path("data"), Path.home() / ".keras" / "datasets", cache_folder(name))


def _find(spec: Spec, split: str, roots: list[Path]) -> tuple[Path, list[bytes]] | None:
    """The first folder that holds this set, with its files' contents.

    MNIST and Fashion-MNIST share their file names: a folder with the other one's files is passed over.
    """
    for folder in (folder for root in roots for folder in (root, *(root / sub for sub in spec.folders))):
        if not folder.is_dir():
            continue
        readers = [_reader(folder, file) for file in spec.splits[split]]
        if all(readers):
            with ThreadPoolExecutor(2) as pool:        # decompression and hashing release the interpreter
                contents = list(pool.map(lambda reader: reader(), readers))
            if None not in contents:
                return folder, contents
    return None


def _reader(folder: Path, file: File) -> Callable[[], bytes | None] | None:
    """How to read one official file's bytes in a folder; None where the folder does not hold it."""
    for suffix in OPENERS:
        path = folder / (file.name + suffix)
        if path.is_file():
            return lambda: _checked(path, read(path, file.size), file)
    pickled = folder / file.name.removesuffix(".bin")
    if file.name.endswith(".bin") and pickled.is_file():
        return lambda: _checked(pickled, records_from_pickle(pickled), file)
    archive = folder / "mnist.npz"
    if file.name.endswith("-ubyte") and archive.is_file():
        return lambda: _checked(archive, idx_from_npz(archive, file.name), file)
    return None


def _checked(path: Path, content: bytes, file: File) -> bytes | None:
    """The content where it is the official file's; None where it is another known set's.

    Raises ValueError, with what is wrong as precisely as can be told, where it is neither.
    """
    digest = hashlib.sha256(content).hexdigest()
    if digest == file.sha256:
        return content
    if digest in OWNERS:
        return None
    if file.name.endswith("-ubyte"):
        try:
            parse_idx(file.name, content)
        except ValueError as error:
            raise ValueError(f"data: {path}: {error}") from None
    if len(content) != file.size:
        more = "more than " if len(content) > file.size else ""
        raise ValueError(f"data: {path} holds {more}{min(len(content), file.size)} bytes but {file.name} has "
                         f"{file.size}; remove it or get the file anew")
    raise ValueError(f"data: {path} has SHA-256 {digest} but {file.name} has {file.sha256}; remove it or get the "
                     "file anew")


# ---------------------------------------------------------------- from the network
def _fetched(spec: Spec, roots: list[Path], download: bool) -> Path:
    where = ", ".join(map(str, roots))
    way_out = f"put its files into one of these folders, or name their folder with --data-dir (see {spec.name} in " \
              "the README)"
    if not download or os.environ.get("MINIDL_OFFLINE"):
        raise FileNotFoundError(f"data: {spec.name} is in none of {where}, and downloading is off; {way_out}")
    try:
        return install(spec)
    except OSError as error:
        raise FileNotFoundError(f"data: {spec.name} is in none of {where}, and {error}; {way_out}") from None
