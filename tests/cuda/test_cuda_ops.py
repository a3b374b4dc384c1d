"""The CUDA backend: every op's cases against the CPU, precision, memory, determinism, training, and its errors."""

from __future__ import annotations

import functools
import json
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cases import CASES, LAYOUTS, Case, each_case, some_gy

import minidl
from minidl import Tensor, data, nn, ops, optim, zoo
from minidl.core import device
from minidl.core.tensor import wrap
from minidl.ops.common.geometry import PoolGeometry, conv_geometry, pool_geometry
from minidl.tools.cli import train as cli
from minidl.training import train_step

cupy = pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from checks import primitives as checks  # noqa: E402
from checks.agrees import agrees  # noqa: E402
from checks.fused import normal  # noqa: E402
from checks.launches import LAUNCHES, Launch  # noqa: E402
from checks.primitives import bound  # noqa: E402

from minidl.ops import cpu, cuda  # noqa: E402
from minidl.ops.cuda import launch  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fp32")]

DTYPES = (np.float32, np.float64)
OPS = [op for op, cases in CASES.items() if cases]
DIFFERENTIABLE = [op for op in OPS if CASES[op][0].differentiable]

View = Callable[[Any], Any]


def identity(x: Any) -> Any:
    return x


# ---------------------------------------------------------------- every op
def run(case: Case, arrays: list[Any], where: str, view: View = identity, gy: Any = None,
        **options: object) -> list[np.ndarray]:
    """The result and each input's gradient, computed on a device from views of arrays that are moved there."""
    def there(x: np.ndarray) -> Any:
        return view(device.to_device(x, where))

    inputs = [wrap(there(x)) for x in arrays]
    for t in inputs:
        t.requires_grad = case.differentiable
    y = case.call(*inputs, **{**case.options, **options})
    assert y.device == where
    if not case.differentiable:
        return [y.numpy()]
    y.backward(wrap(there(some_gy(y.shape).astype(y.dtype) if gy is None else gy)))
    for t in inputs:
        assert t.grad is None or t.grad.device == where
    return [y.numpy(), *[t.grad.numpy() if t.grad is not None else np.zeros_like(t.numpy()) for t in inputs]]


def assert_agrees(case: Case, dtype: type, canaries: Any = None) -> None:
    """CUDA in a dtype against the CPU's float64, from the same values."""
    arrays = [x.astype(dtype) for x in case.arrays()]
    expected = run(case, [x.astype(float) for x in arrays], "cpu")
    for got, want in zip(run(case, arrays, "cuda"), expected, strict=True):
        assert got.dtype == (dtype if want.dtype == float else want.dtype)
        if case.differentiable:
            # the gradient of a result that is larger than the inputs is a sum over it
            np.testing.assert_allclose(got, want, rtol=0, atol=bound(want, [*arrays, *expected], dtype))
        else:
            np.testing.assert_array_equal(got, want)
        assert got.shape == want.shape
    if canaries is not None:
        canaries.check()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_writes_all_of_its_results_and_nothing_else(op: str, dtype: type, canaries: Any) -> None:
    """On memory full of NaN, with edges that must stay."""
    each_case(op, lambda case: assert_agrees(case, dtype, canaries))


@pytest.mark.parametrize("op", OPS)
def test_changes_no_input_and_minds_no_layout(op: str) -> None:
    def check(case: Case) -> None:
        arrays = case.arrays()
        expected = run(case, arrays, "cuda")
        for name, (store, view) in LAYOUTS.items():
            stored, gy = [cupy.asarray(store(x)) for x in arrays], store(some_gy(expected[0].shape))
            before = [x.get() for x in stored]
            for got, want in zip(run(case, stored, "cuda", view, gy), expected, strict=True):
                np.testing.assert_allclose(got, want, rtol=0, atol=bound(want, arrays, np.float64), err_msg=name)
            for x, was in zip(stored, before, strict=True):
                np.testing.assert_array_equal(x.get(), was, err_msg=name)
    each_case(op, check)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_two_runs_have_the_same_bits(op: str, dtype: type) -> None:
    def check(case: Case) -> None:
        arrays = [x.astype(dtype) for x in case.arrays()]
        for first, second in zip(run(case, arrays, "cuda"), run(case, arrays, "cuda"), strict=True):
            assert first.tobytes() == second.tobytes()
    each_case(op, check)


