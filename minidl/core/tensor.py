"""Tensor and tape. A Tensor holds an array; a Node remembers how a Tensor came about.

The tape is not a list: each Tensor that needs a gradient points to the Node that made it, each Node to
the Nodes and leaf Tensors it read, and a running number gives all of them their order of creation.
`backward` visits the Nodes that the result depends on, youngest first, so that each is reached only
after everything that used it. Intermediate arrays live exactly as long as some backward closure or
Tensor still refers to them.

Tensor knows no operation: `minidl.ops.arrays.operators` attaches the operators.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from . import device as _device
from .device import Array, DType, flags
from .mode import Listener, clock, mode, note_change, unwrapped

if TYPE_CHECKING:
    from ..ops.arrays.methods import Methods
    from .interchange import Shared

    class Attached(Methods, Shared):
        """What minidl.ops.arrays.methods and core/interchange.py attach."""
else:
    Attached = object

Backward = Callable[[Any, tuple[bool, ...]], tuple[Any, ...]]
READ_OUTSIDE = "return the Tensor and read it outside the step"

backend_of: Callable[..., Any] = max       # Tensors -> their primitives: ops/common/backend.py sets this
owns: Callable[[Any], bool] = bool         # whether an array has its memory alone; set there, too
Parts: type = type(None)                   # of a gradient that becomes an array later; ops/arrays/indexing.py sets it
whole: Callable[..., Any] = max            # (k, what an op passes back): as an array; set there, too
plus: Callable[..., Any] = max             # (k, two of these): their sum, which may become an array later; set there
again: Callable[..., Any] = max            # a Node -> its primitives and closure on Tensors; ops/__init__.py sets it


class Node:
    """One recorded operation: its name, its backward closure and where its inputs came from.

    `inputs[i]` is the Node that made input i, or the Tensor itself if no operation did (None for a number);
    `need[i]` says whether a gradient is wanted. `k` is the backend whose primitives the operation used. `changed`
    is that of the Tensor it made: when the result's memory was last changed in place. `made` is the id of the array
    that it made, or NumPy's number and the array around it: closures of this Node, and of those whose inputs it made,
    hold that array. `keeps` refers to the Tensor if its gradient is kept.
    """

    __slots__ = ("backward", "changed", "inputs", "k", "keeps", "made", "name", "need", "number")

    def __init__(self, name: str, k: ModuleType, inputs: tuple[Any, ...], need: tuple[bool, ...],
                 backward: Backward, made: int = 0):
        self.name = name
        self.k = k
        self.inputs = inputs
        self.need = need
        self.backward: Backward | None = backward
        self.number = clock()
        self.changed = [0]
        self.made: int | tuple[np.generic, np.ndarray] = made
        self.keeps: Callable[[], Tensor | None] | None = None


class Tensor(Attached):
    """An n-dimensional array on a device that can remember how it was computed.

    data: an array, or nested sequences of numbers. Python floats become float32; a NumPy array keeps its
    dtype. An array is shared, not copied, unless the Tensor requires a gradient: then it owns its memory,
    because an optimizer changes it in place.
    requires_grad: whether `backward()` shall accumulate a gradient in `.grad` (float32 or float64 only).
    device: "cpu", "cuda", or "auto" for the best there is; by default a CuPy array stays on its GPU, and all else
    is on the CPU. dtype: any numeric NumPy dtype.

    Raises TypeError for data that are not numbers and for an integer Tensor with requires_grad.

    >>> x = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    Tensor([[2., 4.],
            [6., 8.]], shape=(2, 2), dtype=float32, device=cpu)
    """

    __slots__ = ("__weakref__", "_counted", "_data", "_grad", "_requires_grad", "changed", "node", "weights")

    _data: Array
    _grad: Tensor | None
    _requires_grad: bool
    node: Node | None
    changed: list[Any]                     # [when its memory was last changed in place, by the tape's clock; then, if
                                           # others have shared it, weak references to all of them by id]
    weights: Tensor | None                 # of a loss that is a weighted mean: how much each label counts in it
    # Of such weights: labels, weights of the classes, the ignored label. (): computed from means of different weights.
    _counted: tuple[Any, ...] | None

    def __init__(self, data: object, requires_grad: bool = False, device: str | None = None, dtype: DType = None):
        if requires_grad.__class__ is not bool:        # a dtype comes second in np.array
            flags("Tensor", requires_grad=requires_grad)
        data = unwrapped(data)
        if isinstance(data, Tensor):
            raise TypeError(f"Tensor: data is a Tensor already (shape {data.shape}); use .detach() or .to()")
        if isinstance(data, (list, tuple)) and any(isinstance(item, Tensor) for item in data):
            raise TypeError("Tensor: data holds Tensors, whose gradients would be lost; join them with ops.concatenate")
        _device.unmasked("Tensor", data)
        try:
            array = _device.as_array(data, dtype)
        except (TypeError, ValueError, RuntimeError) as error:         # the last is PyTorch's
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"Tensor: {type(data).__name__} data do not become an array ({error}); pass numbers in "
                       "nested lists of equal lengths, and a NumPy dtype") from None
        if dtype is None and array.dtype == np.float64 and not (
                _device.lends_memory(data) or _device.holds_float64(data)):
            array = array.astype(np.float32)           # of Python floats
        if array.dtype.kind not in "biuf":
            raise TypeError(f"Tensor: data has dtype {array.dtype} but must be bool, integer or floating "
                            "numbers; convert it with numpy first")
        if requires_grad and array.dtype not in (np.float32, np.float64):
            raise TypeError(f"Tensor: dtype {array.dtype} cannot require a gradient, only float32 and float64 "
                            "can; pass dtype='float32'")
        there = array if device is None else _device.to_device(array, device)
        if not requires_grad and not isinstance(data, np.generic) and not _device.is_array(data):
            there = mode.recorder.constant(there)      # of Python's numbers
        self._data = there.copy() if requires_grad and there is array else there
        self._requires_grad = requires_grad
        self._grad = self.node = self.weights = self._counted = None
        self.changed = [0]
        mode.recorder.made(self, of_data=True)

    # ------------------------------------------------------------------ what it holds
    @property
    def data(self) -> Any:
        """The array itself. The tape does not see it set or changed by hand; a compiled step refuses both."""
        mode.recorder.refuse("takes a Tensor's array (.data)", "compute with the Tensor")
        return self._data

    @data.setter
    def data(self, array: Array) -> None:
        mode.recorder.refuse("sets a Tensor's array (.data)", "write t[...] = value under minidl.no_grad()")
        if not _device.is_array(array) or not array.dtype.isnative:
            what = f"an array of {array.dtype}" if _device.is_array(array) else f"a {type(array).__name__}"
            raise TypeError(f"data: got {what} but a Tensor holds a NumPy or CuPy array in the machine's byte order; "
                            "pass one, or write t[...] = value under minidl.no_grad()")
        _device.unmasked("data", array)
        self._data = array
        mark_changed((self,))

    @property
    def grad(self) -> Tensor | None:
        """The gradient that backward() added up, or None. A Tensor of this one's shape, dtype and device may be set."""
        mode.recorder.gradient(self, "look")
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            _check_like("grad", value, self)
        mode.recorder.gradient(self, "set")
        self._grad = value

    @property
    def requires_grad(self) -> bool:
        """Whether backward() accumulates a gradient in this leaf, or in leaves behind what made this. It may be set of
        a leaf. Raises TypeError for a dtype without gradients, ValueError for what an op made."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        flags("requires_grad", requires_grad=value)
        if value == self._requires_grad:
            return
        mode.recorder.flag(self)
        if self.node is not None:
            raise ValueError(f"requires_grad: the Tensor was made by {self.node.name!r}; set it on a leaf, or on "
                             ".detach()")
        if value and self.dtype not in (np.float32, np.float64):
            raise TypeError(f"requires_grad: dtype {self.dtype} cannot require a gradient, only float32 and float64 "
                            "can; convert it with .float()")
        self._requires_grad = bool(value)
        note_change()

    # ------------------------------------------------------------------ what it is
    @property
    def shape(self) -> tuple[int, ...]:
        return self._data.shape

    @property
    def dtype(self) -> np.dtype:
        return self._data.dtype

    @property
    def ndim(self) -> int:
        return self._data.ndim

    @property
    def size(self) -> int:
        return self._data.size

    @property
    def device(self) -> str:
        return _device.device_of(self._data)

    @property
    def is_leaf(self) -> bool:
        """True for a Tensor that no recorded operation made."""
        return self.node is None

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len: a Tensor of shape () has no length; it is a single number, see .item()")
        return self.shape[0]

    def __repr__(self) -> str:
        body = np.array2string(self.numpy(), separator=", ", prefix="Tensor(", threshold=100)
        facts = f"shape={self.shape}, dtype={self.dtype}, device={self.device}"
        if self.requires_grad:
            facts += ", requires_grad=True, " + (f"made_by={self.node.name}" if self.node else
                                                  f"grad={'set' if self._grad is not None else None}")
        return f"Tensor({body}, {facts})"

    def __format__(self, spec: str) -> str:
        """As a number if a format is given, f"{loss:.4f}"; else as repr."""
        return format(self.item(), spec) if spec else repr(self)

    # ------------------------------------------------------------------ out of minidl
    def numpy(self) -> np.ndarray:
        """The values as a NumPy array; on the CPU it shares the Tensor's memory."""
        mode.recorder.refuse("reads a Tensor's values", READ_OUTSIDE)
        return _device.to_numpy(self._data)

    def __array__(self, dtype: DType = None, copy: bool | None = None) -> np.ndarray:
        if self.requires_grad and mode.grad:           # np.linalg.norm(x) would be a constant of the loss
            raise TypeError(f"numpy: a Tensor that requires a gradient (shape {self.shape}) does not become an array "
                            "by itself, since what NumPy computes of it is on no tape; use an op of minidl.ops, or say "
                            "t.numpy()")
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def item(self) -> float | int | bool:
        """The single value as a Python number; ValueError for more than one."""
        if self.size != 1:
            raise ValueError(f"item: the Tensor has {self.size} values (shape {self.shape}) but item() reads "
                             "exactly 1; use .numpy()")
        return self.numpy().item()

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers."""
        return self.numpy().tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(f"bool: the truth of a Tensor with {self.size} values (shape {self.shape}) is "
                             "not one value; compare .numpy().any() or .all()")
        return bool(self.item())

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """A leaf of the same values in memory of its own, with a copy of its gradient."""
        if self.node is not None:
            raise ValueError(f"deepcopy: the Tensor (shape {self.shape}) was made by {self.node.name!r}, and a graph "
                             "cannot be copied; copy t.detach()")
        twin = memo[id(self)] = wrap(self._data.copy())
        twin._requires_grad = self._requires_grad
        twin._grad = None if self._grad is None else self._grad.__deepcopy__(memo)
        return twin

    def __reduce__(self) -> Any:
        if self.node is not None:
            raise ValueError(f"pickle: the Tensor (shape {self.shape}) was made by {self.node.name!r}, and a graph "
                             "cannot be kept; keep t.detach()")
        return _restored, (self._data, self.requires_grad, self._grad)

    # ------------------------------------------------------------------ off the tape
    def detach(self) -> Tensor:
        """The same memory as a Tensor that no gradient flows through."""
        mode.recorder.given(self)
        alias = wrap(mode.recorder.alias(self._data))  # another array, so that a closure that kept both can tell them
        share(alias, self)
        alias.weights = self.weights
        return alias

    def to(self, device: DType = None, dtype: DType = None) -> Tensor:
        """This Tensor on another device or in another dtype (which may come first), as a new leaf; itself if nothing
        changes.

        Raises ValueError for a Tensor that is part of a recorded graph, and while the tape records for another dtype of
        a leaf that requires a gradient: no gradient would flow back.
        """
        array = self._data
        device, dtype = _device.destination(device, dtype)
        if device is not None:
            array = _device.to_device(array, device)
        if array is not self._data or (self.requires_grad and dtype not in (None, array.dtype)):
            mode.recorder.refuse("moves a Tensor, or converts one that requires a gradient, with .to()",
                                 READ_OUTSIDE if device == "cpu" else "do it outside the step")
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if self.requires_grad and self.node is None and mode.grad and np.dtype(dtype).kind == "f":
                raise ValueError(f"to: the Tensor (shape {self.shape}) requires a gradient, which would not flow back "
                                 f"from {np.dtype(dtype)} to its {self.dtype}; make it in that dtype, Tensor(data, "
                                 "requires_grad=True, dtype=...), or convert it under minidl.no_grad()")
            array = backend_of(self if array is self._data else wrap(array)).cast(array, np.dtype(dtype).name)
        if array is self._data:
            return self
        if self.node is not None:
            raise ValueError(f"to: the Tensor was made by {self.node.name!r} and no gradient would flow back "
                             "through the move; move the inputs instead, or call .detach() first")
        if self.requires_grad and array.dtype not in (np.float32, np.float64):
            raise TypeError(f"to: dtype {array.dtype} cannot require a gradient, only float32 and float64 can; call "
                            ".detach() first")
        moved = Tensor(array)
        moved.weights = self.weights if device is None else None
        moved._requires_grad = self._requires_grad       # nothing else holds the array, so that a leaf need not copy it
        return moved

    def mark_changed(self) -> None:
        """Note that the array was changed in place: graphs recorded before can no longer be run backward."""
        mark_changed((self,))

    # ------------------------------------------------------------------ backward
    def backward(self, gradient: Tensor | None = None, *, retain_graph: bool | None = None,
                 create_graph: bool = False) -> None:
        """Add the gradient of this Tensor to `.grad` of every leaf it was computed from.

        gradient: a Tensor of this Tensor's shape, dtype and device; may be left out for a single value.
        retain_graph: keep the closures so that backward can run again; else each is dropped once used.
        create_graph: record the gradients too, so that they can be differentiated; the graph is then kept.

        Raises ValueError if there is nothing to differentiate, for a gradient of another shape or dtype,
        for a graph that was already used, and if an input or a result of one of its operations was changed in
        place since it was recorded; with create_graph also for a gradient that cannot be differentiated: it names it.
        """
        flags("backward", create_graph=create_graph)
        if not self.requires_grad:
            raise ValueError(f"backward: this Tensor (shape {self.shape}) does not require a gradient; compute "
                             "it from a Tensor with requires_grad=True, outside no_grad()")
        if create_graph:
            held: set[int] = set()
            for leaf, g in flow([(self, start_of(self, gradient))], True, retain_graph):
                mode.recorder.gradient(leaf, "add")
                if leaf._grad is not None:
                    g = leaf._grad + g
                elif id(g._data) in held or not owns(g._data) or g is gradient:      # as in _add_to_grads
                    g = g.clone()
                held.add(id(g._data))
                leaf._grad = g
            return
        k = backend_of(self, gradient)
        if self.node is not None:
            _walk(self.node, self._seed(gradient, self.node.k), bool(retain_graph))
            return
        seed = self._seed(gradient, k)
        _add_to_grads([(self, seed)], k, {id(seed)})

    def _seed(self, gradient: Tensor | None, k: ModuleType, name: str = "backward") -> Array:
        if gradient is None:
            if self._data.size != 1:
                raise ValueError(f"{name}: the Tensor has {self.size} values (shape {self.shape}), so its "
                                 "gradient must be given; call .sum() or .mean() first, or pass gradient=")
            return k.ones_like(self._data)
        return _check_like(name, gradient, self)._data


def start_of(t: Tensor, gradient: Tensor | None, name: str = "backward") -> Tensor:
    """The gradient of t that a backward pass begins with, checked."""
    return wrap(t._seed(None, backend_of(t), name)) if gradient is None else _check_like(name, gradient, t)


def _check_like(name: str, gradient: object, t: Tensor) -> Tensor:
    """The gradient, refused if it is not like its Tensor."""
    if not isinstance(gradient, Tensor):
        raise TypeError(f"{name}: gradient is a {type(gradient).__name__} but must be a Tensor; wrap it in "
                        "minidl.Tensor(...)")
    for what in ("shape", "dtype", "device"):
        mine, given = getattr(t, what), getattr(gradient, what)
        if mine != given:
            raise ValueError(f"{name}: gradient has {what} {given} but the Tensor has {what} {mine}; they must be "
                             "equal")
    return gradient


_last_change = 0                           # of all Tensors: graphs that are younger need no look at their inputs


def mark_changed(tensors: Collection[Tensor]) -> None:
    """Note that the memory of Tensors was, or is about to be, changed in place, all at one time."""
    global _last_change
    _last_change = now = clock()
    recorder = mode.recorder
    for t in tensors:
        t.changed[0] = now
    if recorder.__class__ is not Listener:             # a plain one does nothing, and replays come here each time
        for t in tensors:
            recorder.change(t)


def share(view: Tensor, of: Tensor) -> None:
    """Note that a Tensor has another one's memory: a change in place of one counts as one of both, and of the node."""
    shared = view.changed = of.changed
    if view.node is not None:
        view.node.changed = shared
    if len(shared) == 1:
        shared.append({})
        _enter(of, shared[1])
    _enter(view, shared[1])


