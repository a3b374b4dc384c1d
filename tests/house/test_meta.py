"""The house rules that a machine can check: who imports whom, what an op may touch, what must not be missing."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from cases import CASES, Case

from minidl import ops
from minidl.ops import cpu
from minidl.ops.common.primitives import PRIMITIVES

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {path.relative_to(ROOT).with_suffix("").as_posix(): ast.parse(path.read_text(encoding="utf-8"))
           for folder in ("minidl", "zoo") for path in sorted((ROOT / folder).rglob("*.py"))
           if ROOT / "minidl" / "zoo" not in path.parents}     # in a checkout a link to zoo, in an sdist a copy
SOURCES["train"] = ast.parse((ROOT / "train.py").read_text(encoding="utf-8"))


# ---------------------------------------------------------------- cases
def test_every_op_has_cases() -> None:
    public = {name for name, value in vars(ops).items() if callable(value) and name[0] != "_"}
    assert {name for name in ops.OPS if not hasattr(ops, name)} == set(), "in no __all__ of its family"
    assert set(ops.OPS) | public == set(CASES)


@pytest.mark.parametrize("op", CASES)
def test_at_least_40_shapes_an_op_with_size_0_and_1(op: str) -> None:
    shapes = {case.shapes for case in CASES[op]}
    assert len(shapes) >= 40
    sizes = {n for shape in shapes for sides in shape for n in sides}
    assert {0, 1} <= sizes
    assert any(n > 1 and n % 2 for n in sizes)


FEATURES: dict[str, tuple[str, Callable[[Case], bool]]] = {
    "convolution in groups": ("conv2d", lambda case: case.options.get("groups", 1) > 1),
    "depthwise convolution": ("conv2d", lambda case: case.options.get("groups", 1) == case.shapes[0][1] > 1),
    "dilated convolution": ("conv2d", lambda case: case.options.get("dilation", 1) not in (1, (1, 1))),
    "fully connected, not of vectors in rows": ("linear", lambda case: len(case.shapes[0]) != 2),
    "matrices in batches": ("matmul", lambda case: max(map(len, case.shapes)) > 2),
    "batch normalisation in training": ("batch_norm", lambda case: "moments" not in case.options),
    "batch normalisation in evaluation": ("batch_norm", lambda case: "moments" in case.options),
    "global average pooling": ("adaptive_avg_pool2d", lambda case: case.options["output_size"] == 1),
    "exact GELU": ("gelu", lambda case: case.options["approximate"] == "none"),
    "GELU by tanh": ("gelu", lambda case: case.options["approximate"] == "tanh"),
    "cross entropy with weights": ("cross_entropy", lambda case: "weight" in case.options),
    "cross entropy that smooths": ("cross_entropy", lambda case: case.options.get("label_smoothing", 0) > 0),
}


@pytest.mark.parametrize("feature", FEATURES)
def test_at_least_40_shapes_a_feature(feature: str) -> None:
    """What is an option of an op, but an op of its own to its users."""
    op, has_it = FEATURES[feature]
    assert len({case.shapes for case in CASES[op] if has_it(case)}) >= 40


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_every_primitive_has_a_row_and_every_row_a_primitive(backend: str) -> None:
    """test_cuda_compile.py compares the backends' signatures."""
    if backend == "cuda":
        pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")
    room = importlib.import_module(f"minidl.ops.{backend}")
    found = {name for name, value in vars(room).items() if callable(value) and name[0] != "_"
             and not isinstance(value, type) and getattr(value, "__module__", "") != "typing"}
    assert found - {"can_region_step", "stores_half", "takes_nhwc"} == set(PRIMITIVES)


def test_facts_of_a_primitive_fit_each_other() -> None:
    for name, known in PRIMITIVES.items():
        assert known.effect or not (known.changes or known.update or known.counter or known.captured), name
        assert not known.effect or not known.line, f"{name}: a region has no effects"
        primitive = inspect.unwrap(getattr(cpu, name))
        if not isinstance(primitive, np.ufunc):        # those have a signature from NumPy 2.3 on alone
            parameters = inspect.signature(primitive).parameters
            assert max(known.changes, default=0) < len(parameters), name
            assert len(known.takes) in (0, len(parameters)), name


