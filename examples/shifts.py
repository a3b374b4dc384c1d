"""Does pooling make a net tolerate shifts? Nets with and without a pooling layer, tested with images moved sideways.

    python examples/shifts.py [--small]

The 2009 report argues so for averages (section 5). All nets have one convolution, and are trained with centred digits.
"""

import sys
from dataclasses import replace

import numpy as np

import minidl
from minidl import data, nn, optim, training

SHIFTS = range(5)                          # pixels, to the left and to the right


def net(kind):
    """16 maps of 28x28; one value for 4x4 of them by a pooling, by leaving out the others, or all of them."""
    minidl.manual_seed(0)
    conv = nn.Conv2d(1, 16, 5, stride=4 if kind == "every fourth" else 1, padding=2)
    pool = {"averages": nn.AvgPool2d(4), "maxima": nn.MaxPool2d(4)}.get(kind, nn.Identity())
    return nn.Sequential(conv, nn.Tanh(), pool, nn.Flatten(), nn.Linear(16 * (28 if kind == "all" else 7) ** 2, 10))


def moved(digits, shift):
    """Digits (n,1,28,28), which have a blank border, moved to the right."""
    return replace(digits, images=np.roll(digits.images, shift, axis=3))


def main(small):
    name = "synthetic-digits"
    try:
        name = name if small else data.load("mnist", "train").name
    except FileNotFoundError as error:
        print(f"{error}\nusing {name}")
    train, test = data.load(name, "train").first(1000 if small else 20000), data.load(name, "test").first(2000)
    accuracy = {}
    for kind in ("all", "every fourth", "averages", "maxima"):
        model = net(kind)
        sgd = optim.SGD(model.parameters(), lr=0.01 if kind == "all" else 0.05, momentum=0.9)
        training.fit(model, sgd, data.DataLoader(train, 64), data.DataLoader(test, 500), epochs=3, say=None,
                     progress=False)
        accuracy[kind] = [np.mean([training.evaluate(model, data.DataLoader(moved(test, way * shift), 500))[1]
                                   for way in (-1, 1)]) for shift in SHIFTS]
        print(f"{kind:12} " + "  ".join(f"{shift} px: {share:.3f}" for shift, share in zip(SHIFTS, accuracy[kind])))
    print(f"3 pixels aside on {name}: all {accuracy['all'][3]:.3f}, averages {accuracy['averages'][3]:.3f}, maxima "
          f"{accuracy['maxima'][3]:.3f}")


if __name__ == "__main__":
    main("--small" in sys.argv)
