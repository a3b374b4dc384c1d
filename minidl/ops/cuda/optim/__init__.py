"""The optimizer's update on CuPy arrays, in place: all parameters of a call in one launch."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import cupy
import numpy as np

from ...common.primitives import Rate
from .. import launch

__all__ = ["sgd"]

Like = tuple[tuple[int, ...], np.dtype, int]

THREADS = 256                              # per block
BLOCK = 4 * THREADS                        # elements of a parameter that a block updates

CONFIGURATIONS: list[tuple[str, tuple[launch.Constant, ...]]] = [
    ("optim/sgd.cu", (launch.real(dtype),)) for dtype in launch.C_NAME
]


class Launch(NamedTuple):
    """What is the same in every step for some parameters of one dtype: all of it but the gradients' addresses."""

    members: list[int]                     # their places in the lists that sgd is given
    likes: list[Like]           # shape, dtype and device that the gradients must have
    constant: launch.Constant
    blocks: int
    table: np.ndarray
    grads: np.ndarray                      # the table's row of gradients, len(members) long


# Keyed by the identities of parameters and velocities; an entry goes when one of these arrays does.
_plans: dict[tuple[int, ...], tuple[list[Launch], list[weakref.ref]]] = {}


def sgd(params: list[cupy.ndarray], grads: list[cupy.ndarray], velocities: list[cupy.ndarray] | None, lr: Rate,
        momentum: float, weight_decay: float, nesterov: bool) -> None:
    """g += weight_decay * p; v = momentum * v + g; p -= lr * v, or lr * (g + momentum * v) with nesterov.

    lr: a number, or (rates, position), arrays of float64 and int64: the rate is rates[position[0]]. Or an array of one
    float64. Arrays are read when the kernel runs.
    """
    if len(grads) != len(params):
        raise ValueError(f"sgd: got {len(params)} parameters but {len(grads)} gradients; give one to each")
    key = (len(params), *map(id, params), *map(id, velocities or ()))
    found = _plans.get(key)
    launches = _plan(key, params, velocities) if found is None else found[0]
    rates, position = lr if isinstance(lr, tuple) else (lr if isinstance(lr, cupy.ndarray) else None, None)
    rate = rates, position, 0 if rates is None else rates.size - 1, lr if rates is None else 0.0
    grads = [g if g._c_contiguous else cupy.ascontiguousarray(g) for g in grads]           # they live until the launch
    for members, likes, constant, blocks, table, addresses in launches:
        for i, like in zip(members, likes):
            if like != ((g := grads[i]).shape, g.dtype, g.data.device_id):
                raise ValueError(f"sgd: gradient {i} has {_words(g)} but its parameter has {_words(params[i])}; "
                                 "give each parameter a gradient like it")
        addresses[:] = [grads[i].data.ptr for i in members]
        launch.kernel("optim/sgd.cu", "sgd", constant)(
            (blocks,), (THREADS,), table.tobytes(), *rate, momentum, weight_decay, nesterov)


def _like(x: cupy.ndarray) -> Like:
    return x.shape, x.dtype, x.data.device_id


def _words(x: cupy.ndarray) -> str:
    return f"shape {x.shape} and dtype {x.dtype} on device {x.data.device_id}"


def _plan(key: tuple[int, ...], params: list[cupy.ndarray], velocities: list[cupy.ndarray] | None) -> list[Launch]:
    """The launches for these arrays, remembered for as long as all of them live."""
    for i, p in enumerate(params):
        for what, x in (("parameter", p), *((("velocity", velocities[i]),) if velocities is not None else ())):
            if not x.flags.c_contiguous or _like(x) != _like(p) or x.data.device_id != cupy.cuda.runtime.getDevice():
                raise ValueError(f"sgd: {what} {i} has {_words(x)} and strides {x.strides} but must lie without gaps "
                                 f"on the current device, like its parameter of {_words(p)}; make it anew")
    launches, most = [], launch.struct("Parameters")["p"].shape[0]
    for dtype in dict.fromkeys(p.dtype for p in params):
        members = [i for i, p in enumerate(params) if p.dtype == dtype]
        launches += [_launch(members[j:j + most], params, velocities) for j in range(0, len(members), most)]
    arrays = [*params, *(velocities or ())]
    _plans[key] = launches, [weakref.ref(x, lambda _: _plans.pop(key, None)) for x in arrays]
    return launches


def _launch(members: list[int], params: list[cupy.ndarray], velocities: list[cupy.ndarray] | None) -> Launch:
    table, count = np.zeros((), launch.struct("Parameters")), len(members)
    own = [params[i] for i in members]
    ends = np.cumsum([-(-p.size // BLOCK) for p in own])
    table["p"][:count] = [p.data.ptr for p in own]
    if velocities is not None:
        table["v"][:count] = [velocities[i].data.ptr for i in members]
    table["size"][:count] = [p.size for p in own]
    table["first"] = np.iinfo(np.int32).max
    table["first"][:count] = [0, *ends[:-1]]
    return Launch(members, [_like(p) for p in own], launch.real(own[0].dtype), max(1, int(ends[-1])),
                  table, table["g"][:count])
