"""CONTRIBUTING's recipes: the code that they print does what they say, on the CPU and emulated."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from checks import convolutions
from checks.compiler import needs_compiler
from checks.launches import UNSEEN
from emulator import Emulator

from minidl import gradcheck
from minidl.core import tensor
from minidl.ops import cuda
from minidl.ops.common.geometry import conv_geometry
from minidl.ops.common.op import op
from minidl.ops.cuda import launch

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.cfg").exists())
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def blocks(section: str) -> list[str]:
    """The code of a section, without what it is indented by."""
    text = TEXT.split(f"## {section}\n")[1].split("\n## ")[0]
    return [textwrap.dedent(code) for code in re.findall(r"^ *```(?:python|cuda)\n(.*?)^ *```$", text,
                                                         re.DOTALL | re.MULTILINE)]


def test_an_op() -> None:
    names: dict[str, Any] = {"op": op, "__name__": __name__}
    exec(compile(blocks("Add an op")[0], "scale", "exec"), names)
    scale = names["scale"]
    assert scale(tensor([1.0, 2.0]), factor=3.0).tolist() == [3.0, 6.0]
    gradcheck(lambda x: scale(x, factor=3.0), [tensor(np.array([1.0, 2.0]), requires_grad=True)])


@pytest.mark.slow
@needs_compiler
def test_a_convolution_algorithm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, launcher, row = blocks("Add a convolution algorithm")
    folder = tmp_path / "cuda"
    shutil.copytree(launch.FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "conv/product/pointwise.cu").write_text(kernel, encoding="utf-8")
    monkeypatch.setattr("minidl.ops.common.sources.FOLDER", folder)
    names: dict[str, Any] = {"__package__": "minidl.ops.cuda.conv.product", "__name__": "pointwise"}
    exec(compile(launcher, "pointwise.py", "exec"), names)
    module = type("pointwise", (), {name: staticmethod(names[name]) for name in ("y", "refuses")})
    added: dict[str, Any] = eval(f"{{{row}}}", {"Algorithm": cuda.conv.Algorithm, "pointwise": module})
    monkeypatch.setitem(cuda.conv.ALGORITHMS, "pointwise", added["pointwise"])
    with Emulator(tmp_path).running() as emulated:
        for x, w in (((2, 3, 5, 7), (4, 3, 1, 1)), ((3, 1, 1, 1), (33, 1, 1, 1))):
            problem = convolutions.drawn(conv_geometry(x, w, None, 1, 0, "gemm"), 1, np.float32)
            convolutions.assert_none(list(convolutions.failures_of(problem, ["pointwise"], UNSEEN)))
        assert emulated.launched == {"conv2d_pointwise_y"}
    refused = conv_geometry((1, 1, 5, 5), (1, 1, 3, 3), None, 1, 0, "gemm")
    assert "1x1" in str(cuda.conv.refusal("pointwise", "y", refused, np.dtype(np.float32)))
