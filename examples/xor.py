"""XOR in the plane: no line separates its points; two layers do. What both nets say of each place is drawn to xor.png.

    python examples/xor.py [--small]
"""

import sys

import numpy as np

import minidl
from minidl import Tensor, data, nn, optim, training


def points(count, random):
    """Points (count,2) around four corners; class 1 where the signs of a corner's coordinates differ."""
    corners = random.choice([-1, 1], (count, 2))
    x = corners + 0.3 * random.standard_normal((count, 2))
    return x.astype(np.float32), (corners[:, 0] != corners[:, 1]).astype(np.int64)


def draw(nets, right, x, labels):
    """Points over the class that each net gives to every place, and the line of each of its units."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return print("no picture: it needs matplotlib; run pip install matplotlib")
    grid = np.meshgrid(np.linspace(-2.5, 2.5, 300), np.linspace(-2.5, 2.5, 300))
    places = Tensor(np.stack(grid, axis=2).reshape(-1, 2).astype(np.float32))
    figure = Figure((9, 4.9), layout="constrained")
    for axes, (name, net), share in zip(figure.subplots(1, 2), nets.items(), right):
        classes = net(places).argmax(axis=1).numpy().reshape(300, 300)
        axes.contourf(*grid, classes, levels=[-0.5, 0.5, 1.5], colors=["#fbe3d0", "#d3e6f5"])
        if len(net) > 1:
            for unit in net[0](places).numpy().T:
                axes.contour(*grid, unit.reshape(300, 300), levels=[0], colors="black", linestyles="dashed")
        for label, colour, marker in ((0, "#c44e00", "s"), (1, "#0072b2", "o")):
            axes.scatter(*x[labels == label].T, 20, color=colour, marker=marker, edgecolors="white", linewidths=0.5,
                         label=f"class {label}")
        axes.set(title=f"{name}: {100 * share:.1f} % right", xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig("xor.png", dpi=150)


def main(small):
    random = np.random.default_rng(1)
    x, labels = points(200, random)
    train, test = data.DataLoader(points(400 if small else 2000, random), 20), data.DataLoader((x, labels), 200)
    minidl.manual_seed(4)
    nets = {"one layer": nn.Sequential(nn.Linear(2, 2)),
            "two layers (dashed: hidden units)": nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))}
    right = [training.fit(net, optim.SGD(net.parameters(), lr=0.1, momentum=0.9), train, test, epochs=8,
                          say=None)[-1]["test_accuracy"] for net in nets.values()]
    draw(nets, right, x, labels)
    print(f"test accuracy of one layer {right[0]:.3f}, of two {right[1]:.3f}")


if __name__ == "__main__":
    main("--small" in sys.argv)
