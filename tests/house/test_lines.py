"""minidl/ does not grow in silence: CHANGELOG.md states its lines of code, and what those that came bought. Nor do
its functions: few are longer than a page.

Lines of code are those that are neither blank nor a comment nor a docstring. A function's length counts all, from `def`
to its last line.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.cfg").exists())
STATED = re.compile(r"`minidl/` has ([\d,]+) lines of code")
MAX_LENGTH, MAX_LONGER = 50, 3             # lines of a function, and how many functions have more
SLACK = 300                                # of what is stated, at most, is not there any more
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def lines_of_python(text: str) -> int:
    code = {line for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in NO_CODE
            for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            code -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(code)


def lines_of_c(text: str) -> int:
    return sum(line.strip() != "" and not line.strip().startswith("//") for line in text.splitlines())


def lines_of(folder: Path) -> int:
    count = {".py": lines_of_python} | dict.fromkeys((".cu", ".cuh", ".cpp", ".h"), lines_of_c)
    return sum(count[file.suffix](file.read_text(encoding="utf-8")) for file in folder.rglob("*")
               if file.suffix in count)


@pytest.mark.parametrize(("text", "lines"), [
    ("", 0), ('"""Of a\n\nmodule."""\n\n# a comment\nx = 1  # behind code\n', 1), ("x = [\n    1,\n\n    2,\n]\n", 4),
    ('def f():\n    """Of f.\n\n    More."""\n    return """two\nlines"""\n', 3), ("class A:\n    '''Empty.'''\n", 1)])
def test_what_a_line_of_code_is(text: str, lines: int) -> None:
    assert lines_of_python(text) == lines
    assert lines_of_c("// a comment\n\nint a;  // b\n") == 1


@pytest.mark.slow                          # parses 330 files
def test_few_functions_are_long() -> None:
    lengths = {f"{file.relative_to(ROOT)}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
               for file in (ROOT / "minidl").rglob("*.py") for node in ast.walk(ast.parse(file.read_text("utf-8")))
               if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    longer = [f"{where} ({length})" for where, length in lengths.items() if length > MAX_LENGTH]
    assert len(longer) <= MAX_LONGER, (
        f"{len(longer)} functions of minidl/ have more than {MAX_LENGTH} lines but at most {MAX_LONGER} may; cut one "
        f"where a part has a name of its own: {', '.join(longer)}")


@pytest.mark.slow                          # tokens of 320 files
def test_the_changelog_states_the_lines_of_code() -> None:
    unreleased = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]
    stated, lines = STATED.search(unreleased), lines_of(ROOT / "minidl")
    assert stated, "CHANGELOG.md: the first section does not say how many lines of code minidl/ has"
    there = int(stated[1].replace(",", ""))
    assert there - SLACK <= lines <= there, (
        f"minidl/ has {lines:,} lines of code but CHANGELOG.md says {there:,}; correct it, and say what they bought")