@pytest.mark.filterwarnings("ignore:conv2d. algorithm .* has no kernel for")
@pytest.mark.parametrize("algorithm", [name for name in cuda.CONV_ALGORITHMS
                                       if name not in (*cpu.CONV_ALGORITHMS, "winograd_2x2", "winograd_4x4",
                                                       "few_channels")])
def test_conv2d_algorithms_that_only_cuda_has(algorithm: str) -> None:
    """They agree, or say which case they cannot do; CASES ask for the others. Where there is no kernel `auto` does it.

    On tensor cores in 3xtf32, which is as exact as float32. Of the cases winograd takes but one, and
    those of 3x3 none, which want more channels (test_cuda_conv.py::test_filters_of_3x3). Nothing that has bf16 alone.
    """
    refusal, compared = rf"conv2d: algorithm '{algorithm}' cannot compute .*; use algorithm 'auto'", 0
    on_tensor_cores = algorithm in cuda.conv.ALGORITHMS and cuda.conv.ALGORITHMS[algorithm].tensor_cores
    if on_tensor_cores and launch.compute_capability() < (90 if algorithm == "wgmma" else 80):
        pytest.skip("this GPU has not got these tensor cores")
    device.set_precision("3xtf32" if on_tensor_cores else "fp32")

    def check(case: Case, dtype: type) -> None:
        nonlocal compared
        arrays = [x.astype(dtype) for x in case.arrays()]
        try:
            found = run(case, arrays, "cuda", algorithm=algorithm)
        except ValueError as error:
            if re.match(refusal, str(error)):
                return
            raise
        for got, want in zip(found, run(case, [x.astype(float) for x in arrays], "cpu"), strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=bound(want, arrays, dtype))
        compared += 1
    for dtype in (np.float32,) if on_tensor_cores else DTYPES:
        each_case("conv2d", functools.partial(check, dtype=dtype))
    assert compared >= (1 if algorithm == "winograd" else 25), f"{compared} of {len(CASES['conv2d'])} cases"


# ---------------------------------------------------------------- every kernel
RANDOM = {"convolutions", "splitting_convolutions", "layouts", "nhwc_conv", "nhwc_grad_w", "nhwc_grad_w_few",
          "nhwc_grad_w_tma", "nhwc_grad_w_rows", "few_channels", "attention"}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("each", [each for family, rows in LAUNCHES.items() if family not in RANDOM | {"cases", "steps"}
                                  for each in rows], ids=str)
def test_launches(each: Launch, canaries: Any) -> None:
    """The table of checks/launches.py, which the emulator runs in part, on memory full of NaN, with edges that must
    stay; but for what is compared above, and in thousands of random shapes in the files beside this one."""
    each.run()


# ---------------------------------------------------------------- values that the docstrings single out
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("rows", [[[1e4, -1e4, 0.0]], [[np.nan, 1, 2]], [[np.inf, 1, 2]], [[-np.inf, 1, 2]],
                                  [[-np.inf] * 3], [[3e38, -3e38, 3e38]], [[5.0]]])
def test_softmax_of_special_values(name: str, rows: list[list[float]]) -> None:
    agrees(name, np.array(rows), 1, rtol=45)


@pytest.mark.parametrize("values", [[5, np.nan, 7, 1], [np.nan, np.nan], [-np.inf, -np.inf, -np.inf, -5], [3, 3, 3, 3],
                                    [np.inf, np.nan], [-1e38, -np.inf, np.nan, 0]])
@pytest.mark.parametrize("dtype", DTYPES)
def test_max_pool2d_of_special_values(values: list[float], dtype: type, canaries: Any) -> None:
    """Result and index, of windows along each axis and with padding, which never wins."""
    for shape in ((1, 1, 1, len(values)), (1, 1, len(values), 1)):
        x = np.array(values, dtype).reshape(shape)
        for size, padding in (((1, 2), (0, 1)), ((2, 1), (1, 0)), (2, 1)):
            g = pool_geometry("max_pool2d", shape, size, 1, padding)
            agrees("max_pool2d", x, g)


