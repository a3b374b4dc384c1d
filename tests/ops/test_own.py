"""Ops, primitives and activations of a user's own: docs/own-op.md as printed, on the CPU and on the emulated GPU, and
what is refused. What is registered stays in the process, so the page runs in one of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks.compiler import on_cuda
from checks.references import ROOT
from tiers import tiered

import minidl
from minidl import Tensor
from minidl.ops.common.primitives import ACTIVATIONS, PRIMITIVES

PAGE = (ROOT / "docs" / "own-op.md").read_text(encoding="utf-8")


def run(folder: Path, code: str) -> None:
    file = folder / "own.py"
    file.write_text(code, encoding="utf-8")
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False,
                          env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr


@pytest.fixture
def page(tmp_path: Path) -> str:
    """All its Python; its kernel lies beside."""
    (kernel,) = re.findall(r"```cuda\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "sharpen.cu").write_text(kernel, encoding="utf-8")
    return "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))


COMPILED = """
x32 = Tensor(rng.standard_normal((2, 1, 5, 4)).astype("float32"), requires_grad=True)
w = Tensor(rng.standard_normal((3, 20)).astype("float32"), requires_grad=True)
def step(x):
    x.grad = w.grad = None
    loss = huber(squareplus(minidl.ops.linear(sharpened(x).flatten(1), w)), target).sum()
    loss.backward()
    return loss
target = Tensor(rng.standard_normal((2, 3)).astype("float32"))
compiled = minidl.compile(step)
for _ in range(4):
    x32.data[...] *= 0.9
    want, gx, gw = step(x32), x32.grad, w.grad
    x32.grad = w.grad = None
    found = compiled(x32)
    for a, b in ((want, found), (gx, x32.grad), (gw, w.grad)):
        assert a.numpy().tobytes() == b.numpy().tobytes()
names = [call.name for call in compiled.program.calls]
assert compiled.recordings == 2 and names.count("sharpen") == 2 and "linear_act" in names, names
"""


@pytest.mark.slow
def test_the_page_runs_as_printed(page: str, tmp_path: Path) -> None:
    """And a compiled step records its ops and fuses them."""
    run(tmp_path, page + COMPILED)


EMULATED = """
from emulator import Emulator, cupy
from minidl.ops import cuda
from minidl.core.tensor import wrap
from unittest import mock
emulator = Emulator(Path(__file__).parent)
a = rng.standard_normal((2, 3, 5, 4)).astype("float32")
with emulator.running() as running, mock.patch.object(cupy, "empty", running.memory.empty):
    for dtype in ("float32", "float64"):
        for op, want in ((sharpened, sharpen(a.astype(dtype), 0.5)), (squareplus, (a + np.sqrt(a * a + 4)) / 2)):
            x = wrap(cupy.asarray(a.astype(dtype)))
            x.requires_grad = True
            y = op(x)
            assert type(y.data).__name__ == "Memory"
            np.testing.assert_allclose(np.array(y.data), want, rtol=1e-5, atol=1e-6)
            y.backward(wrap(cupy.asarray(a.astype(dtype))))
            b = Tensor(a.astype(dtype), requires_grad=True)
            op(b).backward(Tensor(a.astype(dtype)))
            np.testing.assert_allclose(np.array(x.grad.data), b.grad.numpy(), rtol=1e-5, atol=1e-6)
    try:
        only(wrap(cupy.asarray(a)))
    except TypeError as error:
        assert str(error) == ("plainly: is a primitive of NumPy arrays alone; register it with "
                              "minidl.primitive(cuda=...)"), error
    else:
        raise AssertionError
assert {"sharpen", "activation", "activation_grad_x"} <= emulator.launched
"""
BEFORE = """
@minidl.primitive
def plainly(x):
    return x + 0
