"""The files of examples/book, in that folder or in a copy of it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from .own_convs import forget
from .references import ROOT

BOOK = ROOT / "examples" / "book"


def check(folder: Path = BOOK) -> ModuleType:
    """check.py of the folder, which looks at the files beside it."""
    spec = importlib.util.spec_from_file_location("check", folder / "check.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fault(file: str, folder: Path = BOOK) -> str:
    """What is wrong with a file, in one line; "" if nothing is."""
    try:
        return str(check(folder).fault(file))
    finally:
        forget()