# ---------------------------------------------------------------- rooms
TOOLS = ("numpy", "minidl/mode", "minidl/tensor", "minidl/device", "minidl/rng", "minidl/ops")
NAMES = ("basic", "shapes", "operators", "conv", "pool", "linear", "activation", "norm", "loss", "arrange", "select",
         "statistics", "methods", "units", "criteria", "nll", "contraction", "lookup", "resample")
FAMILIES = tuple(f"minidl/ops/{name}" for name in NAMES)
COMMON = "minidl/ops/common"
# what all backends stand on
FACTS = ("numpy", *(f"{COMMON}/{name}" for name in ("primitives", "curves", "shared", "choice", "geometry", "layouts",
                                                    "own_conv", "ranks", "region", "sets", "fft", "nhwc")))

CONV = "minidl/ops/cuda/conv"
LAUNCHERS = (*FACTS, "cupy", "minidl/device", "minidl/ops/cuda/launch")
SHELVES = (*LAUNCHERS, f"{CONV}/cost", "minidl/ops/cuda/linear", "minidl/ops/cuda/pool", "minidl/ops/cuda/reduce")

# A room, and what it may import beside the standard library; a name allows everything below it. The first row
# whose name a module has, or stands below, decides.
ROOMS: list[tuple[str, tuple[str, ...]]] = [
    ("minidl/mode", ()),
    ("minidl/version", ()),
    ("minidl/cache", ()),
    ("minidl/rng", ("numpy",)),
    ("minidl/device", ("numpy", "cupy")),
    ("minidl/tensor", ("numpy", "minidl/mode", "minidl/device")),
    (f"{COMMON}/__init__", ()),
    (f"{COMMON}/geometry", ()),
    (f"{COMMON}/grouped", ("minidl/tensor", f"{COMMON}/geometry")),
    (f"{COMMON}/layouts", ()),
    (f"{COMMON}/nhwc", ("numpy", f"{COMMON}/primitives")),
    (f"{COMMON}/own_conv", ("numpy", f"{COMMON}/geometry")),
    (f"{COMMON}/ranks", ()),
    (f"{COMMON}/region", ()),
    (f"{COMMON}/sets", ()),
    (f"{COMMON}/sources", ("numpy",)),
    (f"{COMMON}/curves", ("numpy",)),
    (f"{COMMON}/primitives", ("numpy", f"{COMMON}/curves")),
    (f"{COMMON}/shared", ("numpy", f"{COMMON}/primitives")),
    (f"{COMMON}/choice", ("numpy", f"{COMMON}/primitives")),
    (f"{COMMON}/fft", (f"{COMMON}/primitives", f"{COMMON}/geometry")),
    ("minidl/ops/cpu", (*FACTS, "minidl/ops/cpu")),
    ("minidl/ops/cuda/launch", ("numpy", "cupy", "minidl/device", f"{COMMON}/sources", "minidl/ops/cuda/launch")),
    (f"{CONV}/product/fft", (*SHELVES, "cupyx")),
    *((f"{CONV}/{shelf}", (*SHELVES, f"{CONV}/{shelf}")) for shelf in ("papers", "product", "resident")),
    *((f"{CONV}/{common}", (*LAUNCHERS, "minidl/cache", "minidl/version", "minidl/ops/cuda/reduce"))
      for common in ("auto", "bias", "cost")),
    ("minidl/ops/cuda", (*FACTS, "cupy", "minidl/device", "minidl/version", "minidl/ops/cuda")),
    (f"{COMMON}/backend", ("numpy", "minidl/mode", "minidl/device", "minidl/tensor", "minidl/ops/cpu",
                           "minidl/ops/cuda")),
    (f"{COMMON}/op", ("numpy", "minidl/mode", "minidl/tensor", f"{COMMON}/backend")),
    *((family, ("numpy", "minidl/mode", "minidl/tensor", "minidl/rng", f"{COMMON}/op", f"{COMMON}/backend",
                f"{COMMON}/geometry", f"{COMMON}/grouped", f"{COMMON}/primitives", f"{COMMON}/curves",
                f"{COMMON}/sets", *FAMILIES))
      for family in FAMILIES),
    ("minidl/ops/__init__", (f"{COMMON}/op", f"{COMMON}/backend", f"{COMMON}/primitives", f"{COMMON}/curves",
                f"{COMMON}/sets", *FAMILIES)),
    ("minidl/compiler", ("numpy", "cupy", "minidl/mode", "minidl/device", "minidl/tensor", f"{COMMON}/primitives",
                         f"{COMMON}/ranks", f"{COMMON}/region", f"{COMMON}/nhwc", "minidl/compiler")),
    ("minidl/distributed/witness", ()),
    ("minidl/distributed/nccl", ("cupy", "minidl/compiler/graph", *TOOLS)),
    ("minidl/distributed", ("mpi4py", "minidl/distributed", *TOOLS)),
    ("minidl/nn/norm", ("minidl/distributed/world", "minidl/init", "minidl/nn", *TOOLS)),
    ("minidl/nn", ("minidl/init", "minidl/nn", *TOOLS)),
    ("minidl/init", TOOLS),
    ("minidl/frontend/__init__", ()),
    ("minidl/frontend/create", TOOLS),
    ("minidl/frontend/own", ("minidl/compiler/passes", *TOOLS)),
    ("minidl/frontend/own_conv", TOOLS),
    ("minidl/frontend/habits", ("minidl/frontend/create", "minidl/data", "minidl/nn", "minidl/optim", *TOOLS)),
    ("minidl/frontend/display", ("minidl/compiler", "minidl/data", "minidl/nn", "minidl/optim", *TOOLS)),
    ("minidl/frontend/interchange", ("cupy", *TOOLS)),
    ("minidl/optim", ("minidl/optim", *TOOLS)),
    ("minidl/gradcheck", TOOLS),
    ("minidl/check_conv", ("cupy", "minidl/emulator", *TOOLS)),
    ("minidl/layouts", TOOLS),
    ("minidl/onnx", ("onnx", "minidl/version", "minidl/weights/files", *TOOLS)),
    ("minidl/data/chance", ("numpy",)),
    ("minidl/data/items", ("numpy",)),
    ("minidl/data/table", ("numpy", "minidl/data/chance", "minidl/data/items")),
    ("minidl/data/folder", ("numpy", "PIL", "minidl/data/chance", "minidl/data/datasets", "minidl/data/sources")),
    ("minidl/data", ("tqdm", "minidl/cache", "minidl/data", *TOOLS)),
    # the model of a file is built by the zoo, which lies outside
    *((f"minidl/weights{file}", ("h5py", "safetensors", "minidl/version", "minidl/weights", *more, *TOOLS))
      for file, more in (("/__init__", ("minidl/init", "minidl/__init__")), ("/keras", ("minidl/nn",)), ("", ()))),
    ("minidl/plot", ("numpy", "matplotlib", "tensorboardX", "minidl")),
    # minidl's own kernels are launched by their launchers
    ("minidl/emulator/own", ("numpy", "cupy", "minidl/device", "minidl/tensor", "minidl/ops", "minidl/emulator")),
    ("minidl/emulator", ("numpy", "minidl/emulator", f"{COMMON}/sources", f"{COMMON}/own_conv",
                         f"{COMMON}/geometry")),
    ("minidl/training", ("numpy", "tqdm", "minidl")),
    ("minidl/cli", ("numpy", "cupy", "PIL", "mpi4py", "minidl")),
    ("minidl/__main__", ("minidl/cli",)),
    ("minidl/__init__", ("minidl",)),
    ("zoo", ("numpy", "zoo", "minidl/__init__", "minidl/init", "minidl/nn", "minidl/ops/__init__", "minidl/optim")),
    ("train", ("minidl",)),
]


