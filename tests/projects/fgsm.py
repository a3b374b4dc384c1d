"""A small step along the sign of the input's gradient fools a net (Goodfellow et al. 2015).
Figure: by how much its accuracy falls."""

import minidl
from minidl import Tensor, data, nn, optim, training
from minidl import ops as F


def main(device="cpu", compiled=False):
    minidl.manual_seed(0)
    train = data.DataLoader(data.load("synthetic-digits", "train", count=600), 50, device=device)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    training.fit(net, optim.Adam(net.parameters(), lr=0.003), train, train, epochs=5, compiled=compiled, say=None,
                 progress=False)
    net.eval()

    def attack(x, y):
        x = x.clone().detach().requires_grad_(True)
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        return (x + 0.2 * x.grad.sign()).clamp(0, 1).detach()

    attack = minidl.compile(attack) if compiled else attack
    before = after = count = 0
    for x, y in train:
        x, y = Tensor(x), Tensor(y)
        before += (net(x).argmax(dim=1) == y).sum().item()
        after += (net(attack(x, y)).argmax(dim=1) == y).sum().item()
        count += len(y)
    return (before - after) / count
