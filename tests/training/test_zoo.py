"""The zoo: sizes of its models, their options and recipes, and that they learn."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, data, nn, ops, optim, training, zoo
from minidl.zoo.recipe import LAYERS

COUNTS = {"lenet5": 61_706, "krizhevsky2009": 53_322, "cifar10-quick": 145_578, "cifar10-18": 89_578,
          "alexnet": 56_909_194, "resnet": 269_722, "resnet-224": 11_007_818, "mlp": 30_830_010, "perceptron": 10_250,
          "autoencoder": 127_215, "table-mlp": 5_124, "airbench": 1_971_352, "ece408": 45_186}
CHANNELS = {"lenet5": 1, "krizhevsky2009": 3, "cifar10-quick": 3, "cifar10-18": 3, "alexnet": 3, "resnet": 3,
            "resnet-224": 3, "mlp": 3, "perceptron": 1, "autoencoder": 1, "airbench": 3, "ece408": 1}
SIZES = {"alexnet": 224, "resnet-224": 224, "ece408": 86}
SHAPES = {**{name: (channels, *[SIZES.get(name, 32)] * 2)
             for name, channels in CHANNELS.items()}, "table-mlp": (10,)}
CLASSIFIERS = [name for name, model in zoo.MODELS.items() if model.target == "label"]
SMALL: dict[str, dict[str, Any]] = {                           # millions of parameters take their time
    "alexnet": {"width": 12, "hidden": 64}, "resnet": {"depth": 8, "width": 8}, "resnet-224": {"width": 4},
    "mlp": {"hidden": 20}, "table-mlp": {"classes": 10}, "airbench": {"width": 8}}


def images(n: int, channels: int, size: int = 32) -> Tensor:
    return items(n, (channels, size, size))


def items(n: int, shape: tuple[int, ...]) -> Tensor:
    return Tensor(np.random.default_rng(0).standard_normal((n, *shape), dtype=np.float32))


def build(name: str, **options: Any) -> nn.Module:
    return zoo.build(name, **{**SMALL.get(name, {}), **options})


def test_every_model_is_tested() -> None:
    assert zoo.MODELS.keys() == COUNTS.keys() == SHAPES.keys()
    assert [model.name for model in zoo.MODELS.values()] == list(zoo.MODELS)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """New parameters are 0, 1, 0, ...: millions that are drawn take seconds."""
    def draw(low: float, high: float, shape: tuple[int, ...]) -> np.ndarray:
        return np.broadcast_to(np.arange(shape[-1]) % 2, shape)
    generator = SimpleNamespace(uniform=draw, normal=draw)
    monkeypatch.setattr("minidl.nn.init.rng", SimpleNamespace(generator=lambda: generator))


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_count(name: str, undrawn: None) -> None:
    assert sum(p.size for p in zoo.build(name).parameters()) == COUNTS[name]


@pytest.mark.parametrize(("name", "shapes"), [
    ("lenet5", {"c1.weight": (6, 1, 5, 5), "c1.bias": (6,), "c3.weight": (16, 6, 5, 5), "c3.bias": (16,),
                "c5.weight": (120, 16, 5, 5), "c5.bias": (120,), "f6.weight": (84, 120), "f6.bias": (84,),
                "output.weight": (10, 84), "output.bias": (10,)}),
    ("krizhevsky2009", {"conv.weight": (64, 3, 8, 8), "conv.bias": (64,), "output.weight": (10, 4096),
                        "output.bias": (10,)}),
])
def test_parameters(name: str, shapes: dict[str, tuple[int, ...]]) -> None:
    assert {path: values.shape for path, values in zoo.build(name).state_dict().items()} == shapes


def test_sizes_of_lenet5s_maps() -> None:
    """Those of LeCun et al. 1998, Fig. 2."""
    x, sizes = images(2, 1), []
    for name, layer in zoo.build("lenet5").named_children():
        x = layer(x)
        if name in ("c1", "s2", "c3", "s4", "c5", "f6", "output"):
            sizes.append(x.shape[1:])
    assert sizes == [(6, 28, 28), (6, 14, 14), (16, 10, 10), (16, 5, 5), (120, 1, 1), (84,), (10,)]


def test_sizes_of_krizhevskys_maps() -> None:
    net, x = zoo.build("krizhevsky2009"), images(1, 3)
    assert net.conv(x).shape == (1, 64, 32, 32)
    assert net.pool(net.act(net.conv(x))).shape == (1, 64, 8, 8)
    assert net.conv.padding == ((4, 3), (4, 3))


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("n", [0, 1, 3])
def test_logits(name: str, n: int) -> None:
    net, model = build(name), zoo.MODELS[name]
    assert net(items(n, SHAPES[name])).shape == (n, 10)
    other: dict[str, Any] = {model.reads: 2, "classes": 7}
    assert build(name, **other)(items(n, (2, *SHAPES[name][1:]))).shape == (n, 7)


@pytest.mark.parametrize(("activation", "layer"), LAYERS.items())
@pytest.mark.parametrize("name", ["lenet5", "krizhevsky2009", "cifar10-quick", "cifar10-18", "alexnet", "mlp"])
def test_activation(name: str, activation: str, layer: type[nn.Module]) -> None:
    net = build(name, activation=activation)
    kinds = {type(child) for child in net if type(child) in LAYERS.values()}
    assert kinds == {layer}
    assert net(images(1, CHANNELS[name], zoo.MODELS[name].image_size)).shape == (1, 10)


@pytest.mark.deep
def test_alexnet_is_the_papers(undrawn: None) -> None:
    """KSH 2012, Fig. 2 and section 3.5; 60 million parameters with 1,000 classes."""
    net, sizes = zoo.build("alexnet", classes=1000), {}
    assert sum(p.size for p in net.parameters()) == 60_965_224
    x = images(1, 3, 224)
    for name, layer in net.named_children():
        x = layer(x)
        sizes[name] = x.shape[1:]
    maps = [(96, 55, 55), (256, 27, 27), (384, 13, 13), (384, 13, 13), (256, 13, 13)]
    assert [sizes[f"conv{i}"] for i in range(1, 6)] == maps
    assert [sizes[name] for name in ("pool5", "fc6", "fc7", "output")] == [(256, 6, 6), (4096,), (4096,), (1000,)]
    neurons = [*maps, sizes["fc6"], sizes["fc7"], sizes["output"]]
    assert sum(map(math.prod, neurons)) == 659_272         # "650,000"


def test_alexnets_own_start() -> None:
    state = zoo.build("alexnet", width=12, hidden=64, paper_start=True).state_dict()
    assert {name: set(values.tolist()) for name, values in state.items() if name.endswith("bias")} == {
        f"{name}.bias": {float(name in ("conv2", "conv4", "conv5", "fc6", "fc7"))}
        for name in ("conv1", "conv2", "conv3", "conv4", "conv5", "fc6", "fc7", "output")}
    for name, values in state.items():
        if name.endswith("weight"):
            assert values.std() == pytest.approx(0.01, rel=0.1), name


def test_resnet_is_the_papers() -> None:
    """Table 6's numbers of parameters, and its sizes of maps."""
    for depth, millions in ((20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)):
        net = zoo.build("resnet", depth=depth)
        convolutions = [each for each in net.modules() if isinstance(each, nn.Conv2d)]
        assert sum(p.size for p in net.parameters()) / 1e6 == pytest.approx(millions, abs=0.05 if depth > 56 else 0.005)
        assert len(convolutions) + 1 == depth
    x, sizes = images(2, 3), {}
    for name, layer in zoo.build("resnet").named_children():
        x = layer(x)
        sizes[name] = x.shape[1:]
    assert [sizes[name] for name in ("conv", "stage1", "stage2", "stage3", "pool", "flatten", "output")] == [
        (16, 32, 32), (16, 32, 32), (32, 16, 16), (64, 8, 8), (64, 1, 1), (64,), (10,)]


