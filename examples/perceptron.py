"""The perceptron in the plane: points of two kinds, and the line that it learns between them; drawn to perceptron.png.

    python examples/perceptron.py [--small]
"""

import sys

import numpy as np

import minidl
from minidl import Tensor, nn, ops, optim


def points(count, random):
    """Points (count,2) on either side of the line x1 + 2 x2 = 1, none near it, and their sides (count,1), +1 or -1."""
    x = random.uniform(-3, 3, (8 * count, 2)).astype(np.float32)
    x = x[np.abs(x @ [1, 2] - 1) > 0.1][:count]
    return x, np.sign(x @ [1, 2] - 1).astype(np.float32)[:, None]


def draw(x, side, lines):
    """The points, and the line w . x + b = 0 after each pass."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return print("no picture: it needs matplotlib; run pip install matplotlib")
    figure = Figure((5.2, 5.8), layout="constrained")
    axes = figure.add_subplot(xlim=(-3, 3), ylim=(-3, 3), aspect="equal", xlabel="$x_1$", ylabel="$x_2$",
                              title=f"A perceptron's line before (dashed) and after {len(lines) - 1} passes")
    grid, (w, b) = np.meshgrid(np.linspace(-3, 3, 300), np.linspace(-3, 3, 300)), lines[-1]
    axes.contourf(*grid, w[0] * grid[0] + w[1] * grid[1] + b, levels=[-100, 0, 100], colors=["#fbe3d0", "#d3e6f5"])
    for number, (w, b) in enumerate(lines):
        last = number == len(lines) - 1
        axes.contour(*grid, w[0] * grid[0] + w[1] * grid[1] + b, levels=[0], colors="black" if last else "gray",
                     linewidths=2 if last else 1, linestyles="solid" if last else "dashed")
    for value, colour, marker in ((1, "#0072b2", "o"), (-1, "#c44e00", "s")):
        axes.scatter(*x[side[:, 0] == value].T, color=colour, marker=marker, edgecolors="white", zorder=3,
                     label=f"side {value:+}")
    figure.legend(loc="outside lower center", ncols=2)
    figure.savefig("perceptron.png", dpi=150)


def main(small):
    x, side = points(60 if small else 200, np.random.default_rng(3))
    minidl.manual_seed(1)
    net = nn.Linear(2, 1)
    sgd, lines, wrong = optim.SGD(net.parameters(), lr=0.005), [(net.weight.tolist()[0], net.bias.item())], len(x)
    while wrong and len(lines) < 100:
        for i in range(len(x)):            # Rosenblatt's rule, as the gradient of a loss: a point on the wrong side
            sgd.zero_grad()                # turns the line towards itself, any other leaves it
            ops.relu(-net(Tensor(x[i:i + 1])) * side[i].item()).mean().backward()
            sgd.step()
        wrong = int((np.sign(net(Tensor(x)).numpy()) != side).sum())
        lines.append((net.weight.tolist()[0], net.bias.item()))
    draw(x, side, lines)
    print(f"after {len(lines) - 1} passes {wrong} of {len(x)} points are on the wrong side")


if __name__ == "__main__":
    main("--small" in sys.argv)
