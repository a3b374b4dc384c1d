"""Kernels of a student's: the course's convolution as it is handed in, and those of linear layers, poolings and
activations, checked on the emulated GPU and used in nets."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks.compiler import needs_compiler, on_cuda
from checks.own_convs import forget
from tiers import tiered

import minidl
from minidl import Tensor, nn, ops
from minidl.lab.check import check
from minidl.ops import cpu
from minidl.ops.common.conv.own import KINDS, REGISTERED, by_users
from minidl.ops.common.primitives import OWN, PRIMITIVES
from minidl.tools import cli
from minidl.tools.cli import train


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    forget()
    for kind, known in REGISTERED.items():
        for name, direction in [(name, direction) for name in known for direction in KINDS[kind]]:
            primitive = by_users(kind, name, direction)
            for room in filter(None, (cpu, sys.modules.get("minidl.ops.cuda"))):       # the latter if there is CuPy
                vars(room).pop(primitive, None)
            del OWN[primitive], PRIMITIVES[primitive]
        known.clear()


# ---------------------------------------------------------------- ECE408: constant memory, no bias, a 3-D grid
HEADER = """\
class GPUInterface {
  public:
    void get_device_properties();
    void conv_forward_gpu(float *device_output, const float *device_input, const float *device_mask, const int Batch,
                          const int Map_out, const int Channel, const int Height, const int Width, const int K);
};
"""
FORWARD = """\
#include <cmath>
#include <iostream>
#include "gpu-new-forward.h"

#define TILE_WIDTH 16
__constant__ float Mc[4096];

__global__ void conv_forward_kernel(float *output, const float *input, const int Batch, const int Map_out,
                                    const int Channel, const int Height, const int Width, const int K)
{
    const int Height_out = Height - K + 1;
    const int Width_out = Width - K + 1;
    #define out_4d(i3, i2, i1, i0) output[(i3) * (Map_out * Height_out * Width_out) + \\
                                          (i2) * (Height_out * Width_out) + (i1) * (Width_out) + i0]
    #define in_4d(i3, i2, i1, i0) input[(i3) * (Channel * Height * Width) + (i2) * (Height * Width) + (i1) * (Width) \\
                                        + i0]
    #define mask_4d(i3, i2, i1, i0) Mc[(i3) * (Channel * K * K) + (i2) * (K * K) + (i1) * (K) + i0]
    int W_grid = (Width_out - 1) / TILE_WIDTH + 1;
    int m = blockIdx.x, b = blockIdx.z;
    int h = (blockIdx.y / W_grid) * TILE_WIDTH + threadIdx.y;
    int w = (blockIdx.y % W_grid) * TILE_WIDTH + threadIdx.x;
    if (h < Height_out && w < Width_out) {
        float acc = 0.0f;
        for (int c = 0; c < Channel; c++)
            for (int p = 0; p < K; p++)
                for (int q = 0; q < K; q++) acc += in_4d(b, c, h + p, w + q) * mask_4d(m, c, p, q);
        out_4d(b, m, h, w) = acc;
    }
    #undef out_4d
    #undef in_4d
    #undef mask_4d
}

__host__ void GPUInterface::conv_forward_gpu(float *device_output, const float *device_input, const float *device_mask,
    const int Batch, const int Map_out, const int Channel, const int Height, const int Width, const int K)
{
    cudaMemcpyToSymbol(Mc, device_mask, Map_out * Channel * K * K * sizeof(float));
    dim3 dimBlock(TILE_WIDTH, TILE_WIDTH, 1), dimGrid(Map_out, 1, Batch);
    conv_forward_kernel<<<dimGrid, dimBlock>>>(device_output, device_input, Batch, Map_out, Channel, Height, Width, K);
}

__host__ void GPUInterface::get_device_properties()
{
    cudaDeviceProp deviceProp;
    cudaGetDeviceProperties(&deviceProp, 0);
    std::cout << deviceProp.name << std::endl;
}
"""
REGISTERS = """\
from pathlib import Path

