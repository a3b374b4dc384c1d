"""Convolution algorithms of a user's own: docs/your-own-kernel.md as printed, checked, trained with and compiled on the
emulated GPU, and what is refused."""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks.compiler import needs_compiler, on_cuda
from checks.own_convs import forget
from checks.references import ROOT
from tiers import tiered

import minidl
from minidl import Tensor, nn, ops
from minidl.lab.own import taken
from minidl.ops.common.conv.own import OWN
from minidl.ops.cpu import conv as on_the_cpu
from minidl.tools import cli
from minidl.tools.cli import train

PAGE = (ROOT / "docs" / "your-own-kernel.md").read_text(encoding="utf-8")
CUDA, PYTHON = (re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) for language in ("cuda", "python"))
DIRECT = ROOT / "minidl" / "ops" / "cuda" / "conv" / "papers" / "direct.cu"
COUNT = re.compile(r"(\d+) cases compared on the emulated GPU, 0 refused, at most 0\.\d\d of the tolerance used")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    forget()


@pytest.fixture
def plugin(elsewhere: None) -> Path:
    """The page's two files in the present folder."""
    Path("mine.cu").write_text(*CUDA, encoding="utf-8")
    Path("my_conv.py").write_text("\n".join(PYTHON), encoding="utf-8")
    return Path("my_conv.py")


def broken(old: str, new: str) -> None:
    """The page's kernels with a fault."""
    assert CUDA[0].count(old) == 1
    Path("mine.cu").write_text(CUDA[0].replace(old, new), encoding="utf-8")


