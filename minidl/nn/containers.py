"""Modules in lists and dicts, and the one that does nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any, SupportsIndex, TypeVar

from .module import Module, require_module, require_name

__all__ = ["Identity", "ModuleDict", "ModuleList"]

T = TypeVar("T")


class Identity(Module):
    """Returns its input; used in the place of a layer that a net leaves out. Arguments are accepted and ignored.

    >>> Identity(54)(3)
    3
    """

    def __init__(self, *arguments: object, **options: object):
        super().__init__()

    def forward(self, x: T) -> T:
        return x


class ModuleList(Module, MutableSequence[Any]):
    """Modules in a list, named "0", "1", ...; it does all that a list does, and has no forward of its own.

    Raises TypeError for an entry that is not a Module.

    >>> from minidl.nn import Linear, ReLU
    >>> layers = ModuleList([Linear(3, 2), ReLU()])
    >>> layers.append(Linear(2, 1))
    >>> len(layers), list(layers.state_dict())
    (3, ['0.weight', '0.bias', '2.weight', '2.bias'])
    """

    def __init__(self, modules: Iterable[Module] = ()):
        super().__init__()
        self._items: list[Module] = []
        self.extend(modules)

    def _entries(self) -> Iterable[tuple[str, Any]]:
        return [*((str(i), module) for i, module in enumerate(self._items)),
                *((name, value) for name, value in super()._entries() if name != "_items")]

    def _edited(self, edit: Callable[[list[Any]], object]) -> None:
        items = list(self._items)          # a new list each time, so that the change is seen
        edit(items)
        for i, module in enumerate(items):
            require_module(self, i, module)
        self._items = items

    def insert(self, i: int, module: Module) -> None:
        self._edited(lambda items: items.insert(i, module))

    def __getitem__(self, i: SupportsIndex | slice) -> Any:
        return ModuleList(self._items[i]) if isinstance(i, slice) else self._items[i]

    def __setitem__(self, i: SupportsIndex | slice, module: Any) -> None:
        self._edited(lambda items: items.__setitem__(i, module))

    def __delitem__(self, i: SupportsIndex | slice) -> None:
        self._edited(lambda items: items.__delitem__(i))

    def __len__(self) -> int:
        return len(self._items)


class ModuleDict(Module, MutableMapping[str, Module]):
    """Modules by name; it does all that a dict does, and has no forward of its own.

    Raises TypeError for an entry that is not a Module, ValueError for a key that is not a text or has a dot.

    >>> from minidl.nn import Linear
    >>> heads = ModuleDict({"left": Linear(3, 2)})
    >>> heads["right"] = Linear(3, 1, bias=False)
    >>> list(heads), list(heads.state_dict())
    (['left', 'right'], ['left.weight', 'left.bias', 'right.weight'])
    """

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] = ()):
        super().__init__()
        self._items: dict[str, Module] = {}
        self.update(modules)

    __eq__ = object.__eq__                 # as for every Module: it is equal only to itself
    __hash__ = object.__hash__

    def _entries(self) -> Iterable[tuple[str, Any]]:
        return [*self._items.items(), *((name, value) for name, value in super()._entries() if name != "_items")]

    def __getitem__(self, name: str) -> Module:
        return self._items[name]

    def __setitem__(self, name: str, module: Module) -> None:
        require_name("ModuleDict: the key", name)
        require_module(self, name, module)
        self._items = {**self._items, name: module}

    def __delitem__(self, name: str) -> None:
        items = dict(self._items)
        del items[name]
        self._items = items

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)
