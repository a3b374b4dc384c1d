"""The site: it builds without a warning, links lead somewhere, nothing is fetched, and the reference has every name."""

from __future__ import annotations

import ast
import doctest
import html
import importlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import minidl
from minidl import ops

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.cfg").exists())
SHOWN = set(re.findall(r"^::: (\S+)$", "".join(page.read_text(encoding="utf-8") for page in
                                               (ROOT / "docs" / "api").glob("*.md")), re.MULTILINE))
ROOMS = {name for name, value in vars(minidl).items() if isinstance(value, ModuleType) and name in minidl.__all__}


def is_shown(value: object) -> bool:
    """By its own entry, or with its module."""
    module, name = value.__module__, value.__qualname__  # type: ignore[attr-defined]
    return module in SHOWN or f"{module}.{name}" in SHOWN


def is_exported(value: object) -> bool:
    """By a package of which all public names are shown."""
    names = sorted({*ROOMS, "compiler", "plot", "training", "weights"})
    rooms = [room for room in (getattr(minidl, name) for name in names)
             if room.__name__ in SHOWN and hasattr(room, "__all__")]
    return any(getattr(room, name) is value for room in rooms for name in room.__all__)


@pytest.mark.parametrize("name", [name for name in minidl.__all__ if name not in {*ROOMS, "__version__"}])
def test_the_reference_has_every_name_of_minidl(name: str) -> None:
    value = getattr(minidl, name)
    assert is_shown(value) or is_exported(value)


@pytest.mark.parametrize("room", sorted({*ROOMS, "compiler", "plot", "training", "weights"} - {"ops"}))
def test_the_reference_has_every_room(room: str) -> None:
    assert getattr(minidl, room).__name__ in SHOWN


def test_the_reference_has_every_op() -> None:
    functions = {name: value for name, value in vars(ops).items() if inspect.isfunction(value) and name[0] != "_"}
    assert {name for name, value in functions.items() if not is_shown(value)} == set()


@pytest.mark.parametrize("file", ["docs/api/reference.py", "docs/site.py"])
def test_what_the_site_does_with_text(file: str) -> None:
    pytest.importorskip("griffe", reason="the site's tools are not installed: pip install -e '.[docs]'")
    spec = importlib.util.spec_from_file_location("of_the_site", ROOT / file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    done = doctest.testmod(module)
    assert done.attempted > 0
    assert done.failed == 0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from links into the repository: each is there, by its own name."""
    if not (ROOT / "mkdocs.yml").exists() or importlib.util.find_spec("material") is None:
        pytest.skip("the site's tools are not installed: pip install -e '.[docs]'")
    for link in (ROOT / "pages").iterdir():
        assert link.resolve() == ROOT / link.name
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
                          cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_and_fetches_nothing(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|link)[^>]* (?:src|href)="?([^" >]+)', text)
        linked = re.findall(r'<a [^>]*href="?([^" >]+)', text)
        assert [url for url in loaded if "://" in url or url.startswith("//")] == [], page
        if page.name != "404.html":                        # whose links are from the root of a server
            local = {url.partition("#")[0] for url in loaded + linked if "://" not in url}
            assert {url for url in local if url and not (page.parent / url).exists()} == set(), page


@pytest.mark.slow
def test_a_session_is_copied_as_a_program(site: Path) -> None:
    """Material's button copies the attribute data-copy of a block."""
    (material,) = site.glob("assets/javascripts/bundle.*.js")
    assert "data-copy" in material.read_text(encoding="utf-8")
    count = 0
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        copied = re.findall(r'<div class="language-pycon [^"]*" data-copy="([^"]*)">', text)
        assert len(copied) == text.count("language-pycon"), page
        for block in map(html.unescape, copied):
            ast.parse(block)
            assert ">>> " not in block
            assert block.strip()
        assert "# doctest:" not in text, page
        assert not re.search(r'language-python highlight"><pre><span></span><code>[^>]*>&gt;&gt;&gt;', text), page
        count += len(copied)
    assert count > 200


@pytest.mark.slow
def test_search_ranks_the_notebook_last(site: Path) -> None:
    """Material multiplies a page's score by its boost."""
    entries = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))["docs"]
    boosts = {entry["location"]: entry.get("boost", 1) for entry in entries}
    notebook = {place: boost for place, boost in boosts.items() if place.startswith("docs/notebook/")}
    assert len(notebook) > 100
    assert set(notebook.values()) == {1e-4}
    assert {boost for place, boost in boosts.items() if place not in notebook} == {1}
