"""Parameters' names, and what belongs to which parameter in a state, found by these names."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..core.by_tensor import ByTensor
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
    facts = [{"kind": type(each).__name__, "name": group.get("name"),
              "params": [each._names.get(p) for p in group["params"]]}
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