# ---------------------------------------------------------------- dropout draws the CPU's masks
def test_dropout_draws_on_cuda_what_it_draws_on_the_cpu() -> None:
    masks = []
    for where in device.DEVICES[1:]:
        minidl.manual_seed(5)
        x = Tensor(np.ones(1000, np.float32), device=where)
        masks.append([ops.dropout(x, 0.3).numpy() != 0 for _ in range(2)])
    np.testing.assert_array_equal(masks[0], masks[1])


# ---------------------------------------------------------------- primitives without an op
def test_updates_refuse_what_does_not_fit() -> None:
    checks.refused_updates()


# ---------------------------------------------------------------- indices, masks, order, and changes in place
def test_steps_with_indices_and_masks_are_captured() -> None:
    """No call waits for the host; and the gradients are the CPU's."""
    rng, found = np.random.default_rng(0), []
    values, index = rng.standard_normal((6, 40), np.float32), rng.integers(0, 40, (6, 40))
    for where in ("cpu", "cuda"):
        w, i = Tensor(values, device=where, requires_grad=True), Tensor(index, device=where)
        rows, held = Tensor(index[:, 0] % 6, device=where), Tensor(values.copy(), device=where)

        @minidl.compile
        def step(i: Tensor, rows: Tensor, w: Tensor = w, held: Tensor = held) -> Tensor:
            with minidl.no_grad():
                held[held > 0.5] = 0.25
            y = w.sort(1)[0] * w.gather(1, i) + w[rows] * w[:, i[0]] + held
            loss = (y * y).sum() + w.topk(3, 1)[0].sum() + (w[rows, i[:, 0]] ** 3).sum() + w.clip(-0.5, 0.5).sum()
            w.grad = None
            loss.backward()
            return loss
        losses = [step(i, rows).item() for _ in range(4)]
        assert where == "cpu" or not any("call by call" in note for note in step.program.notes)
        found.append((losses, w.grad.numpy()))
    for got, want in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- precision
@pytest.mark.parametrize("precision", device.PRECISIONS)
@pytest.mark.parametrize("algorithm", ["auto", "gemm", "implicit_gemm"])
def test_conv2d_in_every_precision(algorithm: str, precision: str, canaries: Any) -> None:
    device.set_precision(precision)
    for x, w, stride, padding in [((33, 6, 14, 14), (16, 6, 5, 5), 1, 0),
                                  ((8, 3, 32, 32), (64, 3, 8, 8), 1, ((4, 3), (4, 3))),
                                  ((5, 17, 9, 11), (33, 17, 3, 2), (2, 1), 1)]:
        g = conv_geometry(x, w, None, stride, padding, algorithm)
        images, filters, gy = (normal(*shape, dtype=np.float32, seed=seed) for seed, shape in enumerate((
            x, w, (g.n, g.m, g.oh, g.ow))))

        def of(k: Any, g: Any = g) -> Any:
            return g._replace(algorithm="gemm") if k is cpu else g
        for call, length, given in [
                (lambda k, x, w, of=of: k.conv2d(x, w, None, of(k)), g.c * g.kh * g.kw, (images, filters)),
                (lambda k, gy, w, of=of: k.conv2d_grad_x(gy, w, of(k)), g.m * g.kh * g.kw, (gy, filters)),
                (lambda k, gy, x, of=of: k.conv2d_grad_w(gy, x, of(k)), g.n * g.oh * g.ow, (gy, images))]:
            agrees(call, *given, against="float64", length=length)


