"""The documents' promises: each sentence with a word of PROMISE has, directly behind it, the test that keeps it.

The mark is an HTML comment, so no reader of the page sees it: `It is never wrong. <!-- test: test_a.py::test_b -->`.
Several tests stand between commas. Other sentences may have a mark too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from checks.references import ROOT, fault

PROMISE = re.compile(r"\b(?:never|always|exactly|same bits|bit by bit|to the bit|refused|raises? an error|"
                     r"(?:is|are) an error)\b", re.IGNORECASE)
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
NO_SENTENCES = re.compile(r"^```.*?^```$|<!-- results:.*?<!-- end -->|^(?:#|\|| {4}).*?$", re.DOTALL | re.MULTILINE)
ITEM = re.compile(r" *(?:-|\d+\.) ")
MARK = re.compile(r" ?<!-- test:(.*?)-->")
BEHIND_A_SENTENCE = re.compile(r"(?:(?<=[.?!])|(?<=[.?!]\))) ")
TEST = re.compile(r"test_\w+\.py::test_\w+")


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Those of a page, and the items of its lists, each with its first line's number."""
    first, held = 1, list[str]()
    prose = NO_SENTENCES.sub(lambda found: "\n" * found[0].count("\n"), text)
    for number, line in enumerate([*prose.split("\n"), ""], 1):
        if held and (not line.strip() or ITEM.match(line)):
            yield first, "\n".join(held)
            held = []
        if line.strip():
            first = first if held else number
            held.append(line)


def sentences(paragraph: str) -> Iterator[tuple[str, list[str]]]:
    """Each with the tests that are named behind it."""
    parts = MARK.split(" ".join(paragraph.split()))
    for prose, named in zip(parts[::2], [*parts[1::2], ""], strict=True):
        *others, last = BEHIND_A_SENTENCE.split(prose.strip())
        yield from ((each, []) for each in others)
        yield last, named.strip().split(", ") if named else []


def wrong(test: str) -> str | None:
    return fault(test) if TEST.fullmatch(test) else "not test_<file>.py::test_<name>"


def faults(text: str) -> list[str]:
    found = []
    for line, paragraph in paragraphs(text):
        if re.search(r"^ *<!-- test:", paragraph, re.MULTILINE):
            found.append(f"line {line}: a mark begins a line, which ends a paragraph; put it behind a word")
        for sentence, tests in sentences(paragraph):
            if PROMISE.search(sentence) and not tests:
                found.append(f"line {line}: no test keeps this promise: {sentence}")
            found += [f"line {line}: {test}: {wrong(test)}" for test in tests if wrong(test)]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_each_promise_has_its_test(page: Path) -> None:
    assert faults(page.read_text(encoding="utf-8")) == []


KEPT = "<!-- test: test_promises.py::test_a_missing_mark_is_found -->"


@pytest.mark.parametrize(("text", "found"), [
    ("A file is whole.", []),
    (f"A file is never torn. {KEPT} It is whole.", []),
    (f"A file\nis never torn. <!-- test:\n{KEPT[11:]}", []),
    (f"A file is never torn. {KEPT[:-4]},\n{KEPT[11:]}", []),
    (f"- whole,\n- never torn {KEPT}\n- small", []),
    (f"It is whole (never torn.) {KEPT}", []),
    (f"It is whole. {KEPT}", []),
    ("# Never torn, never\n\n```\nnever\n```\n\n| never |\n\n    never\n", []),
    ("A file\nis never torn. Good.", ["line 1: no test keeps this promise: A file is never torn."]),
    ("Good.\n\nIt is. `x.py`\nis refused:\n\n- a", ["line 3: no test keeps this promise: `x.py` is refused:"]),
    (f"It raises an\nerror. It is small. {KEPT}", ["line 1: no test keeps this promise: It raises an error."]),
    (f"- never torn\n- whole {KEPT}", ["line 1: no test keeps this promise: - never torn"]),
    (f"A file, {KEPT} never torn.", ["line 1: no test keeps this promise: never torn."]),
    (f"A file is never torn.\n{KEPT}", ["line 1: a mark begins a line, which ends a paragraph; put it behind a word"]),
    ("Yes. <!-- test: test_promises.py::test_b -->", ["line 1: test_promises.py::test_b: no such name in it"]),
    ("Yes. <!-- test: test_b.py::test_b -->", ["line 1: test_b.py::test_b: no such file"]),
    ("Yes. <!-- test: test_promises.py -->", ["line 1: test_promises.py: not test_<file>.py::test_<name>"]),
])
def test_a_missing_mark_is_found(text: str, found: list[str]) -> None:
    assert faults(text) == found
