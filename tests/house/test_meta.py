"""The house rules that a machine can check: who imports whom, what an op may touch, what must not be missing."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from cases import CASES, Case
from checks.agrees import names_of

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
def test_both_backends_have_the_primitives_and_those_that_have_rows(backend: str) -> None:
    """test_cuda_compile.py compares the backends' signatures."""
    if backend == "cuda":
        pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")
    assert names_of(importlib.import_module(f"minidl.ops.{backend}")) == names_of(cpu) >= set(PRIMITIVES)


def test_facts_of_a_primitive_fit_each_other() -> None:
    for name, known in PRIMITIVES.items():
        assert known.effect or not (known.changes or known.update or known.counter), name
        assert not known.effect or not known.line, f"{name}: a region has no effects"
        primitive = inspect.unwrap(getattr(cpu, name))
        if not isinstance(primitive, np.ufunc):        # those have a signature from NumPy 2.3 on alone
            parameters = inspect.signature(primitive).parameters
            assert max(known.changes, default=0) < len(parameters), name
            assert len(known.takes) in (0, len(parameters)), name


# ---------------------------------------------------------------- rooms
CORE, OPS, CUDA = "minidl/core", "minidl/ops", "minidl/ops/cuda"
BASE = ("numpy", *(f"{CORE}/{name}" for name in ("contexts", "mode", "tensor", "by_tensor", "device", "host",
                                                   "rng")), OPS)
NN = tuple(f"minidl/nn/{name}" for name in ("__init__", "containers", "habits", "init", "layers", "losses", "module",
                                            "table"))                      # all but weights
NAMES = {"arrays": ("arrange", "basic", "contraction", "functions", "indexing", "methods", "operators", "select",
                    "shapes", "statistics"),
         "layers": ("activation", "attention", "conv", "linear", "lookup", "norm", "pool", "recurrent", "resample",
                    "units"),
         "losses": ("criteria", "loss", "nll")}
FAMILIES = tuple(f"{OPS}/{group}/{name}" for group, names in NAMES.items() for name in names)
COMMON = "minidl/ops/common"
GEOMETRY = f"{COMMON}/geometry/__init__"
# what all backends stand on
FACTS = ("numpy", *(f"{COMMON}/{name}" for name in (
    "primitives", "patterns", "fused", "curves", "shared", "choice", "ranks", "region", "conv/own", "conv/fft",
    "geometry")))

CONV = f"{CUDA}/conv"
LAUNCHERS = (*FACTS, "cupy", f"{CORE}/device", f"{CUDA}/launch")
SHELVES = (*LAUNCHERS, f"{CONV}/cost", f"{CUDA}/layers/linear", f"{CUDA}/layers/pool", f"{CUDA}/reduce/__init__")

