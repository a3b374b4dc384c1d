"""`minidl doctor --test`: small tests of minidl on this machine, which say in seconds what works here."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ... import Tensor, compile, data, gradcheck, load, manual_seed, nn, ops, optim, save
from .common import say
from .doctor import Finding, compiler, lacking_gpu, tell

STEPS, LR, MOMENTUM = 8, 0.1, 0.9          # of the small training
TOLERANCE = 1e-5                           # of float32 compared with float64, for values of about 1
GPU_TOLERANCE = 1e-4                       # of the small training: fused kernels round differently
KERNEL, THREADS_PER_BLOCK = "conv/papers/direct.cu", 64    # the kernel that is emulated, in ops/cuda
STRIDE, PADDING = (2, 1), ((1, 0), (2, 1))  # of the convolution that a kernel computes: no two sides are alike

Arrays = Mapping[str, np.ndarray]


def report(debug: bool = False) -> int:
    """Run each part and print its line, then what works here; returns the exit status, 1 if a part fails.

    debug: an error is raised instead.
    """
    states: dict[str, list[str]] = {"FAILS": [], "ok": [], "lacks": []}
    say("tests")
    for name, part in PARTS.items():
        start = time.perf_counter()
        finding = guarded(part, debug)
        tell(finding._replace(text=f"{name:18}{time.perf_counter() - start:5.2f} s  {finding.text}"))
        states[finding.state].append(name)
    titles = {"FAILS": "fails here", "ok": "works here", "lacks": "skipped"}
    say("; ".join(f"{titles[state]}: {', '.join(names)}" for state, names in states.items() if names))
    return 1 if states["FAILS"] else 0


def guarded(part: Callable[[], Finding], debug: bool) -> Finding:
    """What a part finds; if it raises an error, that it FAILS."""
    try:
        return part()
    except Exception as error:             # whatever is broken here, the other parts are wanted
        if debug:
            raise
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        return Finding("FAILS", kind + " ".join(str(error).split()),
                       "minidl doctor lists what is missing; minidl doctor --test --debug shows the traceback")


# ---------------------------------------------------------------- parts
def gradients() -> Finding:
    """The gradients of a small net in float64, compared with finite differences."""
    draw = np.random.default_rng(1).standard_normal
    inputs = [Tensor(draw(shape), requires_grad=True) for shape in ((2, 2, 5, 5), (2, 2, 2, 2), (2,), (3, 8), (3,))]

    def loss(x: Tensor, w: Tensor, b: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        maps = ops.avg_pool2d(ops.tanh(ops.conv2d(x, w, b)), size=2)        # (2, 2, 2, 2)
        return ops.cross_entropy(ops.linear(maps.reshape(2, 8), w2, b2), [2, 0])

    found = gradcheck(loss, inputs)
    return Finding("ok", f"{found.checked} derivatives agree with finite differences: conv2d, tanh, avg_pool2d, "
                         "linear, cross_entropy")


def eager() -> Finding:
    """A training: its first step, compared with the formula of its last layer; and whether the loss falls."""
    net, sgd = small_net()
    (x, labels), step, before = bars(), step_of(net, sgd), net.state_dict()
    features = x
    for i in range(len(net) - 1):
        features = net[i](features)
    first = step(x, labels).item()
    after = {"loss": np.array(first), **net.state_dict()}
    expected = softmax_step(features.numpy(), before, labels.numpy())
    for name, array in expected.items():
        require_close(f"{name} of the first step", after[name], array)
    *_, last = (step(x, labels).item() for _ in range(STEPS - 1))
    if not last < first / 2:
        raise AssertionError(f"the loss is {first:.4f} in the first step and {last:.4f} in step {STEPS}, but it should "
                             "be less than half by then")
    return Finding("ok", f"the first step agrees with its formula; the loss falls from {first:.2f} to {last:.2f} in "
                         f"{STEPS} steps")


def compiled() -> Finding:
    """The same training compiled: the same bits."""
    net, sgd = small_net()
    step = compile(step_of(net, sgd))
    require_same("the compiled step", trained(net, step), trained_eagerly())
    replays = STEPS - step.recordings
    return Finding("ok", f"{STEPS} steps, of which {replays} are replayed, give the bits of eager steps")


def resumed() -> Finding:
    """A training that stops after an epoch and goes on from its checkpoint in a fresh net: the same bits."""
    with tempfile.TemporaryDirectory(prefix="minidl-doctor-") as name:
        folder = Path(name)
        whole, _ = fitted(folder / "whole", epochs=2)
        fitted(folder / "stopped", epochs=1)
        after, net = fitted(folder / "stopped", epochs=2, seed=2)      # other weights, if the checkpoint were not read
        require_same("the resumed training", after, whole)
        save(net, folder / "weights.h5")
        loaded = load(small_net(seed=3)[0], folder / "weights.h5")
    require_same("minidl.load of minidl.save", loaded.state_dict(), net.state_dict())
    return Finding("ok", "a run that stops and goes on from its checkpoint ends in the bits of one that does not stop")


def emulated() -> Finding:
    """One of minidl's CUDA kernels, compiled as C++ and run on the CPU."""
    (found,) = compiler()
    if found.state != "ok":
        return skipped(found)
    from ...lab.emulator.conv import Emulated, Kernels
    from ...ops.common.conv.own import OwnConv
    from ...ops.common.geometry import conv_geometry
    from ...ops.common.sources import source

    def launcher(launch: Any, x: np.ndarray, w: np.ndarray, b: np.ndarray, y: np.ndarray, g: object) -> None:
        launch("conv2d_direct_y", -(-y.size // THREADS_PER_BLOCK), THREADS_PER_BLOCK, x, w, b, y, g)

    x, w, b = convolution()
    own = OwnConv("direct", Path(KERNEL).name, source(KERNEL), True, {"y": launcher}, None, __name__)
    with Kernels(own) as kernels:
        launch = Emulated(kernels, x.dtype)
        y = own.run("y", launch, x, w, b, conv_geometry(x.shape, w.shape, b.shape, STRIDE, PADDING, "direct"))
    if launch.faults:
        raise AssertionError("; ".join(launch.faults[:2]))
    require_close("conv2d_direct_y's y", y, convolved(x, w, b))
    return Finding("ok", "conv2d_direct_y, compiled for the CPU and run there, agrees with NumPy")


def on_gpu() -> Finding:
    """A kernel on the GPU, compared with NumPy, and the compiled training there, compared with the CPU's."""
    if lack := lacking_gpu():
        return skipped(lack)
    arrays = convolution()
    y = ops.conv2d(*(Tensor(array, device="cuda") for array in arrays), stride=STRIDE, padding=PADDING,
                   algorithm="direct")
    require_close("conv2d_direct_y's y", y.numpy(), convolved(*arrays))
    net, sgd = small_net("cuda")
    expected = trained_eagerly()
    for name, array in trained(net, compile(step_of(net, sgd)), "cuda").items():
        require_close(f"{name} of {STEPS} compiled steps", array, expected[name], GPU_TOLERANCE)
    return Finding("ok", f"conv2d_direct_y agrees with NumPy, and {STEPS} compiled steps with those on the CPU")


PARTS: dict[str, Callable[[], Finding]] = {
    "gradients": gradients, "eager training": eager, "compiled training": compiled, "resumed training": resumed,
    "emulated kernel": emulated, "GPU": on_gpu}


def skipped(lack: Finding) -> Finding:
    """What is said of a part that cannot run because this is missing."""
    return Finding("lacks", f"skipped: {lack.text}", lack.cure)


# ---------------------------------------------------------------- a small training
def bars() -> tuple[Tensor, Tensor]:
    """Noise with a bright column that says the class: images (12,1,8,8) and labels (12,)."""
    images, labels = np.random.default_rng(2).random((12, 1, 8, 8), np.float32), np.arange(12) % 3
    images[np.arange(12), 0, :, 1 + 2 * labels] += 2
    return Tensor(images), Tensor(labels)


def small_net(device: str = "cpu", seed: int = 1) -> tuple[nn.Sequential, optim.SGD]:
    """A net for `bars`, and its optimizer."""
    manual_seed(seed)
    algorithm = "auto" if device == "cpu" else "direct"        # "auto" would compile and measure every kernel of a GPU
    net = nn.Sequential(nn.Conv2d(1, 4, 3, algorithm=algorithm), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(),
                        nn.Linear(36, 3))
    net.to(device)
    return net, optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)


def step_of(net: nn.Module, sgd: optim.SGD) -> Callable[[Tensor, Tensor], Tensor]:
    """A training step, which returns its loss."""
    def step(x: Tensor, labels: Tensor) -> Tensor:
        sgd.zero_grad()
        loss = ops.cross_entropy(net(x), labels)
        loss.backward()
        sgd.step()
        return loss
    return step


def trained_eagerly() -> Arrays:
    """As `trained`, for a new net on the CPU."""
    net, sgd = small_net()
    return trained(net, step_of(net, sgd))


def trained(net: nn.Module, step: Callable[[Tensor, Tensor], Tensor], device: str = "cpu") -> Arrays:
    """The losses of STEPS steps, and the weights after them."""
    x, labels = (each.to(device) for each in bars())
    losses = [step(x, labels).item() for _ in range(STEPS)]
    return {"loss": np.array(losses), **net.state_dict()}


def fitted(folder: Path, epochs: int, seed: int = 1) -> tuple[Arrays, nn.Sequential]:
    """The losses and weights of `training.fit` with checkpoints in a folder, from which it goes on; and its net."""
    from ...training import fit

    net, sgd = small_net(seed=seed)
    train, test = (data.DataLoader(tuple(each.numpy() for each in bars()), 5, seed=1) for _ in range(2))
    history = fit(net, sgd, train, test, epochs=epochs, checkpoints=folder, resume=True, progress=False, say=None)
    return {"loss": np.array([epoch["train_loss"] for epoch in history]), **net.state_dict()}, net


def softmax_step(features: np.ndarray, weights: Arrays, labels: np.ndarray) -> Arrays:
    """The first step of softmax regression in NumPy: its loss, and the last layer's weight and bias after it."""
    weight, bias = weights["4.weight"], weights["4.bias"]
    exponentials = np.exp(features @ weight.T + bias)          # (n, classes)
    shares, right = exponentials / exponentials.sum(1, keepdims=True), np.eye(len(bias))[labels]
    gradient = (shares - right) / len(labels)
    return {"loss": -np.log((shares * right).sum(1)).mean(), "4.weight": weight - LR * gradient.T @ features,
            "4.bias": bias - LR * gradient.sum(0)}


# ---------------------------------------------------------------- a convolution
def convolution() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x (2,3,7,6), w (4,3,3,2) and b (4,)."""
    draw = np.random.default_rng(3).standard_normal
    x, w, b = (draw(shape, np.float32) for shape in ((2, 3, 7, 6), (4, 3, 3, 2), (4,)))
    return x, w, b


def convolved(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """y (n,m,oh,ow) by its formula in NumPy, in float64."""
    padded = np.pad(x.astype(float), ((0, 0), (0, 0), *PADDING))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (1, 1, *w.shape[2:]))       # (n,c,h,w,1,1,kh,kw)
    windows = windows[:, :, ::STRIDE[0], ::STRIDE[1], 0, 0]                                # (n,c,oh,ow,kh,kw)
    return np.asarray(np.einsum("ncijpq,mcpq->nmij", windows, w) + b[:, None, None])


# ---------------------------------------------------------------- comparisons
def require_close(what: str, got: np.ndarray, expected: np.ndarray, tolerance: float = TOLERANCE) -> None:
    """Raises AssertionError, which names the element with the largest error, if that is above the tolerance."""
    error = np.nan_to_num(np.abs(got - expected), nan=np.inf)
    if error.max() > tolerance:
        at = tuple(int(i) for i in np.unravel_index(error.argmax(), error.shape))
        raise AssertionError(f"{what} is {got[at]:.6g}{f' at {at}' if at else ''} but should be {expected[at]:.6g}; "
                             f"{np.count_nonzero(error > tolerance)} of {error.size} elements are off by more than "
                             f"{tolerance:g}")


def require_same(what: str, got: Arrays, expected: Arrays) -> None:
    """Raises AssertionError, which names the first array that differs, if the bits are not the same."""
    for name, array in expected.items():
        if got[name].tobytes() != array.tobytes():
            error = np.abs(got[name] - array)
            raise AssertionError(f"{what} gives another {name}: {np.count_nonzero(error)} of {array.size} elements "
                                 f"differ, by up to {error.max():.3g}")
