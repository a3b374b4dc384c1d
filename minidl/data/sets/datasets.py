"""Data sets by name: found on disk, downloaded, generated, or refused with the reason."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, overload

import numpy as np

from ...core.host import cache_folder
from ...ops.common.geometry import is_int
from ..images import channel_statistics
from ..items import Items
from ..once import once
from . import synthetic
from .catalog import OWNERS, SPECS, DataFile, Spec
from .download import install
from .formats import FORMATS, SUFFIXES, Content, parse_idx, read
from .table import Table

Folder = str | os.PathLike[str]
Source = tuple[Path, Callable[[Path, DataFile], Content]]
Generator = Callable[[str, int], tuple[np.ndarray, np.ndarray]]

SYNTHETIC_SIZES = {"train": 10_000, "test": 2_000}
# Generated sets: how to draw a split, its classes, and how many images, or rows of a table, a split has.
SYNTHETIC: dict[str, tuple[Generator, tuple[str, ...], dict[str, int]]] = {
    "synthetic-digits": (synthetic.synthetic_digits, tuple("0123456789"), SYNTHETIC_SIZES),
    "synthetic-shapes": (synthetic.synthetic_shapes, synthetic.SHAPE_CLASSES, SYNTHETIC_SIZES),
    "synthetic-shapes-224": (partial(synthetic.synthetic_shapes, size=224), synthetic.SHAPE_CLASSES,
                             {"train": 2_000, "test": 400}),
    "synthetic-table": (synthetic.synthetic_table, synthetic.TABLE_CLASSES, SYNTHETIC_SIZES),
}

DATASETS: tuple[str, ...] = (*SPECS, *SYNTHETIC)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset(Items):
    """Images uint8 (n,c,h,w) with labels (n,), integers: name, split, class names, and where they came from. It holds
    arrays; other things that hold numbers, such as a Series of pandas, become arrays in their order. Those of a
    file, as h5py's, are read into memory; to read them one by one, give `data.DataLoader` an object with `len()` and
    `[i]`.

    Raises TypeError for images that are no bytes or labels that are no integers, ValueError for other shapes, for a
    label beyond the classes, if these are given, and for two classes of one name.

    >>> import numpy as np
    >>> Dataset("mine", "train", np.zeros((5, 3, 8, 8), np.uint8), np.arange(5))
    Dataset('mine', 'train', 5 images (3, 8, 8), 0 named classes)
    """

    items: ClassVar[str] = "images"
    numbers: ClassVar[type[np.number]] = np.uint8
    axes: ClassVar[str] = "(n,c,h,w)"

    name: str
    split: str
    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...] = ()
    source: str = ""

    def __repr__(self) -> str:
        return (f"Dataset({self.name!r}, {self.split!r}, {len(self)} images {self.images.shape[1:]}, "
                f"{len(self.classes)} named classes{f', from {self.source}' if self.source else ''})")

    def preprocessing(self, shape: tuple[int, ...]) -> dict[str, Any]:
        """What a DataLoader is to do for a net that reads images of a shape (c,h,w): normalise by mean and std of each
        channel, and pad.

        >>> import numpy as np
        >>> Dataset("mine", "train", np.full((5, 1, 28, 28), 51, np.uint8), np.arange(5)).preprocessing((1, 32, 32))
        {'mean': [0.2], 'std': [0.0], 'padding': 2}
        """
        mean, std = once(self, lambda: channel_statistics(self))
        return {"mean": mean.tolist(), "std": std.tolist(), "padding": (shape[1] - self.images.shape[2]) // 2}


Data = Dataset | Table


@overload
def load(name: Literal["synthetic-table"], split: str,             # type: ignore[overload-overlap]
         data_dir: Folder | None = None, *, download: bool = True, count: int | None = None) -> Table: ...
@overload
def load(name: str, split: str, data_dir: Folder | None = None, *, download: bool = True,
         count: int | None = None) -> Dataset: ...
def load(name: str, split: str, data_dir: Folder | None = None, *, download: bool = True,
         count: int | None = None) -> Data:
    """A data set's "train" or "test" split: images, or a Table for "synthetic-table". It has the first `count` items,
    or all for None. No more than these are drawn of a generated set.

    Real sets are looked for in data_dir, $MINIDL_DATA, ./data, Keras's folder and the user's cache, and in the
    subfolders of each that minidl, torchvision and Keras use. Files may be plain, .gz or .xz. A set that is not
    found is downloaded to the cache, unless download is False or $MINIDL_OFFLINE is set.

    Raises ValueError for an unknown name or split, a negative count and a damaged file; FileNotFoundError if the set is
    not on disk and cannot be downloaded, and for a data_dir or $MINIDL_DATA that is not a folder.

    >>> load("synthetic-shapes", "test").images.shape
    (2000, 3, 32, 32)
    """
    if name not in DATASETS:
        raise ValueError(f"data: {name!r} is not one of {', '.join(DATASETS)}")
    if split not in SYNTHETIC_SIZES:
        raise ValueError(f"data: split {split!r} is not one of {', '.join(SYNTHETIC_SIZES)}")
    if count is not None and not is_int(count, 0):
        raise ValueError(f"data: count={count!r} but must be an int of at least 0; leave it out for all items")
    roots = _roots(name, data_dir)
    if name in SYNTHETIC:
        draw, classes, sizes = SYNTHETIC[name]
        size = sizes[split] if count is None else min(count, sizes[split])
        if name == "synthetic-table":
            return Table(name, split, *draw(split, size), synthetic.TABLE_COLUMNS, classes, "generated")
        return Dataset(name, split, *draw(split, size), classes, "generated")
    spec = SPECS[name]
    refused: list[str] = []
    found = _find(spec, split, roots, refused)
    if not found:
        found = _find(spec, split, [_fetched(spec, split, roots, refused, download)], refused)
    assert found is not None               # the download was checked against the same checksums
    folder, contents = found
    images, labels = FORMATS[spec.format].parse(contents)
    return Dataset(name, split, images, labels, spec.classes, str(folder)).first(count)


def resolve(name: str, preferred: str, data_dir: Folder | None = None, *, download: bool = True,
            counts: tuple[int | None, int | None] = (None, None)) -> tuple[Dataset, Dataset, str | None]:
    """(train, test, note) of a named set; "auto" is the preferred one. If that is not available, "auto" is the
    generated set of its shape, and `note` says why and how to get the real one. If a data_dir was named for a set,
    no generated set replaces it. counts: as `count` of `load`, for training and test.

    Raises what `load` raises; a damaged file is never skipped.
    """
    def both(name: str) -> tuple[Dataset, Dataset]:
        train, test = (load(name, split, data_dir, download=download, count=count)
                       for split, count in zip(("train", "test"), counts, strict=True))
        return train, test

    if name != "auto":
        return *both(name), None
    _roots(preferred, data_dir)            # a folder that the user named must exist: no generated set replaces it
    try:
        return *both(preferred), None
    except FileNotFoundError as error:
        if data_dir:
            raise
        stand_in = SPECS[preferred].stand_in
        return *both(stand_in), f"using {stand_in} instead of {preferred}: {error}"


# ---------------------------------------------------------------- on disk
def _roots(name: str, data_dir: Folder | None) -> list[Path]:
    """The folders under which a data set is looked for: first those that the user named, then the usual ones."""
    named = [Path(os.path.expanduser(folder)) for folder in (data_dir, os.environ.get("MINIDL_DATA")) if folder]
    for folder in named:
        if not folder.is_dir():
            raise FileNotFoundError(f"data: {folder} is not a folder; name one that holds data sets")
    return [*named, Path("data"), Path.home() / ".keras" / "datasets", cache_folder() / name]


def _folders(spec: Spec, roots: list[Path]) -> list[Path]:
    return [folder for root in roots for folder in (root, *(root / below for below in spec.folders))]


def _source(folder: Path, spec: Spec, file: DataFile) -> Source | None:
    """The path that holds an official file's content in a folder, and how to read it; None if no path does."""
    form = FORMATS[spec.format]
    ways = {file.name + suffix: read for suffix in SUFFIXES} | {form.container(spec.name, file.name): form.restore}
    return next(((folder / name, way) for name, way in ways.items() if (folder / name).is_file()), None)