def test_a_shortcut_of_resnet() -> None:
    """A block whose filters are 0 gives every second pixel, and zeros as further maps."""
    block, x = zoo.build("resnet", depth=8, width=2).stage2[0], images(3, 2, 6)
    for conv in (block.conv1, block.conv2):
        conv.weight.data[...] = 0
    y = block(x).numpy()
    np.testing.assert_array_equal(y[:, :2], np.maximum(x.numpy()[:, :, ::2, ::2], 0))
    np.testing.assert_array_equal(y[:, 2:], 0)
    assert y.shape == (3, 4, 3, 3)


def test_resnets_own_start() -> None:
    """Variance 2 / fan_in (He et al. 2015); normalisation starts as nothing but normalisation."""
    for name, values in zoo.build("resnet", width=32).state_dict().items():
        if "conv" in name:
            assert values.std() == pytest.approx((2 / values[0].size) ** 0.5, rel=0.1), name
        elif "norm" in name:
            assert set(values.tolist()) == {float(name.endswith(("weight", "running_var")))}, name


@pytest.mark.slow
def test_resnet_of_large_images_is_the_papers(undrawn: None) -> None:
    """Table 1: layers, sizes of maps, and multiply-adds; option A has the parameters of the layers alone."""
    for depth, parameters, billions in ((18, 11_515_688, 1.8), (34, 21_623_848, 3.6)):
        net = zoo.build("resnet-224", depth=depth, classes=1000)
        assert sum(isinstance(each, nn.Conv2d) for each in net.modules()) + 1 == depth
        assert sum(p.size for p in net.parameters()) == parameters
        if depth == 18:
            assert nn.summary(net, (3, 224, 224)).multiply_adds / 1e9 == pytest.approx(billions, abs=0.05)
    x, sizes = images(1, 3, 224), {}
    for name, layer in build("resnet-224", width=8).named_children():
        x = layer(x)
        sizes[name] = x.shape[1:]
    assert [sizes[name] for name in ("conv", "first", "stage1", "stage2", "stage3", "stage4", "pool")] == [
        (8, 112, 112), (8, 56, 56), (8, 56, 56), (16, 28, 28), (32, 14, 14), (64, 7, 7), (64, 1, 1)]


