"""What users of PyTorch call on a Module in addition to its own methods; Module inherits it."""

# A method's self is a Module, which inherits it here; mypy wants a supertype.
# mypy: disable-error-code="misc"

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..core.tensor import Tensor

if TYPE_CHECKING:
    from .module import Module

M = TypeVar("M", bound="Module")


def without_counts(state: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """A state without the counts of batches that PyTorch keeps with running statistics: nothing here reads them."""
    return {name: value for name, value in state.items()
            if name in own or not name.endswith("num_batches_tracked")
            or name.replace("num_batches_tracked", "running_mean") not in own}


class Habits:
    """Methods of a Module by PyTorch's names, each in terms of Module's own."""

    def children(self: Module) -> Iterator[Module]:
        """The direct child Modules."""
        return (child for _, child in self.named_children())

    def modules(self: Module) -> Iterator[Module]:
        """This Module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def apply(self: M, function: Callable[[Module], object]) -> M:
        """Call a function with each Module below this one, in their order, then with this one; once with each."""
        seen: set[int] = set()

        def visit(module: Module) -> None:
            if id(module) not in seen:
                seen.add(id(module))
                for child in module.children():
                    visit(child)
                function(module)
        visit(self)
        return self

    def zero_grad(self: Module) -> None:
        """Set all parameters' gradients to None."""
        for _, parameter in self._ever_parameters():
            parameter.grad = None

    def add_module(self: Module, name: str, module: Module) -> None:
        """Set a child by its name."""
        setattr(self, name, module)

    def register_buffer(self: Module, name: str, tensor: Tensor) -> None:
        """Set a buffer by its name: any Tensor attribute that requires no gradient is one."""
        if tensor is not None and tensor.requires_grad:
            raise ValueError(f"register_buffer: {name} requires a gradient, so it would be a parameter; pass "
                             ".detach()")
        setattr(self, name, tensor)

    def register_parameter(self: Module, name: str, tensor: Tensor) -> None:
        """Set a parameter by its name: any Tensor attribute that requires a gradient is one."""
        if tensor is not None and not tensor.requires_grad:
            raise ValueError(f"register_parameter: {name} requires no gradient, so it would be a buffer; make it with "
                             "requires_grad=True")
        setattr(self, name, tensor)

    def get_submodule(self: Module, path: str) -> Module:
        """The Module at a path, as "features.0"."""
        found = dict(self.named_modules())
        if path not in found:
            raise ValueError(f"get_submodule: there is no {path!r}; there are {', '.join(filter(None, found))}")
        return found[path]

    def float(self: M) -> M:
        """All floating Tensors as float32."""
        return self.to(dtype=np.float32)

    def double(self: M) -> M:
        """All floating Tensors as float64."""
        return self.to(dtype=np.float64)

    def cpu(self: M) -> M:
        """All Tensors on the CPU."""
        return self.to("cpu")

    def cuda(self: M) -> M:
        """All Tensors on the GPU."""
        return self.to("cuda")
