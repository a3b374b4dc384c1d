"""A small net learns what a larger one answers, at a temperature (Hinton et al. 2015).
Figure: the share of pictures on which both then agree."""

import minidl
from minidl import Tensor, data, nn, optim, training
from minidl import ops as F


def mlp(width):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10))


def main(device="cpu", compiled=False):
    minidl.manual_seed(0)
    loader = data.DataLoader(data.load("synthetic-digits", "train", count=600), 50, device=device)
    teacher, student = mlp(64).to(device), mlp(12).to(device)
    training.fit(teacher, optim.Adam(teacher.parameters(), lr=0.003), loader, loader, epochs=5, compiled=compiled,
                 say=None, progress=False)
    teacher.eval()
    adam, T = optim.Adam(student.parameters(), lr=0.01), 4.0

    def step(x, y):
        with minidl.no_grad():
            soft = F.softmax(teacher(x) / T, dim=1)
        logits = student(x)
        loss = F.kl_div(F.log_softmax(logits / T, dim=1), soft, reduction="batchmean") * T * T
        loss = 0.9 * loss + 0.1 * F.cross_entropy(logits, y)
        adam.zero_grad()
        loss.backward()
        adam.step()
        return loss

    step = minidl.compile(step) if compiled else step
    for _ in range(8):
        for x, y in loader:
            step(Tensor(x), Tensor(y))
    agree = [(teacher(Tensor(x)).argmax(dim=1) == student(Tensor(x)).argmax(dim=1)).float().mean().item()
             for x, _ in loader]
    return sum(agree) / len(agree)
