"""Regression on a table: numbers in columns, standardised; a small net beside a straight line (least squares).

    python examples/table_regression.py [--small]
"""

import sys

import numpy as np

import minidl
from minidl import data, nn, ops, optim, training


def table(rows, random):
    """Ten columns, of which five matter (Friedman 1991), and the target with noise of standard deviation 1."""
    x = random.uniform(size=(rows, 10))
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5)**2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, y[:, None] + random.standard_normal((rows, 1))


def standard(columns, of):
    """Each column less the mean of `of`, in units of its standard deviation."""
    return (columns - of.mean(axis=0)) / of.std(axis=0)


def main(small):
    x, y = table(2000 if small else 10000, np.random.default_rng(1))
    (x, y), (test_x, test_y) = data.random_split((x, y), [0.8, 0.2], seed=1)
    spread = y.std()
    train = data.DataLoader((standard(x, x), standard(y, y)), 50, seed=1, dtype="float32")
    test = data.DataLoader((standard(test_x, x), standard(test_y, y)), 500, shuffle=False, dtype="float32")

    minidl.manual_seed(1)
    net = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    epochs = 10 if small else 20
    last = training.fit(net, optim.SGD(net.parameters(), lr=0.05, momentum=0.9), train, test, epochs=epochs,
                        schedule=optim.schedule("cosine", epochs * len(train)), loss=ops.mse_loss,
                        metrics={"absolute": lambda outputs, targets: (outputs - targets).abs().mean()})[-1]

    line, *_ = np.linalg.lstsq(np.c_[x, np.ones(len(x))], y, rcond=None)
    straight = np.sqrt(np.mean((np.c_[test_x, np.ones(len(test_x))] @ line - test_y)**2))
    print(f"mean absolute error {spread * last['test_absolute']:.2f}")
    print(f"root mean square error {spread * last['test_loss']**0.5:.2f}; of a straight line {straight:.2f}; of the "
          "noise alone 1.00")


if __name__ == "__main__":
    main("--small" in sys.argv)
