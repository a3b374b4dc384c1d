"""Regression on a table of columns, scaled to mean 0 and variance 1: with DataLoader and fit(loss=ops.mse_loss)."""

import numpy as np

import minidl
from minidl import Tensor, data, nn, ops, optim, training

random = np.random.default_rng(1)
x = random.uniform([0, -100, 5], [1, 100, 9], size=(2000, 3))
y = np.sin(3 * x[:, :1]) * x[:, 1:2] / 100 + x[:, 2:] ** 2 / 50 + 0.01 * random.standard_normal((2000, 1))
(x, y), (test_x, test_y) = data.random_split((x, y), [0.8, 0.2], seed=1)
mean, std = x.mean(axis=0), x.std(axis=0)
train = data.DataLoader(((x - mean) / std, y), 50, seed=1, dtype="float32")
test = data.DataLoader(((test_x - mean) / std, test_y), 400, shuffle=False, dtype="float32")


def worst(outputs, targets):
    return (outputs - targets).abs().max()


minidl.manual_seed(1)
net = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 1))
sgd, total = optim.SGD(net.parameters(), lr=0.1, momentum=0.9), 30 * len(train)
history = training.fit(net, sgd, train, test, epochs=30, schedule=optim.schedule("cosine", total), loss=ops.mse_loss,
                       metrics={"worst": worst})
line = np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)[0]
straight = np.mean((np.c_[test_x, np.ones(len(test_x))] @ line - test_y) ** 2)
assert history[-1]["test_loss"] < 0.1 * straight and "test_accuracy" not in history[-1], (history[-1], straight)
with minidl.no_grad():
    outputs = net(Tensor((test_x - mean) / std, dtype="float32")).numpy()
assert np.isclose(np.mean((outputs - test_y) ** 2), history[-1]["test_loss"], rtol=1e-4)
assert np.isclose(np.abs(outputs - test_y).max(), history[-1]["test_worst"], rtol=1e-4)
