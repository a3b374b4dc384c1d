"""What documents refer to: `file`, `file::name`, or of a test `test_file.py::test_name`, wherever its folder is."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.cfg").exists())


@functools.cache
def names(file: Path) -> set[str]:
    """What a Python file defines, methods as Class.method; what a CUDA file defines or calls."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        return set(re.findall(r"\b(\w+)\(", re.sub(r"//[^\n]*", "", text)))
    found = set()
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


@functools.cache
def fault(reference: str) -> str | None:
    """What is wrong with a reference, or None."""
    place, _, name = reference.partition("::")
    files = list((ROOT / "tests").rglob(place)) if place.startswith("test_") else [ROOT / place]
    if len(files) != 1 or not files[0].is_file():
        return "no such file" if len(files) < 2 else "several files of that name"
    return None if not name or name in names(files[0]) else "no such name in it"
