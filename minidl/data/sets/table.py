"""Tables: rows of numbers with a class each, from CSV files or generated."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..chance import chances, for_the_test
from ..items import Items

Cells = list[tuple[int, list[str]]]        # the number of each line, and its values

# What a weights file believes: of numbers, of columns, and of the characters of a class.
LIMIT, MAX_COLUMNS, MAX_CLASS = 1e30, 2**10, 200
SURE_CLASSES = 20                          # different integers that are classes, however few rows there are


@dataclass(frozen=True, eq=False, repr=False)
class Table(Items):
    """Rows of floating numbers (n,columns) with labels (n,), integers: name, split, the names of columns and classes,
    and where they came from.

    Raises TypeError for rows that are no floating numbers or labels that are no integers, ValueError for other shapes.

    >>> import numpy as np
    >>> Table("mine", "train", np.zeros((5, 3)), np.arange(5))
    Table('mine', 'train', 5 rows of 3, 0 named classes)
    """

    items: ClassVar[str] = "rows"

    name: str
    split: str
    rows: np.ndarray
    labels: np.ndarray
    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        if self.rows.dtype.kind != "f" or self.labels.dtype.kind not in "iu":
            raise TypeError(f"Table: {self.name} has rows {self.rows.dtype} and labels {self.labels.dtype} but needs "
                            "floating numbers and integers; convert them")
        if self.rows.ndim != 2 or self.labels.shape != self.rows.shape[:1]:
            raise ValueError(f"Table: {self.name} has rows {self.rows.shape} and labels {self.labels.shape} but needs "
                             "(n,columns) and (n,); reshape them")

    def __repr__(self) -> str:
        return (f"Table({self.name!r}, {self.split!r}, {len(self)} rows of {self.rows.shape[1]}, {len(self.classes)} "
                f"named classes{f', from {self.source}' if self.source else ''})")

    def preprocessing(self, shape: tuple[int, ...] = ()) -> dict[str, Any]:
        """What a DataLoader is to do: mean and std of each column. A column of equal values has the std 1, so that it
        becomes 0.

        >>> Table("mine", "train", np.array([[1.0, 7.0], [3.0, 7.0]]), np.array([0, 1])).preprocessing()
        {'mean': [2.0, 7.0], 'std': [1.0, 1.0], 'padding': 0}
        """
        constant = np.ptp(self.rows, axis=0) == 0          # whose mean may be wrong by a rounding
        mean = np.where(constant, self.rows[0], self.rows.mean(axis=0, dtype=np.float64))
        std = np.where(constant, 1.0, self.rows.std(axis=0, dtype=np.float64))
        return {"mean": mean.tolist(), "std": std.tolist(), "padding": 0}

    def train_and_test(self, seed: int = 0) -> tuple[Table, Table]:
        """(train, test), both in an order that the seed decides: about one row of five is for the test, at least one.
        Which ones the seed and what stands in the row decide: more rows change nothing for those that were there, and
        equal rows are on one side.

        Raises ValueError where a split would be empty; two rows are not split.
        """
        names = self.classes or tuple(map(str, range(int(self.labels.max(initial=0)) + 1)))
        chance = chances((f"{row} {names[label]}" for row, label in zip(self.rows.tolist(), self.labels, strict=True)),
                         seed)
        chosen, order = for_the_test(chance), np.argsort(chance, kind="stable")
        train, test = (order[chosen[order] == each] for each in (False, True))
        if not (len(train) and len(test)):
            raise ValueError(f"train_and_test: {self.name} has {len(self)} rows, too few different ones for two splits;"
                             " add some")
        return replace(self[train], split="train"), replace(self[test], split="test")


def from_csv(path: str | os.PathLike[str], label: str | None = None, *, split: str = "train") -> Table:
    """The table in a CSV file, UTF-8 with commas: rows float64 (n,columns) and the class of each row.

    The first line names the columns, if none of its values is a number. label: the column of the classes; None for the
    last. Classes are texts or integers, and sorted; all other columns are numbers. Empty lines are passed over.

    Raises ValueError, with the line, column and value where it is one, for a file without rows, lines of other lengths,
    a column without a name or a name twice, a label that is no column, what is no number between -1e30 and 1e30,
    missing and fractional classes, fewer than two of them, and more than 20 different integers that are also more than
    half as many as the rows; OSError for a file that cannot be read.
    """
    columns, lines = read_cells("from_csv", path)
    if len(columns) < 2:
        raise ValueError(f"from_csv: {path} has one column, {columns[0]!r}, but needs numbers and the label; separate "
                         "values by commas")
    if label is not None and label not in columns:
        raise ValueError(f"from_csv: {path} has no column {label!r}; it has {', '.join(columns)}")
    at = len(columns) - 1 if label is None else columns.index(label)
    rows = numbers("from_csv", path, [*columns[:at], *columns[at + 1:]],
                   [(line, [*cells[:at], *cells[at + 1:]]) for line, cells in lines])
    classes, labels = _classes(path, columns[at], [(line, cells[at]) for line, cells in lines])
    return Table(Path(path).stem, split, rows, labels, (*columns[:at], *columns[at + 1:]), classes, str(path))


def read_cells(who: str, path: str | os.PathLike[str]) -> tuple[list[str], Cells]:
    """The names of a CSV file's columns, and its other lines. Raises as `from_csv` does, in the name of `who`."""
    try:
        with open(Path(path).expanduser(), newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if cells]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{who}: {path} is not a CSV file in UTF-8 ({error}); save it as one") from None
    columns = [f"column {i + 1}" for i in range(len(lines[0][1]))] if lines else []
    if lines and not any(_number(cell) is not None for cell in lines[0][1]):
        columns, lines = lines[0][1], lines[1:]
        for i, name in enumerate(columns):
            if not name or name in columns[:i]:
                raise ValueError(f"{who}: {path} names its column {i + 1} {name!r}, but each needs a name of its own; "
                                 "give it one, or remove it (of pandas: to_csv(path, index=False))")
    if not lines:
        raise ValueError(f"{who}: {path} has no rows; a table has a line for each row, under an optional one of names")
    if len(columns) > MAX_COLUMNS:
        raise ValueError(f"{who}: {path} has {len(columns)} columns but may have at most {MAX_COLUMNS}; remove some")
    for line, cells in lines:
        if len(cells) != len(columns):
            raise ValueError(f"{who}: {path}, line {line} has {len(cells)} values but there are {len(columns)} "
                             "columns; complete or remove it")
    return columns, lines


