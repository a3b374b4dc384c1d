"""A critic of real and of made points whose gradient by its input is kept near 1 (Gulrajani et al. 2017): a second
derivative. Figure: 1 less the mean squared distance of that gradient's norm from 1."""

import minidl
from minidl import nn, optim


def main(device="cpu", compiled=False):
    minidl.manual_seed(0)
    critic = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    adam = optim.Adam(critic.parameters(), lr=0.01)

    def step(real, made):
        share = minidl.rand(real.shape[0], 1, device=device)
        x = (share * real + (1 - share) * made).detach().requires_grad_()
        critic(x).sum().backward(create_graph=True)
        penalty = ((x.grad.norm(dim=1) - 1) ** 2).mean()
        adam.zero_grad()
        (critic(made).mean() - critic(real).mean() + 10 * penalty).backward()
        adam.step()
        return penalty

    step = minidl.compile(step) if compiled else step
    for _ in range(100):
        penalty = step(minidl.randn(64, 2, device=device) + 2, minidl.randn(64, 2, device=device))
    return 1 - penalty.item()
