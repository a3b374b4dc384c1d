"""A small convolutional net learns Fashion-MNIST (generated digits where it cannot be had), is saved and loaded, and
classifies one picture of bytes."""

import numpy as np

import minidl
from minidl import data, nn, ops, optim, training

train, test, _ = data.resolve("auto", "fashion-mnist")
train, test = train.first(4000), test.first(1000)
mean, std = data.channel_statistics(train)
batches = data.DataLoader(train, 50, seed=1, mean=mean, std=std)
tests = data.DataLoader(test, 500, shuffle=False, mean=mean, std=std)


def new():
    return nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 5), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10))


minidl.manual_seed(1)
net = new()
last = training.fit(net, optim.SGD(net.parameters(), lr=0.02, momentum=0.9), batches, tests, epochs=2)[-1]
assert last["test_accuracy"] > 0.6
minidl.save(net, "fashion.h5", preprocessing=batches.preprocessing, classes=train.classes)

# ---------------------------------------------------------------- another program, with nothing but the file
other = new().eval()
minidl.load(other, "fashion.h5")
known = minidl.weights.read_metadata("fashion.h5")
answers = []
for image in test.images[:200]:                            # each (1, 28, 28), uint8
    one = data.Dataset("one", "test", image[None], np.zeros(1, int))
    (pixels, _), = data.DataLoader(one, 1, **known["preprocessing"])
    with minidl.no_grad():
        probabilities = ops.softmax(other(minidl.Tensor(pixels)), axis=1)
    answers.append(known["classes"][probabilities.argmax(axis=1).item()])
right = np.mean([answer == test.classes[label] for answer, label in zip(answers, test.labels)])
assert abs(right - last["test_accuracy"]) < 0.1, right
