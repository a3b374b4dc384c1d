"""A residual net with batch normalisation, both of one's own: trained by a compiled step, saved, and loaded with its
running statistics. c_residual_net_with_adam.py trains the same net by Adam."""

import minidl
from minidl import data, nn, ops, optim, training


class BatchNorm(nn.Module):
    """Each channel of images (n,c,h,w) less its mean, over its standard deviation; running ones in evaluation."""

    def __init__(self, c):
        super().__init__()
        self.weight, self.bias = nn.Parameter(minidl.ones(1, c, 1, 1)), nn.Parameter(minidl.zeros(1, c, 1, 1))
        self.mean, self.var = minidl.zeros(1, c, 1, 1), minidl.ones(1, c, 1, 1)                # buffers

    def forward(self, x):
        mean, var = self.mean, self.var
        if self.training:
            mean, var = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True, correction=0)
            with minidl.no_grad():
                self.mean += 0.1 * (mean - self.mean)
                self.var += 0.1 * (var - self.var)
        return (x - mean) / (var + 1e-5).sqrt() * self.weight + self.bias


class Residual(nn.Sequential):
    def forward(self, x):
        return ops.relu(x + super().forward(x))


def residual_net():
    return nn.Sequential(nn.Conv2d(1, 8, 5, stride=2), BatchNorm(8), nn.ReLU(),
                         Residual(nn.Conv2d(8, 8, 3, padding=1), BatchNorm(8)), nn.Flatten(), nn.Linear(1152, 10))


train, test = (data.DataLoader(data.load("synthetic-digits", kind).first(2000), 50) for kind in ("train", "test"))

if __name__ == "__main__":
    net, other = residual_net(), residual_net()
    sgd = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    last = training.fit(net, sgd, train, test, epochs=3, compiled=True)[-1]
    minidl.save(net, "residual.h5")
    minidl.load(other, "residual.h5")
    assert training.evaluate(other, test)[1] == last["test_accuracy"] > 0.8, last
