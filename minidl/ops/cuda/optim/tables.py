"""Updates of many parameters in one launch: the table that kernels read, made once for the same arrays."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import cupy
import numpy as np

from ...primitives import Rate
from .. import launch

Arrays = list[cupy.ndarray] | None
Like = tuple[tuple[int, ...], np.dtype, int]

THREADS = 256                              # per block
BLOCK = 4 * THREADS                        # elements of a parameter that a block updates
STEP: tuple[tuple[int], np.dtype] = (1,), np.dtype(np.int64)


class Launch(NamedTuple):
    """What is the same in every step for some parameters of one dtype: all of it but the gradients' addresses."""

    members: list[int]                     # their places in the lists that an update is given
    likes: list[Like]                      # shape, dtype and device that the gradients must have
    constant: launch.Constant
    blocks: int
    table: np.ndarray
    grads: np.ndarray                      # the table's row of gradients, len(members) long


# Keyed by the identities of all arrays but the gradients; an entry goes when one of these arrays does.
_plans: dict[tuple[int, ...], tuple[list[Launch], list[weakref.ref]]] = {}


def launches(name: str, params: list[cupy.ndarray], grads: list[cupy.ndarray],
             **kept: Arrays) -> Iterator[tuple[launch.Constant, int, bytes]]:
    """(REAL, blocks, the table) of each launch of an update. kept: what its rows v, s and t hold, as a word for one."""
    if len(grads) != len(params):
        raise ValueError(f"{name}: got {len(params)} parameters but {len(grads)} gradients; give one to each")
    key = len(params), *map(id, params), *(number for arrays in kept.values() for number in map(id, arrays or (None,)))
    found = _plans.get(key)
    grads = [g if g._c_contiguous else cupy.ascontiguousarray(g) for g in grads]           # they live until the launch
    for members, likes, constant, blocks, table, addresses in _plan(name, key, params, kept) if found is None else found[0]:
        for i, like in zip(members, likes):
            if like != _like(grads[i]):
                raise ValueError(f"{name}: gradient {i} has {_words(grads[i])} but its parameter has "
                                 f"{_words(params[i])}; give each parameter a gradient like it")
        addresses[:] = [grads[i].data.ptr for i in members]
        yield constant, blocks, table.tobytes()


def rate(lr: Rate) -> tuple[Any, Any, int, float]:
    """A learning rate as kernels take it: rates, position, the last place, a number."""
    rates, position = lr if isinstance(lr, tuple) else (lr if isinstance(lr, cupy.ndarray) else None, None)
    return rates, position, 0 if rates is None else rates.size - 1, lr if rates is None else 0.0


def _like(x: cupy.ndarray) -> Like:
    return x.shape, x.dtype, x.data.device_id


def _words(x: cupy.ndarray) -> str:
    return f"shape {x.shape} and dtype {x.dtype} on device {x.data.device_id}"


def _plan(name: str, key: tuple[int, ...], params: list[cupy.ndarray], kept: dict[str, Arrays]) -> list[Launch]:
    """The launches for these arrays, remembered for as long as all of them live."""
    given = {"parameter": params, **{word: arrays for word, arrays in kept.items() if arrays is not None}}
    for word, arrays in given.items():
        for i, (p, x) in enumerate(zip(params, arrays, strict=True)):
            must = (*STEP, p.data.device_id) if word == "step" else _like(p)
            if not x.flags.c_contiguous or _like(x) != must or x.data.device_id != cupy.cuda.runtime.getDevice():
                raise ValueError(f"{name}: {word} {i} has {_words(x)} and strides {x.strides} but must lie without gaps "
                                 f"on the current device, like its parameter of {_words(p)}; make it anew")
    found, most = [], launch.struct("Parameters")["p"].shape[0]
    for dtype in dict.fromkeys(p.dtype for p in params):
        members = [i for i, p in enumerate(params) if p.dtype == dtype]
        found += [_launch(members[j:j + most], params, list(kept.values())) for j in range(0, len(members), most)]
    _plans[key] = found, [weakref.ref(x, lambda _: _plans.pop(key, None)) for arrays in given.values() for x in arrays]
    return found


def _launch(members: list[int], params: list[cupy.ndarray], kept: list[Arrays]) -> Launch:
    table, count = np.zeros((), launch.struct("Parameters")), len(members)
    own = [params[i] for i in members]
    ends = np.cumsum([-(-p.size // BLOCK) for p in own])
    for row, arrays in zip("pvst", (params, *kept)):
        if arrays is not None:
            table[row][:count] = [arrays[i].data.ptr for i in members]
    table["size"][:count] = [p.size for p in own]
    table["first"] = np.iinfo(np.int32).max
    table["first"][:count] = [0, *ends[:-1]]
    return Launch(members, [_like(p) for p in own], launch.real(own[0].dtype), max(1, int(ends[-1])),
                  table, table["g"][:count])
