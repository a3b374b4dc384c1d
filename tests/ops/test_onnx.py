"""Nets as ONNX files: onnxruntime gives what the net gives, and what a file cannot say is refused by name."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, nn, ops, zoo
from minidl import onnx as exporter
from minidl.core.host import install

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the package onnxruntime is not installed")

CLOSE = 1e-5                                   # of logits, of which the largest are about 1


def images(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(path: Path, *inputs: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {each.name: array for each, array in zip(session.get_inputs(), inputs, strict=True)})


def furthest(net: Callable[..., Any], path: Path, example: tuple[np.ndarray, ...], batches: tuple[int, ...]) -> float:
    """Export a net, and the largest difference of its results from onnxruntime's, for batches of several sizes."""
    exporter.export(net, path, example)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    worst = 0.0
    for n in batches:
        inputs = tuple(images(n, *x.shape[1:], seed=n).astype(x.dtype) for x in example)
        results = net(*map(Tensor, inputs))
        theirs = run(path, *inputs)
        for mine, other in zip(results if isinstance(results, tuple) else (results,), theirs, strict=True):
            assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
            worst = max(worst, float(abs(mine.numpy().astype("f8") - other).max(initial=0)))
    return worst


@pytest.mark.parametrize(("name", "channels", "options"), [
    ("lenet5", 1, {}), ("lenet5", 3, {"activation": "relu"}), ("krizhevsky2009", 3, {}), ("perceptron", 1, {}),
    ("mlp", 3, {"hidden": 100}), ("resnet", 3, {"depth": 8, "width": 4})])
def test_the_zoos_nets(tmp_path: Path, name: str, channels: int, options: dict[str, Any]) -> None:
    net = zoo.build(name, in_channels=channels, **options).eval()
    for parameter in net.parameters():         # or the mlp's outputs are 0
        parameter.data[...] += 0.01
    assert furthest(net, tmp_path / "net.onnx", (images(2, channels, 32, 32),), (1, 2, 7)) <= CLOSE
    model = onnx.load(tmp_path / "net.onnx")
    assert {each.name for each in model.graph.initializer} >= {path for path, _ in net.named_parameters()}
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert (model.graph.name, model.producer_name, model.producer_version) == (name, "minidl", minidl.__version__)


