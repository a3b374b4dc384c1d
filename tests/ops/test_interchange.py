"""Memory shared with other libraries, and what is not shared."""

from __future__ import annotations

import copy
import importlib
import re
import sys
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import CompileError, Tensor, from_dlpack, ops

TORCH = pytest.param("torch", marks=pytest.mark.torch)
LIBRARIES = ["numpy", TORCH, "jax.numpy"]


def library(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed")


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("array", [
    np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(12.0).reshape(3, 4).T[::2, 1:], np.array([True, False]),
    np.zeros((0, 3), np.float32), np.array(3, np.int64), np.arange(6, dtype=np.uint8)[::3], np.arange(3, dtype="i2"),
    np.broadcast_to(np.float32(1), (2, 3)).copy()[:, ::2]],
    ids=["plain", "strided", "bool", "size 0", "scalar", "bytes", "int16", "steps"])
def test_arrays_come_back_from_other_libraries(name: str, array: np.ndarray) -> None:
    xp = library(name)
    if name == "jax.numpy" and array.dtype.itemsize == 8:
        pytest.skip("JAX has 32 bits")
    if name == "jax.numpy" and not array.flags.c_contiguous:
        pytest.skip("JAX takes memory without gaps alone")
    t = Tensor(array)
    there = xp.from_dlpack(t)
    assert np.array_equal(np.asarray(there), array)
    back = from_dlpack(there)
    assert (back.shape, back.dtype, back.device, back.requires_grad) == (array.shape, array.dtype, "cpu", False)
    assert np.array_equal(back.numpy(), array)
    if name != "jax.numpy" and array.size:     # JAX copies what is not aligned to 64 bytes
        assert np.shares_memory(back.numpy(), array)


@pytest.mark.parametrize("name", ["numpy", TORCH])
def test_memory_is_shared_both_ways(name: str) -> None:
    xp = library(name)
    t = Tensor([1.0, 2.0])
    there = xp.from_dlpack(t)
    there[0] = 7.0
    assert t.tolist() == [7, 2]
    t[1] = 5.0
    assert np.asarray(there).tolist() == [7, 5]
    t = from_dlpack(there)
    t *= 2.0
    assert np.asarray(there).tolist() == [14, 10]


def test_a_write_from_outside_is_noted_by_mark_changed() -> None:
    a = np.ones(2, np.float32)
    t, w = from_dlpack(a), Tensor([1.0, 1.0], requires_grad=True)
    loss = (t * w).sum()
    a[:] = 5.0
    t.mark_changed()
    with pytest.raises(ValueError, match="changed in place"):
        loss.backward()


def test_a_tensors_own_alias_shares_its_version() -> None:
    t, w = Tensor([1.0, 2.0]), Tensor([1.0, 1.0], requires_grad=True)
    alias = from_dlpack(t)
    loss = (alias * w).sum()
    t[0] = 3.0
    assert alias.tolist() == [3, 2]
    with pytest.raises(ValueError, match="changed in place"):
        loss.backward()


def test_a_tensor_that_requires_a_gradient_is_not_shared() -> None:
    message = (r"^dlpack: a Tensor that requires a gradient \(shape \(2,\)\) is not shared, since changes elsewhere "
               r"would not be on the tape; share t.detach\(\)$")
    leaf = Tensor([1.0, 2.0], requires_grad=True)
    for t in (leaf, leaf * 2.0):
        for take in (Tensor.__dlpack__, np.from_dlpack, from_dlpack):
            with pytest.raises(BufferError, match=message):
                take(t)
        assert from_dlpack(t.detach()).tolist() == t.tolist()


def test_negative_strides_are_refused() -> None:
    """torch.from_dlpack ends the process on them."""
    with pytest.raises(BufferError, match=re.escape("has strides (-4,), and negative ones end other libraries' "
                                                    "process; share minidl.Tensor(t.numpy().copy())")):
        np.from_dlpack(Tensor(np.ones(3, np.float32)[::-1]))


def test_what_is_read_only_stays_so() -> None:
    a = np.ones(2, np.float32)
    a.flags.writeable = False
    there = np.from_dlpack(Tensor(a))
    assert not there.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        from_dlpack(a)[0] = 2.0


def test_from_dlpack_names_what_it_cannot_take() -> None:
    with pytest.raises(TypeError, match=r"^from_dlpack: a builtins.list has no __dlpack__; pass an array of NumPy"):
        from_dlpack([1.0])
    with pytest.raises(TypeError, match=r"^from_dlpack: the array has dtype complex64 but must be bool, integer"):
        from_dlpack(np.ones(2, np.complex64))
    with pytest.raises((TypeError, BufferError), match=r"^from_dlpack: a numpy.ndarray cannot be shared \(.*\); conv"
                                                       "ert or copy it first$"):
        from_dlpack(np.array(["a"]))


@pytest.mark.torch
def test_pytorchs_refusals_are_passed_on() -> None:
    torch = library("torch")
    with pytest.raises((BufferError, RuntimeError), match=r"^from_dlpack: a torch.Tensor cannot be shared \(.*grad"):
        from_dlpack(torch.ones(2, requires_grad=True))
    with pytest.raises((BufferError, RuntimeError, ValueError), match=r"^from_dlpack: a torch.Tensor cannot be shared"):
        from_dlpack(torch.ones(2, dtype=torch.bfloat16))


@pytest.mark.parametrize("name", LIBRARIES)
def test_indices_of_other_libraries(name: str) -> None:
    asarray = getattr(library(name), "tensor" if name == "torch" else "asarray")
    x, places = Tensor(np.arange(12.0).reshape(4, 3), requires_grad=True), np.array([2, 0, 2, 1])
    for index in (places, places > 0, np.array(3), (slice(None), places)):
        here = tuple(map(asarray, index[1:])) if isinstance(index, tuple) else asarray(index)
        there = (*index[:1], *here) if isinstance(index, tuple) else here
        x.grad = None
        y = x[there]
        np.testing.assert_array_equal(y.numpy(), x.numpy()[index])
        y.sum().backward()
        expected = np.zeros((4, 3))
        np.add.at(expected, index, 1)
        np.testing.assert_array_equal(x.grad.numpy(), expected)
        with minidl.no_grad():
            z = x.detach().clone()
            z[there] = 7.0
        np.testing.assert_array_equal(z.numpy() == 7, (expected > 0) | (x.numpy() == 7))
    at = np.array([[0], [2], [1], [1]])
    for index in (asarray(at), at.tolist(), tuple(map(tuple, at.tolist()))):
        np.testing.assert_array_equal(ops.gather(x, 1, index).numpy(), np.take_along_axis(x.numpy(), at, 1))


@pytest.mark.parametrize("form", [np.ma.masked_array, lambda i: i.astype(">i8"), lambda i: i.view(np.recarray)],
                         ids=["masked", "big-endian", "subclass"])
def test_a_compiled_step_knows_its_argument_in_an_index(form: Any) -> None:
    step = minidl.compile(lambda x, i: x[i])
    for turn in range(4):
        index = form((np.arange(4) + turn) % 3)
        np.testing.assert_array_equal(step(Tensor(np.arange(3.0)), index).numpy(), np.arange(3.0)[index])


@pytest.mark.torch
def test_a_tensor_of_pytorch_that_requires_a_gradient() -> None:
    with pytest.raises(ValueError, match=r"^Tensor: Tensor data do not become an array \(Can't call numpy\(\) on Ten"):
        Tensor(library("torch").ones(2, requires_grad=True))


def test_an_array_of_a_gpu_wants_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    class There:
        def __dlpack__(self, **options: Any) -> None: ...

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError, match=r"^from_dlpack: the array is on a GPU but CuPy cannot be imported \(.*\); "):
        from_dlpack(There())


