"""Recurrent layers: cells, which make one step, and layers over sequences (Elman 1990; Hochreiter and Schmidhuber 1997,
with the forget gate of Gers et al. 2000; Cho et al. 2014). Names and shapes of parameters are PyTorch's.
"""

from __future__ import annotations

import warnings
from typing import Any

from ... import ops
from ...core.tensor import Tensor
from ...ops.common.geometry.recurrent import SIZES
from ...ops.create import zeros
from ...ops.layers.recurrent import STEPS, State
from ..module import Module
from .basic import _parameter, _positive

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]

Given = Tensor | State | None
PARTS = "weight_ih", "weight_hh", "bias_ih", "bias_hh"


class _Recurrent(Module):
    """What cells and layers share. Raises ValueError for sizes below 1, a nonlinearity that is not "tanh" or "relu", a
    bias that is not True or False, and for an x or a state of another shape."""

    kind: str

    def __init__(self, input_size: int, hidden_size: int, kind: str):
        super().__init__()
        name = type(self).__name__
        self.input_size, self.hidden_size = _positive(name, input_size=input_size, hidden_size=hidden_size)
        self.kind = kind

    def _add(self, end: str, inputs: int, bias: bool) -> None:
        """Parameters, which start uniform in +-1/sqrt(hidden_size)."""
        rows = SIZES[self.kind].gates * self.hidden_size
        for name, shape in zip(PARTS, ((rows, inputs), (rows, self.hidden_size), (rows,), (rows,)), strict=True):
            there = bias or name.startswith("weight")
            setattr(self, name + end, _parameter(shape, self.hidden_size) if there else None)

    def _of(self, end: str) -> list[Any]:
        return [getattr(self, name + end) for name in PARTS]

    def _check(self, x: Tensor, axes: str) -> None:
        """Refuse an input that has not these axes, the last of input_size."""
        if not isinstance(x, Tensor):
            raise TypeError(f"{type(self).__name__}: x is a {type(x).__name__} but must be a Tensor; wrap it in "
                            "minidl.Tensor(...)")
        if x.ndim != axes.count(",") + 1 or x.shape[-1] != self.input_size:
            raise ValueError(f"{type(self).__name__}: x has shape {x.shape} but must be {axes} with an input_size of "
                             f"{self.input_size}; see .unsqueeze()")

    def _given(self, x: Tensor, hx: Given, lead: tuple[int, ...]) -> State:
        """The state as it is given, or zeros."""
        size, count = self.hidden_size, SIZES[self.kind].states
        if hx is None:
            return (zeros((*lead, size), dtype=x.dtype, device=x.device),) * count
        given = tuple(hx) if isinstance(hx, (tuple, list)) else (hx,)
        shapes = [getattr(each, "shape", None) for each in given]
        if shapes != [(*lead, size)] * count:
            raise ValueError(f"{type(self).__name__}: the state has shapes {shapes} but must be {count} of "
                             f"{(*lead, size)}; pass {'(h, c)' if count > 1 else 'h alone'}")
        return given

    def _plain(self, nonlinearity: str) -> str:
        """Refuse what is none of an RNN's."""
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"{type(self).__name__}: nonlinearity is {nonlinearity!r} but must be 'tanh' or 'relu'")
        return nonlinearity

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}"


# ---------------------------------------------------------------- cells
class _Cell(_Recurrent):
    def __init__(self, input_size: int, hidden_size: int, bias: bool, kind: str):
        super().__init__(input_size, hidden_size, kind)
        self._add("", self.input_size, bias)

    def forward(self, x: Tensor, hx: Given = None) -> Any:
        self._check(x, "(n,input_size)")
        state = self._given(x, hx, x.shape[:1])
        w_ih, w_hh, b_ih, b_hh = self._of("")
        state = STEPS[self.kind](ops.linear(x, w_ih, b_ih), ops.linear(state[0], w_hh, b_hh), *state)
        return state if len(state) > 1 else state[0]


class RNNCell(_Cell):
    """One step of `RNN`: x (n,input_size), h (n,hidden_size) -> h. Without h it is 0.

    >>> RNNCell(3, 2)(Tensor([[1.0, 2.0, 3.0]])).shape
    (1, 2)
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh"):
        super().__init__(input_size, hidden_size, bias, self._plain(nonlinearity))


class LSTMCell(_Cell):
    """One step of `LSTM`: x (n,input_size), (h, c) each (n,hidden_size) -> (h, c). Without them they are 0.

    >>> h, c = LSTMCell(3, 2)(Tensor([[1.0, 2.0, 3.0]])); h.shape, c.shape
    ((1, 2), (1, 2))
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True):
        super().__init__(input_size, hidden_size, bias, "lstm")


