"""Images of any size: the mean over all places makes one net of them, trained on three sizes and used on others."""

import numpy as np

import minidl
from minidl import Tensor, nn, ops, optim


class Mean(nn.Module):
    """Images (n,c,h,w) of any h and w -> (n,c)."""

    def forward(self, x):
        return x.mean(axis=(2, 3))


random = np.random.default_rng(1)


def stripes(n, h, w):
    """Noise with dark and bright lines: across (0) or upright (1)."""
    labels = random.integers(0, 2, n)
    rows, columns = np.sign(random.standard_normal((n, 1, h, 1))), np.sign(random.standard_normal((n, 1, 1, w)))
    images = np.where(labels[:, None, None, None] == 0, rows, columns) + 0.3 * random.standard_normal((n, 1, h, w))
    return Tensor(images, dtype="float32"), Tensor(labels)


minidl.manual_seed(1)
net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), Mean(), nn.Linear(8, 2))
sgd = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


@minidl.compile
def step(x, labels):
    sgd.zero_grad()
    loss = ops.cross_entropy(net(x), labels)
    loss.backward()
    sgd.step()
    return loss


for i in range(300):
    step(*stripes(32, *[(12, 12), (16, 10), (9, 20)][i % 3]))
with minidl.no_grad():
    for size in ((8, 8), (13, 37), (64, 31), (40, 40)):
        x, labels = stripes(100, *size)
        assert (net(x).argmax(axis=1) == labels).float().mean().item() > 0.9, size
    assert net(minidl.ones(1, 1, 3, 3)).shape == (1, 2)
assert step.recordings == 6, step
