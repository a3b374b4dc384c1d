"""A recurrent net of one's own cell, beside nn.LSTM, adds up the marked numbers of a series; gradients are clipped.
Figure: the share of the variance that the own one explains, or that nn.LSTM does, whichever is smaller."""

import numpy as np

import minidl
from minidl import Tensor, nn, optim
from minidl import ops as F


class Cell(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.hidden, self.gates = hidden, nn.Linear(inputs + hidden, 4 * hidden)

    def forward(self, x, state):
        h, c = state
        i, f, g, o = self.gates(minidl.cat([x, h], dim=1)).chunk(4, dim=1)
        c = F.sigmoid(f) * c + F.sigmoid(i) * minidl.tanh(g)
        return F.sigmoid(o) * minidl.tanh(c), c


class Own(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.cell, self.head = Cell(2, hidden), nn.Linear(hidden, 1)

    def forward(self, x):
        h = minidl.zeros(x.shape[0], self.cell.hidden, device=x.device)
        c = minidl.zeros_like(h)
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
        return self.head(h)


class Layers(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.lstm, self.head = nn.LSTM(2, hidden, batch_first=True), nn.Linear(hidden, 1)

    def forward(self, x):
        y, _ = self.lstm(x)
        return self.head(y[:, -1])


def series(rng, n, length=8):
    values, marks = rng.uniform(-1, 1, (n, length)), np.zeros((n, length))
    for row in marks:
        row[rng.choice(length, 2, replace=False)] = 1
    return np.stack([values, marks], 2).astype(np.float32), (values * marks).sum(1, keepdims=True).astype(np.float32)


def explained(net, device, compiled):
    rng = np.random.default_rng(0)
    adam, criterion = optim.Adam(net.parameters(), lr=0.02), nn.MSELoss()

    def step(x, y):
        adam.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        adam.step()
        return loss

    step = minidl.compile(step) if compiled else step
    for _ in range(150):
        x, y = series(rng, 32)
        step(Tensor(x, device=device), Tensor(y, device=device))
    x, y = series(rng, 200)
    with minidl.no_grad():
        errors = (net(Tensor(x, device=device)).cpu().numpy() - y) ** 2
    return float(1 - errors.mean() / y.var())


def main(device="cpu", compiled=False):
    minidl.manual_seed(0)
    return min(explained(net().to(device), device, compiled) for net in (Own, Layers))
