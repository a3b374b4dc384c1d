"""The documents: their examples run as printed, their links lead somewhere, and those with a limit keep to it."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
from checks.compiler import COMPILER, REASON
from tiers import of_files

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.cfg").exists())
DOCUMENTS = [file for pattern in ("*.md", "docs/**/*.md", "minidl/**/*.md", "course/**/*.md")
             for file in sorted(ROOT.glob(pattern))]
MAX_LINES = {"README.md": 130, "docs/architecture.md": 180}
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)")
FILE = re.compile(r"`((?:minidl|tests|zoo|benchmarks|docs)/[\w./-]+\.(?:py|cu|cuh|md))`")
EXAMPLES = {"minidl/ops/cuda/conv/product/pointwise.cu", "minidl/ops/cuda/conv/product/pointwise.py"}     # to be added


def names(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def anchor(heading: str) -> str:
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


SESSIONS = [file for file in DOCUMENTS if ">>> " in file.read_text(encoding="utf-8")
            and file.name != "your-own-kernel.md"]      # it registers an algorithm: tests/ops/test_own_conv.py runs it


@pytest.mark.parametrize("document", of_files(SESSIONS, names, deep=[
    "docs/claims.md", "docs/errata.md", "docs/memory.md", "docs/report2009.md", "docs/training.md"]))
def test_sessions_print_what_they_say(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's kernels lie beside it. Without a C++ compiler, a page is left at the first kernel that it emulates."""
    text = document.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)            # some write files
    monkeypatch.syspath_prepend(str(ROOT))
    for name, kernel in re.findall(r"```cuda\n// (\w+\.cu)\n(.*?)```", text, re.DOTALL):
        Path(name).write_text(f"// {name}\n{kernel}", encoding="utf-8")
    try:
        found = doctest.testfile(str(document), module_relative=False, encoding="utf-8",
                                 raise_on_error=COMPILER is None)
    except doctest.UnexpectedException as error:
        if "there is no C++ compiler" in str(error.exc_info[1]):
            pytest.skip(REASON)
        raise error.exc_info[1] from None
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize("document", DOCUMENTS, ids=names)
def test_links_lead_somewhere(document: Path) -> None:
    broken = []
    for target, place in LINK.findall(document.read_text(encoding="utf-8")):
        file = (document.parent / target).resolve() if target else document
        if not file.exists():
            broken.append(target)
        elif place:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            broken += [] if place[1:] in map(anchor, headings) else [target + place]
    assert broken == []


@pytest.mark.parametrize("document", [file for file in DOCUMENTS if "notebook" not in file.parts
                                      and file.name != "CHANGELOG.md"], ids=names)
def test_files_that_are_named_are_there(document: Path) -> None:
    named = set(FILE.findall(document.read_text(encoding="utf-8"))) - EXAMPLES
    assert {file for file in named if not (ROOT / file).exists()} == set()


@pytest.mark.parametrize("document", MAX_LINES)
def test_documents_that_are_to_be_short_are(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES[document]
    if document == "README.md":
        (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        assert len(example.splitlines()) <= 13