# A room, and what it may import beside the standard library; a name allows everything below it. The first row
# whose name a module has, or stands below, decides.
ROOMS: list[tuple[str, tuple[str, ...]]] = [
    *((f"{folder}/__init__", ()) for folder in (
        CORE, *(f"{OPS}/{group}" for group in NAMES), COMMON, f"{COMMON}/conv", f"{OPS}/cpu/layers", f"{CUDA}/layers",
        "minidl/nn/layers", "minidl/data/sets", "minidl/lab", "minidl/tools")),
    (f"{CORE}/contexts", ()),
    (f"{CORE}/mode", (f"{CORE}/contexts",)),
    (f"{CORE}/version", ()),
    (f"{CORE}/host", ()),
    (f"{CORE}/rng", ("numpy", f"{CORE}/mode")),
    (f"{CORE}/device", ("numpy", "cupy", f"{CORE}/contexts", f"{CORE}/host")),
    (f"{CORE}/pools", ("numpy", "cupy")),
    (f"{CORE}/tensor", ("numpy", f"{CORE}/mode", f"{CORE}/device")),
    (f"{CORE}/by_tensor", (f"{CORE}/tensor",)),
    (f"{CORE}/gradcheck", ("numpy", f"{CORE}/mode", f"{CORE}/rng", f"{CORE}/tensor")),
    (f"{CORE}/derivatives", ("numpy", f"{CORE}/device", f"{CORE}/mode", f"{CORE}/tensor", f"{CORE}/gradcheck", OPS)),
    (f"{CORE}/interchange", ("numpy", "cupy", f"{CORE}/mode", f"{CORE}/device", f"{CORE}/host",
                             f"{CORE}/tensor")),
    (GEOMETRY, ()),
    (f"{COMMON}/geometry/attention", ("numpy", f"{COMMON}/primitives")),
    (f"{COMMON}/geometry/layouts", ()),
    (f"{COMMON}/patterns", ()),
    (f"{COMMON}/fused", (f"{COMMON}/patterns", f"{COMMON}/primitives")),
    (f"{COMMON}/geometry/nhwc", ("numpy", f"{COMMON}/patterns", f"{COMMON}/primitives", GEOMETRY)),
    (f"{COMMON}/geometry/rows", (f"{COMMON}/patterns", f"{COMMON}/primitives", GEOMETRY, f"{COMMON}/geometry/nhwc")),
    (f"{COMMON}/geometry/recurrent", ()),
    (f"{COMMON}/geometry/sets", ()),
    (f"{COMMON}/conv/parts", (f"{CORE}/tensor", GEOMETRY)),
    (f"{COMMON}/conv/own", ("numpy", f"{CORE}/device", GEOMETRY)),
    (f"{COMMON}/conv/fft", (f"{COMMON}/primitives", GEOMETRY)),
    (f"{COMMON}/ranks", ()),
    (f"{COMMON}/region", ()),
    (f"{COMMON}/sources", ("numpy",)),
    (f"{COMMON}/curves", ("numpy",)),
    (f"{COMMON}/primitives", ("numpy", f"{COMMON}/curves")),
    (f"{COMMON}/shared", ("numpy", f"{COMMON}/primitives")),
    (f"{COMMON}/choice", ("numpy", f"{COMMON}/primitives")),
    (f"{OPS}/cpu", (*FACTS, f"{OPS}/cpu")),
    (f"{CUDA}/launch", ("numpy", "cupy", f"{CORE}/device", f"{CORE}/pools", f"{COMMON}/sources", f"{CUDA}/launch")),
    (f"{CONV}/product/fft", (*SHELVES, "cupyx", f"{CORE}/host")),
    *((f"{CONV}/{shelf}", (*SHELVES, f"{CONV}/{shelf}")) for shelf in ("papers", "product", "resident")),
    *((f"{CONV}/{common}", (*LAUNCHERS, f"{CORE}/host", f"{CORE}/mode", f"{CORE}/pools", f"{CORE}/version",
                            f"{CONV}/auto", f"{CUDA}/reduce/__init__"))
      for common in ("auto", "bias", "cost")),
    (CUDA, (*FACTS, "cupy", f"{CORE}/device", f"{CORE}/version", CUDA)),
    (f"{COMMON}/backend", ("numpy", f"{CORE}/mode", f"{CORE}/device", f"{CORE}/tensor", f"{OPS}/cpu", CUDA)),
    (f"{OPS}/second", (f"{CORE}/mode", f"{CORE}/tensor", f"{COMMON}/op", f"{COMMON}/backend", GEOMETRY,
                       f"{COMMON}/conv/parts", f"{COMMON}/primitives", f"{COMMON}/curves", f"{COMMON}/geometry/sets",
                       f"{OPS}/create",
                       *FAMILIES)),
    (f"{COMMON}/checked", (f"{CORE}/tensor",)),
    (f"{COMMON}/op", ("numpy", f"{CORE}/device", f"{CORE}/mode", f"{CORE}/tensor", f"{COMMON}/backend",
                      f"{COMMON}/checked")),
    *((family, ("numpy", f"{CORE}/mode", f"{CORE}/device", f"{CORE}/tensor", f"{CORE}/rng", f"{OPS}/create",
                f"{COMMON}/op", f"{COMMON}/backend", GEOMETRY,
                f"{COMMON}/conv/parts", f"{COMMON}/conv/own", f"{COMMON}/primitives", f"{COMMON}/curves",
                f"{COMMON}/geometry/recurrent", f"{COMMON}/geometry/sets", *FAMILIES))
      for family in FAMILIES),
    (f"{OPS}/__init__", (f"{CORE}/tensor", f"{OPS}/second", f"{COMMON}/op",
                         f"{COMMON}/backend", f"{COMMON}/primitives", f"{COMMON}/curves",
                         f"{COMMON}/geometry/sets", *FAMILIES)),
    (f"{OPS}/create", ("numpy", f"{CORE}/mode", f"{CORE}/rng", f"{CORE}/device", f"{CORE}/tensor", GEOMETRY,
                      f"{COMMON}/backend")),
    ("minidl/compiler/graph", ("cupy", "numpy", f"{CORE}/device", f"{CORE}/mode", f"{CORE}/pools", f"{CORE}/tensor",
                               f"{COMMON}/primitives",
                               f"{CUDA}/launch/addresses", f"{CUDA}/launch/overlap", "minidl/compiler")),
    ("minidl/compiler", ("numpy", "cupy", f"{CORE}/mode", f"{CORE}/device", f"{CORE}/pools", f"{CORE}/tensor",
                         f"{COMMON}/primitives", f"{COMMON}/ranks", f"{COMMON}/region", f"{COMMON}/geometry/nhwc",
                         f"{COMMON}/geometry/rows", f"{COMMON}/fused", f"{COMMON}/patterns", "minidl/compiler")),
    ("minidl/distributed/witness", ()),
    ("minidl/distributed", ("cupy", "mpi4py", f"{CORE}/pools", "minidl/distributed", *BASE)),
    ("minidl/nn/init", BASE),
    ("minidl/nn/layers/norm", ("minidl/distributed/world", *NN, *BASE)),
    # the model of a file is built by the zoo, which lies outside
    *((f"minidl/nn/weights{file}", ("h5py", "safetensors", f"{CORE}/version", "minidl/nn/weights", *more, *BASE))
      for file, more in (("/__init__", ("minidl/nn/init", "minidl/__init__")), ("/keras", NN),
                         ("/safetensors", ("minidl/nn/habits",)), ("", ()))),
    ("minidl/nn/utils", ("minidl/optim/clip",)),
    ("minidl/nn", ("minidl/nn/utils", *NN, *BASE)),
    ("minidl/optim", ("minidl/core/pools", "minidl/optim", *BASE)),
    ("minidl/data/chance", ("numpy", f"{CORE}/rng")),
    ("minidl/data/items", ("numpy", f"{CORE}/device")),
    ("minidl/data/sets/picture", ("numpy", "PIL", f"{CORE}/host")),
    ("minidl/data/sets/table", ("numpy", f"{CORE}/host", "minidl/data/chance", "minidl/data/items")),
    ("minidl/data/sets/folder", ("numpy", "minidl/data/chance", "minidl/data/sets/datasets", "minidl/data/sets/picture",
                                 "minidl/data/sets/table", "minidl/data/sources")),
    ("minidl/data", ("tqdm", f"{CORE}/host", "minidl/data", *BASE)),
    ("minidl/training", ("numpy", "tqdm", "minidl")),
    ("minidl/lab/source", (f"{COMMON}/sources",)),
    ("minidl/lab/own", ("minidl/compiler/passes", "minidl/lab/source", *BASE)),
    ("minidl/lab/profile", ("cupy", "minidl/compiler", *BASE)),
    ("minidl/lab/gpus", ("cupy", f"{CORE}/host", f"{COMMON}/sources", "minidl/lab/emulator")),
    ("minidl/lab/check", ("cupy", "minidl/lab/emulator", *BASE)),
    # minidl's own kernels are launched by their launchers
    ("minidl/lab/emulator/own", ("cupy", "minidl/lab/emulator", *BASE)),
    ("minidl/lab/emulator", ("numpy", "minidl/lab/emulator", "minidl/lab/source", f"{COMMON}/sources",
                             f"{COMMON}/conv/own", GEOMETRY)),
    ("minidl/lab", BASE),
    ("minidl/tools/onnx", ("onnx", f"{CORE}/version", "minidl/nn/weights/files", *BASE)),
    ("minidl/tools/sweep", ("numpy", "minidl")),
    ("minidl/tools/workers", ("cupy", "minidl")),
    ("minidl/tools/plot", ("numpy", "matplotlib", "tensorboardX", "minidl")),
    ("minidl/tools/cli", ("numpy", "cupy", "mpi4py", "minidl")),
    ("minidl/habits", ("minidl/data", *NN, "minidl/optim", *BASE)),
    ("minidl/display", (*NN, "minidl/optim", *BASE)),
    ("minidl/__main__", ("minidl/tools/cli",)),
    ("minidl/__init__", ("minidl",)),
    ("zoo", ("numpy", "zoo", "minidl/__init__", *NN, f"{OPS}/__init__", "minidl/optim")),
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


def running(tree: ast.AST, functions: bool) -> Iterator[ast.AST]:
    """What a run of a module reaches: all but what only type checkers read, and, if so asked, the bodies of functions,
    which its import does not run."""
    for node in ast.iter_child_nodes(tree):
        body = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        if (functions or not body) and not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from running(node, functions)


def imports(module: str, tree: ast.AST, functions: bool = True) -> Iterator[str]:
    package = module.rsplit("/", 1)[0].split("/")
    for node in running(tree, functions):
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
    ("minidl/core/tensor", "from ..ops import add", ["minidl/ops/__init__"]),
    ("minidl/core/tensor", "from . import device, gradcheck", ["minidl/core/gradcheck"]),
    ("minidl/core/__init__", "from .tensor import Tensor", ["minidl/core/tensor"]),
    ("minidl/ops/layers/conv", "from ..cpu.layers import pool", ["minidl/ops/cpu/layers/pool"]),
    ("minidl/ops/layers/conv", "from .. import cpu", ["minidl/ops/cpu/__init__"]),
    ("minidl/ops/common/geometry/__init__", "import numpy as np", ["numpy"]),
    ("minidl/ops/cuda/conv/resident/tensor_cores/wgmma", "from ...product import implicit_gemm",
     ["minidl/ops/cuda/conv/product/implicit_gemm"]),
    ("minidl/ops/cuda/conv/product/implicit_gemm", "from ..cost import round_up", []),
    ("minidl/ops/cuda/conv/cost", "from .resident import planned", ["minidl/ops/cuda/conv/resident/planned"]),
    ("minidl/nn/module", "from .weights import save", ["minidl/nn/weights/__init__"]),
    ("minidl/nn/init", "from . import module", ["minidl/nn/module"]),
    ("minidl/ops/create", "from ..lab.emulator import watch", ["minidl/lab/emulator/watch"]),
    ("minidl/distributed/mpi", "from ..compiler.graph import give_up", ["minidl/compiler/graph"]),
    ("minidl/lab/own", "from ..tools import cli", ["minidl/tools/cli/__init__"]),
    ("minidl/core/device", "def f():\n    import torch", ["torch"]),
    ("zoo/mlp", "from minidl.ops.common.op import op", ["minidl/ops/common/op"]),
    ("zoo/mlp", "from minidl import nn", []),
    ("minidl/nn/weights/files", "from ...core.version import __version__", []),
])
def test_a_forbidden_import_is_found(module: str, line: str, found: list[str]) -> None:
    assert forbidden(module, ast.parse(line)) == found