@pytest.mark.parametrize("n", [0, 1, 3])
def test_the_autoencoder_gives_images_by_way_of_its_code(n: int) -> None:
    net, x = build("autoencoder").eval(), images(n, 1)
    assert (net.encoder(x).shape, net(x).shape) == ((n, 30), (n, 1, 32, 32))
    assert build("autoencoder", in_channels=3, code=5, width=4).eval()(images(n, 3)).shape == (n, 3, 32, 32)
    if n:
        np.testing.assert_allclose(net.loss(net(x), x).item(), np.mean((net(x).numpy() - x.numpy())**2), rtol=1e-5)


def test_airbench_is_the_papers() -> None:
    """Sizes of its maps; what does not learn; filters that give maps as they are."""
    net, x = zoo.build("airbench"), images(2, 3)
    x, sizes = ops.gelu(net.whiten(x)), []
    for block in (net.block1, net.block2, net.block3):
        sizes.append(x.shape[1:])
        np.testing.assert_array_equal(block.conv1(x).numpy()[:, :x.shape[1]], x.numpy())
        x = block(x)
    assert [*sizes, x.shape[1:]] == [(24, 31, 31), (64, 15, 15), (256, 7, 7), (256, 3, 3)]
    frozen = [name for name, _ in net.named_buffers() if "running" not in name]
    assert frozen == ["whiten.weight", *(f"block{i}.norm{j}.weight" for i in (1, 2, 3) for j in (1, 2))]
    assert net.output.weight.numpy().std(ddof=1) == pytest.approx(1)
    assert net.output.bias is None


