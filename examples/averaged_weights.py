"""Averaged weights: an exponential moving average of all parameters, beside the parameters themselves.

    python examples/averaged_weights.py [--small]
"""

import sys

import minidl
from minidl import Tensor, data, nn, ops, optim, training


def main(small):
    train, test = (data.load("synthetic-digits", split) for split in ("train", "test"))
    batches = data.DataLoader(train.first(2000) if small else train, 20, seed=1, mean=[0.5], std=[0.5])
    tests = data.DataLoader(test, 500, shuffle=False, mean=[0.5], std=[0.5])
    minidl.manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    adam, average = optim.Adam(net.parameters(), lr=0.01), optim.EMA(net, decay=0.98)

    @minidl.compile                                    # the average is a launch of the step
    def step(images, labels):
        adam.zero_grad()
        ops.cross_entropy(net(images), labels).backward()
        adam.step()
        average.update()

    for epoch in range(3 if small else 10):
        for images, labels in batches:
            step(Tensor(images), Tensor(labels))
        last = training.evaluate(net, tests)[1]
        with average.applied():                        # within, the net has the averages as its weights
            mean = training.evaluate(net, tests)[1]
        print(f"epoch {epoch + 1}: test accuracy {last:.3f}, of the averaged weights {mean:.3f}")


if __name__ == "__main__":
    main("--small" in sys.argv)