# ---------------------------------------------------------------- circles
Edges = dict[str, set[str]]                # a module, or a wing: what it imports when it is imported


def imported(module: str, tree: ast.AST) -> set[str]:
    """Our modules that a module's import imports. Those inside functions and under TYPE_CHECKING do not count: they are
    of what may be missing or takes long, and of types."""
    return {name for name in imports(module, tree, functions=False) if name in SOURCES}


def wing(module: str) -> str:
    """A folder below minidl with all that it holds, or a file beside them."""
    return "/".join(module.split("/")[:2])


def of_wings(edges: Edges) -> Edges:
    return {room: {wing(name) for module, names in edges.items() if wing(module) == room for name in names} - {room}
            for room in map(wing, edges)}


def circles(edges: Edges) -> list[set[str]]:
    """Sets in which each reaches each of the others by imports."""
    def reached(start: str) -> set[str]:
        found, left = set[str](), [start]
        while left:
            new = edges[left.pop()] - found
            found |= new
            left += new
        return found

    reach = {each: reached(each) for each in edges}
    sets = {frozenset(other for other in found if each in reach[other]) for each, found in reach.items()}
    return sorted((set(each) for each in sets if each), key=sorted)


IMPORTS = {module: imported(module, tree) for module, tree in SOURCES.items()}


