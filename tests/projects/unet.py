"""A U-Net (Ronneberger et al. 2015) finds squares and discs in noise: a class for each pixel, skip connections.
Figure: the share of the pixels of both shapes that it finds."""

import numpy as np

import minidl
from minidl import data, nn, optim, training
from minidl import ops as F


def block(c_in, c_out):
    return nn.Sequential(nn.Conv2d(c_in, c_out, 3, padding=1), nn.BatchNorm2d(c_out), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.down1, self.down2, self.middle = block(1, 8), block(8, 16), block(16, 16)
        self.up1 = nn.ConvTranspose2d(16, 16, 2, stride=2)
        self.up2 = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.join1, self.join2 = block(32, 16), block(16, 8)
        self.head = nn.Conv2d(8, classes, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        y = self.middle(F.max_pool2d(b, 2))
        y = self.join1(minidl.cat([self.up1(y), b], dim=1))
        y = self.join2(minidl.cat([self.up2(y), a], dim=1))
        return self.head(y)


def shapes(n, size=16):
    rng = np.random.default_rng(0)
    labels = np.zeros((n, size, size), np.int64)
    rows, columns = np.mgrid[:size, :size]
    for label in labels:
        (i, j, k, m), r = rng.integers(3, size - 3, 4), 3
        label[abs(rows - i) + 0 * columns < r] *= 1
        label[(abs(rows - i) < r) & (abs(columns - j) < r)] = 1
        label[(rows - k) ** 2 + (columns - m) ** 2 < r * r] = 2
    images = (labels > 0) + 0.5 * (labels == 2) + 0.3 * rng.normal(size=labels.shape)
    return images[:, None].astype(np.float32), labels


def found(outputs, labels):
    predicted = outputs.argmax(dim=1)
    return ((predicted == labels) & (labels > 0)).float().sum() / (labels > 0).float().sum()


def main(device="cpu", compiled=False):
    minidl.manual_seed(0)
    images, labels = shapes(240)
    train = data.DataLoader((images[:200], labels[:200]), 20, device=device)
    test = data.DataLoader((images[200:], labels[200:]), 40, shuffle=False, device=device)
    net = UNet().to(device)
    history = training.fit(net, optim.Adam(net.parameters(), lr=0.01), train, test, epochs=4, loss=F.cross_entropy,
                           metrics={"found": found}, compiled=compiled, say=None, progress=False)
    return history[-1]["test_found"]