import minidl
from tile_sizes import TILE


def y(launch, x, w, y, g):
    launch.copy_to_symbol("Mc", w)
    tiles = -(-g.oh // TILE) * -(-g.ow // TILE)
    launch("conv_forward_kernel", (g.m, tiles, g.n), (TILE, TILE, 1), y, x, g.n, g.m, g.c, g.h, g.w, g.kh)


def refuses(direction, g, dtype):
    if g.kh != g.kw or (g.sh, g.sw, g.top, g.bottom, g.left, g.right) != (1, 1, 0, 0, 0, 0):
        return "it has square filters, stride 1 and no padding"
    if g.m * g.c * g.kh * g.kw > 4096:
        return "the filters are larger than Mc"


minidl.register_conv("mine", Path(__file__).with_name("new-forward.cu"), y=y, refuses=refuses, bias=False)
"""


@pytest.fixture
def submission(elsewhere: None) -> None:
    for name, text in {"gpu-new-forward.h": HEADER, "new-forward.cu": FORWARD, "my_conv.py": REGISTERS,
                       "tile_sizes.py": "TILE = 16\n"}.items():
        Path(name).write_text(text)


@needs_compiler
@pytest.mark.parametrize("header", tiered([False, True], slow=1))
def test_a_students_file_is_checked_as_it_is(header: bool, submission: None,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    if not header:
        Path("gpu-new-forward.h").unlink()
    assert cli.main(["check", "my_conv.py", "--shapes", "8"]) == 0
    y, *rest = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"mine y: \d cases compared on the emulated GPU, \d+ refused, at most 0\.\d\d of the tolerance "
                        "used", y)
    assert rest == [f"mine {direction}: there is no launcher; 'auto' computes it" for direction in ("dx", "dw")]


@pytest.mark.deep
@needs_compiler
@pytest.mark.parametrize(("file", "old", "new", "said"), [
    ("my_conv.py", '    launch.copy_to_symbol("Mc", w)\n', "", r"new-forward.cu:26: .* reads Mc\[\d+\], constant "
     "memory that nothing filled"),
    ("my_conv.py", '"Mc", w', '"M", w', "mine: new-forward.cu declares no __constant__ and no __device__ memory "
     "'M'; correct the name"),
    ("my_conv.py", "    tiles = ", "    assert g.kh < 3\n    tiles = ", r"my_conv.py:9: assert g.kh < 3; if it cannot "
     "be computed, say so by refuses="),
    ("new-forward.cu", "h < Height_out &&", "h <= Height_out &&", r"mine y float32 .*new-forward.cu:2[67]: ")])
def test_what_a_student_forgets(file: str, old: str, new: str, said: str, submission: None,
                                capsys: pytest.CaptureFixture[str]) -> None:
    Path(file).write_text(Path(file).read_text().replace(old, new))
    assert cli.main(["check", "my_conv.py", "--shapes", "0"]) in (1, 2)
    assert re.search(said, told := capsys.readouterr().err), told


@pytest.mark.slow
def test_it_trains_where_auto_computes(submission: None, capsys: pytest.CaptureFixture[str]) -> None:
    train.main(["--plugin", "my_conv.py", "--conv-algorithm", "mine", "--data", "synthetic-digits", "--limit-train",
                "40", "--limit-test", "20", "--no-progress", "--device", "cpu", "--epochs", "1", "--output-dir", "run"])
    said = capsys.readouterr()
    assert "after 1 epoch" in said.out
    assert "conv2d: algorithm 'mine' has no kernel for the cpu; 'auto' is used there" in said.err


# ---------------------------------------------------------------- linear, poolings, activations
KERNELS = """
#include "include/common.cuh"
extern "C" __global__ void product(const REAL* a, const REAL* b, REAL* out, int rows, int inner, int columns,
                                   int a_across, int a_down, int b_across, int b_down) {
    const int at = THREAD;
    if (at >= rows * columns) return;
    REAL sum = 0;
    for (int k = 0; k < inner; k++)
        sum += a[at / columns * a_down + k * a_across] * b[at % columns * b_down + k * b_across];
    out[at] = sum;
}
extern "C" __global__ void pool(const REAL* x, REAL* y, Window g, int largest) {
    const int at = THREAD, j = at % g.ow, i = at / g.ow % g.oh;
    if (at >= g.n * g.c * g.oh * g.ow) return;
    REAL sum = largest ? (REAL)-1e30 : (REAL)0;
    for (int p = 0; p < g.kh; p++)
        for (int q = 0; q < g.kw; q++) {
            const int r = i * g.sh - g.top + p, s = j * g.sw - g.left + q;
            if (r < 0 || s < 0 || r >= g.h || s >= g.w) continue;
            const REAL pixel = x[(at / (g.ow * g.oh) * g.h + r) * g.w + s];
            sum = largest ? (pixel > sum ? pixel : sum) : sum + pixel;
        }
    y[at] = largest ? sum : sum / (g.kh * g.kw);
}
extern "C" __global__ void pool_back(const REAL* gy, const REAL* x, const REAL* y, REAL* gx, Window g) {
    const int at = THREAD, s = at % g.w, r = at / g.w % g.h;
    if (at >= g.n * g.c * g.h * g.w) return;
    REAL sum = 0;
    for (int i = 0; i < g.oh; i++)
        for (int j = 0; j < g.ow; j++) {
            const int p = r - i * g.sh + g.top, q = s - j * g.sw + g.left;
            const int of = (at / (g.w * g.h) * g.oh + i) * g.ow + j;
            if (p < 0 || q < 0 || p >= g.kh || q >= g.kw) continue;
            bool first = true;                              // of the window's maxima, which may be equal
            for (int k = 0; x && k < p * g.kw + q; k++) {
                const int row = i * g.sh - g.top + k / g.kw, column = j * g.sw - g.left + k % g.kw;
                if (row < 0 || column < 0 || column >= g.w) continue;
                first = first && x[(at / (g.w * g.h) * g.h + row) * g.w + column] != y[of];
            }
            sum += x ? (x[at] == y[of] && first ? gy[of] : (REAL)0) : gy[of] / (g.kh * g.kw);
        }
    gx[at] = sum;
}
extern "C" __global__ void relu(const REAL* x, const REAL* y, REAL* out, int n) {
    if (THREAD < n) out[THREAD] = y ? (y[THREAD] > 0 ? x[THREAD] : (REAL)0) : (x[THREAD] > 0 ? x[THREAD] : (REAL)0);
}
"""


def blocks(array: Any) -> int:
    return int(-(-array.size // 128))


def products(launch: Any, a: Any, b: Any, out: Any, inner: int, *strides: int) -> None:
    launch("product", blocks(out), 128, a, b, out, len(out), inner, out.shape[1], *strides)


def linear() -> None:
    minidl.register_linear(
        "mine", KERNELS, bias=False,
        y=lambda launch, x, w, y: products(launch, x, w, y, x.shape[1], 1, x.shape[1], 1, x.shape[1]),
        dx=lambda launch, gy, w, dx: products(launch, gy, w, dx, len(w), 1, len(w), w.shape[1], 1),
        dw=lambda launch, gy, x, dw: products(launch, gy, x, dw, len(x), gy.shape[1], 1, x.shape[1], 1))


def max_pool() -> None:
    minidl.register_pool(
        "mine", KERNELS, of="max", y=lambda launch, x, y, g: launch("pool", blocks(y), 128, x, y, g, 1),
        dx=lambda launch, gy, x, y, dx, g: launch("pool_back", blocks(dx), 128, gy, x, y, dx, g))


def avg_pool() -> None:
    minidl.register_pool(
        "mine", KERNELS, of="avg", y=lambda launch, x, y, g: launch("pool", blocks(y), 128, x, y, g, 0),
        dx=lambda launch, gy, dx, g: launch("pool_back", blocks(dx), 128, gy, None, None, dx, g))


def relu() -> None:
    minidl.register_activation(
        "mine", KERNELS, of="relu", y=lambda launch, x, y: launch("relu", blocks(y), 128, x, None, y, y.size),
        dx=lambda launch, gy, y, dx: launch("relu", blocks(dx), 128, gy, y, dx, dx.size))


REGISTER: dict[str, Callable[[], None]] = {"linear": linear, "max_pool2d": max_pool, "avg_pool2d": avg_pool,
                                           "relu": relu}


@needs_compiler
@pytest.mark.parametrize("kind", tiered(REGISTER, slow=1))
def test_kernels_of_a_kind_are_checked(kind: str) -> None:
    REGISTER[kind]()
    seen = check("mine", kind, shapes=5)
    assert set(seen) == set(KINDS[kind])
    for each in seen.values():
        assert each.compared >= 8
        assert each.refused == each.differing == 0


@needs_compiler
@pytest.mark.parametrize(("kind", "old", "new", "said"), tiered([
    ("linear", "k < inner", "k < inner - 1", r"mine y float32 x \(1, 1\) w \(1, 1\): an error is"),
    ("max_pool2d", "x[at] == y[of]", "x[at] >= y[of] - 1", r"mine dx float32 x .* window .*: an error is"),
    ("max_pool2d", " && first", "", r"mine dx float32 x .* window .*: an error is"),
    ("max_pool2d", "-1e30", "-10", r"mine y float32 x .* window .*: an error is"),
    ("avg_pool2d", "sum / (g.kh * g.kw)", "sum / (g.kh + g.kw)", r"mine y float32 x .* window .*: an error is"),
    ("relu", "THREAD < n", "THREAD <= n", r"mine y float32 x .*mine.cu:\d+: .* outside of all arrays"),
    ("relu", "? x[THREAD] : (REAL)0);", "? min(x[THREAD], (REAL)6) : (REAL)0);", "mine y float32 x .*: an error is")],
    slow=1, several=True))
def test_a_wrong_kernel_of_a_kind(kind: str, old: str, new: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert KERNELS.count(old) == 1
    monkeypatch.setattr(f"{__name__}.KERNELS", KERNELS.replace(old, new))
    REGISTER[kind]()
    with pytest.raises(AssertionError, match=said):
        check("mine", kind, shapes=5)


def net(algorithm: str) -> nn.Module:
    minidl.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(algorithm=algorithm), nn.MaxPool2d(2, algorithm=algorithm),
                         nn.AvgPool2d(3, algorithm=algorithm), nn.Flatten(), nn.Linear(2, 3, algorithm=algorithm))


def losses(of: nn.Module, x: Tensor, compiled: bool) -> list[Any]:
    def step(x: Tensor) -> Tensor:
        for parameter in of.parameters():
            parameter.grad = None
        loss = (of(x) * of(x)).sum()
        loss.backward()
        return loss
    run = minidl.compile(step) if compiled else step

    def copied(t: Tensor) -> np.ndarray:
        return t.data.get() if t.device == "cuda" else np.array(t.data)
    return [*(copied(run(x)) for _ in range(3)), *(copied(p.grad) for p in of.parameters() if p.grad is not None)]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_net_on_the_cpu_has_autos_bits_and_says_so(compiled: bool) -> None:
    for register in REGISTER.values():
        register()
    x = Tensor(np.random.default_rng(0).standard_normal((4, 1, 9, 9)).astype(np.float32))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = losses(net("mine"), x, compiled)
    assert sorted(str(each.message) for each in caught if "algorithm" in str(each.message)) == [
        f"{kind}: algorithm 'mine' has no kernel for the cpu; 'auto' is used there" for kind in sorted(REGISTER)]
    for one, other in zip(ours, losses(net("auto"), x, compiled), strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(("call", "words"), [
    (lambda: ops.linear(Tensor([[1.0]]), Tensor([[1.0]]), algorithm="other"),
     "linear: algorithm 'other' is not one of auto; your own is registered by minidl.register_linear, register"),
    (lambda: minidl.register_pool("mine", KERNELS, of="sum"), "register_pool: of is 'sum' but must be 'max' or 'avg'"),
    (lambda: minidl.register_activation("mine", KERNELS, of="gelu"), "register_activation: of is 'gelu' but must"),
    (lambda: minidl.register_linear("mine", KERNELS, y=lambda launch, x, w, y: None),
     r"register_linear: y of 'mine' takes \(launch, x, w, y\) but is called with \(launch, x, w, b, y\); .*bias=False"),
    (lambda: minidl.register_linear("auto", KERNELS, y=lambda launch, x, w, b, y: None),
     "register_linear: the name 'auto' is taken by one of minidl's own"),
    (lambda: check("mine", "lstm"), "check: 'lstm' is not one of conv2d, linear, "),
    (lambda: check("mine", "linear"), r"check: 'mine' is not registered \(nothing is\)")])
def test_what_is_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.slow
@needs_compiler
def test_sums_by_atomics_pass_and_are_noted(elsewhere: None, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.py").write_text('''
import minidl


def y(launch, x, w, y):
    launch("zero", 1, 1, y, y.size)
    launch("add", y.size, 64, x, w, y, x.shape[1], y.shape[1])


minidl.register_linear("atomic", """
__global__ void zero(float* y, int n) { for (int i = 0; i < n; i++) y[i] = 0; }
__global__ void add(const float* x, const float* w, float* y, int inner, int columns) {
    for (int k = threadIdx.x; k < inner; k += 64)
        atomicAdd(y + blockIdx.x, x[blockIdx.x / columns * inner + k] * w[blockIdx.x % columns * inner + k]);
}""", y=y, bias=False)
''')
    assert cli.main(["check", "my.py", "--shapes", "0"]) == 0
    assert re.search(r"linear atomic y: 6 cases .*; of \d two runs differ in bits \(atomics\)", capsys.readouterr().out)


# ---------------------------------------------------------------- on the emulated GPU, by its own launchers, and on one
def submitted() -> Callable[[], nn.Module]:
    """What makes a net of all that is registered: two convolutions fill the same memory."""
    from minidl.zoo.own import import_file

    import_file("my_conv.py")
    for register in REGISTER.values():
        register()

    def build() -> nn.Module:
        minidl.manual_seed(3)
        return nn.Sequential(nn.Conv2d(1, 2, 1, algorithm="mine"), nn.Conv2d(2, 2, 3, algorithm="mine"),
                             *net("mine")[1:])
    return build


@pytest.mark.deep
@on_cuda
def test_a_students_kernels_train_on_the_emulated_gpu(submission: None, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution with its filters in constant memory, and a linear layer, poolings and an activation: the numbers of
    the CPU, plain and compiled; minidl adds the biases."""
    from emulator import Emulator
    from ops.test_own_conv import moved

    from minidl.core.tensor import wrap
    from minidl.ops import cuda

    build = submitted()
    monkeypatch.setattr(cuda.conv, "fastest", lambda direction, g, dtype, arguments, able: "implicit_gemm")
    monkeypatch.setattr("minidl.compiler.step.can_be_captured", lambda program: False)       # no graph without a GPU
    x = np.random.default_rng(0).standard_normal((4, 1, 9, 9)).astype(np.float32)
    (tmp_path / "emulated").mkdir()
    with warnings.catch_warnings(), Emulator(tmp_path / "emulated").running() as gpu:
        warnings.simplefilter("ignore")
        want = losses(build(), Tensor(x), False)
        for compiled in (False, True):
            got = losses(moved(build(), gpu), wrap(gpu.memory.asarray(x)), compiled)
            for one, other in zip(got, want, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        assert {"conv_forward_kernel", "product", "pool", "pool_back", "relu"} <= gpu.launched


@pytest.mark.slow
@on_cuda
def test_a_kernel_of_a_file_with_host_code(elsewhere: None, tmp_path: Path) -> None:
    """minidl.kernel, with numbers and arrays of the types that courses use."""
    from emulator import Emulator

    Path("k.cu").write_text("""
#include <stdio.h>
__global__ void k(const float4* x, float4* y, unsigned int n, bool twice) {
    if (threadIdx.x < n) y[threadIdx.x].x = twice ? 2 * x[threadIdx.x].y : 0;
}
int main() { k<<<1, 1>>>(0, 0, 1, true); }""")
    (tmp_path / "emulated").mkdir()
    with Emulator(tmp_path / "emulated").running() as gpu:
        x, y = gpu.memory.asarray(np.arange(8, dtype=np.float32)), gpu.memory.asarray(np.zeros(8, np.float32))
        minidl.kernel("k.cu", "k")((1,), (32,), x, y, 2, True)
        assert np.array(y).tolist() == [2, 0, 0, 0, 10, 0, 0, 0]


def lenet() -> nn.Module:
    """Its third convolution has more filters than the student's constant memory holds."""
    minidl.manual_seed(3)
    built = minidl.zoo.build("lenet5")
    for _, layer in built.named_modules():
        if isinstance(layer, nn.Conv2d):
            layer.algorithm = "mine"
    return built


LEFT = "conv2d: algorithm 'mine': the filters are larger than Mc; 'auto' is used there"


@pytest.mark.deep
@on_cuda
def test_lenet5_trains_with_a_students_file_on_the_emulated_gpu(submission: None, tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    from emulator import Emulator
    from ops.test_own_conv import moved

    from minidl.core.tensor import wrap
    from minidl.ops import cuda
    from minidl.zoo.own import import_file

    import_file("my_conv.py")
    monkeypatch.setattr(cuda.conv, "fastest", lambda direction, g, dtype, arguments, able: "implicit_gemm")
    x = np.random.default_rng(0).standard_normal((2, 1, 32, 32), np.float32)
    (tmp_path / "emulated").mkdir()
    with warnings.catch_warnings(record=True) as said, Emulator(tmp_path / "emulated").running() as gpu:
        warnings.simplefilter("always")
        want = losses(lenet(), Tensor(x), False)
        got = losses(moved(lenet(), gpu), wrap(gpu.memory.asarray(x)), False)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert "conv_forward_kernel" in gpu.launched
    assert [str(each.message) for each in said].count(LEFT) == 1


@pytest.mark.gpu
@pytest.mark.usefixtures("fp32")
@pytest.mark.filterwarnings("ignore: .* has no kernel for the cpu")
def test_gpu_a_students_kernels_train(submission: None) -> None:
    """The numbers of the CPU, plain and as a graph."""
    build, x = submitted(), np.random.default_rng(0).standard_normal((4, 1, 9, 9)).astype(np.float32)
    want = losses(build(), Tensor(x), False)
    for compiled in (False, True):
        got = losses(build().to("cuda"), Tensor(x, device="cuda"), compiled)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["conv2d", *REGISTER])
def test_gpu_kernels_of_a_kind_are_checked(kind: str, submission: None, capsys: pytest.CaptureFixture[str]) -> None:
    if kind == "conv2d":
        assert cli.main(["check", "my_conv.py", "--device", "cuda", "--shapes", "8"]) == 0
        return
    REGISTER[kind]()
    assert {each.differing for each in check("mine", kind, device="cuda", shapes=8).values()} == {0}
