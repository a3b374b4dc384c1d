"""Tables: rows of numbers with a class each, from CSV files or generated."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ...core.host import MAX_NAME, is_name, open_file
from ..chance import chances, for_the_test, require_both, require_two, warn_of_untrained
from ..items import Items

Cells = list[tuple[int, list[str]]]        # the number of each line, and its values

# The limits that a weights file accepts: of numbers, and of columns.
LIMIT, MAX_COLUMNS = 1e30, 2**10
SMALL = 1e-100                             # a spread of numbers whose squares are rounded
SURE_CLASSES = 20                          # up to this many different integers are classes, however few rows there are
MAX_LINE = 2**20                           # characters
UNNAMED = "", "Unnamed: 0", "Unnamed: 0.1" # an index, and what pandas calls one that it read from a file
# What pandas reads as missing, and "?". In exactly this spelling: Na and none may be classes.
MISSING = frozenset(["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>",
                     "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null", "?"])


@dataclass(frozen=True, eq=False, repr=False)
class Table(Items):
    """Rows of floating numbers (n,columns) with labels (n,), integers: name, split, the names of columns and classes,
    and where they came from. It holds arrays, as `data.Dataset` does.

    Raises TypeError for rows that are no floating numbers or labels that are no integers, ValueError for other shapes,
    for a label beyond the classes and another number of columns, if these are given, and for two of one name.

    >>> import numpy as np
    >>> Table("mine", "train", np.zeros((5, 3)), np.arange(5))
    Table('mine', 'train', 5 rows of 3, 0 named classes)
    """

    items: ClassVar[str] = "rows"
    numbers: ClassVar[type[np.number]] = np.floating
    axes: ClassVar[str] = "(n,columns)"

    name: str
    split: str
    rows: np.ndarray
    labels: np.ndarray
    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    source: str = ""

    def __repr__(self) -> str:
        return (f"Table({self.name!r}, {self.split!r}, {len(self)} rows of {self.rows.shape[1]}, {len(self.classes)} "
                f"named classes{f', from {self.source}' if self.source else ''})")

    def preprocessing(self, shape: tuple[int, ...] = ()) -> dict[str, Any]:
        """What a DataLoader is to do: mean and std of each column. A column of equal values has the std 1, so that it
        becomes 0.

        >>> Table("mine", "train", np.array([[1.0, 7.0], [3.0, 7.0]]), np.array([0, 1])).preprocessing()
        {'mean': [2.0, 7.0], 'std': [1.0, 1.0], 'padding': 0}
        """
        if not len(self):
            raise ValueError(f"Table: {self.name} has 0 rows but a mean needs at least 1; use more rows")
        spread = np.ptp(self.rows, axis=0)
        constant = spread == 0             # their mean may have a rounding error
        mean = np.where(constant, self.rows[0], self.rows.mean(axis=0, dtype=np.float64))
        unit = np.where(~constant & (spread < SMALL), spread, 1.0)     # else squares would be 0
        std = np.where(constant, 1.0, unit * (self.rows / unit).std(axis=0, dtype=np.float64))
        return {"mean": mean.tolist(), "std": std.tolist(), "padding": 0}

    def train_and_test(self, seed: int = 0) -> tuple[Table, Table]:
        """(train, test), both in an order that the seed decides. About one row in five is for the test. The seed and
        the row's content decide which ones: more rows change nothing for those that were there, and equal rows are on
        one side.

        Raises ValueError if the seed leaves a split of a few rows empty; the error names a seed that fills both.
        """
        names = dict(enumerate(self.classes))              # a label without a name is its number

        def told() -> Iterator[str]:
            return (f"{row} {names.get(label, label)}"
                    for row, label in zip(self.rows.tolist(), self.labels.tolist(), strict=True))

        chance = chances(told(), seed)
        chosen, order = for_the_test(chance), np.argsort(chance, kind="stable")
        require_both(f"train_and_test: {self.name} has {len(self)} rows", told(), seed, chosen)
        warn_of_untrained(f"train_and_test: {self.name}", self.labels, chosen, self.classes, seed)
        train, test = (order[chosen[order] == each] for each in (False, True))
        return replace(self[train], split="train"), replace(self[test], split="test")


def from_csv(path: str | os.PathLike[str], label: str | None = None, *, header: bool | None = None,
             split: str = "train") -> Table:
    """The table in a CSV file, UTF-8 with commas: rows float64 (n,columns) and the class of each row.

    label: the column of the classes; None for the last. header: whether the first line names the columns; None to
    decide by its values and those below (docs/data.md has the rule). A first column whose values all differ is an
    index, and left out, if it has no name or pandas' name for one, "Unnamed: 0". Classes are texts or integers, and
    sorted; all other columns are numbers. Empty lines are skipped.

    Raises ValueError, with line, column and value if one value is wrong, for a first line that may be names or a row, a
    file without rows, lines of other lengths or more than 2^20 characters, a column without a name or a name twice, a
    label that is not a column, what is not a number between -1e30 and 1e30, missing and fractional classes, fewer than
    two of them, more than 20 different integers that are also more than half as many as the rows, more than 20 texts
    that all differ, and what is not a file; OSError for a file that cannot be read.
    """
    columns, lines = read_cells("from_csv", path, header)
    if len(columns) < 2:
        raise ValueError(f"from_csv: {path} has one column, {columns[0]!r}, but needs numbers and the label; separate "
                         "values by commas")
    if label is not None and label not in columns:
        raise ValueError(f"from_csv: {path} has no column {label!r}; it has {', '.join(columns)}")
    at = len(columns) - 1 if label is None else columns.index(label)
    rows = numbers("from_csv", path, columns, lines, [i for i in range(len(columns)) if i != at])
    classes, labels = _classes(path, columns[at], lines, at)
    return Table(Path(path).stem, split, rows, labels, (*columns[:at], *columns[at + 1:]), classes, str(path))


def unnamed(count: int) -> list[str]:
    """The names of the `count` columns of a file without a header."""
    return [f"column {i + 1}" for i in range(count)]


def read_cells(who: str, path: str | os.PathLike[str], header: bool | None = None, known: Sequence[str] = ()
               ) -> tuple[list[str], Cells]:
    """The names of a CSV file's columns, and its other lines. A first line that has all `known` names is a header.
    Raises as `from_csv` does, in the name of `who`."""
    try:
        with open_file(who, path) as held, io.TextIOWrapper(held, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(_short_lines(file), skipinitialspace=True)
            lines = [(reader.line_num, [cell.strip() for cell in _few(who, path, cells)]) for cells in reader if cells]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{who}: {path} is not a CSV file in UTF-8 ({error}); save it as one") from None
    columns = unnamed(len(lines[0][1])) if lines else []
    if lines and header is None:
        first = lines[0][1]
        header = (bool(known) and {*known} <= {*first}) or _names_columns(first, [cells for _, cells in lines[1:]])
        if header is None:
            shown = ", ".join(first[:5]) + ", ..." * (len(columns) > 5)
            raise ValueError(f"{who}: the first line of {path}, {shown}, may name the columns or be a row; say "
                             "which by header=True or header=False (--header or --no-header)")
    if lines and header:
        columns, lines = lines[0][1], lines[1:]
        if lines and all(len(cells) == len(columns) + 1 for _, cells in lines):
            columns = ["", *columns]                       # R's write.table names no column of row names
    if not lines:
        raise ValueError(f"{who}: {path} has no rows; a table has a line for each row, under an optional one of names")
    for line, cells in lines:
        if len(cells) != len(columns):
            raise ValueError(f"{who}: {path}, line {line} has {len(cells)} values but there are {len(columns)} "
                             "columns; complete or remove it")
    while columns[0] in UNNAMED and len({cells[0] for _, cells in lines}) == len(lines) and len(columns) > 1:
        columns = columns[1:]
        for _, cells in lines:             # in place: a second list of all cells would double the memory
            del cells[0]
    for i, name in enumerate(columns):
        if not name or name in columns[:i]:
            raise ValueError(f"{who}: {path} names its column {i + 1} {name!r}, but each needs a name of its own; "
                             "give it one, or remove it (of pandas: to_csv(path, index=False))")
        if not is_name(name):
            raise ValueError(f"{who}: {path} names its column {i + 1} {name!r}, but a name must be printable and have "
                             f"at most {MAX_NAME} characters; rename it")
    return columns, lines


def _short_lines(file: io.TextIOWrapper) -> Iterator[str]:
    while line := file.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            raise csv.Error(f"a line has more than {MAX_LINE:,} characters")
        yield line


def _few(who: str, path: str | os.PathLike[str], cells: list[str]) -> list[str]:
    if len(cells) > MAX_COLUMNS:
        raise ValueError(f"{who}: {path} has {len(cells)} columns but may have at most {MAX_COLUMNS}; remove some")
    return cells


def _names_columns(first: list[str], below: list[list[str]]) -> bool | None:
    """Whether the first line names the columns; None if it may also be a row.

    A line without a number does. Else it does if a text in it is above numbers only, and does not if a text in it is
    found again in its column. If neither decides, 0, 1, 2, ... are names that pandas gave, unless they may be a row.

    >>> _names_columns(["0", "1", "kind"], [["5", "6", "rose"]]), _names_columns(["5", "6"], [["7", "9"]])
    (True, None)
    """
    below = [cells for cells in below if len(cells) == len(first)]
    given = [_number(cell) for cell in first if cell not in MISSING]
    found = [value for value in given if value is not None]
    if not any(_number(cell) is not None for cell in first):
        return True
    names = over_texts = seen = False
    for i, cell in enumerate(first):
        column = [cells[i] for cells in below]
        values = [cell for cell in column if cell not in MISSING]
        if cell in MISSING or not values:
            continue
        if _number(cell) is None:
            names |= all(_number(value) is not None for value in values)
            seen |= cell in column
        else:
            over_texts |= all(_number(value) is None for value in values)
    of_pandas = len(found) > 1 and found == [*range(len(found))]
    if len(found) < len(given):                            # texts among numbers
        return names if names != seen else True if of_pandas and not seen else None
    if over_texts:
        return True if of_pandas else None
    running = len(found) > 1 and found == [found[0] + i for i in range(len(found))]       # years, for example
    return None if running else False


def numbers(who: str, path: str | os.PathLike[str], columns: Sequence[str], lines: Cells, at: Sequence[int]
            ) -> np.ndarray:
    """The columns `at` of lines as float64 (n,columns). Raises ValueError for what is not a number between -1e30 and
    1e30."""
    rows = np.empty((len(lines), len(at)))
    for i, (line, cells) in enumerate(lines):
        for k, j in enumerate(at):
            value = _number(cells[j])
            if value is None or not -LIMIT < value < LIMIT:
                raise ValueError(f"{who}: {path}, line {line}: {columns[j]!r} is {cells[j]!r} but must be a number "
                                 "between -1e30 and 1e30; correct or remove the line, or write numbers for the "
                                 "column's texts")
            rows[i, k] = value
    return rows


def _classes(path: str | os.PathLike[str], column: str, lines: Cells, at: int) -> tuple[tuple[str, ...], np.ndarray]:
    """The sorted names of the classes in a column, and the label of each line."""
    numeric = all(_number(cells[at]) is not None for _, cells in lines)
    found = []
    for line, cells in lines:
        cell = cells[at]
        name = _integer(cell) if numeric else cell
        if cell in MISSING or not is_name(name):
            must = "a class, and this means a missing value" if cell in MISSING else "a text or an integer"
            raise ValueError(f"from_csv: {path}, line {line}: the label {column!r} is {cell!r} but must be {must}; "
                             "correct or remove the line, or name another column as the label")
        found.append(name)
    names = tuple(sorted(set(found), key=int if numeric else str))
    require_two(f"from_csv: {path}", names, f"the column {column!r}",
                "add rows of others, or name another column as the label")
    if numeric and len(names) > max(SURE_CLASSES, len(found) // 2):
        raise ValueError(f"from_csv: {path} has {len(names)} different integers in the {len(found)} rows of its label "
                         f"{column!r}, which looks like a quantity, and not like classes; name another column as the "
                         "label, or write classes as texts")
    if len(names) > SURE_CLASSES and len(names) == len(found):
        raise ValueError(f"from_csv: {path} has another text in each of the {len(found)} rows of its label {column!r}, "
                         "which looks like names of the rows, and not like classes; name another column as the label")
    of = {name: i for i, name in enumerate(names)}
    return names, np.array([of[name] for name in found])


def _integer(cell: str) -> str:
    """A number without its leading zeros, decimal point and exponent, whatever its size; "" for a fraction."""
    from decimal import Decimal  # 4 ms, which a program that reads no table need not wait

    value = Decimal(cell)
    whole = value.is_finite() and value.adjusted() < MAX_NAME and value == value.to_integral_value()
    return str(int(value)) if whole else ""


def _number(cell: str) -> float | None:
    try:
        return None if "_" in cell else float(cell)        # Python takes 1_000, others do not
    except ValueError:
        return None
