"""A layer and an op of one's own: the op's gradient is checked, a wrong one is found, and both are compiled."""

import minidl
from minidl import data, nn, ops, optim, training


@minidl.op
def softplus(k, x: minidl.Tensor, *, slope: float = 1.0):
    """log(1 + e^x) as max(x, 0) + log(1 + e^-|x|), which does not overflow. Its gradient is right for slope 1 alone."""
    y = k.add(k.maximum(x, 0), k.log(k.add(k.exp(k.neg(k.abs(x))), 1)))
    return y, lambda gy, need: (k.mul(gy, k.mul(slope, k.sigmoid(x))),)


class Gate(nn.Module):
    """softplus(x W) * tanh(x V): (n, inputs) -> (n, outputs)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.w, self.v = (nn.Parameter(0.5 * minidl.randn(inputs, outputs)) for _ in range(2))

    def forward(self, x):
        return softplus(x @ self.w) * ops.tanh(x @ self.v)


x = minidl.randn(5, 3, dtype="float64", requires_grad=True)
minidl.gradcheck(softplus, [x])
try:
    minidl.gradcheck(lambda x: softplus(x, slope=2.0), [x])
except ValueError as error:
    assert "element (0, 0)" in str(error), error
else:
    raise AssertionError("a wrong gradient passed")

losses = []
inputs = minidl.randn(256, 3).numpy()
loader = data.DataLoader((inputs, inputs[:, :1] * inputs[:, 1:2]), 32, seed=1)
for compiled in (False, True):
    minidl.manual_seed(1)
    net = nn.Sequential(Gate(3, 16), nn.Linear(16, 1))
    sgd = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    history = training.fit(net, sgd, loader, loader, epochs=40, loss=ops.mse_loss, compiled=compiled)
    losses.append([metrics["test_loss"] for metrics in history])
assert losses[0] == losses[1] and losses[1][-1] < 0.05 * losses[1][0]