def _find(spec: Spec, split: str, roots: list[Path], refused: list[str]) -> tuple[Path, list[Content]] | None:
    """The first folder that holds this set, with its files' contents.

    MNIST and Fashion-MNIST share their file names: a folder with the other set's files is skipped, and `refused` says
    which files these are.
    """
    files = spec.splits[split]
    for folder in _folders(spec, roots):
        sources = [source for file in files if (source := _source(folder, spec, file))]
        if len(sources) == len(files):
            with ThreadPoolExecutor(os.cpu_count()) as pool:   # decompression and hashing release the interpreter
                contents = list(pool.map(_content, sources, files))
            foreign = [f"{path} is of {content}" for (path, _), content in zip(sources, contents, strict=True)
                       if isinstance(content, str)]
            if not foreign:
                return folder, [content for content in contents if not isinstance(content, str)]
            refused.append(" and ".join(foreign))
    return None


def _content(source: Source, file: DataFile) -> Content | str:
    """The content of the source, if it is the official file's. If it is a file of another known set, that set's name.

    Raises ValueError if it is neither, which says what is wrong as precisely as possible, and OSError if it cannot be
    read.
    """
    path, way = source
    try:
        content = way(path, file)
    except (OSError, MemoryError) as error:
        reason = error.strerror if isinstance(error, OSError) else "out of memory"
        raise OSError(f"data: {path} cannot be read ({reason}); remove it or get the file anew") from None
    digest = hashlib.sha256(content).hexdigest()
    if digest == file.sha256:
        return content
    if digest in OWNERS and OWNERS[digest] != OWNERS[file.sha256]:
        return OWNERS[digest]
    fault = f"has SHA-256 {digest} but {file.name} has {file.sha256}"
    if len(content) != file.size:
        more = "more than " if len(content) > file.size else ""
        fault = f"holds {more}{min(len(content), file.size)} bytes but {file.name} has {file.size}"
    if file.name.endswith("-ubyte"):
        try:
            parse_idx(content, 3 if "images" in file.name else 1)
        except ValueError as error:
            fault = str(error)
    raise ValueError(f"data: {path} {fault}; remove it or get the file anew")


# ---------------------------------------------------------------- from the network
def _fetched(spec: Spec, split: str, roots: list[Path], refused: list[str], download: bool) -> Path:
    """The cache folder, after a download. Raises FileNotFoundError: where it was looked for, and what to do."""
    files = spec.splits[split]
    absent = {folder: [file.name for file in files if not _source(folder, spec, file)]
              for folder in _folders(spec, roots)}
    lacks = [f"{folder} lacks {', '.join(names)}" for folder, names in absent.items() if 0 < len(names) < len(files)]
    told = "".join(f" ({fault})" for fault in [*refused, *lacks])
    missing = f"data: {spec.name} is in none of {', '.join(map(str, roots))}{told}"
    way_out = "put its files into one of these folders, or name their folder with --data-dir (docs/data.md names them)"
    if not download or os.environ.get("MINIDL_OFFLINE", "0") not in ("", "0"):
        raise FileNotFoundError(f"{missing}, and downloading is off; {way_out}")
    try:
        return install(spec)
    except OSError as error:
        raise FileNotFoundError(f"{missing}, and downloading the whole set failed: {error}; {way_out}") from None
