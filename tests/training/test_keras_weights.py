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
    "a layer of one's own": (nn.Sequential(Own()), "is of Keras, but the model's layer 0 is a Own and none of minidl"),
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
