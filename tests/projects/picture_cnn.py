"""A convolutional net on pictures: batch normalisation, dropout, augmentation, one cycle, the best weights kept.
Figure: the test accuracy of these."""

import tempfile

import minidl
from minidl import data, nn, optim, training


def main(device="cpu", compiled=False):
    minidl.manual_seed(0)
    train = data.DataLoader(data.load("synthetic-digits", "train", count=1000), 50, augment=data.Augment(crop=1),
                            mean=0.5, std=0.5, device=device)
    test = data.DataLoader(data.load("synthetic-digits", "test", count=200), 100, shuffle=False, mean=0.5, std=0.5,
                           device=device)
    net = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
                        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                        nn.Dropout(0.2), nn.Linear(16 * 7 * 7, 10)).to(device)
    sgd = optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    with tempfile.TemporaryDirectory() as folder:
        training.fit(net, sgd, train, test, epochs=3, schedule=optim.one_cycle(60), compiled=compiled, say=None,
                     progress=False, callbacks=training.SaveBest(net, f"{folder}/best.h5", "test_accuracy"))
        minidl.load(net, f"{folder}/best.h5")
    return training.evaluate(net, test)[1]
