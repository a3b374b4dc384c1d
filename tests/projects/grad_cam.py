"""Where a net looks: the gradient of a class by the last maps, as weights of these (Selvaraju et al. 2017).
Figure: how much more of the heat lies on the side of the picture where its shape is."""

import numpy as np

import minidl
from minidl import Tensor, data, nn, optim, training


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                                      nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.features(x).mean(dim=(2, 3)))


def pictures(n, rng):
    """Noise (class 0), or a bright cross (1) or frame (2) at a random place; and in which half it is."""
    labels, columns = rng.integers(0, 3, n), rng.integers(0, 12, n)
    images = 0.1 * rng.normal(size=(n, 1, 16, 16))
    for image, label, column in zip(images, labels, columns):
        row = rng.integers(0, 12)
        cross, frame = np.zeros((5, 5)), np.ones((5, 5))
        cross[2], cross[:, 2], frame[1:4, 1:4] = 1, 1, 0
        image[0, row:row + 5, column:column + 5] += label and [cross, frame][label - 1]
    return images.astype(np.float32), labels, columns + 2


def main(device="cpu", compiled=False):
    minidl.manual_seed(0)
    rng = np.random.default_rng(0)
    images, labels, columns = pictures(700, rng)
    train = data.DataLoader((images[:600], labels[:600]), 50, device=device)
    net = Net().to(device)
    training.fit(net, optim.Adam(net.parameters(), lr=0.02), train, train, epochs=8, compiled=compiled, say=None,
                 progress=False)
    net.eval()

    def heat(x, label):
        maps = net.features(x)
        maps.retain_grad()
        score = net.head(maps.mean(dim=(2, 3))).gather(1, label.unsqueeze(1)).sum()
        score.backward()
        weights = maps.grad.mean(dim=(2, 3), keepdim=True)
        return (weights * maps).sum(dim=1).relu()

    heat = minidl.compile(heat) if compiled else heat
    shares = []
    for image, label, column in zip(images[600:], labels[600:], columns[600:]):
        if label:
            found = heat(Tensor(image[None], device=device), Tensor([label], device=device)).detach().cpu().numpy()[0]
            near = found[:, max(0, column // 2 - 2):column // 2 + 2].sum()
            shares.append(near / max(found.sum(), 1e-9))
    return float(np.mean(shares))
