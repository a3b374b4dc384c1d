"""Module: its state is its attributes, Tensors and other Modules, also in lists, tuples and dicts."""

from __future__ import annotations

import copy
import reprlib
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

import numpy as np

from ..core.device import DType, as_array, destination, flags, to_device, to_numpy, unmasked
from ..core.mode import Watched, mode, no_grad, note_change
from ..core.tensor import Tensor, mark_changed
from ..ops.create import tensor
from .habits import Habits, M, without_counts

_MAX_NAMED = 20                            # at most this many entries that do not fit are named in a message
_FLOATING = (np.dtype(np.float32), np.dtype(np.float64))
P = ParamSpec("P")
R = TypeVar("R", covariant=True)

if TYPE_CHECKING:
    class Forwards(Protocol[P, R]):
        """A Module as its call sees it: the call takes and returns what the Module's own forward does."""

        def forward(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


class Module(Habits, Watched):
    """Base class of all layers and nets.

    A Module holds every Tensor and every other Module (its child) among its attributes, in lists, tuples and dicts
    too; a name is the path to it: "c1.weight", "layers.0.bias", "heads.left.weight". A Tensor that requires a gradient
    is a parameter, any other a buffer: a running mean, a counter, a frozen parameter. Together they are the Module's
    state, which `state_dict`, `minidl.save`, `load_state_dict` and `to` take as a whole. A result that is still on the
    tape is neither, and is refused as soon as the state is read: assign its `.detach()` to keep it as a buffer, its
    `.numpy()` to look at it. Define `forward`; call the Module itself.

    >>> class Scale(Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.factor = Tensor([2.0], requires_grad=True)
    ...         self.mean = Tensor([0.5])
    ...     def forward(self, x):
    ...         return (x - self.mean) * self.factor
    >>> [name for name, _ in Scale().named_parameters()], list(Scale().state_dict())
    (['factor'], ['factor', 'mean'])
    """

    model_name: str                        # the zoo sets these on the models that it builds, for the weights file
    model_args: dict[str, Any]
    model_code: Mapping[str, str] | None
    _once: frozenset[str] = frozenset()    # names of own Tensors that have been parameters, frozen since or not
    restless = frozenset({"_once"})

    def __init__(self) -> None:
        self.training = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{type(self).__name__}: forward is not defined; a Module defines forward(self, ...)")

    def __call__(self: Forwards[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        mode.recorder.reads(self)
        return self.forward(*args, **kwargs)

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, _HOLDERS) and self._remember(_held(name, value)):
            require_name(f"{type(self).__name__}: the attribute", name)
        super().__setattr__(name, value)
        if not isinstance(value, _PLAIN) and (hidden := {*map(id, _hidden(value))}) and (
                hidden - {id(t) for _, module, _ in self._walk("") for _, t in module._tensors()}):
            warnings.warn(f"{type(self).__name__}: {name} is a {type(value).__name__} in which are parameters that no "
                          "optimizer, file or device finds; derive its class from nn.Module, make a set a list",
                          UserWarning, stacklevel=2)

    def __deepcopy__(self: M, memo: dict[int, Any]) -> M:
        """A copy whose parameters have no gradients, as of PyTorch's nets; a Tensor alone is copied with its own."""
        twin: M = copy._reconstruct(self, memo, *self.__reduce_ex__(4))  # type: ignore[attr-defined]  # as by itself
        for _, t in twin._tensors():
            t._grad = None
        return twin

    # ------------------------------------------------------------------ what it holds
    def _entries(self) -> Iterable[tuple[str, Any]]:
        """What may hold Tensors and Modules, by name: the attributes."""
        return list(vars(self).items())

    def _found(self) -> Iterator[tuple[str, Tensor | Module]]:
        return (found for name, value in self._entries() if isinstance(value, _HOLDERS) for found in _held(name, value))

    def _tensors(self) -> list[tuple[str, Tensor]]:
        """Its own Tensors, not its children's, by name."""
        return self._remember((name, value) for name, value in self._found() if isinstance(value, Tensor))

    def _remember(self, found: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Note which of its own Tensors are parameters, in case they are frozen later."""
        found = list(found)
        now = {name for name, value in found if isinstance(value, Tensor) and value.requires_grad and value.is_leaf}
        if not now <= self._once:
            vars(self)["_once"] = self._once | now
        return found

    def _walk(self, path: str) -> Iterator[tuple[str, Module, bool]]:
        """(path, Module, whether it is met for the first time), depth first; what is below it comes only that time."""
        seen: set[int] = set()
        waiting: list[tuple[str, Module]] = [(path, self)]
        while waiting:
            path, module = waiting.pop()
            first = id(module) not in seen
            yield path, module, first
            if first:
                seen.add(id(module))
                waiting += [(_join(path, name), child) for name, child in reversed(list(module.named_children()))]

    def _named(self) -> dict[str, Tensor]:
        """All Tensors by all their paths: one that is held twice (tied) has two entries, the first path first."""
        named: dict[str, Tensor] = {}
        paths: dict[int, str] = {}
        for path, module, first in self._walk(""):
            if first:
                paths[id(module)] = path
                new = [(_join(path, name), t) for name, t in module._tensors()]
            else:                          # it has what its first path has, unless this is a cycle
                known = _join(paths[id(module)], "")
                new = [] if _join(path, "").startswith(known) else [
                    (_join(path, name[len(known):]), t) for name, t in named.items() if name.startswith(known)]
            for name, t in new:
                if t.node is not None:
                    raise ValueError(f"{type(self).__name__}: {name} was made by {t.node.name!r} and is still on the "
                                     "tape, so it is neither a parameter nor a buffer; assign its .detach() to keep it "
                                     "as a buffer, or its .numpy() to look at it")
                if name in named:
                    raise ValueError(f"{type(self).__name__}: two Tensors are named {name}; rename one")
                named[name] = t
        return named

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The direct child Modules by name, in order of assignment; one that is held twice is named twice."""
        return ((name, value) for name, value in self._found() if isinstance(value, Module))

    def named_modules(self, *, path: str = "") -> Iterator[tuple[str, Module]]:
        """This Module (path "") and all below it, depth first, each once."""
        return ((path, module) for path, module, first in self._walk(path) if first)

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All parameters and buffers with their paths; one that is held twice is named once.

        Raises ValueError for a Tensor that is still on the tape.
        """
        named = self._named()
        first = {id(t): name for name, t in reversed(named.items())}
        return ((name, t) for name, t in named.items() if first[id(t)] == name)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """All Tensors that require a gradient, with their paths; one that is held twice is named once."""
        return ((name, t) for name, t in self.named_tensors() if t.requires_grad)

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """All Tensors that require no gradient (frozen parameters among them), with their paths, each once."""
        return ((name, t) for name, t in self.named_tensors() if not t.requires_grad)

    def parameters(self) -> Iterator[Tensor]:
        """All parameters."""
        return (parameter for _, parameter in self.named_parameters())

    def buffers(self) -> Iterator[Tensor]:
        """All buffers."""
        return (buffer for _, buffer in self.named_buffers())

    # ------------------------------------------------------------------ state
    def train(self: M, training: bool = True) -> M:
        """Switch this Module and all below to training (dropout on), or with False to evaluation: those that have a
        `train` of their own by that."""
        flags("train", training=training)
        done: tuple[str, ...] = ()         # what these have switched
        for path, module, _ in self._walk(""):
            if module is self or (type(module).train is Module.train and "train" not in vars(module)):
                if not path.startswith(done):
                    module.training = training
            elif not path.startswith(done):
                module.train(training)
                done = *done, f"{path}."
        return self

    def eval(self: M) -> M:
        """Switch this Module and all below to evaluation (dropout off)."""
        return self.train(False)

    def _ever_parameters(self) -> list[tuple[str, Tensor]]:
        """All parameters, frozen ones too, with their paths."""
        self._named()                      # refuses what is on the tape
        return [(_join(path, name), t) for path, module in self.named_modules()
                for name, t in module._tensors() if name in module._once]

    def requires_grad_(self: M, requires_grad: bool = True) -> M:
        """Freeze all parameters (False), or unfreeze them (True); those that change lose their gradients.

        A frozen parameter is distinguished from other buffers by its name: a Module remembers under which of its names
        it has seen a Tensor that requires a gradient. So parameters frozen one by one are found too, and a running mean
        stays a buffer. Raises TypeError if one is not a float32 or float64 now; then nothing has changed.
        """
        flags("requires_grad_", requires_grad=requires_grad)
        mode.recorder.refuse("freezes or unfreezes parameters with .requires_grad_()")
        found = self._ever_parameters()
        for name, t in found:
            if t.dtype not in _FLOATING:
                raise TypeError(f"requires_grad_: {name} is {t.dtype} and cannot require a gradient, only float32 and "
                                "float64 can; convert it with .to(dtype='float32')")
        for _, t in found:
            if t.requires_grad != requires_grad:
                t.requires_grad, t.grad = requires_grad, None
        note_change()
        return self

    def to(self: M, device: DType = None, dtype: DType = None) -> M:
        """Move all Tensors to a device; a dtype (float32 or float64), which may come first, converts the floating ones.

        They stay the same Tensors and lose their gradients. Raises ValueError or TypeError for a device or dtype that
        is not possible; then nothing has changed.
        """
        mode.recorder.refuse("moves or converts a Module with .to()")
        device, dtype = destination(device, dtype)
        if dtype is not None and np.dtype(dtype) not in _FLOATING:
            raise TypeError(f"to: dtype {np.dtype(dtype)} cannot require a gradient, only float32 and float64 can; "
                            "choose one of these")
        tensors = [t for _, t in self.named_tensors()]
        with no_grad():
            moved = [t.to(device, dtype if t.dtype.kind == "f" else None).data for t in tensors]
        for t, array in zip(tensors, moved, strict=True):
            t.data, t.grad = array, None
        mark_changed(tensors)
        return self

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and buffers, in host memory, by path.

        A Tensor that is held twice (tied) has an entry for each of its paths, all of them one array.
        """
        named = self._named()
        copies = {id(t): np.array(t.numpy()) for t in named.values()}
        return {name: copies[id(t)] for name, t in named.items()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Set all parameters and buffers from arrays or Tensors by path.

        Names, shapes and dtypes must be exactly the model's; of a Tensor with several paths one is enough, and if more
        are given their values must be equal. Parameters change in place; a buffer gets a new array, since its old array
        may be used elsewhere.

        Raises ValueError that lists what does not fit, at most 20 entries; then nothing has changed.
        """
        mode.recorder.refuse("loads a state with .load_state_dict()")
        if not strict:
            raise TypeError("load_state_dict: strict=False would leave names out unseen; name what is to be taken: "
                            "net.load_state_dict(net.state_dict() | {name: value})")
        if not isinstance(state, Mapping):
            raise TypeError(f"load_state_dict: the state is a {type(state).__name__} but must map names to arrays; a "
                            "file is loaded by minidl.load(model, path)")
        own = self._named()
        given = {name: _array(name, value) for name, value in without_counts(state, own).items()}
        source: dict[int, str] = {}        # of each Tensor, the first of its names in the state
        wrong = {name: f"{name} is not in the model" for name in given.keys() - own.keys()}
        for name in (name for name in own if name in given):
            mine, theirs = own[name], given[name]
            first = source.setdefault(id(mine), name)
            if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                wrong[name] = (f"{name} is {mine.shape} {mine.dtype} in the model but {theirs.shape} {theirs.dtype} in "
                               "the state")
            elif first not in wrong and theirs.tobytes() != given[first].tobytes():
                wrong[name] = f"{name} and {first} are one Tensor in the model but differ in the state"
        wrong |= {name: f"{name} is missing" for name, t in own.items() if id(t) not in source}
        if wrong:
            told = [wrong[name] for name in sorted(wrong)[:_MAX_NAMED]]
            told += [f"{len(wrong) - _MAX_NAMED} more"] if len(wrong) > _MAX_NAMED else []
            raise ValueError(f"load_state_dict: {len(wrong)} of {len(own.keys() | given.keys())} entries do not "
                             f"fit: {'; '.join(told)}; build the model that the state was saved from")
        tensors = {id(t): t for t in own.values()}
        mark_changed(tensors.values())     # before the first write: an interrupted load is a change, too
        arrays = {key: to_device(np.array(given[name]), tensors[key].device) for key, name in source.items()}
        for key, t in tensors.items():
            if t.requires_grad:
                t.data[...] = arrays[key]
            else:
                t.data = arrays[key]

    # ------------------------------------------------------------------ how it looks
    def extra_repr(self) -> str:
        """What `repr` shows between a layer's parentheses."""
        return ""

    @reprlib.recursive_repr("...")
    def __repr__(self) -> str:
        frozen = [name for name, t in self._tensors() if name in self._once and not t.requires_grad]
        facts = ", ".join(filter(None, [self.extra_repr(), f"frozen: {' '.join(frozen)}" if frozen else ""]))
        children = [f"({name}): {child!r}".replace("\n", "\n  ") for name, child in self.named_children()]
        inside = "\n  " + "\n  ".join([facts] * bool(facts) + children) + "\n" if children else facts
        return f"{type(self).__name__}({inside})"


_HOLDERS = (Tensor, Module, list, tuple, dict)
_PLAIN = (int, float, str, type(None), type, ModuleType, np.ndarray)   # what hides nothing


@contextmanager
def switched(nets: Collection[Module], training: bool) -> Iterator[None]:
    """Within this, nets and all below are in training, or with False in evaluation; afterwards each is as before."""
    before = [(module, module.training) for net in nets for _, module in net.named_modules()]
    for net in nets:
        net.train(training)
    try:
        yield
    finally:
        for module, was_training in before:
            module.training = was_training


def Parameter(data: object, requires_grad: bool = True) -> Tensor:
    """A leaf with a copy of the data, or of a Tensor's; a Module's attributes that require a gradient are parameters.

    >>> Parameter(Tensor([1.0, 2.0])).requires_grad
    True
    """
    return tensor(data.detach()._data if isinstance(data, Tensor) else data, requires_grad=requires_grad)


def _array(name: str, value: object) -> np.ndarray:
    """An entry of a state as NumPy's array. Raises TypeError if its own library refuses to make one, ValueError if some
    of its values are masked."""
    unmasked(f"load_state_dict: {name}", value)
    try:
        return to_numpy(as_array(value.numpy() if isinstance(value, Tensor) else value))
    except (TypeError, RuntimeError) as error:
        raise TypeError(f"load_state_dict: {name} is a {type(value).__module__}.{type(value).__name__} that gives no "
                        f"array ({error}); convert it before, of PyTorch by .detach().float().cpu()") from None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _held(path: str, value: Tensor | Module | list[object] | tuple[object, ...] | dict[str, object],
          within: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The Tensors and Modules that a value is or holds, with their paths. Raises ValueError for a name with a dot."""
    if isinstance(value, (Tensor, Module)):
        yield path, value
    elif id(value) not in within:          # a list may hold itself
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(each, _HOLDERS):
                for name, held in _held(f"{path}.{key}", each, (*within, id(value))):
                    if isinstance(value, dict):
                        require_name(f"{path}: the key", key)
                    yield name, held


def _hidden(value: object, inside: bool = False, within: tuple[int, ...] = ()) -> Iterator[Tensor]:
    """The parameters in sets and in objects that are not Modules, at any depth of containers, but not in objects that
    such objects hold. inside: a set or an object holds the value."""
    if isinstance(value, (Tensor, Module)):
        if inside:
            held = [value] if isinstance(value, Tensor) else [t for _, t in value.named_tensors()]
            yield from (t for t in held if t.requires_grad and t.is_leaf)
    elif id(value) not in within:          # as above
        parts: Iterable[object] = ()
        if isinstance(value, dict):
            parts = [*value.values()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            parts = value
        elif not inside:
            parts = [*getattr(value, "__dict__", {}).values()]
        for part in parts:
            if not isinstance(part, _PLAIN):
                yield from _hidden(part, inside or not isinstance(value, _HOLDERS), (*within, id(value)))


def require_name(what: str, name: object) -> None:
    """Refuse a name that a path of names could not hold."""
    if not isinstance(name, str) or not name or "." in name:
        raise ValueError(f"{what} {name!r} names a Tensor or Module but must be a text without dots; rename it")


def require_module(owner: Module, name: object, value: object) -> None:
    """Refuse what is not a Module where a layer is expected."""
    if not isinstance(value, Module):
        given, instead = f"a {type(value).__name__}", "put functions into a Module's forward"
        if isinstance(value, type):
            given, instead = f"the class {value.__name__}", f"make one, {value.__name__}(...)"
        elif isinstance(value, (list, tuple)):
            instead = f"give its entries one by one, {type(owner).__name__}(*layers)"
        elif isinstance(value, dict):
            instead = f"give its entries by name, {type(owner).__name__}(**layers)"
        raise TypeError(f"{type(owner).__name__}: layer {name} is {given} but must be a Module; {instead}")
