"""The CUDA sources, without a GPU: what they may hold, and that they fit their launchers. kernels.py compiles them."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import math
import pickle
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")
pytest.importorskip("cuda.core", reason="cuda.core is not installed: nothing compiles CUDA without a GPU")

from checks.agrees import names_of
from checks.sources import CONFIGURATIONS, FILES, compiled, kernels, ptx_of, registers

from minidl.ops import cpu, cuda
from minidl.ops.common.geometry import ConvGeometry, PoolGeometry, conv_geometry
from minidl.ops.cuda import conv, launch
from minidl.ops.cuda.indexing.copies import copy_into
from minidl.ops.cuda.launch import compiling


# ---------------------------------------------------------------- the sources
@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_parameters_are_read_off_every_kernel(file: str) -> None:
    names = kernels(file)
    assert names
    assert len(set(names)) == len(names)
    for constants in [dict(found) for name, found in CONFIGURATIONS if name == file]:
        for name in names:
            for parameter, c_type, _ in launch.parameters(launch.source(file), name):
                found = constants.get(c_type, c_type)
                known = found in launch.TYPES or launch.struct(found).names
                assert known, f"{name}: {parameter} has C type {c_type}, which launch.TYPES does not know"


@pytest.mark.parametrize("file", FILES)
def test_a_source_opens_with_its_contract(file: str) -> None:
    lines = (launch.FOLDER / file).read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("//")
    assert sum(line.startswith("//") for line in lines[:12]) >= 2


def test_kernels_have_names_of_their_own() -> None:
    """So that a profile, and tests/launch_all.py, can tell them apart."""
    own = [name for file in FILES for name in kernels(file)]
    assert sorted(set(own)) == sorted(own)


@pytest.mark.parametrize("file", FILES)
def test_no_atomics_no_foreign_includes(file: str) -> None:
    """A sum by atomics has another order in each run; the compiler is given no headers."""
    text = re.sub(r"//[^\n]*", "", launch.source(file))
    assert "atomicAdd" not in text
    assert "#include" not in text


@pytest.mark.parametrize("path", sorted(launch.FOLDER.rglob("*.cu*")), ids=lambda path: path.name)
def test_loops_are_unrolled_as_nvcc_takes_it_too(path: Path) -> None:
    """By a number, or by a constant of C++ in parentheses: nvcc expands no macros there, NVRTC does."""
    text = path.read_text(encoding="utf-8")
    counts = [count.strip() for count in re.findall(r"#pragma unroll(.*)", text) if count.strip()]
    constants = "; ".join(re.findall(r"constexpr int ([^;]*);", text))
    wrong = [count for count in counts if not count.isdigit() and not (
        (name := re.fullmatch(r"\((\w+)\)", count)) and re.search(rf"\b{name[1]} =", constants))]
    assert not wrong


# ---------------------------------------------------------------- the loader
def test_only_what_asks_for_hopper_is_compiled_for_it() -> None:
    assert "-arch=sm_90a" in launch.options((launch.HOPPER, ("KH", 8)))
    assert not [option for option in launch.options((("KH", 8),)) if "arch" in option]


F = 'extern "C" __global__ void f(float* y) '
BROKEN = {"broken.cu": f'// first line\n#include "part.cuh"\n{F} {{ y[0] = nothing; }}\n',
          "part.cuh": "// nothing here\n__device__ int one() { return 1; }\n",
          "deep.cu": f'#include "broken.cuh"\n{F} {{ y[0] = 0; }}\n',
          "broken.cuh": "\n\n__device__ int one() { return one_and_a_half; }\n",
          "twice.cu": f'#include "part.cuh"\n#include "part.cuh"\n{F} {{ y[0] = one(); }}\n',
          "again.cu": f'#include "part.cuh"\n#include "part.cuh"\n{F} {{ y[0] = nothing; }}\n'}
PLACES = [("broken.cu", r"broken\.cu\(3\): error"), ("deep.cu", r"broken\.cuh\(3\): error"),
          ("again.cu", r"again\.cu\(3\): error")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of small sources in the place of ops/cuda."""
    for file, text in BROKEN.items():
        (tmp_path / file).write_text(text)
    monkeypatch.setattr("minidl.ops.common.sources.FOLDER", tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_includes_are_pasted_with_their_lines() -> None:
    assert launch.source("broken.cu").splitlines() == [
        '#line 1 "broken.cu"', "// first line",
        '#line 1 "part.cuh"', *BROKEN["part.cuh"].splitlines(),
        '#line 3 "broken.cu"', BROKEN["broken.cu"].splitlines()[2]]
    assert launch.source("twice.cu").count("int one()") == 1
    compiled(launch.source("twice.cu"), (), 80)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("file", "place"), PLACES)