def direct(name: str = "again", source: Any = DIRECT, **more: Any) -> None:
    """The formula's kernels, registered as a user's."""
    def blocks(array: Any) -> int:
        return -(-array.size // 256)

    minidl.register_conv(
        name, source,
        y=lambda launch, x, w, b, y, g: launch("conv2d_direct_y", blocks(y), 256, x, w, b, y, g),
        dx=lambda launch, gy, w, dx, g: launch("conv2d_direct_dx", blocks(dx), 256, gy, w, dx, g),
        dw=lambda launch, gy, x, dw, g: launch("conv2d_direct_dw", blocks(dw), 256, gy, x, dw, g), **more)


# ---------------------------------------------------------------- the page
def test_the_page_takes_few_lines() -> None:
    assert len(CUDA) == 1
    assert sum(len(block.splitlines()) for block in (*CUDA, *PYTHON)) < 60


@pytest.mark.parametrize("architecture", tiered([75, 90], slow=1))
def test_the_pages_kernels_compile_for_gpus(architecture: int) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")
    from checks.sources import compiled, spilled

    from minidl.ops.common.sources import pasted

    for real in ("float", "double"):
        constants = (("REAL", real), ("RUN", 4), ("BLOCK", 128))
        found = spilled(compiled(pasted("mine.cu", CUDA[0], set()), constants, architecture))
        assert found == {"mine_y": 0, "mine_dw": 0}


@pytest.mark.deep
@needs_compiler
def test_the_page_is_checked_without_a_gpu(plugin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check-conv", str(plugin), "--shapes", "8"]) == 0
    y, dx, dw = capsys.readouterr().out.splitlines()
    print(y, dx, dw, sep="\n")
    for line, direction in ((y, "y"), (dw, "dw")):
        found = COUNT.fullmatch(line.removeprefix(f"mine {direction}: "))
        assert found, line
        assert int(found[1]) >= 14
    assert dx == "mine dx: there is no launcher; 'auto' computes it"


@pytest.mark.deep
@needs_compiler
def test_the_pages_counts_are_as_printed(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path.cwd())
    try:
        found = doctest.testfile(str(ROOT / "docs" / "your-own-kernel.md"), module_relative=False, encoding="utf-8")
    finally:
        sys.modules.pop("my_conv", None)
    assert found.attempted > 0
    assert found.failed == 0


@needs_compiler
@pytest.mark.parametrize(("old", "new", "words"), tiered([
    ("at >= g.n", "at > g.n", r"mine y float32 x \(1, 1, 1, 1\) .*thread \(1, 0, 0\) of block \(0, 0, 0\) reads .*"
     "outside of all arrays"),
    ("        __syncthreads();\n", "", r"mine dw float32 .*: mine.cu:33: .*reads sums\[.*a race, with no barrier"),
    ("- g.left + q, g.h, g.w);\n            }", "+ q, g.h, g.w);\n            }",
     r"mine y float32 .*: an error is \S+ times its tolerance"),
    ("r < RUN && j", "r < 1 && j", r"mine y float32 .*: \d+ of \d+ elements are not written, or NaN"),
    ("(b ? b[m] : (REAL)0)", "b[m]", r"mine y float32 .* reads through a null pointer, outside of all arrays")],
    slow=1, several=True))
def test_a_fault_is_found(old: str, new: str, words: str, plugin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken(old, new)
    assert cli.main(["check-conv", str(plugin), "--shapes", "6"]) == 1
    told = capsys.readouterr().err
    assert re.search(words, told), told


@pytest.mark.deep
def test_training_on_the_cpu_says_that_auto_computes(plugin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--data", "synthetic-digits", "--limit-train", "40", "--limit-test", "20", "--no-progress", "--device",
             "cpu"]
    train.main(["--plugin", str(plugin), "--conv-algorithm", "mine", *flags, "--epochs", "1", "--output-dir", "run"])
    said = capsys.readouterr()
    assert "after 1 epoch" in said.out
    assert said.err.count("conv2d: algorithm 'mine' has no kernel for the cpu; 'auto' is used there") == 1
    assert json.loads(Path("run/config.json").read_text())["plugin"] == ["my_conv.py"]
    forget()
    assert train.main(["--resume", "run", "--no-progress"]) == 2             # a folder names no code that is run
    assert "add --plugin=my_conv.py, else remove" in capsys.readouterr().err
    assert train.main(["--resume", "run", "--no-progress", "--plugin", "my_conv.py"]) == 0
    forget()
    plugin.rename("elsewhere.py")
    assert train.main(["--resume", "run", "--no-progress", "--plugin", "my_conv.py"]) == 2
    assert "'my_conv.py' is not a file; name a Python file of yours" in capsys.readouterr().err
    assert train.main(["--resume", "run", "--no-progress", "--plugin", "elsewhere.py"]) == 0


@pytest.mark.parametrize(("text", "words"), [
    ("import minidl\n1 / 0\n", "my_conv.py: ZeroDivisionError: division by zero"),
    ("import minidl\n", "my_conv.py registers no kernels; call minidl.register_conv in it, or register_linear")])
def test_a_plugin_that_does_not_register(text: str, words: str, plugin: Path,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    plugin.write_text(text)
    assert cli.main(["check-conv", "my_conv.py"]) == 2
    assert words in capsys.readouterr().err


# ---------------------------------------------------------------- on the emulated GPU, by its own launchers
@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Where `auto` takes implicit_gemm."""
    from emulator import Emulator

    from minidl.ops import cuda

    monkeypatch.setattr(cuda.conv, "fastest", lambda direction, g, dtype, arguments, able: "implicit_gemm")
    (tmp_path / "emulated").mkdir()
    with Emulator(tmp_path / "emulated").running() as emulator:
        yield emulator


def step_of(net: nn.Module) -> Callable[[Tensor], Tensor]:
    def step(x: Tensor) -> Tensor:
        for parameter in net.parameters():
            parameter.grad = None
        loss = ops.avg_pool2d(ops.tanh(net(x)), 2).sum()
        loss.backward()
        return loss
    return step


def moved(net: nn.Module, there: Any) -> nn.Module:
    for parameter in net.parameters():
        parameter._data = there.memory.asarray(parameter.numpy())
    return net


@pytest.mark.deep
@on_cuda
def test_a_step_on_cuda_plain_and_compiled(plugin: Path, gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """y and dw by the page's kernels, dx by `auto`: the numbers of the CPU, and recorded, the same bits."""
    from minidl.core.tensor import wrap
    from minidl.zoo.own import import_file as load

    load(str(plugin))

    def build() -> nn.Module:
        minidl.manual_seed(3)
        return nn.Sequential(nn.Conv2d(2, 3, 3, algorithm="mine"), nn.Conv2d(3, 2, 4, algorithm="mine"))
    x = np.random.default_rng(0).standard_normal((3, 2, 9, 9)).astype(np.float32)
    with pytest.warns(UserWarning, match="algorithm 'mine' has no kernel for the cpu; 'auto' is used there"):
        here, want = build(), step_of(net := build())(Tensor(x))
    there = moved(here, gpu)
    with pytest.warns(UserWarning, match="algorithm 'mine' has no kernel for dx; 'auto' is used there"):
        got = step_of(there)(wrap(gpu.memory.asarray(x)))
    np.testing.assert_allclose(np.array(got.data), want.numpy(), rtol=1e-5)
    plain = [np.array(p.grad.data) for p in there.parameters() if p.grad is not None]
    for found, parameter in zip(plain, net.parameters(), strict=True):
        assert parameter.grad is not None
        np.testing.assert_allclose(found, parameter.grad.numpy(), rtol=1e-4, atol=1e-5)
    assert {"mine_y", "mine_dw"} <= gpu.launched
    monkeypatch.setattr("minidl.compiler.step.can_be_captured", lambda program: False)       # no graph without a GPU
    compiled = minidl.compile(step_of(there))
    for _ in range(4):
        gpu.launched.clear()
        again = compiled(wrap(gpu.memory.asarray(x)))
        assert np.array(again.data).tobytes() == np.array(got.data).tobytes()
        for found, parameter in zip(plain, there.parameters(), strict=True):
            assert parameter.grad is not None
            assert np.array(parameter.grad.data).tobytes() == found.tobytes()
        assert {"mine_y", "mine_dw"} <= gpu.launched
    assert compiled.recordings == 2
    names = [call.name for call in compiled.program.calls]
    assert "conv2d_act_pool" in names, names               # by its y, then the activation, then the pooling
    assert "region_step" not in names


@pytest.mark.deep
@on_cuda
def test_a_registered_formula_is_the_formula(gpu: Any) -> None:
    """In all directions, by the checks of minidl's own algorithms; also on arrays with gaps, and in float64."""
    from checks import convolutions

    from minidl.ops.common.geometry import conv_geometry
    from minidl.ops.cuda import conv

    direct()
    before = convolutions.DONE.copy()
    for dtype in (np.float32, np.float64):
        for shape in (((3, 2, 7, 9), (4, 2, 3, 2), (2, 1), 1), ((0, 2, 5, 5), (3, 2, 3, 3), 1, 1)):
            problem = convolutions.drawn(conv_geometry(*shape[:2], None, *shape[2:], "gemm"), 1, dtype)
            convolutions.assert_none(list(convolutions.failures_of(problem, ["again"], gpu.memory)))
            for direction in convolutions.DIRECTIONS:
                arrays = problem.on_cuda(direction)
                ours, theirs = (getattr(conv.ALGORITHMS[name], direction)(*arrays, problem.g) for name in
                                ("again", "direct"))
                assert ours.tobytes() == theirs.tobytes()
    assert sum((convolutions.DONE - before).values()) == 12


@pytest.mark.deep
@on_cuda
def test_the_check_on_a_device(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from minidl import check_conv as module

    monkeypatch.setattr(sys.modules[module.__module__].devices, "resolve", lambda device: device)
    monkeypatch.setattr(sys.modules[module.__module__], "MULTIPLICATIONS", 2e3)
    direct()
    seen = minidl.check_conv("again", shapes=3, device="cuda")
    assert {direction: each.compared for direction, each in seen.items()} == {"y": 12, "dx": 12, "dw": 12}
    minidl.register_conv("lazy", DIRECT, y=lambda launch, x, w, b, y, g: None)
    with pytest.raises(AssertionError, match=r"lazy y float32 .*: 1 of 1 elements are not written, or NaN"):
        minidl.check_conv("lazy", shapes=0, device="cuda")


@pytest.mark.slow
@on_cuda
def test_what_is_registered_first_is_there_when_cuda_is_imported() -> None:
    code = ("import minidl; minidl.register_conv('mine', 'extern \"C\" __global__ void k() {}', "
            "dx=lambda launch, gy, w, dx, g: None); from minidl.ops.cuda.conv import ALGORITHMS as rows; "
            "print(list(rows)[-1], rows['mine'].y, rows['mine'].dx is None, rows['mine'].tried)")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "mine None False False\n"


@on_cuda
def test_names_are_known_without_cupy() -> None:
    from minidl.ops.cuda import conv

    assert {*conv.CONV_ALGORITHMS, *on_the_cpu.CONV_ALGORITHMS} == taken()


@pytest.mark.slow
@on_cuda
def test_a_case_that_is_refused_is_left_to_auto_and_said_once(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from minidl.core.tensor import wrap
    from minidl.ops.cuda import conv

    direct(refuses=lambda direction, g, dtype: "its window has a stride" if g.sh > 1 else None)
    x, w = (wrap(gpu.memory.asarray(np.ones(shape, np.float32))) for shape in ((1, 1, 5, 5), (1, 1, 3, 3)))
    assert np.array(ops.conv2d(x, w, algorithm="again").data).tolist() == [[[[9.0] * 3] * 3]]
    monkeypatch.setattr(conv, "fastest", lambda direction, g, dtype, arguments, able: "implicit_gemm")
    with pytest.warns(UserWarning, match="^conv2d: algorithm 'again': its window has a stride; 'auto' is used there$"
                      ) as said:
        shapes = [ops.conv2d(x, w, stride=2, algorithm="again").shape for _ in range(2)]
    assert shapes == [(1, 1, 2, 2)] * 2
    assert len(said) == 1
    with pytest.raises(ValueError, match=r"conv2d: algorithm 'other' is not one of direct, .*, again, auto on cuda"):
        ops.conv2d(x, w, algorithm="other")


# ---------------------------------------------------------------- what is refused
def launcher(launch: Any, x: Any, w: Any, b: Any, y: Any, g: Any) -> None:
    launch("k", 1, 1, x)


KERNEL = 'extern "C" __global__ void k(const float* x) {}'


@pytest.mark.parametrize(("call", "words"), [
    (lambda: minidl.register_conv("my conv", KERNEL, y=launcher), "the name 'my conv' is not a word; give one of"),
    (lambda: minidl.register_conv("tiled", KERNEL, y=launcher),
     "the name 'tiled' is taken by one of minidl's own; give yours another name"),
    (lambda: minidl.register_conv("auto", KERNEL, y=launcher), "the name 'auto' is taken"),
    (lambda: minidl.register_conv("mine", "nowhere.cu", y=launcher),
     "the source of 'mine', 'nowhere.cu', is not a file, and not the text of one, which has a __global__ function; "),
    (lambda: minidl.register_conv("mine", "// __global__", y=launcher),
     r"mine.cu has no kernel, __global__ void name\(...\); correct the path"),
    (lambda: minidl.register_conv("mine", KERNEL), "'mine' has no launcher; give y=, dx=, dw="),
    (lambda: minidl.register_conv("mine", KERNEL, y=lambda launch, x, w, y, g: None),
     r"y of 'mine' takes \(launch, x, w, y, g\) but is called with \(launch, x, w, b, y, g\); give it these "
     "parameters; for one without b register it with bias=False"),
    (lambda: minidl.register_conv("mine", KERNEL, dx=launcher),
     r"dx of 'mine' takes \(launch, x, w, b, y, g\) but is called with \(launch, gy, w, dx, g\); give it these"),
    (lambda: minidl.register_conv("mine", KERNEL, y=launcher, refuses=lambda g: None),
     r"refuses of 'mine' takes \(g\) but is called with \(direction, g, dtype\); give it these"),
    (lambda: minidl.register_conv("mine", f'#include "helper.cuh"\n{KERNEL}', y=launcher),
     "mine.cu includes helper.cuh, which is not there; put it beside the file, or include what minidl/ops/cuda holds"),
])
def test_what_is_refused(call: Callable[[], None], words: str) -> None:
    with pytest.raises(ValueError, match=f"^register_conv: {words}"):
        call()
    assert not OWN
    assert set(on_the_cpu.ALGORITHMS) == set(on_the_cpu.CONV_ALGORITHMS)


def test_a_name_of_another_file_is_taken_and_ones_own_is_replaced() -> None:
    minidl.register_conv("mine", KERNEL, y=launcher)
    minidl.register_conv("mine", KERNEL.replace("k(", "kk("), y=launcher)
    assert "kk(" in OWN["mine"].text
    with pytest.raises(ValueError, match=rf"the name 'mine' is taken by {__name__}; give yours another name"):
        exec("import minidl; minidl.register_conv('mine', KERNEL, y=launcher)",
             {"KERNEL": KERNEL, "launcher": launcher, "__name__": "another"})


def test_check_conv_refuses_other_names_and_devices() -> None:
    with pytest.raises(ValueError, match=r"^check_conv: 'tiled' is not registered \(nothing is\); see minidl.regis"):
        minidl.check_conv("tiled")
    minidl.register_conv("mine", KERNEL, y=launcher)
    with pytest.raises(ValueError, match=r"^check_conv: device is 'gpu' but must be 'emulated' or 'cuda'"):
        minidl.check_conv("mine", device="gpu")
    minidl.register_conv("mine", KERNEL, y=launcher, refuses=lambda direction, g, dtype: "no")
    with pytest.raises(AssertionError, match=r"mine y: it refused all 21 cases; nothing was compared"):
        minidl.check_conv("mine", shapes=15)


def test_kernels_of_float_alone_are_for_float32() -> None:
    minidl.register_conv("mine", KERNEL, y=launcher)
    g: Any = None
    assert OWN["mine"].refuses("y", g, np.dtype(np.float32)) is None
    assert OWN["mine"].refuses("y", g, np.dtype(np.float64)) == \
        "its source has no REAL, so it takes float32, but the dtype is float64"


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("arguments", "kind", "words"), [
    (lambda x: ("k", 0, 32, x), ValueError,
     r"mine: the grid of k is \(0,\) but must be 1 to 3 ints of at least 1; -\(-count // threads\) rounds up"),
    (lambda x: ("k", 1, (8, 8, 8, 8), x), ValueError, r"mine: the block of k is \(8, 8, 8, 8\) but must be 1 to 3"),
    (lambda x: ("k", 1, (64, 32), x), ValueError,
     r"mine: k has the grid \(1,\) and the block \(64, 32\), but a block has at most 1024 threads, and a grid's"),
    (lambda x: ("k", (1, 65536), 32, x), ValueError, r"mine: k has the grid \(1, 65536\) and .* 65535 blocks; spread"),
    (lambda x: ("k", 1, 32), TypeError, "k: got 0 arguments but takes 1, x; pass each"),
    (lambda x: ("other", 1, 32, x), ValueError, r"emulator: mine.cu has no kernel 'other' \(it has k\)"),
])
def test_a_wrong_launch(arguments: Callable[[Any], Any], kind: type[Exception], words: str) -> None:
    minidl.register_conv("mine", KERNEL, y=lambda launch, x, w, b, y, g: launch(*arguments(x)))
    with pytest.raises(kind, match=f"^{words}"):
        minidl.check_conv("mine", shapes=0)


@pytest.mark.deep
@needs_compiler
def test_a_launcher_may_take_several_steps() -> None:
    """Sums in parts: memory that only a kernel sets, constants, and a block of two axes."""
    text = """
    extern "C" __global__ void parts(const REAL* gy, const REAL* x, REAL* out, Geometry g) {
        const int c = blockIdx.x % g.c, m = blockIdx.x / g.c, tap = threadIdx.y * blockDim.x + threadIdx.x;
        REAL sum = 0;
        for (int i = 0; i < g.oh * g.ow; i++) {
            const int row = i / g.ow * g.sh - g.top + threadIdx.y, column = i % g.ow * g.sw - g.left + threadIdx.x;
            sum += gy[(blockIdx.y * g.m + m) * g.oh * g.ow + i] *
                   inside(x + (blockIdx.y * g.c + c) * g.h * g.w, row, column, g.h, g.w);
        }
        out[(blockIdx.y * g.m * g.c + blockIdx.x) * g.kh * g.kw + tap] = sum;
    }
    extern "C" __global__ void sums(const REAL* in, REAL* out, int size, int parts) {
        extern __shared__ REAL mine[];
        const int at = blockIdx.x * WIDTH + threadIdx.x;
        mine[threadIdx.x] = 0;
        for (int n = 0; n < parts && at < size; n++) mine[threadIdx.x] += in[n * size + at];
        if (at < size) out[at] = mine[threadIdx.x];
    }"""

    def dw(launch: Any, gy: Any, x: Any, dw: Any, g: Any) -> None:
        parts = launch.empty((g.n, *dw.shape))
        launch("parts", (g.m * g.c, g.n), (g.kw, g.kh), gy, x, parts, g, WIDTH=32)
        launch("sums", -(-dw.size // 32), 32, parts, dw, dw.size, g.n, shared=32 * launch.dtype.itemsize, WIDTH=32)

    minidl.register_conv("mine", f'#include "include/common.cuh"\n{text}', dw=dw)
    (seen,) = minidl.check_conv("mine", shapes=4).values()
    print(f"{seen.compared} cases compared")
    assert (seen.compared, seen.refused) == (13, 0)


@pytest.mark.slow
@needs_compiler
def test_a_kernel_that_writes_into_its_input() -> None:
    minidl.register_conv("mine", """
        extern "C" __global__ void k(float* x, float* y, int n) {
            for (int i = 0; i < n; i++) y[i] = 0;
            x[0] = 1;
        }""", y=lambda launch, x, w, b, y, g: launch("k", 1, 1, x, y, y.size))
    with pytest.raises(AssertionError, match=r"mine y float32 .*: it writes into its inputs"):
        minidl.check_conv("mine", shapes=0)
