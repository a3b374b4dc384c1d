"""Projects as somebody who knows PyTorch would first write them, each a program in tests/projects: plain and compiled,
on the CPU, where both have the same bits, and on a GPU. Its figure says how much was learned."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import pytest
from checks.compiler import needs_compiler

FOLDER = Path(__file__).resolve().parents[1] / "projects"
PROGRAMS = {path.stem for path in FOLDER.glob("*.py")} - {"conftest"}
# A project -> what its figure is at least.
LEAST = {
    "table_mlp": 0.85, "vae": 250, "unet": 0.6, "gpt": 0.9, "lstm": 0.9, "grad_cam": 0.8, "fgsm": 0.6,
    "stopped_early": 0.01, "onnx_export": 0.9999, "picture_cnn": 0.6, "dcgan": 0.7, "siamese": 0.5, "reinforce": 80,
    "inversion": 0.8, "distillation": 0.8, "transfer": 0.6, "search": 0.4, "k_fold": 0.45, "weighted": 0.15,
    "notebook": 0.45, "own_kernel": 1.0, "gradient_penalty": 0.9}
SLOW = ("table_mlp", "vae", "unet", "gpt", "grad_cam", "fgsm", "gradient_penalty")
MARKS = {"transfer": [pytest.mark.torch], "own_kernel": [needs_compiler]}
NEEDS = {"transfer": "torch", "onnx_export": "onnxruntime"}


def figure(name: str, device: str, compiled: bool) -> float:
    """What a project's program gives. A step that is recorded again and again is an error."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed")
    spec: Any = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="compile: ")
        return float(program.main(device, compiled))


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow if name in SLOW else pytest.mark.deep, *MARKS.get(name, [])])
    for name in LEAST])
def test_a_project_learns(name: str) -> None:
    plain, compiled = (figure(name, "cpu", compiled) for compiled in (False, True))
    assert plain == compiled
    assert plain >= LEAST[name]


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("name", LEAST)
def test_gpu_a_project_learns(name: str, compiled: bool) -> None:
    assert figure(name, "cuda", compiled) >= LEAST[name]


def test_each_program_is_a_project() -> None:
    assert LEAST.keys() == PROGRAMS
