"""The model zoo: one file a model with its layers and the recipe its paper trained it by.

Every model takes images (n, c, size, size), of its own `image_size`, or the rows of a table (n, columns). It returns
logits (n, classes), or images if its target is the image.
"""

from __future__ import annotations

from collections.abc import Callable

from minidl import nn

from . import (
    airbench,
    alexnet,
    autoencoder,
    cuda_convnet,
    ece408,
    krizhevsky2009,
    lenet5,
    mlp,
    own,
    perceptron,
    resnet,
    table_mlp,
)
from .recipe import PLAIN, Model, Recipe

MODELS: dict[str, Model] = {model.name: model for model in
                            (lenet5.MODEL, krizhevsky2009.MODEL, cuda_convnet.QUICK, cuda_convnet.NORMALIZED,
                             alexnet.MODEL, resnet.MODEL, resnet.LARGE, mlp.MODEL, perceptron.MODEL,
                             autoencoder.MODEL, table_mlp.MODEL, airbench.MODEL, ece408.MODEL)}


def known(name: str) -> str:
    """A name that is one of the zoo's models, or can be a place in code, which is not imported. Raises ValueError."""
    if name not in MODELS and not own.is_code(name):
        raise ValueError(f"zoo: model {name!r} is not one of {', '.join((*MODELS, *own.files_like(name)))}, nor the "
                         "place of a net of your own, FILE.py:FUNCTION or package.module:FUNCTION")
    return name


def find(which: str | Model | Callable[..., nn.Module]) -> Model:
    """A model of the zoo by its name, or one of the user's: a function of options that returns a net, or the place of
    one in code, "my_net.py:build" or "package.module:build", which is then imported. A `Recipe` named RECIPE in the
    file of the function is its recipe. In place of the function there may be a `Model`.

    Raises ValueError for an unknown model, and for code that fails or has no such function.
    """
    if not isinstance(which, str):
        return own.of(which)
    return MODELS[which] if known(which) in MODELS else own.named(which)


def build(model: str | Model | Callable[..., nn.Module], /, **options: object) -> nn.Module:
    """Build a model with its own options, of the zoo by its name or one of the user's, as `find` takes it; its
    parameters come from `minidl.manual_seed`. The net knows its model and its options, for the weights file.

    Raises ValueError for an unknown model, option or option value.

    >>> build("perceptron", in_channels=1)
    Sequential(
      (flatten): Flatten()
      (output): Linear(1024, 10)
    )
    """
    return find(model).build(**options)


__all__ = ["MODELS", "PLAIN", "Model", "Recipe", "build", "find"]
