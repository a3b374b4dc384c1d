"""Weights of Keras 3: files in the layout of its save_weights, read into an nn.Sequential of the same layers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import minidl
from minidl import Tensor, nn, zoo
from minidl.nn.weights import WeightsError


def keras_file(path: Path, layers: Mapping[str, Sequence[np.ndarray]]) -> None:
    """What Keras 3.15 writes, group by group; `layers` has every layer of the net, those without weights too."""
    with h5py.File(path, "w", libver="earliest") as file:
        for name, arrays in layers.items():
            group = file.create_group(f"layers/{name}/vars")
            group.attrs["name"] = f"my_{name}"
            for i, array in enumerate(arrays):
                group[str(i)] = array
        file.create_group("vars").attrs["name"] = "sequential"


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


LAYERS: dict[str, list[np.ndarray]] = {
    "average_pooling2d": [], "conv2d": [random(3, 2, 2, 5), random(5)], "conv2d_1": [random(2, 2, 5, 3)],
    "dense": [random(3 * 4 * 3, 6), random(6)], "dense_1": [random(6, 4), random(4)], "dropout": [], "flatten": []}


def net() -> nn.Sequential:
    """(n, 2, 10, 11) -> (n, 4)."""
    return nn.Sequential(nn.Conv2d(2, 5, (3, 2)), nn.Tanh(), nn.AvgPool2d(2), body=nn.Sequential(
        nn.Conv2d(5, 3, 2, bias=False), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 6)), tanh=nn.Tanh(),
        output=nn.Linear(6, 4)).eval()


def convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """As Keras has it: x (n,h,w,c), w (kh,kw,c,m)."""
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[:2], axis=(1, 2))
    return np.einsum("nijcpq,pqcm->nijm", windows, w)


def as_keras(x: np.ndarray) -> np.ndarray:
    """The net of LAYERS on images (n,h,w,c)."""
    x = np.tanh(convolved(x, LAYERS["conv2d"][0]) + LAYERS["conv2d"][1])
    x = x.reshape(len(x), 4, 2, 5, 2, 5).mean(axis=(2, 4))
    x = np.maximum(convolved(x, LAYERS["conv2d_1"][0]), 0).reshape(len(x), -1)
    x = np.tanh(x @ LAYERS["dense"][0] + LAYERS["dense"][1])
    return x @ LAYERS["dense_1"][0] + LAYERS["dense_1"][1]


def test_a_net_of_keras_gives_the_same_here(tmp_path: Path) -> None:
    keras_file(tmp_path / "net.weights.h5", LAYERS)
    model = net()
    assert minidl.load(model, tmp_path / "net.weights.h5") is model
    x = random(3, 10, 11, 2)
    theirs = as_keras(x)
    mine = model(Tensor(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))).numpy()
    assert theirs.shape == (3, 4)
    assert abs(mine - theirs).max() <= 1e-5
    assert all(t.data.flags["C_CONTIGUOUS"] for t in model.parameters())


@pytest.mark.parametrize(("name", "channels"), [("perceptron", 1), ("perceptron", 3), ("lenet5", 1)])
def test_the_zoos_nets_know_their_channels(tmp_path: Path, name: str, channels: int) -> None:
    if name == "lenet5":
        shapes = [(5, 5, 1, 6), (5, 5, 6, 16), (5, 5, 16, 120)]
        layers = {("conv2d", "conv2d_1", "conv2d_2")[i]: [random(*shape), random(shape[-1])]
                  for i, shape in enumerate(shapes)} | {"dense": [random(120, 84), random(84)],
                                                        "dense_1": [random(84, 10), random(10)]}
    else:
        layers = {"dense": [random(1024 * channels, 10), random(10)]}
    keras_file(tmp_path / "net.weights.h5", layers)
    model = zoo.build(name, in_channels=channels)
    minidl.load(model, tmp_path / "net.weights.h5")
    if name == "perceptron":
        x = random(2, 32, 32, channels)
        theirs = x.reshape(2, -1) @ layers["dense"][0] + layers["dense"][1]
        assert abs(model(Tensor(x.transpose(0, 3, 1, 2).copy())).numpy() - theirs).max() <= 1e-3 * abs(theirs).max()


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)


REFUSED: dict[str, tuple[nn.Module, str]] = {
    "a net of one's own": (Own(), "is of Keras, whose weights are read into an nn.Sequential alone, but the model is a "
                           "Own: in another net, the order of layers is not known; set its parameters by hand, with"),
    "a layer of one's own": (nn.Sequential(Own()), "is of Keras, but the model's layer 0 is a Own, which has no count"
                             "erpart there; of layers with weights Conv2d, ConvTranspose2d, Linear, Embedding, Batch"),
    "a layer that Keras has otherwise": (nn.Sequential(nn.Tanh(), nn.GroupNorm(1, 2)), "layer 1 is a GroupNorm, which"),
    "pixels that become channels": (nn.Sequential(nn.Conv2d(1, 4, 3), nn.PixelShuffle(2), nn.Flatten(), nn.Linear(
        36, 6)), "layer 1 is a PixelShuffle, which has no counterpart there"),
    "a flatten of pixels alone": (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(2)), "layer 1 is a Flatten(2), which "),
    "a dense layer on images": (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(4, 2)), "1.Linear computes along the last "
                                "axis of images, which is their width here, and along their channels there; let a Fla"),
    "a norm of pixels": (nn.Sequential(nn.BatchNorm2d(4), nn.LayerNorm(4)), "1.LayerNorm computes along the last axis"),
    "a softmax of each row of pixels": (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Softmax()), "1.Softmax computes along the "
                                        "last axis of images, which is their width here, and along their channels there"
                                        "; give it axis=1"),
    "a norm of places": (nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 3), nn.BatchNorm1d(3)), "2.BatchNorm1d computes"
                         " along axis 1 of sequences, which is their length here, and along what an Embedding gave"),
    "a norm of rows of unknown channels": (nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, 6)),
                                           "how many channels the 36 inputs of 1.weight have is not known; let a Conv"),
    "unknown channels": (nn.Sequential(nn.Flatten(), nn.Linear(36, 6)), "which flattens pixel by pixel, but how many "
                         "channels the 36 inputs of 1.weight have is not known; let a Conv2d come before the Flatten"),
    "other channels": (nn.Sequential(nn.Conv2d(1, 5, 3), nn.Flatten(), nn.Linear(36, 6)), "how many channels the 36 "
                       "inputs of 2.weight have is not known"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_net_whose_order_is_not_known_is_refused(tmp_path: Path, name: str) -> None:
    model, message = REFUSED[name]
    keras_file(tmp_path / "net.weights.h5", LAYERS)
    with pytest.raises(WeightsError, match=f"^load: '{tmp_path}/net.weights.h5' .*{re.escape(message)}"):
        minidl.load(model, tmp_path / "net.weights.h5")


def test_a_buffer_beside_the_layers_is_refused(tmp_path: Path) -> None:
    model = net()
    model.mean = Tensor([1.0])
    keras_file(tmp_path / "net.weights.h5", LAYERS)
    with pytest.raises(WeightsError, match="the model has 'mean' beside its layers' weights and biases; set its param"):
        minidl.load(model, tmp_path / "net.weights.h5")


@pytest.mark.parametrize(("change", "message"), [
    ({"conv2d": [random(3, 2, 2, 4), random(4)]}, "conv2d.vars.0 is (3,2,2,5) float32 in the model but (3,2,2,4) f"),
    ({"dense": [random(36, 6).astype("f8"), random(6)]}, "dense.vars.0 is (36,6) float32 in the model but (36,6) flo"),
    ({"conv2d_1": [random(2, 2, 5, 3), random(3)]}, "conv2d_1.vars.1 is missing in the model but (3,) float32 in the"),
    ({"dense_2": [random(4, 4), random(4)]}, "dense_2.vars.0 is missing in the model but (4,4) float32 in the file"),
    ({"batch_normalization": [random(3)] * 4}, "batch_normalization.vars.0 is missing in the model but (3,) float32"),
    ({"dense_1": []}, "dense_1.vars.0 is (6,4) float32 in the model but missing in the file; dense_1.vars.1 is"),
])
def test_another_net_of_keras_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    keras_file(tmp_path / "net.weights.h5", LAYERS | change)
    model = net()
    before = model.state_dict()
    with pytest.raises(WeightsError, match=re.escape("was saved from 'Keras' and does not fit 'Sequential': ")
                       + f".*{re.escape(message)}.*or write it anew with Keras 3$"):
        minidl.load(model, tmp_path / "net.weights.h5")
    assert all(np.array_equal(array, before[name]) for name, array in model.state_dict().items())


def test_other_files_of_that_ending(tmp_path: Path) -> None:
    path = tmp_path / "net.weights.h5"
    minidl.save(net(), path)                   # ours stays ours
    minidl.load(net(), path)
    with h5py.File(path, "w", libver="earliest", userblock_size=512) as file:
        file["x"] = 1
    with pytest.raises(WeightsError, match="is not an HDF5 file"):
        minidl.load(net(), path)
    keras_file(path, LAYERS)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(WeightsError, match=r"has \d+ bytes but says \d+; copy it again"):
        minidl.load(net(), path)
    keras_file(path, LAYERS)
    path.rename(tmp_path / "net.h5")           # the ending says what it is
    with pytest.raises(WeightsError, match="is HDF5 of another layout"):
        minidl.load(net(), tmp_path / "net.h5")


# ---------------------------------------------------------------- norms, embeddings and transposed convolutions
def batch_normalized(x: np.ndarray, gamma: Any, beta: Any, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """As Keras computes it in evaluation, of channels on the last axis."""
    return (x - mean) / np.sqrt(variance + 1e-3) * gamma + beta


def layer_normalized(x: np.ndarray, gamma: Any, beta: Any, axes: tuple[int, ...] = (-1,)) -> np.ndarray:
    mean, variance = x.mean(axis=axes, keepdims=True), x.var(axis=axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-3) * gamma + beta


def transposed(x: np.ndarray, w: np.ndarray, stride: int) -> np.ndarray:
    """Conv2DTranspose without padding: x (n,h,w,c), w (kh,kw,m,c); each pixel adds its copy of the kernel."""
    n, height, width, _ = x.shape
    kh, kw, m, _ = w.shape
    y = np.zeros((n, (height - 1) * stride + kh, (width - 1) * stride + kw, m))
    for i in range(height):
        for j in range(width):
            y[:, i * stride:i * stride + kh, j * stride:j * stride + kw] += np.einsum("nc,pqmc->npqm", x[:, i, j], w)
    return y


def norm(features: int) -> list[np.ndarray]:
    """gamma, beta, moving_mean, moving_variance, as different from each other as can be."""
    return [random(features) + 3, random(features) - 2, 5 * random(features), abs(random(features)) * 4 + 0.5]


KERNEL, BIAS, TABLE = random(2, 3, 2, 5), random(5), random(7, 4)
UP, UP_BIAS = random(3, 2, 4, 2), random(4)    # 2 -> 4 channels
NORM5, NORM4, NORM36, DENSE = norm(5), norm(4), norm(36), random(36, 3)
EPS: dict[str, Any] = {"eps": 1e-3}
# The net here, what the file has, the shape of its input as Keras has it, and the net in Keras's layout.
NETS: dict[str, tuple[Any, Mapping[str, Sequence[np.ndarray]], tuple[int, ...], Any]] = {
    "batch norm of images": (
        lambda: nn.Sequential(nn.Conv2d(2, 5, (2, 3)), nn.BatchNorm2d(5, **EPS), nn.ReLU()),
        {"conv2d": [KERNEL, BIAS], "batch_normalization": NORM5, "re_lu": []}, (3, 4, 5, 2),
        lambda x: np.maximum(batch_normalized(convolved(x, KERNEL) + BIAS, *NORM5), 0)),
    "batch norm without scale and shift": (
        lambda: nn.Sequential(nn.BatchNorm2d(5, affine=False, **EPS)),
        {"batch_normalization": NORM5[2:]}, (3, 4, 5, 5), lambda x: batch_normalized(x, 1, 0, *NORM5[2:])),
    "batch norm of rows": (
        lambda: nn.Sequential(nn.BatchNorm1d(4, **EPS)), {"batch_normalization": NORM4}, (6, 4),
        lambda x: batch_normalized(x, *NORM4)),
    "two batch norms": (
        lambda: nn.Sequential(nn.BatchNorm1d(4, **EPS), nn.Tanh(), nn.BatchNorm1d(4, **EPS)),
        {"batch_normalization": NORM4, "batch_normalization_1": norm(4)[::-1][:2] + NORM4[2:]}, (6, 4),
        lambda x: batch_normalized(np.tanh(batch_normalized(x, *NORM4)), *norm(4)[::-1][:2], *NORM4[2:])),
    "batch norm of flattened images, and a dense layer": (
        lambda: nn.Sequential(nn.BatchNorm2d(4, **EPS), nn.Flatten(), nn.BatchNorm1d(36, **EPS), nn.Linear(36, 3,
                                                                                                         bias=False)),
        {"batch_normalization": NORM4, "flatten": [], "batch_normalization_1": NORM36, "dense": [DENSE]}, (2, 3, 3, 4),
        lambda x: batch_normalized(batch_normalized(x, *NORM4).reshape(len(x), -1), *NORM36) @ DENSE),
    "layer norm of rows": (
        lambda: nn.Sequential(nn.LayerNorm(4, **EPS)), {"layer_normalization": NORM4[:2]}, (6, 4),
        lambda x: layer_normalized(x, *NORM4[:2])),
    "layer norm without shift, after one without weights": (
        lambda: nn.Sequential(nn.LayerNorm(4, elementwise_affine=False, **EPS), nn.Tanh(), nn.LayerNorm(
            4, bias=False, **EPS)), {"layer_normalization": [], "layer_normalization_1": NORM4[:1]}, (6, 4),
        lambda x: layer_normalized(np.tanh(layer_normalized(x, 1, 0)), NORM4[0], 0)),
    "layer norm of whole images": (
        lambda: nn.Sequential(nn.Conv2d(2, 5, (2, 3), bias=False), nn.LayerNorm((5, 3, 3), **EPS)),
        {"conv2d": [KERNEL], "layer_normalization": [random(3, 3, 5), random(3, 3, 5) + 1]}, (3, 4, 5, 2),
        lambda x: layer_normalized(convolved(x, KERNEL), random(3, 3, 5), random(3, 3, 5) + 1, (1, 2, 3))),
    "layer norm of flattened images": (
        lambda: nn.Sequential(nn.Conv2d(2, 5, (2, 3), bias=False), nn.Flatten(), nn.LayerNorm(45, **EPS), nn.Linear(
            45, 3, bias=False)),
        {"conv2d": [KERNEL], "layer_normalization": norm(45)[:2], "dense": [random(45, 3)]}, (3, 4, 5, 2),
        lambda x: layer_normalized(convolved(x, KERNEL).reshape(len(x), -1), *norm(45)[:2]) @ random(45, 3)),
    "an embedding, flattened": (
        lambda: nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(36, 3, bias=False)),
        {"embedding": [TABLE], "dense": [DENSE]}, (5, 9), lambda ids: TABLE[ids].reshape(5, -1) @ DENSE),
    "an embedding, a layer norm and a dense layer for each": (
        lambda: nn.Sequential(nn.Embedding(7, 4, padding_idx=0), nn.LayerNorm(4, **EPS), nn.Linear(4, 2)),
        {"embedding": [TABLE], "layer_normalization": NORM4[:2], "dense": [random(4, 2), random(2)]}, (5, 9),
        lambda ids: layer_normalized(TABLE[ids], *NORM4[:2]) @ random(4, 2) + random(2)),
    "a transposed convolution": (
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 4, (3, 2), stride=2)), {"conv2d_transpose": [UP, UP_BIAS]},
        (2, 3, 4, 2), lambda x: transposed(x, UP, 2) + UP_BIAS),
    "convolutions of both kinds, a batch norm, a flatten and a dense layer": (
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 4, (3, 2), bias=False), nn.BatchNorm2d(4, **EPS), nn.Conv2d(
            4, 3, 2, bias=False), nn.ConvTranspose2d(3, 2, 1, stride=2, bias=False), nn.Flatten(), nn.Linear(
            50, 2, bias=False)),
        {"conv2d_transpose": [UP], "batch_normalization": NORM4, "conv2d": [random(2, 2, 4, 3)],
         "conv2d_transpose_1": [random(1, 1, 2, 3)], "dense": [random(50, 2)]}, (2, 2, 3, 2),
        lambda x: transposed(convolved(batch_normalized(transposed(x, UP, 1), *NORM4), random(2, 2, 4, 3)),
                             random(1, 1, 2, 3), 2).reshape(len(x), -1) @ random(50, 2)),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", NETS)
def test_nets_of_keras_give_what_their_formulas_give(tmp_path: Path, name: str) -> None:
    build, layers, shape, theirs = NETS[name]
    keras_file(tmp_path / "net.weights.h5", layers)
    model = minidl.load(build().eval(), tmp_path / "net.weights.h5")
    x = random(*shape) if "embedding" not in name else np.random.default_rng(3).integers(7, size=shape)
    wanted = theirs(x)
    given = Tensor(np.ascontiguousarray(x.transpose(0, 3, 1, 2))) if len(shape) == 4 else x
    mine = model(given if isinstance(given, Tensor) or "embedding" in name else Tensor(given)).numpy()
    if wanted.ndim == 4:
        mine = mine.transpose(0, 2, 3, 1)
    assert mine.shape == wanted.shape
    assert abs(mine - wanted).max() <= 2e-5 * max(1, abs(wanted).max())


def test_a_batch_norm_and_a_dense_layer_by_hand(tmp_path: Path) -> None:
    """One row: (6 - 2) / sqrt(3.999 + 0.001) * 10 + 1 = 21 and (1 - 5) / 2 * -1 + 0 = 2; then 21 * 3 + 2 * 4 = 71."""
    keras_file(tmp_path / "net.weights.h5", {
        "batch_normalization": [np.array(v, "f4") for v in ([10, -1], [1, 0], [2, 5], [3.999, 3.999])],
        "dense": [np.array([[3], [4]], "f4")]})
    model = nn.Sequential(nn.BatchNorm1d(2, eps=1e-3), nn.Linear(2, 1, bias=False)).eval()
    minidl.load(model, tmp_path / "net.weights.h5")
    assert abs(model(Tensor([[6.0, 1.0]])).item() - 71) < 1e-4


def test_another_eps_than_keras_has_is_told(tmp_path: Path) -> None:
    keras_file(tmp_path / "net.weights.h5", {"batch_normalization": NORM4, "layer_normalization": NORM4[:2]})
    model = nn.Sequential(nn.BatchNorm1d(4, **EPS), nn.Sequential(nn.LayerNorm(4)))
    with pytest.warns(RuntimeWarning, match=r"is of Keras, whose norms have an eps of 0\.001 unless they were given "
                                            r"another, which the file does not say; the model has eps=1e-05 in 1\.0\."
                                            r"LayerNorm$"):
        minidl.load(model, tmp_path / "net.weights.h5")


@pytest.mark.parametrize(("model", "layers", "message"), [
    (nn.BatchNorm1d(4, affine=False), {"batch_normalization": NORM4}, "vars.2 is missing in the model but (4,) float"),
    (nn.BatchNorm1d(4), {"batch_normalization": NORM4[:3]}, "vars.3 is (4,) float32 in the model but missing in "),
    (nn.Embedding(7, 3), {"embedding": [TABLE]}, "embedding.vars.0 is (7,3) float32 in the model but (7,4) float32 in"),
    (nn.ConvTranspose2d(4, 2, (3, 2)), {"conv2d_transpose": [UP, random(2)]}, "vars.0 is (3,2,2,4) float32 in the mod"),
    (nn.Conv2d(2, 4, (3, 2)), {"conv2d_transpose": [UP, UP_BIAS]}, "conv2d.vars.0 is (3,2,2,4) float32 in the model"),
    (nn.LayerNorm(4, bias=False), {"layer_normalization": NORM4[:2]}, "vars.1 is missing in the model but (4,) float"),
])
def test_other_layers_of_keras_are_refused(tmp_path: Path, model: nn.Module, layers: Any, message: str) -> None:
    keras_file(tmp_path / "net.weights.h5", layers)
    with pytest.raises(WeightsError, match=re.escape(message)):
        minidl.load(nn.Sequential(model), tmp_path / "net.weights.h5")