def within(name: str, room: str) -> bool:
    return name == room or name.startswith(room + "/")


def resolve(module: str, names: list[str]) -> Iterator[str]:
    """`from module import names` as the modules that it reads, ours as paths."""
    path = module.replace(".", "/")
    for name in names or [""]:
        below = f"{path}/{name}"
        yield next((m for m in (below, f"{below}/__init__", path, f"{path}/__init__") if m in SOURCES), path)


def imports(module: str, tree: ast.AST) -> Iterator[str]:
    package = module.rsplit("/", 1)[0].split("/")
    types = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.If)     # which no run imports
             and ast.unparse(node.test) == "TYPE_CHECKING" for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in types:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from resolve(alias.name, [])
        elif isinstance(node, ast.ImportFrom):
            above = package[:len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            yield from resolve(source, [alias.name for alias in node.names])


def forbidden(module: str, tree: ast.AST) -> list[str]:
    allowed = next((allowed for room, allowed in ROOMS if within(module, room)), None)
    assert allowed is not None, f"{module} stands in no room: add a row to ROOMS"
    foreign = [name for name in imports(module, tree) if name.split("/")[0] not in sys.stdlib_module_names]
    return [name for name in foreign if not any(within(name, room) for room in allowed)]


@pytest.mark.parametrize("module", SOURCES)
def test_imports_keep_to_the_rooms(module: str) -> None:
    assert forbidden(module, SOURCES[module]) == []


@pytest.mark.parametrize(("module", "line", "found"), [
    ("minidl/tensor", "from .ops import add", ["minidl/ops/__init__"]),
    ("minidl/tensor", "from . import device, nn", ["minidl/nn/__init__"]),
    ("minidl/ops/conv", "from .cpu import pool", ["minidl/ops/cpu/pool"]),
    ("minidl/ops/conv", "from . import cpu", ["minidl/ops/cpu/__init__"]),
    ("minidl/ops/common/geometry", "import numpy as np", ["numpy"]),
    ("minidl/ops/cuda/conv/resident/wgmma", "from ..product import implicit_gemm",
     ["minidl/ops/cuda/conv/product/implicit_gemm"]),
    ("minidl/ops/cuda/conv/product/implicit_gemm", "from ..cost import round_up", []),
    ("minidl/ops/cuda/conv/cost", "from .resident import planned", ["minidl/ops/cuda/conv/resident/planned"]),
    ("minidl/device", "def f():\n    import torch", ["torch"]),
    ("zoo/mlp", "from minidl.ops.common.op import op", ["minidl/ops/common/op"]),
    ("zoo/mlp", "from minidl import nn", []),
    ("minidl/weights/files", "from ..version import __version__", []),
])
def test_a_forbidden_import_is_found(module: str, line: str, found: list[str]) -> None:
    assert forbidden(module, ast.parse(line)) == found


# ---------------------------------------------------------------- op bodies touch arrays only through k
SHAPE_FACTS = {"shape", "dtype", "ndim", "size"}
SHAPE_READERS = {"_shape", "tuple", "zip", "enumerate", "len"}         # may be handed arrays: they look at shapes
SHAPE_NUMPY = {"cumsum"}                                               # NumPy on tuples of sizes


def op_bodies(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
            if any(isinstance(d, ast.Name) and d.id == "op" for d in decorators):
                yield node


def is_primitive(node: ast.AST) -> bool:
    """k.<primitive>(...)"""
    return (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name) and node.func.value.id == "k")


def arrays_of(body: ast.FunctionDef) -> set[str]:
    """Names that hold arrays: the inputs, what primitives returned, and each closure's gy."""
    arrays = {a.arg for a in body.args.args[1:]}
    if body.args.vararg:
        arrays.add(body.args.vararg.arg)
    for node in ast.walk(body):
        if isinstance(node, ast.Assign) and is_primitive(node.value):
            names = (name for target in node.targets for name in ast.walk(target))
            arrays |= {name.id for name in names if isinstance(name, ast.Name)}
        elif isinstance(node, (ast.Lambda, ast.FunctionDef)) and node is not body:
            arrays.add(node.args.args[0].arg)
    return arrays


def touched(body: ast.FunctionDef) -> list[str]:
    """Everything in an op's body that computes on an array, or looks into one, without a primitive."""
    arrays, found = arrays_of(body), []
    several = body.args.vararg.arg if body.args.vararg else None       # a tuple of arrays, which may be indexed

    def array(node: ast.AST) -> bool:
        return is_primitive(node) or (isinstance(node, ast.Name) and node.id in arrays)

    for node in ast.walk(body):
        operands: list[ast.AST] = []
        if isinstance(node, ast.Attribute):
            if array(node.value) and node.attr not in SHAPE_FACTS:
                found.append(ast.unparse(node))
            if isinstance(node.value, ast.Name) and node.value.id == "np" and node.attr not in SHAPE_NUMPY:
                found.append(ast.unparse(node))
        elif isinstance(node, ast.BinOp):
            operands = [node.left, node.right]
        elif isinstance(node, ast.UnaryOp):
            operands = [node.operand]
        elif isinstance(node, ast.Compare) and not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) != several:
            operands = [node.value]
        elif (isinstance(node, ast.Call) and not is_primitive(node)
              and ast.unparse(node.func).removesuffix("_backward") not in (*SHAPE_READERS, *SHARED_BODIES)):
            operands = [*node.args, *[keyword.value for keyword in node.keywords]]
        if any(map(array, operands)):
            found.append(ast.unparse(node))
    return found