def numbers(who: str, path: str | os.PathLike[str], columns: Sequence[str], lines: Cells) -> np.ndarray:
    """Lines as float64 (n,columns). Raises ValueError for what is no number between -1e30 and 1e30."""
    rows = np.empty((len(lines), len(columns)))
    for i, (line, cells) in enumerate(lines):
        for j, cell in enumerate(cells):
            value = _number(cell)
            if value is None or not -LIMIT < value < LIMIT:
                raise ValueError(f"{who}: {path}, line {line}: {columns[j]!r} is {cell!r} but must be a number between "
                                 "-1e30 and 1e30; correct or remove the line, or write numbers for the column's texts")
            rows[i, j] = value
    return rows


def _classes(path: str | os.PathLike[str], column: str, cells: list[tuple[int, str]]
             ) -> tuple[tuple[str, ...], np.ndarray]:
    """The sorted names of classes, and the label of each line."""
    values = [_number(cell) for _, cell in cells]
    numeric = all(value is not None for value in values)
    found = []
    for (line, cell), value in zip(cells, values, strict=True):
        fractional = numeric and value != (value or 0.0) // 1          # NaN and infinity, too
        name = str(int(value)) if numeric and value is not None and not fractional else cell
        if fractional or not (0 < len(name) <= MAX_CLASS and name.isprintable()):
            raise ValueError(f"from_csv: {path}, line {line}: the label {column!r} is {cell!r} but must be a text or "
                             "an integer; correct or remove the line, or name another column as the label")
        found.append(name)
    names = tuple(sorted(set(found), key=int if numeric else str))
    if len(names) < 2:
        raise ValueError(f"from_csv: {path} has only the class {names[0]!r}, by the column {column!r}, but needs two; "
                         "add rows of others, or name another column as the label")
    if numeric and len(names) > max(SURE_CLASSES, len(found) // 2):
        raise ValueError(f"from_csv: {path} has {len(names)} different integers in the {len(found)} rows of its label "
                         f"{column!r}, which looks like a quantity, and not like classes; name another column as the "
                         "label, or write classes as texts")
    of = {name: i for i, name in enumerate(names)}
    return names, np.array([of[name] for name in found])


def _number(cell: str) -> float | None:
    try:
        return None if "_" in cell else float(cell)        # Python takes 1_000, others do not
    except ValueError:
        return None
