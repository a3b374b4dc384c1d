"""The confusion matrix as numbers and as a picture, curves, filters, the report of a run, and plots of one's own."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import minidl
from minidl import data, nn, optim, plot, training

digits, test = data.load("synthetic-digits", "train", count=2000), data.load("synthetic-digits", "test", count=500)
train_loader, test_loader = data.DataLoader(digits, 50, seed=1), data.DataLoader(test, 500, shuffle=False)
minidl.manual_seed(1)
net = nn.Sequential(c1=nn.Conv2d(1, 8, 5, stride=2), act1=nn.ReLU(), flat=nn.Flatten(), output=nn.Linear(1152, 10))
sgd = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
with training.RunFolder("run") as run:
    history = training.fit(net, sgd, train_loader, test_loader, epochs=2, callbacks=run.append_metrics)

made = plot.pictures("run", net, test_loader)
assert [path.name for path in made] == ["curves.png", "filters.png", "confusion.png", "report.html"]

with minidl.no_grad():
    (images, labels), = test_loader
    answers = net(minidl.Tensor(images)).argmax(axis=1).numpy()
matrix = np.zeros((10, 10), int)
np.add.at(matrix, (labels, answers), 1)
assert np.isclose(np.trace(matrix) / matrix.sum(), history[-1]["test_accuracy"]) and matrix.sum() == 500
plot.confusion(labels, answers, test.classes, "confusion.svg")
plot.curves(training.read_metrics("run"), "curves.pdf")

_, (left, right) = plt.subplots(1, 2)
left.plot([epoch["test_loss"] for epoch in history])
right.imshow(net.c1.weight.detach()[0, 0])                 # a Tensor is an array to matplotlib
plt.savefig("own.png")
assert all(Path(name).stat().st_size > 1000 for name in ("confusion.svg", "curves.pdf", "own.png"))
