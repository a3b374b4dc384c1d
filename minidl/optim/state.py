"""An optimizer's numbers, and what it keeps for its parameters, as plain data, and back: found by parameters' names."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import getattr_static
from types import NoneType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.by_tensor import ByTensor
from ..core.device import as_array, is_cuda, to_device, to_numpy
from ..core.mode import mode
from ..core.tensor import Tensor

if TYPE_CHECKING:
    from .optimizer import Optimizer

MAX_NAMED = 8                              # a message names at most this many parameters that do not fit
WAY_OUT = "that the state was saved from"


# ---------------------------------------------------------------------- names
class Named:
    """An object that keeps something for parameters, and may know their names."""

    _names: ByTensor[str]

    def _parameters(self) -> list[Tensor]:
        raise NotImplementedError

    def learn_names(self, named: Iterable[tuple[str, Tensor]]) -> None:
        """Note parameters' names, as `net.named_parameters()` gives them: states hold them, and are loaded by them.
        `training.fit` gives those of its model."""
        own = {id(p) for p in self._parameters()}
        for name, t in named:
            if id(t) in own:
                self._names[t] = name


def without_names(owner: str, given: Iterable[Any], names: ByTensor[str]) -> list[Any]:
    """Parameters without the names of those that come as (name, parameter); these names are noted. Raises TypeError for
    a set, in the name of `owner`."""
    if isinstance(given, (set, frozenset)):
        raise TypeError(f"{owner}: params is a set, whose order is another one in each run, so that a state could not "
                        "be loaded; pass a list")

    def parameter(each: object) -> object:
        if isinstance(each, tuple) and [*map(type, each)] == [str, Tensor]:
            names[each[1]] = each[0]
            return each[1]
        return each
    return [parameter(each) for each in given]


def require_distinct(owner: str, names: Iterable[Any]) -> None:
    """Refuse, for a state of this owner, two parameters of one known name: each could get what belongs to the other."""
    if twice := [name for name, count in Counter(names).items() if count > 1 and name is not None]:
        raise ValueError(f"{owner}: two parameters have the name {twice[0]!r}, by which a state would be loaded; pass "
                         "them with other names, as ((f'a.{name}', p) for name, p in a.named_parameters())")


# ---------------------------------------------------------------------- what belongs to which parameter in a state
def places(here: list[Any], there: list[Any], alike: Callable[[Any, Any], bool] = operator.eq) -> list[int] | None:
    """For each of `here` the place of the first of `there` that is like it and not taken; None if any are left over."""
    left, found = list(range(len(there))), []
    for one in here:
        place = next((place for place in left if alike(one, there[place])), None)
        if place is None:
            return None
        left.remove(place)
        found.append(place)
    return None if left else found


def places_by_name(here: list[Any], there: object) -> list[int] | None:
    """The same for parameters: by name, or by place if one side knows no names."""
    if not isinstance(there, list) or not any(here) or not any(there):
        return list(range(len(here)))
    return places(here, there)


def names_that_differ(here: list[Any], there: list[Any]) -> str:
    """For a message: "a, b here but c in the state", with only the names that the other side lacks, or with all."""
    def listed(names: list[Any], others: list[Any]) -> str:
        names = [name for name in names if name not in others] or names
        return ", ".join(map(str, names[:MAX_NAMED])) + ", ..." * (len(names) > MAX_NAMED)
    return f"{listed(here, there)} here but {listed(there, here)} in the state"


# What a state says of a group in addition to numbers and arrays (before minidl 0.3 nothing): what a message calls it,
# and whether two are alike.
FACTS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "kind": ("the groups' optimizers", operator.eq), "name": ("the groups' names", operator.eq),
    "params": ("the groups' parameters", lambda here, there: places_by_name(here, there) is not None)}


def facts_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """For each group: its optimizer's kind, its name, and its parameters' names; None for a name that is not known.
    Raises ValueError for two parameters of one name, unless their groups have other names."""
    facts: list[dict[str, Any]] = [
        {"kind": type(each).__name__, "name": group.get("name"), "params": [*map(each._names.get, group["params"])]}
        for each in getattr(optimizer, "optimizers", (optimizer,)) for group in each.groups]
    for kind, group in {(fact["kind"], fact["name"]) for fact in facts}:
        require_distinct(type(optimizer).__name__, [name for fact in facts for name in fact["params"]
                                                    if (fact["kind"], fact["name"]) == (kind, group)])
    return facts


def in_order(optimizer: Optimizer, groups: list[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], list[int]]]:
    """The groups of a state in the order of the optimizer's own: by kind, name and parameters, as far as they are
    known; with each the places of its parameters in that group. Raises ValueError if they are not the same."""
    here, told = facts_of(optimizer), [what for what in FACTS if all(what in group for group in groups)]
    order: list[int] | None = list(range(len(groups)))
    for count, what in enumerate(told, 1):
        order = places(here, groups, lambda mine, theirs, several=told[:count]: all(    # type: ignore[misc]
            FACTS[each][1](mine[each], theirs[each]) for each in several))
        if order is None:
            mine, theirs = ([name for fact in facts for name in (fact[what] if what == "params" else [fact[what]])]
                            for facts in (here, groups))
            raise ValueError(f"{type(optimizer).__name__}.load_state_dict: {FACTS[what][0]} are "
                             f"{names_that_differ(mine, theirs)}; build the optimizer {WAY_OUT}")
    found = [groups[place] for place in order or ()]
    return [(group, places_by_name(mine["params"], group["params"] if "params" in told else None) or [])
            for mine, group in zip(here, found, strict=True)]


# ---------------------------------------------------------------------- a state
OURS = "groups", "numbers", "_kept", "_names", "optimizers"            # the attributes of minidl's own optimizers
PLAIN = bool, int, float, str, np.generic, NoneType    # what a state holds of a subclass's attributes


def like(name: str, p: Tensor) -> tuple[tuple[int, ...], np.dtype]:
    """(shape, dtype) of what is kept for a parameter by this name."""
    return ((1,), np.dtype(np.int64)) if name == "steps" else (p.shape, p.dtype)


def examples(optimizer: Optimizer) -> dict[str, Any]:
    """A state as `state_of` gives it, with all arrays that there can be and no numbers; the arrays take no memory."""
    return {"groups": [{name: [np.broadcast_to(np.empty((), dtype), shape)
                               for shape, dtype in (like(name, p) for p in group["params"])] for name in each.kept}
                       for each in getattr(optimizer, "optimizers", (optimizer,)) for group in each.groups]}


def state_of(optimizer: Optimizer) -> dict[str, Any]:
    """As `Optimizer.state_dict`."""
    own = own_of(optimizer)

    def copy(name: str, p: Tensor) -> np.ndarray | None:
        held = optimizer._kept[name].get(p)
        return None if held is None else np.array(to_numpy(held))

    return {"groups": [{**facts, **own, **{name: group[name] for name in optimizer.numbers},
                        **{name: [copy(name, p) for p in group["params"]] for name in optimizer.kept}}
                       for facts, group in zip(facts_of(optimizer), optimizer.groups, strict=True)]}


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith(f"{__package__}.")


def own_of(optimizer: Optimizer) -> dict[str, dict[str, Any]]:
    """{"own": the numbers, texts and flags of a subclass, which may count its steps}, or nothing if it has none. Raises
    TypeError for a subclass that keeps more than these and its base does, but has no state_dict."""
    kind, more = type(optimizer), {name: value for name, value in vars(optimizer).items() if name not in OURS}
    own = {name: value for name, value in more.items() if isinstance(value, PLAIN)}
    if left := [name for name in more if name not in own and kind.state_dict.__module__.startswith(f"{__package__}.")]:
        base = next(each for each in kind.__mro__ if _is_ours(each))
        raise TypeError(f"{kind.__name__}.state_dict: holds what {base.__name__} keeps but not {', '.join(left)}; "
                        "define state_dict and load_state_dict that hold them too")
    return {"own": own} if own else {}


def may_be_own(optimizer: Optimizer, own: object) -> bool:
    """Whether a subclass may have such attributes: a file is not to set its methods, nor what minidl's own have. One
    that is missing may be made by its `step`."""
    missing = PLAIN if _is_ours(type(optimizer)) else None
    return isinstance(own, Mapping) and all(
        isinstance(name, str) and name[:2] != "__" and isinstance(value, PLAIN)
        and isinstance(getattr_static(optimizer, name, missing), PLAIN) for name, value in own.items())


@contextmanager
def unnamed(optimizer: Optimizer) -> Iterator[None]:
    """Within this, the optimizer knows no names of parameters: its states go by place, and two may have one name."""
    parts = [each for each in getattr(optimizer, "optimizers", (optimizer,)) if isinstance(each, Named)]
    names = [each._names for each in parts]
    for each in parts:
        each._names = ByTensor()
    try:
        yield
    finally:
        for each, before in zip(parts, names, strict=True):
            each._names = before


def _groups_of(optimizer: Optimizer, state: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], list[list[int]]]:
    """The groups of a state in the optimizer's order, and for each the places of its parameters. Raises ValueError for
    what `state_dict` did not give, and if the numbers of parameters differ."""
    title, numbers, kept = type(optimizer).__name__, optimizer.numbers, tuple(optimizer.kept)
    flags = [name for name in numbers if isinstance(optimizer.groups[0][name], bool)]
    groups = state.get("groups") if isinstance(state, Mapping) else None
    matched: list[tuple[Mapping[str, Any], list[int]]] = []
    if isinstance(groups, list) and len(groups) == len(optimizer.groups) and all(
            isinstance(group, Mapping) for group in groups):
        matched = in_order(optimizer, groups)
        groups = [group for group, _ in matched]
    if not isinstance(groups, list) or not all(
            isinstance(group, Mapping) and {*numbers, *kept} == group.keys() - {*FACTS, "own"}
            and may_be_own(optimizer, group.get("own", {}))
            and all(isinstance(group[name], list) for name in kept)
            and all(isinstance(group[name], bool) for name in flags) for group in groups):
        raise ValueError(f"{title}.load_state_dict: the state is a {type(state).__name__} but must be what state_dict "
                         "gave")
    mine = [len(group["params"]) for group in optimizer.groups]
    for theirs in ([len(group[name]) for group in groups] for name in kept):
        if mine != theirs:
            raise ValueError(f"{title}.load_state_dict: the groups have {mine} parameters but the state's have "
                             f"{theirs}; build the optimizer {WAY_OUT}")
    # Files of earlier versions have lists in place of tuples of numbers.
    return [{**group, **{name: tuple(group[name]) for name in numbers if isinstance(group[name], list)}}
            for group in groups], [order for _, order in matched]


def writer_of(optimizer: Optimizer, state: Mapping[str, Any]) -> Callable[[], None]:
    """A function that writes a state. Everything in it has been checked before."""
    mode.recorder.refuse("loads an optimizer's state")
    title, numbers, kept = type(optimizer).__name__, optimizer.numbers, tuple(optimizer.kept)
    groups, orders = _groups_of(optimizer, state)
    arrays = []
    for number, (group, saved, order) in enumerate(zip(optimizer.groups, groups, orders, strict=True)):
        type(group)({**group, **{name: saved[name] for name in numbers}}, group.kind)      # refuses what cannot be
        for name in kept:
            for p, place in zip(group["params"], order, strict=True):
                given, (shape, dtype) = saved[name][place], like(name, p)
                array = None if given is None else to_numpy(as_array(given))
                if array is not None and (array.shape, array.dtype) != (shape, dtype):
                    raise ValueError(f"{title}.load_state_dict: {optimizer.kept[name]} {place} of group {number} is "
                                     f"{array.shape} {array.dtype} but its parameter is {shape} {dtype}; build the "
                                     f"optimizer {WAY_OUT}")
                arrays.append((name, p, array))

    def write() -> None:
        for name, value in groups[0].get("own", {}).items():
            setattr(optimizer, name, value)
        for group, saved in zip(optimizer.groups, groups, strict=True):
            for name in numbers:
                if group[name] != saved[name]:
                    group[name] = saved[name]
        for name, p, array in arrays:
            held = optimizer._kept[name].get(p)
            if held is not None and (held.shape, held.dtype, is_cuda(held)) == (*like(name, p), p.device == "cuda"):
                held[...] = 0 if array is None else to_device(array, p.device)
            elif array is None:
                optimizer._kept[name].pop(p)
            else:
                optimizer._kept[name][p] = to_device(np.array(array), p.device)
    return write
