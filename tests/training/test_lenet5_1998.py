"""LeNet-5 as in 1998: its sizes, its layers and loss beside the paper's formulas, and that it trains as others do."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks.book import check
from tiers import tiered

import minidl
from minidl import Tensor, data, nn, ops, optim, zoo
from minidl.tools import cli
from minidl.training import evaluate, fit
from minidl.zoo import lenet5_1998

QUIET: dict[str, Any] = {"progress": False, "say": None}
both = pytest.mark.parametrize("compiled", [False, True])
one_slow = pytest.mark.parametrize("compiled", tiered([True, False], slow=1))


def build(**options: Any) -> Any:
    minidl.manual_seed(1)
    return zoo.build("lenet5", original=True, **options)


def images(n: int, *shape: int, dtype: str = "float32") -> Tensor:
    return Tensor(np.random.default_rng(n).standard_normal((n, *(shape or (1, 32, 32)))).astype(dtype))


def digits(count: int, split: str = "train", **options: Any) -> data.DataLoader:
    return data.DataLoader(data.load("synthetic-digits", split, count=count), 16, mean=[0.2], std=[0.35], padding=2,
                           **options)


# ---------------------------------------------------------------- sizes
def test_numbers_of_trainable_parameters_are_the_papers() -> None:
    """Section II.B names each: 60,000 in all."""
    counts = {name: sum(p.size for p in layer.parameters()) for name, layer in build().named_children()}
    assert {name: count for name, count in counts.items() if count} == {
        "c1": 156, "s2": 12, "c3": 1_516, "s4": 32, "c5": 48_120, "f6": 10_164}
    assert sum(counts.values()) == 60_000


def test_sizes_of_the_maps_are_the_papers() -> None:
    x, sizes = images(2), []
    for name, layer in build().named_children():
        x = layer(x)
        if name in ("c1", "s2", "c3", "s4", "c5", "f6", "output"):
            sizes.append(x.shape[1:])
    assert sizes == [(6, 28, 28), (6, 14, 14), (16, 10, 10), (16, 5, 5), (120, 1, 1), (84,), (10,)]


def test_the_table_is_the_papers() -> None:
    """Table I, row by row: which of C3's maps read each of S2's."""
    rows = ["X...XXX..XXXX.XX", "XX...XXX..XXXX.X", "XXX...XXX..X.XXX", ".XXX..XXXX..X.XX", "..XXX..XXXX.XX.X",
            "...XXX..XXXX.XXX"]
    assert [[m for m, mark in enumerate(row) if mark == "X"] for row in rows] == [
        [m for m, maps in enumerate(lenet5_1998.TABLE) if c in maps] for c in range(6)]


def test_the_codes_are_pictures_of_digits_that_differ() -> None:
    codes = lenet5_1998.codes()
    assert codes.shape == (10, 7 * 12)
    assert set(np.unique(codes)) == {-1, 1}
    apart = [(codes[a] != codes[b]).sum() for a in range(10) for b in range(a)]
    assert len(apart) == 45
    assert min(apart) >= 10
    one = codes[1].reshape(12, 7)
    assert (one[:, 3] == 1).all()
    assert (one[4] == [-1, -1, -1, 1, 1, -1, -1]).all()


# ---------------------------------------------------------------- layers and loss, by the formulas
def test_the_squashing_function() -> None:
    x = np.linspace(-3, 3, 13)
    np.testing.assert_allclose(nn.ScaledTanh()(Tensor(x)).numpy(), 1.7159 * np.tanh(2 / 3 * x), rtol=1e-12)


@pytest.mark.parametrize("size", [2, (3, 2)])
def test_subsampling_adds_a_window_up(size: Any) -> None:
    layer, (kh, kw) = nn.Subsample2d(3, size).to("float64"), (size if isinstance(size, tuple) else (size, size))
    x = images(2, 3, 2 * kh, 2 * kw, dtype="float64")
    sums = x.numpy().reshape(2, 3, 2, kh, 2, kw).sum((3, 5))
    expected = layer.weight.numpy().reshape(3, 1, 1) * sums + layer.bias.numpy().reshape(3, 1, 1)
    np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-12)
    minidl.gradcheck(lambda x: layer(x), [Tensor(x.numpy(), requires_grad=True)])


def table_conv() -> nn.TableConv2d:
    return nn.TableConv2d(3, [(0, 2), (1,), (2, 0, 1)], (2, 3), padding=1).to("float64")


def test_a_map_reads_the_channels_of_its_row_alone() -> None:
    layer, x = table_conv(), images(2, 3, 5, 6, dtype="float64")
    y, first = layer(x).numpy(), 0
    for m, channels in enumerate(layer.table):
        w = layer.weight.numpy()[first:first + len(channels), 0]
        first += len(channels)
        alone = ops.conv2d(x[:, list(channels)], Tensor(w[None]), layer.bias[m:m + 1], padding=1)
        np.testing.assert_allclose(y[:, m], alone.numpy()[:, 0], rtol=1e-10, atol=1e-12)
    assert first == len(layer.weight) == 6


def test_absent_connections_have_no_weight_no_gradient_and_no_decay() -> None:
    layer = table_conv()
    absent = np.array([[0, 1, 0], [1, 0, 1], [0, 0, 0]], bool)
    assert sum(p.size for p in layer.parameters()) == 6 * 6 + 3
    sgd = optim.SGD(layer.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        sgd.zero_grad()
        (layer(images(2, 3, 5, 6, dtype="float64")) ** 2).sum().backward()
        sgd.step()
        assert (layer.filters().numpy()[absent] == 0).all()
        assert (layer.filters().numpy()[~absent] == layer.weight.numpy()[[0, 1, 2, 4, 5, 3], 0]).all()
        assert layer.places.grad is None


def test_the_table_of_a_layer_stays() -> None:
    layer = nn.TableConv2d(3, [(0, 1), (1, 2)], 5)
    with pytest.raises(AttributeError):
        layer.table = [(0,), (1,)]
    assert layer.table == ((0, 1), (1, 2))


def test_first_weights_depend_on_how_many_channels_a_map_reads() -> None:
    layer = nn.TableConv2d(4, [(0,), (0, 1, 2, 3)] * 100, 5)
    weights, bias = np.abs(layer.weight.numpy()).reshape(100, 5, 25), np.abs(layer.bias.numpy()).reshape(100, 2)
    assert 0.19 < weights[:, 0].max() <= 0.2
    assert 0.095 < weights[:, 1:].max() <= 0.1
    assert bias[:, 0].max() <= 0.2 < 2 * bias[:, 1].max() + 0.01
    assert bias[:, 1].max() <= 0.1


def test_outputs_are_less_the_squared_distances() -> None:
    codes = np.random.default_rng(0).standard_normal((4, 7))
    layer, x = nn.RBF(codes, j=2.0).to("float64"), images(5, 7, dtype="float64")
    codes = layer.codes.numpy()            # which float32 has rounded
    expected = -((x.numpy()[:, None] - codes) ** 2).sum(2)
    np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-12)
    assert list(layer.parameters()) == []
    assert layer(images(0, 7, dtype="float64")).shape == (0, 4)


def test_the_loss_is_equation_9() -> None:
    layer, labels = nn.RBF(np.ones((3, 2)), j=1.5), np.array([2, 0, 1, 1])
    y = np.abs(np.random.default_rng(0).standard_normal((4, 3))) * [[1], [10], [0.1], [1000]]
    expected = np.mean(y[np.arange(4), labels] + np.log(np.exp(-1.5) + np.exp(-y).sum(1)))
    assert layer.loss(Tensor(-y), labels).item() == pytest.approx(expected, rel=1e-12)
    minidl.gradcheck(lambda outputs: layer.loss(outputs, labels), [Tensor(-y, requires_grad=True)])
    far = layer.loss(Tensor([[-1e4, -2e4, -3e4]]), [0])          # no code is near: it still pulls
    assert far.item() == pytest.approx(1e4 - 1.5)


def test_what_no_code_is_near_to_is_none_of_them() -> None:
    layer = nn.RBF([[1.0, 1.0], [-1.0, 1.0]], j=2.0)
    outputs = layer(Tensor([[0.9, 1.0], [-1.0, 2.0], [1.0, -2.0], [9.0, 9.0]]))
    assert layer.or_none(outputs).argmax(axis=1).tolist() == [0, 1, 2, 2]
    p = ops.softmax(layer.or_none(outputs), axis=1).numpy()
    y = -outputs.numpy()
    np.testing.assert_allclose(p[:, 2], np.exp(-2) / (np.exp(-2) + np.exp(-y).sum(1)), rtol=1e-6)


# ---------------------------------------------------------------- the whole net
@pytest.mark.slow
def test_gradients_of_the_whole_net() -> None:
    net, x, labels = build().to("float64"), images(2, dtype="float64"), [3, 8]
    names, parameters = zip(*net.named_parameters(), strict=True)

    def loss(*tensors: Tensor) -> Tensor:
        for name, t in zip(names, tensors, strict=True):
            layer, _, own = name.partition(".")
            setattr(getattr(net, layer), own, t)
        return net.loss(net(x), labels)

    report = minidl.gradcheck(loss, parameters, directions=4)
    assert (report.mode, report.checked) == ("direction", 4 * len(names))
    assert len(names) == 12


@functools.cache
def trained(compiled: bool) -> tuple[Any, list[dict[str, Any]]]:
    net = build()
    history = fit(net, optim.SGD(net.parameters(), 0.001, momentum=0.9), digits(1000), digits(300, "test"), epochs=5,
                  loss=net.loss, compiled=compiled, **QUIET)
    return net, history


@one_slow
def test_it_trains_and_the_smallest_distance_wins(compiled: bool) -> None:
    net, history = trained(compiled)
    assert history[-1]["train_loss"] < history[0]["train_loss"] / 4
    assert history[-1]["test_accuracy"] > 0.8
    loss, accuracy = evaluate(net, digits(300, "test", shuffle=False), loss=net.loss)
    assert (loss, accuracy) == pytest.approx((history[-1]["test_loss"], history[-1]["test_accuracy"]))
    right = 0
    with minidl.no_grad():
        for x, labels in digits(300, "test", shuffle=False):
            f6 = functools.reduce(lambda x, layer: layer(x), list(net)[:-1], Tensor(x)).numpy()
            right += (((f6[:, None] - lenet5_1998.codes()) ** 2).sum(2).argmin(1) == labels).sum()
    assert right == round(300 * accuracy)


@pytest.mark.deep
def test_compiled_it_trains_to_the_same_bits() -> None:
    (plain, history), (compiled, again) = trained(False), trained(True)
    assert [metrics["train_loss"] for metrics in history] == [metrics["train_loss"] for metrics in again]
    ours, theirs = plain.state_dict(), compiled.state_dict()
    assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)
    assert len(ours) == 14


def test_eight_images_are_learnt_by_heart_by_its_recipe() -> None:
    """The loss falls to a third within 40 steps."""
    net, recipe, x, labels = build(), zoo.MODELS["lenet5"].recipe_for(original=True), images(8), np.arange(8)
    assert recipe.lr_schedule in optim.SCHEDULES
    sgd, losses = optim.SGD(net.parameters(), recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay), []
    for _ in range(40):
        sgd.zero_grad()
        loss = net.loss(net(x), labels)
        loss.backward()
        sgd.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 3


@pytest.mark.gpu
@both
def test_gpu_it_trains_as_on_the_cpu(compiled: bool) -> None:
    found = {}
    for where in ("cpu", "cuda"):
        net = build().to(where)
        loaders = [digits(500, device=where), digits(300, "test", device=where)]
        found[where] = fit(net, optim.SGD(net.parameters(), 0.001, momentum=0.9), *loaders, epochs=2, loss=net.loss,
                           compiled=compiled, **QUIET)
    for ours, theirs in zip(found["cpu"], found["cuda"], strict=True):
        assert theirs["train_loss"] == pytest.approx(ours["train_loss"], rel=0.02)
        assert theirs["test_accuracy"] == pytest.approx(ours["test_accuracy"], abs=0.05)


def letters(count: int) -> Tensor:
    """Images of the letter A, drawn as three strokes of a random size and width, and scaled as the digits are."""
    rng, (rows, columns), images = np.random.default_rng(0), np.mgrid[:32, :32], []
    for _ in range(count):
        top, bottom, tip, half = (rng.uniform(*ends) for ends in ((6, 8), (24, 26), (14, 18), (6, 8)))
        at, width = rng.uniform(0.55, 0.7), rng.uniform(1, 1.6)
        bar = top + at * (bottom - top)
        apart = []                         # of each pixel from each stroke
        for r, c, down, right in ((top, tip, bottom - top, -half), (top, tip, bottom - top, half),
                                  (bar, tip - at * half, 0, 2 * at * half)):
            along = np.clip(((rows - r) * down + (columns - c) * right) / (down**2 + right**2), 0, 1)
            apart.append(np.hypot(rows - r - along * down, columns - c - along * right))
        images.append(np.clip(width + 0.5 - np.min(apart, axis=0), 0, 1))
    return Tensor(((np.array(images)[:, None] - 0.2) / 0.35).astype(np.float32))


@pytest.mark.slow
def test_noise_and_letters_are_rejected_and_digits_are_not() -> None:
    """PMPP, 4th edition, Fig. 16.4: an A is none of the ten."""
    net, _ = trained(True)                 # which another test has trained
    noise = Tensor(np.random.default_rng(0).uniform(-0.5, 2.3, (100, 1, 32, 32)).astype(np.float32))
    with minidl.no_grad():
        rejected = net.or_none(net(noise)).argmax(axis=1).numpy() == 10
        kept = np.concatenate([net.or_none(net(Tensor(x))).argmax(axis=1).numpy() != 10
                               for x, _ in digits(300, "test")])
        none = net.or_none(net(letters(100))).argmax(axis=1).numpy() == 10
    print(f"rejected: {none.mean():.2f} of the letters, {1 - kept.mean():.2f} of the digits")
    assert rejected.all()
    assert kept.mean() > 0.3               # after 5 epochs of 1,000 images
    assert none.mean() > 0.7


@one_slow
def test_mean_squared_error_against_one_hot_vectors_trains(compiled: bool) -> None:
    """Of targets that are classes, which then also count as right or wrong."""
    one_hot, net = Tensor(np.eye(10, dtype=np.float32)), zoo.build("lenet5")

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return ops.mse_loss(outputs, one_hot[labels])
    history = fit(net, optim.SGD(net.parameters(), 0.15, momentum=0.9), digits(700), digits(300, "test"), epochs=6,
                  loss=loss, compiled=compiled, **QUIET)
    assert history[-1]["train_loss"] < 0.07              # 0.09 is that of 1/10 for every class
    assert history[-1]["test_accuracy"] > 0.6


@pytest.mark.slow
def test_targets_may_be_one_hot_vectors_themselves() -> None:
    found = data.load("synthetic-digits", "train", count=200)
    x = np.pad(found.images / np.float32(255), ((0, 0), (0, 0), (2, 2), (2, 2)))
    loader = data.DataLoader((x, np.eye(10, dtype=np.float32)[found.labels]), 20)
    net = zoo.build("lenet5")
    history = fit(net, optim.SGD(net.parameters(), 0.1, momentum=0.9), loader, loader, epochs=4, loss=ops.mse_loss,
                  **QUIET)
    assert "test_accuracy" not in history[0]
    assert history[-1]["test_loss"] < 0.07 < 0.09 < history[0]["train_loss"]        # 0.09: of 1/10 for every class


# ---------------------------------------------------------------- files and commands
@pytest.mark.parametrize("ending", ["h5", "npz"])
def test_a_file_names_the_net_and_its_option(tmp_path: Path, ending: str) -> None:
    net, path = build(classes=7, in_channels=3), tmp_path / f"net.{ending}"
    minidl.save(net, path)
    again = minidl.load(path)
    assert repr(again) == repr(net)
    assert again.model_args == {"in_channels": 3, "classes": 7, "activation": "tanh", "original": True}
    x = images(2, 3, 32, 32)
    assert again(x).numpy().tobytes() == net(x).numpy().tobytes()


def test_as_an_onnx_file(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="the package onnx is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="the package onnxruntime is not installed")
    net = build()
    minidl.onnx.export(net, tmp_path / "net.onnx", images(2))
    session = runtime.InferenceSession(str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"])
    for n in (1, 5):
        (theirs,) = session.run(None, {"input": images(n).numpy()})
        np.testing.assert_allclose(theirs, net(images(n)).numpy(), rtol=1e-4, atol=1e-3)


RUN = ["--model", "lenet5", "--option", "original=true", "--data", "synthetic-digits", "--limit-train", "128",
       "--limit-test", "64", "--device", "cpu"]


def command(*flags: str) -> int:
    return cli.main(["train", *flags, "--no-progress"])


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The metrics of a run in the folder run, below the one that is current."""
    monkeypatch.chdir(tmp_path)
    assert command(*RUN, "--epochs", "2", "--output-dir", "run") == 0
    capsys.readouterr()
    return [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_the_command_trains_it_by_its_own_recipe_and_loss(ran: list[dict[str, Any]],
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads(Path("run/config.json").read_text())
    assert config["option"] == {"original": True}
    recipe = zoo.MODELS["lenet5"].recipe_for(original=True)
    assert (config["lr"], config["batch_size"]) == (recipe.lr, recipe.batch_size) != (0.1, 128)
    assert ran[0]["train_loss"] > 20       # squared distances
    assert command("--eval", "run") == 0
    assert f"test loss {ran[-1]['test_loss']:.4f}" in capsys.readouterr().out


@pytest.mark.deep
def test_a_run_goes_on_with_its_options(ran: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--resume", "run", "--option", "original=true") == 0
    assert command("--resume", "run", "--option", "activation=relu") == 2
    assert capsys.readouterr().err == (
        "train.py: error: --option=original=true --option=activation=relu contradicts the run in run, which has "
        "--option=original=true; leave it out\n".replace("train.py", "minidl train"))


@pytest.mark.deep
def test_its_report_is_drawn_from_the_folder(ran: list[dict[str, Any]]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from minidl import plot

    names = [path.name for path in plot.pictures("run")]
    assert names == ["curves.png", "filters.png", "confusion.png", "report.html"]


def test_predict_rejects_a_picture_that_is_no_digit(ran: list[dict[str, Any]],
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    pil = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pictures cannot be read")
    noise = np.random.default_rng(0).integers(0, 256, (28, 28), dtype=np.uint8)
    pil.fromarray(noise).save("noise.png")
    assert cli.main(["predict", "--weights", "run/weights.h5", "noise.png", "--top", "1", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.startswith("noise.png: none of them 100.0 %  (")


def test_options_of_any_model_are_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("--model", "mlp", "--option", "activation=relu", "--option", "hidden=7", "--data",
                   "synthetic-shapes", "--epochs", "0", "--limit-train", "20", "--limit-test", "20", "--output-dir",
                   "run") == 0
    options = {"activation": "relu", "hidden": 7}
    assert json.loads(Path("run/config.json").read_text())["option"] == options
    assert minidl.load("run/weights.h5").model_args == {"in_channels": 3, "classes": 10, **options}


def test_the_recipe_of_an_option_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"with --option original=true: data mnist, epochs 20, .* lr 0\.003", said)
    assert re.search(r"with --option original=pmpp: data mnist, epochs 20, .* lr 0\.1", said)


def test_summary_takes_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["summary", "--model", "lenet5", "--option", "original=true"]) == 0
    assert "parameters      60,000 and 6,600 fixed" in capsys.readouterr().out


# ---------------------------------------------------------------- PMPP's net
def test_pmpps_net_is_its_figures() -> None:
    """Figs. 16.2 to 16.5, by the book's own loops, and 60,856 parameters."""
    minidl.manual_seed(0)
    net, loops = zoo.build("lenet5", original="pmpp"), check().imported("loops.py")
    for pool in ("s2", "s4"):
        bias = getattr(net, pool).bias
        bias.data[...] = np.random.default_rng(0).standard_normal(bias.shape)
    given = {name: values.astype(float) for name, values in net.state_dict().items()}
    assert sum(p.size for p in net.parameters()) == 150 + 6 + 2_400 + 16 + 48_000 + 120 + 120 * 84 + 84 == 60_856
    assert set(np.unique(given["output.codes"])) == {0, 1}
    x = images(1)
    y = x.numpy()[0].astype(float)
    for conv, pool in (("c1", "s2"), ("c3", "s4")):
        y = loops.fig16_5(loops.fig16_4(y, given[f"{conv}.weight"]), given[f"{pool}.bias"].ravel(), 2)
    y = loops.sigmoid(loops.fig16_4(y, given["c5.weight"]).ravel() + given["c5.bias"])
    y = loops.sigmoid(given["f6.weight"] @ y + given["f6.bias"])
    want = -((y - given["output.codes"]) ** 2).sum(axis=1)
    np.testing.assert_allclose(net(x).numpy()[0], want, rtol=1e-4)


def test_pmpps_net_learns_eight_images_by_its_recipe() -> None:
    net, recipe = zoo.build("lenet5", original="pmpp"), zoo.MODELS["lenet5"].recipe_for(original="pmpp")
    sgd, losses = optim.SGD(net.parameters(), recipe.lr, recipe.momentum), []
    for _ in range(80):
        sgd.zero_grad()
        loss = net.loss(net(images(8)), np.arange(8))
        loss.backward()
        sgd.step()
        losses.append(loss.item())
    print(losses[0], losses[-1])
    assert losses[-1] < losses[0] / 3


# ---------------------------------------------------------------- what is refused
@pytest.mark.parametrize(("refused", "message"), [
    (lambda: zoo.build("lenet5", original="yes"),
     "lenet5: original is 'yes' but must be True, False or 'pmpp'$"),
    (lambda: zoo.build("lenet5", original=1), "lenet5: original is 1 but must be True, False or 'pmpp'$"),
    (lambda: zoo.build("lenet5", original="pmpp", activation="relu"),
     "lenet5: activation is 'relu' but original=pmpp squashes by sigmoid; leave one of them out$"),
    (lambda: build(activation="relu"),
     "lenet5: activation is 'relu' but original=True squashes by the paper's scaled tanh; leave one of them out$"),
    (lambda: build(classes=11),
     "lenet5: classes is 11 but original=True has codes for 1 to 10 classes, the digits; leave one of them out$"),
    (lambda: nn.Subsample2d(0), "Subsample2d: channels is 0 but must be an int of at least 1$"),
    (lambda: nn.Subsample2d(3, 0), "Subsample2d: kernel_size is 0 but must be "),
    (lambda: nn.Subsample2d(1)(Tensor(np.zeros((2, 3, 4, 4)))),
     r"Subsample2d: x has shape \(2, 3, 4, 4\) but must be \(n,1,h,w\); build the layer with x's channels$"),
    (lambda: nn.TableConv2d(0, [(0,)], 5), "TableConv2d: in_channels is 0 but must be an int of at least 1$"),
    (lambda: nn.TableConv2d(3, [], 5), "TableConv2d: maps is 0 but must be an int of at least 1$"),
    (lambda: nn.TableConv2d(3, [(0,), ()], 5),
     r"TableConv2d: map 1 reads the channels \(\) but must read at least 1 of 0 to 2, each once$"),
    (lambda: nn.TableConv2d(3, [(0, 3)], 5), r"TableConv2d: map 0 reads the channels \(0, 3\) but must "),
    (lambda: nn.TableConv2d(3, [(1, 1)], 5), r"TableConv2d: map 0 reads the channels \(1, 1\) but must "),
    (lambda: nn.RBF(np.ones(3), j=1.0),
     r"RBF: codes have shape \(3,\) but must be \(classes,features\), none of them 0$"),
    (lambda: nn.RBF(np.ones((2, 3)), j=1.0)(images(4, 1)),
     r"RBF: x has shape \(4, 1\) but must be \(n,3\), as long as the codes \(2, 3\)$"),
    (lambda: nn.RBF(np.ones((2, 3)), j=0.0), "RBF: j is 0.0 but must be a positive number, a squared distance$"),
])
def test_refuses(refused: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        refused()


@pytest.mark.parametrize(("flags", "said"), [
    (["--option", "original"], "error: argument --option: 'original' is not NAME=VALUE; see "),
    (["--option", "classes=7"], "error: --option classes=7: classes is 10 by the data set; leave it out"),
    (["--option", "orignal=true"],
     "error: zoo: model 'lenet5' has no option 'orignal'; it has in_channels, classes, activation, original"),
])
def test_wrong_options_are_one_line(flags: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                    capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        status: Any = command("--data", "synthetic-digits", "--limit-train", "20", *flags)
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
