"""A net as an ONNX file, which onnxruntime and others run: one table says what each op is there.

The net is run twice, on batches of n and 3n + 1 items, and each op is recorded, as for a compiled step. What differs
between the runs depends on the batch: a size of a reshape then becomes -1; all else is refused by name. So any net
whose forward is made of minidl's ops can be exported, Module or function.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..core.contexts import replaced
from ..core.device import Array, DType, holds, is_array, to_device, to_numpy
from ..core.host import install
from ..core.mode import Listener, mode, no_grad
from ..core.tensor import Tensor
from ..core.version import __version__
from ..nn.weights.files import write_whole
from ..ops.common.curves import CUBIC, RATE, SLOPE
from ..ops.common.geometry import Padding, Pair, edges, pair
from ..ops.common.geometry.recurrent import SIZES
from ..ops.common.primitives import Index
from ..ops.layers.activation import one_axis

OPSET = 18                                 # ONNX 1.13, 2022
IR_VERSION = 8

_MANY = np.iinfo(np.int64).max             # an end of a slice that is open


def export(net: Callable[..., Tensor | tuple[Tensor, ...]], path: str | os.PathLike[str],
           example: Tensor | np.ndarray | tuple[Tensor | np.ndarray, ...]) -> None:
    """Write a net as an ONNX file, whole or not at all; needs the extra `onnx`.

    net: a Module or any function of Tensors made of minidl's ops; call net.eval() first if it has dropout or batch
    normalisation.
    example: what it is called with, one Tensor or array or a tuple of them; their axis 0 is the batch, which may have
    any size for the file. Inputs are named "input" (or "input_0", ...), outputs "output"; parameters keep their names.

    export(net, example, path), PyTorch's order, does the same.

    Raises ValueError for an op that has no row in `ROWS`, and for what depends on values or on the size of the batch;
    OSError if the file cannot be written.

    >>> import minidl, tempfile
    >>> net = minidl.nn.Sequential(minidl.nn.Linear(3, 2), minidl.nn.Tanh())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(net, f"{folder}/net.onnx", np.zeros((1, 3), np.float32))  # doctest: +SKIP
    """
    if isinstance(example, (str, os.PathLike)):        # in PyTorch's order
        path, example = example, path
    try:
        import onnx
    except ImportError:
        raise ImportError(f"onnx.export: needs the package onnx; run {install('onnx')}") from None
    inputs = tuple(each if isinstance(each, Tensor) else Tensor(each)
                   for each in (example if isinstance(example, tuple) else (example,)))
    for t in inputs:
        if not t.shape or t.shape[0] < 1 or t.shape[0] != inputs[0].shape[0]:
            raise ValueError(f"onnx.export: an example has shape {t.shape} but axis 0 must be the batch, of at least 1 "
                             "and the same for all; add the axis")

    def batch(n: int) -> tuple[Tensor, ...]:
        """The example's images, over and over until they are n. A trace knows values by their arrays: so each input has
        memory of its own, also if one Tensor is given for several."""
        return tuple(Tensor(to_device(t.numpy()[np.arange(n) % len(t)], t.device)) for t in inputs)

    n = len(inputs[0])                     # 3n + 1 has other halves than n, and is even where n is odd
    graph = _Graph(onnx, _Trace(net, batch(n)), _Trace(net, batch(3 * n + 1)))
    model = graph.model(net)
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ValueError(f"onnx.export: {graph.blamed(str(error))}, which ONNX does not have for these inputs: "
                         f"{str(error).strip().splitlines()[0]}; compute with other ops or dtypes") from None
    write_whole("onnx.export", path, model.SerializeToString())


# ---------------------------------------------------------------- what a net does
class _Call(NamedTuple):
    """One op: its inputs as indices of values, or numbers, or None; its options; its result."""

    name: str
    inputs: tuple[Any, ...]
    options: dict[str, Any]
    result: int


class _Value(NamedTuple):
    """Represents an array among a call's inputs."""

    at: int


