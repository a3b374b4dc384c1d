"""Which device serves and what keeps CUDA from it, in words; precision and memory; where an array is and goes.

Nothing here needs a GPU or CuPy: a class stands in for CuPy's arrays, and every way to lack CUDA is acted out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import minidl
from minidl.core import device
from minidl.core.host import install

MIB = 2**20


@pytest.fixture(autouse=True)
def _looked_at_anew() -> Iterator[None]:
    """What `_missing` found for one test does not hold for the next, nor for the tests of other files."""
    look = device._missing
    look.cache_clear()
    yield
    look.cache_clear()


@pytest.fixture
def _settings(fp32: None) -> Iterator[None]:
    """Precision and workspace are after the test what they were before."""
    limit = device.workspace_limit()
    yield
    device.set_workspace_limit(limit)


# ---------------------------------------------------------------- a machine, acted out
class CUDARuntimeError(RuntimeError):
    """CuPy's, by name."""


class FakeArray:
    """As much of a cupy.ndarray as minidl.device asks for: NumPy's values, elsewhere."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.dtype = values, values.dtype

    def get(self) -> np.ndarray:
        return self.values.copy()

    def astype(self, dtype: Any, copy: bool = True) -> FakeArray:
        return self if self.dtype == dtype and not copy else FakeArray(self.values.astype(dtype))


def pretend(patch: pytest.MonkeyPatch, *, gpu: bool, cupy: bool = True, count: int | str = 1) -> None:
    """A machine with or without NVIDIA's driver and CuPy, whose runtime counts devices or raises that error."""
    def get_device_count() -> int:
        if isinstance(count, str):
            raise CUDARuntimeError(count)
        return count

    module: Any = ModuleType("cupy")
    module.ndarray, module.asarray = FakeArray, FakeArray
    module.cuda = SimpleNamespace(runtime=SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError, getDeviceCount=get_device_count,
        driverGetVersion=lambda: 12040, runtimeGetVersion=lambda: 13020))
    patch.setitem(sys.modules, "cupy", module)
    patch.setattr("importlib.util.find_spec", lambda name: object() if cupy else None)
    patch.setattr(device, "has_nvidia_gpu", lambda: gpu)


TOO_OLD = "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version"
NO_DEVICE = "cudaErrorNoDevice: no CUDA-capable device is detected"
NO_GPU = "there is no NVIDIA GPU that CUDA can use here; use a machine that has one"

# what: (the machine, what is missing and the way out)
MISSING: dict[str, tuple[dict[str, Any], str]] = {
    "no CuPy": ({"gpu": True, "cupy": False}, f"CuPy is not installed; run {install('cuda13')} (or "
                                              f"{install('cuda12')} for a driver older than 580)"),
    "neither": ({"gpu": False, "cupy": False}, "there is no NVIDIA GPU here (and no CuPy); use a machine that has one"),
    "old driver": ({"gpu": True, "count": TOO_OLD},
                   "the NVIDIA driver is too old for CUDA 13.2, which CuPy was built for (the driver knows 12.4); "
                   f"update the driver, or run pip uninstall cupy-cuda13x, then {install('cuda12')}"),
    "no driver": ({"gpu": False, "count": TOO_OLD}, NO_GPU),   # CUDA calls a driver that is not there too old
    "no device": ({"gpu": False, "count": NO_DEVICE}, NO_GPU),
    "hidden device": ({"gpu": True, "count": NO_DEVICE}, NO_GPU),
    "0 devices": ({"gpu": True, "count": 0}, NO_GPU),
}


