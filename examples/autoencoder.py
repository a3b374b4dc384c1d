"""An autoencoder: 28x28 pixels through 32 numbers and back. Prints a digit beside what is left of it.

    python examples/autoencoder.py [--small]
"""

import sys

import numpy as np

import minidl
from minidl import data, nn, ops, optim


def drawn(image):
    """Pixels in [0, 1], (28, 28), as lines of text: every second row."""
    return ["".join(" .:*#"[min(int(5 * max(pixel, 0)), 4)] for pixel in row) for row in image[::2]]


def main(small):
    train, test = (data.load("synthetic-digits", split) for split in ("train", "test"))
    batches = data.DataLoader(train.first(2000 if small else None), 20, seed=1)      # pixels in [0, 1]
    images, _ = next(iter(data.DataLoader(test, 500, shuffle=False)))

    minidl.manual_seed(1)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.Tanh(), nn.Linear(128, 32))
    decoder = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 784))
    both = nn.Sequential(encoder, decoder)
    sgd = optim.SGD(both.parameters(), lr=2.0, momentum=0.9)
    for epoch in range(3 if small else 8):
        for pixels, _ in batches:
            x = minidl.Tensor(pixels)
            loss = ops.mse_loss(both(x), x.flatten(1))
            sgd.zero_grad()
            loss.backward()
            sgd.step()
        print(f"epoch {epoch + 1}: loss of the last batch {loss.item():.4f}")

    with minidl.no_grad():
        back = both(minidl.Tensor(images)).numpy().reshape(images.shape)
    for line, copy in zip(drawn(images[0, 0]), drawn(back[0, 0])):
        print(line, "|", copy)
    print(f"test error {np.mean((back - images)**2):.4f}; of the mean image "
          f"{np.mean((images.mean(axis=0) - images)**2):.4f}")


if __name__ == "__main__":
    main("--small" in sys.argv)