class _Trace(Listener):
    """One run of a net: its arrays in the order of their appearance, and its calls."""

    recording = True

    def __init__(self, net: Callable[..., Any], inputs: tuple[Tensor, ...]):
        self.arrays: list[Any] = []            # held, so that an id stays one array's
        self.indices: dict[int, int] = {}
        self.calls: list[_Call] = []
        self.number: int | None = None         # the result of the last call, if it was no array yet
        self.inputs = [self.index(t._data) for t in inputs]
        with replaced(mode, "recorder", self), no_grad():
            results = net(*inputs)
        self.results = []
        for t in (isinstance(results, tuple) and results) or (results,):
            if not isinstance(t, Tensor):
                raise ValueError(f"onnx.export: the net returned a {type(t).__name__} but must return a Tensor or a "
                                 "tuple of Tensors")
            self.results.append(self.index(t._data))

    def index(self, array: object) -> int:
        if id(array) not in self.indices:
            self.indices[id(array)] = len(self.arrays)
            self.arrays.append(array)
        return self.indices[id(array)]

    def through(self, backend: ModuleType) -> _Primitives:
        return _Primitives(self, backend)

    def run(self, name: str, body: Callable[..., Any], k: ModuleType, arrays: list[Any],
            options: dict[str, Any]) -> Any:
        y, backward = body(k.backend, *arrays, **options)
        plain = {option: value for option, value in options.items() if option != "algorithm"}      # of this machine
        self.note(name, arrays, plain, y)
        return y, backward

    def note(self, name: str, arrays: list[Any], options: dict[str, Any], y: object) -> None:
        """Add a call."""
        inputs = tuple(_Value(self.index(array)) if hasattr(array, "shape") else array for array in arrays)
        self.indices.pop(id(y), None)          # an op may give its input back
        self.calls.append(_Call(name, inputs, options, self.index(y)))
        self.number = None if is_array(y) else self.calls[-1].result

    def alias(self, array: Array) -> Array:
        return array                       # one value of the file, whatever its name

    def made(self, t: Tensor, of_data: bool = False) -> None:
        if self.number is not None:            # NumPy's reductions to one value give a number
            self.indices[id(t._data)] = self.number
            self.arrays[self.number], self.number = t._data, None

    def refuse(self, what: str, way_out: str = "do it outside the step") -> NoReturn:
        raise ValueError(f"onnx.export: the net {what}, which a file cannot repeat; {way_out}")

    def change(self, t: Tensor, on_tape: bool = False) -> None:
        self.refuse("changes a Tensor in place", "compute a new one, or call net.eval() where that is a layer's")

    def gradient(self, leaf: Tensor, how: str) -> None:
        if how != "set":
            self.refuse("runs backward" if how == "add" else "looks at a gradient",
                        "export what computes the outputs alone")


class _Primitives:
    """A backend's primitives. Those that ops call are part of the op's call; a conversion between two ops, by .to() or
    of a mask that meets numbers, is noted as a call of its own."""

    def __init__(self, trace: _Trace, backend: ModuleType):
        self.trace, self.backend = trace, backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def cast(self, x: Array, dtype: str) -> Array:
        y = self.backend.cast(x, dtype)
        self.trace.note("to", [x], {"dtype": dtype}, y)
        return y