def test_an_error_names_file_and_line(file: str, place: str) -> None:
    with pytest.raises(Exception, match=place):
        compiled(launch.source(file), (), 80)


@pytest.mark.gpu
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("file", "place"), PLACES)
def test_a_source_that_does_not_compile_is_an_error_of_one_line(file: str, place: str) -> None:
    message = rf"kernel: {re.escape(file)} does not compile .*{place}.*correct the source"
    with pytest.raises(RuntimeError, match=message) as caught:
        launch.kernel(file, "f", ("UNUSED", 1)).function  # noqa: B018
    assert "\n" not in str(caught.value)


TEXT = """
extern "C" __global__ void plain(const REAL* __restrict__ x, REAL* y, int n) {}
extern "C" __global__ void __launch_bounds__(256, 2) bounded(const unsigned char *bytes,
                                                             unsigned long long seed, const Window g,
                                                             long long* __restrict__ count) {}
"""


def test_parameters() -> None:
    assert launch.parameters(TEXT, "plain") == [("x", "REAL", "in"), ("y", "REAL", "out"), ("n", "int", "value")]
    assert launch.parameters(TEXT, "bounded") == [
        ("bytes", "unsigned char", "in"), ("seed", "unsigned long long", "value"), ("g", "Window", "value"),
        ("count", "long long", "out")]


@pytest.mark.parametrize("name", ["missing", "pla", "lain"])
def test_a_kernel_that_is_not_there(name: str) -> None:
    with pytest.raises(ValueError, match=rf"kernel: there is no __global__ void {name}\(\.\.\.\) in the source"):
        launch.parameters(TEXT, name)


# ---------------------------------------------------------------- compiled meanwhile, each alone
def test_a_kernel_alone_is_the_only_one_and_keeps_its_lines() -> None:
    for name, other in (("plain", "bounded"), ("bounded", "plain")):
        text = launch.alone(TEXT, name)
        assert text.removeprefix(compiling.BEGIN).count("\n") == TEXT.count("\n")       # which ends in #line 1
        assert kernels_in(text) == [name]
        assert launch.parameters(text, name) == launch.parameters(TEXT, name)
        assert re.search(rf"static __device__ void\s+{other}\(", text)
    assert launch.alone(TEXT.replace("long long*", "__grid_constant__ long long*"), "plain").count("__grid") == 0
    assert launch.alone(TEXT.replace('extern "C" ', ""), "plain").count("__global__") == 2       # of a user's, any text


def kernels_in(text: str) -> list[str]:
    return re.findall(r"__global__ void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)", text)


@pytest.mark.parametrize("file", ["reduce/squares.cu", "conv/papers/unroll.cu", "nhwc/convert.cu"])
def test_each_kernel_alone_compiles_to_itself(file: str) -> None:
    constants = next(constants for each, constants in CONFIGURATIONS if each == file)
    for name in kernels(file):
        assert [*registers(compiled(launch.alone(launch.source(file), name), constants, 90))] == [name]


