"""Layers over sequences: recurrent nets and attention by several heads, beside PyTorch's with the same weights."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, gradcheck, nn, ops, optim

RNG = np.random.default_rng(3)
X, SHORT = RNG.standard_normal((5, 3, 4)), RNG.standard_normal((3, 4))
STATES = RNG.standard_normal((4, 3, 6))


def seeded(make: Callable[[], Any]) -> Any:
    minidl.manual_seed(1)
    return make()


# name -> the layer, as text that either library runs
LAYERS = {
    **{f"{kind} {options}": f"nn.{kind}(4, 6{options})" for kind, options in itertools.product(("RNN", "LSTM", "GRU"), (
        "", ", num_layers=2", ", batch_first=True", ", bias=False", ", bidirectional=True",
        ", num_layers=2, bidirectional=True, batch_first=True"))},
    "RNN of relu": "nn.RNN(4, 6, 1, 'relu')", "LSTM by place": "nn.LSTM(4, 6, 2, False, True)",
}
CELLS = {"RNNCell": "nn.RNNCell(4, 6)", "RNNCell of relu": "nn.RNNCell(4, 6, True, 'relu')",
         "LSTMCell": "nn.LSTMCell(4, 6)", "GRUCell": "nn.GRUCell(4, 6)",
         "GRUCell without bias": "nn.GRUCell(4, 6, False)"}


def flat(value: Any) -> list[Any]:
    return [each for part in value for each in flat(part)] if isinstance(value, (tuple, list)) else [value]


def run(layer: Any, make: Callable[..., Any], name: str, with_state: bool) -> list[np.ndarray]:
    """All results, and the gradients of the input, of the state and of the parameters."""
    cell, count = name in CELLS, sum(1 for each, _ in layer.named_parameters() if each.startswith("weight_hh"))
    x = make(SHORT if cell else X, requires_grad=True)
    sizes = (3, 6) if cell else (count, X.shape[0 if layer.batch_first else 1], 6)
    states = [make(np.resize(STATES, sizes), requires_grad=True) for _ in range(2 if "LSTM" in name else 1)]
    given = (states if len(states) > 1 else states[0]) if with_state else None
    found = flat(layer(x, tuple(given) if isinstance(given, list) else given))
    sum((each * each).sum() for each in found).backward()
    leaves = [x, *(states if with_state else []), *(p for _, p in sorted(layer.named_parameters()))]
    return [*(each.detach().numpy() for each in found), *(leaf.grad.numpy() for leaf in leaves)]


@pytest.mark.torch
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("name", {**LAYERS, **CELLS})
def test_recurrent_layers_are_pytorchs(name: str, with_state: bool) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    text = {**LAYERS, **CELLS}[name]
    twin, layer = eval(text, {"nn": torch.nn}).double(), eval(text, {"nn": nn}).double()
    assert list(layer.state_dict()) == list(twin.state_dict())
    layer.load_state_dict(twin.state_dict())
    theirs = run(twin, lambda array, **options: torch.tensor(array, **options), name, with_state)
    for got, want in zip(run(layer, Tensor, name, with_state), theirs, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12, strict=True)
    twin, layer = twin.float(), layer.float()
    x = (SHORT if name in CELLS else X).astype(np.float32)
    for got, want in zip(flat(layer(Tensor(x))), flat(twin(torch.tensor(x))), strict=True):
        np.testing.assert_allclose(got.numpy(), want.detach().numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_its_cell_step_by_step(name: str) -> None:
    """One layer and one direction are the cell; more of them are several such layers."""
    layer = seeded(lambda: eval(LAYERS[name], {"nn": nn}).double())
    x = Tensor(X).swapaxes(0, 1) if layer.batch_first else Tensor(X)
    y, ended = layer(x)
    weights, below, last = layer.state_dict(), Tensor(X), []
    for level in range(layer.num_layers):
        ways = []
        for way in ("", "_reverse")[:1 + layer.bidirectional]:
            kind = type(layer).__name__
            more = ["relu"] * (layer.kind == "relu")
            cell = getattr(nn, f"{kind}Cell")(below.shape[2], 6, layer.bias, *more).double()
            cell.load_state_dict({part: weights[f"{part}_l{level}{way}"] for part in cell.state_dict()})
            state, hs = None, []
            for t in range(5)[::-1 if way else 1]:
                state = cell(below[t], state)
                hs.append(state[0] if kind == "LSTM" else state)
            last.append(state)
            ways.append(ops.stack(hs[::-1] if way else hs))
        below = ops.concatenate(ways, 2)
    np.testing.assert_allclose((y.swapaxes(0, 1) if layer.batch_first else y).numpy(), below.numpy(), rtol=1e-12)
    for got, want in zip(flat(ended), zip(*map(flat, last), strict=True), strict=True):
        np.testing.assert_allclose(got.numpy(), ops.stack(want).numpy(), rtol=1e-12)


@pytest.mark.parametrize("name", CELLS)
def test_gradients_of_cells(name: str) -> None:
    layer = seeded(lambda: eval(CELLS[name].replace("4, 6", "2, 3"), {"nn": nn}).double())
    if "relu" in name:
        layer.bias_ih.data[...] = 3.0      # away from the kink
    given = [Tensor(SHORT[:2, :2], requires_grad=True), *(Tensor(STATES[i, :2, :3], requires_grad=True)
                                                          for i in range(1 + ("LSTM" in name)))]
    parameters = list(layer.parameters())

    def fn(x: Tensor, *rest: Tensor) -> Tensor:
        state = rest[:len(given) - 1]
        found = layer(x, state if len(state) > 1 else state[0])
        return ops.concatenate(flat(found), 1)
    gradcheck(fn, [*given, *parameters])


@pytest.mark.parametrize("name", ["LSTM ", "GRU , num_layers=2", "RNN , bidirectional=True", "LSTMCell", "GRUCell",
                                  "attention", "attention of a mask"])
def test_a_compiled_step_is_the_plain_one(name: str) -> None:
    """Without a state too, whose zeros are made in the step."""
    def make() -> Any:
        if "attention" in name:
            return nn.MultiheadAttention(4, 2, batch_first=True)
        return eval({**LAYERS, **CELLS}[name], {"nn": nn})
    nets = [seeded(make) for _ in range(2)]
    mask = Tensor(np.triu(np.ones((3, 3), bool), 1)) if "mask" in name else None
    losses: list[list[float]] = []
    for net, compiled in zip(nets, (False, True), strict=True):
        sgd = optim.SGD(net.parameters(), lr=0.1)

        def step(x: Tensor, net: Any = net, sgd: Any = sgd) -> Tensor:
            sgd.zero_grad()
            found = net(x, x, x, attn_mask=mask)[0] if "attention" in name else flat(net(x))[0]
            loss = (found * found).mean()
            loss.backward()
            sgd.step()
            return loss
        call = minidl.compile(step) if compiled else step
        losses.append([call(Tensor((SHORT if "Cell" in name else X).astype(np.float32) + i)).item() for i in range(5)])
    assert losses[0] == losses[1]
    for a, b in zip(*(net.state_dict().values() for net in nets), strict=True):
        np.testing.assert_array_equal(a, b)


def test_dropout_is_between_layers_in_training_alone() -> None:
    net = seeded(lambda: nn.LSTM(4, 6, num_layers=2, dropout=0.5))
    x = Tensor(X.astype(np.float32))
    assert (net(x)[0].numpy() != net(x)[0].numpy()).any()
    net.eval()
    np.testing.assert_array_equal(net(x)[0].numpy(), net(x)[0].numpy())
    with pytest.warns(UserWarning, match=r"^LSTM: dropout is 0\.5 but num_layers is 1, and nothing is dropped") as seen:
        one = nn.LSTM(4, 6, dropout=0.5)
    assert seen[0].filename == __file__    # as PyTorch warns
    np.testing.assert_array_equal(one(x)[0].numpy(), one(x)[0].numpy())


@pytest.mark.parametrize(("call", "words"), [
    (lambda: nn.LSTM(0, 6), "LSTM: input_size is 0 but must be an int of at least 1"),
    (lambda: nn.GRU(4, 6, 0), "GRU: num_layers is 0 but must be an int of at least 1"),
    (lambda: nn.RNN(4, 6, nonlinearity="sigmoid"), "RNN: nonlinearity is 'sigmoid' but must be 'tanh' or 'relu'"),
    (lambda: nn.RNN(4, 6, nonlinearity="gru"), "RNN: nonlinearity is 'gru' but must be 'tanh' or 'relu'"),
    (lambda: nn.RNNCell(4, 6, nonlinearity="lstm"), "RNNCell: nonlinearity is 'lstm' but must be 'tanh' or 'relu'"),
    (lambda: nn.LSTM(4, 6, dropout=1.0), r"LSTM: dropout is 1\.0 but must be in \[0, 1\)"),
    (lambda: nn.LSTM(4, 6)(Tensor(SHORT)), r"LSTM: x has shape \(3, 4\) but must be \(l,n,input_size\) with an input_"),
    (lambda: nn.GRU(5, 6, batch_first=True)(Tensor(X)), r"GRU: x has shape \(5, 3, 4\) but must be \(n,l,input_size\)"),
    (lambda: nn.GRUCell(4, 6)(Tensor(X)), r"GRUCell: x has shape \(5, 3, 4\) but must be \(n,input_size\) with an"),
    (lambda: nn.LSTM(4, 6)(Tensor(X), Tensor(STATES)), r"LSTM: the state has shapes \[\(4, 3, 6\)\] but must be 2 of"),
    (lambda: nn.GRUCell(4, 6)(Tensor(SHORT), Tensor(X)), r"GRUCell: the state has shapes .* but must be 1 of \(3, 6\)"),
    (lambda: nn.MultiheadAttention(5, 2), "MultiheadAttention: embed_dim is 5, num_heads 2 and dropout 0.0 but the"),
    (lambda: nn.MultiheadAttention(4, 2)(*[Tensor(SHORT)] * 3), r"MultiheadAttention: query \(3, 4\), key \(3, 4\)"),
    (lambda: nn.MultiheadAttention(4, 2)(*[Tensor(X)] * 3, is_causal=True),
     "MultiheadAttention: is_causal is True but attn_mask is not given"),
    (lambda: nn.MultiheadAttention(4, 2).double()(*[Tensor(X)] * 3, attn_mask=Tensor([[True]])),
     r"MultiheadAttention: attn_mask has shape \(1, 1\) but must have \(5, 5\) or \(6, 5, 5\); see \.reshape"),
    (lambda: nn.MultiheadAttention(4, 2).double()(*[Tensor(X)] * 3, Tensor([[True]])),
     r"MultiheadAttention: key_padding_mask has shape \(1, 1\) but must have \(3, 5\); see"),
    (lambda: nn.MultiheadAttention(4, 2)(Tensor(X), Tensor(X[:, :2]), Tensor(X[:, :2])),
     r"MultiheadAttention: query \(5, 3, 4\), key \(5, 2, 4\) and value \(5, 2, 4\) must have one batch size"),
    (lambda: nn.MultiheadAttention(4, 2)(Tensor(X), Tensor(X), Tensor(X[:2])),
     "MultiheadAttention: query .* and a value for each key"),
    (lambda: nn.MultiheadAttention(4, 2, 0.0, 3),  # type: ignore[arg-type]
     "MultiheadAttention: bias is 3 but must be True or False"),
    (lambda: nn.RNNCell(4, 6, "relu"), "RNNCell: bias is 'relu' but must be True or False"),  # type: ignore[arg-type]
    (lambda: nn.LSTM(4, 6, 1, "tanh"), "LSTM: bias is 'tanh' but must be True or False"),  # type: ignore[arg-type]
    (lambda: nn.GRU(4, 6, batch_first="no"), "GRU: batch_first is 'no' but"),  # type: ignore[arg-type]
    (lambda: nn.GRU(4, 6)(Tensor(X[:0])), r"GRU: x has shape \(0, 3, 4\), whose sequences have 0 steps"),
    (lambda: nn.GRU(4, 6)(Tensor(X), (Tensor(STATES),) * 2), "GRU: the state has shapes .*; pass h alone$"),  # type: ignore[arg-type]
])
def test_what_is_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}"):
        call()


@pytest.mark.parametrize("name", ["attn_mask", "key_padding_mask"])
@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_masks_of_integers_are_refused(name: str, dtype: str) -> None:
    """As in PyTorch; added to the scores, 0 and 1 would mask nothing."""
    mask = Tensor(np.ones((5, 5) if name == "attn_mask" else (3, 5), dtype))
    with pytest.raises(TypeError, match=f"^MultiheadAttention: {name} has dtype {dtype} but must be bool, True where"):
        nn.MultiheadAttention(4, 2).double()(*[Tensor(X)] * 3, **{name: mask})


def test_layers_look_as_they_were_made_and_are_copied() -> None:
    net = nn.LSTM(4, 6, num_layers=2, bias=False, batch_first=True, dropout=0.1, bidirectional=True)
    assert repr(net) == "LSTM(4, 6, num_layers=2, bias=False, batch_first=True, dropout=0.1, bidirectional=True)"
    assert repr(nn.MultiheadAttention(4, 2, 0.1, False, batch_first=True)).splitlines()[1].strip() == (
        "4, 2, dropout=0.1, bias=False, batch_first=True")
    np.testing.assert_array_equal(copy.deepcopy(net).weight_hh_l1_reverse.numpy(), net.weight_hh_l1_reverse.numpy())
    assert not hasattr(net, "nothing")
    share = np.float32(0.25)
    assert repr(nn.LSTM(4, 6, 2, dropout=share)) == "LSTM(4, 6, num_layers=2, dropout=0.25)"
    assert "dropout=0.25" in repr(nn.MultiheadAttention(4, 2, share))
    with pytest.raises(TypeError, match=r"^LSTM: x is a list but must be a Tensor; wrap it in minidl.Tensor"):
        nn.LSTM(1, 2)([[1.0]])             # type: ignore[arg-type]
    with pytest.raises(TypeError, match=re.escape("unexpected keyword argument 'proj_size'")):
        nn.LSTM(4, 6, proj_size=2)         # type: ignore[call-arg]


# ---------------------------------------------------------------- attention
Q, K = RNG.standard_normal((3, 5, 4)), RNG.standard_normal((3, 7, 4))
BOOLS = {"attn_mask": RNG.random((5, 7)) < 0.3, "key_padding_mask": np.arange(7) > np.array([[3], [6], [5]])}
MASKS: dict[str, dict[str, np.ndarray]] = {
    "none": {}, "of pairs": {"attn_mask": BOOLS["attn_mask"]},
    "of keys": {"key_padding_mask": BOOLS["key_padding_mask"]},
    "both": BOOLS, "added": {"attn_mask": RNG.standard_normal((5, 7))},
    "of each head": {"attn_mask": RNG.standard_normal((6, 5, 7))}}


@pytest.mark.torch
@pytest.mark.parametrize("options", [{}, {"need_weights": False}, {"average_attn_weights": False}], ids=str)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_attention_is_pytorchs(mask: str, bias: bool, batch_first: bool, options: dict[str, bool]) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    twin = torch.nn.MultiheadAttention(4, 2, bias=bias, batch_first=batch_first).double()
    layer = nn.MultiheadAttention(4, 2, bias=bias, batch_first=batch_first).double()
    assert list(layer.state_dict()) == list(twin.state_dict())
    layer.load_state_dict(twin.state_dict())
    found = []
    for net, make in ((layer, Tensor), (twin, torch.tensor)):
        query, key, value = (make(np.array(each if batch_first else each.swapaxes(0, 1)), requires_grad=True)
                             for each in (Q, K, K + 1))
        y, weights = net(query, key, value, **{name: make(each) for name, each in MASKS[mask].items()}, **options)
        ((y * y).sum() + (0 if weights is None else (weights * weights).sum())).backward()
        found.append([y, weights, *(each.grad for each in (query, key, value)),
                      *(p.grad for _, p in sorted(net.named_parameters()))])
    for got, want in zip(*found, strict=True):
        assert (got is None) == (want is None)
        if got is not None:
            np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-9, atol=1e-12, strict=True)


@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_by_the_op_and_with_weights_are_one(batch_first: bool) -> None:
    net = seeded(lambda: nn.MultiheadAttention(4, 2, batch_first=batch_first))
    x = Tensor(X.astype(np.float32))
    rows = 3 if batch_first else 5
    mask = Tensor(np.triu(np.ones((rows, rows), bool), 1))
    for more in ({}, {"attn_mask": mask}, {"attn_mask": mask, "is_causal": True}):
        y, weights = net(x, x, x, **more)
        alone, none = net(x, x, x, need_weights=False, **more)
        np.testing.assert_allclose(y.numpy(), alone.numpy(), rtol=0, atol=1e-6)
        np.testing.assert_allclose(weights.numpy().sum(-1), 1, rtol=1e-6)
        assert none is None
    net.dropout = 0.5
    assert (net(x, x, x, need_weights=False)[0].numpy() != alone.numpy()).any()
    assert net.eval()(x, x, x)[0].shape == x.shape


def test_gradients_of_attention() -> None:
    net = seeded(lambda: nn.MultiheadAttention(4, 2).double())
    mask = Tensor(np.triu(np.ones((2, 2), bool), 1))
    for need in (True, False):
        gradcheck(lambda x, *_, need=need: net(x, x, x * 2, need_weights=need, attn_mask=mask)[0],
                  [Tensor(X[:2], requires_grad=True), *net.parameters()])


def test_masks_of_both_kinds_in_float64() -> None:
    """A bool mask became float32."""
    net = nn.MultiheadAttention(4, 2, batch_first=True).to("float64")
    x = Tensor(np.random.default_rng(0).standard_normal((2, 3, 4)))
    hidden = Tensor(np.array([[False, False, True], [False, True, False]]))
    added = Tensor(np.random.default_rng(1).standard_normal((3, 3)))
    found = net(x, x, x, attn_mask=added, key_padding_mask=hidden)[0]
    whole = added.numpy() + np.where(hidden.numpy(), -np.inf, 0.0)[:, None]
    want = net(x, x, x, attn_mask=Tensor(np.repeat(whole, 2, axis=0)))[0]
    np.testing.assert_array_equal(found.numpy(), want.numpy())
