"""Types, as a user's editor sees them: a script that uses every public name passes `mypy --strict`."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import typing
from pathlib import Path
from types import ModuleType

import pytest

import minidl
import zoo
from minidl import Tensor, data, nn, ops, optim

SCRIPT = Path(__file__).with_name("users_script.py")


def public(module: ModuleType) -> set[str]:
    """A module's __all__, or what it defines, or for ops, which gathers its families' names, what a user may call."""
    own = {name for name, value in vars(module).items() if name[0] != "_" and not isinstance(value, ModuleType) and (
        module is ops or getattr(value, "__module__", None) == module.__name__)}
    return set(getattr(module, "__all__", own))


def test_the_script_uses_every_public_name() -> None:
    tree = ast.parse(SCRIPT.read_text(encoding="utf-8"))
    used = {(node.value.id, node.attr) for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
    used |= {(node.module, alias.name) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
             for alias in node.names}
    for module in (minidl, data, nn, ops, optim, zoo):
        name = module.__name__.removeprefix("minidl.")
        assert {(name, each) for each in public(module)} - used == set()


def test_a_users_script_is_strictly_typed(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    root = SCRIPT.parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", "--cache-dir",
         str(tmp_path), str(SCRIPT)], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ops_tell_their_types_at_run_time() -> None:
    hints = typing.get_type_hints(ops.conv2d)
    assert (hints["x"], hints["algorithm"], hints["return"]) == (Tensor, str, Tensor)
    for name in public(ops) - {"ACTIVATIONS", "CONV_ALGORITHMS", "OPS"}:
        op = getattr(ops, name)
        assert typing.get_type_hints(op).keys() == {*inspect.signature(op).parameters, "return"}, name