def _enter(t: Tensor, group: dict[int, weakref.ref[Tensor]]) -> None:
    """For as long as it lives: an id alone may be another Tensor's later."""
    key = id(t)

    def leave(ref: weakref.ref[Tensor]) -> None:
        if group.get(key) is ref:
            del group[key]
    group[key] = weakref.ref(t, leave)


def shares(t: Tensor) -> bool:
    """Whether another Tensor that is still there has some of this one's memory: what is said to be a view may be a
    copy."""
    return any(np.may_share_memory(t._data, other._data) for group in t.changed[1:] for each in list(group.values())
               if (other := each()) is not None and other is not t)


def wrap(array: Array, node: Node | None = None) -> Tensor:
    """A Tensor around an array of a known backend, without the checks of `Tensor(...)`."""
    tensor = Tensor.__new__(Tensor)
    if isinstance(array, np.generic):      # if a result has no axes; a Tensor always holds an array
        tensor._data = np.asarray(array)
        if node is not None:
            node.made = array, tensor._data
    else:
        tensor._data = array
    tensor._requires_grad = node is not None
    tensor._grad = tensor.weights = tensor._counted = None
    tensor.node = node
    tensor.changed = [0] if node is None else node.changed
    mode.recorder.made(tensor)
    return tensor


def counted(weights: Tensor) -> tuple[object, ...]:
    """What weights were made from: memory and layout of labels and of weights of the classes, and the ignored label."""
    def place(of: object) -> object:
        if not isinstance(of, Tensor):
            return of
        array = of._data
        return _device.address(array), array.shape, array.strides, array.dtype
    return tuple(map(place, weights._counted or (weights,)))