# ---------------------------------------------------------------- as a graph
class _Graph:
    """The nodes and constants of a file, from two runs of a net; rows add to it by `node` and `constant`."""

    def __init__(self, onnx: ModuleType, first: _Trace, second: _Trace):
        self.onnx, self.first, self.second = onnx, first, second
        self.nodes: list[Any] = []
        self.ops: dict[str, str] = {}          # which op made a node, by the node's name
        self.op = ""                           # the op of the current call
        self.constants: dict[str, np.ndarray] = {}
        self.names: dict[int, str] = {}
        self.dtype: DType = None               # of the current call: of the numbers among its inputs
        self.dtypes: list[np.dtype] = []       # of each array among its inputs
        self.shapes: list[tuple[int, ...]] = []        # and its shape, -1 for what depends on the batch
        self.sizes: tuple[int, ...] = ()       # and its result's shape, -1 if that depends on the batch

    def node(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Add a node of ONNX; gives its output's name. An input "" is left out."""
        name = f"{kind}/{len(self.ops)}"       # no parameter is named so
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [name], name=name, **attributes))
        self.ops[name] = self.op
        return name

    def cast(self, x: str, dtype: DType) -> str:
        """Add a conversion."""
        return self.node("Cast", x, to=self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def blamed(self, error: str) -> str:
        """The op that a message of the package onnx is about."""
        node = next((name for name in self.ops if f"node name: {name})" in error or f"Name: {name})" in error), None)
        return "the net is written by nodes" if node is None else f"op {self.ops[node]!r} is written by {node}"

    def constant(self, value: object, dtype: DType = None, name: str | None = None) -> str:
        """Add a constant, of the dtype of the call's numbers if none is given; gives its name."""
        if name is None or (name.startswith(("input", "output")) and "." not in name):
            name = f"constant/{len(self.constants)}"
        kind = np.dtype(dtype or self.dtype)
        if isinstance(value, (int, float)) and not holds(kind, value):
            raise ValueError(f"onnx.export: {self.op} takes {value} beside {kind}, in which ONNX must have it; use a "
                             f"number that {kind} holds")
        self.constants[name] = to_numpy(value) if is_array(value) else np.array(value, kind)
        return name

    def model(self, net: object) -> Any:
        """The file's content."""
        first, second, helper = self.first, self.second, self.onnx.helper
        for call in first.calls:
            if call.name in ("dropout", "dropout2d"):
                raise ValueError("onnx.export: the net drops values at random; call net.eval() first")
            if call.name not in ROWS:
                raise ValueError(f"onnx.export: op {call.name!r} has no row in minidl.onnx.ROWS, which has "
                                 f"{', '.join(ROWS)}; compute with these, or add a row")
            self._require_dtypes(call)
        if len(first.calls) != len(second.calls) or any(
                (a.name, a.inputs, a.result) != (b.name, b.inputs, b.result)
                for a, b in zip(first.calls, second.calls, strict=True)):
            raise ValueError("onnx.export: the net does something else for another number of images; make its ops "
                             "independent of the batch's size")
        named = {id(t._data): name for name, t in net.named_tensors()} if hasattr(net, "named_tensors") else {}
        made = {call.result for call in first.calls}
        for i, name in zip(first.inputs, _numbered("input", len(first.inputs)), strict=True):
            self.names[i] = name
        for i, array in enumerate(first.arrays):
            if i not in self.names and i not in made:
                self.names[i] = self._filled(array, second.arrays[i]) or self.constant(
                    self._same(array, second.arrays[i]), array.dtype, named.get(id(array)))
        for call, other in zip(first.calls, second.calls, strict=True):
            self._add(call, other)
        outputs = _numbered("output", len(first.results))
        for i, name in zip(first.results, outputs, strict=True):
            self.nodes.append(helper.make_node("Identity", [self.names[i]], [name], name=name))
        graph = helper.make_graph(
            self.nodes, getattr(net, "model_name", type(net).__name__),
            [self._info(self.names[i], i, i) for i in first.inputs],
            [self._info(name, i, j) for name, i, j in zip(outputs, first.results, second.results, strict=True)],
            [self.onnx.numpy_helper.from_array(array, name) for name, array in self.constants.items()])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION,
                                 producer_name="minidl", producer_version=__version__)

    def _named_sizes(self, array: Array, other: Array) -> list[int | str | None]:
        """A shape of both runs: "batch" for the batch's size, None for what depends on it in another way."""
        batches = tuple(len(trace.arrays[trace.inputs[0]]) for trace in (self.first, self.second))
        return [n if n == m else "batch" if (n, m) == batches else None
                for n, m in zip(array.shape, other.shape, strict=True)]

    def _info(self, name: str, i: int, j: int) -> Any:
        """What a file says of an input or output; a size that depends on the batch has a name."""
        array = self.first.arrays[i]
        sizes = self._named_sizes(array, self.second.arrays[j])
        return self.onnx.helper.make_tensor_value_info(name, self.onnx.helper.np_dtype_to_tensor_dtype(array.dtype),
                                                       sizes)

    def _same(self, array: Array, other: Array) -> Array:
        """A constant of both runs."""
        if array.shape != other.shape or to_numpy(array).tobytes() != to_numpy(other).tobytes():
            raise ValueError(f"onnx.export: a constant has shape {array.shape} for one batch and {other.shape}, or "
                             "other values, for another; make it independent of the batch, sizes of 1 broadcast")
        return array

    def _filled(self, array: Array, other: Array) -> str:
        """The name of what is one number, such as the zeros that a recurrence begins with, with the batch's size along
        some axes; "" for anything else."""
        sizes = self._named_sizes(array, other) if array.ndim == other.ndim else []
        values = [to_numpy(each).reshape(-1) for each in (array, other)]
        alike = values[1].tobytes() == np.repeat(values[0][:1], other.size).tobytes()
        if "batch" not in sizes or None in sizes or not alike:
            return ""
        batch = self.node("Shape", self.names[self.first.inputs[0]], start=0, end=1)
        shape = [batch if size == "batch" else self.constant([size], np.int64) for size in sizes]
        value = self.onnx.numpy_helper.from_array(values[0][:1])
        return self.node("ConstantOfShape", self.node("Concat", *shape, axis=0), value=value)

    def _dtypes(self, call: _Call) -> list[np.dtype]:
        return [self.first.arrays[each.at].dtype for each in call.inputs if isinstance(each, _Value)]

    def _require_dtypes(self, call: _Call) -> None:
        dtypes, made = self._dtypes(call), self.first.arrays[call.result].dtype
        numbers = call.name == "where" and dtypes == [np.bool]         # it chooses between two
        if not (made in dtypes or call.name in OTHER_DTYPE or numbers or (dtypes[0] == np.bool and made == np.int64)):
            raise ValueError(f"onnx.export: {call.name} makes {made} of {dtypes[0]}, which ONNX does not; convert the "
                             "net's inputs to floating numbers")

    def _add(self, call: _Call, other: _Call) -> None:
        """The nodes of a call. ONNX computes with masks by operators of their own: here they are int64 in between."""
        result, again = self.first.arrays[call.result], self.second.arrays[other.result]
        given = [each.at for each in call.inputs if isinstance(each, _Value)]
        dtypes = self.dtypes = self._dtypes(call)
        self.op = call.name
        masks = np.bool in dtypes and call.name not in OF_MASKS
        self.dtype = np.dtype(np.int64) if masks else dtypes[0] if call.name in OTHER_DTYPE else result.dtype
        wide = call.name in OTHER_DTYPE and not all(holds(self.dtype, each) for each in call.inputs
                                                    if isinstance(each, (int, float)))
        if wide:                           # a comparison of integers with 0.5, or of uint8 with 300
            self.dtype = np.dtype(np.float64)
        self.sizes = _sizes(result, again)
        self.shapes = [_sizes(self.first.arrays[at], self.second.arrays[at]) for at in given]
        if call.name != "reshape" and repr(call.options) != repr(other.options):
            raise ValueError(f"onnx.export: {call.name} has the options {call.options} for one batch and "
                             f"{other.options} for another; make them independent of the batch's size")
        inputs = [self._input(each, masks, wide) for each in call.inputs]
        y = ROWS[call.name](self, len(self.shapes[0]), *inputs, **call.options)
        self.names[call.result] = self.cast(y, np.bool) if masks and result.dtype == np.bool else y

    def _input(self, each: object, masks: bool, wide: bool) -> str:
        """The name of a call's input. masks, wide: masks, or all values, become numbers of the call's dtype."""
        if each is None:
            return ""
        if isinstance(each, _Value):
            cast = wide or (masks and self.first.arrays[each.at].dtype == np.bool)
            return self.cast(self.names[each.at], self.dtype) if cast else self.names[each.at]
        if wide and isinstance(each, int):     # beyond the dtype: it compares as infinity, and float64 would round it
            each = math.inf if each > 0 else -math.inf
        return self.constant(each)


