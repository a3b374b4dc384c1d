"""The largest eigenvalues of a net's Hessian, by Lanczos' iteration (Ghorbani et al. 2019, section 2): it needs
products of the Hessian and a vector v only, the gradient of the gradient's product with v. Both in a compiled step.

Figure to reach, for LeNet-5 on generated digits: residuals of the ten largest below 1 % of them; the first is what a
difference of two gradients gives, to 1 %, and over 5 times the tenth.

    python examples/hessian.py [--small]
"""
import sys

import numpy as np

import minidl
import zoo
from minidl import Tensor, data, ops, optim, training


def lanczos(product, size, steps):
    """Eigenvalues and unit vectors of a symmetric matrix, in a space that its products make; the largest first."""
    basis, matrix, q = np.zeros((steps, size)), np.zeros((steps, steps)), np.random.default_rng(1).normal(size=size)
    for i in range(steps):
        basis[i] = q / np.linalg.norm(q)
        q = product(basis[i])
        matrix[:, i] = basis @ q
        for _ in range(2):                             # twice, so that rounding leaves them orthogonal
            q = q - (basis @ q) @ basis
    values, vectors = np.linalg.eigh(matrix, "U")
    return list(zip(values, vectors.T @ basis))[::-1]


def main(small):
    train, test = (data.DataLoader(data.load("synthetic-digits", split).first(500 if small else None), 100, seed=1,
                                   mean=[0.5], std=[0.5], padding=2) for split in ("train", "test"))
    minidl.manual_seed(1)
    net = zoo.build("lenet5")
    training.fit(net, optim.SGD(net.parameters(), lr=0.1, momentum=0.9), train, test, epochs=1 if small else 3)
    images, labels = (Tensor(np.concatenate(arrays)) for arrays in zip(*test))
    weights = list(net.parameters())

    @minidl.compile
    def both(v):
        g = minidl.grad(ops.cross_entropy(net(images), labels), weights, create_graph=True)
        g = ops.concatenate([each.flatten() for each in g])
        return g.detach(), ops.concatenate([each.flatten() for each in minidl.grad((g * v).sum(), weights)])

    def computed(v, which, step=0.0):                  # 0: the gradient, 1: its product; at the weights + step * v
        with minidl.no_grad():
            for w, part in zip(weights, np.split(v, np.cumsum([w.size for w in weights])[:-1])):
                w += Tensor((step * part).reshape(w.shape).astype(np.float32))
        return both(Tensor(v.astype(np.float32)))[which].numpy().astype(np.float64)

    found = lanczos(lambda v: computed(v, 1), sum(w.size for w in weights), 10 if small else 80)[:3 if small else 10]
    print("eigenvalues", *(f"{value:.3f}" for value, _ in found))
    worst, (first, v) = max(np.linalg.norm(computed(v, 1) - value * v) / value for value, v in found), found[0]
    print(f"worst residual {worst:.5f}; first {first:.4f}, by a difference of gradients "
          f"{v @ (computed(v, 0, 0.01) - computed(v, 0, -0.02)) / 0.02:.4f}; first by last {first / found[-1][0]:.1f}")


if __name__ == "__main__":
    main("--small" in sys.argv)