def as_tensor(data: object, device: str | None = None) -> Tensor:
    """A Tensor as it is; anything else that `Tensor(...)` takes, as a Tensor on a device."""
    return data if isinstance(data, Tensor) else Tensor(data, device=device)


def _restored(array: Array, requires_grad: bool, grad: Tensor | None) -> Tensor:
    """What a pickle held."""
    tensor = wrap(array)
    tensor._requires_grad, tensor._grad = requires_grad, grad
    return tensor


def _reachable(roots: Iterable[Node]) -> list[Node]:
    """All Nodes that roots depend on, youngest first. Iterative: a chain may be 20,000 long."""
    stack = [*roots]
    seen = set(stack)
    while stack:
        for source in stack.pop().inputs:
            if source.__class__ is Node and source not in seen:
                seen.add(source)
                stack.append(source)
    return sorted(seen, key=attrgetter("number"), reverse=True)


def _walk(root: Node, seed: Array, retain_graph: bool) -> None:
    """Run the closures youngest first; leaf gradients are committed only when all of them have run."""
    gradients, k = _flow({root: seed}, retain_graph)       # its own references to arrays end before leaves take them
    _add_to_grads(gradients, k, {id(seed)})


def _flow(flowing: dict[Node, Any], retain_graph: bool, taped: bool = False,
          wanted: Collection[int] | None = None) -> tuple[list[tuple[Any, Any]], ModuleType]:
    """The leaves with their gradients, and a backend. flowing: Nodes with the gradients of what they made.

    taped: the closures run on Tensors, and are recorded. wanted: ids of Nodes and leaves. Only closures that
    lead to these run; the gradients of what these Nodes made are in the result too.
    """
    nodes = _reachable(flowing)
    _refuse_stale(nodes)
    needs = {} if wanted is None else _needs(nodes, wanted)
    found: dict[int, tuple[Any, Any]] = {}
    for node in nodes:
        gy = flowing.pop(node, None)
        if gy is None:                     # every consumer answered None
            continue
        k, backward, need = node.k, node.backward, node.need
        if taped:
            k, backward = again(node)
        if gy.__class__ is Parts:
            gy = whole(k, gy)
        if wanted is not None:
            if id(node) in wanted:
                found[id(node)] = node, gy
            need = needs[node]
            if True not in need:
                continue
        elif node.keeps is not None and (kept := node.keeps()) is not None and kept.node is node:      # else changed
            found[id(kept)] = kept, k.copy(gy)
        gradients = backward(gy, need)     # type: ignore[misc]  # not None: _refuse_stale looked
        for source, need_of, g in zip(node.inputs, need, gradients, strict=True):
            if not need_of or g is None:
                continue
            if source.__class__ is Node:
                held = flowing.get(source)
                flowing[source] = g if held is None else plus(k, held, g)
            else:
                entry = found.get(id(source))
                found[id(source)] = source, (g if entry is None else plus(k, entry[1], g))
        if not retain_graph:
            node.backward = None
            node.inputs = ()
    return list(found.values()), k


