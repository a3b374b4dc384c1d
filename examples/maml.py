"""Weights from which one step of gradient descent on 10 points of a new sinusoid suffices (MAML; Finn et al. 2017,
section 5.1). The loss is taken after that step, so its gradient has a gradient in it. The training step is compiled.

Figure to reach: after the step the square error on new sinusoids is below 1.0; from weights that were trained on all
sinusoids alike, after the same step, it is over 2.5.

    python examples/maml.py [--small]
"""

import itertools
import sys

import numpy as np

import minidl
from minidl import Tensor, ops, optim


def error(weights, x, y):
    """The mean square error (tasks,) of whichever weights it is given: of one net, or of a net for each task."""
    w1, b1, w2, b2, w3, b3 = weights
    return ((ops.relu(ops.relu(x @ w1 + b1) @ w2 + b2) @ w3 + b3 - y) ** 2).mean(axis=(1, 2))


def adapted(weights, x, y):
    """The weights after one step for each task; x, y (tasks, points, 1)."""
    each = [w.expand(len(x), *w.shape) for w in weights]                   # so that a task has a gradient of its own
    return [w - 0.01 * g for w, g in zip(each, minidl.grad(error(each, x, y).sum(), each, create_graph=True))]


def sinusoids(random, tasks):
    """10 points of each to learn from, x and y, and 10 others by which it is judged."""
    height, phase = random.uniform(0.1, 5, (tasks, 1, 1)), random.uniform(0, np.pi, (tasks, 1, 1))
    x = random.uniform(-5, 5, (tasks, 20, 1))
    return [Tensor(of[:, at].astype(np.float32)) for at in (slice(10), slice(10, 20))
            for of in (x, height * np.sin(x - phase))]


def main(small):
    x, y, *new = sinusoids(np.random.default_rng(2), 500)
    for name in "trained on all", "MAML":
        random = np.random.default_rng(1)
        weights = [Tensor(w.astype(np.float32), requires_grad=True) for n, m in itertools.pairwise((1, 40, 40, 1))
                   for w in (random.normal(0, n ** -0.5, (n, m)), np.zeros((1, m)))]
        adam = optim.Adam(weights, lr=0.001)

        @minidl.compile
        def step(x, y, *new, weights=weights, adam=adam, name=name):
            adam.zero_grad()
            error(adapted(weights, x, y) if name == "MAML" else weights, *new).mean().backward()
            adam.step()

        for _ in range(600 if small else 10000):
            step(*sinusoids(random, 25))
        before, after = (error(found, *new).mean().item() for found in (weights, adapted(weights, x, y)))
        print(f"{name}: square error {before:.2f}, after one step {after:.2f}")


if __name__ == "__main__":
    main("--small" in sys.argv)
