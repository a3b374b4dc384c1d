"""The site: the reference has every public name, links of `pages` lead into the repository, and nothing is fetched.

That it builds without a warning is for `mkdocs build --strict` to say, which .ci/run calls.
"""

from __future__ import annotations

import importlib
import inspect
import re
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
    rooms = [room for room in map(importlib.import_module, sorted(SHOWN & {f"minidl.{name}" for name in
             (*ROOMS, "compiler", "plot", "training", "weights")})) if hasattr(room, "__all__")]
    return any(getattr(room, name) is value for room in rooms for name in room.__all__)


@pytest.mark.parametrize("name", [name for name in minidl.__all__ if name not in {*ROOMS, "__version__"}])
def test_the_reference_has_every_name_of_minidl(name: str) -> None:
    value = getattr(minidl, name)
    assert is_shown(value) or is_exported(value)


@pytest.mark.parametrize("room", sorted({*ROOMS, "compiler", "plot", "training", "weights"} - {"ops"}))
def test_the_reference_has_every_room(room: str) -> None:
    assert f"minidl.{room}" in SHOWN


def test_the_reference_has_every_op() -> None:
    functions = {name: value for name, value in vars(ops).items() if inspect.isfunction(value) and name[0] != "_"}
    assert {name for name, value in functions.items() if not is_shown(value)} == set()


def test_the_site_is_made_of_the_repository_and_fetches_nothing() -> None:
    if not (ROOT / "pages").exists():
        pytest.skip("a copy without the site")
    for link in (ROOT / "pages").iterdir():
        assert link.is_symlink()
        assert link.resolve() == ROOT / link.name
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert re.search(r"^  font: false\b", settings, re.MULTILINE)
    assert "http" not in settings
