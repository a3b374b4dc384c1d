"""A training with dropout and augmentation that is killed in the middle goes on, and ends in the same bits."""

import os
import signal
import subprocess
import sys

import minidl
from minidl import data, nn, optim, training


class KillAt:
    def __init__(self, step):
        self.step = step

    def on_step_end(self, step):
        if step.step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def train(folder, kill_at=None):
    """Go on, or begin; returns the weights and the losses."""
    minidl.manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10))
    sgd, digits = optim.SGD(net.parameters(), lr=0.1, momentum=0.9), data.load("synthetic-digits", "train", count=1000)
    train_loader = data.DataLoader(digits, 50, seed=1, augment=data.Augment(crop=2))
    history = training.fit(net, sgd, train_loader, data.DataLoader(digits, 500), epochs=4, callbacks=KillAt(kill_at),
                           schedule=optim.schedule("cosine", 80), checkpoints=folder, save_every=10, resume=True)
    return [*map(bytes, net.state_dict().values()), *((m["train_loss"], m["test_loss"], m["lr"]) for m in history)]


if sys.argv[1:]:
    train("killed", 55)
else:
    assert subprocess.run([sys.executable, __file__, "to be killed"]).returncode == -signal.SIGKILL
    assert os.path.exists("killed/checkpoint.h5")
    assert train("killed") == train("whole")