def test_airbench_whitens_the_images_that_it_starts_from() -> None:
    """What its filters make of them has second moments of 1, less what EPS takes, and is not correlated."""
    rng = np.random.default_rng(0)
    few = Tensor(rng.standard_normal((40, 3, 9, 8)).cumsum(2).cumsum(1).astype(np.float32))
    net = build("airbench")
    net.start_from(few)
    weight = net.whiten.weight.numpy()
    assert weight.dtype == np.float32
    np.testing.assert_array_equal(weight[12:], -weight[:12])
    y = ops.conv2d(few, net.whiten.weight).numpy()[:, :12].astype(float)
    moments = np.einsum("ncrs,ndrs->cd", y, y) / y[:, 0].size
    np.testing.assert_allclose(moments, np.eye(12), atol=0.02)
    assert (np.diff([np.linalg.norm(w) for w in weight[:12]]) > 0).all()       # the largest eigenvalue's first


def test_airbenchs_first_bias_stops_to_learn() -> None:
    grads: list[dict[str, Any]] = []
    for whitening in (True, False):
        minidl.manual_seed(1)
        net = build("airbench")
        ops.cross_entropy(net(images(4, 3), whitening), [1, 2, 3, 4]).backward()
        grads.append({name: None if p.grad is None else p.grad.numpy() for name, p in net.named_parameters()})
    assert [name for name, grad in grads[1].items() if grad is None] == ["whiten.bias"]
    del grads[0]["whiten.bias"]
    for name, grad in grads[0].items():
        np.testing.assert_array_equal(grad, grads[1][name])


def test_airbenchs_own_optimizer_is_that_of_the_sum_of_the_loss() -> None:
    """Rates and decay of airbench94_muon, which has the sum over the batch, for the mean; and the schedules."""
    net = build("airbench")
    both, schedules = zoo.MODELS["airbench"].optimizer(net, "linear", 200, 2000)
    assert [group["name"] for group in both.groups] == ["filters", "whitening", "norms", "output"]
    assert [len(group["params"]) for group in both.groups] == [6, 1, 6, 1]
    assert [group["lr"] for group in both.groups] == pytest.approx([0.24, 0.053 * 2000, 0.053 * 2000, 0.67 * 2000])
    assert [group["lr"] * group["weight_decay"] for group in both.groups] == pytest.approx([0, 0.004, 0.004, 0.004])
    assert [[schedule(step) for step in (0, 60, 75, 150)] for schedule in schedules] == [
        [1, 0.7, 0.625, 0.25], pytest.approx([1, 0.2, 0, 0]), [1, 0.7, 0.625, 0.25], [1, 0.7, 0.625, 0.25]]
    slow, _ = zoo.MODELS["airbench"].optimizer(net, "linear", 200, 2000, lr=0.0)
    assert {group["lr"] for group in slow.groups} == {0.0}


@pytest.mark.deep
def test_airbench_learns_by_its_own_recipe() -> None:
    """Generated pictures, at an eighth of the width: whitened, augmented, smoothed, by a schedule for each group, and
    tested by six views of each image."""
    minidl.manual_seed(0)
    train, test = (data.load("synthetic-shapes", split, count=count)
                   for split, count in (("train", 800), ("test", 200)))
    model = zoo.MODELS["airbench"]
    net, batch, how = build("airbench"), 50, train.preprocessing(model.shape)
    net.start_from(Tensor(next(iter(data.DataLoader(train, 200, **how)))[0]))
    own, schedules = model.optimizer(net, model.recipe.lr_schedule, 4 * 16, batch)
    augment = data.Augment(crop=2, reflect=True, flip="alternate")
    history = training.fit(training.Views(net, shift=1), own, data.DataLoader(train, batch, augment=augment, **how),
                           data.DataLoader(test, 100, shuffle=False, **how), epochs=4, schedule=schedules,
                           loss=functools.partial(ops.cross_entropy, label_smoothing=0.2), progress=False, say=None)
    assert history[-1]["test_accuracy"] > 0.8