class GRUCell(_Cell):
    """One step of `GRU`: x (n,input_size), h (n,hidden_size) -> h. Without h it is 0.

    >>> GRUCell(3, 2)(Tensor([[1.0, 2.0, 3.0]])).shape
    (1, 2)
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True):
        super().__init__(input_size, hidden_size, bias, "gru")


# ---------------------------------------------------------------- over sequences
class _Layers(_Recurrent):
    def __init__(self, input_size: int, hidden_size: int, num_layers: int, bias: bool, batch_first: bool,
                 dropout: float, bidirectional: bool, kind: str):
        super().__init__(input_size, hidden_size, kind)
        name = type(self).__name__
        (self.num_layers,) = _positive(name, num_layers=num_layers)
        if not 0 <= dropout < 1:
            raise ValueError(f"{name}: dropout is {dropout!r} but must be in [0, 1)")
        if dropout and self.num_layers == 1:
            warnings.warn(f"{name}: dropout is {dropout!r} but num_layers is 1, and nothing is dropped: it is between "
                          "layers; put nn.Dropout behind it", UserWarning, stacklevel=5)     # `habits.told` is between
        self.bias, self.batch_first, self.dropout, self.bidirectional = (
            bool(bias), bool(batch_first), float(dropout), bool(bidirectional))
        for end in self._ends():
            below = self.input_size if end.startswith("_l0") else self.hidden_size * (1 + self.bidirectional)
            self._add(end, below, self.bias)

    def _ends(self) -> list[str]:
        """How the names of parameters end, for each layer and direction."""
        ways = ("", "_reverse")[:1 + self.bidirectional]
        return [f"_l{layer}{way}" for layer in range(self.num_layers) for way in ways]

    def forward(self, x: Tensor, hx: Given = None) -> tuple[Tensor, Any]:
        self._check(x, "(n,l,input_size)" if self.batch_first else "(l,n,input_size)")
        ends = self._ends()
        states = self._given(x, hx, (len(ends), x.shape[not self.batch_first]))
        if not x.shape[self.batch_first]:
            raise ValueError(f"{type(self).__name__}: x has shape {x.shape}, whose sequences have 0 steps but need at "
                             "least 1; leave empty ones out")
        x = x.swapaxes(0, 1) if self.batch_first else x
        last, outputs = [], []
        for i, end in enumerate(ends):
            w_ih, w_hh, b_ih, b_hh = self._of(end)
            state, back = ops.stack([each[i] for each in states]), end.endswith("_reverse")
            after = ops.recurrence(ops.linear(x, w_ih, b_ih), w_hh, state, b_hh, kind=self.kind, reverse=back)
            last.append(after[:, 0 if back else -1])
            outputs.append(after[0])
            if len(outputs) > self.bidirectional:
                x = outputs[0] if len(outputs) == 1 else ops.concatenate(outputs, 2)
                outputs = []
                if self.dropout and self.training and i + 1 < len(ends):
                    x = ops.dropout(x, self.dropout)
        ended = ops.stack(last, axis=1).unbind(0)
        return x.swapaxes(0, 1) if self.batch_first else x, ended if len(ended) > 1 else ended[0]

    def extra_repr(self) -> str:
        return (super().extra_repr() + f", num_layers={self.num_layers}" * (self.num_layers > 1)
                + ", bias=False" * (not self.bias) + ", batch_first=True" * self.batch_first
                + f", dropout={self.dropout}" * (self.dropout > 0) + ", bidirectional=True" * self.bidirectional)


class RNN(_Layers):
    """Elman's net: h = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu. Inputs, options and results as for `LSTM`, but the
    state is h alone.

    >>> y, h = RNN(3, 2)(Tensor([[[1.0, 2.0, 3.0]]])); y.shape, h.shape
    ((1, 1, 2), (1, 1, 2))
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh",
                 bias: bool = True, batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False):
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
                         self._plain(nonlinearity))


class LSTM(_Layers):
    """Long short-term memory: c = sigmoid(f) c + sigmoid(i) tanh(g) and h = sigmoid(o) tanh(c), where i, f, g and o are
    W_ih x + b_ih + W_hh h + b_hh, in this order in the parameters.

    x (l,n,input_size), or (n,l,input_size) with batch_first; a state (h, c), each (layers,n,hidden_size), by default 0
    -> (the last layer's h of each step, (h, c) of each layer after its last step). dropout: in training, of the output
    of each layer but the last. bidirectional: each layer also reads from the end, with a state of its own, and both
    h are joined.

    >>> y, (h, c) = LSTM(3, 2, num_layers=2, batch_first=True)(Tensor([[[1.0, 2.0, 3.0]] * 5])); y.shape, h.shape
    ((1, 5, 2), (2, 1, 2))
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False):
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, "lstm")


class GRU(_Layers):
    """Gated recurrent units: h = (1 - z) n + z h, with the gates r and z and n = tanh(W_in x + b_in + r (W_hn h +
    b_hn)), in this order in the parameters. Inputs, options and results as for `LSTM`, but the state is h alone.

    >>> y, h = GRU(3, 2)(Tensor([[[1.0, 2.0, 3.0]]])); y.shape, h.shape
    ((1, 1, 2), (1, 1, 2))
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False):
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, "gru")
