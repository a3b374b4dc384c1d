"""Images in NHWC on a GPU: the forms' kernels, and whole compiled steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from checks.steps import Training, names

from minidl import Tensor, nn, zoo
from minidl.core import device
from minidl.ops.cuda import launch

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fp32")]


def vgg() -> nn.Module:
    layers: list[nn.Module] = []
    for c, m in ((3, 32), (32, 64)):
        layers += [nn.Conv2d(c, m, 3, padding=1), nn.ReLU(), nn.Conv2d(m, m, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 10))


def smooth() -> nn.Module:
    """No bias before normalisation, which takes it away: its gradient would be rounding alone."""
    return nn.Sequential(nn.Conv2d(3, 17, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2),
                         nn.Conv2d(17, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.Tanh(),
                         nn.Conv2d(16, 24, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(24 * 9, 10))


# Net, and the relative error of its gradients: 3xtf32, tf32, bf16. Relu and maxima decide otherwise near 0 and near a
# draw, which changes a gradient by up to 0.005 a time, on the CPU too where x is changed by 3e-6; in tf32 tensor cores
# may cut images, which loses up to twice what rounding does.
NETS: dict[str, tuple[Callable[[], nn.Module], float, float, float]] = {
    "vgg": (vgg, 2 ** -6, 2 ** -3, 3 * 2 ** -4), "smooth": (smooth, 1e-4, 4 * 2 ** -10, 4 * 2 ** -8),
    "resnet": (lambda: zoo.build("resnet", depth=8), 2 ** -6, 2 ** -3, 3 * 2 ** -4)}


@pytest.mark.parametrize("precision", ["3xtf32", "tf32", "bf16"])
@pytest.mark.parametrize("name", NETS)
def test_gradients_of_a_compiled_step(name: str, precision: str) -> None:
    """Beside those of the CPU in fp32; and two runs give the same bits."""
    if launch.compute_capability() < 80:
        pytest.skip("tensor cores before compute capability 8.0 have neither tf32 nor bf16")
    net, *most = NETS[name]
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((32, 3, 16, 16), dtype=np.float32), rng.integers(0, 10, 32)

    def gradients(where: str) -> dict[str, np.ndarray]:
        training = Training(net, where == "cuda", where, lr=1e-30)
        for _ in range(4 if where == "cuda" else 1):
            training.step(Tensor(x, device=where), Tensor(labels, device=where))
        if where == "cuda":
            made = names(training.step.program)
            assert {"conv2d_nhwc", "conv2d_grad_w_nhwc"} <= set(made)
            assert any(each.startswith("conv2d_grad_x_") for each in made)         # alone, or joined with what follows
        return {key: np.asarray(a.get() if hasattr(a, "get") else a) for key, a in training.arrays().items()
                if key.endswith("grad")}
    want = gradients("cpu")
    device.set_precision(precision)
    got, again = gradients("cuda"), gradients("cuda")
    bound = most[("3xtf32", "tf32", "bf16").index(precision)]
    largest = max(float(np.linalg.norm(a)) for a in want.values())
    for key, its in want.items():
        assert got[key].tobytes() == again[key].tobytes(), key
        error = np.linalg.norm(got[key] - its) / max(np.linalg.norm(its), 1e-3 * largest)
        assert error <= bound, f"{key}: {error:.3g}"
