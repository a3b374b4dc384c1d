"""The zoo's nets in JAX: the benchmarks' peer. Steps between two readings of the clock are one `lax.scan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Params = dict[str, Any]


def _layer(key: Any, *shape: int) -> Params:
    """Weights (out,in,...) of variance 1 / fan_in, and zero biases."""
    fan_in = 1
    for size in shape[1:]:
        fan_in *= size
    return {"w": jax.random.normal(key, shape) / fan_in ** 0.5, "b": jnp.zeros(shape[0])}


def conv(x: Any, layer: Params, padding: Any = "VALID") -> Any:
    y = lax.conv_general_dilated(x, layer["w"], (1, 1), padding, dimension_numbers=("NCHW", "OIHW", "NCHW"))
    return y + layer["b"][:, None, None]


def pool(x: Any, size: int) -> Any:
    window = (1, 1, size, size)
    return lax.reduce_window(x, 0.0, lax.add, window, window, "VALID") / (size * size)


def linear(x: Any, layer: Params) -> Any:
    return x @ layer["w"].T + layer["b"]


def lenet5_params(key: Any) -> Params:
    keys = jax.random.split(key, 5)
    return {"c1": _layer(keys[0], 6, 1, 5, 5), "c3": _layer(keys[1], 16, 6, 5, 5), "c5": _layer(keys[2], 120, 16, 5, 5),
            "f6": _layer(keys[3], 84, 120), "output": _layer(keys[4], 10, 84)}


def lenet5(p: Params, x: Any) -> Any:
    x = pool(jnp.tanh(conv(x, p["c1"])), 2)
    x = pool(jnp.tanh(conv(x, p["c3"])), 2)
    x = jnp.tanh(conv(x, p["c5"])).reshape(len(x), -1)
    return linear(jnp.tanh(linear(x, p["f6"])), p["output"])


def krizhevsky2009_params(key: Any) -> Params:
    keys = jax.random.split(key, 2)
    return {"conv": _layer(keys[0], 64, 3, 8, 8), "output": _layer(keys[1], 10, 64 * 8 * 8)}


def krizhevsky2009(p: Params, x: Any) -> Any:
    x = pool(jax.nn.sigmoid(conv(x, p["conv"], ((4, 3), (4, 3)))), 4)
    return linear(x.reshape(len(x), -1), p["output"])


NETS = {"lenet5": (lenet5_params, lenet5), "krizhevsky2009": (krizhevsky2009_params, krizhevsky2009)}


def steps(model: str, batches: Sequence[Any], lr: float, momentum: float,
          nets: int | None = None) -> Callable[[int], None]:
    """A function that takes so many steps of SGD with momentum on the batches in turn, in one call of the device.

    With `nets`, each step is one of so many nets, `jax.vmap` of one net's step; each begins with another batch.
    """
    init, net = NETS[model]
    images, labels = (jnp.stack([batch[i] for batch in batches]) for i in range(2))
    params = init(jax.random.key(0)) if nets is None else jax.vmap(init)(jax.random.split(jax.random.key(0), nets))
    state = params, jax.tree.map(jnp.zeros_like, params)
    first = 0 if nets is None else jnp.arange(nets)

    def loss(p: Params, x: Any, y: Any) -> Any:
        log_p = jax.nn.log_softmax(net(p, x))
        return -jnp.take_along_axis(log_p, y[:, None], 1).mean()

    def step(state: Any, i: Any) -> Any:
        p, v = state
        value, grads = jax.value_and_grad(loss)(p, images[i % len(batches)], labels[i % len(batches)])
        v = jax.tree.map(lambda v, g: momentum * v + g, v, grads)
        return (jax.tree.map(lambda p, v: p - lr * v, p, v), v), value

    one = step if nets is None else jax.vmap(step)
    scans: dict[int, Any] = {}

    def run(count: int) -> None:
        nonlocal state
        if count not in scans:
            scans[count] = jax.jit(lambda state: lax.scan(lambda state, i: one(state, first + i), state,
                                                          jnp.arange(count)), donate_argnums=0)
        state, losses = scans[count](state)
        losses.block_until_ready()
    return run
