"""docs/errata.md: each printed line fails as the page says, in its file of examples/book, which is right without it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from checks.book import BOOK, fault
from checks.compiler import COMPILER, REASON
from checks.references import ROOT

TEXT = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
SLIPS = re.findall(r"```diff\n(.*?)```\n\n```text\n(.*?)```", TEXT, re.DOTALL)


def as_printed(diff: str, folder: Path) -> str:
    """Put the printed lines into their files of a folder; the first file's name."""
    names, held = list[str](), list[str]()
    for section in re.split(r"^\+\+\+ ", diff, flags=re.MULTILINE)[1:]:
        name, *lines = section.splitlines()
        path, parts = folder / name, list[tuple[list[str], list[str]]]()
        for line in lines:                 # runs of -, + and unchanged lines; a new run begins at - after +
            if not parts or (line[:1] == "-" and parts[-1][1] and held[-1:] != ["-"]):
                parts.append(([], []))
            for each in ([0] if line[:1] == "-" else [1] if line[:1] == "+" else [0, 1]):
                parts[-1][each].append(line[1:])
            held.append(line[:1])
        text = path.read_text(encoding="utf-8")
        for printed, meant in parts:
            old, new = "\n".join(meant) + "\n", "\n".join(printed) + "\n"
            assert text.count(old) == 1, f"{name} has {text.count(old)} times:\n{old}"
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")
        names.append(name)
    return names[0]


def test_each_slip_says_what_happens() -> None:
    assert len(SLIPS) == TEXT.count("```diff\n") == TEXT.count("```text\n") > 25


@pytest.mark.parametrize(("diff", "said"), [pytest.param(
    *slip, id=" ".join(slip[0].split())[4:40], marks=() if "loops.py" in slip[0] else pytest.mark.slow if
    "report2009_fig7" in slip[0] else pytest.mark.deep) for slip in SLIPS])
def test_a_slip_fails_as_the_page_says(diff: str, said: str, tmp_path: Path) -> None:
    """Parts of the message that the page leaves out are `...` there."""
    if "loops.py" not in diff and COMPILER is None:
        pytest.skip(REASON)
    folder = tmp_path / "book"
    shutil.copytree(BOOK, folder)
    message = fault(as_printed(diff, folder), folder)
    assert re.search(".*".join(map(re.escape, " ".join(said.split()).split("..."))), message), message
