"""A critic whose gradient by its input is kept near 1 (Gulrajani et al. 2017): a second derivative.
Figure: the mean norm of that gradient's distance from 1, below 1."""

import minidl
from minidl import nn, optim


def main(device="cpu", compiled=False):
    minidl.manual_seed(0)
    critic = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    adam = optim.Adam(critic.parameters(), lr=0.01)

    def step(x):
        x = x.detach().requires_grad_()
        score = critic(x).sum()
        score.backward(create_graph=True)
        penalty = ((x.grad.norm(dim=1) - 1) ** 2).mean()
        adam.zero_grad()
        (penalty - score).backward()
        adam.step()
        return penalty

    step = minidl.compile(step) if compiled else step
    for _ in range(100):
        penalty = step(minidl.randn(64, 2, device=device))
    return 1 - penalty.item()
