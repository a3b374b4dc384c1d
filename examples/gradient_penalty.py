"""A generator of digits and its critic (WGAN-GP; Gulrajani et al. 2017, algorithm 1). The critic's gradients shall have
norm 1 between real and made images: the penalty is a function of a gradient. Both steps are compiled.

Figure to reach: a mean norm within 0.2 of 1, and digits to which a classifier gives a score of at least 5 of 10: exp of
the mean divergence of an image's labels from those of all images (Salimans et al. 2016).

    python examples/gradient_penalty.py [--small]
"""
import sys

import numpy as np

import minidl
from minidl import Tensor, data, nn, ops, optim, training


def main(small):
    minidl.manual_seed(1)
    n, steps = 32, 20 if small else 1500
    train, test = (data.DataLoader(data.load("synthetic-digits", split), size, seed=1, drop_last=True, mean=[0.5],
                                   std=[0.5]) for split, size in (("train", n), ("test", 500)))
    generator = nn.Sequential(nn.ConvTranspose2d(32, 32, 7), nn.ReLU(), nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(),
                              nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Tanh())
    critic, classifier = (nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(),
        nn.Linear(32 * 7 * 7, outputs)) for outputs in (1, 10))
    makes, judges = (optim.Adam(net.parameters(), lr=0.0005, betas=(0.5, 0.9)) for net in (generator, critic))

    @minidl.compile
    def judge(images, z, share):
        made = generator(z).detach()
        between = (made + share * (images - made)).detach()
        between.requires_grad = True
        gradient, = minidl.grad(critic(between).sum(), between, create_graph=True)
        norms, distance = ops.norm(gradient.flatten(1), axis=1), critic(images).mean() - critic(made).mean()
        judges.zero_grad()
        (10 * ((norms - 1) ** 2).mean() - distance).backward()
        judges.step()
        return norms.mean(), distance

    @minidl.compile
    def make(z):
        makes.zero_grad()
        (-critic(generator(z)).mean()).backward()
        makes.step()

    real = (images for _ in range(steps) for images, _ in train)
    for _ in range(steps):
        for _ in range(5):
            norm, distance = judge(Tensor(next(real)), minidl.randn(n, 32, 1, 1), minidl.rand(n, 1, 1, 1))
        make(minidl.randn(n, 32, 1, 1))
    print(f"after {steps} steps: mean norm {norm.item():.2f}, distance {distance.item():.2f}")
    training.fit(classifier, optim.Adam(classifier.parameters()), train, test, epochs=1 if small else 3, say=None)
    for of, images in ("made", generator(minidl.randn(500, 32, 1, 1))), ("real", Tensor(next(iter(test))[0])):
        p = ops.softmax(classifier(images), axis=1).numpy()
        print(f"score of {of} digits {np.exp((p * np.log(p / p.mean(axis=0) + 1e-12)).sum(axis=1).mean()):.2f}")


if __name__ == "__main__":
    main("--small" in sys.argv)
