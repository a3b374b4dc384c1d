"""Memory shared with NumPy, CuPy, PyTorch and JAX: DLPack both ways, and CuPy's and Numba's interface.

What is shared is the memory alone. A write from the other side is seen here at once, but nothing notes it: a graph that
read the Tensor before then runs backward with the new values. Report it by `t.mark_changed()`.
"""

# A method's self is a Tensor, which inherits it for type checkers; mypy wants a supertype.
# mypy: disable-error-code="misc"

from __future__ import annotations

from typing import Any

import numpy as np

from .device import is_cuda
from .host import install
from .mode import mode
from .tensor import Tensor, wrap

_CPU, _CUDA, _CUDA_MANAGED = 1, 2, 13      # DLPack's numbers of kinds of memory


def from_dlpack(x: object) -> Tensor:
    """A Tensor in the memory of another library's array: of NumPy, CuPy, PyTorch, JAX, any that has `__dlpack__`.

    Nothing is copied; it requires no gradient. What is read-only there is read-only here. Raises TypeError for what is
    no such array and for numbers that a Tensor cannot hold; BufferError, or what the other library raises, if it
    does not share: PyTorch does not share a tensor that requires a gradient.

    >>> a = np.zeros(2)
    >>> t = from_dlpack(a); a[0] = 7.0; t.tolist()
    [7.0, 0.0]
    """
    mode.recorder.refuse("takes another library's array (from_dlpack)")
    if isinstance(x, Tensor):
        _require_shared(x)
        return x.detach()                  # a change of either in place is one of both
    if not (hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__")):
        raise TypeError(f"from_dlpack: a {type(x).__module__}.{type(x).__name__} has no __dlpack__; pass an array of "
                        "NumPy, CuPy, PyTorch or JAX, or numbers to minidl.Tensor(...)")
    try:
        if x.__dlpack_device__()[0] in (_CUDA, _CUDA_MANAGED):
            import cupy

            array = cupy.from_dlpack(x)
        else:
            array = np.from_dlpack(x)
    except ImportError as error:
        raise ImportError(f"from_dlpack: the array is on a GPU but CuPy cannot be imported ({error}); run "
                          f"{install('cuda13')}, or bring the array to the CPU") from None
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise type(error)(f"from_dlpack: a {type(x).__module__}.{type(x).__name__} cannot be shared ({error}); "
                          "convert or copy it first") from error
    if array.dtype.kind not in "biuf":
        raise TypeError(f"from_dlpack: the array has dtype {array.dtype} but must be bool, integer or floating "
                        "numbers; convert it first")
    return wrap(array)


# ---------------------------------------------------------------- Tensor's side
def _require_shared(t: Tensor) -> Any:
    """A Tensor's array, if another library may have it."""
    mode.recorder.refuse("gives a Tensor's memory to another library", "return the Tensor and share it outside")
    if t.requires_grad:
        raise BufferError(f"dlpack: a Tensor that requires a gradient (shape {t.shape}) is not shared, since changes "
                          "elsewhere would not be on the tape; share t.detach()")
    if any(stride < 0 for stride in t._data.strides):
        raise BufferError(f"dlpack: the Tensor's array (shape {t.shape}) has strides {t._data.strides}, and negative "
                          "ones end other libraries' process; share minidl.Tensor(t.numpy().copy())")
    return t._data


class Shared:
    """What other libraries call on a Tensor: its methods. For type checkers it is a class that Tensor inherits."""

    def __dlpack__(self: Tensor, *, stream: object = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        asked = {"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy}
        return _require_shared(self).__dlpack__(**{name: value for name, value in asked.items() if value is not None})

    def __dlpack_device__(self: Tensor) -> tuple[int, int]:
        return self._data.__dlpack_device__()

    @property
    def __cuda_array_interface__(self: Tensor) -> dict[str, Any]:
        if not is_cuda(self._data):
            raise AttributeError(f"__cuda_array_interface__: the Tensor is on {self.device}; move it by .to('cuda'), "
                                 "or share it by DLPack")
        return _require_shared(self).__cuda_array_interface__


for _name in ("__dlpack__", "__dlpack_device__", "__cuda_array_interface__"):
    setattr(Tensor, _name, vars(Shared)[_name])