def test_precision_is_in_use() -> None:
    """Each has its own error, about that of its rounding: three orders of magnitude lie between fp32 and bf16."""
    if int(cupy.cuda.Device().compute_capability) < 80:
        pytest.skip("this GPU has no tensor cores for tf32 and bf16")
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((256, 512), np.float32), rng.standard_normal((256, 512), np.float32)
    exact = x.astype(float) @ w.T.astype(float)
    errors = {}
    for precision in device.PRECISIONS:
        device.set_precision(precision)
        got = cuda.linear(cupy.asarray(x), cupy.asarray(w), None).get()
        errors[precision] = float(np.sqrt(np.mean((got - exact) ** 2)) / np.sqrt(512))
    assert errors["fp32"] < 2e-6
    assert errors["3xtf32"] < 2e-5
    assert 2.0**-13 < errors["tf32"] < 2.0**-10
    assert 2.0**-10 < errors["bf16"] < 2.0**-7


@pytest.mark.parametrize("op", DIFFERENTIABLE)
def test_precision_touches_only_products_of_layers(op: str) -> None:
    """Other ops, and everything in float64, have the same bits in any precision."""
    of_convolution = op in ("conv1d", "conv2d", "conv3d", "conv_transpose2d")
    dtype = np.float64 if of_convolution or op == "linear" else np.float32
    options = {"algorithm": "implicit_gemm"} if of_convolution else {}

    def check(case: Case) -> None:
        arrays = [x.astype(dtype) for x in case.arrays()]
        device.set_precision("fp32")
        before = run(case, arrays, "cuda", **options)
        device.set_precision("bf16")
        for got, want in zip(run(case, arrays, "cuda", **options), before, strict=True):
            assert got.tobytes() == want.tobytes()
    each_case(op, check)


# ---------------------------------------------------------------- training
@pytest.mark.parametrize(("name", "channels", "images"), [("lenet5", 1, 32), ("krizhevsky2009", 3, 16)])
def test_ten_steps_are_the_cpus(name: str, channels: int, images: int) -> None:
    rng = np.random.default_rng(0)
    batches = [(rng.standard_normal((images, channels, 32, 32)), rng.integers(0, 10, images)) for _ in range(10)]
    found = {}
    for where in ("cpu", "cuda"):
        minidl.manual_seed(1)
        model = zoo.build(name, in_channels=channels).to(dtype="float64").to(where)
        sgd = optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-3, nesterov=True)
        losses = [train_step(model, sgd, Tensor(x, device=where), labels) for x, labels in batches]
        found[where] = {"loss": np.array(losses), **model.state_dict()}
    for what, want in found["cpu"].items():
        np.testing.assert_allclose(found["cuda"][what], want, rtol=1e-8, atol=1e-8, err_msg=what)


def test_two_trainings_end_in_the_same_bits() -> None:
    states = []
    for _ in range(2):
        minidl.manual_seed(3)
        rng = np.random.default_rng(0)
        model = zoo.build("lenet5").to("cuda")
        sgd = optim.SGD(model.parameters(), 0.05, momentum=0.9)
        for _ in range(5):
            train_step(model, sgd, Tensor(rng.standard_normal((64, 1, 32, 32), np.float32), device="cuda"),
                       rng.integers(0, 10, 64))
        states.append(model.state_dict())
    for name, values in states[0].items():
        np.testing.assert_array_equal(values, states[1][name])


def test_a_module_moves_to_cuda_and_back() -> None:
    model = zoo.build("lenet5")
    before, parameters = model.state_dict(), list(model.parameters())
    x = np.random.default_rng(0).standard_normal((4, 1, 32, 32), np.float32)
    on_cpu = model(Tensor(x)).numpy().copy()
    model.to("cuda")
    assert {p.device for p in model.parameters()} == {"cuda"}
    np.testing.assert_allclose(model(Tensor(x, device="cuda")).numpy(), on_cpu, rtol=1e-4, atol=1e-5)
    assert model.to("cuda") is model
    model.to("cpu")
    assert [p.device for p in parameters] == ["cpu"] * len(parameters)
    for name, values in model.state_dict().items():
        np.testing.assert_array_equal(values, before[name])


def test_dropout_module_on_cuda() -> None:
    x = Tensor(np.ones((10, 10), np.float32), device="cuda")
    layer = nn.Dropout(0.5)
    assert 0 < np.count_nonzero(layer(x).numpy()) < 100
    np.testing.assert_array_equal(layer.eval()(x).numpy(), 1)