@pytest.mark.parametrize("file", FILES)
def test_each_kernel_waits_for_the_launches_before_it(file: str) -> None:
    """Where it begins."""
    for name in kernels(file):
        text = launch.alone(launch.source(file), name)
        begins = re.findall(rf"__global__ void\s[^{{]*?{name}\s*\([^)]*\)\s*{{\s*(\w+)", text)
        assert begins == ["MINIDL_BEGIN"], name


@pytest.mark.deep
@pytest.mark.parametrize("file", FILES)
def test_no_kernel_reads_or_writes_before_it_waits(file: str) -> None:
    """In the compiler's text for compute capability 9.0. `const __restrict__` arrays may be read early by its rules."""
    constants = next(constants for each, constants in CONFIGURATIONS if each == file)
    for name in kernels(file):
        ptx = ptx_of(launch.alone(launch.source(file), name), constants)
        body = ptx[ptx.index(f".entry {name}("):] if f".entry {name}(" in ptx else ""     # left out by the constants
        begin, found, _ = body.partition("griddepcontrol.wait;")
        assert not body or found, name
        assert not re.search(r"\b(ld|st|red|atom|cp)\.(?!param)", begin), name


def test_a_kernel_whose_beginning_is_not_seen_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"^kernel: f has no \{ behind its parameters; write it there"):
        launch.alone('extern "C" __global__ void f(float* y) OPEN y[0] = 1; }', "f")
    between = " /* one,\n { two */ // {\n"
    text = launch.alone(f'extern "C" __global__ void f(float* y){between}{{ y[0] = 1; }}', "f")
    assert f"{between}{{ MINIDL_BEGIN y[0]" in text


class Fakes:
    """In place of the compiler, which waits for `go` if it is told to; and of the driver: what was launched."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch, self.launched, self.asked = patch, [], []
        self.room = launch.kernels
        pool = ThreadPoolExecutor(2)
        for name, value in {"_make_ready": lambda device: None,
                            "_launch": lambda handle, *_: self.launched.append(handle), "_current_device": lambda: 0,
                            "_current_stream": lambda: SimpleNamespace(ptr=0, is_capturing=lambda: False)}.items():
            patch.setattr(self.room, name, value)
        patch.setattr(compiling, "_compilers", lambda: pool)
        patch.setattr(compiling, "_compiled", self.compiled)
        patch.setattr(compiling.cupy.cuda.runtime, "getDevice", lambda: 0)
        patch.setattr(compiling.cupy.cuda, "get_current_stream", self.room._current_stream)
        self.before: Callable[[], object] = lambda: None

    def compiled(self, file: str, text: str, constants: Any, device: int) -> Any:
        self.before()
        if "wrong" in text:
            raise RuntimeError(f"kernel: {file} does not compile with {dict(constants)}: wrong")
        return SimpleNamespace(get_function=self.function)

    def function(self, name: str) -> Any:
        self.asked.append(made := SimpleNamespace(kernel=SimpleNamespace(ptr=name)))
        return made

    def kernel(self, name: str, body: str = "") -> launch.Kernel:
        text = f'extern "C" __global__ void {name}(int n) {{{body}}}'
        return launch.kernels.generated.__wrapped__("own.cu", text, name)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    return Fakes(monkeypatch)


def test_kernels_are_compiled_at_the_same_time_and_launches_wait(fakes: Fakes) -> None:
    fakes.before = threading.Barrier(2, timeout=60).wait           # passes where two are compiled at once
    first, second = fakes.kernel("first"), fakes.kernel("second")
    second((1,), (1,), 0)
    first((1,), (1,), 0)
    assert fakes.launched == ["second", "first"]


def test_a_candidate_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the launch that is started, which of those that cost least is the first."""
    named = []

    def kernel(file: str, name: str, *constants: launch.Constant) -> Any:
        named.append(name)
        return SimpleNamespace(sized=lambda *sizes: (name, *constants, *sizes).__repr__)

    monkeypatch.setattr(launch.plan, "kernel", kernel)
    plans = [launch.Plan("a.cu", name, (("N", 1),), (2, 3), 64, 8, cost=cost) for name, cost in
             (("dear", 3.0), ("cheap", 1.0), ("as cheap", 1.0))]
    assert launch.best([]) is launch.best([None]) is None
    assert launch.best(plans, lambda plan: -plan.cost) is plans[0]
    best = launch.best([None, *plans])
    assert best is plans[1]
    assert named == []
    launch.prepare(best.of(("M", 2)), None)
    assert named == ["cheap"]
    assert best.start() == best.start() == "('cheap', ('N', 1), (2, 3), (64,), 8)"
    assert named == ["cheap", "cheap"]