# ---------------------------------------------------------------- which device
@pytest.mark.parametrize("what", MISSING)
def test_what_is_missing_and_the_way_out_in_one_line(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, words = MISSING[what]
    pretend(monkeypatch, **machine)
    assert device._missing() == words
    assert device.resolve("auto") == "cpu"
    for refused in (lambda: device.resolve("cuda"), lambda: device.to_device(np.ones(1), "cuda"),
                    lambda: minidl.Tensor([1.0], device="cuda")):
        with pytest.raises(ValueError, match=r"^device: ") as caught:
            refused()
        assert str(caught.value) == f"device: 'cuda' was asked for but {words}, or use device 'cpu'"
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("count", [1, 4])
def test_cuda_serves_where_nothing_is_missing(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, gpu=True, count=count)
    assert device._missing() == ""
    assert [device.resolve(name) for name in ("auto", "cuda", "cpu")] == ["cuda", "cuda", "cpu"]


def test_the_machine_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, gpu=True)
    assert device.resolve("auto") == "cuda"
    pretend(monkeypatch, gpu=False, cupy=False)
    assert device.resolve("auto") == "cuda"


def broken_cupy(patch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    """A CuPy that is installed and whose import raises ImportError(text)."""
    (folder / "cupy").mkdir()
    (folder / "cupy/__init__.py").write_text(f"raise ImportError({text!r})\n")
    patch.syspath_prepend(folder)
    patch.delitem(sys.modules, "cupy", raising=False)


LIBRARY = "libcudart.so.13: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize("text", [LIBRARY, f"\n  {LIBRARY}\nsecond line\n"], ids=["a line", "lines"])
def test_a_cupy_that_cannot_be_imported(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken_cupy(monkeypatch, tmp_path, text)
    assert device._missing() == f"CuPy cannot be imported ({LIBRARY}); install it anew: {install('cuda13')}"
    assert device.resolve("auto") == "cpu"
    with pytest.raises(ValueError, match=r"^device: 'cuda' was asked for but CuPy cannot be imported \(libcudart"):
        device.resolve("cuda")


def test_cupys_own_words_when_it_cannot_be_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ruler = 64 * "="                           # as in cupy/__init__.py, 14.2
    broken_cupy(monkeypatch, tmp_path, f"\n{ruler}\nFailed to import CuPy.\n\nIf you installed CuPy via wheels ...\n\n"
                                       f"Original error:\n  ImportError: {LIBRARY}\n{ruler}\n")
    missing = device._missing()
    assert "\n" not in missing
    assert ruler not in missing
    assert f"CuPy cannot be imported (ImportError: {LIBRARY}); install it anew" in missing


def test_a_cupy_that_cannot_be_imported_and_says_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken_cupy(monkeypatch, tmp_path, "")
    assert device._missing().startswith("CuPy cannot be imported")


@pytest.mark.parametrize("there", ["/proc/driver/nvidia/version", "/dev/nvidia0", "/dev/dxg", None])
def test_the_driver_is_seen_by_its_files(there: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "Path", lambda path: SimpleNamespace(exists=lambda: path == there))
    assert device.has_nvidia_gpu() is (there is not None)


@pytest.mark.parametrize("name", ["gpu", "CUDA", "cuda:1", "", None])
def test_an_unknown_device(name: Any) -> None:
    with pytest.raises(ValueError, match=f"^device: {name!r} is not one of auto, cpu, cuda$"):
        device.resolve(name)
    with pytest.raises(ValueError, match=f"^device: {name!r} is not one of auto, cpu, cuda$"):
        device.to_device(np.ones(1), name)


# ---------------------------------------------------------------- precision and memory
@pytest.mark.usefixtures("_settings")
def test_precision_is_what_was_last_said() -> None:
    assert device.precision() == "fp32"
    for name in ("tf32", "3xtf32", "bf16", "fp32"):
        minidl.set_precision(name)
        assert device.precision() == name


@pytest.mark.usefixtures("_settings")
@pytest.mark.parametrize("name", ["fp16", "TF32", "", None, 32])
def test_a_wrong_precision_changes_nothing(name: Any) -> None:
    device.set_precision("tf32")
    with pytest.raises(ValueError, match=f"^set_precision: precision {name!r} is not one of fp32, 3xtf32, tf32, bf16$"):
        device.set_precision(name)
    assert device.precision() == "tf32"


@pytest.mark.usefixtures("_settings")
def test_the_cpu_takes_no_notice_of_precision() -> None:
    rng = np.random.default_rng(0)
    x, w = (minidl.Tensor(rng.standard_normal(shape), dtype="float32") for shape in ((2, 3, 8, 8), (4, 3, 3, 3)))
    wanted = minidl.ops.conv2d(x, w).numpy()
    for name in device.PRECISIONS:
        device.set_precision(name)
        np.testing.assert_array_equal(minidl.ops.conv2d(x, w).numpy(), wanted)


@pytest.mark.usefixtures("_settings")
def test_the_workspace_limit_is_what_was_last_said() -> None:
    assert device.workspace_limit() == 256 * MIB
    for limit in (MIB, 3 * MIB + 1, 2**40):
        minidl.set_workspace_limit(limit)
        assert device.workspace_limit() == limit


@pytest.mark.usefixtures("_settings")
@pytest.mark.parametrize("limit", [MIB - 1, 0, -MIB, True, 1e9, "256 MiB", None])
def test_a_wrong_workspace_limit_changes_nothing(limit: Any) -> None:
    device.set_workspace_limit(2 * MIB)
    with pytest.raises(ValueError, match=f"^set_workspace_limit: limit is {limit!r} but must be an int of at least "
                                         r"1048576 \(bytes\)$"):
        device.set_workspace_limit(limit)
    assert device.workspace_limit() == 2 * MIB


# ---------------------------------------------------------------- where an array is
def test_without_cupy_nothing_is_on_cuda_and_none_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert not device.is_cuda(np.ones(2))
    assert not device.is_cuda(FakeArray(np.ones(2)))
    assert "cupy" not in sys.modules


def test_arrays_of_numpy_stay_what_they_are() -> None:
    a = np.arange(3, dtype=np.float32)
    assert not device.is_cuda(a)
    assert device.device_of(a) == device.device_of(a[0]) == "cpu"
    assert device.to_device(a, "cpu") is a
    assert device.to_numpy(a) is a
    assert device.as_array(a) is a
    assert device.as_array(a, np.float32) is a


def test_as_array_makes_arrays_of_numbers_and_converts() -> None:
    made = device.as_array([1, 2], np.float32)
    assert (type(made), made.dtype, made.tolist()) == (np.ndarray, np.float32, [1.0, 2.0])
    assert device.as_array(np.ones(2), np.int64).dtype == np.int64
    assert device.as_array(2.5).shape == ()


def test_arrays_of_cupy_are_told_and_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, gpu=True)
    a = np.arange(3, dtype=np.float32)
    there = device.to_device(a, "cuda")
    assert isinstance(there, FakeArray)
    assert device.is_cuda(there)
    assert not device.is_cuda(a)
    assert device.device_of(there) == "cuda"
    assert device.to_device(there, "cuda") is there
    assert device.to_device(there, "auto") is there
    for back in (device.to_device(there, "cpu"), device.to_numpy(there)):
        assert isinstance(back, np.ndarray)
        np.testing.assert_array_equal(back, a)


def test_as_array_leaves_arrays_of_cupy_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, gpu=True)
    there = FakeArray(np.arange(3, dtype=np.float32))
    assert device.as_array(there) is there
    assert device.as_array(there, np.float32) is there
    converted = device.as_array(there, np.float64)
    assert isinstance(converted, FakeArray)
    assert converted.dtype == np.float64


@pytest.mark.parametrize("data", [[1.0], None, FakeArray(np.ones(1))], ids=["list", "None", "alien"])
def test_no_array_of_a_known_device(data: Any) -> None:
    with pytest.raises(TypeError, match=f"^device: a {type(data).__name__} is not an array of a known device; pass a "):
        device.to_device(data, "cpu")
