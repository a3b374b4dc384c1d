"""Adam, an optimizer of one's own, trains the residual net of c_residual_net.py, by an eager and by a compiled step."""

from c_residual_net import residual_net, test, train

import minidl
from minidl import Tensor, ops, training


class Adam:
    """Kingma and Ba 2015. Its state are Tensors that change in place: so a compiled step goes on with them."""

    def __init__(self, params, lr):
        self.params, self.lr, self.count = list(params), lr, minidl.zeros(1)
        self.moments = [(minidl.zeros_like(p), minidl.zeros_like(p)) for p in self.params]

    def step(self):
        with minidl.no_grad():
            self.count += 1.0
            for p, (m, v) in zip(self.params, self.moments):
                m += 0.1 * (p.grad - m)
                v += 0.001 * (p.grad * p.grad - v)
                p -= self.lr * m / (1 - 0.9**self.count) / ((v / (1 - 0.999**self.count)).sqrt() + 1e-8)
                p.grad = None


def trained(kind):
    """The losses of each step, and the accuracy."""
    minidl.manual_seed(1)
    net = residual_net()
    adam = Adam(net.parameters(), lr=0.003)

    @kind
    def step(images, labels):
        loss = ops.cross_entropy(net(images), labels)
        loss.backward()
        adam.step()
        return loss

    train.set_epoch(0)
    return [step(*map(Tensor, batch)).item() for _ in range(3) for batch in train], training.evaluate(net, test)[1]


assert trained(lambda step: step) == (replayed := trained(minidl.compile)) and replayed[1] > 0.8, replayed
