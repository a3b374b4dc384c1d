"""Fashion-MNIST from scratch: a net and a training loop of your own.

    python examples/fashion_mnist.py            # 5 epochs; generated digits where Fashion-MNIST cannot be had
    python examples/fashion_mnist.py --small    # 2,000 images
"""

import sys

import minidl
from minidl import data, nn, ops, optim


class Net(nn.Module):
    """Two convolutions, each with max pooling, and two linear layers: images (n,1,28,28) -> logits (n,10)."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 5), nn.Conv2d(8, 16, 5)
        self.hidden, self.output = nn.Linear(16 * 4 * 4, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = ops.max_pool2d(ops.relu(self.conv1(x)), size=2)           # (n, 8, 12, 12)
        x = ops.max_pool2d(ops.relu(self.conv2(x)), size=2)           # (n, 16, 4, 4)
        return self.output(ops.relu(self.hidden(x.flatten(1))))


def right(net, batches):
    """The share of images whose largest logit is at their label."""
    hits = count = 0
    with minidl.no_grad():
        for images, labels in batches:
            hits += int((net(minidl.Tensor(images)).argmax(axis=1).numpy() == labels).sum())
            count += len(labels)
    return hits / count


def main(small):
    train, test, note = data.resolve("auto", "fashion-mnist")
    print(note or f"{train.name}: {len(train)} images from {train.source}")
    train, test = train.first(2000 if small else None), test.first(500 if small else None)
    mean, std = data.channel_statistics(train)
    batches = data.DataLoader(train, 64, seed=1, mean=mean, std=std)
    tests = data.DataLoader(test, 500, shuffle=False, mean=mean, std=std)

    minidl.manual_seed(1)
    net = Net()
    sgd = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(1 if small else 5):
        for images, labels in batches:
            loss = ops.cross_entropy(net(minidl.Tensor(images)), labels)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
        print(f"epoch {epoch + 1}: loss of the last batch {loss.item():.3f}, test accuracy {right(net, tests):.3f}")
    minidl.save(net, "fashion.h5")


if __name__ == "__main__":
    main("--small" in sys.argv)