@pytest.mark.parametrize("edges", [pytest.param(IMPORTS, id="files"), pytest.param(of_wings(IMPORTS), id="wings")])
def test_no_imports_go_in_a_circle(edges: Edges) -> None:
    assert sum(map(len, edges.values())) > 20
    assert circles(edges) == []


@pytest.mark.parametrize(("module", "line", "files", "wings"), [
    ("minidl/core/pools", "from ..compiler.graph import give_up",
     [{"minidl/core/pools", "minidl/compiler/graph"}], [{"minidl/core", "minidl/compiler", "minidl/ops"}]),
    ("minidl/core/version", "if True:\n    from ..optim import sgd", [], [
        {"minidl/core", "minidl/ops", "minidl/optim"}]),
    ("minidl/core/pools", "def f():\n    from ..compiler import graph", [], []),
    ("minidl/core/pools", "if TYPE_CHECKING:\n    from ..compiler import graph", [], []),
])
def test_a_circle_is_found(module: str, line: str, files: list[set[str]], wings: list[set[str]]) -> None:
    edges = {**IMPORTS, module: imported(module, ast.parse(line))}
    assert circles(edges) == files
    assert circles(of_wings(edges)) == wings


# ---------------------------------------------------------------- op bodies touch arrays only through k
SHAPE_FACTS = {"shape", "dtype", "ndim", "size"}
# These may be handed arrays: they look at shapes and dtypes
SHAPE_READERS = {"_shape", "_numbers", "tuple", "zip", "enumerate", "len"}
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
        elif isinstance(node, (ast.Lambda, ast.FunctionDef)) and node is not body and node.args.args:
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
              and ast.unparse(node.func).removesuffix("_backward") not in (*SHAPE_READERS, *SHARED_BODIES, *MAPS)):
            operands = [*node.args, *[keyword.value for keyword in node.keywords]]
        if any(map(array, operands)):
            found.append(ast.unparse(node))
    return found