def test_weights_of_a_model_on_cuda(tmp_path: Path) -> None:
    model = zoo.build("lenet5").to("cuda")
    minidl.save(model, tmp_path / "w.h5")
    minidl.manual_seed(9)
    for where in ("cuda", "cpu"):
        other = zoo.build("lenet5").to(where)
        minidl.load(other, tmp_path / "w.h5")
        assert {p.device for p in other.parameters()} == {where}
        for name, values in other.state_dict().items():
            np.testing.assert_array_equal(values, model.state_dict()[name])
    minidl.save(model.to("cpu"), tmp_path / "again.h5")
    assert (tmp_path / "again.h5").read_bytes() == (tmp_path / "w.h5").read_bytes()


@pytest.mark.parametrize(("model", "name", "lr"), [("lenet5", "synthetic-digits", "0.1"),
                                                   ("krizhevsky2009", "synthetic-shapes", "0.003")])
def test_train_py_on_cuda(model: str, name: str, lr: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                          capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MINIDL_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--model", model, "--data", name, "--device", "cuda", "--epochs", "2", "--lr", lr,
                     "--limit-train", "2048", "--limit-test", "256", "--batch-size", "64", "--no-progress",
                     "--output-dir", "out"]) == 0
    assert " s (cuda); weights in out/weights.h5; " in capsys.readouterr().out.splitlines()[-1]
    metrics = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    assert json.loads((tmp_path / "out/config.json").read_text())["device"] == "cuda"
    assert metrics[1]["train_loss"] < metrics[0]["train_loss"] < 1.3 * math.log(10)
    assert cli.main(["--model", model, "--data", name, "--device", "cpu", "--epochs", "0", "--limit-train", "2048",
                     "--limit-test", "256", "--load", "out/weights.h5", "--no-progress", "--output-dir", "cpu"]) == 0
    accuracy = float(re.search(r"test accuracy ([\d.]+) %", capsys.readouterr().out.splitlines()[-1])[1])
    assert abs(accuracy - 100 * metrics[1]["test_accuracy"]) < 1


def test_a_loss_that_is_no_number_stops() -> None:
    model = zoo.build("perceptron").to("cuda")
    images = Tensor(np.full((2, 1, 32, 32), np.nan, np.float32), device="cuda")
    with pytest.raises(FloatingPointError, match="training: the loss is nan"):
        train_step(model, optim.SGD(model.parameters(), 0.1), images, np.array([0, 1]))


# ---------------------------------------------------------------- errors
PROBE = """
extern "C" __global__ void probe(const float* x, REAL* y, float single, double both, int n, Window g) {
    y[0] = (REAL)single;
    y[1] = (REAL)both;
    y[2] = (REAL)n;
    y[3] = (REAL)g.right;
    y[4] = x ? (REAL)x[0] : (REAL)-1;
}
"""


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "include").mkdir()
    (tmp_path / "include/common.cuh").write_text((launch.FOLDER / "include/common.cuh").read_text(encoding="utf-8"))
    (tmp_path / "probe.cu").write_text('#include "include/common.cuh"\n' + PROBE)
    monkeypatch.setattr("minidl.ops.common.sources.FOLDER", tmp_path)
    return launch.kernel("probe.cu", "probe", launch.real(np.dtype(np.float64)))


G = PoolGeometry(*range(14))


def test_numbers_and_structs_arrive(probe: Any) -> None:
    x, y = cupy.full(1, 5, np.float32), cupy.zeros(5)
    g = launch.by_value("Window", G)
    probe((1,), (1,), x, y, 0.1, 0.1, 7, g)
    assert y.tolist() == [float(np.float32(0.1)), 0.1, 7, 13, 5]
    probe((1,), (1,), None, y, 1, np.float64(0.1), np.int64(-1), g)
    assert y.tolist() == [1, 0.1, -1, 13, -1]
    assert launch.kernel("probe.cu", "probe", launch.real(np.dtype(np.float64))) is probe


