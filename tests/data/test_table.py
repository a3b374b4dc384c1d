"""Tables: the reader of CSV files, splits, batches, and trainings by the command line."""

from __future__ import annotations

import json
import os
import re
import sys
import tracemalloc
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, data, nn, zoo
from minidl.data import Table, from_csv, own_splits
from minidl.data.sets.table import read_cells
from minidl.nn.weights import read_metadata
from minidl.tools import cli
from minidl.tools.cli import predict
from minidl.training.stored import Stored

# Of a few rows a class often has none to train with
pytestmark = [pytest.mark.usefixtures("elsewhere"), pytest.mark.filterwarnings("ignore:train_and_test:UserWarning")]

FLOWERS = "petal,sepal,kind\n1,2.5,rose\n-3e2, 4 ,aster\n\n5,6,rose\n"


def write(path: Path, text: str = FLOWERS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


# ---------------------------------------------------------------- the reader
def test_a_file_with_names(tmp_path: Path) -> None:
    path = write(tmp_path / "flowers.csv")
    found = from_csv(path)
    assert (found.name, found.split, found.source) == ("flowers", "train", str(path))
    assert (found.columns, found.classes) == (("petal", "sepal"), ("aster", "rose"))
    assert found.rows.tolist() == [[1, 2.5], [-300, 4], [5, 6]]
    assert (found.rows.dtype, found.labels.tolist()) == (np.float64, [1, 0, 1])
    assert (found.shape, len(found), len(found.first(2)), found[2][1]) == ((2,), 3, 2, 1)
    assert repr(found) == f"Table('flowers', 'train', 3 rows of 2, 2 named classes, from {path})"


@pytest.mark.parametrize(("text", "label", "columns", "classes", "labels"), [
    ("1,2,rose\n3,4,aster\n5,6,rose\n", None, ("column 1", "column 2"), ("aster", "rose"), [1, 0, 1]),
    ("rose,1\naster,2\nrose,3\n", "column 1", ("column 2",), ("aster", "rose"), [1, 0, 1]),
    ("kind,a\n10,1\n9,2\n09,3\n2.0,4\n", "kind", ("a",), ("2", "9", "10"), [2, 1, 1, 0]),
    ("a,kind\n1,10\n2,9\n3,x\n", None, ("a",), ("10", "9", "x"), [0, 1, 2]),
    ("\ufeffa,kind\r\n1,\"x, y\"\r\n2,z\r\n", None, ("a",), ("x, y", "z"), [0, 1]),
], ids=["without names", "first column", "integers by size", "texts by letters", "Excel's"])
def test_names_and_labels(tmp_path: Path, text: str, label: str | None, columns: tuple[str, ...],
                          classes: tuple[str, ...], labels: list[int]) -> None:
    found = from_csv(write(tmp_path / "t.csv", text), label)
    assert (found.columns, found.classes, found.labels.tolist()) == (columns, classes, labels)


@pytest.mark.parametrize(("text", "columns", "classes", "rows"), [
    ("0,1,2,target\n1,2,3,a\n4,5,6,b\n", ("0", "1", "2"), ("a", "b"), 2),
    ("0,1,2,target\n1,2,3,0\n4,5,6,1\n", ("0", "1", "2"), ("0", "1"), 2),
    ("0,1,2\n5.1,3.5,setosa\n4.9,3,virginica\n", ("0", "1"), ("setosa", "virginica"), 2),
    ("2019,2020,kind\n1,2,0\n3,4,1\n", ("2019", "2020"), ("0", "1"), 2),
    ("id 1,400.5,401.5,kind\n1,2,3,x\n3,4,5,y\n", ("id 1", "400.5", "401.5"), ("x", "y"), 2),
    (",a,kind\n0,1,x\n1,2,y\n", ("a",), ("x", "y"), 2),
    (",0,1,kind\n3,7,8,x\n9,7,8,y\n", ("0", "1"), ("x", "y"), 2),
    ('"","a","kind"\n"1",1,"x"\n"2",2,"y"\n', ("a",), ("x", "y"), 2),
    ('"a","kind"\n"Mazda RX4",1,"x"\n"Fiat 128",1,"y"\n', ("a",), ("x", "y"), 2),
    ("a,nan,kind\n1,2,x\n3,4,y\n", ("a", "nan"), ("x", "y"), 2),
    ("5.1,3.5,setosa\n4.9,3,virginica\n5,3,setosa\n", ("column 1", "column 2"), ("setosa", "virginica"), 3),
    ("1.5,2,0\n3,4,1\n", ("column 1", "column 2"), ("0", "1"), 2),
    ("3,1,2\n4,5,6\n", ("column 1", "column 2"), ("2", "6"), 2),
    ("4,10\n2,9\n3,x\n", ("column 1",), ("10", "9", "x"), 3),
    ("0,1,x\n0,1,y\n0,1,x\n", ("column 1", "column 2"), ("x", "y"), 3),
])
def test_a_header_is_told_by_what_is_below(tmp_path: Path, text: str, columns: tuple[str, ...],
                                           classes: tuple[str, ...], rows: int) -> None:
    found = from_csv(write(tmp_path / "t.csv", text))
    assert (found.columns, found.classes, len(found)) == (columns, classes, rows)


@pytest.mark.parametrize(("text", "shown", "names"), [
    ("2019,2020,kind\n1,2,x\n3,4,y\n", "2019, 2020, kind", ("2019", "2020")),
    ("0,1,2\n3,4,0\n5,6,1\n", "0, 1, 2", ("0", "1")),
    ("1,2\n2,1\n", "1, 2", ("1",)),
    ("1,2,rose\n3,4,aster\n", "1, 2, rose", ("1", "2")),
    ("7,9,8\n1,2,x\n3,4,y\n", "7, 9, 8", ("7", "9")),
    ("a,1,rose\n1,2,rose\n3,4,aster\n", "a, 1, rose", ("a", "1")),
    ("0,1,2,3,4,5,6\n7,8,9,9,9,9,0\n7,8,9,9,9,9,1\n", "0, 1, 2, 3, 4, ...", ("0", "1", "2", "3", "4", "5")),
])
def test_a_doubtful_first_line_is_asked_for(tmp_path: Path, text: str, shown: str, names: tuple[str, ...]) -> None:
    path = write(tmp_path / "t.csv", text)
    said = (f"from_csv: the first line of {path}, {shown}, may name the columns or be a row; say which by header=True "
            "or header=False (--header or --no-header)")
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        from_csv(path)
    assert (*read_cells("from_csv", path, header=True)[0][:-1],) == names
    with pytest.raises(ValueError, match=r"^predict: the first line of "):
        read_cells("predict", path)
    rows = read_cells("from_csv", path, header=False)[1]
    assert ", ".join(rows[0][1]).startswith(shown.removesuffix(", ..."))


def test_integers_of_any_size_are_classes(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "a,kind\n1,9007199254740993\n2,9007199254740992\n3,9007199254740993.0\n4,1e3\n"
                                     f"5,-0\n6,00\n7,1{'0' * 40}1\n8,1{'0' * 40}2\n")
    found = from_csv(path)
    assert found.classes == ("0", "1000", "9007199254740992", "9007199254740993", f"1{'0' * 40}1", f"1{'0' * 40}2")
    assert found.labels.tolist() == [3, 2, 3, 1, 0, 0, 4, 5]
    for large in ("1e999999999", "-1e200", "1e-400"):
        with pytest.raises(ValueError, match=f"line 2: the label 'kind' is '{large}' but must be a text or an int"):
            from_csv(write(tmp_path / "t.csv", f"a,kind\n1,{large}\n2,1\n"))


def test_words_that_pandas_does_not_take_for_missing_are_classes(tmp_path: Path) -> None:
    assert from_csv(write(tmp_path / "t.csv", "a,b\n1,none\n2,Na\n3,no\n")).classes == ("Na", "no", "none")


@pytest.mark.skipif(sys.platform == "win32", reason="pipes and devices are not files there")
def test_what_has_no_end_is_no_table(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    said = " is not a file, but a folder, a pipe or a device; write its content to a file, and name that$"
    for path in (tmp_path / "pipe.csv", "/dev/zero", tmp_path):
        with pytest.raises(ValueError, match=f"^from_csv: {re.escape(str(path))}{said}"):
            from_csv(path)
    with open(tmp_path / "sparse.csv", "wb") as file:
        file.truncate(10 * 2**30)
    with pytest.raises(ValueError, match=r"sparse.csv is not a CSV .* \(a line has more than 1,048,576 characters\); "):
        from_csv(tmp_path / "sparse.csv")


@pytest.mark.parametrize(("text", "label", "message"), [
    ("", None, " has no rows; a table has a line for each row, under an optional one of names$"),
    ("\n\n", None, " has no rows; "), ("a,b\n", None, " has no rows; "),
    ("a\n1\n", None, " has one column, 'a', but needs numbers and the label; separate values by commas$"),
    ("a;b\n1;2\n", None, " has one column, 'a;b', but needs numbers and the label; separate values by commas$"),
    ("a,b\n1,x\n1,2,y\n", None, ", line 3 has 3 values but there are 2 columns; complete or remove it$"),
    ("a,b\n1,x\n\n3\n", None, ", line 4 has 1 values but there are 2 columns; complete or remove it$"),
    *((f"a,b\n1,x\n{value},y\n", None, f", line 3: 'a' is {value!r} but must be a number between -1e30 and 1e30; "
       "correct or remove the line, or write numbers for the column's texts$")
      for value in ("red", "", "nan", "inf", "-1e30", "1_000", "0x1")),
    ("a,b\n1,x\n2,\n", None, ", line 3: the label 'b' is '' but must be a class, and this means a missing value; "
                             "correct or remove the line, or name another column as the label$"),
    *((f"a,b\n1,x\n2,{missing}\n3,y\n", None, f", line 3: the label 'b' is {re.escape(repr(missing))} but must be a "
       "class, and this means a missing value; ")
      for missing in ("nan", "NaN", "NA", "N/A", "n/a", "null", "NULL", "None", "<NA>", "?", "#N/A")),
    ("a,b\n1,1\n2,?\n3,2\n", None, ", line 3: the label 'b' is '\\?' but must be a class, and this means a missing "),
    ("a,b\n1,2\n2,2.5\n", None, ", line 3: the label 'b' is '2.5' but must be a text or an integer; "),
    ("a,b\n1,2\n2,nan\n", None, ", line 3: the label 'b' is 'nan' but must be a class, and this means a missing "),
    ("a,b\n1,2\n2,inf\n", None, ", line 3: the label 'b' is 'inf' but must be a text or an integer; "),
    ("a,b\n1,2\n2,1e300\n", None, ", line 3: the label 'b' is '1e300' but must be a text or an integer; "),
    (f"a,b\n1,2\n2,{'x' * 201}\n", None, ", line 3: the label 'b' is 'xxx.*x' but must be a text or an integer; "),
    ("a,b\n1,x\n2,x\n", None, " has only the class 'x', by the column 'b', but needs two; add rows of others, or name "
                              "another column as the label$"),
    ("a,b\n" + "".join(f"1,{price // 2}\n" for price in range(100, 141)), None,
     " has 21 different integers in the 41 rows of its label 'b', which looks like a quantity, and not like classes; "
     "name another column as the label, or write classes as texts$"),
    ("a,b\n" + "".join(f"1,name {i}\n" for i in range(21)), None,
     " has another text in each of the 21 rows of its label 'b', which looks like names of the rows, and not like "
     "classes; name another column as the label$"),
    ("a,b\n1,x\n2,y\n", "c", " has no column 'c'; it has a, b$"),
    (",a,b\n0,1,x\n0,2,y\n", None, r" names its column 1 '', but each needs a name of its own; give it one, or remove "
                                    r"it \(of pandas: to_csv\(path, index=False\)\)$"),
    ("a,a,b\n0,1,x\n", None, " names its column 2 'a', but each needs a name of its own; "),
    (f"{'1,' * 1025}x\n", None, " has 1026 columns but may have at most 1024; remove some$"),
])
def test_what_is_no_table_is_refused(tmp_path: Path, text: str, label: str | None, message: str) -> None:
    path = write(tmp_path / "t.csv", text)
    with pytest.raises(ValueError, match=f"^from_csv: {re.escape(str(path))}{message}"):
        from_csv(path, label)


@pytest.mark.parametrize(("rows", "classes", "name"), [(20, 20, "{}"), (42, 21, "{}"), (31, 30, "class {}")])
def test_many_classes_of_few_rows(tmp_path: Path, rows: int, classes: int, name: str) -> None:
    """Few integers, integers of two rows each, and texts."""
    path = write(tmp_path / "t.csv", "".join(f"1,{name.format(i % classes)}\n" for i in range(rows)))
    assert len(from_csv(path, header=False).classes) == classes


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\n1,caf\xe9\n")
    with pytest.raises(ValueError, match=r"t.csv is not a CSV file in UTF-8 \('utf-8' codec .*\); save it as one$"):
        from_csv(path)
    with pytest.raises(FileNotFoundError, match=r"none\.csv"):
        from_csv(tmp_path / "none.csv")


@pytest.mark.parametrize(("rows", "labels", "error", "message"), [
    (np.zeros((2, 3), int), np.arange(2), TypeError, "Table: t has rows int64 and labels int64 but needs floating num"),
    (np.zeros((2, 3)), np.zeros(2), TypeError, "Table: t has rows float64 and labels float64 but needs floating num"),
    (np.zeros(2), np.arange(2), ValueError, r"Table: t has rows \(2,\) and labels \(2,\) but needs \(n,columns\) and "),
    (np.zeros((2, 3)), np.arange(3), ValueError, r"Table: t has rows \(2, 3\) and labels \(3,\) but needs "),
])
def test_what_is_no_table_of_arrays(rows: Any, labels: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        Table("t", "train", rows, labels)


@pytest.mark.parametrize(("names", "message"), [
    ({"classes": ("x", "y")}, "a label 4 but 2 classes (x, y), whose labels are 0 to 1; name each class, or c"),
    ({"classes": ("a", "b", "a", "c", "d")}, "the class 'a' 2 times; give each class a name of its own"),
    ({"columns": ("p",)}, "rows of 3 numbers but 1 columns (p); name each column, or none"),
    ({"columns": tuple("pqrs")}, "rows of 3 numbers but 4 columns (p, q, r, s); name each column, or none"),
    ({"columns": tuple("pqp")}, "the column 'p' 2 times; give each column a name of its own"),
])
def test_names_that_contradict_the_data_are_refused(names: dict[str, Any], message: str) -> None:
    """A split was an IndexError, and a class or a column was lost without a word."""
    with pytest.raises(ValueError, match=f"^Table: t has {re.escape(message)}"):
        Table("t", "train", np.zeros((5, 3)), np.arange(5), **names)
    if "classes" in names:
        with pytest.raises(ValueError, match=f"^Dataset: d has {re.escape(message)}"):
            data.Dataset("d", "train", np.zeros((5, 1, 2, 2), np.uint8), np.arange(5, dtype=np.uint64), **names)


@pytest.mark.parametrize("classes", [(), ("a", "b")])
def test_labels_below_0_are_of_no_class(classes: tuple[str, ...]) -> None:
    """A loss may ignore them. Without names a split was an IndexError."""
    table = Table("t", "train", np.arange(40.0).reshape(20, 2), np.arange(20) % 7 - 5, classes=classes)
    assert sorted(np.concatenate([part.labels for part in table.train_and_test()])) == sorted(table.labels)
    assert len(table[:0]) == 0


# ---------------------------------------------------------------- splits
def numbered(count: int) -> Table:
    return Table("t", "train", np.arange(2.0 * count).reshape(-1, 2), np.arange(count) % 3, classes=("a", "b", "c"))


def test_one_row_of_five_is_for_the_test() -> None:
    train, test = numbered(10_000).train_and_test()
    assert abs(len(test) / 10_000 - 0.2) < 0.012           # three deviations
    assert (train.split, test.split) == ("train", "test")
    both = np.concatenate([train.rows, test.rows])
    assert sorted(both[:, 0]) == [*range(0, 20_000, 2)]
    np.testing.assert_array_equal(both[:, 0] / 2 % 3, np.concatenate([train.labels, test.labels]))
    assert list(train.rows[:, 0]) != sorted(train.rows[:, 0])
    again, other = (numbered(10_000).train_and_test(seed)[1].rows.tolist() for seed in (0, 1))
    assert again == test.rows.tolist() != other


def refused(table: Table, seed: int) -> str:
    """Why a seed does not split a table."""
    try:
        table.train_and_test(seed)
    except ValueError as error:
        return str(error)
    return ""


def sides(table: Table, seed: int) -> tuple[set[Any], set[Any]]:
    """The rows of the training and of the test, with their classes; nothing where the seed leaves a side empty."""
    if refused(table, seed):
        return set(), set()
    parts = table.train_and_test(seed)
    train, test = ({(*row, part.classes[label]) for row, label in zip(part.rows.tolist(), part.labels, strict=True)}
                   for part in parts)
    return train, test


@pytest.mark.parametrize("counts", [(2, 3), (4, 5), (4, 10), (10, 11), (10, 200), (3, 4, 5, 6, 7, 8, 9, 10, 50)])
def test_a_row_keeps_its_side_when_others_are_added(counts: tuple[int, ...]) -> None:
    split = 0
    for seed in range(60):
        trained, tested = set[Any](), set[Any]()
        for count in counts:
            whole = numbered(count)
            order = np.random.default_rng(seed).permutation(count)         # new rows stand between the old ones
            train, test = sides(whole[order], seed)
            assert not trained & test
            assert not tested & train
            trained, tested, split = trained | train, tested | test, split + bool(train)
    assert split > 20


def test_a_row_keeps_its_side_when_a_class_is_added(tmp_path: Path) -> None:
    lines = [f"{i},{i % 5},{'rose' if i % 2 else 'tulip'}\n" for i in range(12)]
    more = [f"{i},{i % 5},aster\n" for i in range(40, 52)]                 # it sorts before both
    for seed in range(20):
        train, test = sides(from_csv(write(tmp_path / "t.csv", "x,y,kind\n" + "".join(lines))), seed)
        both = sides(from_csv(write(tmp_path / "t.csv", "x,y,kind\n" + "".join(more[:6] + lines + more[6:]))), seed)
        assert train <= both[0]
        assert test <= both[1]


def test_equal_rows_are_on_one_side() -> None:
    once = numbered(100)
    for part in once[np.tile(np.arange(100), 3)].train_and_test():
        assert set(np.unique(part.rows[:, 0], return_counts=True)[1]) == {3}


def test_rows_that_are_too_few() -> None:
    for few in (numbered(0), numbered(1), numbered(30)[np.zeros(5, int)]):
        with pytest.raises(ValueError, match=r"^train_and_test: t has \d rows, too few different ones for two splits"):
            few.train_and_test()


@pytest.mark.parametrize("count", [2, 3, 4, 10])
def test_a_seed_that_splits_is_named(count: int) -> None:
    """Where the seed leaves a side empty: a row that stood in would change sides once others come."""
    said = {seed: text for seed in range(60) if (text := refused(numbered(count), seed))}
    assert said
    for seed, text in said.items():
        found = re.fullmatch(rf"train_and_test: t has {count} rows, of which the seed {seed} puts (all|none) into the "
                             r"test; use seed=(\d+) \(--seed \2\), or add some", text)
        assert found, text
        train, test = numbered(count).train_and_test(int(found[2]))
        assert min(len(train), len(test)) > 0


def test_a_class_without_a_row_to_train_with_is_said(tmp_path: Path) -> None:
    """It was tested with, and no word said that nothing could be right on it."""
    rows = np.arange(40.0)[:, None]
    told = set()
    for seed in range(8):
        for names in ((), ("often", "rare")):
            table = Table("t", "train", rows, np.array([0] * 39 + [1]), classes=names)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                train, _ = table.train_and_test(seed)
            said = [str(each.message) for each in caught]
            assert len(said) == (1 not in train.labels)
            told.update(said)
            assert {each.filename for each in caught} <= {__file__}
    assert any(re.fullmatch("train_and_test: t has nothing to train with of 1 of its classes, 'rare': the seed [0-7] "
                            "puts all of them into the test; add some, or use another seed", text) for text in told)
    assert any("its classes, 1: the seed" in text for text in told)


def test_splits_that_are_files(tmp_path: Path) -> None:
    write(tmp_path / "own" / "train.csv", FLOWERS + "7,8,aster\n")
    with pytest.raises(FileNotFoundError, match=r"^own_splits: .*own has a train.csv but no test.csv; make one, or"):
        own_splits(tmp_path / "own", (2,))
    write(tmp_path / "own" / "test.csv")
    train, test = own_splits(tmp_path / "own", (2,))
    assert isinstance(train, Table)
    assert (train.name, train.split, test.name, test.split) == ("own", "train", "own", "test")
    assert train.source == test.source == str(tmp_path / "own")
    assert (sorted(train.rows[:, 0]), len(test)) == ([-300, 1, 5, 7], 3)
    write(tmp_path / "own" / "test.csv", "petal,sepal,kind\n1,2,lily\n3,4,rose\n")
    with pytest.raises(ValueError, match=r"^own_splits: train.csv in .*own has the classes aster, rose, but test.csv "
                                         r"has lily, rose; give both the same$"):
        own_splits(tmp_path / "own", (2,))
    write(tmp_path / "own" / "test.csv", FLOWERS.replace("petal", "stem"))
    with pytest.raises(ValueError, match=r"has the columns petal, sepal, but test\.csv has stem, sepal; give both "):
        own_splits(tmp_path / "own", (2,))


def test_a_folder_of_pictures_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    with pytest.raises(ValueError, match=r"^own_splits: .* is a folder without a train.csv, and the net reads tables"):
        own_splits(tmp_path, (2,))
    with pytest.raises(ValueError, match=r"^own_splits: header is True but .* has pictures, whose classes are their "):
        own_splits(tmp_path, (3, 32, 32), header=True)
    with pytest.raises(ValueError, match=r"^own_splits: label is 'kind' but .* has pictures, whose classes are their"):
        own_splits(tmp_path, (3, 32, 32), label="kind")


# ---------------------------------------------------------------- batches
def test_columns_are_normalised_in_float64() -> None:
    """A date in seconds has more digits than float32; a constant column becomes 0."""
    rows = np.stack([1.7e9 + np.arange(5.0), np.full(5, 0.1), np.arange(5.0)], axis=1)
    table = Table("t", "train", rows, np.arange(5, dtype=np.uint8))
    how = table.preprocessing()
    assert (how["mean"], how["std"], how["padding"]) == ([1.7e9 + 2, 0.1, 2], [2**0.5, 1, 2**0.5], 0)
    loader = data.DataLoader(table, 5, shuffle=False, **how)
    ((found, labels),) = loader
    assert (found.dtype, labels.dtype, loader.preprocessing) == (np.float32, np.int64, how)
    np.testing.assert_allclose(found, [[(i - 2) / 2**0.5, 0, (i - 2) / 2**0.5] for i in range(5)], rtol=1e-6)
    assert repr(loader) == "DataLoader(t of 5, 1 batches of 5, in order, device='cpu')"
    changed = data.DataLoader(table, 5, shuffle=False, transform=lambda row, label: (2 * row, label), **how)
    np.testing.assert_array_equal(next(iter(changed))[0], 2 * found)


@pytest.mark.parametrize(("options", "message"), [
    ({"mean": [1.0]}, r"mean has shape \(1,\) but t has 2 columns; give one number per column$"),
    ({"mean": float("inf")}, r"mean is \[inf, inf\] but must be finite; compute it anew$"),
    ({"std": [1.0, 0.0]}, r"std is \[1.0, 0.0\] but every column's must be above 0$"),
    ({"padding": 2}, "padding is 2 but is for a data.Dataset of images, and this is a Table; change the data itself"),
    ({"augment": data.Augment(flip=True)}, r"augment is Augment\(.*\) but is for a data.Dataset of images, and this "),
    ({"batch_size": 40, "drop_last": True}, "t has 9 rows but a batch needs 40; use more rows or a smaller batch$"),
])
def test_what_is_for_images_alone(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^DataLoader: {message}"):
        data.DataLoader(numbered(9), **{"batch_size": 3, **options})


def test_the_generated_table() -> None:
    train = data.load("synthetic-table", "train")
    assert (train.rows.shape, train.rows.dtype, train.source) == ((10_000, 10), np.float64, "generated")
    assert len(train.columns) == 10
    assert train.classes == ("same near", "same far", "other near", "other far")


# ---------------------------------------------------------------- by the command line
RUN = ["train", "--model", "table-mlp", "--no-progress", "--device", "cpu", "--output-dir", "run"]
CLUSTERS = "width,height,depth,kind\n" + "".join(
    f"{x + i % 5:.1f},{1000 * x + 10 * i},{i % 7},{name}\n"
    for x, name in ((0, "small"), (30, "large")) for i in range(40))


@pytest.mark.slow
@pytest.mark.parametrize("compiled", ["--compile", "--no-compile"])
def test_a_table_is_trained_resumed_and_evaluated(compiled: str, tmp_path: Path,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "boxes.csv", CLUSTERS)
    assert cli.main([*RUN, compiled, "--data", "boxes.csv", "--epochs", "3", "--batch-size", "8"]) == 0
    out = capsys.readouterr().out
    count = re.search(r"table-mlp on boxes \(.*boxes.csv\): (\d+) training and (\d+) test rows, cpu, run folder", out)
    assert count is not None
    assert int(count[1]) + int(count[2]) == 80
    assert "table-mlp on boxes: test accuracy 100.00 % after 3 epochs" in out
    config = json.loads(Path("run/config.json").read_text())
    assert (config["train_images"], config["test_images"]) == tuple(map(int, count.groups()))
    assert (config["data"], config["label"], config["compile"]) == (str(tmp_path / "boxes.csv"), None,
                                                                    compiled == "--compile")
    found = read_metadata("run/weights.h5")
    assert (found["model_args"]["in_features"], found["model_args"]["classes"], found["classes"]) == (
        3, 2, ["large", "small"])
    train, test = from_csv("boxes.csv").train_and_test()
    assert found["preprocessing"] == train.preprocessing()
    assert cli.main(["train", "--resume", "run", "--epochs", "4"]) == 0
    assert len(Path("run/metrics.jsonl").read_text().splitlines()) == 4
    capsys.readouterr()
    assert cli.main(["train", "--eval", "run"]) == 0
    assert f"test loss {last_loss():.4f}, {len(test)} rows, weights run/weights.h5" in capsys.readouterr().out
    net = minidl.load("run/weights.h5").eval()
    ((rows, labels),) = data.DataLoader(test, len(test), shuffle=False, **found["preprocessing"])
    assert (net(Tensor(rows)).numpy().argmax(1) == labels).all()


def last_loss() -> float:
    loss: float = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])["test_loss"]
    return loss


@pytest.mark.deep
def test_a_run_that_goes_on_is_the_run_that_did_not_stop(tmp_path: Path) -> None:
    """With dropout: to the bit, and by the settings of its own file."""
    write(tmp_path / "boxes.csv", CLUSTERS.replace(",kind", ",what"))
    common = [*RUN[:-1], "whole", "--data", "boxes.csv", "--lr-schedule", "constant", "--label", "what"]
    assert cli.main([*common, "--epochs", "4"]) == 0
    assert cli.main(["train", "--config", "whole/config.json", "--epochs", "2", "--output-dir", "run",
                     "--no-progress"]) == 0
    assert cli.main(["train", "--resume", "run", "--epochs", "4", "--no-progress"]) == 0
    whole, again = (minidl.load(f"{run}/weights.h5").state_dict() for run in ("whole", "run"))
    for name, values in whole.items():
        np.testing.assert_array_equal(values, again[name])


@pytest.mark.slow
def test_the_label_may_be_any_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "boxes.csv", "\n".join(",".join(reversed(line.split(","))) for line in CLUSTERS.split()))
    assert cli.main([*RUN, "--data", "boxes.csv", "--epochs", "1", "--label", "kind"]) == 0
    assert read_metadata("run/weights.h5")["classes"] == ["large", "small"]
    assert cli.main(["train", "--eval", "run"]) == 0
    capsys.readouterr()
    assert cli.main([*RUN, "--label", "kind"]) == 2
    assert "--label=kind has no meaning for --data=auto, whose labels are known; leave it" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "message"), [
    (["--model", "lenet5", "--data", "boxes.csv"],
     "--data boxes has rows of a table, but --model lenet5 reads images of 32x32; use another of both"),
    (["--data", "synthetic-digits", "--limit-train", "9", "--limit-test", "9"],
     "--data synthetic-digits has images of 28x28, but --model table-mlp reads rows of a table; use another of both"),
    (["--data", "none.csv"], "'none.csv' is not one of auto, mnist, "),
    (["--data", "boxes.csv", "--label", "colour"], "boxes.csv has no column 'colour'; it has width, height, depth, ki"),
    (["--data", "boxes.csv", "--option", "in_features=3"],
     "--option in_features=3: in_features is 3 by the data set; leave it out"),
    (["--data", "boxes.csv", "--augment", "flip"], "is for a data.Dataset of images, and this is a Table; "),
])
def test_what_does_not_fit_is_one_line(flags: list[str], message: str, tmp_path: Path,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "boxes.csv", CLUSTERS)
    try:
        status = cli.main([*RUN, *flags])
    except SystemExit as stop:
        status = int(str(stop.code))
    assert status == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.slow
