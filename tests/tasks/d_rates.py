"""Find a learning rate; then train with clipped gradients and a schedule, halve the rate on a plateau, stop early."""

import numpy as np

import minidl
from minidl import Tensor, data, nn, ops, optim, training


class Clipped(optim.SGD):
    """Scales all gradients so that together they have a norm of at most 0.5."""

    def step(self, rates=None):
        with minidl.no_grad():
            scale = 0.5 / ops.maximum(self.norm(), 0.5)
            for p in self.groups[0]["params"]:
                p.grad *= scale
        super().step(rates)

    def norm(self):
        return ops.stack([p.grad.square().sum() for p in self.groups[0]["params"]]).sum().sqrt()


train, test = (data.DataLoader(data.load("synthetic-digits", kind, count=2000), 50) for kind in ("train", "test"))
net = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
sgd = Clipped(net.parameters(), lr=0.001, momentum=0.9)

start, found, seen = net.state_dict(), [], []
for (images, labels), sgd.lr in zip(train, np.geomspace(0.001, 100, len(train))):
    found.append((training.train_step(net, sgd, Tensor(images), labels)[0], sgd.lr))
best = sgd.lr = min(found)[1] / 3                          # well below the rate of the smallest loss
net.load_state_dict(start)
sgd.forget()


def plateau(metrics):
    """Halve the rate where the loss has not fallen, and stop after the second time."""
    seen.append(metrics["test_loss"])
    waited = len(seen) - 1 - seen.index(min(seen))
    sgd.lr /= 2 if waited else 1
    return waited == 2


history = training.fit(net, sgd, train, test, epochs=50, schedule=optim.warmup(10, optim.constant()), compiled=True,
                       callbacks=plateau)
assert 3 <= len(history) < 50 and 0.01 < best < 10 and sgd.lr < best and history[-1]["test_accuracy"] > 0.85
assert sgd.norm().item() < 0.5001
