"""A compiled step on the CPU with batches of 50 sizes: each gives what the plain step gives, and none is recorded more
than twice."""

import numpy as np

import minidl
from minidl import Tensor, nn, ops, optim


def trained(kind):
    """The losses and the parameters at the end, of a step made by kind(step); and that."""
    minidl.manual_seed(1)
    net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 5))
    sgd = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    @kind
    def step(x, labels):
        sgd.zero_grad()
        loss = ops.cross_entropy(net(x), labels)
        if len(x) > 25:                                    # Python, by the shape
            loss = loss / 2
        loss.backward()
        sgd.step()
        return loss

    random, losses = np.random.default_rng(1), []
    for _ in range(6):
        for n in random.permutation(np.arange(1, 51)):
            x = random.standard_normal((n, 16)).astype(np.float32)
            losses.append(step(Tensor(x), Tensor(x[:, :5].argmax(axis=1))).item())
    return [losses, *(p.tolist() for p in net.parameters())], step


plain, _ = trained(lambda step: step)
compiled, step = trained(minidl.compile)
assert plain == compiled
assert step.recordings == 100, step                        # 300 calls
