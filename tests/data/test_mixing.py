"""mixup: blends of a batch's images, and their targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, data, nn, ops, optim
from minidl.core import rng

IMAGES = np.random.default_rng(0).standard_normal((8, 3, 5, 4)).astype(np.float32)
LABELS = np.array([0, 4, 1, 1, 3, 0, 2, 4])


def test_a_blend_is_of_two_images_and_so_is_its_target() -> None:
    """By the formula of Zhang et al. 2018, section 2, with the draws of the key."""
    blends, targets = data.mixup(IMAGES, LABELS, 5, 1.0, key=(3, 4))
    draw = rng.generator((3, 4))
    share, others = draw.beta(1.0, 1.0), draw.permutation(8)
    assert 0.02 < share < 0.98
    for i, other in enumerate(others):
        np.testing.assert_allclose(blends[i], share * IMAGES[i] + (1 - share) * IMAGES[other], rtol=1e-5, atol=1e-6)
        expected = share * np.eye(5)[LABELS[i]] + (1 - share) * np.eye(5)[LABELS[other]]
        np.testing.assert_allclose(targets[i], expected, rtol=1e-6)
    assert (blends.dtype, targets.dtype) == (np.float32, np.float32)
    np.testing.assert_allclose(targets.sum(axis=1), 1, rtol=1e-6)


def test_the_same_seed_gives_the_same_batch() -> None:
    """And each call another one."""
    def batches(seed: int) -> list[bytes]:
        minidl.manual_seed(seed)
        return [part.tobytes() for _ in range(3) for part in data.mixup(IMAGES, LABELS, 5)]
    assert batches(5) == batches(5) != batches(6)
    assert len(set(batches(5)[::2])) == 3


def test_inputs_stay_as_they_are() -> None:
    images, labels = IMAGES.copy(), LABELS.copy()
    data.mixup(images, labels, 5, 1.0)
    assert (images.tobytes(), labels.tobytes()) == (IMAGES.tobytes(), LABELS.tobytes())


def test_alpha_0_blends_nothing() -> None:
    blends, targets = data.mixup(IMAGES, LABELS, 5, 0)
    np.testing.assert_array_equal(blends, IMAGES)
    np.testing.assert_array_equal(targets, np.eye(5)[LABELS])


def test_the_loss_of_a_batch_that_is_not_blended_is_cross_entropy() -> None:
    logits = Tensor(np.random.default_rng(1).standard_normal((8, 5)))
    _, targets = data.mixup(IMAGES.astype(float), LABELS, 5, 0)
    loss = -(Tensor(targets) * ops.log_softmax(logits)).sum(axis=1).mean()
    assert loss.item() == pytest.approx(ops.cross_entropy(logits, LABELS).item(), rel=1e-12)


def test_tensors_give_tensors() -> None:
    arrays = data.mixup(IMAGES, LABELS, 5, 1.0, key=(1, 2))
    tensors = data.mixup(Tensor(IMAGES), Tensor(LABELS), 5, 1.0, key=(1, 2))
    for array, tensor in zip(arrays, tensors, strict=True):
        assert isinstance(tensor, Tensor)
        np.testing.assert_array_equal(array, tensor.numpy())


@pytest.mark.parametrize("n", [0, 1])
def test_small_batches(n: int) -> None:
    blends, targets = data.mixup(IMAGES[:n], LABELS[:n], 5)
    np.testing.assert_allclose(blends, IMAGES[:n], rtol=1e-6)
    assert targets.shape == (n, 5)


def test_a_compiled_step_takes_each_batch_anew() -> None:
    def trained(compiled: bool) -> list[float]:
        minidl.manual_seed(2)
        net = nn.Sequential(nn.Flatten(), nn.Linear(60, 5))
        sgd = optim.SGD(net.parameters(), 0.1)

        def step(blends: Tensor, targets: Tensor) -> Tensor:
            loss = -(targets * ops.log_softmax(net(blends))).sum(axis=1).mean()
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            return loss
        run: Any = minidl.compile(step) if compiled else step
        return [run(*map(Tensor, data.mixup(IMAGES, LABELS, 5, 1.0))).item() for _ in range(8)]
    assert trained(True) == trained(False)
    assert len(set(trained(True))) == 8


@pytest.mark.gpu
@pytest.mark.parametrize("alpha", [0, 0.2, 1.0])
def test_gpu_batches_are_the_cpus(alpha: float) -> None:
    """A product may be rounded once with its sum there."""
    import cupy

    expected = data.mixup(IMAGES, LABELS, 5, alpha, key=(7, 8))
    for given in ((cupy.asarray(IMAGES), cupy.asarray(LABELS)), (cupy.asarray(IMAGES), LABELS)):
        for got, want in zip(data.mixup(*given, 5, alpha, key=(7, 8)), expected, strict=True):
            assert isinstance(got, cupy.ndarray)
            np.testing.assert_allclose(got.get(), want, rtol=0, atol=1e-6)


def test_numbers_of_numpy_are_numbers() -> None:
    plain = data.mixup(IMAGES, LABELS, 5, 0.5, key=(1, 2))
    for got, want in zip(data.mixup(IMAGES, LABELS, np.int64(5), np.float32(0.5), key=(1, 2)), plain, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("refused", "error", "message"), [
    (lambda: data.mixup(IMAGES, LABELS, 5, -0.1), ValueError,
     "mixup: alpha is -0.1 but must be a finite number of at least 0$"),
    (lambda: data.mixup(IMAGES, LABELS, 5, np.inf), ValueError, "mixup: alpha is inf but must be a finite number"),
    (lambda: data.mixup(IMAGES, LABELS, 5, True), ValueError, "mixup: alpha is True but must be a finite number"),
    (lambda: data.mixup(IMAGES, LABELS, 0), ValueError, "mixup: classes is 0 but must be an int of at least 1$"),
    (lambda: data.mixup(IMAGES, LABELS, 4), ValueError,
     r"mixup: labels go from 0 to 4 but must be in \[0, 4\); name all classes$"),
    (lambda: data.mixup(IMAGES, LABELS[:3], 5), ValueError,
     r"mixup: images have shape \(8, 3, 5, 4\) and labels \(3,\) but must be \(n,...\) and \(n,\)$"),
    (lambda: data.mixup(IMAGES.astype(np.uint8), LABELS, 5), TypeError,
     "mixup: images have dtype uint8 and labels int64 but must be floating numbers and integers; pass what a "
     "data.DataLoader gives$"),
    (lambda: data.mixup(IMAGES, LABELS / 2, 5), TypeError, "mixup: images have dtype float32 and labels float64 but "),
])
def test_refuses(refused: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        refused()


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_gradients_flow_through_blends(alpha: float) -> None:
    """Of a layer before the blend (Verma et al. 2019, "Manifold Mixup"); it got none."""
    x = Tensor(IMAGES, requires_grad=True)
    blends, targets = data.mixup(x * 2.0, LABELS, 5, alpha, key=(3, 4))
    same, _ = data.mixup(IMAGES * 2, LABELS, 5, alpha, key=(3, 4))
    np.testing.assert_array_equal(blends.numpy(), same)
    weights = np.random.default_rng(1).standard_normal(IMAGES.shape).astype(np.float32)
    (blends * Tensor(weights)).sum().backward()
    draw = rng.generator((3, 4))
    share = draw.beta(alpha, alpha) if alpha else 1.0
    expected = 2 * share * weights
    np.add.at(expected, draw.permutation(8), 2 * (1 - share) * weights)
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-5, atol=1e-6)  # type: ignore[union-attr]
    assert not targets.requires_grad
