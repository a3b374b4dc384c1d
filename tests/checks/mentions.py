"""The words that a test mentions: its own, and those of what it uses in tests/, helpers, fixtures and tables.

Of a table of minidl that a test goes through, a name in capitals such as ALGORITHMS, the words of its rows count too.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from .references import ROOT

TESTS = ROOT / "tests"
WORD = re.compile(r"\w+")


@functools.cache
def definitions(file: Path) -> dict[str, ast.stmt]:
    """What a file defines at its top, by name."""
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id: node for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: node for alias in node.names}
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
            for name, node in definitions(file).items():
                if name.isupper() and isinstance(node, (ast.Assign, ast.AnnAssign)):
                    found.setdefault(name, []).append(node)
    return found


def words(node: ast.stmt) -> Iterator[str]:
    """Identifiers, attributes, parameters, and the words of texts."""
    for each in ast.walk(node):
        if isinstance(each, ast.Constant):
            yield from WORD.findall(str(each.value))
        for field in ("id", "attr", "arg", "name"):
            if isinstance(name := getattr(each, field, None), str):
                yield name


@functools.cache
def mentioned(reference: str) -> frozenset[str]:
    """By a test `test_file.py::test_name`."""
    place, _, name = reference.partition("::")
    (file,) = TESTS.rglob(place)
    seen, left, found = set(), [(file, name)], set[str]()
    while left:
        file, name = left.pop()
        node = definitions(file).get(name) or (definitions(TESTS / "conftest.py").get(name))
        if node is None or (file, name) in seen:
            found |= {word for table in tables().get(name, []) if (file, name) not in seen for word in words(table)}
            seen.add((file, name))
            continue
        seen.add((file, name))
        if isinstance(node, ast.ImportFrom):
            source = module(file, node)
            original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
            if source:
                left.append((source, original))
            else:
                found.add(original)
                found |= {word for table in tables().get(original, []) for word in words(table)}
            continue
        inside = set(words(node))
        found |= inside
        left += [(file, word) for word in inside if word.isidentifier()]
    return frozenset(found)