def test_without_data_the_table_is_generated(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*RUN, "--epochs", "1", "--limit-train", "200", "--limit-test", "100"]) == 0
    assert "table-mlp on synthetic-table (generated): 200 training and 100 test rows" in capsys.readouterr().out
    assert cli.main(["summary", "--weights", "run/weights.h5"]) == 0
    assert "parameters      5,124" in capsys.readouterr().out
    assert cli.main(["summary", "--model", "table-mlp", "--input", "7"]) == 0
    assert "hidden1   Linear (64,7)" in capsys.readouterr().out
    assert cli.main(["data", "list", "synthetic-table"]) == 0
    assert "12,000 rows (10), 4 classes, generated" in capsys.readouterr().out


@pytest.mark.slow
def test_predict_reads_tables_without_the_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "boxes.csv", CLUSTERS)
    assert cli.main([*RUN, "--data", "boxes.csv", "--epochs", "5", "--batch-size", "8"]) == 0
    capsys.readouterr()
    write(tmp_path / "new.csv", "width,height,depth\n\n33,30000,2\n1,100,3\n")
    assert cli.main(["predict", "--weights", "run/weights.h5", "new.csv", "--top", "1"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"new.csv, line 3: large \d+\.\d %", first)
    assert re.fullmatch(r"new.csv, line 4: small \d+\.\d %", second)
    assert cli.main(["predict", "--weights", "run/weights.h5", "boxes.csv"]) == 2
    assert ("boxes.csv has 4 columns but the net reads 3; give it those that it was trained on, without the "
            "label: width, height, depth") in capsys.readouterr().err
    write(tmp_path / "new.csv", "3,1,\n")
    assert cli.main(["predict", "--weights", "run/weights.h5", "new.csv"]) == 2
    assert "predict: new.csv, line 1: 'column 3' is '' but must be a number" in capsys.readouterr().err
    assert cli.main(["predict", "--weights", "run/weights.h5", "new.csv", "--invert"]) == 2
    assert "--invert has no meaning for the rows of a table; leave it out" in capsys.readouterr().err


class Rows(nn.Module):
    """A net whose first class is the likelier the larger the first column is against the second."""

    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.fixture
def by_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What predict prints of a table's text, of a net that was trained on columns of these names."""
    def run(columns: list[str] | None, text: str, *flags: str) -> str:
        how = {"mean": [0.0, 0.0], "std": [1.0, 1.0], "padding": 0}
        minidl.save(zoo.build("table-mlp", in_features=2, classes=2, depth=0), "W.h5", preprocessing=how,
                    classes=["a", "b"], columns=columns)
        known = minidl.weights.read_metadata("W.h5")
        monkeypatch.setattr(predict, "read_net", lambda path, code: Stored(Rows(), known, (2,)))
        Path("new.csv").write_text(text, encoding="utf-8")
        cli.main(["predict", "--weights", "W.h5", "new.csv", "--top", "1", "--device", "cpu", *flags])
        out, err = capsys.readouterr()
        return re.sub(r"new.csv, line (\d+): (\w) .*\n", r"\1\2 ", out) + err
    return run


@pytest.mark.parametrize(("columns", "text", "flags", "told"), [
    (["p", "q"], "p,q\n9,1\n1,9\n", (), "2a 3b "), (["p", "q"], "q,p\n9,1\n1,9\n", (), "2b 3a "),
    (["p", "q"], "9,1\n1,9\n", (), "1a 2b "), (["column 1", "column 2"], "q,p\n9,1\n", (), "2a "),
    (["column 1", "column 2"], "9,1\n", (), "1a "), (None, "q,p\n9,1\n", (), "2a "), (None, "9,1\n", (), "1a "),
    (["0", "1"], "1,0\n9,1\n", (), "2b "), (["0", "1"], "0,1\n9,1\n", (), "2a "), (["0", "1"], "9,1\n", (), "1a "),
    (["2019", "2020"], "2020,2019\n9,1\n", (), "2b "), (["p", "q"], ",q,p\n7,9,1\n8,1,9\n", (), "2b 3a "),
    (["p", "q"], '"q","p"\n"x",9,1\n"y",1,9\n', (), "2b 3a "), (["p", "q"], "1,2\n", ("--no-header",), "1b "),
    (["0", "1"], "1,0\n9,1\n", ("--no-header",), "1a 2a "), (["column 2", "column 3"], "9,1\n", (), "1a "),
    (["column 2", "column 3"], "p,q\n9,1\n", (), "2a "),
    (["column 1", "column 2"], "column 2,column 1\n9,1\n", (), "2b "),
    (["p", "q"], "p,r\n9,1\n", (), "minidl predict: error: new.csv has no column 'q'; the net reads p, q, and this has "
     "p, r; rename or add it\n"),
    (["p", "q"], "P,q\n9,1\n", (), "minidl predict: error: new.csv has no column 'p'; the net reads p, q, and this has "
     "P, q; rename or add it\n"),
    (["p", "q"], "q,p,kind\n9,1,2\n", (), "minidl predict: error: new.csv has 3 columns but the net reads 2; give it "
     "those that it was trained on, without the label: p, q\n"),
    (None, "1\n", (), "minidl predict: error: new.csv has 1 columns but the net reads 2; give it those that it was "
     "trained on, without the label\n"),
    (["p", "q"], "1,2\n", (), "minidl predict: error: predict: the first line of new.csv, 1, 2, may name the columns "
     "or be a row; say which by header=True or header=False (--header or --no-header)\n"),
])
def test_predict_finds_columns_by_their_names(columns: list[str] | None, text: str, flags: tuple[str, ...], told: str,
                                              by_columns: Callable[..., str]) -> None:
    assert by_columns(columns, text, *flags) == told


@pytest.mark.slow
def test_other_columns_are_not_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "boxes.csv", CLUSTERS)
    assert cli.main([*RUN, "--data", "boxes.csv", "--epochs", "0", "--header"]) == 0
    assert read_metadata("run/weights.h5")["columns"] == ["width", "height", "depth"]
    assert cli.main(["train", "--eval", "run"]) == 0
    write(tmp_path / "boxes.csv", CLUSTERS.replace("width,height", "height,width"))
    assert cli.main(["train", "--eval", "run"]) == 2
    assert ("run/weights.h5 knows the columns width, height, depth, but boxes has height, width, depth; name the data "
            "that it was trained on") in capsys.readouterr().err