OP_BODIES = {f"{module}:{body.name}": body for module, tree in SOURCES.items() for body in op_bodies(tree)}
SHARED_BODIES = {body.name: body for module, tree in SOURCES.items() if within(module, "minidl/ops/common/grouped")
                 for body in ast.walk(tree) if isinstance(body, ast.FunctionDef) and body.args.args[0].arg == "k"}
OP_BODIES |= SHARED_BODIES                 # parts of bodies, which are handed k and the arrays


def test_all_op_bodies_were_read() -> None:
    assert {name.rsplit(":", 1)[-1].strip("_") for name in OP_BODIES} == {*ops.OPS, *SHARED_BODIES}
    assert list(SHARED_BODIES) == ["grouped", "dilated", "plain"]


@pytest.mark.parametrize("name", OP_BODIES)
def test_op_touches_arrays_only_through_k(name: str) -> None:
    assert touched(OP_BODIES[name]) == []


@pytest.mark.parametrize("line", [
    "y = x * 2", "y = -x", "y = x.T", "y = x[0]", "y = x.sum()", "y = np.exp(x)", "y = x > 0", "y = float(x)",
    "y = k.exp(x) + 1", "y = k.exp(x)\n    z = y @ y", "y = k.exp(x).astype(int)",
    "return k.exp(x), lambda gy, need: (gy * 2,)", "def backward(gy, need):\n        return gy.T,",
])
def test_a_touched_array_is_found(line: str) -> None:
    (body,) = op_bodies(ast.parse(f"@op\ndef f(k, x, *, n=1):\n    {line}\n"))
    assert touched(body)


