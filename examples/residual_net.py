"""A residual net of your own: batch normalisation, a sum around two convolutions, augmentation, a compiled step.

    python examples/residual_net.py [--small]
"""

import sys

import minidl
from minidl import data, nn, ops, optim, training


class Block(nn.Module):
    """Two convolutions with batch normalisation, and what they were given: x (n,c,h,w) -> (n,m,h/stride,w/stride)."""

    def __init__(self, c, m, stride=1):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(c, m, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(m), nn.ReLU(),
            nn.Conv2d(m, m, 3, padding=1, bias=False), nn.BatchNorm2d(m))
        self.shortcut = nn.Identity() if (c, stride) == (m, 1) else nn.Conv2d(c, m, 1, stride=stride)

    def forward(self, x):
        return ops.relu(self.body(x) + self.shortcut(x))


def main(small):
    train, test = (data.load("synthetic-shapes", split) for split in ("train", "test"))
    train, test, epochs = (train.first(2000), test.first(500), 6) if small else (train, test, 10)
    mean, std = data.channel_statistics(train)
    batches = data.DataLoader(train, 50, seed=1, mean=mean, std=std, augment=data.Augment(crop=4, flip="alternate"))
    tests = data.DataLoader(test, 500, shuffle=False, mean=mean, std=std)
    minidl.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
                        Block(8, 8), Block(8, 16, stride=2), Block(16, 32, stride=2),
                        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, len(train.classes)))
    sgd = optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    training.fit(net, sgd, batches, tests, epochs=epochs, schedule=optim.one_cycle(epochs * len(batches)),
                 compiled=True)
    minidl.save(net, "residual_net.h5")                # with its running means and variances
    print(f"test accuracy {training.evaluate(net, tests)[1]:.3f}")


if __name__ == "__main__":
    main("--small" in sys.argv)
