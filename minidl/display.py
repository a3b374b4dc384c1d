"""How things look in a terminal and in a notebook: reprs of optimizers, and HTML."""

from __future__ import annotations

import html

import numpy as np

from .core.tensor import Tensor
from .nn import Module
from .optim import Optimizer

MAX_CELLS = 400                            # of a Tensor that is shown as a table


def optimizer(self: Optimizer) -> str:
    """SGD(lr=0.1, momentum=0.9, weight_decay=0.0, nesterov=False: 4 parameters, 1,234 values); a line per group."""
    lines = []
    for group in self.groups:
        numbers = ", ".join(f"{name}={value!r}" for name, value in group.items() if name != "params")
        params = group["params"]
        lines.append(f"{numbers}: {len(params)} parameters, {sum(p.numel() for p in params):,} values")
    name = type(self).__name__
    return f"{name}({lines[0]})" if len(lines) == 1 else "\n  ".join([f"{name}(", *lines]) + "\n)"


def tensor_html(self: Tensor) -> str:
    """A small matrix or vector as a table, anything else as text."""
    if self.ndim not in (1, 2) or not 0 < self.numel() <= MAX_CELLS:
        return f"<pre>{html.escape(repr(self))}</pre>"
    values = np.atleast_2d(self.numpy())
    form = "{:.4g}" if values.dtype.kind == "f" else "{}"
    rows = "".join(f"<tr>{''.join(f'<td>{html.escape(form.format(v))}</td>' for v in row)}</tr>" for row in values)
    facts = f"Tensor {self.shape} {self.dtype} {self.device}" + ", requires a gradient" * self.requires_grad
    return f"<table><caption>{html.escape(facts)}</caption>{rows}</table>"


def module_html(self: Module) -> str:
    """Layers with their parameters, in a table."""
    rows, count = [], 0
    for path, module in self.named_modules():
        own = [t for _, t in module._tensors()]
        count += sum(t.numel() for t in own if t.requires_grad)
        shapes = ", ".join(str(t.shape) for t in own)
        what = f"{type(module).__name__}({module.extra_repr()})"
        rows.append("<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in (path, what, shapes)) + "</tr>")
    return (f"<table><caption>{html.escape(type(self).__name__)}: {count:,} parameters</caption>"
            f"<tr><th>name</th><th>layer</th><th>parameters and buffers</th></tr>{''.join(rows)}</table>")


def attach() -> None:
    """Give the classes their reprs."""
    for owner, name, function in ((Optimizer, "__repr__", optimizer), (Tensor, "_repr_html_", tensor_html),
                                  (Module, "_repr_html_", module_html)):
        setattr(owner, name, function)