# ---------------------------------------------------------------- documentation and words
BACKENDS = ("common/shared", "common/choice", "cpu", "cuda")                     # their ops document them


def undocumented() -> Iterator[str]:
    for module, tree in SOURCES.items():
        if not ast.get_docstring(tree):
            yield module
        if not within(module, "minidl") or any(within(module, f"minidl/ops/{room}") for room in BACKENDS):
            continue
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name[0] != "_" \
                    and not ast.get_docstring(node) and "overload" not in map(ast.unparse, node.decorator_list):
                yield f"{module}:{node.name}"


def test_every_module_and_public_name_has_a_docstring() -> None:
    assert list(undocumented()) == []


def test_no_file_names_a_folder_of_somebodys_machine() -> None:
    folders = re.compile(r"(?<![\w.~])/(work|tmp|home|root|Users)/")
    files = [path for pattern in ("*.md", "*.py", "*.cfg", "*.toml", "docs/**/*.md", "minidl/**/*", "zoo/**/*",
                                  "tests/**/*.py", "benchmarks/**/*.py") for path in ROOT.glob(pattern)]
    assert len(files) > 20
    texts = [path for path in files if path.suffix in {".py", ".md", ".cfg", ".toml", ".cu", ".cuh"}]
    lines = ((path, line) for path in texts for line in path.read_text(encoding="utf-8").splitlines())
    assert [f"{path.relative_to(ROOT)}: {line}" for path, line in lines if folders.search(line)] == []


# ---------------------------------------------------------------- start
def test_import_is_light() -> None:
    heavy = ("cupy", "matplotlib", "h5py", "torch", "tqdm", "zoo", "onnx", "safetensors", "minidl.zoo", "minidl.onnx",
             "minidl.weights.hdf5")
    code = f"import minidl, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_late_modules_are_there_when_they_are_named() -> None:
    code = "import minidl; print(minidl.onnx.__name__, minidl.zoo.__name__, hasattr(minidl, 'nothing'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "minidl.onnx minidl.zoo False"
    with pytest.raises(AttributeError, match=r"^module 'minidl' has no attribute 'nothing'$"):
        importlib.import_module("minidl").nothing  # noqa: B018
