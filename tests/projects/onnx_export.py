"""A trained net as an ONNX file, which onnxruntime runs for any number of pictures.
Figure: 1 minus the largest difference."""

import tempfile

import numpy as np

import minidl
from minidl import data, nn, optim, training


def main(device="cpu", compiled=False):
    import onnxruntime

    minidl.manual_seed(0)
    train = data.DataLoader(data.load("synthetic-digits", "train", count=200), 50, device=device)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                        nn.Linear(4 * 13 * 13, 10)).to(device)
    training.fit(net, optim.Adam(net.parameters(), lr=0.01), train, train, epochs=1, compiled=compiled, say=None,
                 progress=False)
    net.eval().to("cpu")
    x = np.random.default_rng(0).random((7, 1, 28, 28), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        minidl.onnx.export(net, minidl.Tensor(x[:2]), f"{folder}/net.onnx")
        session = onnxruntime.InferenceSession(f"{folder}/net.onnx")
        theirs, = session.run(None, {session.get_inputs()[0].name: x})
    return float(1 - abs(theirs - net(minidl.Tensor(x)).detach().numpy()).max())