only = minidl.op(lambda k, x: (k.plainly(x), None))
"""


@on_cuda
@pytest.mark.parametrize("first", tiered([
    pytest.param(False, id="registered first"), pytest.param(True, id="CUDA imported first")], slow=1))
def test_the_kernels_run_on_cuda(first: bool, page: str, tmp_path: Path) -> None:
    run(tmp_path, ("import minidl.ops.cuda\n" if first else "") + page + BEFORE + EMULATED)


# ---------------------------------------------------------------- what is refused
def named(name: str):  # type: ignore[no-untyped-def]
    def function(x):  # type: ignore[no-untyped-def]
        return x
    function.__name__ = name
    return function


@pytest.mark.parametrize(("call", "words"), [
    (lambda: minidl.primitive(named("add")), r"primitive: 'add' is taken already; give yours another name"),
    (lambda: minidl.primitive(named("conv2d_grad_x")), r"primitive: 'conv2d_grad_x' is taken already"),
    (lambda: minidl.primitive(named("np")), r"primitive: 'np' is taken already"),
    (lambda: minidl.primitive(lambda x: x), r"primitive: '<lambda>' cannot be written as k.<lambda>; give the"),
    (lambda: minidl.primitive(named("_hidden")), r"primitive: '_hidden' cannot be written as k._hidden"),
    (lambda: minidl.primitive(named("mine"), cuda=lambda x, y: x),
     r"primitive: mine takes \(x\) but its cuda takes \(x, y\); give both the same parameters"),
    (lambda: minidl.activation("tanh", np.tanh, np.multiply, "tanh(x)", "gy"), "activation: 'tanh' is taken already"),
])
def test_what_is_refused(call, words: str) -> None:  # type: ignore[no-untyped-def]
    before = PRIMITIVES.copy(), ACTIVATIONS.copy()
    with pytest.raises(ValueError, match=f"^{words}"):
        call()
    assert before == (PRIMITIVES, ACTIVATIONS)


def test_a_kernel_of_another_dtype_or_name(tmp_path: Path) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")
    (tmp_path / "one.cu").write_text('extern "C" __global__ void one(REAL* y) { y[0] = 1; }\n')
    with pytest.raises(ValueError, match=r"^kernel: dtype int64 is not float32 or float64, what REAL may be$"):
        minidl.kernel(tmp_path / "one.cu", "one", np.int64)


def test_an_op_of_ones_own_is_not_minidls() -> None:
    """Its name may be any: it is in no table of minidl's."""
    @minidl.op
    def relu(k, x: Tensor):  # type: ignore[no-untyped-def]
        return k.neg(x), lambda gy, need: (k.neg(gy),)
    assert minidl.ops.OPS["relu"] is minidl.ops.relu
    assert relu(Tensor([1.0])).tolist() == [-1.0]


UNLIKE: dict[str, tuple[Callable[..., Any], type[Exception], str]] = {
    "not summed": (lambda k, gy, x, w: (k.mul(gy, w), k.mul(gy, x)), ValueError,
                   r"scale: its backward returns float32 of shape \(4, 3\) for input 1, which is float32 of shape "
                   r"\(3,\); sum over what was broadcast \(k.sum\), or convert \(k.cast\)"),
    "summed too much": (lambda k, gy, x, w: (k.sum(k.mul(gy, w), (0,), False), None), ValueError,
                        r"returns float32 of shape \(3,\) for input 0, which is float32 of shape \(4, 3\)"),
    "another dtype": (lambda k, gy, x, w: (k.cast(k.mul(gy, w), "float64"), None), ValueError,
                      "returns float64 of shape"),
    "too few": (lambda k, gy, x, w: (k.mul(gy, w),), TypeError,
                r"scale: its backward returns 1 values \(tuple\) but must return a tuple of 2: a gradient for each"),
    "an array": (lambda k, gy, x, w: k.mul(gy, w), TypeError, r"its backward returns one value \(\w+\) but must"),
}


@pytest.mark.parametrize(("name", "way"), [*((name, "eager") for name in UNLIKE), ("not summed", "create_graph"),
                                           ("not summed", "compiled")])
def test_gradients_unlike_the_inputs_are_refused(name: str, way: str) -> None:
    """One of a broadcast input that was not summed was added to .grad, wherever that broadcasts."""
    gradients, error, message = UNLIKE[name]

    @minidl.op
    def scale(k: Any, x: Any, w: Any) -> Any:
        def backward(gy: Any, need: Any) -> Any:
            return gradients(k, gy, x, w)
        return k.mul(x, w), backward
    x, w = (Tensor(np.ones(shape, np.float32), requires_grad=True) for shape in ((4, 3), (3,)))

    def step() -> None:
        scale(x, w).sum().backward(create_graph=way == "create_graph")
    with pytest.raises(error, match=message):
        (minidl.compile(step) if way == "compiled" else step)()


def test_gradients_that_nobody_wants_may_be_anything() -> None:
    """Of labels, numbers, and inputs that do not require one."""
    @minidl.op(index=("labels",), numbers=True)
    def own(k: Any, x: Any, labels: Any, factor: Any) -> Any:
        return k.mul(x, factor), lambda gy, need: [k.mul(gy, factor), 5, "none"]
    x = Tensor(np.ones(2, np.float32), requires_grad=True)
    own(x, Tensor([1, 0]), 3.0).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3, 3]
