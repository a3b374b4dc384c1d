"""Two nets and two optimizers, one against the other: the generator learns points on a circle, in compiled steps."""

import numpy as np

import minidl
from minidl import Tensor, nn, ops, optim

random, n = np.random.default_rng(1), 128
generator = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
judge = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
of_generator = optim.SGD(generator.parameters(), lr=0.02, momentum=0.5)
of_judge = optim.SGD(judge.parameters(), lr=0.1, momentum=0.5)


def taken_for(real, x):
    """The binary cross-entropy of the judge's logits."""
    return (ops.maximum(x, 0) - x * real + ((-x.abs()).exp() + 1).log()).mean()


@minidl.compile
def step(points, noise):
    fake = generator(noise)
    judged = taken_for(1.0, judge(points)) + taken_for(0.0, judge(fake.detach()))
    of_judge.zero_grad()
    judged.backward()
    of_judge.step()
    deceived = taken_for(1.0, judge(fake))                 # by the judge as it is now
    of_generator.zero_grad()
    deceived.backward()
    of_generator.step()
    return judged, deceived


for _ in range(3000):
    angle, radius = random.uniform(0, 2 * np.pi, n), random.normal(2, 0.1, n)
    step(Tensor(np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1), dtype="float32"), minidl.randn(n, 4))
with minidl.no_grad():
    made = generator(minidl.randn(1000, 4)).numpy()
radius = np.linalg.norm(made, axis=1)
assert 1.8 < radius.mean() < 2.2 and radius.std() < 0.5 and step.recordings == 2, (radius.mean(), radius.std(), step)
assert np.abs(made.mean(axis=0)).max() < 1, made.mean(axis=0)                  # all around the circle
