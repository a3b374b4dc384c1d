"""PyTorch has the clipping of gradients here; `minidl.optim` does it."""

from ..optim.clip import clip_grad_norm as clip_grad_norm_
from ..optim.clip import clip_grad_value as clip_grad_value_

__all__ = ["clip_grad_norm_", "clip_grad_value_"]