def test_a_table_whose_squares_vanish_has_its_deviation() -> None:
    """It was 0, and a loader refused it."""
    rows = np.random.default_rng(0).standard_normal((50, 2))
    small = Table("t", "train", rows * [1e-170, 1.0], np.arange(50) % 2)
    found, plain = small.preprocessing(), Table("t", "train", rows, small.labels).preprocessing()
    np.testing.assert_allclose(found["std"], np.multiply(plain["std"], [1e-170, 1.0]), rtol=1e-12)
    (seen, _), = data.DataLoader(small, 50, shuffle=False, **found)
    np.testing.assert_allclose(seen, (rows - plain["mean"]) / plain["std"], rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"^Table: t has 0 rows but a mean needs at least 1; use more rows$"):
        small[:0].preprocessing()


def test_a_name_that_no_weights_file_holds_is_refused_before_training(tmp_path: Path) -> None:
    for name in ("x" * 201, "a\tb", "\x1b[31m"):
        said = re.escape(f" names its column 1 {name!r}, but a name must be printable and have at most 200 charac")
        with pytest.raises(ValueError, match=said):
            from_csv(write(tmp_path / "t.csv", f"{name},kind\n1,x\n2,y\n"))
    names = [f"{i:04}{'x' * 196}" for i in range(1024)]
    minidl.save(zoo.build("table-mlp", in_features=2, classes=2), "W.h5", columns=names)
    assert read_metadata("W.h5")["columns"] == names


