"""A generator and a discriminator that train against each other (Goodfellow et al. 2014), on points of a ring.

The generator makes points of noise. The discriminator tells them from real ones. Each learns from the other's mistakes.

    python examples/adversarial_pair.py [--small]
"""

import sys

import numpy as np

import minidl
from minidl import Tensor, nn, ops, optim


def ring(n, random):
    """n points (n,2) near the circle of radius 2."""
    angle = random.uniform(0, 2 * np.pi, n)
    radius = random.normal(2, 0.1, n)
    return Tensor(np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32))


def main(small):
    minidl.manual_seed(1)
    random, n = np.random.default_rng(1), 128
    generator = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    discriminator = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    of_generator = optim.SGD(generator.parameters(), lr=0.02, momentum=0.5)
    of_discriminator = optim.SGD(discriminator.parameters(), lr=0.1, momentum=0.5)
    real, made = np.ones(n, int), np.zeros(n, int)

    def noise():
        return Tensor(random.standard_normal((n, 4)).astype(np.float32))

    for step in range(600 if small else 6000):
        fake = generator(noise())
        loss = ops.cross_entropy(discriminator(ring(n, random)), real) \
            + ops.cross_entropy(discriminator(fake.detach()), made)        # detach: this step is not the generator's
        of_discriminator.zero_grad()
        loss.backward()
        of_discriminator.step()

        deceived = ops.cross_entropy(discriminator(fake), real)            # the other way round
        of_generator.zero_grad()
        deceived.backward()
        of_generator.step()
        if (step + 1) % (200 if small else 1000) == 0:
            print(f"step {step + 1}: discriminator {loss.item():.3f}, generator {deceived.item():.3f}")

    with minidl.no_grad():
        radius = np.linalg.norm(np.concatenate([generator(noise()).numpy() for _ in range(8)]), axis=1)
    print(f"radius of generated points {radius.mean():.2f} +- {radius.std():.2f}; of real ones 2.00 +- 0.10")


if __name__ == "__main__":
    main("--small" in sys.argv)
