"""A perceptron of three layers learns a column of a table: standardised features, AdamW, a cosine, a metric of one's
own. Figure: the share of the variance that it explains."""

import numpy as np

import minidl
from minidl import data, nn, ops, optim, training


def r2(outputs, targets):
    return 1 - ((outputs - targets) ** 2).mean() / ((targets - targets.mean()) ** 2).mean()


def main(device="cpu", compiled=False):
    minidl.manual_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 6)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] + np.sin(2 * x[:, 2]) + 0.1 * rng.normal(size=600)).astype(np.float32)[:, None]
    train = data.DataLoader((x[:500], y[:500]), batch_size=50, shuffle=True, device=device)
    test = data.DataLoader((x[500:], y[500:]), batch_size=100, shuffle=False, device=device)
    net = nn.Sequential(nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64),
                        nn.ReLU(), nn.Linear(64, 1)).to(device)
    adamw = optim.AdamW(net.parameters(), lr=0.02, weight_decay=0.01)
    history = training.fit(net, adamw, train, test, epochs=15, loss=ops.mse_loss, metrics={"r2": r2},
                           schedule=optim.cosine(150), compiled=compiled, say=None, progress=False)
    return history[-1]["test_r2"]
