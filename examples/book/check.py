"""Run a file of this folder without a GPU, and compare its results with minidl's; without a name, all files.

    python examples/book/check.py fig16_13.cu

The kernels run on the emulator (Linux, g++), which also says where threads race or read what was not set.
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np

import minidl
from minidl import Tensor, ops
from minidl.lab.emulator.watch import Kernel

HERE = Path(__file__).parent
RNG = np.random.default_rng(0)

# A layer whose maps take 2 x 2 tiles, all but one of which are partial
N, M, C, H, W, K, H_OUT, W_OUT = 2, 2, 3, 19, 20, 3, 17, 18
X, F = RNG.standard_normal((N, C, H, W), np.float32), RNG.standard_normal((M, C, K, K), np.float32)
LAYER = {"C": C, "M": M, "H": H, "W": W, "K": K, "W_grid": 2, "X": X, "F": F, "Y": (N, M, H_OUT, W_OUT)}
UNROLL = {"C": C, "H": H, "W": W, "K": K, "X": X[0], "X_unroll": (C * K * K * H_OUT * W_OUT,)}

# The report's layer, with 2 images and as many filters as a block takes; its averages and their gradients
IMAGES, FILTERS = RNG.standard_normal((2, 3, 32, 32), np.float32), RNG.standard_normal((3, 3, 8, 8), np.float32)
HIDDEN, MATRIX = RNG.standard_normal((2, 16, 32, 32), np.float32), RNG.standard_normal((64, 16), np.float32)


def convolved():
    return ops.conv2d(Tensor(X), Tensor(F)).numpy()


def unrolled():
    """(C * K * K, H_OUT * W_OUT) of the first image."""
    windows = np.lib.stride_tricks.sliding_window_view(X[0], (K, K), axis=(1, 2))     # (C, H_OUT, W_OUT, K, K)
    return windows.transpose(0, 3, 4, 1, 2).reshape(C * K * K, H_OUT * W_OUT)


def report(images, filters):
    return ops.conv2d(images, filters, padding=((4, 3), (4, 3)))


def gradients():
    """(images, filters, colours, 8, 8): those of each image."""
    weights = [Tensor(np.zeros((16, 3, 8, 8), np.float32), requires_grad=True) for _ in IMAGES]
    for image, weight, hidden in zip(IMAGES, weights, HIDDEN):
        report(Tensor(image[None]), weight).backward(Tensor(hidden[None]))
    return np.stack([weight.grad.numpy() for weight in weights])


def averages():
    return ops.avg_pool2d(Tensor(HIDDEN), 4).numpy()


def supersampled():
    """As the report has it: the derivative of an average would be a sixteenth."""
    return np.kron(MATRIX.T.reshape(16, 1, 8, 8), np.ones((4, 4), np.float32))


# File -> grid, block, arguments, of which the last is the result, what it must be, and bytes of shared memory
KERNELS = {
    "fig16_12.cu": ((N, M, 4), (16, 16), LAYER, convolved, 0),
    "fig16_13.cu": ((N, M, 4), (16, 16), LAYER, convolved, 4 * (18 * 18 + 3 * 3)),
    "fig16_15_4th.cu": ((M, 4, N), (16, 16), LAYER, convolved, 0),
    "fig16_18.cu": (4, 256, UNROLL, lambda: unrolled().T, 0),
    "fig16_18_4th.cu": (4, 256, UNROLL, unrolled, 0),
    "report2009_fig5.cu": ((3, 2), (32, 8), {"images": IMAGES, "filters": FILTERS, "targets": (2, 3, 32, 32)},
                           lambda: report(Tensor(IMAGES), Tensor(FILTERS)).numpy(), 0),
    "report2009_fig7.cu": (2 * 16, (32, 8), {"plates": HIDDEN, "targets": (2, 16, 8, 8)}, averages, 0),
    "report2009_fig10.cu": ((1, 4), (16, 16), {"derivatives": MATRIX, "F": 1, "N": 16, "plates": (16, 1, 32, 32)},
                            supersampled, 0),
    "report2009_fig12.cu": ((1, 2), (8, 8, 8), {"images": IMAGES, "hidden": HIDDEN, "targets": (2, 16, 3, 8, 8)},
                            gradients, 0)}


def of_kernel(file):
    grid, block, arguments, expected, shared = KERNELS[file]
    done = Kernel(HERE / file).run(grid, block, arguments, shared=shared)
    assert not done.faults, done.faults[0]
    error = np.abs(done.arrays[[*arguments][-1]].reshape(expected().shape) - expected()).max()
    assert error < 1e-3, f"an error of {error:.2g}"


def imported(file):
    spec = importlib.util.spec_from_file_location(Path(file).stem, HERE / file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def of_loops(file):
    for name, got, expected in imported(file).beside_minidl():
        assert np.allclose(got, expected), f"{name}: an error of {np.abs(got - expected).max():.2g}"


def of_host_code(file):
    """One kernel with tiles, and one with products; `minidl check-conv` does more."""
    imported(file)
    for name in ("fig16_12", "fig16_18"):
        minidl.check_conv(name, shapes=0)


CHECKS = {"loops.py": of_loops, "pmpp.py": of_host_code, **dict.fromkeys(KERNELS, of_kernel)}


def fault(file):
    """What is wrong with a file, in one line; "" if nothing is."""
    try:
        CHECKS[file](file)
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())
    return ""


def main():
    if wrong := [file for file in sys.argv[1:] if file not in CHECKS]:
        return f"{wrong[0]} is not one of {', '.join(CHECKS)}"
    faults = {file: fault(file) for file in sys.argv[1:] or CHECKS}
    for file, found in faults.items():
        print(f"{file}: {found or 'right'}")
    return int(any(faults.values()))


if __name__ == "__main__":
    sys.exit(main())