class Own(nn.Module):
    """What a user may write: pads, pools, dropout, a residual sum, a product, a buffer, branches that are joined."""

    def __init__(self) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=((1, 0), (2, 1)))
        self.c2 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.drop = nn.Dropout(0.5)
        self.mean = Tensor(images(1, 3, 1, 1))
        self.output = nn.Linear(8, 5)
        self.mix = Tensor(images(4, 4), requires_grad=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = ops.relu(self.c1((x - self.mean) / 2.0))
        x = x + ops.tanh(self.c2(x))
        one = ops.avg_pool2d(x, size=3, stride=2, padding=((1, 0), (2, 1)))
        two = ops.max_pool2d(x, size=(3, 2), stride=(1, 2), padding=((0, 2), (1, 0)))
        one = ops.matmul(self.mix, one.reshape(one.shape[0], 4, -1)).max(axis=2)
        two = self.drop(two.transpose(0, 2, 3, 1)).mean(axis=(1, -2))
        joined = ops.concatenate([one, two], axis=1)
        return self.output(joined), ops.softmax(1.0 - joined[:, 1::2] ** 2, axis=1)


def test_a_users_net(tmp_path: Path) -> None:
    net = Own().eval()
    assert furthest(net, tmp_path / "net.onnx", (images(3, 3, 9, 8),), (1, 3, 4)) <= CLOSE


PAIR = images(2, 4, 6), images(2, 4, 6)
RECURRENT = [each.eval() for each in (
    nn.LSTM(6, 4, 2, batch_first=True, bidirectional=True), nn.GRU(6, 4, 2, batch_first=True, bidirectional=True),
    nn.GRU(6, 4, bias=False, batch_first=True))]


def recurrent(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """From a state that is computed, and from zeros, of the batch's size."""
    h = ops.concatenate([y[:, :, :4], y[:, :1, 2:]], axis=1).swapaxes(0, 1)
    lstm, gru, one = RECURRENT
    found, (last, cells) = lstm(x, (h[:4], h[1:]))
    return found, last, cells, *gru(x, h[:4]), *one(x, h[:1]), lstm(x)[0], gru(x)[1]


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "arithmetic": (lambda x, y: (x + y, x - 2, 3 * y, x / (y * y + 1.0), -x, (x * x) ** 1.5), PAIR),
    "functions": (lambda x, y: (ops.exp(x), ops.log(x * x + 1.0), ops.sqrt(x * x), ops.sigmoid(y),
                                ops.rsqrt(x * x + 1.0), ops.sin(x), ops.cos(x), ops.sign(x), ops.floor(x * 3),
                                ops.ceil(x * 3), ops.round(x * 3), ops.erf(x)), PAIR),
    "comparisons": (lambda x, y: (x > y, x >= 0, x < y, x <= 0.5, ops.eq(x, y), ops.ne(x, y)), PAIR),
    "reductions": (lambda x, y: (x.sum(axis=1), y.mean(axis=(1, 2), keepdims=True), x.max(axis=-1), x.argmax(axis=1),
                                 x.sum(axis=0), x.mean()), PAIR),
    "all": (lambda x, y: (x.sum(), x.argmax(), y.max(), x.sum() + y.mean()), PAIR),
    "choices": (lambda x, y: (ops.abs(x), ops.maximum(x, y), ops.minimum(x, 0.25), ops.clip(x, -0.5, 0.5),
                              ops.clip(y, low=0.0), ops.where(x > y, x, 0.0), ops.where(y > 0, 1.0, x)), PAIR),
    "statistics": (lambda x, y: (x.min(axis=1), ops.argmin(x, axis=2), ops.argmin(y), ops.var(x, axis=(1, 2)),
                                 ops.var(x, axis=0, correction=0), ops.std(y, axis=-1, keepdims=True),
                                 ops.norm(x, axis=1), ops.norm(y), x.norm(dim=1, keepdim=True),
                                 ops.cumsum(x, axis=1)), PAIR),
    "arranged": (
        lambda x, y: (ops.clone(x), ops.pad(x, (1, 2, 0, 3), value=2.0), ops.expand(x[:, :1], (-1, 3, 6)),
                      ops.flip(x, 1), ops.unsqueeze(x, 1), ops.squeeze(x[:, :1], 1), ops.stack([x, y], 1),
                      *ops.split(x, 2, 1)), PAIR),
    "softmax": (lambda x, y: (ops.softmax(x, axis=1), ops.log_softmax(y)), PAIR),
    "shapes": (lambda x, y: (x.flatten(1), x.reshape(-1, 3), x.reshape(x.shape[0], 2, 2, -1), y.T,
                             y.transpose(0, -1, 1), x.flatten()), PAIR),
    "indices": (lambda x, y: (x[:, 1], x[:, -1, ::2], x[..., None, 1:-1], y[:, ::-1], y[:, None, 3:1:-1], x[0],
                              x[-1:, :2, 0], x[...], x[1:]), (images(3, 4, 6), images(3, 4, 6))),
    "products": (lambda x, y: (ops.matmul(x, y.transpose(0, 2, 1)), x @ y[0].T), PAIR),
    "attention": (lambda x, y: (
        ops.scaled_dot_product_attention(x, y, x), ops.scaled_dot_product_attention(x, y[:, 1:], x[:, 1:], scale=0.3),
        ops.scaled_dot_product_attention(x, y, y, is_causal=True),
        ops.scaled_dot_product_attention(x[:, None], y[:, None], y[:, None], x[:, None, :, :4]),
        ops.scaled_dot_product_attention(x, y, x, (x > 0)[:, :, :4] & Tensor([[True], [False]] * 2))), PAIR),
    "recurrences": (recurrent, PAIR),
    "losses": (lambda x, y: (ops.mse_loss(x, y), ops.mse_loss(x, y, reduction="none"), ops.l1_loss(x, y),
                             ops.l1_loss(x, y, reduction="sum")), PAIR),
    "joined": (lambda x, y: ops.concatenate([x, y[:, :2], x], axis=-2), PAIR),
    "an input": (lambda x, y: (y, x, x.detach()), PAIR),
    "a constant": (lambda x, y: (x + Tensor(np.arange(6.0, dtype=np.float32)), Tensor([1.0])), PAIR),
    "masks": (lambda x, y: ((x > 0) & (x < 1), (x > 0) | (y > 0), (x > 0) ^ (y > 0), ~(x > 0), True & (x > 0),
                            (x > 0).any(axis=1), (x > 0).all(), (x > 0).max(axis=1), (x > 0).argmax(axis=1),
                            (x > 0).sum(axis=1), (x > 0).cumsum(1), (x > 0) + (y > 0), (x > 0) * 3, (x > 0) < (y > 0),
                            ops.ge(x > 0, 1), ops.abs(x > 0), ops.clip(x > 0, 0, 1)), PAIR),
    "masks as they are": (lambda x, y: (
        ops.where(x > 0, y > 0, x > 1), ops.where(x > 0, True, y > 1), ops.flip(x > 0, 1), ops.eq(x > 0, False),
        ops.where((x > 0) & (x < 1), x, 0.0), (x > 0)[:, 1:], ops.pad(x > 0, (1, 2)), (x > 0).T, (x > 0).flatten(1),
        ops.expand((x > 0)[:, :1], (-1, 3, 6)), ops.concatenate([x > 0, y > 0], axis=1)), PAIR),
    "masks as numbers": (lambda x, y: (x * (x > 0), (x > 0) - y, ops.where(x > 0, x, y > 0), ops.where(x > 0, 1.0, 0.0),
                                       ops.where(x > 0, -1, 2), (x > 0) @ y[0].T, (x > 0).all() * x), PAIR),
    "conversions": (lambda x, y: ((x > 0).float() * x, (3 * x).to(dtype="int64"), x.bool(), (x > 0).int(),
                                  (x > 0).float().mean(axis=1), x.double() * y.double(), x.argmax(axis=1).float(),
                                  x.sum().to(dtype="float64"), x.float()), PAIR),
    "integers": (lambda x: (x + 1, x * x, x.max(axis=1)), (np.arange(8).reshape(2, 4),)),
    "pools": (lambda x: (ops.avg_pool2d(x, size=(2, 3), stride=(1, 2), padding=((1, 0), (0, 2))),
                         ops.avg_pool2d(x, size=3, padding=1), ops.max_pool2d(x, size=2, stride=3, padding=1)),
              (images(2, 3, 7, 8),)),
    "groups and responses": (lambda x: ops.local_response_norm(
        ops.conv2d(x, Tensor(images(6, 2, 3, 3)), Tensor(images(6)), padding=1, groups=2), 4, 0.5, 0.75, 2.0),
        (images(2, 4, 7, 6),)),
    "normalisations": (lambda x: (
        ops.batch_norm(x, Tensor(images(4)), Tensor(images(4) ** 2), Tensor(images(4)), Tensor(images(4))),
        ops.batch_norm(x, Tensor(images(4)), Tensor(images(4) ** 2), eps=0.1), ops.layer_norm(x, 6),
        ops.layer_norm(x, (7, 6), Tensor(images(7, 6)), Tensor(images(7, 6)), 0.1), ops.group_norm(x, 2),
        ops.group_norm(x, 4, Tensor(images(4)), Tensor(images(4)), 0.1)), (images(2, 4, 7, 6),)),
    "units": (lambda x, y: (ops.gelu(x), ops.gelu(y, "tanh"), ops.silu(x), ops.leaky_relu(x), ops.leaky_relu(y, 0.3),
                            ops.elu(x), ops.elu(y, 0.7), ops.softplus(x), ops.hardsigmoid(3.0 * y),
                            ops.prod(x, axis=1)), PAIR),
    "options that are ints": (lambda x: (
        ops.leaky_relu(x, negative_slope=0), ops.elu(x, alpha=1), ops.layer_norm(x, 6, eps=1),
        ops.group_norm(x, 2, eps=1), ops.batch_norm(x, Tensor(images(4)), Tensor(images(4) ** 2), eps=1)), PAIR[:1]),
    "embedding": (lambda i: ops.embedding(ops.minimum(ops.maximum(i, 0), 6), Tensor(images(7, 3))),
                  (np.array([[1, 6, 0], [0, 2, 3]]),)),
    "linear of many axes": (lambda x, y: (ops.linear(x, Tensor(np.ones((2, 6), np.float32)), Tensor([1.0, 2.0])),
                                          ops.linear(y, Tensor(np.ones((3, 6), np.float32)))), PAIR),
    "other convolutions": (lambda x: (
        ops.conv2d(x, Tensor(images(5, 3, 3, 2)), padding=1, stride=(1, 2), dilation=(2, 3)),
        ops.conv1d(x[:, :, 0], Tensor(images(5, 3, 3)), dilation=2),
        ops.conv2d(x, Tensor(images(5, 3, 3, 2)), padding="same", dilation=(2, 3)),
        ops.conv2d(x, Tensor(images(5, 3, 4, 3)), padding="same"),
        ops.conv_transpose2d(x, Tensor(images(3, 2, 3, 2)), Tensor(images(2)), stride=2, padding=((1, 0), (0, 1)),
                             output_padding=1), ops.interpolate(x, scale_factor=2), ops.pixel_shuffle(x[:, :1], 1),
        ops.adaptive_avg_pool2d(x, 1), ops.adaptive_avg_pool2d(x, (2, 3))), (images(2, 3, 7, 8),)),
    "convolutions": (lambda x: ops.conv2d(x, Tensor(images(5, 3, 3, 2)), Tensor(images(5)), stride=(1, 2),
                                          padding=((2, 0), (1, 3)), algorithm="direct"), (images(2, 3, 7, 8),)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_row(tmp_path: Path, name: str) -> None:
    function, example = FUNCTIONS[name]
    assert furthest(function, tmp_path / "net.onnx", example, (len(example[0]), 5)) <= CLOSE


COMPARED: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    "uint8": (lambda x: (x < 300, x > -1, x <= 300, ops.eq(x, 300), ops.ne(x, -1), x < 300.0, x < 2.5, x <= 1e30,
                         x < math.inf, ops.eq(x, 255)), np.array([[0, 255], [2, 3]], np.uint8)),
    "int64": (lambda x: (x < 2**63, x > -2**63 - 1, x < 10**400, x > -0.5, ops.eq(x, 2**63), x < 2**63 - 1),
              np.array([[2**63 - 1, -2**63], [0, -1]])),
    "masks": (lambda x: (ops.eq(x > 0, 2), ops.ne(x > 0, 0.5), (x > 0) < 2, (x > 0) > 0.5, (x > 0) > -1), images(2, 4)),
}


@pytest.mark.parametrize("name", COMPARED)
def test_integers_are_compared_with_any_number(tmp_path: Path, name: str) -> None:
    net, x = COMPARED[name]
    exporter.export(net, tmp_path / "net.onnx", x)
    for mine, other in zip(net(Tensor(x)), run(tmp_path / "net.onnx", x), strict=True):
        np.testing.assert_array_equal(mine.numpy(), other, strict=True)


def test_a_bound_on_one_side_leaves_infinity_on_the_other(tmp_path: Path) -> None:
    x = np.array([[math.inf, -math.inf, 2.0, -2.0]], np.float32)
    exporter.export(lambda x: (ops.clip(x, low=-1.0), ops.clip(x, high=1.0)), tmp_path / "net.onnx", x)
    np.testing.assert_array_equal(run(tmp_path / "net.onnx", x), [[[math.inf, -1, 2, -1]], [[1, -math.inf, 1, -2]]])


@pytest.mark.parametrize("of", [np.asarray, Tensor])
def test_one_example_may_be_given_for_several_inputs(tmp_path: Path, of: Callable[[np.ndarray], Any]) -> None:
    """They are inputs of their own in the file."""
    x, inputs = of(images(2, 4, 6)), tuple(images(3, 4, 6, seed=seed) for seed in range(3))
    attention = nn.MultiheadAttention(6, 2, batch_first=True).eval()
    hidden = Tensor(np.triu(np.ones((4, 4), bool), 1))
    nets: tuple[Callable[..., Tensor], ...] = (
        lambda a, b, c: a @ b.swapaxes(-1, -2) @ c, lambda q, k, v: attention(q, k, v)[0],
        lambda q, k, v: attention(q, k, v, attn_mask=hidden)[0])
    for net in nets:
        exporter.export(net, tmp_path / "net.onnx", (x, x, x))
        given, = run(tmp_path / "net.onnx", *inputs)
        np.testing.assert_allclose(given, net(*map(Tensor, inputs)).numpy(), atol=CLOSE)


def test_every_row_is_tried() -> None:
    seen: set[str] = set()

    class Seen(exporter._Trace):
        def note(self, name: str, *rest: Any) -> None:
            seen.add(name)
            super().note(name, *rest)

    for function, example in [*FUNCTIONS.values(), (Own().eval(), (images(1, 3, 9, 8),))]:
        Seen(function, tuple(map(Tensor, example)))
    assert seen == set(exporter.ROWS)
    assert set(exporter.ROWS) - {"to"} <= set(ops.OPS)


class Drops(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return ops.dropout(x, 0.5)


def in_place(x: Tensor) -> Tensor:
    y = x * 2.0
    y += 1.0
    return y


HALF = Tensor(np.array(0.5), requires_grad=True)
REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "no row": (lambda x: ops.cross_entropy(x, [0] * x.shape[0]), "op 'cross_entropy' has no row in minidl.onnx.ROWS, wh"
               "ich has add, sub, mul,"),
    "dropout": (nn.Sequential(nn.Dropout(0.5)), "the net drops values at random; call net.eval() first"),
    "moments of the batch": (nn.BatchNorm1d(4, track_running_stats=False).eval(), "the net normalises by moments of "
                             "the batch; call net.eval() first, with layers that keep running ones"),
    "running values": (nn.BatchNorm1d(4), "the net changes a Tensor in place, which a file cannot repeat; compute a "
                       "new one, or call net.eval() where that is a layer's"),
    "axes that go for one image": (lambda x: x[1:].squeeze(), "an op gives shape (4,) for one batch and (6, 4) for "
                                   "another, which a file cannot say; name the axes that are to go, x.squeeze(1)"),
    "a value": (lambda x: x * float(x.max()), "the net reads a Tensor's values, which a file cannot repeat; return"),
    "an array": (lambda x: Tensor(x.data * 2), "the net takes a Tensor's array (.data), which a file cannot repeat"),
    "a parameter's cast": (lambda x: x * HALF.to(dtype="float32"), "the net moves a Tensor, or converts one that requir"
                           "es a gradient, with .to(), which a file cannot repeat"),
    "in place": (in_place, "the net changes a Tensor in place, which a file cannot repeat; compute a new one"),
    "a count": (lambda x: x / float(x.shape[0]), "the net does something else for another number of images; make its"),
    "another op": (lambda x: x if x.shape[0] > 2 else x * 2.0, "does something else for another number of images"),
    "a constant": (lambda x: x + Tensor(np.arange(x.shape[0], dtype=np.float32)[:, None]), "a constant has shape (2, 1"
                   ") for one batch and (7, 1), or other values, for another"),
    "another number for a batch": (lambda x: x + Tensor(np.full(x.shape, x.shape[0], np.float32)), "a constant has "
                                   "shape (2, 4) for one batch and (7, 4), or other values, for another"),
    "ones of half a batch": (lambda x: Tensor(np.ones((x.shape[0] // 2, 1), np.float32)), "a constant has shape (1, 1) "
                             "for one batch and (3, 1), or other values, for another"),
    "options": (lambda x: x[:x.shape[0] - 1], "getitem has the options {'index': slice(None, 1, None)} for one batch"),
    "half of a batch": (lambda x: x[:x.shape[0] // 2], "getitem has the options {'index': slice(None, 1, None)} for on"
                        "e batch and {'index': slice(None, 3, None)} for another; make them independent"),
    "attention as wide as a batch": (
        lambda x: ops.scaled_dot_product_attention(x.T, x.T, x.T), "scaled_dot_product_attention divides by the root o"
        "f the batch's size, which a file does not know; pass scale"),
    "a mask": (lambda x: x[np.array([True, False, True, True])[:x.shape[0]]] if False else x[:, np.array([0, 2])],
               "getitem with an array of indices or a mask has no row"),
    "two sizes": (lambda x: ops.matmul(x, x.T).reshape(x.shape[0], 1, x.shape[0]), "reshape to (2, 1, 2) has 2 sizes "
                  "that depend on the batch but may have 1"),
    "nothing": (lambda x: (), "the net returned a tuple but must return a Tensor or a tuple of Tensors"),
    "no Tensor": (lambda x: [x], "the net returned a list but must return a Tensor or a tuple of Tensors"),
    "a product of ints": (lambda x: Tensor([1, 2]).mean() * 2, " of int64, which ONNX does not; convert the net"),
    "a mean of masks": (lambda x: (x > 0).mean(axis=1), "mean makes float64 of bool, which ONNX does not; convert the"),
    "half of an integer": (lambda x: ops.pad(x.argmax(axis=1), (1, 0), value=0.5), "pad takes 0.5 beside int64, in whic"
                           "h ONNX must have it; use a number that int64 holds"),
    "beyond an integer": (lambda x: ops.pad((x > 0).to(dtype="uint8"), (1, 0), value=-1.0), "pad takes -1.0 beside uint"
                          "8, in which ONNX must have it; use a number that uint8 holds"),
    "a dtype": (lambda x: -Tensor(np.ones(4, np.uint8)) + 0, "op 'neg' is written by Neg/0, which ONNX does not have f"
                "or these inputs: [ShapeInferenceError] "),
    "a variance": (lambda x: ops.var(x, axis=0), "var over the batch divides by its size, which a file"),
    "a batch's size": (lambda x: ops.expand(x[:1], (x.shape[0], 4)) + x, "for another; make them independent of the"),
    "backward": (lambda x: x.grad, "the net looks at a gradient, which a file cannot repeat"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_file_cannot_say_is_refused(tmp_path: Path, name: str) -> None:
    net, message = REFUSED[name]
    with pytest.raises(ValueError, match=f"^onnx.export: .*{re.escape(message)}"):
        exporter.export(net, tmp_path / "net.onnx", images(2, 4))
    assert not list(tmp_path.iterdir())
    ops.exp(Tensor([1.0])).numpy()             # nobody listens any more


def test_an_example_has_a_batch(tmp_path: Path) -> None:
    for example in (np.float32(1), np.zeros((0, 3), np.float32), (images(2, 3), images(3, 3))):
        with pytest.raises(ValueError, match=r"^onnx.export: an example has shape \(.*\) but axis 0 must be the batch"):
            exporter.export(lambda *x: x[0], tmp_path / "net.onnx", example)  # type: ignore[arg-type]


def test_names_of_parameters_do_not_collide(tmp_path: Path) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.input, self.output = Tensor([2.0]), Tensor([3.0], requires_grad=True)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.input + self.output

    assert furthest(Named(), tmp_path / "net.onnx", (images(2, 4),), (1, 3)) <= CLOSE


@pytest.mark.parametrize("name", sorted(set(ops.OPS) - set(exporter.ROWS)))
def test_an_op_without_a_row_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    calls: dict[str, Callable[[Tensor], Tensor]] = {
        "argsort": lambda x: x.sort()[0], "gather": lambda x: ops.gather(x, 1, np.zeros(x.shape, int)),
        "dropout": lambda x: ops.dropout(x, 0.5),
        "dropout2d": lambda x: ops.dropout2d(x.reshape(-1, 4, 1, 1), 0.5),
        "one_hot": lambda x: ops.one_hot([0] * x.shape[0], 3),
        **{each: getattr(ops, each) for each in ("log1p", "expm1", "tril", "triu")},
        "cross_entropy": lambda x: ops.cross_entropy(x, [0] * x.shape[0]),
        "nll_loss": lambda x: ops.nll_loss(x, [0] * x.shape[0])}
    message = "^onnx.export: .*drops values" if name.startswith("dropout") else f"^onnx.export: op '{name}' has no row"
    with pytest.raises(ValueError, match=message):
        exporter.export(calls.get(name, lambda x: getattr(ops, name)(x, x)), tmp_path / "net.onnx",
                        images(2, 4))


def test_a_row_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(exporter.ROWS, "tanh")
    with pytest.raises(ValueError, match="op 'tanh' has no row"):
        exporter.export(ops.tanh, tmp_path / "net.onnx", images(2, 4))
    monkeypatch.setitem(exporter.ROWS, "tanh", lambda graph, ndim, x: graph.node("Tanh", x))
    assert furthest(ops.tanh, tmp_path / "net.onnx", (images(2, 4),), (1, 3)) <= CLOSE


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=re.escape(f"onnx.export: needs the package onnx; run {install('onnx')}")):
        exporter.export(ops.tanh, tmp_path / "net.onnx", images(2, 4))


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^onnx.export: '.*no' is not a folder; create it"):
        exporter.export(ops.tanh, tmp_path / "no" / "net.onnx", images(2, 4))


# ---------------------------------------------------------------- PyTorch -> minidl -> ONNX -> onnxruntime
def torch_nets() -> dict[str, tuple[Any, nn.Module, int]]:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from torch.nn import AvgPool2d, Conv2d, Flatten, Linear, Sequential, Sigmoid, Tanh, ZeroPad2d

    torch.manual_seed(0)
    lenet5 = Sequential(Conv2d(1, 6, 5), Tanh(), AvgPool2d(2), Conv2d(6, 16, 5), Tanh(), AvgPool2d(2),
                        Conv2d(16, 120, 5), Tanh(), Flatten(), Linear(120, 84), Tanh(), Linear(84, 10))
    krizhevsky = Sequential(ZeroPad2d((4, 3, 4, 3)), Conv2d(3, 64, 8), Sigmoid(), AvgPool2d(4), Flatten(),
                            Linear(4096, 10))
    return {"lenet5": (lenet5, zoo.build("lenet5"), 1), "krizhevsky2009": (krizhevsky, zoo.build("krizhevsky2009"), 3)}


@pytest.mark.torch
@pytest.mark.parametrize("name", ["lenet5", "krizhevsky2009"])
def test_from_pytorch_to_onnxruntime(tmp_path: Path, name: str) -> None:
    theirs, mine, channels = torch_nets()[name]
    state = zip(mine.state_dict(), theirs.state_dict().values(), strict=True)     # the same order and layouts
    mine.load_state_dict({path: values.numpy() for path, values in state})
    exporter.export(mine, tmp_path / "net.onnx", images(1, channels, 32, 32))
    import torch

    x = images(16, channels, 32, 32)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(x)).numpy()
    ours, again = mine(Tensor(x)).numpy(), run(tmp_path / "net.onnx", x)[0]
    assert abs(expected).max() > 0.1
    assert abs(expected - ours).max() <= CLOSE
    assert abs(ours - again).max() <= CLOSE
    assert abs(expected - again).max() <= CLOSE
