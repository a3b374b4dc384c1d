"""What a terminal and a notebook show: reprs, formats, HTML, and a progress bar in a notebook."""

import minidl
from minidl import Tensor, data, nn, ops, optim, training

minidl.manual_seed(1)
net = nn.Sequential(c1=nn.Conv2d(1, 4, 5), act1=nn.Tanh(), flat=nn.Flatten(), output=nn.Linear(2304, 10))
sgd = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
digits = data.load("synthetic-digits", "train", count=300)
loader = data.DataLoader(digits, 100, seed=1)


@minidl.compile
def step(images, labels):
    sgd.zero_grad()
    loss = ops.cross_entropy(net(images), labels)
    loss.backward()
    sgd.step()
    return loss


loss = [step(Tensor(images), Tensor(labels)) for images, labels in loader][-1]
assert f"{loss:.4f}" == f"{loss.item():.4f}" and f"{loss:>10.2e}" == f"{loss.item():>10.2e}"
for thing, words in ((digits, "300 images (1, 28, 28)"), (loader, "3 batches of 100"), (sgd, "momentum=0.9"),
                     (net, "(c1): Conv2d(1, 4"), (step, "2 recordings"), (step.program, "program of"),
                     (Tensor([1.0, 2.0]), "[1., 2.]"), (nn.summary(net, (1, 28, 28)), "23,154")):
    assert words in repr(thing) and " object at 0x" not in repr(thing), repr(thing)
for thing, words in ((minidl.eye(2), "<td>1</td>"), (net, "23,154 parameters"), (step.program, "<table>")):
    assert words in thing._repr_html_(), thing
lines = []
training.fit(net, sgd, loader, loader, epochs=2, say=lines.append)
assert len(lines) == 2 and lines[0].startswith("epoch  1/2: loss ")