def _sizes(array: Array, other: Array) -> tuple[int, ...]:
    """A shape, with -1 for what depends on the batch. Raises ValueError if the number of axes does."""
    if array.ndim != other.ndim:
        raise ValueError(f"onnx.export: an op gives shape {array.shape} for one batch and {other.shape} for another, "
                         "which a file cannot say; name the axes that are to go, x.squeeze(1)")
    return tuple(n if n == m else -1 for n, m in zip(array.shape, other.shape, strict=True))


def _numbered(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}_{i}" for i in range(count)]


# ---------------------------------------------------------------- the rows: op -> nodes
# A row takes the graph, how many axes the first input has, the names of the inputs, and the op's options.
def _plain(kind: str) -> Callable[..., str]:
    """An op that ONNX has under another name."""
    return lambda graph, ndim, *inputs: graph.node(kind, *inputs)


def _pads(name: str, padding: Padding) -> list[int]:
    top, bottom, left, right = edges(name, padding)
    return [top, left, bottom, right]


def _conv2d(graph: _Graph, ndim: int, x: str, w: str, b: str = "", *, stride: Pair = 1, padding: Padding = 0,
            groups: int = 1, dilation: Pair = 1) -> str:
    apart = pair("conv2d", "dilation", dilation, 1)
    if padding == "same":                  # auto_pad takes no dilation everywhere
        more = [step * (taps - 1) for step, taps in zip(apart, graph.shapes[1][2:], strict=True)]
        pads = [each // 2 for each in more] + [each - each // 2 for each in more]
    else:
        pads = _pads("conv2d", 0 if padding == "valid" else padding)
    return graph.node("Conv", *filter(None, (x, w, b)), strides=pair("conv2d", "stride", stride, 1), pads=pads,
                      group=groups, dilations=apart)


def _conv_transpose2d(graph: _Graph, ndim: int, x: str, w: str, b: str = "", *, stride: Pair = 1, padding: Padding = 0,
                      output_padding: Pair = 0) -> str:
    name = "conv_transpose2d"
    return graph.node("ConvTranspose", *filter(None, (x, w, b)), strides=pair(name, "stride", stride, 1),
                      pads=_pads(name, padding), output_padding=pair(name, "output_padding", output_padding, 0))


def _linear(graph: _Graph, ndim: int, x: str, w: str, b: str = "") -> str:
    if ndim == 2:
        return graph.node("Gemm", *filter(None, (x, w, b)), transB=1)
    y = graph.node("MatMul", x, graph.node("Transpose", w, perm=[1, 0]))
    return graph.node("Add", y, b) if b else y


def _gelu(graph: _Graph, ndim: int, x: str, *, approximate: str = "none") -> str:
    inner = graph.node("Mul", x, graph.constant(math.sqrt(0.5)))
    if approximate == "tanh":
        cube = graph.node("Mul", graph.node("Mul", x, graph.node("Mul", x, x)), graph.constant(CUBIC))
        inner = graph.node("Mul", graph.node("Add", x, cube), graph.constant(RATE))
    part = graph.node("Add", graph.node("Tanh" if approximate == "tanh" else "Erf", inner), graph.constant(1.0))
    return graph.node("Mul", graph.node("Mul", x, graph.constant(0.5)), part)


def _pool(kind: str, **attributes: int) -> Callable[..., str]:
    def row(graph: _Graph, ndim: int, x: str, *, size: Pair, stride: Pair | None = None, padding: Padding = 0) -> str:
        window = pair(kind, "size", size, 1)
        return graph.node(kind, x, kernel_shape=window, pads=_pads(kind, padding), **attributes,
                          strides=window if stride is None else pair(kind, "stride", stride, 1))
    return row


def _along(kind: str) -> Callable[..., str]:
    return lambda graph, ndim, x, *, axis=-1: graph.node(kind, x, axis=axis)


def _reduce(kind: str) -> Callable[..., str]:
    def row(graph: _Graph, ndim: int, x: str, *, axis: object = None, keepdims: bool = False) -> str:
        axes = range(ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        return graph.node(kind, x, graph.constant([one_axis(kind, (0,) * ndim, a) for a in axes], np.int64),
                          keepdims=int(keepdims), noop_with_empty_axes=1)
    return row


def _place(kind: str) -> Callable[..., str]:
    def row(graph: _Graph, ndim: int, x: str, *, axis: int | None = None) -> str:
        if axis is None:
            x, axis = graph.node("Reshape", x, graph.constant([-1], np.int64)), 0
        return graph.node(kind, x, axis=axis, keepdims=0)
    return row


def _var(graph: _Graph, ndim: int, x: str, *, axis: object = None, keepdims: bool = False,
         correction: float = 1) -> str:
    axes = range(ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    sizes = [graph.shapes[0][a] for a in axes]
    if correction and -1 in sizes:
        raise ValueError("onnx.export: var over the batch divides by its size, which a file does not know; pass "
                         "correction=0")
    mean = _reduce("ReduceMean")
    apart = graph.node("Sub", x, mean(graph, ndim, x, axis=axis, keepdims=True))
    y = mean(graph, ndim, graph.node("Mul", apart, apart), axis=axis, keepdims=keepdims)
    count = math.prod(sizes)
    return graph.node("Mul", y, graph.constant(count / (count - correction))) if correction else y


def _batch_norm(graph: _Graph, ndim: int, x: str, w: str = "", b: str = "", mean: str = "", var: str = "", *,
                eps: float = 1e-5, **training: object) -> str:
    if not mean:
        raise ValueError("onnx.export: the net normalises by moments of the batch; call net.eval() first, with layers "
                         "that keep running ones")
    ones, zeros = (np.full(graph.shapes[0][1], value, graph.dtype) for value in (1, 0))
    return graph.node("BatchNormalization", x, w or graph.constant(ones), b or graph.constant(zeros), mean, var,
                      epsilon=float(eps))


def _layer_norm(graph: _Graph, ndim: int, x: str, w: str = "", b: str = "", *,
                normalized_shape: int | tuple[int, ...], eps: float = 1e-5) -> str:
    last = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    w = w or graph.constant(np.ones(last, graph.dtype))
    return graph.node("LayerNormalization", *filter(None, (x, w, b)), axis=-len(last), epsilon=float(eps))


def _group_norm(graph: _Graph, ndim: int, x: str, w: str = "", b: str = "", *, num_groups: int,
                eps: float = 1e-5) -> str:
    ones, zeros = (graph.constant(np.full(num_groups, value, graph.dtype)) for value in (1, 0))
    groups = graph.node("Reshape", x, graph.constant([0, num_groups, -1], np.int64))       # a group is a map
    y = graph.node("Reshape", graph.node("InstanceNormalization", groups, ones, zeros, epsilon=float(eps)),
                   graph.constant(graph.sizes, np.int64))
    for kind, each in (("Mul", w), ("Add", b)):
        if each:
            column = graph.constant([-1, *[1] * (ndim - 2)], np.int64)
            y = graph.node(kind, y, graph.node("Reshape", each, column))
    return y


def _where(graph: _Graph, ndim: int, condition: str, x: str, y: str) -> str:
    if graph.dtype != np.bool:
        return graph.node("Where", condition, x, y)
    return graph.node("Or", graph.node("And", condition, x), graph.node("And", graph.node("Not", condition), y))


def _expand(graph: _Graph, ndim: int, x: str, *, shape: tuple[int, ...]) -> str:
    taken = (1,) * (len(graph.sizes) - ndim) + graph.shapes[0]
    sizes = [1 if n == m else n for n, m in zip(graph.sizes, taken, strict=True)]      # 1 leaves a size as it is
    if -1 in sizes:
        raise ValueError(f"onnx.export: expand to {shape} makes a size of the batch's, which a file does not know; let "
                         "it broadcast where it is used")
    return graph.node("Expand", x, graph.constant(sizes, np.int64))


def _pad(graph: _Graph, ndim: int, x: str, *, widths: tuple[int, ...], value: float = 0.0) -> str:
    none = [0] * (ndim - len(widths) // 2)
    pads = [*none, *widths[::2][::-1], *none, *widths[1::2][::-1]]
    return graph.node("Pad", x, graph.constant(pads, np.int64), graph.constant(value))


def _adaptive_avg_pool2d(graph: _Graph, ndim: int, x: str, *, size: tuple[int, int]) -> str:
    """Two products with matrices, whose rows say how much of a window each row or column of the image is."""
    shares = []
    for n, count in zip(graph.shapes[0][2:], size, strict=True):
        matrix = np.zeros((count, n), graph.dtype)
        for i, row in enumerate(matrix):
            begin, end = i * n // count, -(-(i + 1) * n // count)
            row[begin:end] = 1 / (end - begin)
        shares.append(matrix)
    rows, columns = shares
    return graph.node("MatMul", graph.constant(rows), graph.node("MatMul", x, graph.constant(columns.T)))


def _interpolate(graph: _Graph, ndim: int, x: str, *, factors: tuple[int, int]) -> str:
    return graph.node("Resize", x, "", graph.constant((1, 1, *factors), np.float32), mode="nearest",
                      coordinate_transformation_mode="asymmetric", nearest_mode="floor")


def _reshape(graph: _Graph, ndim: int, x: str, *, shape: tuple[int, ...]) -> str:
    if graph.sizes.count(-1) > 1:
        raise ValueError(f"onnx.export: reshape to {shape} has {graph.sizes.count(-1)} sizes that depend on the batch "
                         "but may have 1; reshape in steps")
    return graph.node("Reshape", x, graph.constant(graph.sizes, np.int64), allowzero=int(0 in graph.sizes))


def _transpose(graph: _Graph, ndim: int, x: str, *, axes: tuple[int, ...] | None = None) -> str:
    order = range(ndim)[::-1] if axes is None else axes
    return graph.node("Transpose", x, perm=[a % ndim for a in order])


def _getitem(graph: _Graph, ndim: int, x: str, *, index: Index) -> str:
    parts = list(index if isinstance(index, tuple) else (index,))
    if not all(part is None or part is Ellipsis or isinstance(part, slice) or type(part) is int for part in parts):
        raise ValueError("onnx.export: getitem with an array of indices or a mask has no row; index by ints, slices, "
                         "None and Ellipsis")
    rest = ndim - sum(part is not None and part is not Ellipsis for part in parts)
    at = parts.index(Ellipsis) if Ellipsis in parts else len(parts)
    parts[at:at + 1] = [slice(None)] * rest
    taken = [(axis, part) for axis, part in enumerate(part for part in parts if part is not None)]
    cuts = [(axis, part) for axis, part in taken if isinstance(part, slice) and part != slice(None)]
    if cuts:
        steps = [1 if part.step is None else part.step for _, part in cuts]
        begins = [(0 if step > 0 else _MANY) if part.start is None else part.start
                  for (_, part), step in zip(cuts, steps, strict=True)]
        ends = [(_MANY if step > 0 else -_MANY) if part.stop is None else part.stop
                for (_, part), step in zip(cuts, steps, strict=True)]
        x = graph.node("Slice", x, *(graph.constant(each, np.int64)
                                     for each in (begins, ends, [axis for axis, _ in cuts], steps)))
    for axis, part in reversed(taken):
        if not isinstance(part, slice):
            x = graph.node("Gather", x, graph.constant(part, np.int64), axis=axis)
    kept = [part for part in parts if part is None or isinstance(part, slice)]
    new = [axis for axis, part in enumerate(kept) if part is None]
    return graph.node("Unsqueeze", x, graph.constant(new, np.int64)) if new else x


def _attention(graph: _Graph, ndim: int, query: str, key: str, value: str, mask: str = "", *, dropout_p: float = 0.0,
               is_causal: bool = False, scale: float | None = None) -> str:
    """If a query attends to no key, the softmax of ONNX is NaN, and zeros replace it."""
    width = graph.shapes[0][-1]
    if scale is None and width == -1:
        raise ValueError("onnx.export: scaled_dot_product_attention divides by the root of the batch's size, which a "
                         "file does not know; pass scale")
    scores = graph.node("Einsum", query, key, equation="...ld,...sd->...ls")
    scores = graph.node("Mul", scores, graph.constant(max(1, width) ** -0.5 if scale is None else scale))
    closed = graph.constant(-math.inf)
    if is_causal:
        one = graph.onnx.numpy_helper.from_array(np.ones(1, np.int64))
        ones = graph.node("ConstantOfShape", graph.node("Shape", scores), value=one)
        scores = graph.node("Where", graph.cast(graph.node("Trilu", ones, upper=0), np.bool), scores, closed)
    elif mask:
        scores = (graph.node("Where", mask, scores, closed) if graph.dtypes[-1] == np.bool else
                  graph.node("Add", scores, mask))
    weights = graph.node("Where", graph.node("IsInf", scores, detect_positive=0), graph.constant(0.0),
                         graph.node("Softmax", scores, axis=-1))
    return graph.node("MatMul", weights, value)


def _gates(graph: _Graph, x: str, count: int) -> list[str]:
    first = graph.node("Split", x, axis=1, num_outputs=count)
    graph.nodes[-1].output.extend(f"{first}.{i}" for i in range(1, count))
    return list(graph.nodes[-1].output)


def _lstm_step(graph: _Graph, gx: str, gh: str, h: str, c: str) -> list[str]:
    i, f, g, o = _gates(graph, graph.node("Add", gx, gh), 4)
    kept = graph.node("Mul", graph.node("Sigmoid", f), c)
    c = graph.node("Add", kept, graph.node("Mul", graph.node("Sigmoid", i), graph.node("Tanh", g)))
    return [graph.node("Mul", graph.node("Sigmoid", o), graph.node("Tanh", c)), c]


def _gru_step(graph: _Graph, gx: str, gh: str, h: str) -> list[str]:
    (xr, xz, xn), (hr, hz, hn) = _gates(graph, gx, 3), _gates(graph, gh, 3)
    r, z = (graph.node("Sigmoid", graph.node("Add", *both)) for both in ((xr, hr), (xz, hz)))
    n = graph.node("Tanh", graph.node("Add", xn, graph.node("Mul", r, hn)))
    return [graph.node("Add", n, graph.node("Mul", z, graph.node("Sub", h, n)))]


def _plain_step(graph: _Graph, gx: str, gh: str, h: str, *, kind: str) -> list[str]:
    return [graph.node(kind, graph.node("Add", gx, gh))]


_STEPS: dict[str, Callable[..., list[str]]] = {
    "lstm": _lstm_step, "gru": _gru_step, "tanh": partial(_plain_step, kind="Tanh"),
    "relu": partial(_plain_step, kind="Relu")}


def _recurrence(graph: _Graph, ndim: int, gx: str, w: str, state: str, b: str = "", *, kind: str,
                reverse: bool = False) -> str:
    """A Scan, whose body is one step: ONNX's LSTM and GRU would multiply by W_ih themselves."""
    helper, count = graph.onnx.helper, SIZES[kind].states
    element = helper.np_dtype_to_tensor_dtype(graph.dtype)
    starts = [graph.node("Gather", state, graph.constant(i, np.int64), axis=0) for i in range(count)]
    outside, graph.nodes = graph.nodes, []
    before, now = [f"{start}.before" for start in starts], f"{starts[0]}.gx"
    gh = graph.node("Gemm", *filter(None, (before[0], w, b)), transB=1)
    after = _STEPS[kind](graph, now, gh, *before)
    results = [*after, *(graph.node("Identity", each) for each in after)]
    body = helper.make_graph(
        graph.nodes, kind, [helper.make_tensor_value_info(name, element, None) for name in (*before, now)],
        [helper.make_tensor_value_info(name, element, None) for name in results])
    graph.nodes = outside
    last = graph.node("Scan", *starts, gx, body=body, num_scan_inputs=1, scan_input_directions=[int(reverse)],
                      scan_output_directions=[int(reverse)] * count)
    names = [last, *(f"{last}.{i}" for i in range(1, 2 * count))]
    graph.nodes[-1].output[:] = names
    axis = graph.constant([0], np.int64)
    return graph.node("Concat", *(graph.node("Unsqueeze", name, axis) for name in names[count:]), axis=0)


def _loss_of_pairs(graph: _Graph, ndim: int, x: str, target: str, *, reduction: str, squared: bool) -> str:
    apart = graph.node("Sub", x, target)
    loss = graph.node("Mul", apart, apart) if squared else graph.node("Abs", apart)
    return loss if reduction == "none" else graph.node({"mean": "ReduceMean", "sum": "ReduceSum"}[reduction], loss,
                                                       keepdims=0)


ROWS: dict[str, Callable[..., str]] = {
    **{name: _plain(kind) for name, kind in {
        "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "neg": "Neg", "exp": "Exp", "log": "Log",
        "sqrt": "Sqrt", "matmul": "MatMul", "tanh": "Tanh", "sigmoid": "Sigmoid", "relu": "Relu", "abs": "Abs",
        "sin": "Sin", "cos": "Cos", "sign": "Sign", "floor": "Floor", "ceil": "Ceil", "round": "Round", "erf": "Erf",
        "maximum": "Max", "minimum": "Min", "clone": "Identity", "gt": "Greater",
        "ge": "GreaterOrEqual", "lt": "Less", "le": "LessOrEqual", "eq": "Equal"}.items()},
    "ne": lambda graph, ndim, x, y: graph.node("Not", graph.node("Equal", x, y)),
    "sum": _reduce("ReduceSum"), "mean": _reduce("ReduceMean"), "max": _reduce("ReduceMax"),
    "min": _reduce("ReduceMin"),
    "norm": lambda graph, *given, p=2, **options: _reduce("ReduceL2")(graph, *given, **options), "var": _var,
    "std": lambda graph, *given, **options: graph.node("Sqrt", _var(graph, *given, **options)),
    "argmax": _place("ArgMax"), "argmin": _place("ArgMin"), "expand": _expand, "pad": _pad, "where": _where,
    "clip": lambda graph, ndim, x, *, low=None, high=None: graph.node("Clip", x, *(    # without one, inf becomes finite
        "" if bound is None and graph.dtype.kind != "f" else graph.constant(end if bound is None else bound)
        for bound, end in ((low, -math.inf), (high, math.inf)))),
    "rsqrt": lambda graph, ndim, x: graph.node("Reciprocal", graph.node("Sqrt", x)),
    "cumsum": lambda graph, ndim, x, *, axis: graph.node("CumSum", x, graph.constant(axis, np.int64)),
    "adaptive_avg_pool2d": _adaptive_avg_pool2d, "interpolate": _interpolate, "softmax": _along("Softmax"),
    "log_softmax": _along("LogSoftmax"),
    "conv2d": _conv2d, "linear": _linear, "avg_pool2d": _pool("AveragePool", count_include_pad=1),
    "max_pool2d": _pool("MaxPool"), "reshape": _reshape, "transpose": _transpose, "getitem": _getitem,
    "concatenate": lambda graph, ndim, *xs, axis: graph.node("Concat", *xs, axis=axis),
    "batch_norm": _batch_norm, "layer_norm": _layer_norm, "group_norm": _group_norm,
    "conv_transpose2d": _conv_transpose2d, "prod": _reduce("ReduceProd"),
    "leaky_relu": lambda graph, ndim, x, *, negative_slope=SLOPE: graph.node("LeakyRelu", x,
                                                                             alpha=float(negative_slope)),
    "elu": lambda graph, ndim, x, *, alpha=1.0: graph.node("Elu", x, alpha=float(alpha)),
    "softplus": _plain("Softplus"),
    "hardsigmoid": lambda graph, ndim, x: graph.node("HardSigmoid", x, alpha=1 / 6, beta=0.5), "gelu": _gelu,
    "silu": lambda graph, ndim, x: graph.node("Mul", x, graph.node("Sigmoid", x)),
    "embedding": lambda graph, ndim, ids, w: graph.node("Gather", w, ids, axis=0),
    "scaled_dot_product_attention": _attention, "recurrence": _recurrence,
    "mse_loss": partial(_loss_of_pairs, squared=True),
    "l1_loss": partial(_loss_of_pairs, squared=False),
    "to": lambda graph, ndim, x, *, dtype: graph.cast(x, dtype),
}
# What takes masks as they are.
OF_MASKS = {"eq", "ne", "where", "clone", "expand", "pad", "reshape", "transpose", "getitem", "concatenate",
            "interpolate", "scaled_dot_product_attention", "to"}
# Whose result has a dtype of its own in ONNX.
OTHER_DTYPE = {"gt", "ge", "lt", "le", "eq", "ne", "argmax", "argmin", "to"}