def test_the_net_for_tables_is_the_papers() -> None:
    """Blocks of Linear, ReLU and Dropout, and a last Linear (Gorishniy et al. 2021, section 3.1)."""
    net = zoo.build("table-mlp", in_features=7, classes=3, hidden=5, depth=3, dropout=0)
    assert [type(each).__name__ for each in net] == ["Linear", "ReLU", "Dropout"] * 3 + ["Linear"]
    assert [layer.weight.shape for layer in net if isinstance(layer, nn.Linear)] == [(5, 7), (5, 5), (5, 5), (3, 5)]
    assert net.model_args == {"in_features": 7, "classes": 3, "hidden": 5, "depth": 3, "dropout": 0.0}
    assert type(net.model_args["dropout"]) is float        # or a weights file with it would be refused
    (linear,) = zoo.build("table-mlp", depth=0)
    assert linear.weight.shape == (4, 10)


def test_default_activations_are_the_papers() -> None:
    assert "Tanh" in repr(build("lenet5"))
    assert "Sigmoid" in repr(build("krizhevsky2009"))
    assert "Sigmoid" in repr(build("mlp"))


def test_other_options() -> None:
    assert zoo.build("krizhevsky2009", filters=5).conv.weight.shape == (5, 3, 8, 8)
    assert zoo.build("mlp", hidden=7).hidden.weight.shape == (7, 3072)


def test_a_model_carries_its_name_and_all_options() -> None:
    net = zoo.build("lenet5", classes=7)
    assert net.model_name == "lenet5"
    assert net.model_args == {"in_channels": 1, "classes": 7, "activation": "tanh", "original": False}
    again = zoo.build(net.model_name, **net.model_args)
    assert repr(again) == repr(net)


def test_the_seed_decides_the_model() -> None:
    def state(seed: int) -> np.ndarray:
        minidl.manual_seed(seed)
        return zoo.build("lenet5").state_dict()["c5.weight"]

    np.testing.assert_array_equal(state(1), state(1))
    assert not np.array_equal(state(1), state(2))


@pytest.mark.parametrize("name", COUNTS)
def test_recipe_fits_the_rest_of_minidl(name: str) -> None:
    model = zoo.MODELS[name]
    recipe = model.recipe
    assert recipe.lr_schedule in optim.SCHEDULES
    assert SHAPES[name] == model.shape
    assert model.shape[0] == {"mnist": 1, "fashion-mnist": 1, "cifar10": 3, "synthetic-shapes-224": 3,
                              "synthetic-table": 10}[recipe.data]
    assert recipe.batch_size >= 1 <= recipe.epochs
    optim.SGD([Tensor([1.0], requires_grad=True)], recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay)
    assert model.summary


def test_a_recipes_parameter_counts_are_true() -> None:
    for name in ("lenet5", "krizhevsky2009", "cifar10-quick", "cifar10-18", "alexnet", "resnet", "resnet-224",
                 "autoencoder", "table-mlp", "airbench", "ece408"):
        assert f"{COUNTS[name]:,} parameters" in zoo.MODELS[name].summary


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.deep if name in (
    "alexnet", "resnet-224", "cifar10-18") else pytest.mark.slow) for name in COUNTS])
