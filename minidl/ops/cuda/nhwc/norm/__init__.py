"""Normalisation of images in NHWC: over all pixels of a channel, and over the channels of each pixel."""

from . import batch, layer
from .batch import *
from .layer import *

__all__ = [*batch.__all__, *layer.__all__]
