"""The weights of a Keras 3 net, as its `save_weights("net.weights.h5")` writes them, for an nn.Sequential of the same
layers.

The file has /layers/conv2d/vars/0, the kernel, and 1, the bias; then conv2d_1, ..., dense, dense_1, ...: each class of
layers is numbered in the net's order. Kernels of Conv2D are (kh,kw,c,m) there and (m,c,kh,kw) here, those of
Conv2DTranspose (kh,kw,m,c) there and (c,m,kh,kw) here; those of Dense are (in,out) there and (out,in) here. Images are
NHWC there and NCHW here, so that a Flatten makes rows of another order: pixel by pixel there, channel by channel here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

import h5py
import numpy as np

from . import hdf5
from .common import File, Kind, Meter, WeightsError, choose_another, shown, too_much

Turn = Callable[[np.ndarray], np.ndarray]

KERAS = Kind("keras", 3, "layers", "load", "Keras 3")

_OLD = b"\x89HDF\r\n\x1a\n" + bytes(5) + b"\x08\x08\x00"       # superblock 0, addresses of 8 bytes
_SPARE = 1000                              # entries besides the weights: layers without weights have groups, too


class _Place(NamedTuple):
    """Where a parameter's values are in the file, their shape, and how they become the parameter's."""

    key: str
    shape: tuple[int, ...]
    turned: Turn


# ---------------------------------------------------------------------- where each parameter is
_NORM = ("weight", "bias", "running_mean", "running_var")      # gamma, beta, moving_mean, moving_variance there
# A layer of minidl.nn: Keras's name for it, and its arrays in the order of vars/0, 1, ..., without those it lacks.
LAYERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Conv2d": ("conv2d", ("weight", "bias")),
    "ConvTranspose2d": ("conv2d_transpose", ("weight", "bias")),
    "Linear": ("dense", ("weight", "bias")),
    "Embedding": ("embedding", ("weight",)),
    "BatchNorm2d": ("batch_normalization", _NORM),
    "BatchNorm1d": ("batch_normalization", _NORM),
    "LayerNorm": ("layer_normalization", _NORM[:2]),
}
EPS = 1e-3                                 # of Keras's norms by default; a file does not say it


class _Items:
    """What flows from layer to layer: whether it is images, or an Embedding's sequences, whether a Flatten turned these
    into rows, and how many channels they have; 1 if rows have the same order here and in Keras."""

    def __init__(self, channels: int | None):
        self.channels, self.images, self.flat, self.sequences = channels, False, False, False

    def after(self, layer: Any) -> None:
        """Note what a layer turns them into."""
        kind = type(layer).__name__
        if kind in ("Conv2d", "ConvTranspose2d"):
            self.images, self.channels = True, layer.weight.shape[kind == "ConvTranspose2d"]
        elif kind == "BatchNorm2d":
            self.images, self.channels = True, layer.num_features
        elif kind == "Flatten":
            self.images, self.flat, self.sequences = False, True, False
        elif kind in ("Linear", "Embedding"):
            self.images, self.flat, self.channels = False, False, 1
            self.sequences |= kind == "Embedding"

    def require_axis(self, path: str, layer: object) -> None:
        """Refuse a layer along an axis that is another one in Keras, where channels are last."""
        kind = type(layer).__name__
        along_last = (kind == "Linear" or getattr(layer, "axis", None) in (-1, 3)
                      or len(getattr(layer, "normalized_shape", ())) == 1)
        if (self.images and along_last) or (self.sequences and kind == "BatchNorm1d"):
            here, there = ("the last axis of images, which is their width", "their channels") if self.images else (
                "axis 1 of sequences, which is their length", "what an Embedding gave")
            way_out = "let a Flatten come before it, or set the parameters by hand"
            raise WeightsError(f"is of Keras, but {path}{kind} computes along {here} here, and along {there} there; "
                               f"{'give it axis=1' if kind == 'Softmax' else way_out}")

    def ordered(self, path: str, features: int) -> Turn:
        """Reorders an array's first axis from pixels*channels to channels*pixels, if rows were images."""
        if not self.flat:
            return np.asarray
        if not (channels := self.channels) or features % channels:
            raise WeightsError(f"is of Keras, which flattens pixel by pixel, but how many channels the {features} "
                               f"inputs of {path} have is not known; let a Conv2d come before the Flatten")
        return lambda w: w.reshape(-1, channels, *w.shape[1:]).swapaxes(0, 1).reshape(w.shape)


