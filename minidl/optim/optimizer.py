"""What all optimizers share: groups of parameters with their numbers, and arrays that are kept for each parameter."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from ..core.by_tensor import ByTensor
from ..core.device import to_device
from ..core.mode import Watched, mode, note_change
from ..core.pools import lasting
from ..core.tensor import Tensor, mark_changed
from ..ops.common.backend import backend_of
from ..ops.common.primitives import Array, Rate
from .checks import check_number, entries_of
from .rates import Rates, check_rates
from .state import Named, state_of, writer_of


class Group(dict[str, Any]):
    """Parameters and the numbers that hold for them. A number that no update can use is refused wherever it is set, and
    so is one that no update reads."""

    restless = frozenset({"lr"})           # each replay's update reads it anew; no other number depends on it

    def __init__(self, entries: Mapping[str, Any], kind: type[Optimizer]):
        super().__init__()
        self.kind = kind
        self.update(entries)

    def __getitem__(self, name: str) -> Any:
        mode.recorder.reads(self, what=f"the optimizer's {name}", entry=name)
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:   # so that dict(group) and {**group} ask __getitem__, too
        return super().__iter__()

    # Of any mapping, by __getitem__ and __setitem__: dict's own do not ask these.
    get = Mapping.get                      # type: ignore[assignment]
    items = Mapping.items                  # type: ignore[assignment]
    values = Mapping.values                # type: ignore[assignment]
    setdefault = MutableMapping.setdefault

    def check(self, entries: Mapping[str, Any]) -> None:
        """Raises ValueError for entries that are not valid, alone or together with the present ones."""
        for name, value in entries.items():
            if len(self) and name not in self and name != "name":
                raise ValueError(f"{self.kind.__name__}: a group has no {name!r} but {', '.join(dict.keys(self))}; set "
                                 "one of these")
            check_number(self.kind.__name__, name, value)
        if entries.keys() - self.restless:
            self.kind._check({**self, **entries})

    def __setitem__(self, name: str, value: object) -> None:
        self.update({name: value})

    def update(self, *entries: Any, **named: object) -> None:
        given = dict(*entries, **named)
        self.check(given)
        self.put(given)

    def put(self, checked: Mapping[str, object]) -> None:
        """Set entries that `check` has passed."""
        for name, value in checked.items():
            mode.recorder.refuse(f"sets an optimizer's {name}", "set it outside the step")
            super().__setitem__(name, value)
            if name not in self.restless:
                note_change()

    def __ior__(self, entries: Mapping[str, object]) -> Group:  # type: ignore[override, misc]  # of dict's two forms the one in use
        self.update(entries)
        return self

    def __reduce__(self) -> Any:
        return Group, (dict(self), self.kind)


def _number(name: str) -> Any:
    """The attribute of an optimizer that is a number of its groups."""
    def having(optimizer: Optimizer) -> list[Group]:
        groups = [group for group in vars(optimizer).get("groups", ()) if name in group]
        if not groups:
            raise AttributeError(f"{type(optimizer).__name__}: its groups have no {name}; give an attribute of your "
                                 "own another name")
        return groups

    def read(optimizer: Optimizer) -> Any:
        return having(optimizer)[0][name]

    def write(optimizer: Optimizer, value: object) -> None:
        for group in (groups := having(optimizer)):
            group.check({name: value})     # all of them, before one has changed
        had = [group[name] for group in groups]
        if had.count(had[0]) < len(had) and value not in had:      # as opt.lr /= 2 does, by the first group's number
            warnings.warn(f"{type(optimizer).__name__}: {name} = {value!r} holds for all {len(groups)} groups now, "
                          f"which had {', '.join(map(repr, had))}; to keep them apart, write for group in opt.groups: "
                          f"group[{name!r}] = ...", UserWarning, stacklevel=3)
        for group in groups:
            group.put({name: value})
    return property(read, write, doc=f"The groups' {name}.")


def with_gradients(params: list[Tensor]) -> list[Tensor]:
    """Those that require a gradient and have one, each once. A frozen one may still have one of an earlier step, and
    a weight that two layers share is listed twice if their parameters are put together."""
    mode.recorder.given(*params)           # a compiled step depends on which are frozen
    return [*dict.fromkeys([p for p in params if p.requires_grad and p.grad is not None])]


class Optimizer(Named, Watched):
    """What SGD, Adam and the others share. Each of them says which arrays it keeps, and how it updates parameters.

    kept: the arrays that are kept for each parameter: name -> the word for one of them. Each is like the parameter,
    except "steps", which counts its updates, int64 of shape (1,).

    A number's name is an attribute too: `sgd.lr` is that of the first group that has it. Setting it sets all of
    them, with a warning if their numbers differ and none of them is the new one.
    An attribute of another name is refused, except in subclasses.
    """

    restless = frozenset({"_kept"})
    kept: ClassVar[dict[str, str]] = {}

    lr: float = _number("lr")
    momentum: float = _number("momentum")
    weight_decay: float = _number("weight_decay")
    eps: float = _number("eps")
    alpha: float = _number("alpha")
    betas: tuple[float, float] = _number("betas")
    nesterov: bool = _number("nesterov")
    centered: bool = _number("centered")
    normalized: bool = _number("normalized")
    ns_steps: int = _number("ns_steps")

    def __init__(self, params: Iterable[Any], common: dict[str, Any]):
        kind, self.numbers = type(self), tuple(common)     # the numbers' names
        self._names: ByTensor[str] = ByTensor()
        self.groups = [Group(entries, kind) for entries in entries_of(kind.__name__, params, common, self._names)]
        self._kept: dict[str, ByTensor[Array]] = {each: ByTensor() for each in self.kept}

    def __setattr__(self, name: str, value: object) -> None:
        kind, own = type(self), ("groups", "numbers", "optimizers")
        if kind.__module__.startswith(f"{__package__}.") and not (name[0] == "_" or name in own or hasattr(kind, name)):
            numbers = dict.fromkeys(entry for group in self.groups for entry in dict.keys(group) if entry != "params")
            raise AttributeError(f"{kind.__name__}: updates read {', '.join(numbers)} but no {name}; set one of these, "
                                 "or make a subclass for attributes of your own")
        if isinstance(number := vars(Optimizer).get(name), property) and getattr(kind, name) is number:
            number.__set__(self, value)    # the groups note it, unless each replay reads it anew
        else:
            super().__setattr__(name, value)

    @classmethod
    def _check(cls, group: Mapping[str, Any]) -> None:
        """Refuse numbers or parameters that do not go together. group: as it is about to be."""

    def _uses(self, group: Group) -> Iterable[str]:
        """Which of `kept` a group's update needs."""
        return self.kept

    def _update(self, k: ModuleType, params: list[Array], grads: list[Array], kept: dict[str, list[Array]], lr: Rate,
                group: Group) -> None:
        """Change parameters and what is kept for them in place, by primitives of k."""
        raise NotImplementedError

    def group(self, name: str) -> Group:
        """The group that was given with this name: {"params": ..., "name": name}."""
        names = [group.get("name") for group in self.groups]
        if name not in names:
            raise ValueError(f"{type(self).__name__}.group: there is no {name!r} among the groups' names {names}; give "
                             'it with the group, {"params": ..., "name": ...}')
        return self.groups[names.index(name)]

    def _parameters(self) -> list[Tensor]:
        """Those of all groups."""
        return [p for group in self.groups for p in group["params"]]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients: each p.grad is None. Raises ValueError for set_to_none=False."""
        if not set_to_none:
            raise ValueError("zero_grad: set_to_none is False but a gradient that was forgotten is None here; leave it "
                             "out, or write p.grad = minidl.zeros_like(p)")
        self._tell_lists()
        for group in self.groups:
            for p in group["params"]:
                p.grad = None

    def forget(self) -> None:
        """Set all that is kept to 0, in place, as before the first step. What was compiled stays valid."""
        mode.recorder.refuse("forgets an optimizer's velocities")
        for arrays in self._kept.values():
            for _, array in arrays.pairs():
                array.fill(0)

    def step(self, rates: Rates | None = None) -> None:
        """Update every parameter that requires a gradient and has one, in place, group by group. A frozen one
        does not change, nor does what is kept for it.

        rates: those of a schedule, used instead of the groups' own learning rates.

        Raises TypeError for rates of another type; ValueError for rates of another shape or dtype, and for a gradient
        that does not have its parameter's shape; then nothing has changed.
        """
        if rates is not None:
            check_rates(type(self).__name__, rates, len(self.groups))
        for number, group, live, kept in self._updates():
            k = backend_of(*live, *(rates or ()), *itertools.chain(*kept.values()))
            if rates is None:
                lr = mode.recorder.dynamic(functools.partial(dict.__getitem__, group, "lr"))
            else:
                lr = k.getitem(rates.table._data, number), rates.position._data
            mark_changed(live)             # before the first write: an interrupted update is a change, too
            gradients = [p._grad._data for p in live]  # type: ignore[union-attr]  # live: there is one
            self._update(k, [p._data for p in live], gradients, kept, lr, group)

    def _updates(self) -> list[tuple[int, Group, list[Tensor], dict[str, list[Array]]]]:
        """What a step updates, all of it checked: each group's number, the group, its parameters, what is kept of them.
        """
        self._tell_lists()
        return [(number, group, live, {name: [self._array(name, p) for p in live] for name in self._uses(group)})
                for number, group in enumerate(self.groups) if (live := self._live(group))]

    def _live(self, group: Group) -> list[Tensor]:
        """The parameters that are to be changed: those that require a gradient and have one, which is checked."""
        name = type(self).__name__
        if group.__class__ is not Group:
            raise TypeError(f"{name}: a group is a {type(group).__name__} but must be one that {name} made; change the "
                            f"entries of a group, or build another {name} from all groups")
        live = with_gradients(group["params"])
        for p in live:
            gradient = p._grad._data       # type: ignore[union-attr]  # live: there is one
            if gradient.shape != p._data.shape:
                raise ValueError(f"{name}: a parameter has shape {p.shape} but its gradient {gradient.shape}; call "
                                 "zero_grad() after a parameter's array was replaced")
        return live

    def _tell_lists(self) -> None:
        """Tell the recorder which lists a step that goes through all parameters depends on."""
        if (recorder := mode.recorder).recording:
            recorder.reads(self, self.groups, what="the optimizer's groups")
            recorder.reads(*(group["params"] for group in self.groups), what="the parameters of an optimizer's group")

    def _array(self, name: str, p: Tensor) -> Array:
        """One of a parameter's arrays: zeros at first. It moves with the parameter."""
        held, data, counts = self._kept[name].get(p), p._data, name == "steps"
        if held is not None and held.shape == data.shape and held.dtype is data.dtype and (
                held.__class__ is data.__class__ and not counts):
            return held                    # as in all steps but a few
        dtype = np.dtype(np.int64) if counts else data.dtype
        if held is None or held.__class__ is not data.__class__ or held.dtype != dtype:
            with lasting(data):
                held = self._kept[name][p] = (
                    np.zeros_like(data, dtype, shape=(1,) if counts else None) if held is None else
                    to_device(held, p.device).astype(dtype, copy=False))       # .to() moved the model since, or a file
        if held.shape != data.shape and not counts:
            raise ValueError(f"{type(self).__name__}: a parameter has shape {p.shape} but its {self.kept[name]} "
                             f"{held.shape}; build another {type(self).__name__} after a parameter's array was "
                             "replaced by one of another shape")
        return held

    def state_dict(self) -> dict[str, Any]:
        """{"groups": [{"kind": "SGD", "name": ..., "params": [...], "lr": ..., "velocities": [...]}, ...]}: the kind of
        optimizer, the group's name and those of its parameters (None if they are not known), its numbers, and
        copies of what is kept for its parameters; None before the first step."""
        return state_of(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what `state_dict` gave: arrays change in place. Groups and parameters are found by their names,
        or by place if these are not known. Raises ValueError for what does not fit; then nothing has changed."""
        writer_of(self, state)()
