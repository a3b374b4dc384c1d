"""Public bug reports of other projects, tried here: docs/notebook/reports.md names them. Each row is the right value,
or the words of a refusal."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, data, nn, ops, optim, training

RNG = np.random.default_rng(0)


def leaf(values: Any) -> Tensor:
    return Tensor(np.array(values, float), requires_grad=True)


def gradient(f: Callable[[Tensor], Tensor], values: Any) -> list[Any]:
    x = leaf(values)
    f(x).sum().backward()
    assert x.grad is not None
    return x.grad.tolist()


def assigned(x: np.ndarray, index: Any, values: Any) -> np.ndarray:
    t = Tensor(x.copy())
    t[index] = Tensor(np.array(values, float))
    return t.numpy()


def of_groups() -> list[Any]:
    w = leaf(np.ones((24, 1, 3, 3)))
    ops.conv2d(Tensor(np.ones((1, 24, 6, 6))), w, stride=2, padding=1, groups=24).sum().backward()
    assert w.grad is not None
    return w.grad.tolist()[0][0]


def of_dilation() -> list[Any]:
    w = leaf([[[3, 6]], [[4, 2]]])
    y = ops.conv1d(Tensor(np.array([[[7.0, 3]], [[3, 2]]])), w, None, 2, 1, 2)
    y.sum().backward()
    assert w.grad is not None
    return [y.tolist(), w.grad.tolist()]


def of_a_transposed_convolution() -> list[Any]:
    x, w = leaf(RNG.standard_normal((1, 2, 14, 14))), leaf(RNG.standard_normal((2, 2, 7, 7)))
    ops.conv_transpose2d(x, w, stride=16).sum().backward()
    assert x.grad is not None
    assert w.grad is not None
    return [x.grad.shape, w.grad.shape]


def added_in_part() -> list[float]:
    t, delta = Tensor(np.ones((32, 32))), np.zeros((16, 16))
    delta[8, 8] = -0.25
    with minidl.no_grad():
        t[0:16, 0:16] += Tensor(delta)
    return [t.numpy()[8, 8], t.sum().item()]


def of_a_compiled_step() -> bool:
    x, w = leaf(RNG.standard_normal((1, 2, 8, 8))), leaf(RNG.standard_normal((2, 2, 3, 3)))

    def step() -> Tensor:
        x.grad = w.grad = None
        y = ops.conv2d(x, w, padding=1)
        loss = ops.where(y > 0, y, ops.max_pool2d(y, 3, 1, 1)).sum()
        loss.backward()
        return loss
    step()
    assert x.grad is not None
    assert w.grad is not None
    plain, compiled = [x.grad.tolist(), w.grad.tolist()], minidl.compile(step)
    for _ in range(3):
        compiled()
    return plain == [x.grad.tolist(), w.grad.tolist()]


def of_batches(count: int, weights: Any = None) -> float:
    """The loss of a test set of three, less that of all at once."""
    x, y = RNG.standard_normal((3, 2), np.float32), np.array([0, 1, 0])
    net, kept = nn.Linear(2, 2), None if weights is None else Tensor(np.array(weights, np.float32))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return ops.cross_entropy(outputs, targets, kept)
    return training.evaluate(net, data.DataLoader((x, y), count, shuffle=False), loss=loss)[0] - loss(
        net(Tensor(x)), Tensor(y)).item()


def running() -> list[Any]:
    norm, x = nn.BatchNorm1d(2, momentum=0.25), RNG.standard_normal((8, 2))
    norm.to(dtype="float64")(Tensor(x))
    return [norm.running_mean.numpy() - 0.25 * x.mean(0), norm.running_var.numpy() - 0.75 - 0.25 * x.var(0, ddof=1)]


def in_another_order() -> bool:
    named = [(f"{at}.{name}", p) for at, net in (("a", nn.Linear(2, 3)), ("b", nn.Linear(3, 2)))
             for name, p in net.named_parameters()]
    first, second = (optim.SGD(each, 0.1, 0.9) for each in (named, named[::-1]))
    sum((p * p).sum() for _, p in named).backward()
    first.step()
    second.load_state_dict(first.state_dict())
    kept = dict(zip((name for name, _ in named), first.state_dict()["groups"][0]["velocities"], strict=True))
    return all((kept[name] == v).all() for (name, _), v in zip(
        named[::-1], second.state_dict()["groups"][0]["velocities"], strict=True))


NAN = math.nan
RIGHT: dict[str, tuple[Callable[[], Any], Any]] = {
    "tracel-ai/burn#5141": (lambda: gradient(lambda x: x.prod(), [2, 0, 3, 4]), [0, 24, 0, 0]),
    "pytorch/pytorch#31515": (lambda: gradient(lambda x: x.cumsum(1), np.zeros((2, 0))), [[], []]),
    "JuliaLang/julia#11080": (lambda: Tensor(np.full(1000, 0.9)).cumsum(0).numpy()[-1], 900),
    "openvinotoolkit/openvino#33626": (lambda: Tensor(np.full(58, NAN)).argmax().item(), 0),
    "ml-explore/mlx#4274": (lambda: [f.item() for a in ([3, NAN, 1, 5], [1, 2, NAN], [math.inf, NAN, -math.inf])
                                     for f in (Tensor(np.array(a)).argmax(), Tensor(np.array(a)).argmin())],
                            [1, 1, 2, 2, 1, 1]),
    "tinygrad/tinygrad#2194": (lambda: ops.pad(Tensor([5.0, 6.0]), (0, 1), value=2.0)[2].item(), 2),
    "tinygrad/tinygrad#2177": (lambda: ops.pad(Tensor([5.0, 6.0]), (1, 0))[0].item(), 0),
    "ml-explore/mlx#4444": (lambda: [
        gradient(lambda x: (x[0::2] * Tensor(np.array([[1.0, 2, 3]]))) + x[1::2] * 100, np.zeros((2, 3))),
        gradient(lambda x: x[::-3], np.zeros(3))], [[[1, 2, 3], [100, 100, 100]], [0, 0, 1]]),
    "jax-ml/jax#4599": (lambda: gradient(lambda x: x[2:2:2], np.ones(4)), [0, 0, 0, 0]),
    "ml-explore/mlx#3477": (added_in_part, [0.75, 1023.75]),
    "ml-explore/mlx#1050": (lambda: assigned(np.zeros((3, 4, 4, 4)), (0, slice(0, 4), 3, slice(0, 4)),
                                             np.ones((4, 4))).sum(), 16),
    "ml-explore/mlx#176": (lambda: assigned(np.zeros((4, 4)), (slice(1, -1), slice(1, -1)), [[1, 2], [3, 4]]).tolist(),
                           [[0, 0, 0, 0], [0, 1, 2, 0], [0, 3, 4, 0], [0, 0, 0, 0]]),
    "ml-explore/mlx#1826": (of_a_transposed_convolution, [(1, 2, 14, 14), (2, 2, 7, 7)]),
    "pytorch/pytorch#50042, #51430": (of_groups, [[4, 6, 6], [6, 9, 9], [6, 9, 9]]),
    "pytorch/pytorch#15501, #13008, #16012": (of_dilation, [[[[18], [6]], [[12], [4]]], [[[0, 5]], [[0, 5]]]]),
    "pytorch/pytorch#188344": (lambda: gradient(lambda x: ops.avg_pool2d(x, 2, 1, 1), np.zeros((1, 1, 4, 4))),
                               np.ones((1, 1, 4, 4)).tolist()),
    "FluxML/NNlib.jl#133": (lambda: gradient(lambda x: ops.max_pool2d(x, 2, 2, 1), np.arange(9.0).reshape(1, 1, 3, 3)),
                            [[[[1, 0, 1], [0, 0, 0], [1, 0, 1]]]]),
    "pytorch/pytorch#185509": (of_a_compiled_step, True),
    "keras-team/keras#19740": (lambda: ops.cross_entropy(Tensor([[1.0, 2.0], [3.0, 1.0]]), [0, 1],
                                                         Tensor([0.0, 1.0])).item(), math.log1p(math.exp(2))),
    "keras-team/keras#13641, #10305, #5549": (lambda: [of_batches(n, [0.7, 0.1]) for n in (1, 2, 3)], [0, 0, 0]),
    "keras-team/keras#19363": (lambda: [of_batches(n) for n in (1, 2, 3)], [0, 0, 0]),
    "scikit-learn/scikit-learn#21568": (lambda: training.top_k_accuracy(2)(
        Tensor([[0.1, 0.2, 0.7], [0.3, 0.4, 0.2]]), Tensor(np.array([2, 2]))).item(), 0.5),
    "paiml/aprender#2166, pytorch/pytorch#15298, #19916, #3122": (running, [0, 0]),
    "facebookresearch/fairscale#380": (in_another_order, True)}


@pytest.mark.parametrize("report", RIGHT)
def test_a_value_is_right(report: str) -> None:
    found, expected = RIGHT[report][0](), RIGHT[report][1]
    pairs = zip(*(each if isinstance(each, list) else [each] for each in (found, expected)), strict=True)
    for mine, right in pairs:
        np.testing.assert_allclose(np.array(mine, float), np.array(right, float), rtol=1e-6, atol=1e-6)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "ml-explore/mlx#610": (lambda: (leaf(np.ones((3, 3))) * 1).__iadd__(Tensor(np.ones((3, 3, 3)))), "iadd: the res"),
    "pytorch/pytorch#51036": (lambda: ops.interpolate(Tensor(np.ones((1, 2, 11, 13))), (7, 5)), "interpolate: size 7"),
    "torch/nn#1271, pytorch/pytorch#77014": (lambda: nn.BatchNorm1d(2)(Tensor([[1.0, 2.0]])), "batch_norm: .* no var"),
    "pytorch/pytorch#156051": (lambda: nn.BatchNorm1d(2, track_running_stats=False).eval()(Tensor([[1.0, 2.0]])),
                               "batch_norm: .* no variance"),
    "pytorch/pytorch#6031": (lambda: optim.SGD({*nn.Linear(2, 2).parameters()}, 0.1), "SGD: params is a set, whose"),
    "pytorch/pytorch#6031, of a group": (lambda: optim.Adam([{"params": {*nn.Linear(2, 2).parameters()}}], 0.1),
                                         "Adam: params is a set"),
    "pytorch/pytorch#6031, of averages": (lambda: optim.EMA({*nn.Linear(2, 2).parameters()}), "EMA: params is a set")}


@pytest.mark.parametrize("report", REFUSED)
def test_what_cannot_be_right_is_refused(report: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{REFUSED[report][1]}"):
        REFUSED[report][0]()


# ---------------------------------------------------------------- tables: the text, and its columns and classes
TABLES: dict[str, tuple[str, Any]] = {
    "pandas-dev/pandas#4793": ('\ufeff"Name","b","kind"\n1,2,x\n3,4,y\n', (("Name", "b"), ("x", "y"))),
    "pandas-dev/pandas#26634": ('\ufeff"a"\t"b"\t"k"\n1\t2\tx\n3\t4\ty\n', "has one column|names its column"),
    "pandas-dev/pandas#10018": ('a,b\n1,one\n2,"two\rowt"\n', "the label 'b' is 'two.*owt' but must be a text"),
    "pandas-dev/pandas#10911": ('a,b\n1,"x\ny"\n2,z\n', "the label 'b' is 'x.ny' but must be a text"),
    "pandas-dev/pandas#14459": ('a,k\n1,x"\n2,y\n', (("a",), ('x"', "y"))),
    "NVIDIA/cudf#873": ('a,k\n1,"say ""hi"""\n2,y\n', (("a",), ('say "hi"', "y"))),
    "adaltas/node-csv-parse#300": ('a,k\n1,x "q" z\n2,y\n', (("a",), ('x "q" z', "y"))),
    "whylabs/whylogs#1373": ("a,k\n1,0.0\n2,1.0\n3,nan\n", "line 4: the label 'k' is 'nan' but must be a class"),
    "mlpack/mlpack#2565": ("a,k\nnan,x\n2,y\n", "line 2: 'a' is 'nan' but must be a number")}