KERNEL_ERRORS: dict[str, tuple[Callable[[Any, Any, Any], tuple[Any, ...]], type[Exception], str]] = {
    "count": (lambda x, y, g: (x, y, 0.1, 0.1, 7), TypeError, "probe: got 5 arguments but takes 6; pass each"),
    "dtype": (lambda x, y, g: (y, y, 0.1, 0.1, 7, g), TypeError,
              "probe: x has dtype float64 but the kernel reads float32; convert it first"),
    "strides": (lambda x, y, g: (x, cupy.zeros((4, 4)).T, 0.1, 0.1, 7, g), ValueError,
                r"probe: y has shape \(4, 4\) and strides \(8, 32\) but is written, in C order"),
    "host": (lambda x, y, g: (x.get(), y, 0.1, 0.1, 7, g), TypeError, "probe: x is a ndarray but must be a CuPy array"),
    "struct": (lambda x, y, g: (x, y, 0.1, 0.1, 7, G), TypeError,
               "probe: g is a PoolGeometry but must be 56 bytes from by_v"),
    "number": (lambda x, y, g: (x, y, "0.1x", 0.1, 7, g), TypeError, "probe: an argument is not a number of its"),
}


@pytest.mark.parametrize("what", KERNEL_ERRORS)
def test_a_kernel_refuses_what_it_would_misread(what: str, probe: Any) -> None:
    arguments, error, message = KERNEL_ERRORS[what]
    with pytest.raises(error, match=message):
        probe((1,), (1,), *arguments(cupy.zeros(1, np.float32), cupy.zeros(5), launch.by_value("Window", G)))


# ---------------------------------------------------------------- NumPy's dtypes in other objects
def unpickled(x: Any) -> Any:
    """An array whose dtype is equal to NumPy's own but another object, as pickle makes it."""
    return cupy.ndarray(x.shape, pickle.loads(pickle.dumps(x.dtype)), x.data, x.strides)


@pytest.mark.parametrize("op", OPS)
def test_a_dtype_that_is_another_object(op: str) -> None:
    """Kernels wrote to copies of such results."""
    assert unpickled(cupy.zeros(2)).dtype is not np.dtype(float)
    for case in CASES[op]:
        arrays = [x.astype(np.float32) if x.dtype == float else x for x in case.arrays()]
        for got, expected in zip(run(case, arrays, "cuda", unpickled), run(case, arrays, "cuda"), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_an_unpickled_array_gets_numpys_own_dtype() -> None:
    x = pickle.loads(pickle.dumps(np.ones((2, 3), np.float32)))
    for t in (Tensor(x, device="cuda"), Tensor(x).to("cuda"), Tensor(x.T, device="cuda")):
        assert t.data.dtype is np.dtype(np.float32)
        np.testing.assert_array_equal((t * 2).numpy(), np.full(t.shape, 2, np.float32))


def test_a_parameter_is_in_c_order() -> None:
    """Updates refused others."""
    at_first = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    for given in (at_first, cupy.asarray(at_first)):
        w = Tensor(given, requires_grad=True, device="cuda")
        (w * w).sum().backward()
        optim.SGD([w], lr=0.5).step()
        assert w.tolist() == np.zeros((2, 3)).tolist()


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "as_strided": lambda x: cupy.lib.stride_tricks.as_strided(x, (3, 2), (4, 4)),
    "ndarray": lambda x: cupy.ndarray(x.shape, x.dtype, x.data),
    "a part": lambda x: cupy.ndarray(2, x.dtype, x.data + 8),
    "view": lambda x: x[1:],
    "DLPack": lambda x: cupy.from_dlpack(x),
}


@pytest.mark.parametrize("name", HOLDERS)
@pytest.mark.parametrize("compiled", [False, True])
def test_memory_that_something_refers_to_is_not_handed_out(name: str, compiled: bool) -> None:
    """That need not refer to the array: its numbers changed when the next result was written."""
    def double(x: Tensor) -> Tensor:
        return x * 2.0

    call = minidl.compile(double) if compiled else double
    x = Tensor(np.arange(4, dtype=np.float32), device="cuda")
    for _ in range(3):
        call(x)
    held = [HOLDERS[name](call(x).data) for _ in range(6)]
    before = [each.get() for each in held]
    for _ in range(12):
        call(x + 100.0)
    for each, expected in zip(held, before, strict=True):
        np.testing.assert_array_equal(each.get(), expected)


