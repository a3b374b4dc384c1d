"""Data of one's own: a folder of pictures for each class; and both splits of whatever kind they are."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ..chance import chances, for_the_test, require_both, require_two, warn_of_untrained
from ..sources import random_split
from .datasets import Data, Dataset, Folder
from .picture import FORMATS, MODES, NOT_READ, read_picture
from .table import from_csv


def from_folder(path: Folder, size: int | tuple[int, int], *, channels: int = 3, split: str = "train") -> Dataset:
    """The pictures in path/<class>/, for each class a folder: images uint8 (n,channels,h,w).

    size: h and w, or one number for both: the middle of each picture is cut to this shape and scaled. channels: 3, or 1
    for grey. docs/data.md says what becomes of 16 bits, transparent pixels and several frames. Classes are the names of
    the folders, sorted, and within a class pictures are sorted by name; files with another ending than a picture's are
    passed over. Needs Pillow, the extra `image`.

    Raises ValueError for a folder or class without pictures, pictures in a folder within a class's or beside these, or
    of another format by their names, a file that is not a picture although its name says so, a picture of more than
    2^26 pixels or of values that are no 8 or 16 bits, a size below 1 or other channels; FileNotFoundError for a path
    that is not a folder; OSError for a file that cannot be opened; ImportError without Pillow.
    """
    sides = [*size] if isinstance(size, (tuple, list, np.ndarray)) else [size, size]
    whole = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 1 for n in sides)
    if len(sides) != 2 or not whole or channels not in MODES:
        raise ValueError(f"from_folder: size is {size!r} and channels {channels!r} but must be an int of at least 1 or "
                         "two of them (h, w), and 1 or 3")
    height, width = map(int, sides)
    root = Path(path).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"from_folder: {root} is not a folder; name one that holds a folder for each class")
    files = _pictures(root)
    if not files:
        raise ValueError(f"from_folder: {root} has no folder with pictures ({', '.join(FORMATS)}); put those of each "
                         "class into a folder of its own")
    pictures = [file for found in files.values() for file in found]
    images = np.empty((len(pictures), channels, height, width), np.uint8)
    with ThreadPoolExecutor(os.cpu_count()) as pool:       # decoding releases the interpreter
        read = partial(read_picture, "from_folder", size=(height, width), channels=channels)
        for i, (image, _) in enumerate(pool.map(read, pictures)):
            images[i] = image
    labels = np.repeat(np.arange(len(files)), [len(found) for found in files.values()])
    return Dataset(root.name, split, images, labels, tuple(files), str(root))


def _pictures(root: Path) -> dict[str, list[Path]]:
    """The pictures of each class, both in the order of names. Raises ValueError for a class without any, for pictures
    in a folder within it or beside it, and for those of a format that is not read: none is left out silently."""
    found = {}
    for folder in sorted(below for below in root.iterdir() if below.is_dir() and below.name[0] != "."):
        seen = sorted(file for file in folder.rglob("*")
                      if not any(part[0] == "." for part in file.relative_to(folder).parts[:-1]))
        files = [file for file in seen if file.suffix.lower() in FORMATS]
        deeper = next((file for file in files if file.parent != folder), None)
        linked = next((file for file in seen if file.is_symlink() and file.is_dir() and file.name[0] != "."), None)
        if deeper or linked:               # what is in a linked folder is not seen
            raise ValueError(f"from_folder: {deeper or linked} is in a folder within {folder}, which is the class "
                             f"{folder.name!r}; move it up into this one, or name the folder that holds the classes")
        if not files:
            raise ValueError(f"from_folder: the class {folder.name!r} has no pictures ({', '.join(FORMATS)}) in "
                             f"{folder}; add some, or remove the folder")
        if other := next((file for file in seen if file.suffix.lower() in NOT_READ), None):
            raise ValueError(f"from_folder: {other} is a picture of another format than {', '.join(FORMATS)}; convert "
                             "or remove it")
        found[folder.name] = files
    loose = next((each for each in sorted(root.iterdir()) if each.name[0] != "." and not each.is_dir() and (
        each.suffix.lower() in {*FORMATS, *NOT_READ} or not each.exists())), None)         # a link to nothing
    if found and loose:
        raise ValueError(f"from_folder: {loose} is beside the folders of classes, and would be left out; move it into "
                         "one of these, or remove it")
    return found


def train_and_test(path: Folder, size: int | tuple[int, int], *, channels: int = 3,
                   seed: int = 0) -> tuple[Dataset, Dataset]:
    """(train, test) of pictures of one's own, both in an order that the seed decides.

    If there is a folder train, they are path/train/<class>/ and path/test/<class>/ or path/val/<class>/. Else about one
    picture in five of path/<class>/ is for the test. The seed and each picture's name decide which ones: more pictures
    change nothing for those that were there. size, channels: as for `from_folder`.

    Raises what `from_folder` raises; FileNotFoundError for a train without a test, ValueError if their classes differ,
    for a single class, and if the seed leaves a split of a few pictures empty; the error names a seed that fills both.
    """
    def read(folder: Path) -> Dataset:
        found = from_folder(folder, size, channels=channels)
        require_two(f"train_and_test: {folder}", found.classes, f"the folder {folder / found.classes[0]}",
                    "add a folder for each other class, or name the folder that holds the classes")
        return found

    root = Path(path).expanduser()
    if (root / "train").is_dir():
        other = next((root / name for name in ("test", "val") if (root / name).is_dir()), None)
        if other is None:
            raise FileNotFoundError(f"train_and_test: {root} has a folder train but neither test nor val; make one, "
                                    "with a folder for each class")
        both = [read(root / "train"), read(other)]
        if both[0].classes != both[1].classes:
            odd = sorted({*both[0].classes} ^ {*both[1].classes})
            raise ValueError(f"train_and_test: {root / 'train'} and {other} have not the same classes ({odd[0]} is in "
                             "one alone); give both the same folders")
    else:
        every = read(root)
        names = [f"{name}/{file.name}" for name, found in _pictures(root).items() for file in found]
        chosen = for_the_test(chances(names, seed))
        require_both(f"train_and_test: {root} has {len(names)} pictures", names, seed, chosen)
        warn_of_untrained(f"train_and_test: {root}", every.labels, chosen, every.classes, seed)
        both = [every[~chosen], every[chosen]]
    both = [each for part in both for each in random_split(part, [1.0], seed=seed)]
    name = root.resolve().name
    return replace(both[0], name=name, source=str(root)), replace(both[1], name=name, split="test", source=str(root))


def own_splits(path: Folder, shape: tuple[int, ...], *, seed: int = 0, label: str | None = None,
               header: bool | None = None) -> tuple[Data, Data]:
    """(train, test) of the data at a path, both in an order that the seed decides: Tables of a CSV file, or of
    train.csv and test.csv in a folder, else Datasets of a folder's pictures.

    shape: (c,h,w) of the images that pictures become; a net that reads tables has no such shape. label: the column of a
    table's classes, the last for None. header: as `from_csv` takes it. A table of one file is split by
    `Table.train_and_test`, pictures by `train_and_test`.

    Raises what these and `from_csv` raise; FileNotFoundError for a train.csv without a test.csv; ValueError if their
    columns or classes differ, for pictures if shape is not (c,h,w), and for pictures with a label or header.
    """
    root = Path(path).expanduser()
    if root.is_dir() and not (root / "train.csv").exists():
        if len(shape) != 3:
            raise ValueError(f"own_splits: {root} is a folder without a train.csv, and the net reads tables; name a "
                             "CSV file")
        for what, given in (("label", label), ("header", header)):
            if given is not None:
                raise ValueError(f"own_splits: {what} is {given!r} but {root} has pictures, whose classes are their "
                                 "folders; leave it out")
        return train_and_test(root, (shape[1], shape[2]), channels=shape[0], seed=seed)
    if not root.is_dir():
        return from_csv(root, label, header=header).train_and_test(seed)
    if not (root / "test.csv").exists():
        raise FileNotFoundError(f"own_splits: {root} has a train.csv but no test.csv; make one, or name the file alone")
    train, test = (from_csv(root / f"{split}.csv", label, header=header, split=split) for split in ("train", "test"))
    for what in ("columns", "classes"):
        mine, other = getattr(train, what), getattr(test, what)
        if mine != other:
            raise ValueError(f"own_splits: train.csv in {root} has the {what} {', '.join(mine)}, but test.csv has "
                             f"{', '.join(other)}; give both the same")
    train, test = (replace(part, name=root.resolve().name, source=str(root)) for each in (train, test)
                   for part in random_split(each, [1.0], seed=seed))
    return train, test