@pytest.mark.parametrize("report", TABLES)
def test_a_table_is_read_right_or_refused(report: str, tmp_path: Path) -> None:
    text, expected = TABLES[report]
    (tmp_path / "t.csv").write_bytes(text.encode())
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            data.from_csv(tmp_path / "t.csv")
    else:
        table = data.from_csv(tmp_path / "t.csv")
        assert (table.columns, table.classes) == expected


# ---------------------------------------------------------------- pictures: how one is saved, and two of its pixels
PICTURES: dict[str, tuple[dict[str, Any], Any]] = {
    "python-pillow/Pillow#7288, bigcat88/pillow_heif#238": ({"transparency": 0}, ([255, 255, 255], [200, 100, 50])),
    "bigcat88/pillow_heif#21, AUTOMATIC1111/stable-diffusion-webui#14958": (
        {"transparency": bytes([255, 0])}, ([10, 20, 30], [255, 255, 255])),
    "python-pillow/Pillow#6123": ({"exif": b"Exif\x00\x00"}, ([10, 20, 30], [200, 100, 50])),
    "python-pillow/Pillow#5528": ({"exif": b"Exif\x00\x00\x00\x08\x00\x02\x01\x12\x00\x03"}, "x.png cannot be read")}


@pytest.mark.parametrize("report", PICTURES)
def test_a_picture_is_read_right(report: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    options, expected = PICTURES[report]
    picture = image.new("P", (4, 4))
    picture.putpalette([10, 20, 30, 200, 100, 50] + [0] * 762)
    picture.putpixel((1, 1), 1)
    for name in "ab":
        (tmp_path / name).mkdir()
        picture.save(tmp_path / name / "x.png", **options)
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            data.from_folder(tmp_path, 4)
        return
    pixels = data.from_folder(tmp_path, 4).images[0]
    assert (pixels[:, 0, 0].tolist(), pixels[:, 1, 1].tolist()) == expected


# ---------------------------------------------------------------- rates after a resume: Lightning-AI/pytorch-lightning
SCHEDULES: dict[str, Callable[[], optim.Schedule]] = {
    "#1772, #4655": lambda: optim.step(7), "#5486": lambda: lambda i: 0.9 ** i, "#15462": lambda: optim.one_cycle(16),
    "#17296": lambda: optim.step(3, 0.5), "#18588": lambda: optim.warmup(5, optim.linear(16)),
    "#20495": lambda: optim.cosine(16)}


@pytest.mark.parametrize("report", SCHEDULES)
def test_a_resumed_training_has_the_rates_of_one_that_was_not_stopped(report: str, tmp_path: Path) -> None:
    def rates(epochs: int, **options: Any) -> list[float]:
        minidl.manual_seed(0)
        net, (x, y) = nn.Linear(2, 2), (np.ones((8, 2), np.float32), np.arange(8) % 2)
        train, test = (data.DataLoader((x, y), 2, shuffle=shuffle) for shuffle in (True, False))
        history = training.fit(net, optim.SGD(net.parameters(), 0.1), train, test, epochs=epochs, say=None,
                               schedule=SCHEDULES[report](), **options)
        return [metrics["lr"] for metrics in history]
    rates(2, checkpoints=tmp_path)
    assert rates(4, checkpoints=tmp_path, resume=True) == rates(4)