def test_the_cuda_interface_is_for_cuda() -> None:
    t = Tensor([1.0])
    assert not hasattr(t, "__cuda_array_interface__")
    with pytest.raises(AttributeError, match=r"the Tensor is on cpu; move it by .to\('cuda'\), or share it by DLPack"):
        Tensor.__cuda_array_interface__.fget(t)  # type: ignore[attr-defined]     hasattr asks a property
    assert t.__dlpack_device__() == (1, 0)


@pytest.mark.gpu
def test_memory_is_shared_with_cupy() -> None:
    import cupy

    t = Tensor(np.arange(4, dtype=np.float32), device="cuda")
    for there in (cupy.from_dlpack(t), cupy.asarray(t)):
        there += 1
        assert there.data.ptr == t.data.data.ptr
    assert t.tolist() == [2, 3, 4, 5]
    assert from_dlpack(cupy.arange(3)).device == "cuda"
    assert t.__cuda_array_interface__["shape"] == (4,)
    assert t.__dlpack_device__()[0] == 2
    with pytest.raises(BufferError, match="requires a gradient"):
        _ = Tensor([1.0], requires_grad=True, device="cuda").__cuda_array_interface__


@pytest.mark.parametrize("take", [np.from_dlpack, from_dlpack], ids=["numpy", "minidl"])
def test_a_recorded_step_refuses(take: Any) -> None:
    @minidl.compile
    def step(x: Tensor) -> Tensor:
        take(x)
        return ops.exp(x)

    with pytest.raises(CompileError, match=r"(gives a Tensor's memory to|takes) another library"):
        step(Tensor([1.0]))


def test_copies_and_imports_are_as_before() -> None:
    t = Tensor([1.0, 2.0])
    assert copy.deepcopy(t).tolist() == np.asarray(t).tolist() == [1, 2]
    assert importlib.import_module("minidl").from_dlpack is from_dlpack
