"""Fifteen tasks of a user, one script or two for each in tests/tasks: each is done by public names in few lines."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_lines import lines_of_python
from tiers import of_files

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.cfg").exists())
SCRIPTS = sorted((ROOT / "tests" / "tasks").glob("?_*.py"))
MAX_LINES = 30
EXTRAS = ("torch", "matplotlib")


def imported(tree: ast.AST) -> list[str]:
    """The modules that a script imports, with all their names: ["numpy", "minidl.nn"]."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def private_names(text: str) -> list[str]:
    """The names that begin with an underscore, and what is set on what was imported. `_` alone is nobody's name, and
    names in underscores, __init__ and _repr_html_, are those of protocols."""
    tree, names = ast.parse(text), []
    own = {name.rpartition(".")[2] for name in imported(tree)} | {name.partition(".")[0] for name in imported(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
            if isinstance(node.ctx, ast.Store) and ast.unparse(node.value).partition(".")[0] in own:
                names.append(f"_ = {ast.unparse(node)}")
        elif isinstance(node, ast.Name):
            names.append("_ = setattr" if node.id == "setattr" else node.id)
    names += [part for name in imported(tree) for part in name.split(".")]
    return sorted(name for name in {*names} if name.startswith("_") and name.strip("_") and not name.endswith("_"))


def failure(script: Path, folder: Path) -> str:
    """What a script writes to stderr when it fails, run in a folder of its own; "" if it does not."""
    done = subprocess.run([sys.executable, str(script)], cwd=folder, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "MINIDL_OFFLINE": "1", "MPLBACKEND": "agg", "PYTHONPATH": str(ROOT)})
    return done.stderr or f"exit status {done.returncode}" if done.returncode else ""


def test_each_task_has_a_script() -> None:
    assert {script.name[0] for script in SCRIPTS} == set("abcdefghijklmno")


@pytest.mark.parametrize("script", of_files(SCRIPTS, deep=[
    "c_residual_net", "d_rates", "g_pictures", "h_resume", "j_gan", "k_text", "l_augmentation", "o_flags"]))
def test_a_task_is_done(script: Path, tmp_path: Path) -> None:
    for module in {name.partition(".")[0] for name in imported(ast.parse(script.read_text(encoding="utf-8")))}:
        if module in EXTRAS:
            pytest.importorskip(module, reason=f"{module} is not installed, which this task is about")
    assert failure(script, tmp_path) == ""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_task_takes_few_lines_and_public_names(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    assert lines_of_python(text) <= MAX_LINES
    assert private_names(text) == []


# ---------------------------------------------------------------- these tests can fail
@pytest.mark.slow
@pytest.mark.parametrize(("text", "found"), [
    ("import minidl\nminidl.Tensor([1.0]).numpy()", ""),
    ("assert 1 == 2", "AssertionError"), ("open('weights.h5')", "weights.h5"),
    ("import sys\nsys.exit(3)", "exit status 3"),
])
def test_a_script_that_fails_is_found(text: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(text, encoding="utf-8")
    said = failure(tmp_path / "bad.py", tmp_path)
    assert found in said
    assert bool(said) == bool(found)


@pytest.mark.parametrize(("text", "names"), [
    ("from minidl.ops._op import op", ["_op"]), ("from minidl._x import y", ["_x"]), ("import minidl._x", ["_x"]),
    ("net._y = 1\nnet._y._z", ["_y", "_z"]), ("from minidl.ops import _cross_entropy", ["_cross_entropy"]),
    ("import minidl\nminidl.ops.relu = f", ["_ = minidl.ops.relu"]),
    ("from minidl import optim\noptim.SGD.step = f", ["_ = optim.SGD.step"]), ("setattr(x, 'y', 1)", ["_ = setattr"]),
    ("for _ in x: y.__len__(), y._repr_html_()\nnet.layer = 1\nsgd.lr /= 2", []),
])
def test_private_names_are_found(text: str, names: list[str]) -> None:
    assert private_names(text) == names