@pytest.mark.slow
@pytest.mark.usefixtures("drawing")
def test_the_pictures_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Curves and the confusion matrix; filters and the worst images have no meaning."""
    write(tmp_path / "boxes.csv", CLUSTERS)
    assert cli.main([*RUN, "--data", "boxes.csv", "--epochs", "2", "--label", "kind", "--seed", "4"]) == 0
    assert "pictures: curves.png, confusion.png, report.html" in capsys.readouterr().out
    assert cli.main(["plot", "run"]) == 0
    report = Path("run/report.html").read_text(encoding="utf-8")
    count = len(from_csv("boxes.csv").train_and_test(4)[1])
    assert re.search(rf"\d+ of {count} test rows are right, \d+ are wrong\.</p>", report)
    assert "<h2>Right and wrong</h2>" in report
    assert "First layer's filters" not in report
    assert "that the net got most wrong" not in report


# ---------------------------------------------------------------- memory
TALL = 4000
SHAPES: dict[str, tuple[str, bool | None]] = {      # tables whose cells are as small as they can be, and header=
    "one column": ("1\n" * TALL, False),
    "two columns": ("1,a\n2,b\n" * TALL, False),
    "two columns and names": ("x,y\n" + "10,a\n11,b\n" * TALL, None),
    "an index": (",x,y\n" + "".join(f"{i},1,{'ab'[i % 2]}\n" for i in range(TALL)), None),
    "wide": ("".join(",".join(["7"] * 1000) + f",{kind}\n" for kind in "abab"), False),
    "no values": (("," * 1000 + "\n") * 20, False),
    "quoted": ('"1","a"\n"2","b"\n' * TALL, False),
    "a class that is a number": ("0.5,1\n0.5,2\n" * TALL, False),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_table_takes_memory_in_proportion_to_its_file(tmp_path: Path, name: str) -> None:
    text, header = SHAPES[name]
    (tmp_path / "t.csv").write_text(text)
    tracemalloc.start()
    try:
        with suppress(ValueError):
            from_csv(tmp_path / "t.csv", header=header)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 100 * len(text) + 2**18
    assert name not in ("two columns", "an index") or peak <= 65 * len(text)       # all cells are held once


@pytest.mark.parametrize("index", ["", "Unnamed: 0"])
def test_an_index_goes_and_the_label_may_be_any_column(tmp_path: Path, index: str) -> None:
    (tmp_path / "t.csv").write_text(f"{index},kind,x,y\n10,a,1,2\n11,b,3,4\n12,a,5,6\n")
    table = from_csv(tmp_path / "t.csv", "kind")
    assert (table.columns, table.classes) == (("x", "y"), ("a", "b"))
    assert table.rows.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert table.labels.tolist() == [0, 1, 0]


def test_a_quote_behind_a_space_is_a_quote(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('a,k\n1, "x"\n2,"x"\n3,y\n')
    assert data.from_csv(tmp_path / "t.csv", header=True).classes == ("x", "y")
