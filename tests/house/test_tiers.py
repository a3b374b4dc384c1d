"""The tiers of the tests: what each command leaves out, and the guard over the fast one (tests/conftest.py)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import tiers

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.cfg").exists())
TESTS = '''
import time

import pytest
from tiers import tiered


def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@pytest.mark.parametrize("value", tiered(range(40), fast=2, slow=5))
def test_values(value):
    pass


@pytest.mark.gpu
@pytest.mark.slow
def test_gpu():
    pass


def test_sleeps():
    time.sleep(0.3)


def test_works():
    work(0.3)


@pytest.mark.slow
def test_works_slowly():
    work(0.3)
'''


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with these tests, and with conftest.py and settings as here. Plugins of packages would be imported anew
    for each run."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    settings = (ROOT / "setup.cfg").read_text(encoding="utf-8").replace("testpaths = tests minidl", "")
    (pytester.path / "setup.cfg").write_text(settings, encoding="utf-8")
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(test_here=TESTS)
    return pytester


def names(result: pytest.RunResult) -> list[str]:
    """Of the tests that ran."""
    return [line.split("::")[1].split(" ")[0] for line in result.outlines if "::" in line and " PASSED" in line]


@pytest.mark.slow
def test_what_the_plain_command_runs_and_leaves_out(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess("-v", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=4, deselected=40)
    assert [name for name in names(result) if "[" in name] == ["test_values[0]", "test_values[20]"]
    result.stdout.fnmatch_lines(["left out: 6 slow tests, which run by python -m pytest -m 'not deep and not gpu'",
                                 "left out: 33 deep tests, which run by bash .ci/deep",
                                 "left out: 1 gpu tests, which run by python -m pytest -m gpu"])


@pytest.mark.slow
def test_a_fast_test_that_takes_long_fails(project: pytest.Pytester) -> None:
    """By its processor time, where there is a limit: one that sleeps takes none. A mark excuses it."""
    given = ("-p", "no:cacheprovider", "-k", "works or sleeps")
    result = project.runpytest_inprocess("--fast-limit", "0.2", *given)
    result.assert_outcomes(passed=1, failed=1, deselected=42)
    result.stdout.fnmatch_lines(["this test took 0.3 s of processor time, and a fast one may take 0.2: mark it slow"])
    project.runpytest_inprocess(*given).assert_outcomes(passed=2, deselected=42)


@pytest.mark.slow
def test_a_probe_is_drawn_by_the_commit(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deep tests alone are drawn; all of them by a share of 1."""
    given = ("-v", "-p", "no:cacheprovider", "-m", "not deep and not gpu", "-k", "values", "--probe")
    all_of_them = project.runpytest_inprocess(*given, "1")
    assert len(names(all_of_them)) == 40
    first, second = (project.runpytest_inprocess(*given, "0.3") for _ in range(2))
    assert names(first) == names(second)
    assert 7 < len(names(first)) < 40
    first.stdout.fnmatch_lines(["probe: 30% of what is left out, drawn by *"])


@pytest.mark.slow
def test_what_passed_before_is_left_out(project: pytest.Pytester) -> None:
    """What was skipped or failed there is not, nor is what ran in another tier."""
    project.makepyfile(test_before="""
        import os
        import pytest

        def test_passes():
            pass

        def test_fails_there():
            assert "THERE" not in os.environ

        @pytest.mark.skipif("THERE" in os.environ, reason="")
        def test_is_skipped_there():
            pass
        """)
    given = ("-v", "-p", "no:cacheprovider", "test_before.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("THERE", "1")
        project.runpytest_inprocess(*given, "--passed-to", "passed.txt")
    here = project.runpytest_inprocess(*given, "--passed-before", "passed.txt")
    assert [each.rpartition("::")[2] for each in names(here)] == ["test_fails_there", "test_is_skipped_there"]
    here.stdout.fnmatch_lines(["left out: 1 tests that passed before"])


@pytest.mark.slow
def test_what_no_other_python_shows_is_left_out(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its tests the deep ones alone, and only where all ran on another Python."""
    monkeypatch.setitem(tiers.ONCE, "test_here.py::test_values", "a reason")
    given = ("-v", "-p", "no:cacheprovider", "-m", "not gpu", "-k", "values")
    assert len(names(project.runpytest_inprocess(*given))) == 40
    again = project.runpytest_inprocess(*given, "--again")
    assert len(names(again)) == 7
    again.stdout.fnmatch_lines(["left out: 33 once tests, which run by bash .ci/deep on the newest Python"])


@pytest.mark.parametrize("name", tiers.ONCE)
def test_what_is_once_is_a_test_and_has_a_reason(name: str) -> None:
    file, _, function = name.partition("::")
    (path,) = (ROOT / "tests").rglob(file)
    assert f"\ndef {function}(" in path.read_text(encoding="utf-8")
    assert tiers.ONCE[name]


# ---------------------------------------------------------------- marks
def unmarked(text: str) -> list[str]:
    """Tests of a file that import PyTorch, or are skipped without it, and have not the mark by which CI finds them."""
    tree = ast.parse(text)
    if "pytestmark = pytest.mark.torch" in text:
        return []
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return [node.name for node in tests
            if any(needs_torch(each) for each in ast.walk(node)) and "pytest.mark.torch" not in
            map(ast.unparse, node.decorator_list)]


def needs_torch(node: ast.AST) -> bool:
    """importorskip("torch"), a helper that has it as its first argument, or an import."""
    match node:
        case ast.Call(func=ast.Attribute(attr="importorskip") | ast.Name(id="library"), args=[ast.Constant("torch"),
                                                                                          *_]):
            return True
        case ast.Import(names=[ast.alias(name="torch"), *_]) | ast.ImportFrom(module="torch"):
            return True
    return False


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("test_*.py")), ids=lambda path: path.stem)
def test_who_needs_pytorch_has_the_mark(path: Path) -> None:
    assert unmarked(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(("text", "found"), [
    ("def test_a():\n    torch = pytest.importorskip('torch')", ["test_a"]),
    ("@pytest.mark.torch\ndef test_a():\n    torch = pytest.importorskip('torch')", []),
    ("def test_a():\n    import torch", ["test_a"]), ("def helper():\n    import torch", []),
    ("pytestmark = pytest.mark.torch\ndef test_a():\n    import torch", []),
    ("def test_a():\n    assert imports('import torch')", [])])
def test_a_missing_mark_is_found(text: str, found: list[str]) -> None:
    assert unmarked(text) == found
