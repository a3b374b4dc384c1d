"""Text: rows of letters, embedded, through layer normalisation and masked self-attention; at each place it learns to
say which letter was the most frequent one so far."""

import numpy as np

import minidl
from minidl import Tensor, data, nn, ops, optim, training

LETTERS, LENGTH, WIDTH = 6, 12, 32


class Net(nn.Module):
    """ids (n, length) -> logits (n, length, letters); no place sees a later one."""

    def __init__(self):
        super().__init__()
        self.letters, self.places = (nn.Parameter(0.3 * minidl.randn(k, WIDTH)) for k in (LETTERS, LENGTH))
        self.scale, self.shift = nn.Parameter(minidl.ones(WIDTH)), nn.Parameter(minidl.zeros(WIDTH))
        self.query, self.key, self.value = (nn.Parameter(minidl.randn(WIDTH, WIDTH) / WIDTH**0.5) for _ in range(3))
        self.output = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, LETTERS))
        self.later = Tensor(np.triu(np.ones((LENGTH, LENGTH), bool), 1))

    def forward(self, ids):
        x = self.letters[ids] + self.places
        x = (x - x.mean(-1, True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt() * self.scale + self.shift
        scores = x @ self.query @ (x @ self.key).mT / WIDTH**0.5
        weights = scores.masked_fill(self.later, -1e9).softmax(-1)
        return self.output((x + weights @ (x @ self.value)).reshape(-1, WIDTH)).reshape(-1, LENGTH, LETTERS)


def loss(logits, targets):
    return ops.cross_entropy(logits.reshape(-1, LETTERS), targets.reshape(-1))


ids = np.random.default_rng(1).integers(0, LETTERS, (4000, LENGTH))
most = np.eye(LETTERS, dtype=int)[ids].cumsum(axis=1).argmax(axis=2)           # of equal ones the first
train, test = (data.DataLoader(part, 50) for part in data.random_split((ids, most), [0.9, 0.1]))
net = Net()
last = training.fit(net, optim.SGD(net.parameters(), lr=0.1, momentum=0.9), train, test, epochs=10, loss=loss,
                    metrics={"right": lambda logits, targets: (logits.argmax(2) == targets).mean()}, compiled=True)[-1]
assert last["test_right"] > 0.8, last
changed = np.where(np.arange(LENGTH) < 8, ids, 0)          # the mask holds: what comes later changes nothing
assert np.allclose(*(net(Tensor(x[:50])).numpy()[:, :8] for x in (ids, changed)), atol=1e-5)
