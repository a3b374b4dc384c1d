"""docs/sources.md: whatever it refers to is there, each row says where a thing is or why it is not, and its tests are
of that thing: they mention it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from checks.mentions import mentioned
from checks.references import ROOT, fault

from minidl.ops.common.geometry import conv_geometry

PAGE = ROOT / "docs" / "sources.md"
SPAN = re.compile(r"`([^`]+)`")
ENDINGS = {".py", ".cu", ".cuh", ".md"}
NOT_HERE = re.compile(r"(not built: .{15,}|planned: not built yet)")


def tables() -> list[list[dict[str, str]]]:
    """The page's tables, a row by its columns' heads."""
    found: list[list[dict[str, str]]] = []
    head: list[str] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            head = []
        elif not head:
            head = cells
            found.append([])
        elif set(line) - set("|-: "):
            found[-1].append(dict(zip(head, cells, strict=True)))
    return found


ROWS = [row for table in tables() for row in table]


def references(text: str) -> list[str]:
    return [span for span in SPAN.findall(text) if Path(span.partition("::")[0]).suffix in ENDINGS]


@pytest.mark.slow
def test_every_reference_is_there() -> None:
    found = references(PAGE.read_text(encoding="utf-8"))
    assert len(found) > 150
    assert {reference: wrong for reference in found for wrong in [fault(reference)] if wrong} == {}


@pytest.mark.parametrize(("reference", "wrong"), [
    ("minidl/ops/layers/conv.py::conv2d", None), ("minidl/core/tensor.py::Tensor.backward", None), ("train.py", None),
    ("minidl/ops/cuda/conv/papers/tiled.cu::conv2d_tiled_y", None), ("test_zoo.py::test_parameters", None),
    ("minidl/ops/layers/conv.py::conv3d", "no such name in it"), ("minidl/ops/convolution.py", "no such file"),
    ("minidl/ops/cuda/conv/papers/tiled.cu::conv2d_tiled_z", "no such name in it"),
    ("minidl/core/tensor.py::Tensor.forward", "no such name in it"),
    ("test_zoo.py::test_nothing", "no such name in it"), ("test_zoos.py::test_parameters", "no such file")])
def test_a_wrong_reference_is_found(reference: str, wrong: str | None) -> None:
    assert fault(reference) == wrong


def test_every_row_says_where_it_is_or_why_it_is_not() -> None:
    """A row without a test has no code, or says what is planned instead."""
    assert len(ROWS) >= 100
    silent = [row for row in ROWS
              if not (references(row["here"]) or NOT_HERE.search(row["here"]) or "](" in row["shown"])
              or not (row["test"] or NOT_HERE.search(row["here"]))]
    assert silent == []


SESSIONS = "test_documents.py::test_sessions_print_what_they_say"


def named_in(row: dict[str, str]) -> tuple[list[str], list[str]]:
    """Its tests, and the words of which they must mention one: those in parentheses, or the names of its code."""
    cell, _, told = row["test"].partition(" (")
    names = [place.partition("::")[2].split(".")[-1] or Path(place).stem for place in references(row["here"])]
    names += [Path(place).stem for place in references(row["here"]) if place.startswith("zoo/")]
    return cell.split(", ") if cell else [], SPAN.findall(told) or [name for name in names if name != "layers"]


def test_tests_are_named_by_file_and_function() -> None:
    loose = [row["test"] for row in ROWS if not all(re.fullmatch(r"`test_\w+\.py::test_\w+`", test) for test in
                                                    named_in(row)[0])]
    assert loose == []


def of_another_thing(row: dict[str, str]) -> str:
    """What a row's tests lack, or ""."""
    tests, words = named_in(row)
    if f"`{SESSIONS}`" in tests:           # of the section that the row shows, where the page has sessions
        links = re.findall(r"\]\(([\w./-]+\.md)", row["shown"])
        return "" if any(">>> " in (PAGE.parent / link).read_text(encoding="utf-8") for link in links) else "a session"
    found = set().union(*(mentioned(test.strip("`")) for test in tests))
    return "" if not tests or found & set(words) else f"one of {words}"


@pytest.mark.slow
def test_the_tests_of_a_row_mention_what_it_is_about() -> None:
    """Themselves, or in the helpers and tables that they use. A test that does not cannot be of that thing."""
    assert {row["test"]: lacks for row in ROWS if (lacks := of_another_thing(row))} == {}


@pytest.mark.slow
@pytest.mark.parametrize(("here", "test", "lacks"), [
    ("`zoo/mlp.py::layers`", "`test_zoo.py::test_parameter_count`", ""),
    ("`zoo/mlp.py::layers`", "`test_zoo.py::test_parameters`", "one of ['mlp']"),
    ("`train.py`", "`test_zoo.py::test_learns_by_its_recipe` (`accuracy`)", "one of ['accuracy']"),
    ("", "`test_lenet5_1998.py::test_what_no_code_is_near_to_is_none_of_them` (`letter`)", "one of ['letter']"),
    ("", f"`{SESSIONS}`", "a session")])
def test_a_test_of_another_thing_is_found(here: str, test: str, lacks: str) -> None:
    """Rows that once were on the page."""
    assert of_another_thing({"here": here, "test": test, "shown": "[kernels](kernels.md)"}) == lacks


# ---------------------------------------------------------------- a page of the map
def test_the_tile_that_a_page_names_is_the_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/registers.md: what whole_image gives a thread of the report's layer on an H200."""
    pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")
    from minidl.ops.cuda import launch
    from minidl.ops.cuda.conv.resident import whole_image

    for name, fact in {"multiprocessors": 132, "most_shared": 232448}.items():
        monkeypatch.setattr(launch, name, lambda fact=fact: fact)
    (named,) = re.findall(r"with\s+TH = (\d+) and TM = (\d+)", (ROOT / "docs" / "registers.md").read_text())
    plan = whole_image._plan.__wrapped__("y", conv_geometry((128, 3, 39, 39), (64, 3, 8, 8), None, 1, 0, "auto"),
                                         np.dtype(np.float32))
    assert plan is not None
    tile = dict(plan.constants)
    assert (str(tile["TH"]), str(tile["TM"])) == named
