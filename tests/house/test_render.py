"""benchmarks/render.py: every figure of the documents comes from a results file, or is found."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from minidl.lab.own import taken

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.cfg").exists())
sys.path.insert(0, str(ROOT / "benchmarks"))
import render  # noqa: E402  # the folder first
import results  # noqa: E402


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small one, with copies of the results: a README of one block, and documents."""
    shutil.copytree(results.FOLDER, tmp_path / "results")
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    (tmp_path / "docs" / "notebook").mkdir(parents=True)
    (tmp_path / "docs" / "notebook" / "2026.md").write_text("It took 5 ms.\n")
    for name in (render.LADDER, render.BOOK):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("# Ladder\n")
    (tmp_path / "README.md").write_text("# minidl\n\n<!-- results: headline -->\n<!-- end -->\n\nFast.\n")
    (tmp_path / "docs" / "page.md").write_text(
        "The report took <!-- results: source report y time --><!-- end --> for it, and a line is long enough.\n")
    render.write(tmp_path)
    assert render.check(tmp_path) == []
    return tmp_path


def changed(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1
    file.write_text(text.replace(old, new), encoding="utf-8")


# ---------------------------------------------------------------- blocks
def test_blocks_are_paragraphs_or_words(house: Path) -> None:
    assert (house / "README.md").read_text().startswith(
        "# minidl\n\n<!-- results: headline -->\n| model | precision | minidl | PyTorch |")
    assert "took <!-- results: source report y time -->13.18 ms<!-- end --> for it" in (
        house / "docs" / "page.md").read_text()


def test_writing_twice_changes_nothing(house: Path) -> None:
    before = (house / "README.md").read_text()
    render.write(house)
    assert (house / "README.md").read_text() == before


def lenet5(house: Path) -> str:
    """The time of its step in the README's table, in us."""
    return next(line for line in (house / "README.md").read_text().splitlines() if "`lenet5` | fp32" in line
                ).split("|")[3].split()[0]


def test_a_changed_figure_is_found(house: Path) -> None:
    changed(house / "README.md", f"{lenet5(house)} us", "33.57 us")
    assert render.check(house) == ["README.md:3: block 'headline' is not what benchmarks/results gives; run python "
                                   "benchmarks/render.py"]
    render.write(house)
    assert render.check(house) == []


def test_a_stale_block_is_found(house: Path) -> None:
    file, before = house / "results" / "step_cuda_lenet5.json", float(lenet5(house))
    result = json.loads(file.read_text())
    next(row for row in result["rows"] if row["peer"] == "minidl-compiled")["median_s"] /= 2
    results.save(result, file)
    assert [line.split(";")[0] for line in render.check(house)] == [
        "README.md:3: block 'headline' is not what benchmarks/results gives"]
    render.write(house)
    assert float(lenet5(house)) == pytest.approx(before / 2, abs=0.01)


@pytest.mark.parametrize(("name", "file"), [
    ("tile widths", "tiles"), ("report 2009", "report2009"), ("report 2009 mlp", "accuracy_cuda_mlp"),
    ("profile cuda", "profile_cuda")])
def test_how_to_measure_what_nobody_did(house: Path, name: str, file: str) -> None:
    (house / "results" / f"{file}.json").unlink(missing_ok=True)
    first, _, command, _ = render.BLOCKS[name]()
    assert first == "Nobody has measured it yet. On a GPU this does:"
    assert command.startswith("    python benchmarks/")
    assert command.endswith(f" --json benchmarks/results/{file}.json")


# ---------------------------------------------------------------- figures
@pytest.mark.parametrize("figure", [
    "5 us", "5us", "0.44 ms", "36.0 s", "20 seconds", "3 minutes", "1,234.5 images/s", "12 TFLOP/s", "4.8 TB/s",
    "76,500 cycles", "99.2 %", "40%", "3 percent", "2.5 x", "64x", "125 times", "8-fold", "1e-3 s"])
def test_an_untraced_figure_is_found(house: Path, figure: str) -> None:
    changed(house / "README.md", "Fast.", f"Fast:\n\n    it takes {figure}, or less")
    (line,) = render.check(house)
    where, found, rest = line.partition(f": {figure!r}")
    assert (where, found) == (f"README.md:{line.split(':')[1]}", f": {figure!r}")
    assert rest.startswith(" comes from no results file; take it from a block")
    assert (house / "README.md").read_text().splitlines()[int(line.split(":")[1]) - 1].strip().startswith("it takes")


@pytest.mark.parametrize("text", [
    "fp32 and 3xtf32", "128x3x39x39", "3 x 3 filters", "256 KB of shared memory", "batch 128, 5 seeds", "three times",
    "LeNet-5 step", "sm_90", "2.4.6 starts", "conv2d times", "Python 3.12", "`--seed 1`", "12 symbols"])
def test_what_is_no_figure(house: Path, text: str) -> None:
    changed(house / "README.md", "Fast.", text)
    assert render.check(house) == []


def test_a_figure_whose_unit_is_the_columns(house: Path) -> None:
    changed(house / "README.md", "Fast.",
            "| net | step us | batch | speed |\n|---|---:|---:|---:|\n| lenet5 | 44 | 128 | - |\n| mlp | - | 64 | 1.2 |"
            "\n\n| net | batch |\n|---|---|\n| mlp | 64 |")
    assert [line.partition(" comes")[0].split(": ")[1] for line in render.check(house)] == ["'44'", "'1.2'"]


def test_the_notebook_is_history(house: Path) -> None:
    assert "5 ms" in (house / "docs" / "notebook" / "2026.md").read_text()
    assert render.check(house) == []


# ---------------------------------------------------------------- the real documents
def test_blocks_of_the_documents_are_up_to_date() -> None:
    stale = [line for path in render.documents(ROOT)
             for line in render.stale(path.relative_to(ROOT), path.read_text(encoding="utf-8"))]
    assert stale == []


@pytest.mark.parametrize("document", ["docs/benchmarks.md", "docs/convolutions.md", render.LADDER])
def test_a_document_has_no_figure_of_its_own(document: str) -> None:
    assert list(render.untraced(Path(document), (ROOT / document).read_text(encoding="utf-8"))) == []


def test_all_algorithms_are_measured() -> None:
    measured = {row["algorithm"] for row in results.load("conv_cuda")["rows"]} - {"cudnn"}
    assert measured == taken() - {"auto"}
    assert len(measured) == 18
    assert "\nAll eighteen algorithms on seven shapes" in (ROOT / "docs" / "benchmarks.md").read_text()


def test_every_results_file_is_read_by_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[str] = set()
    load = results.load

    def noted(name: str) -> results.Result:
        read.add(name)
        return load(name)
    monkeypatch.setattr(results, "load", noted)
    monkeypatch.setattr(render, "load", noted)
    for name in render.BLOCKS:
        render.rendered(name, "\n")
    assert read == {path.stem for path in results.FOLDER.glob("*.json")}


def test_the_script_says_what_is_wrong_and_fails(monkeypatch: pytest.MonkeyPatch, house: Path,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(render, "ROOT", house)
    with pytest.raises(SystemExit) as ended:
        render.main(["--check"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == ("every figure comes from a results file, and every block is what its files "
                                       "give\n")
    changed(house / "README.md", "Fast.", "It takes 5 us.")
    with pytest.raises(SystemExit) as ended:
        render.main(["--check"])
    assert ended.value.code == 1
    assert capsys.readouterr().out.startswith("README.md:")
    render.main([])                                            # writes blocks and nothing else
    assert "It takes 5 us." in (house / "README.md").read_text()