def test_learns_by_its_recipe(name: str) -> None:
    """Eight images by heart: the loss falls to a third within 40 steps, or 80 of a deep net, without dropout: alexnet
    has few units here."""
    net, recipe = build(name), zoo.MODELS[name].recipe
    batch_norm = name in ("resnet", "resnet-224", "autoencoder", "airbench")
    net.train(batch_norm)                  # without dropout, but by the batch's own moments
    own, numbers = zoo.MODELS[name].optimizer, (recipe.lr, recipe.momentum, recipe.weight_decay)
    sgd = own(net, "constant", 40, 8, *numbers)[0] if own else optim.SGD(net.parameters(), *numbers[:2],
                                                                         weight_decay=numbers[2])
    x, labels = items(8, SHAPES[name]), np.arange(8)
    if name == "autoencoder":              # noise has no code
        x = Tensor(np.kron(x.numpy()[:, :, :4, :4], np.ones((8, 8), np.float32)))
    losses, steps = [], 80 if name in ("alexnet", "cifar10-quick", "cifar10-18") else 40
    warm = recipe.lr_schedule.startswith("warmup")         # without it cifar10-quick learns in one of two drawn nets
    rates = optim.schedule(recipe.lr_schedule if warm else "constant", steps)
    for i in range(steps):
        if not own:
            sgd.lr = recipe.lr * rates(i)
        sgd.zero_grad()
        loss = net.loss(net(x), x) if name == "autoencoder" else ops.cross_entropy(net(x), labels)
        loss.backward()
        sgd.step()
        losses.append(loss.item())
    assert losses[0] > (0.9 if name == "autoencoder" else 2)
    assert losses[-1] < losses[0] / 3


# ---------------------------------------------------------------- what it refuses
@pytest.mark.parametrize(("refused", "message"), [
    (lambda: zoo.build("lenet"), f"zoo: model 'lenet' is not one of {', '.join(COUNTS)}, nor "),
    (lambda: zoo.build("lenet5", filters=3),
     "zoo: model 'lenet5' has no option 'filters'; it has in_channels, classes, activation, original$"),
    (lambda: zoo.build("perceptron", activation="tanh"),
     "zoo: model 'perceptron' has no option 'activation'; it has in_channels, classes$"),
    (lambda: zoo.build("lenet5", activation="step"),
     f"zoo: activation 'step' is not one of {', '.join(ops.ACTIVATIONS)}$"),
    (lambda: zoo.build("lenet5", classes=0), "Linear: out_features is 0 but must be an int of at least 1$"),
    (lambda: zoo.build("krizhevsky2009", in_channels="3"),
     "Conv2d: in_channels is '3' but must be an int of at least 1$"),
    (lambda: zoo.build("alexnet", width=64), "zoo: width of model 'alexnet' is 64 but must be a multiple of 6, so "),
    (lambda: zoo.build("alexnet", width="a"), "zoo: width of model 'alexnet' is 'a' but must be a multiple of 6, so "),
    *((lambda depth=depth: zoo.build("resnet", depth=depth), rf"zoo: depth of model 'resnet' is {depth!r} but must be "
       r"6n \+ 2 with n blocks per stage, from 8 on: 20, 32, 44, 56 or 110") for depth in (2, 18, 21, 20.0, "20")),
    (lambda: zoo.build("resnet-224", depth=20), "zoo: depth of model 'resnet-224' is 20 but must be 18 or 34$"),
    (lambda: zoo.build("resnet", width=0), "Conv2d: out_channels is 0 but must be an int of at least 1$"),
    *((lambda depth=depth: zoo.build("table-mlp", depth=depth), rf"zoo: depth of model 'table-mlp' is {depth!r} but "
       "must be an int of at least 0; 0 is the linear model$") for depth in (-1, 1.5, "2")),
    (lambda: zoo.build("mlp", hidden=-1), "Linear: in_features is -1 but must be an int of at least 1$"),
    (lambda: zoo.build("lenet5")(images(1, 3)), "conv2d: x has 3 channels but w expects 1 "),
    (lambda: zoo.build("lenet5")(Tensor(np.zeros((1, 1, 28, 28), np.float32))),
     "conv2d: the window 5x5 is larger than the padded input 4x4 "),
])
def test_refuses(refused: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        refused()