MAPS = "there", "back", "back_x", "back_y", "gate"     # calls of primitives that an op is given
OP_BODIES = {f"{module}:{body.name}": body for module, tree in SOURCES.items() for body in op_bodies(tree)}
WITH_SHARED_BODIES = f"{COMMON}/conv/parts", f"{COMMON}/conv/own", f"{OPS}/layers/norm", f"{OPS}/losses/criteria"
SHARED_BODIES = {body.name: body for room in WITH_SHARED_BODIES
                 for module, tree in SOURCES.items() if within(module, room)
                 for body in ast.walk(tree) if isinstance(body, ast.FunctionDef) and not body.decorator_list
                 and [arg.arg for arg in body.args.args[:1]] == ["k"]}
OP_BODIES |= SHARED_BODIES                 # parts of bodies, which are handed k and the arrays


def test_all_op_bodies_were_read() -> None:
    of_rules = {"linear_map", "product", "gelu_grad_x", "gated"}             # ops/second.py's own
    assert {name.rsplit(":", 1)[-1].strip("_") for name in OP_BODIES} == {*ops.OPS, *SHARED_BODIES, *of_rules}
    assert {*SHARED_BODIES} == {"in_parts", "grouped", "dilated", "plain", "of_pairs", "by_given", "over_ranks",
                                "over_batch", "over_itself", "users", "by"}


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
@pytest.mark.slow
def test_import_is_light() -> None:
    heavy = ("cupy", "matplotlib", "h5py", "torch", "tqdm", "zoo", "onnx", "safetensors", "minidl.zoo", "minidl.tools",
             "minidl.lab", "minidl.compiler", "minidl.training", "minidl.nn.weights.hdf5")
    assert all(importlib.util.find_spec(name) for name in heavy if name.startswith("minidl."))
    code = f"import minidl, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_late_modules_are_there_when_they_are_named() -> None:
    names = "cli", "compiler", "emulator", "lab", "layouts", "onnx", "plot", "training", "zoo"
    code = f"import minidl; print([getattr(minidl, name).__name__ for name in {names}], hasattr(minidl, 'nothing'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    found = ["tools.cli", "compiler", "lab.emulator", "lab", "lab.layouts", "tools.onnx", "tools.plot", "training",
             "zoo"]
    assert done.stdout.strip() == f"{[f'minidl.{name}' for name in found]} False"
    with pytest.raises(AttributeError, match=r"^module 'minidl' has no attribute 'nothing'$"):
        importlib.import_module("minidl").nothing  # noqa: B018
