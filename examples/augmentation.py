"""Augmentation: few pictures, shown in another way in each epoch, against the same pictures as they are.

    python examples/augmentation.py [--small]
"""

import sys

import minidl
from minidl import data, nn, optim, training


def accuracy(few, test, epochs, augment):
    """Of a net trained on few images, with or without augmentation."""
    mean, std = data.channel_statistics(few)
    train = data.DataLoader(few, 50, seed=1, mean=mean, std=std, augment=augment)
    tests = data.DataLoader(test, 500, shuffle=False, mean=mean, std=std)          # as they are
    minidl.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
                        nn.Flatten(), nn.Linear(256, 10))
    sgd = optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    last = training.fit(net, sgd, train, tests, epochs=epochs, say=None)[-1]
    print(f"{augment}: training accuracy {last['train_accuracy']:.3f}, test accuracy {last['test_accuracy']:.3f}")
    return last["test_accuracy"]


def main(small):
    train, test = (data.load("synthetic-digits", split) for split in ("train", "test"))
    few, epochs = train.first(300), 12 if small else 60
    plain = accuracy(few, test, epochs, None)
    augmented = accuracy(few, test, epochs, data.Augment(crop=3))                  # digits are not mirrored
    print(f"{len(few)} images, {epochs} epochs: test accuracy {plain:.3f}, augmented {augmented:.3f}")


if __name__ == "__main__":
    main("--small" in sys.argv)
