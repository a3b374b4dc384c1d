"""The notebooks: their cells run in order, show what they promise, and hold no outputs in the repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checks.compiler import needs_compiler

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.cfg").exists())
RUNNER = ROOT / "tests" / "checks" / "notebook.py"
# What a notebook prints and shows, in this order, with other things in between.
SHOWS = {
    "first_net": ["Dataset(", "text/html", "image/png", "epoch  5/5", *3 * ["image/png"], " of 500 are wrong"],
    "your_kernel": [
        "['add.cu:5: thread (2, 0, 0) of block (2, 0, 0) reads x[10] of 10 elements", "([], array(", "a race",
        "([], array([2016.]", "step 1: 4 sectors\nstep 8: 32 sectors\n", "{'y': Seen(compared=10, refused=0",
        "plain y ", "an error is", "plain: 271,296 sectors\ntiled: "],
    "compiled_step": [
        "loss 2.", "program of 18 calls", "program of 11 calls", "18 calls recorded, 11 replayed", "plain ",
        ", compiled ", "careful reads a Tensor's values at compiled_step.ipynb, cell-13:4"],
}


def test_all_are_known() -> None:
    assert {file.stem for file in (ROOT / "notebooks").glob("*.ipynb")} == set(SHOWS)


@pytest.mark.parametrize("name", SHOWS)
def test_a_notebook_has_no_outputs_and_is_as_jupyter_writes_it(name: str) -> None:
    """So that a change of its text is a change of those lines alone. To clear it: Edit, Clear Outputs of All Cells."""
    text = (ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
    book = json.loads(text)
    assert text == json.dumps(book, indent=1, ensure_ascii=False) + "\n"
    assert (book["nbformat"], sorted(book["metadata"])) == (4, ["kernelspec", "language_info"])
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    for cell in book["cells"]:
        assert cell["metadata"] == {}
        assert (cell.get("outputs"), cell.get("execution_count")) == ([] if cell["cell_type"] == "code" else None, None)
    assert book["cells"][0]["cell_type"] == "markdown"
    assert "In Google Colab: " in "".join(book["cells"][0]["source"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_compiler if name == "your_kernel" else ())
                                  for name in SHOWS])
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    """In a process of its own, as each has a kernel of its own."""
    if name == "first_net":
        pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    done = subprocess.run([sys.executable, str(RUNNER), str(ROOT / "notebooks" / f"{name}.ipynb")], cwd=tmp_path,
                          capture_output=True, text=True, timeout=300, check=False,
                          env={**os.environ, "MPLBACKEND": "Agg", "MINIDL_OFFLINE": "1", "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert re.search(".*".join(map(re.escape, SHOWS[name])), done.stdout, re.DOTALL), done.stdout
