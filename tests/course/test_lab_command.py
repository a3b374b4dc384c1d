"""`minidl lab`: the list, start and check, in a checkout and in a folder that start has made; the course's pages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from checks.compiler import COMPILER, REASON

from minidl.tools import cli

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.cfg").exists())
COURSE = ROOT / "course"
LABS = sorted(folder.name for folder in COURSE.glob("[0-9][0-9]-*"))

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")


@pytest.fixture(autouse=True)
def visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process stays open to debuggers, and forgets the labkit of another folder."""
    monkeypatch.syspath_prepend(str(COURSE))
    monkeypatch.setattr("labkit.commands.hide", lambda: None)
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_the_list_has_each_lab_and_its_gaps(monkeypatch: pytest.MonkeyPatch,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    assert cli.main(["lab"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(LABS) + 1
    assert re.fullmatch(r"Lab 1: automatic differentiation of scalars +lab\.py: 5 gaps to fill", lines[0])
    assert lines[-1] == "minidl lab start N copies a lab, minidl lab check N checks it"


def test_start_copies_a_lab_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                 capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    assert cli.main(["lab", "start", "1", str(tmp_path)]) == 0
    assert "fill the gaps of lab.py, then: minidl lab check 1, in " in capsys.readouterr().out
    assert sorted(file.name for file in tmp_path.iterdir()) == ["01-autograd", "labkit"]
    assert sorted(file.name for file in (tmp_path / "01-autograd").iterdir()) == ["README.md", "check.py", "drive.py",
                                                                                 "lab.py"]
    assert cli.main(["lab", "start", "1", str(tmp_path)]) == 2
    assert "is there already, and nothing is overwritten; name another folder" in capsys.readouterr().err
    assert cli.main(["lab", "start", "2", str(tmp_path)]) == 0


@pytest.mark.parametrize("number", range(1, 11))
def test_links_of_a_started_page_lead_somewhere(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also outside of the checkout, as long as that is there."""
    monkeypatch.chdir(ROOT)
    assert cli.main(["lab", "start", str(number), str(tmp_path / "far" / "away")]) == 0
    (page,) = (tmp_path / "far" / "away").glob("*/README.md")
    links = re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
    assert [each for each in links if "://" not in each and not (page.parent / each).exists()] == []


@pytest.mark.parametrize(("argv", "message"), [
    (["check", "77"], "lab: there is no lab 77 in "), (["check", "1", "nowhere.py"], "nowhere.py is not a file; name"),
    (["grade", "1", "nowhere"], "grade: nowhere is not a folder; name one with the files of a class"),
    (["grade", "1", "tests/course/wrong"], "tests/course/wrong has neither .py files nor folders with one")])
def test_an_error_is_a_line(argv: list[str], message: str, monkeypatch: pytest.MonkeyPatch,
                            capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    assert cli.main(["lab", *argv]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_where_there_are_no_labs_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["lab", "check", "1"]) == 2
    assert "there are no labs here; run this in a checkout of minidl, or in a folder that" in capsys.readouterr().err


@pytest.mark.slow
def test_a_started_lab_is_checked_where_it_is(tmp_path: Path) -> None:
    """With what start has copied; before the gaps are filled and after."""
    for name in ("labkit", "01-autograd"):
        shutil.copytree(COURSE / name, tmp_path / name)

    def checked() -> tuple[int, str, str]:
        done = subprocess.run([sys.executable, "-m", "minidl", "lab", "check", "1"], cwd=tmp_path / "01-autograd",
                              env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
                              check=False)
        return done.returncode, done.stdout, done.stderr

    status, out, err = checked()
    assert (status, "    0 of  15  a product and its gradient\n" in out) == (1, True)
    assert re.fullmatch(r"minidl lab check: lab\.py:\d+: not done yet: add to self\.grad and .*\n", err)
    solved = (COURSE / "solutions" / "01-autograd" / "lab.py").read_text(encoding="utf-8")
    (tmp_path / "01-autograd" / "lab.py").write_text(f"{solved}\nprint('imported')\n", encoding="utf-8")
    status, out, err = checked()
    assert (status, err) == (0, "")
    assert out.startswith("| imported\nLab 1: automatic differentiation of scalars: ")
    assert "  100 of 100  in " in out


# ---------------------------------------------------------------- pages
def test_the_page_has_a_row_for_each_lab() -> None:
    page = (COURSE / "README.md").read_text(encoding="utf-8")
    titles = [(COURSE / lab / "README.md").read_text(encoding="utf-8").partition("\n")[0] for lab in LABS]
    rows = re.findall(r"^\| \[(\d+)\. (.+)\]\((.+)/README\.md\) \|", page, re.MULTILINE)
    assert [(f"# Lab {number}: {title}".lower(), lab) for number, title, lab in rows] == [
        (title.lower(), lab) for title, lab in zip(titles, LABS)]


def test_the_page_judges_each_task_of_the_other_courses() -> None:
    page = (COURSE / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d|hw\d|extra)\.\S+ .*? \| [●◐○] \| .*\|$", page, re.MULTILINE)
    assert Counter(rows) == {"0": 5, "1": 5, "2": 5, "3": 5, "4": 6,
                             "hw0": 6, "hw1": 6, "hw2": 5, "hw3": 9, "hw4": 7, "extra": 4}


ADD = """\
__global__ void add(const float* x, const float* y, float* z, int n) {
    const int i = INDEX;
    if (i < n) {
        z[i] = x[i] + y[i];
    }
}
"""


@pytest.mark.deep
@pytest.mark.skipif(COMPILER is None, reason=REASON)
@pytest.mark.parametrize(("index", "points", "sentence"), [
    ("blockIdx.x * blockDim.x + threadIdx.x", 100, ""),
    ("threadIdx.x * gridDim.x + blockIdx.x", 60, "lab.cu:4: its loads touch 32 sectors per request but may have 4; let "
     "neighbouring threads read neighbouring elements"),
    ("threadIdx.x", 0, "lab.cu:4: thread (")])
def test_the_example_for_teachers_is_a_lab(index: str, points: int, sentence: str, tmp_path: Path) -> None:
    from labkit.commands import judged

    page = (COURSE / "teachers.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "check.py").write_text(example, encoding="utf-8")
    (tmp_path / "lab.cu").write_text(ADD.replace("INDEX", index), encoding="utf-8")
    result = judged(tmp_path, tmp_path / "lab.cu", 0, 60)
    assert result["points"] == points
    sentences = [row["wrong"] for row in result["steps"]]
    assert any(each.startswith(sentence) for each in sentences), sentences
