"""A notebook: cells that are run one after the other, some of them again, as they are changed; values are shown.
Figure: the test accuracy that the last cell shows."""

import linecache

CELLS = """
import minidl
from minidl import data, nn, ops, optim, training
%
minidl.manual_seed(0)
digits = data.load("synthetic-digits", "train", count=600)
digits
%
train = data.DataLoader(digits, 50, device=DEVICE)
test = data.DataLoader(data.load("synthetic-digits", "test", count=200), 100, shuffle=False, device=DEVICE)
len(train)
%
net = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10)).to(DEVICE)
net
%
nn.summary(net, (1, 28, 28))
%
adam = optim.Adam(net.parameters(), lr=0.01)
%
def step(images, labels):
    adam.zero_grad()
    loss = ops.cross_entropy(net(images), labels)
    loss.backward()
    adam.step()
    return loss
%
step = minidl.compile(step) if COMPILED else step
%
losses = []
for images, labels in train:
    losses.append(step(minidl.Tensor(images), minidl.Tensor(labels)).item())
losses[-1]
%
step.program if COMPILED else losses
%
def step(images, labels):
    adam.zero_grad()
    loss = ops.cross_entropy(net(images), labels, label_smoothing=0.1)
    loss.backward()
    adam.step()
    return loss
step = minidl.compile(step) if COMPILED else step
%
for epoch in range(3):
    for images, labels in train:
        loss = step(minidl.Tensor(images), minidl.Tensor(labels))
loss
%
history = training.fit(net, adam, train, test, epochs=2, compiled=COMPILED, say=None, progress=False)
history[-1]
%
training.evaluate(net, test)[1]
"""


def shown(value):
    """What a notebook shows of a cell's last value: HTML where it has that, else text."""
    as_html = getattr(value, "_repr_html_", None)
    return (as_html and as_html()) or repr(value)


def main(device="cpu", compiled=False):
    names, value = {"DEVICE": device, "COMPILED": compiled, "__name__": "__main__"}, None
    for number, cell in enumerate(CELLS.split("%\n")):
        file = f"<cell {number} of {device}, {compiled}>"
        linecache.cache[file] = len(cell), None, cell.splitlines(keepends=True), file
        *lines, last = cell.strip().split("\n")
        try:
            code, end = compile("\n".join(lines), file, "exec"), compile(last, file, "eval")
        except SyntaxError:                # a statement in the end
            exec(compile(cell, file, "exec"), names)
            continue
        exec(code, names)
        value = eval(end, names)
        assert value is None or shown(value)
    return value
