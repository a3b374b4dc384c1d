"""Two views of each picture are near, others far: InfoNCE (van den Oord et al. 2018).
Figure: the share of test pictures whose nearest training picture has their class."""

import numpy as np

import minidl
from minidl import Tensor, data, nn, optim
from minidl import ops as F


def main(device="cpu", compiled=False):
    minidl.manual_seed(0)
    rng = np.random.default_rng(0)
    digits = data.load("synthetic-digits", "train", count=800)
    images, labels = digits.images.astype(np.float32) / 255, digits.labels
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 16)).to(device)
    adam = optim.Adam(net.parameters(), lr=0.003)

    def embed(x):
        z = net(x)
        return z / z.norm(dim=1, keepdim=True)

    def step(a, b):
        adam.zero_grad()
        logits = embed(a) @ embed(b).T / 0.1
        targets = minidl.arange(a.shape[0], device=a.device)
        loss = (F.cross_entropy(logits, targets) + F.cross_entropy(logits.T, targets)) / 2
        loss.backward()
        adam.step()
        return loss

    step = minidl.compile(step) if compiled else step
    for _ in range(150):
        batch = images[rng.integers(0, 600, 64)]
        views = [np.roll(batch, rng.integers(-1, 2, 2), (2, 3)) + 0.1 * rng.normal(size=batch.shape) for _ in "ab"]
        step(*(Tensor(view.astype(np.float32), device=device) for view in views))
    with minidl.no_grad():
        z = embed(Tensor(images, device=device))
        nearest = (z[600:] @ z[:600].T).argmax(dim=1).cpu().numpy()
    return float(np.mean(labels[:600][nearest] == labels[600:]))