def test_a_thread_that_outlives_the_main_one_compiles_by_itself(fakes: Fakes) -> None:
    compiling._compilers().shutdown()
    fakes.kernel("f")((1,), (1,), 0)
    assert fakes.launched == ["f"]


def test_what_does_not_compile_is_said_at_each_launch_and_stops_no_other(fakes: Fakes) -> None:
    wrong, right = fakes.kernel("f", "wrong"), fakes.kernel("g")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"kernel: own.cu does not compile with \{\}: wrong"):
            wrong((1,), (1,), 0)
    right((1,), (1,), 0)
    assert fakes.launched == ["g"]


def test_shared_memory_is_asked_for_before_and_after_a_kernel_is_loaded(fakes: Fakes) -> None:
    kernel = fakes.kernel("f")
    start = kernel.sized((1,), (1,), shared=50_000)
    assert fakes.asked == []               # nobody waits for the compiler
    start(0)
    assert fakes.asked[0].max_dynamic_shared_size_bytes == 50_000
    kernel((1,), (1,), 0, shared=60_000)
    assert fakes.asked[0].max_dynamic_shared_size_bytes == 60_000
    assert len(fakes.asked) == 1


def test_a_dry_call_is_compiled_and_not_launched(fakes: Fakes) -> None:
    started: list[None] = []
    fakes.before = lambda: started.append(None)
    kernel = fakes.kernel("f")
    assert not launch.is_dry()
    with launch.dry():
        assert launch.is_dry()
        assert launch.is_captured()        # as it will be
        kernel((1,), (1,), "whatever")
        other = threading.Thread(target=kernel, args=((1,), (1,), 0))
        other.start()
        other.join(60)
    assert fakes.launched == ["f"]         # by the other thread
    assert not launch.is_captured()
    kernel((1,), (1,), 0)
    assert fakes.launched == ["f", "f"]
    assert len(started) == 1


@pytest.mark.parametrize(("constants", "options"), [
    ((), ()), ((("REAL", "float"), ("N", 3)), ()),
    ((launch.HOPPER, ("N", 3)), ("-arch=sm_90a", "-DSM_90A=1"))])
