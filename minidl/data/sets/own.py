"""Both splits of data of one's own, of whatever kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..sources import random_split
from .datasets import Data, Folder
from .folder import train_and_test
from .table import from_csv


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
    train, test = (from_csv(root / f"{split}.csv", label, header=header, split=split)
                   for split in ("train", "test"))
    for what in ("columns", "classes"):
        mine, other = getattr(train, what), getattr(test, what)
        if mine != other:
            raise ValueError(f"own_splits: train.csv in {root} has the {what} {', '.join(mine)}, but test.csv has "
                             f"{', '.join(other)}; give both the same")
    train, test = (replace(part, name=root.resolve().name, source=str(root)) for each in (train, test)
                   for part in random_split(each, [1.0], seed=seed))
    return train, test
