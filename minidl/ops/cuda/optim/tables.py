"""Updates of many parameters in one launch: the table that kernels read, made once for the same arrays."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import cupy
import numpy as np

from ...common.primitives import Rate
from .. import launch

Arrays = list[cupy.ndarray] | None

THREADS, BLOCK = 256, 1024                 # per block, and elements of a parameter that it updates


class Table(NamedTuple):
    """The parameters of one dtype that a launch updates, and what kernels read of them: the same in every step but for
    the gradients' addresses."""

    members: list[int]                     # their places in the lists that an update is given
    likes: list[tuple[Any, ...]]           # shape, dtype and device that the gradients must have
    constant: launch.Constant
    blocks: int
    table: np.ndarray


# Keyed by the identities of all arrays but the gradients; an entry is removed when one of these arrays is.
_made: dict[tuple[int, ...], tuple[list[Table], list[weakref.ref]]] = {}


def launches(name: str, params: list[cupy.ndarray], grads: list[cupy.ndarray],
             **kept: Arrays) -> Iterator[tuple[launch.Constant, int, bytes]]:
    """(REAL, blocks, the table) of each launch of an update. kept: its rows v, s and t, by a word for one entry."""
    if len(grads) != len(params):
        raise ValueError(f"{name}: got {len(params)} parameters but {len(grads)} gradients; give one to each")
    key = len(params), *map(id, params), *(number for arrays in kept.values() for number in map(id, arrays or (None,)))
    grads = [g if g._c_contiguous else launch.dense(g) for g in grads]           # they live until the launch
    for members, likes, constant, blocks, table in (_made.get(key) or _make(name, key, params, kept))[0]:
        for i, like in zip(members, likes):
            if like != ((g := grads[i]).shape, g.dtype, g.data.device_id):             # what _like(g) is
                launch.refuse(name, "gradient", i, g, params[i])
        table["g"][:len(members)] = [grads[i].data.ptr for i in members]
        yield constant, blocks, table.tobytes()


def rate(lr: Rate) -> tuple[Any, Any, int, Any]:
    """A learning rate as kernels take it: rates, position, the last place, a number."""
    rates, position = lr if isinstance(lr, tuple) else (lr if isinstance(lr, cupy.ndarray) else None, None)
    return rates, position, 0 if rates is None else rates.size - 1, lr if rates is None else 0.0


def _like(x: cupy.ndarray) -> tuple[Any, ...]:
    return x.shape, x.dtype, x.data.device_id


def _make(name: str, key: tuple[int, ...], params: list[cupy.ndarray],
          kept: dict[str, Arrays]) -> tuple[list[Table], list[weakref.ref]]:
    """The tables of these arrays, remembered for as long as all of them live."""
    given = {"parameter": params, **{word: arrays for word, arrays in kept.items() if arrays is not None}}
    for word, arrays in given.items():
        for i, (p, x) in enumerate(zip(params, arrays, strict=True)):
            like = ((1,), np.int64, p.data.device_id) if word == "step" else _like(p)
            if not x.flags.c_contiguous or _like(x) != like or x.data.device_id != cupy.cuda.runtime.getDevice():
                launch.refuse(name, word, i, x, p)
    found, dtype, most = list[Table](), launch.struct("Parameters"), launch.struct("Parameters")["p"].shape[0]
    for real in dict.fromkeys(p.dtype for p in params):
        places = [i for i, p in enumerate(params) if p.dtype == real]
        for members in (places[j:j + most] for j in range(0, len(places), most)):
            table, count, own = np.zeros((), dtype), len(members), [params[i] for i in members]
            for row, held in zip("pvst", (params, *kept.values())):
                table[row][:count] = [held[i].data.ptr for i in members] if held is not None else 0
            ends = np.cumsum([-(-p.size // BLOCK) for p in own])
            table["size"][:count], table["first"] = [p.size for p in own], np.iinfo(np.int32).max
            table["first"][:count] = [0, *ends[:-1]]
            found.append(Table(members, list(map(_like, own)), launch.real(real), max(1, int(ends[-1])), table))
    _made[key] = found, [weakref.ref(x, lambda _: _made.pop(key, None)) for arrays in given.values() for x in arrays]
    return _made[key]