def test_cupys_arrays_in_states_and_tables() -> None:
    def there(state: Any) -> Any:
        return {key: there(value) for key, value in state.items()} if isinstance(state, dict) else \
            [there(each) for each in state] if isinstance(state, list) else \
            cupy.asarray(state) if isinstance(state, np.ndarray) and state.ndim else state

    def made() -> tuple[Any, Any, Any]:
        minidl.manual_seed(0)
        net = nn.Linear(3, 2).to("cuda")
        return net, optim.Adam(net.parameters(), lr=0.1), optim.EMA(net.parameters(), decay=0.5)

    x = Tensor(np.ones((4, 3), np.float32), device="cuda")
    first, second = made(), made()
    for _ in range(2):
        first[0](x).sum().backward()
        first[1].step()
        first[2].update()
    for one, other in zip(first, second, strict=True):
        other.load_state_dict(there(one.state_dict()))
    for one, other in zip(first, second, strict=True):
        assert pickle.dumps(one.state_dict()) == pickle.dumps(other.state_dict())
    rows, labels = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([0, 1, 0, 1])
    tables = (data.Table("t", "train", *arrays) for arrays in (
        (rows, labels), (cupy.asarray(rows), cupy.asarray(labels))))
    here, same = ([[part.tolist() for part in batch] for batch in data.DataLoader(table, 2, seed=0, device="cuda")]
                  for table in tables)
    assert here == same


def every_second(x: np.ndarray) -> Any:
    twice = cupy.zeros((*x.shape, 2), x.dtype)
    twice[..., 0] = cupy.asarray(x)
    return twice[..., 0]


def of_another_library(x: np.ndarray) -> Any:
    """As PyTorch has them: NumPy can make no array of them."""
    held = every_second(x)
    return SimpleNamespace(held=held, __array__=None, __cuda_array_interface__=held.__cuda_array_interface__)


@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize("there", [cupy.asarray, lambda x: cupy.asarray(np.asfortranarray(x)), every_second,
                                   of_another_library], ids=["plain", "F", "every second", "of another library"])
def test_arrays_of_a_gpu_as_data(there: Callable[[np.ndarray], Any], where: str) -> None:
    rows, labels = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([0, 1, 0, 1])
    np.testing.assert_array_equal(Tensor(there(rows), device=where).numpy(), rows)
    for transform in (None, lambda x, y: (x * 2, y)):
        here, same = ([[part.tolist() for part in batch] for batch in data.DataLoader(
            arrays, 3, seed=0, device=where, transform=transform)] for arrays in (
                (rows, labels), (there(rows), there(labels))))
        assert here == same


def test_an_array_on_another_device(probe: Any) -> None:
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("there is one GPU only")
    with cupy.cuda.Device(1):
        x = cupy.zeros(1, np.float32)
    with pytest.raises(ValueError, match="probe: x is on device 1 but the current device is 0; use one device"):
        probe((1,), (1,), x, cupy.zeros(5), 0.1, 0.1, 7, launch.by_value("Window", G))


def test_mixed_devices_are_refused() -> None:
    here, there = Tensor(np.ones((2, 3))), Tensor(np.ones((2, 3)), device="cuda")
    for call in (lambda: here + there, lambda: there @ here.T, lambda: ops.linear(there, here)):
        with pytest.raises(ValueError, match=r"inputs are on devices (cpu and cuda|cuda and cpu); move them to one"):
            call()
    x = Tensor(np.ones(3), device="cuda", requires_grad=True)
    with pytest.raises(ValueError, match="backward: gradient has device cpu but the Tensor has device cuda"):
        (x * 2).backward(Tensor(np.ones(3)))


