"""The model zoo: one file a model with its layers and the recipe its paper trained it by.

Every model takes images (n, c, size, size), of its own `image_size`, or the rows of a table (n, columns), and answers
with logits (n, classes), or where its target is the image with images.
"""

from __future__ import annotations

from minidl import nn

from . import airbench, alexnet, autoencoder, cuda_convnet, krizhevsky2009, lenet5, mlp, perceptron, resnet, table_mlp
from .recipe import Model, Recipe

MODELS: dict[str, Model] = {model.name: model for model in
                            (lenet5.MODEL, krizhevsky2009.MODEL, cuda_convnet.QUICK, cuda_convnet.NORMALIZED,
                             alexnet.MODEL, resnet.MODEL, resnet.LARGE, mlp.MODEL, perceptron.MODEL,
                             autoencoder.MODEL, table_mlp.MODEL, airbench.MODEL)}


def build(name: str, **options: object) -> nn.Module:
    """Build a model by its name with its own options; its parameters come from `minidl.manual_seed`.

    Raises ValueError for an unknown model, option or option value.

    >>> build("perceptron", in_channels=1)
    Sequential(
      (flatten): Flatten()
      (output): Linear(1024, 10)
    )
    """
    if name not in MODELS:
        raise ValueError(f"zoo: model {name!r} is not one of {', '.join(MODELS)}")
    return MODELS[name].build(**options)


__all__ = ["MODELS", "Model", "Recipe", "build"]