def test_constants_are_lines_before_the_source(constants: Any, options: tuple[str, ...],
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy compiles an empty file for each tuple of options that it has not seen."""
    given: dict[str, Any] = {}

    def module(**made: Any) -> Any:
        given.update(made)
        return SimpleNamespace(compile=lambda: None)
    monkeypatch.setattr(compiling.cupy, "RawModule", module)
    monkeypatch.setattr(compiling.cupy.cuda, "Device", lambda device: contextlib.nullcontext())
    compiling._compiled("own.cu", "text", constants, 0)
    assert given["options"] == ("--std=c++17", *options)
    assert given["code"].splitlines() == [
        *(f"#define {name} {value}" for name, value in constants if (name, value) != launch.HOPPER), "text"]


# ---------------------------------------------------------------- structs
SIZES = ConvGeometry(*range(1, 16), 1, 1, 1, "auto")
WINDOW = PoolGeometry(*range(14))


def test_by_value_packs_a_geometry() -> None:
    packed = launch.by_value("Geometry", SIZES)                    # the algorithm's name stays behind
    assert np.frombuffer(packed, launch.struct("Geometry"))[0].item() == SIZES[:15]
    assert packed is launch.by_value("Geometry", SIZES)
    assert len(launch.by_value("Window", WINDOW)) == 14 * 4


def test_by_value_fills_fields_by_name() -> None:
    packed = launch.by_value("PaddedImages", SIZES, images=70, pw=60, ph=50, h=30)
    fields = np.frombuffer(packed, launch.struct("PaddedImages"))[0]
    assert dict(zip(launch.struct("PaddedImages").names or (), fields)) == {
        "n": 1, "c": 2, "h": 30, "w": 4, "m": 5, "oh": 8, "ow": 9, "top": 12, "left": 14, "ph": 50, "pw": 60,
        "images": 70}


@pytest.mark.parametrize(("fields", "message"), [
    ({"ph": 1, "pw": 2}, "struct PaddedImages has the fields n, c, .*but got ph, pw and lacks images; give those"),
    ({"ph": 1, "pw": 2, "images": 3, "deep": 4}, "but got ph, pw, images, deep and lacks none; give those")])
def test_by_value_refuses_other_fields(fields: dict[str, int], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        launch.by_value("PaddedImages", SIZES, **fields)


def test_a_struct_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"kernel: there is no struct Nothing \{\.\.\.\}; in the sources; correct"):
        launch.struct("Nothing")


def test_a_struct_is_laid_out_as_in_c() -> None:
    """Of sgd's table: arrays of addresses, then of ints."""
    table = launch.struct("Parameters")
    assert {name: (field.subdtype, offset) for name, (field, offset, *_) in (table.fields or {}).items()} == {
        **{name: ((np.dtype(np.uint64), (64,)), i * 512) for i, name in enumerate("pgvst")},
        **{name: ((np.dtype(np.int32), (64,)), 2560 + i * 256) for i, name in enumerate(("first", "size"))}}


def test_a_struct_that_kernels_take_is_declared_once() -> None:
    """Its name is all that a launcher says of it."""
    taken = {c_type for file in FILES for name in kernels(file)
             for _, c_type, kind in launch.parameters(launch.source(file), name) if kind == "value"}
    texts = [path.read_text(encoding="utf-8") for path in launch.FOLDER.rglob("*.cu*")]
    structs = sorted(taken - set(launch.TYPES) - {"REAL"})
    assert len(structs) >= 7
    assert {name: sum(len(re.findall(rf"^struct (?:alignas\(\d+\) )?{name} ", text, re.MULTILINE)) for text in texts)
            for name in structs} == dict.fromkeys(structs, 1)


def arguments(*c_types: str) -> launch.Arguments:
    """The parameters k: a, b, ... of some C types, REAL being float."""
    declared = [(name, c_type.rstrip("*"), "in" if "*" in c_type else "value") for name, c_type in zip("abc", c_types)]
    return launch.Arguments("k", declared, {"REAL": "float"})


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a NumPy array": (lambda: arguments("float*").pack((np.zeros(3, np.float32),), 0), TypeError,
                      r"k: a is a ndarray but must be a CuPy array; move it with \.to\('cuda'\)"),
    "a list": (lambda: arguments("int*").pack(([1],), 0), TypeError, "k: a is a list but must be a CuPy array"),
    "a tuple for a struct": (lambda: arguments("Window").pack(((1, 2),), 0), TypeError,
                             r"k: a is a tuple but must be 56 bytes from by_value\(\); pass the struct"),
    "the other struct": (lambda: arguments("Window").pack((launch.by_value("Geometry", SIZES),), 0), TypeError,
                         r"k: a is a bytes but must be 56 bytes from by_value\(\)"),
    "an int too large": (lambda: arguments("int").pack((2**31,), 0), TypeError,
                         r"k: an argument is not a number of its .* type \(.*the parameters are k: a \(int32\)"),
    "a float for an int": (lambda: arguments("int").pack((0.5,), 0), TypeError, "k: an argument is not a number"),
    "a float32 too large": (lambda: arguments("REAL").pack((1e300,), 0), TypeError, "k: an argument is not a number"),
    "a word": (lambda: arguments("float").pack(("0.1",), 0), TypeError, "k: an argument is not a number"),
    "too few": (lambda: arguments("int", "int").pack((1,), 0), TypeError,
                "k: got 1 arguments but takes 2; pass each"),
    "a dtype that no kernel has": (lambda: launch.real(np.dtype(np.float16)), KeyError, "float16"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_arguments_are_refused(what: str) -> None:
    call, error, message = REFUSED[what]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("kind", ["in", "out"])
def test_an_array_whose_dtype_is_another_object_is_itself(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of a result would be written, and the result not."""
    class Array(np.ndarray):
        _c_contiguous = True
    monkeypatch.setattr(launch.misfits, "cupy", SimpleNamespace(ndarray=Array))
    x = pickle.loads(pickle.dumps(np.ones(3, np.float32))).view(Array)
    assert x.dtype is not np.dtype(np.float32)
    assert launch.misfits.fitted("k: y", np.dtype(np.float32), kind, x) is x


@pytest.mark.parametrize("name", ["pointer", "part", "as_strided", "view"])
def test_who_refers_to_an_arrays_memory_is_seen(name: str) -> None:
    """CuPy's own arrays need no GPU where their memory is somebody else's."""
    import cupy

    memory = cupy.cuda.UnownedMemory(1 << 12, 64, object(), 0)
    x = cupy.ndarray((3,), np.float32, cupy.cuda.MemoryPointer(memory, 0))
    del memory
    assert launch.memory.alone(x)
    held = {"pointer": lambda: cupy.ndarray((3,), np.float32, x.data), "view": lambda: x[1:],
            "part": lambda: cupy.ndarray((2,), np.float32, x.data + 4),
            "as_strided": lambda: cupy.lib.stride_tricks.as_strided(x, (2,), (4,))}[name]()
    assert not launch.memory.alone(x)
    del held
    assert launch.memory.alone(x)


@pytest.mark.parametrize(("c_type", "value", "dtype"), [
    ("float", 0.1, np.float32), ("double", 0.1, np.float64), ("int", True, np.int32), ("unsigned", 7, np.uint32),
    ("unsigned long long", 2**64 - 1, np.uint64), ("REAL", 0.1, np.float32)])
def test_numbers_become_the_kernels_type(c_type: str, value: Any, dtype: type) -> None:
    """Also behind a null pointer and a struct, each on a multiple of 16 bytes."""
    packed = arguments("float*", "Window", c_type)
    packed.pack((None, launch.by_value("Window", WINDOW), value), 0)
    null, window, number = packed._pointers
    assert ctypes.string_at(null, 8) == bytes(8)
    assert np.frombuffer(ctypes.string_at(window, 56), np.int32).tolist() == list(range(14))
    assert np.frombuffer(ctypes.string_at(number, np.dtype(dtype).itemsize), dtype)[0] == dtype(value)
    assert null % 16 == window % 16 == number % 16 == 0


@pytest.mark.parametrize(("count", "threads", "blocks"), [(0, 256, 1), (1, 256, 1), (256, 256, 1), (257, 256, 2)])
def test_blocks_cover_a_count(count: int, threads: int, blocks: int) -> None:
    assert launch.blocks(count, threads) == blocks


@pytest.mark.parametrize(("size", "inner", "rows", "lanes"), [
    (1000, 1, 128, 256), (256, 1, 512, 256), (256, 1, 513, 32), (255, 1, 1, 32), (1024, 1, 10**6, 256),
    (1000, 1, 0, 32), (5, 1, 3, 8), (1, 1, 1, 1), (1000, 2, 1, 1)])
def test_a_row_has_more_threads_if_there_are_few(size: int, inner: int, rows: int, lanes: int) -> None:
    assert launch.lanes_per_row(size, inner, rows) == lanes


WINOGRAD_REFUSES: list[tuple[Any, Any, Any, Any, type, str]] = [         # x, w, stride, padding, dtype
    ((64, 3, 32, 32), (64, 3, 8, 8), 1, 4, np.float64, "it is for float32 arrays but these are float64"),
    ((64, 3, 32, 32), (64, 3, 5, 8), 1, 0, np.float32, "even height and width and stride 1, but they are 5x8 with "),
    ((64, 3, 32, 32), (64, 3, 8, 8), (1, 2), 0, np.float32, "they are 8x8 with stride 1x2"),
    ((1, 1, 7, 12), (2, 1, 4, 4), 1, ((3, 5), (0, 2)), np.float32, "only 63 products but needs 64"),
    ((0, 1, 10, 10), (2, 1, 4, 4), 1, 0, np.float32, "only 0 products but needs 64"),
    ((3, 1, 300, 300), (2, 1, 8, 8), 1, 0, np.float32, "do not fit a block's 227 KB of shared memory"),
    ((64, 3, 32, 32), (64, 3, 8, 8), 1, 4, np.float32, "")]


@pytest.mark.parametrize("case", WINOGRAD_REFUSES, ids=str)
def test_what_winograd_refuses(case: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The last column is empty where it can do a case."""
    x, w, stride, padding, dtype, message = case
    monkeypatch.setattr(launch, "most_shared", lambda: 232448)
    monkeypatch.setattr(launch, "multiprocessors", lambda: 132)
    reason = conv.refusal("winograd", "dw", conv_geometry(x, w, None, stride, padding, "winograd"), np.dtype(dtype))
    assert (message in reason) if reason else not message


@pytest.mark.parametrize(("direction", "x", "w", "stride", "padding", "message"), [
    ("y", (2, 32, 8, 8), (4, 32, 3, 5), 1, 0, "it needs filters of 3x3 and stride 1 but they are 3x5 and 1x1"),
    ("dx", (2, 32, 8, 8), (40, 32, 3, 3), 2, 0, "it needs filters of 3x3 and stride 1 but they are 3x3 and 2x2"),
    ("y", (2, 32, 8, 8), (4, 32, 3, 3), 1, 3, "an output whose window meets no pixel would be rounded, and is zero"),
    ("y", (2, 21, 8, 8), (4, 21, 3, 3), 1, 1, "a sum of 189 products may round badly (it takes 192)"),
    ("dw", (99, 21, 8, 1), (4, 21, 3, 3), 1, 1, "a tap meets 0 of 792 outputs and would round as those that meet all"),
    ("dw", (3, 4, 8, 8), (4, 4, 3, 3), 1, 1, "a sum of 147 products may round badly (it takes 192)"),
    ("y", (1, 2**16, 199, 199), (1, 2**16, 3, 3), 1, 1,
     "one transformed image has 5898240000 elements but kernels count to 2147483647"),
    ("y", (2, 22, 8, 8), (4, 22, 3, 3), 1, 2, ""), ("dx", (2, 4, 8, 8), (22, 4, 3, 3), 1, 0, ""),
    ("dw", (4, 4, 8, 8), (4, 4, 3, 3), 1, 1, "")])
def test_what_winograd_by_products_refuses(direction: str, x: Any, w: Any, stride: int, padding: int,
                                           message: str) -> None:
    """The last three it can do."""
    g = conv_geometry(x, w, None, stride, padding, "winograd_4x4")
    assert (conv.refusal("winograd_4x4", direction, g, np.dtype(np.float32)) or "") == message


@pytest.mark.parametrize(("x", "w", "stride", "extra"), [
    ((64, 64, 32, 32), (64, 64, 3, 3), 1, ["winograd_2x2", "winograd_4x4"]),
    ((64, 64, 32, 32), (64, 64, 3, 3), 2, []), ((2, 3, 6, 6), (16, 3, 3, 3), 1, []),
    ((64, 32, 64, 64), (32, 32, 5, 5), 1, []), ((64, 32, 64, 64), (32, 32, 7, 7), 1, ["fft"]),
    ((64, 32, 64, 64), (32, 32, 31, 31), 1, ["fft"]), ((64, 32, 64, 64), (32, 32, 31, 31), 31, []),
    ((128, 3, 32, 32), (64, 3, 8, 8), 1, []), ((128, 6, 14, 14), (16, 6, 5, 5), 1, [])], ids=str)
def test_what_auto_tries_beside_sums(x: Any, w: Any, stride: int, extra: list[str],
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that is not for `fft` does not even load cuFFT."""
    loaded = []
    for name, value in (("most_shared", 232448), ("multiprocessors", 132), ("compute_capability", 90)):
        monkeypatch.setattr(launch, name, lambda value=value: value)
    monkeypatch.setattr(conv.fft, "_library", lambda: loaded.append("cuFFT"))
    g = conv_geometry(x, w, None, stride, 1, "auto")
    for direction in ("y", "dx", "dw"):
        able = conv._able(direction, g, np.dtype(np.float32))
        assert {"gemm", "implicit_gemm"} <= able.keys()
        assert able.keys() & {"winograd_2x2", "winograd_4x4", "fft"} == {*extra}
    assert bool(loaded) == ("fft" in extra)


# ---------------------------------------------------------------- one backend is as the other
def call_of(primitive: Callable[..., Any]) -> Any:
    """How a primitive is called: names, kinds and defaults of its parameters; a ufunc's number of inputs, and that of
    what takes `out` as one does."""
    primitive = inspect.unwrap(primitive)
    if isinstance(primitive, np.ufunc):
        return primitive.nin
    *inputs, last = inspect.signature(primitive).parameters.values()
    return len(inputs) if last.name == "out" else [(p.name, p.kind, p.default) for p in (*inputs, last)]


@pytest.mark.parametrize("name", sorted(names_of(cpu)))
def test_both_backends_have_the_primitive(name: str) -> None:
    on_cpu, on_cuda = getattr(cpu, name), getattr(cuda, name)
    assert call_of(on_cuda) == call_of(on_cpu)


def test_both_backends_have_the_cpus_algorithms() -> None:
    assert set(cpu.CONV_ALGORITHMS) <= set(cuda.CONV_ALGORITHMS)


# ---------------------------------------------------------------- gradients that are views
class Held:
    """As much of an array as `owns` looks at."""

    def __init__(self, shape: tuple[int, ...], base: Any = None, strides: tuple[int, ...] = (8,)):
        self.shape, self.base, self.strides, self.dtype = shape, base, strides, np.dtype(float)
        self.size, self.itemsize = math.prod(shape), 8
        self.nbytes, self.data = 8 * self.size, SimpleNamespace(device_id=0)


@pytest.mark.parametrize("kept", [False, True])
def test_a_view_of_all_that_nobody_else_holds_has_its_memory_alone(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    held = launch.memory._Kept()
    monkeypatch.setattr(launch.memory, "_kept", held)
    assert launch.owns(Held((2, 3)))
    base = Held((2, 3))
    view = Held((6,), base)
    if kept:
        held.add((base.shape, base.dtype, 0), base)
    assert not launch.owns(view)           # the name `base` refers to it
    other = Held((3, 2), base)
    del base
    assert not launch.owns(view)
    del other
    assert launch.owns(view)
    for part in (Held((5,), Held((6,))), Held((6,), Held((6,)), (-8,))):
        assert not launch.owns(part)


def test_what_lies_on_another_device_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.kernels, "_current_device", lambda: 1)
    with pytest.raises(ValueError, match=r"copy: an array of shape \(2, 3\) is on device 0 but the current device is "
                                         "1; use one device"):
        copy_into([(Held((2, 3)), None)])
