"""A training that is stopped in the middle of an epoch goes on, and ends in the same bits.

    python examples/resume.py [--small]

For a run of your own it is enough to pass `checkpoints=folder, resume=True`, and to start the program again.
"""

import os
import signal
import sys
import tempfile

import numpy as np

import minidl
from minidl import data, nn, optim, training


class StopAt:
    """Sends this process SIGTERM after a step, as a queue that needs the machine would."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, step):
        if step.step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def train(images, epochs, folder, callbacks=()):
    """Go on from the folder's newest checkpoint, else begin; returns the weights at the end."""
    minidl.manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 10))
    sgd = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    loaders = data.DataLoader(images, 100, seed=1), data.DataLoader(images.first(500), 500, shuffle=False)
    training.fit(net, sgd, *loaders, epochs=epochs, callbacks=callbacks, checkpoints=folder, resume=True)
    return net.state_dict()


def main(small):
    images = data.load("synthetic-digits", "train").first(1000 if small else None)
    epochs, middle = (3, 15) if small else (5, 250)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        print("without a stop:")
        whole = train(images, epochs, one)
        print(f"stopped after step {middle}:")
        try:
            train(images, epochs, other, [StopAt(middle)])
        except training.Interrupted as stop:
            print(f"interrupted: {stop}")
        print("started again:")
        resumed = train(images, epochs, other, [StopAt(None)])
    same = all(np.array_equal(whole[name], resumed[name]) for name in whole)
    print(f"the weights are {'the same' if same else 'different'}, bit by bit")


if __name__ == "__main__":
    main("--small" in sys.argv)
