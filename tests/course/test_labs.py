"""Each lab of the course: its starting file fails with a sentence, its solution passes, and each wrong solution gets
the sentence that names its fault.

A wrong solution is a .diff of the solution in wrong/<lab>/. Its first line is what the sentence must hold, with file
and line (RE stands for anything). Of the others, those that begin with - stand in the solution once, and those with +
behind them take their place.
"""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from checks.compiler import COMPILER, REASON

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.cfg").exists())
COURSE, WRONG = ROOT / "course", Path(__file__).parent / "wrong"
LABS = sorted(folder.name for folder in COURSE.glob("[0-9][0-9]-*"))
DIFFS = [f"{diff.parent.name}/{diff.stem}" for diff in sorted(WRONG.rglob("*.diff"))]

sys.path.insert(0, str(COURSE))
from labkit.commands import judged, student_file  # noqa: E402
from labkit.judge import steps_of  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")


def changed(files: dict[str, str], diff: str) -> dict[str, str]:
    """A solution's files with a diff's lines, each of which one of them has."""
    lines = [line for line in diff.splitlines()[1:] if line[:1] in ("-", "+")]
    hunks: list[tuple[list[str], list[str]]] = []
    for sign, group in itertools.groupby(lines, key=lambda line: line[0]):
        if sign == "-":
            hunks.append(([line[1:] for line in group], []))
        else:
            hunks[-1][1].extend(line[1:] for line in group)
    for old, new in hunks:
        whole = "\n".join(old) + "\n"
        counts = {name: text.count(whole) for name, text in files.items()}
        assert sum(counts.values()) == 1, f"{counts} times in the solution: {whole}"
        files = {name: text.replace(whole, "".join(f"{line}\n" for line in new)) for name, text in files.items()}
    return files


def judge(lab: str, file: Path) -> dict[str, Any]:
    if (COURSE / lab / "lab.cu").is_file() and COMPILER is None:
        pytest.skip(REASON)
    return judged(COURSE / lab, file, 0, 60)


def solution(lab: str) -> Path:
    return COURSE / "solutions" / lab / student_file(COURSE / lab).name


@pytest.mark.deep
@pytest.mark.parametrize("lab", LABS)
def test_a_starting_file_says_what_to_do(lab: str) -> None:
    result = judge(lab, student_file(COURSE / lab))
    assert not result["passed"]
    first = next(row["wrong"] for row in result["steps"] if row["wrong"])
    assert re.match(r"lab\.(py|cu):\d+: .*(not done yet)", first), first


@pytest.mark.deep
@pytest.mark.parametrize("lab", LABS)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_solution_passes(lab: str, seed: int) -> None:
    if (COURSE / lab / "lab.cu").is_file() and COMPILER is None:
        pytest.skip(REASON)
    result = judged(COURSE / lab, solution(lab), seed, 60)
    assert [row["wrong"] for row in result["steps"] if row["wrong"]] == []
    assert result["passed"]
    assert result["points"] == result["of"] == 100


@pytest.mark.deep
@pytest.mark.parametrize("name", DIFFS)
def test_a_wrong_solution_gets_the_sentence_of_its_fault(name: str, tmp_path: Path) -> None:
    lab = name.partition("/")[0]
    diff = (WRONG / f"{name}.diff").read_text(encoding="utf-8")
    right = {each.name: each.read_text(encoding="utf-8") for each in solution(lab).parent.glob("lab.*")}
    for each, text in changed(right, diff).items():
        (tmp_path / each).write_text(text, encoding="utf-8")
    file = tmp_path / solution(lab).name
    expected = ".*".join(map(re.escape, diff.partition("\n")[0].split("RE")))
    sentences = [row["wrong"] for row in judge(lab, file)["steps"] if row["wrong"]]
    assert any(re.search(expected, each) for each in sentences), "\n".join([diff.partition("\n")[0], *sentences])


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    """Labs 8 and 10 have two files."""
    (tmp_path / "lab.py").write_text(solution("08-unrolling").read_text(encoding="utf-8"), encoding="utf-8")
    result = judged(COURSE / "08-unrolling", tmp_path / "lab.py", 0, 60)
    wrong = {row["wrong"] for row in result["steps"]}
    assert wrong == {"there is no lab.cu; hand in all files of the lab, in one folder"}


@pytest.mark.parametrize("lab", LABS)
def test_a_lab_is_complete(lab: str) -> None:
    """Its page has the steps with their points, in all 100; its starting file has gaps; there are wrong solutions."""
    page = (COURSE / lab / "README.md").read_text(encoding="utf-8")
    steps = steps_of(COURSE / lab)
    assert re.findall(r"^\| (.+) \| (\d+) \|$", page, re.MULTILINE) == [(each.name, str(each.points)) for each in steps]
    assert sum(each.points for each in steps) == 100
    assert page.startswith(f"# Lab {int(lab[:2])}: ")
    assert f"minidl lab check {int(lab[:2])}\n" in page
    assert all("TODO" in file.read_text(encoding="utf-8") for file in (COURSE / lab).glob("lab.*"))
    assert not any("TODO" in file.read_text(encoding="utf-8") for file in solution(lab).parent.glob("lab.*"))
    assert sum(name.startswith(f"{lab}/") for name in DIFFS) >= 5