def test_tensors_on_cuda_say_so() -> None:
    x = Tensor([[1.0, 2.0]], requires_grad=True, device="cuda")
    assert "device=cuda" in repr(x)
    assert (x.device, x.tolist(), x.sum().item()) == ("cuda", [[1, 2]], 3)
    assert x.to("cuda") is x
    assert x.to("cpu").device == "cpu"
    assert x.to("cpu").requires_grad
    assert Tensor([1.0], device="auto").device == "cuda"
    assert isinstance(x.numpy(), np.ndarray)


@pytest.mark.parametrize("algorithm", ["nonsense", "direkt"])
def test_an_unknown_algorithm(algorithm: str) -> None:
    x, w = Tensor(np.ones((1, 1, 3, 3)), device="cuda"), Tensor(np.ones((1, 1, 2, 2)), device="cuda")
    with pytest.raises(ValueError, match=f"conv2d: algorithm '{algorithm}' is not one of direct, .* on cuda"):
        ops.conv2d(x, w, algorithm=algorithm)


def ones(*shape: int) -> Tensor:
    return Tensor(np.ones(shape), device="cuda")


TOO_LARGE: dict[str, Callable[[], Any]] = {
    "conv2d": lambda: ops.conv2d(ones(1, 1, 1, 1), ones(1, 1, 1, 1), padding=500_000, algorithm="direct"),
    "linear": lambda: ops.linear(ones(10**6, 1), ones(10**6, 1)),
    "add": lambda: ones(10**6, 1) + ones(1, 10**6),
}


@pytest.mark.parametrize("op", TOO_LARGE)
def test_too_little_memory(op: str) -> None:
    """8 TB: a MemoryError that says how much was asked for and how much is held, and the next call works."""
    held = ones(1000)
    with pytest.raises(MemoryError, match=r"\d[\d,]* bytes.*\d[\d,]* bytes"):
        TOO_LARGE[op]()
    assert (held + held).sum().item() == 2000
    assert ops.linear(ones(2, 3), ones(4, 3)).sum().item() == 24


@pytest.mark.parametrize("wrong", [10, -1, 2**31, 2**40])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_label_out_of_range_on_cuda_makes_the_loss_nan(wrong: int, reduction: str) -> None:
    """Looking at the labels first would wait for the GPU at each step; a NaN is seen where the loss is."""
    logits = Tensor(np.zeros((3, 10), np.float32), device="cuda", requires_grad=True)
    loss = ops.cross_entropy(logits, Tensor(np.array([0, wrong, 9]), device="cuda"), reduction=reduction)
    if reduction == "none":
        assert np.isnan(loss.numpy()).tolist() == [False, True, False]
    else:
        assert math.isnan(loss.item())


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64, np.uint16])
def test_labels_of_any_integer_dtype(dtype: type) -> None:
    logits = np.random.default_rng(0).standard_normal((5, 4))
    labels = np.array([0, 3, 1, 2, 2], dtype)
    want = ops.cross_entropy(Tensor(logits), labels).item()
    with pytest.raises(ValueError, match="inputs are on devices"):
        ops.cross_entropy(Tensor(logits, device="cuda"), Tensor(labels))
    for given in (labels, labels.tolist(), Tensor(labels, device="cuda")):
        assert ops.cross_entropy(Tensor(logits, device="cuda"), given).item() == pytest.approx(want, rel=1e-14)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["transposed", "reshaped"])
def test_a_gradient_that_is_a_view_of_all_of_a_result_is_not_copied(name: str) -> None:
    """Nobody else refers to that. A given gradient is somebody's, and so is a part of a result."""
    x = Tensor(np.ones((64, 32), np.float32), requires_grad=True, device="cuda")
    view = {"transposed": lambda x: x.mT, "reshaped": lambda x: x.reshape(-1)}[name]
    (view(x) * 2.0).sum().backward()
    assert x.grad.data.base is not None
    seed, z = Tensor(np.ones((64, 32), np.float32), device="cuda"), Tensor(np.ones(x.shape, np.float32), True, "cuda")
    view(z).backward(view(seed))
    assert not np.may_share_memory(z.grad.data, seed.data)