def _needs(nodes: list[Node], wanted: Collection[int]) -> dict[Node, tuple[bool, ...]]:
    """Which inputs of each Node lead to something wanted. nodes: youngest first."""
    known, needs = {*wanted}, {}
    for node in reversed(nodes):
        needs[node] = tuple(n and id(source) in known for n, source in zip(node.need, node.inputs, strict=True))
        if True in needs[node]:
            known.add(id(node))
    return needs


def flow(outputs: Iterable[tuple[Tensor, Tensor]], create_graph: bool, retain_graph: bool | None = None,
         inputs: Collection[Tensor] | None = None) -> list[tuple[Any, Tensor]]:
    """(A leaf, its gradient) for all that outputs depend on; or (a leaf or the Node that made an input, its gradient)
    for inputs. outputs: each with the gradient to begin with. create_graph and retain_graph are as in `backward`."""
    flowing: dict[Node, Any] = {}
    found: dict[int, tuple[Any, Any]] = {}
    grad, mode.grad = mode.grad, create_graph
    try:
        for y, seed in outputs:
            k, g = backend_of(y, seed), seed if create_graph else seed._data
            if y.node is not None:
                held = flowing.get(y.node)
                flowing[y.node] = g if held is None else held + g if create_graph else k.add(held, g)
            elif inputs is None or any(x is y for x in inputs):
                found[id(y)] = y, (found[id(y)][1] + seed if id(y) in found else seed)
        if flowing:
            wanted = None if inputs is None else {id(t if t.node is None else t.node) for t in inputs}
            gradients, k = _flow(flowing, create_graph if retain_graph is None else retain_graph, create_graph, wanted)
            for of, passed in gradients:
                g = whole(k, passed)
                g = g if isinstance(g, Tensor) else wrap(g)
                found[id(of)] = of, (found[id(of)][1] + g if id(of) in found else g)
        return list(found.values())
    finally:
        mode.grad = grad


