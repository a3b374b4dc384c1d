"""Early stopping, the best weights, and a training that is stopped, resumed, and ends as one that was not.
Figure: by how much the best error is below the last one's, at least 0; minus 1 if the resumed run ends elsewhere."""

import tempfile

import numpy as np

import minidl
from minidl import data, nn, ops, optim, training


def main(device="cpu", compiled=False):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 20)).astype(np.float32)
    y = (x[:, :1] + rng.normal(size=(80, 1))).astype(np.float32)           # much noise: a net soon learns it by heart
    train = data.DataLoader((x[:40], y[:40]), 10, device=device)
    test = data.DataLoader((x[40:], y[40:]), 40, shuffle=False, device=device)

    def run(folder, epochs, resume=False):
        minidl.manual_seed(0)
        net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
        adam = optim.Adam(net.parameters(), lr=0.01)
        callbacks = [training.EarlyStop("test_loss", patience=4),
                     training.SaveBest(net, f"{folder}/best.h5", "test_loss")]
        history = training.fit(net, adam, train, test, epochs=epochs, loss=ops.mse_loss, callbacks=callbacks,
                               checkpoints=folder, resume=resume, compiled=compiled, say=None, progress=False)
        return net, history

    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as parts:
        net, history = run(whole, 50)
        assert len(history) < 50, history
        run(parts, 2)
        resumed, again = run(parts, 50, resume=True)
        last = history[-1]["test_loss"]
        if not all(np.array_equal(a.detach().cpu().numpy(), b.detach().cpu().numpy())
                   for a, b in zip(net.parameters(), resumed.parameters())) or len(again) != len(history):
            return -1.0
        minidl.load(net, f"{whole}/best.h5")
        return last - training.evaluate(net, test, loss=ops.mse_loss)[0]
