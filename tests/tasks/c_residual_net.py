"""A residual net with batch normalisation: trained by Adam in a compiled step, saved, and loaded with its running
statistics."""

import minidl
from minidl import data, nn, ops, optim, training


class Residual(nn.Sequential):
    def forward(self, x):
        return ops.relu(x + super().forward(x))


def residual_net():
    return nn.Sequential(nn.Conv2d(1, 8, 5, stride=2), nn.BatchNorm2d(8), nn.ReLU(),
                         Residual(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)), nn.Flatten(), nn.Linear(1152, 10))


train, test = (data.DataLoader(data.load("synthetic-digits", kind, count=2000), 50) for kind in ("train", "test"))
net, other = residual_net(), residual_net()
last = training.fit(net, optim.Adam(net.parameters(), lr=0.003), train, test, epochs=3, compiled=True)[-1]
minidl.save(net, "residual.h5")
minidl.load(other, "residual.h5")
assert training.evaluate(other, test)[1] == last["test_accuracy"] > 0.8, last