def _add_to_grads(gradients: list[tuple[Tensor, Array]], k: ModuleType, shared: Collection[int]) -> None:
    """Add to .grad of leaves. shared: ids of arrays that are held elsewhere too."""
    held = set(shared)
    for leaf, passed in gradients:
        g = whole(k, passed) if passed.__class__ is Parts else passed
        mode.recorder.gradient(leaf, "add")
        if leaf._grad is not None:
            g = k.add(leaf._grad._data, g)
        elif id(g) in held or not owns(g):           # each .grad owns its memory: it may be changed in place
            g = k.copy(g)
        held.add(id(g))
        leaf._grad = wrap(g)


def _refuse_stale(nodes: list[Node]) -> None:
    """A graph that was used up, or whose inputs or results changed since, would give a wrong gradient: say so.

    nodes: youngest first.
    """
    for node in nodes:
        if node.backward is None:
            raise ValueError(f"backward: the graph through {node.name!r} was already used by an earlier "
                             "backward(); pass retain_graph=True to the first call to keep it")
    if _last_change < nodes[-1].number:
        return
    for node in nodes:
        for source in node.inputs:
            if source is not None and source.changed[0] > node.number:
                what = f"shape {source.shape}" if isinstance(source, Tensor) else f"made by {source.name!r}"
                raise ValueError(f"backward: an input of {node.name!r} ({what}) was changed in place after the "
                                 "operation was recorded; run the forward pass again")
        if node.changed[0] > node.number:
            raise ValueError(f"backward: the result of {node.name!r} was changed in place after the operation was "
                             "recorded; run the forward pass again")
