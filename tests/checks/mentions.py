"""The words that a test mentions: its own, and those of what it uses in tests/, helpers, fixtures and tables.

Of a table of minidl that a test goes through, a name in capitals such as ALGORITHMS, the words of its rows count too.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from .references import ROOT

TESTS = ROOT / "tests"
WORD = re.compile(r"\w+")


@functools.cache
def definitions(file: Path) -> dict[str, list[ast.stmt]]:
    """What a file defines at its top, by name; a loop there belongs to the tables that it fills."""
    found: dict[str, list[ast.stmt]] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        names: set[str] = set()
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names = {node.name}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            names = {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.For):
            names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and name.id in found}
        for name in names:
            found.setdefault(name, []).append(node)
    return found


def module(file: Path, node: ast.ImportFrom) -> Path | None:
    """The file of tests/ from which a name is imported, or None."""
    name = (node.module or "").replace(".", "/")
    places = [file.parent / f"{name}.py"] if node.level else [TESTS / f"{name}.py", TESTS / name / "__init__.py"]
    return next((place for place in places if place.is_file()), None)


@functools.cache
def tables() -> dict[str, list[ast.stmt]]:
    """Names in capitals -> the assignments of that name in minidl."""
    found: dict[str, list[ast.stmt]] = {}
    for folder in ("minidl", "zoo"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for name, nodes in definitions(file).items():
                if name.isupper() and not isinstance(nodes[0], ast.ImportFrom):
                    found.setdefault(name, []).extend(nodes)
    return found


def words(node: ast.stmt) -> set[str]:
    """Identifiers, attributes, parameters, numbers, and the words of texts."""
    found = set[str]()
    for each in ast.walk(node):
        if isinstance(each, ast.Constant):
            found |= set(WORD.findall(str(each.value)))
        found |= {name for field in ("id", "attr", "arg", "name")
                  if isinstance(name := getattr(each, field, None), str)}
    return found


def used(node: ast.stmt) -> set[str]:
    """What may be defined elsewhere: names, parameters, which may be fixtures, and attributes in capitals."""
    return {each.id if isinstance(each, ast.Name) else each.arg if isinstance(each, ast.arg) else each.attr
            for each in ast.walk(node) if isinstance(each, (ast.Name, ast.arg))
            or (isinstance(each, ast.Attribute) and each.attr.isupper())}


@functools.cache
def mentioned(reference: str) -> frozenset[str]:
    """By a test `test_file.py::test_name`."""
    place, _, test = reference.partition("::")
    (path,) = TESTS.rglob(place)
    seen, left, found = set[tuple[Path, str]](), [(path, test)], set[str]()
    while left:
        file, name = left.pop()
        if (file, name) in seen:
            continue
        seen.add((file, name))
        here = definitions(file).get(name) or definitions(TESTS / "conftest.py").get(name, [])
        if here and isinstance(imported := here[0], ast.ImportFrom):
            name = next(alias.name for alias in imported.names if (alias.asname or alias.name) == name)
            if source := module(file, imported):
                left.append((source, name))
                continue
            here = []
        for node in here or tables().get(name, []):
            found |= words(node)
        left += [(file, each) for node in here for each in used(node)]
    return frozenset(found)
