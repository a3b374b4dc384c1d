"""A net as the solution of a differential equation (Raissi et al. 2019, appendix A.1): Burgers' equation
u_t + u u_x = nu u_xx for nu = 0.01 / pi and u(0, x) = -sin(pi x), a wave that becomes a steep front at x = 0.
The loss holds the net's second derivatives by its input; a compiled step takes its gradient.

Figure to reach: a relative error below 0.05, against the integral that solves the equation (Cole, Hopf).

    python examples/burgers.py [--small]
"""
import sys

import numpy as np

import minidl
from minidl import Tensor, nn, ops, optim

NU = 0.01 / np.pi


def exact(t, x):
    """The integral, by Gauss-Hermite quadrature; t over 0."""
    z, weight = np.polynomial.hermite.hermgauss(200)
    y = x[..., None] - z * np.sqrt(4 * NU * t)[..., None]
    share = weight * np.exp(-np.cos(np.pi * y) / (2 * np.pi * NU))
    return -(np.sin(np.pi * y) * share).sum(axis=-1) / share.sum(axis=-1)


def main(small):
    minidl.manual_seed(1)
    random, points, steps = np.random.default_rng(1), 200 if small else 1000, 1000 if small else 8000
    net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(),
                        nn.Linear(32, 1))
    adam = optim.Adam(net.parameters(), lr=0.003)

    def u(t, x):
        return (1 - x * x) * net(ops.concatenate([t, x], axis=1))          # 0 at both ends, whatever the net says

    @minidl.compile
    def step(t, x, first, first_u):
        t, x = t.detach(), x.detach()
        t.requires_grad = x.requires_grad = True
        y = u(t, x)
        u_t, u_x = minidl.grad(y.sum(), (t, x), create_graph=True)         # of each point: no other has part in it
        u_xx, = minidl.grad(u_x.sum(), x, create_graph=True)
        loss = ((u_t + y * u_x - NU * u_xx)**2).mean() + 10 * ops.mse_loss(u(minidl.zeros_like(first), first), first_u)
        adam.zero_grad()
        loss.backward()
        adam.step()
        return loss

    for i in range(steps):                             # new points each time
        adam.lr = 0.0015 * (1 + np.cos(np.pi * i / steps))
        at, t, x = (random.uniform(low, 1, (count, 1)) for low, count in ((-1, points // 5), (0, points), (-1, points)))
        loss = step(*(Tensor(each.astype(np.float32)) for each in (t, x, at, -np.sin(np.pi * at))))
    t, x = (each.reshape(-1, 1) for each in np.meshgrid(np.linspace(0.01, 1, 100), np.linspace(-1, 1, 201)))
    found, right = u(Tensor(t.astype(np.float32)), Tensor(x.astype(np.float32))).numpy(), exact(t, x)
    print(f"loss {loss.item():.5f}, relative error {np.linalg.norm(found - right) / np.linalg.norm(right):.4f}")


if __name__ == "__main__":
    main("--small" in sys.argv)
