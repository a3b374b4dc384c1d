"""Types, as a user's editor sees them."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import typing
from pathlib import Path
from types import ModuleType

import pytest

import minidl
from minidl import Tensor, data, nn, ops, optim, plot, training, zoo

SCRIPT = Path(__file__).with_name("users_script.py")
TABLES = {"ACTIVATIONS", "CONV_ALGORITHMS", "OPS"}
SEVERAL = {"split"}                        # ops that give several Tensors


def public(module: ModuleType) -> set[str]:
    """A module's __all__, or what it defines, or for ops, which gathers its families' names, what a user may call."""
    own = {name for name, value in vars(module).items() if name[0] != "_" and not isinstance(value, ModuleType) and (
        module is ops or getattr(value, "__module__", None) == module.__name__)}
    return set(getattr(module, "__all__", own))


def every_public_name() -> str:
    """Lines that use each; of ops, as functions to a Tensor."""
    lines = ["from collections.abc import Callable", "from typing import Any"]
    for module in (minidl, data, nn, optim, plot, training, zoo):
        name = module.__name__.rpartition(".")[2]
        lines.append(f"{name}s: list[Any] = [{', '.join(f'{name}.{each}' for each in sorted(public(module)))}]")
    calls = sorted(public(ops) - TABLES - SEVERAL)
    return "\n".join([*lines, f"calls: list[Callable[..., Tensor]] = [{', '.join(f'ops.{each}' for each in calls)}]\n"])


@pytest.mark.slow
def test_a_users_script_is_strictly_typed(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.read_text(encoding="utf-8") + every_public_name(), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", "--cache-dir",
         str(tmp_path), str(script)], cwd=SCRIPT.parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ops_tell_their_types_at_run_time() -> None:
    hints = typing.get_type_hints(ops.conv2d)
    assert (hints["x"], hints["algorithm"], hints["return"]) == (Tensor, str, Tensor)
    for name in public(ops) - TABLES:
        op = getattr(ops, name)
        assert typing.get_type_hints(op).keys() == {*inspect.signature(op).parameters, "return"}, name


def test_few_values_may_be_anything() -> None:
    """Options and arguments that only a user's own function knows, and values of any kind that are computed with."""
    rooms = (SCRIPT.parents[2] / room for room in ("minidl", "zoo"))
    texts = [path.read_text(encoding="utf-8") for room in rooms for path in room.rglob("*.py")]
    assert len(texts) > 200
    assert sum(len(re.findall(r": Any\b", text)) for text in texts) <= 60
