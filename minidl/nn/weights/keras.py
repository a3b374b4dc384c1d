"""The weights of a Keras 3 net, as its `save_weights("net.weights.h5")` writes them, for an nn.Sequential of the same
layers.

The file has /layers/conv2d/vars/0, the kernel, and 1, the bias; then conv2d_1, ..., dense, dense_1, ...: each class of
layers is numbered in the net's order. Kernels of Conv2D are (kh,kw,c,m) there and (m,c,kh,kw) here; those of Dense are
(in,out) there and (out,in) here. Images are NHWC there and NCHW here, so that the first Dense after a Flatten finds its
inputs in another order: pixel by pixel there, channel by channel here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from . import hdf5
from .common import Kind, Meter, WeightsError, choose_another, digest, shown, too_much

KERAS = Kind("keras", 3, "layers", "load", "Keras 3")

_OLD = b"\x89HDF\r\n\x1a\n" + bytes(5) + b"\x08\x08\x00"       # superblock 0, addresses of 8 bytes
_SPARE = 1000                              # entries beside the weights: layers without any have groups, too


class _Place(NamedTuple):
    """Where a parameter's values lie in the file, of what shape, and how they become the parameter's."""

    key: str
    shape: tuple[int, ...]
    turned: Callable[[np.ndarray], np.ndarray]


# ---------------------------------------------------------------------- where each parameter lies
def places(model: object) -> dict[str, _Place]:
    """Where the parameters of an nn.Sequential lie. Raises WeightsError for another net, a sentence without subject."""
    found: dict[str, _Place] = {}
    counts = {"conv2d": 0, "dense": 0}
    channels = getattr(model, "model_args", {}).get("in_channels")     # of the images that come next
    flat = False                           # whether a Flatten made them rows
    for path, layer in _leaves("", model):
        kind = {"Conv2d": "conv2d", "Linear": "dense"}.get(type(layer).__name__)
        if type(layer).__name__ == "Flatten":
            flat = True
        if kind is None:
            continue
        group = f"{kind}_{counts[kind]}" if counts[kind] else kind
        counts[kind] += 1
        shape = layer.weight.shape
        if kind == "conv2d":
            m, c, kh, kw = shape
            found[f"{path}weight"] = _Place(f"{group}.vars.0", (kh, kw, c, m), lambda w: w.transpose(3, 2, 0, 1))
            channels = m
        else:
            found[f"{path}weight"] = _Place(f"{group}.vars.0", shape[::-1],
                                            _rows(path, channels, shape[1]) if flat else np.transpose)
            flat, channels = False, None
        if layer.bias is not None:
            found[f"{path}bias"] = _Place(f"{group}.vars.1", layer.bias.shape, np.asarray)
    return found


def _leaves(path: str, model: object) -> Iterator[tuple[str, Any]]:
    """The layers of a Sequential in the order of their work, each with the beginning of its parameters' names."""
    from ... import nn

    if not isinstance(model, nn.Sequential):
        raise WeightsError(f"is of Keras, whose weights are read into an nn.Sequential alone, but the model is a "
                           f"{type(model).__name__}: in another net, the order of layers is not known; set its "
                           "parameters by hand, with h5py")
    for name, layer in model.named_children():
        if isinstance(layer, nn.Sequential):
            yield from _leaves(f"{path}{name}.", layer)
        elif getattr(nn, type(layer).__name__, None) is not type(layer) or (
                layer.state_dict() and not isinstance(layer, (nn.Conv2d, nn.Linear))):
            raise WeightsError(f"is of Keras, but the model's layer {path}{name} is a {type(layer).__name__} and none "
                               "of minidl.nn's: where its weights lie is not known; set its parameters by hand")
        else:
            yield f"{path}{name}.", layer


def _rows(path: str, channels: int | None, features: int) -> Callable[[np.ndarray], np.ndarray]:
    """From (pixels*channels, out) to (out, channels*pixels)."""
    if channels is None or features % channels:
        raise WeightsError(f"is of Keras, which flattens pixel by pixel, but how many channels the {features} inputs "
                           f"of {path}weight have is not known; let a Conv2d come before the Flatten")
    return lambda w: w.reshape(-1, channels, w.shape[-1]).transpose(2, 1, 0).reshape(w.shape[-1], -1)


# ---------------------------------------------------------------------- reading
@contextmanager
def opened(kind: Kind, raw: BinaryIO, arrays: int) -> Iterator[File]:
    """An open file of Keras, of which as much is read as so many arrays need."""
    import h5py

    header, size = raw.read(56), raw.seek(0, 2)
    if header[:16] != _OLD or header[24:40] != bytes(8) + b"\xff" * 8 or header[48:] != b"\xff" * 8:
        raise WeightsError(f"is HDF5 of another layout (its superblock is {header[8:].hex()}); {choose_another(kind)}")
    if size != (end := int.from_bytes(header[40:48], "little")):
        raise WeightsError(f"has {size} bytes but says {end}; copy it again from where it came from")
    meter = Meter(raw, hdf5.overhead(arrays), too_much(kind))
    with hdf5.metered(meter), h5py.File(meter, "r") as file:
        yield File(file, meter, kind.group)


class File(hdf5.File):
    """An open file of Keras; its methods are those of common.File. It has no attributes and no checksums."""

    foreign = True

    def has(self, attribute: str) -> bool:
        return False

    def attribute(self, name: str) -> str | int | None:
        return "Keras" if name == "model" else None

    def entries(self, own: Mapping[str, np.ndarray], most: int = _SPARE) -> tuple[dict[str, str], bool]:
        found, all_seen = super().entries(own, most)
        if found.get("/vars") == "a group" and not len(self.file["vars"]):
            del found["/vars"]             # of the net's own variables, of which a Sequential has none
        return {name: what for name, what in found.items()
                if name in own or what != "an empty group" or not name.endswith(".vars")}, all_seen

    def read(self, name: str, like: np.ndarray) -> tuple[np.ndarray, str | int | None]:
        array, _ = super().read(name, like)
        return array, digest(array)


def schema(model: object, state: Mapping[str, np.ndarray]) -> tuple[dict[str, _Place], dict[str, np.ndarray]]:
    """Where the arrays of a state lie, and by those places arrays of the shapes and dtypes that must be there."""
    found = places(model)
    if others := [name for name in state if name not in found]:
        raise WeightsError(f"is of Keras, but the model has {shown(others[0])} beside its layers' weights and biases; "
                           "set its parameters by hand, with h5py")
    return found, {place.key: np.broadcast_to(np.zeros((), state[name].dtype), place.shape)
                   for name, place in found.items()}
