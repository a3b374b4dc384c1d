"""What the tests of the commands share."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, with an empty cache and no network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MINIDL_OFFLINE", "1")
    monkeypatch.delenv("MINIDL_DATA", raising=False)


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """without(*names): as if packages were not installed."""
    found = importlib.util.find_spec

    def hide(*names: str) -> None:
        monkeypatch.setattr(importlib.util, "find_spec",
                            lambda name, *rest: None if name in names else found(name, *rest))
        for name in names:
            monkeypatch.setitem(sys.modules, name, None)   # an import of it is a ModuleNotFoundError
    return hide
