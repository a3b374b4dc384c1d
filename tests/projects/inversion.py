"""An input is optimised until a trained net is sure that it is a certain digit.
Figure: the mean probability that the net gives, of ten such inputs, one of each digit."""

import minidl
from minidl import data, nn, optim, training
from minidl import ops as F


def main(device="cpu", compiled=False):
    minidl.manual_seed(0)
    train = data.DataLoader(data.load("synthetic-digits", "train", count=600), 50, device=device)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.Tanh(), nn.Linear(32, 10)).to(device)
    training.fit(net, optim.Adam(net.parameters(), lr=0.01), train, train, epochs=3, compiled=compiled, say=None,
                 progress=False)
    net.eval().requires_grad_(False)
    x = minidl.zeros(10, 1, 28, 28, device=device, requires_grad=True)
    target = minidl.arange(10, device=device)
    adam = optim.Adam([x], lr=0.05)

    def step():
        adam.zero_grad()
        loss = F.cross_entropy(net(x), target) + 0.01 * x.abs().mean()
        loss.backward()
        adam.step()
        with minidl.no_grad():
            x.clamp_(0, 1)

    step = minidl.compile(step) if compiled else step
    for _ in range(40):
        step()
    return net(x).softmax(dim=1).gather(1, target.unsqueeze(1)).mean().item()