def places(model: object) -> dict[str, _Place]:
    """Where the file has the arrays of an nn.Sequential. Raises WeightsError, without a subject, for another net."""
    found: dict[str, _Place] = {}
    counts: Counter[str] = Counter()
    items = _Items(getattr(model, "model_args", {}).get("in_channels"))
    for path, layer in _leaves("", model):
        known, names = LAYERS.get(type(layer).__name__, ("", ()))
        group = f"{known}_{counts[known]}" if counts[known] else known
        counts[known] += 1
        items.require_axis(path, layer)
        for i, name in enumerate(name for name in names if getattr(layer, name) is not None):
            shape, turned = _turn(items, type(layer).__name__, f"{path}{name}", getattr(layer, name).shape)
            found[f"{path}{name}"] = _Place(f"{group}.vars.{i}", shape, turned)
        items.after(layer)
    return found


def _turn(items: _Items, kind: str, path: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], Turn]:
    """The shape of an array in the file, and how it becomes ours, whose shape is `shape`."""
    if len(shape) == 4:
        return (*shape[2:], shape[1], shape[0]), lambda w: w.transpose(3, 2, 0, 1)
    if kind == "LayerNorm" and len(shape) == 3:
        return (*shape[1:], shape[0]), lambda w: w.transpose(2, 0, 1)
    if kind == "Linear" and len(shape) == 2:
        ordered = items.ordered(path, shape[1])
        return shape[::-1], lambda w: ordered(w).T
    return shape, np.asarray if kind in ("Linear", "Embedding") else items.ordered(path, shape[0])


def _leaves(path: str, model: object) -> Iterator[tuple[str, Any]]:
    """The layers of a Sequential in the order they run, each with the beginning of its parameters' names."""
    from ... import nn

    if not isinstance(model, nn.Sequential):
        raise WeightsError(f"is of Keras, whose weights are read into an nn.Sequential alone, but the model is a "
                           f"{type(model).__name__}: in another net, the order of layers is not known; set its "
                           "parameters by hand, with h5py")
    for name, layer in model.named_children():
        kind, start = type(layer).__name__, getattr(layer, "start", 1)
        if isinstance(layer, nn.Sequential):
            yield from _leaves(f"{path}{name}.", layer)
        elif (getattr(nn, kind, None) is not type(layer) or kind == "PixelShuffle" or start != 1
                or (layer.state_dict() and kind not in LAYERS)):
            raise WeightsError(f"is of Keras, but the model's layer {path}{name} is a {kind}"
                               f"{f'({start})' if start != 1 else ''}, which has no counterpart there; of layers with "
                               f"weights {', '.join(LAYERS)} have; set the parameters by hand, with h5py")
        else:
            yield f"{path}{name}.", layer


def other_eps(model: object) -> list[str]:
    """The norms of a net whose eps is not what Keras's norms have by default."""
    return [f"eps={layer.eps} in {path}{type(layer).__name__}" for path, layer in _leaves("", model)
            if type(layer).__name__ in LAYERS and getattr(layer, "eps", EPS) != EPS]


# ---------------------------------------------------------------------- reading
@contextmanager
def opened(kind: Kind, raw: BinaryIO, arrays: int) -> Iterator[File]:
    """An open file of Keras. No more of it is read than `arrays` arrays need."""
    header, size = raw.read(56), raw.seek(0, 2)
    if header[:16] != _OLD or header[24:40] != bytes(8) + b"\xff" * 8 or header[48:] != b"\xff" * 8:
        raise WeightsError(f"is HDF5 of another layout (its superblock is {header[8:].hex()}); {choose_another(kind)}")
    if size != (end := int.from_bytes(header[40:48], "little")):
        raise WeightsError(f"has {size} bytes but says {end}; copy it again from where it came from")
    meter = Meter(raw, hdf5.overhead(arrays), too_much(kind))
    with hdf5.metered(meter), h5py.File(meter, "r") as file:
        yield Keras(file, meter, kind.group, {"model": "Keras"}, None)


class Keras(hdf5.Hdf5):
    """An open file of Keras, which has no attributes and no checksums."""

    most = _SPARE
    attribute = File.attribute             # not HDF5's attributes

    def entries(self, own: Mapping[str, np.ndarray]) -> tuple[dict[str, str], bool]:
        found, all_seen = super().entries(own)
        if found.get("/vars") == "a group" and not len(self.file["vars"]):
            del found["/vars"]             # the net's own variables: a Sequential has none
        return {name: what for name, what in found.items()
                if name in own or what != "an empty group" or not name.endswith(".vars")}, all_seen


def schema(model: object, state: Mapping[str, np.ndarray]) -> tuple[dict[str, _Place], dict[str, np.ndarray]]:
    """Where the file has the arrays of a state, and by these places arrays of the shapes and dtypes it must have."""
    found = places(model)
    if others := [name for name in state if name not in found]:
        raise WeightsError(f"is of Keras, but the model has {shown(others[0])} beside its layers' weights and biases; "
                           "set its parameters by hand, with h5py")
    return found, {place.key: np.broadcast_to(np.zeros((), state[name].dtype), place.shape)
                   for name, place in found.items()}
