"""What a user may write, with types: test_types.py adds every public name, and holds it to `mypy --strict`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import minidl
from minidl import Tensor, data, distributed, init, layouts, nn, ops, optim, plot, training, zoo
from minidl.core import rng
from minidl.lab.emulator.counts import Counts, Global, Shared, Table
from minidl.lab.emulator.own import count, counting, there
from minidl.lab.emulator.watch import Kernel, Run

x: Tensor = Tensor(np.ones((2, 3, 8, 8), np.float32))
w: Tensor = Tensor([[[[1.0]]] * 3], requires_grad=True)
labels: list[int] = [0, 1]


# ---------------------------------------------------------------- ops
def arithmetic(a: Tensor, b: Tensor) -> Tensor:
    c: Tensor = ops.add(a, 2) + ops.sub(1.0, b) * ops.mul(a, b) / ops.div(b, 3.0) - ops.neg(a) ** ops.pow(a, 2)
    d: Tensor = ops.exp(c) + ops.log(c) + ops.sqrt(c)
    masks: list[Tensor] = [ops.gt(a, b), ops.ge(a, 0), ops.lt(a, b), ops.le(0.0, b), ops.eq(a, b), ops.ne(a, b), a > b]
    return ops.concatenate([d, *masks], axis=0) @ ops.matmul(d, ops.transpose(d, axes=(1, 0)))


def shapes(a: Tensor) -> list[Tensor]:
    return [ops.reshape(a, shape=(-1, 4)), ops.flatten(a, 1), ops.getitem(a, (slice(None), 0)), a[..., 1:], a.T,
            ops.sum(a, axis=(0, 1), keepdims=True), ops.mean(a, axis=-1), ops.max(a), ops.argmax(a, axis=0)]


def by_pytorchs_names(a: Tensor, mask: Tensor) -> list[Tensor]:
    values, order = a.sort(1, descending=True)
    first, *others = ops.split(a, [1, 2], axis=1)
    more: tuple[Tensor, ...] = a.chunk(2)
    kept: Tensor = ops.where(mask & ~(a > 0), a, 0.0) + ops.clip(a, low=0.0) + ops.maximum(a, 0) - ops.minimum(a, a)
    made = [minidl.zeros(2, 3), minidl.randn((2, 3), requires_grad=True), minidl.arange(5), minidl.full((2,), 0.5)]
    count: int = a.numel() + a.dim() + a.size
    return [values, order, first, kept, *made, a.view(-1).unsqueeze(0).squeeze(), a.permute(1, 0).float(), a.mT,
            ops.var(a, axis=1) + ops.std(a, correction=0), a.norm().detach().fill_(1.0), a.to(np.float64), a.cpu(),
            nn.Parameter([1.0]), ops.stack([a, a], axis=1), ops.pad(a, widths=(1, 1)), a.masked_fill(mask, 0.0)]


@minidl.op
def shifted(k: Any, x: Tensor, *, by: float = 1.0) -> Any:
    return k.add(x, by), lambda gy, need: (gy,)


def launched(launch: Any, x: Any, w: Any, b: Any, y: Any, g: Any) -> None:
    launch("k", -(-y.size // 256), 256, x, w, b, y, g)


def own_convolution() -> int:
    minidl.register_conv("mine", Path("mine.cu"), y=launched, refuses=lambda direction, g, dtype: None)
    return minidl.check_conv("mine", shapes=3, device="cuda")["y"].compared


def in_another_order(x: NDArray[Any], w: Any) -> Any:
    return layouts.conv2d(layouts.turned(x, "NHWC"), w, layout=layouts.LAYOUTS[1], algorithm="direct", padding=1)


@minidl.primitive
def swapped(x: NDArray[Any]) -> NDArray[Any]:
    return x[::-1]


def own(a: Tensor) -> Tensor:
    hat = minidl.activation("hat", np.abs, np.multiply, "fabs(x)", "gy")
    return hat(shifted(a, by=2.0))


def layers(a: Tensor, b: Tensor | None = None) -> Tensor:
    y = ops.conv2d(a, w, b, stride=(1, 1), padding=((1, 0), (0, 1)), algorithm=ops.CONV_ALGORITHMS[0])
    y = ops.avg_pool2d(ops.max_pool2d(y, size=2), size=(2, 1), stride=1, padding=0)
    y = ops.batch_norm(y, minidl.zeros(2), minidl.ones(2), b, eps=1e-3) + ops.batch_norm(y, training=True)
    y = ops.group_norm(ops.layer_norm(y, y.shape[-1]), 1, weight=b) * ops.adaptive_avg_pool2d(y, (1, None))
    y = ops.linear(ops.flatten(y, 1), Tensor(np.ones((2, 12))), b)
    for activation in (ops.tanh, ops.sigmoid, ops.relu, ops.silu, ops.softplus, ops.hardsigmoid):
        y = ops.dropout(activation(y), 0.1)
    y = ops.gelu(ops.leaky_relu(ops.elu(y, alpha=0.5), negative_slope=0.1), approximate="tanh")
    loss: Tensor = ops.cross_entropy(ops.log_softmax(ops.softmax(y, axis=1)), labels, label_smoothing=0.1)
    loss += nn.CrossEntropyLoss(weight=y, ignore_index=-1)(y, labels) + ops.nll_loss(y, labels, y, ignore_index=2)
    loss += ops.l1_loss(y, y) + ops.huber_loss(y, y, delta=2.0) + ops.binary_cross_entropy_with_logits(y, y)
    loss += ops.einsum("ij,j->i", y, ops.prod(y, axis=0)).sum() + ops.outer(y[0], y[0]).sum()
    loss += nn.Embedding(3, 4, padding_idx=0)(labels).sum() + ops.embedding(labels, y).sum()
    z = ops.conv_transpose2d(ops.interpolate(x, scale_factor=2), w, stride=2) + ops.adaptive_avg_pool2d(x, 1)
    z += ops.pixel_shuffle(ops.conv2d(x, w, dilation=(2, 1)), 1) + ops.conv1d(x[0], w[0], padding=(1, 0), dilation=2)
    more: list[nn.Module] = [nn.Conv1d(2, 4, 3, groups=2), nn.ConvTranspose2d(2, 3, (2, 3), stride=2),
                             nn.PixelShuffle(2), nn.Upsample(scale_factor=(2, 1)), nn.AdaptiveAvgPool2d((1, 2)),
                             nn.Identity(3, out=4)]
    loss += z.sum() * len(more)
    return loss + ops.mse_loss(y, y, reduction="mean")


def mistakes() -> list[str]:
    ops.conv2d(x, w, stride="2")  # type: ignore[arg-type]
    ops.conv2d(x, w, strides=2)  # type: ignore[call-arg]
    shifted(x, to=2.0)  # type: ignore[call-arg]
    ops.relu([1.0])  # type: ignore[arg-type]
    size: int = ops.relu(x)  # type: ignore[assignment]
    return [*ops.OPS, *ops.ACTIVATIONS, str(size)]


# ---------------------------------------------------------------- layers
class Net(nn.Module):
    def __init__(self, act: type[nn.Module] = nn.Tanh) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 2, 3), act(), nn.AvgPool2d(2), nn.MaxPool2d(3), nn.Flatten(),
                                  nn.Dropout(0.2), nn.LocalResponseNorm(5, alpha=5e-4), output=nn.Linear(2, 10))
        self.norms = nn.ModuleList([nn.BatchNorm2d(3, momentum=0.2), nn.BatchNorm1d(2, affine=False), nn.Identity(),
                                    nn.LayerNorm((2, 3), bias=False), nn.GroupNorm(1, 3), nn.AdaptiveAvgPool2d(1)])
        self.acts = nn.ModuleList([nn.Sigmoid(), nn.ReLU()])
        self.ends = nn.ModuleDict({"softmax": nn.Softmax(1)})
        for parameter in self.parameters():
            init.kaiming_uniform_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return y


# ---------------------------------------------------------------- data, training, weights
def train() -> None:
    minidl.manual_seed(1)
    minidl.set_precision("fp32")
    minidl.set_workspace_limit(2**28)
    net = Net().to("cpu", "float64").train()
    net.zero_grad()
    zoo_net: nn.Module = zoo.build("lenet5", activation="relu")
    model: zoo.Model = zoo.MODELS["lenet5"]
    recipe: zoo.Recipe = model.recipe
    state: dict[str, NDArray[Any]] = net.state_dict()

    digits: data.Dataset = data.load(data.DATASETS[-1], "train")
    known, unknown, note = data.resolve("auto", "mnist")
    mean, std = data.channel_statistics(digits)
    augment: data.Augment = data.Augment(crop=4, flip=True, cutout=8)
    blends, targets = data.mixup(np.zeros((2, 3), np.float32), [0, 1], 2, alpha=0.2, key=(1, 2))
    loader = data.DataLoader(digits.first(100), 10, mean=mean, std=std, padding=2, augment=augment)
    loader.set_epoch(2)
    loader.skip(3)
    known_as: dict[str, object] | None = loader.preprocessing
    rows = (np.ones((10, 7)), np.ones(10))
    parts = [data.DataLoader(part, 4, dtype="float32") for part in data.random_split(rows, [0.5, 0.5], seed=1)]
    tables: list[data.DataLoader] = [*parts, data.DataLoader({"x": np.ones(3)}, 2, transform=lambda item: item["x"]),
                                     data.DataLoader(data.Subset(range(9), [1, 2]), 2)]
    generated: data.Table = data.load("synthetic-table", "test")
    flowers: tuple[data.Table, data.Table] = data.from_csv("flowers.csv", "kind").train_and_test(seed=1)
    batches = data.DataLoader(flowers[0].first(9), 3, **flowers[0].preprocessing())
    ours: tuple[data.Data, data.Data] = data.own_splits("flowers.csv", model.shape, seed=1, label="kind")
    sizes: list[int] = [len(each) for each in ours if each.shape == model.shape]
    pictures: data.Dataset = data.from_folder("pictures", (32, 32), channels=1)
    both: tuple[data.Dataset, data.Dataset] = data.train_and_test("pictures", 32)
    print(tables, pictures[0], known_as, both)
    stored: data.DeviceBatches | None = None if data.own_batches(loader) else data.DeviceBatches(loader)
    sgd = optim.SGD(net.parameters(), recipe.lr, momentum=recipe.momentum)
    group: optim.Group = sgd.groups[0]
    rates: list[optim.Schedule] = [optim.constant(), optim.step(2), optim.linear(10), optim.cosine(10),
                                   optim.warmup(2, optim.cosine(8)), optim.schedule("cosine", 10),
                                   optim.SCHEDULES["linear"](10), optim.one_cycle(10)]
    others: list[optim.Optimizer] = [
        optim.Adam(net.parameters(), betas=(0.9, 0.99)), optim.RMSprop(net.parameters(), centered=True),
        optim.AdamW([{"params": net.parameters(), "name": "all", "weight_decay": 0.1}], lr=0.01),
        optim.Muon(p for p in net.parameters() if p.ndim > 1)]
    print(others[2].group("all")["lr"], optim.Together(*others[1:]).groups)
    ema, plateau = optim.EMA(net, 0.99), optim.Plateau(sgd, patience=3)
    lower: bool = plateau.observe(0.5)
    with ema.applied():
        print(lower, ema.state_dict())
    table = optim.Rates(Tensor([[0.1, 0.05]], dtype="float64"), Tensor([0]))

    @minidl.compile
    def step(images: Tensor, labels: Tensor) -> Tensor:
        sgd.zero_grad()
        loss = ops.cross_entropy(net(images), labels)
        loss.backward()
        norm: Tensor = optim.clip_grad_norm(net.parameters(), 1.0)
        optim.clip_grad_value(net.parameters(), 0.5)
        sgd.step(table if stored else None)
        ema.update()
        return loss + norm

    held: dict[str, object] = sgd.state_dict()
    sgd.load_state_dict(held)
    rng.set_state(rng.get_state())

    class Halved:
        def on_step_end(self, step: training.Step) -> bool:
            sgd.lr *= 0.5
            return step.means()["loss"] < 0.1

    history: list[training.Metrics] = training.fit(
        net, sgd, loader, loader, epochs=1, schedule=optim.cosine(10), loss=ops.cross_entropy,
        metrics={"largest": lambda outputs, targets: outputs.max(), "top5": training.top_k_accuracy(5)}, say=print,
        checkpoints="run", save_every=10, resume=True,
        callbacks=[Halved(), ema, plateau, training.SaveBest(net, "best.h5"), lambda metrics: print(metrics["epoch"])])
    shares: tuple[float, float] = training.evaluate(net, loader)
    world: distributed.World = distributed.start()
    part = data.DataLoader(np.ones((8, 3)), 4, part=(world.rank, world.size))
    distributed.average(net.parameters(), share=2 / part.sizes[0])
    flat = np.ones(3)
    world.sum(flat)
    world.mean(flat, 0.5)
    world.broadcast(flat)
    told: str = world.tell(distributed.by_first(lambda: "rank 0"))
    names: list[str] = world.gather(told)
    launch: distributed.Launch | None = distributed.launched({})
    print(names, launch, distributed.current().size, world.end())
    print(history, shares)

    try:
        for images, answers in loader:
            value: float = step(Tensor(images), Tensor(answers)).item()
    except minidl.CompileError as error:
        print(error, minidl.__version__)
    with minidl.no_grad():
        minidl.save(net, "net.h5", preprocessing={"mean": [0.5], "std": [0.25], "padding": 2}, classes=["a", "b"])
        minidl.load(net, "net.h5")
        built: nn.Module = minidl.load("net.h5")
    minidl.gradcheck(arithmetic, [x, x])
    shared: Tensor = minidl.from_dlpack(np.from_dlpack(minidl.from_dlpack(np.ones(2))))
    minidl.onnx.export(Net().eval(), "net.onnx", np.ones((1, 3, 32, 32), np.float32))
    minidl.onnx.ROWS["tanh"] = lambda graph, ndim, x: graph.node("Tanh", x)
    where: tuple[int, int] = shared.__dlpack_device__()
    facts: dict[str, object] = shared.__cuda_array_interface__
    table_of_layers: nn.Summary = nn.summary(net, (3, 8, 8))
    print(table_of_layers, table_of_layers.multiply_adds, nn.summary(net, x).rows[0].shapes)


# ---------------------------------------------------------------- pictures
def draw(net: nn.Module, test: data.DataLoader, weights: NDArray[Any]) -> str:
    plot.curves(training.read_metrics("run"), "curves.png")
    plot.filters(weights, "filters.svg")
    plot.confusion(labels, np.array([1, 0]), ["cat", "dog"], "confusion.pdf")
    paths = plot.pictures("run", net, test)
    board = plot.TensorBoard("run")
    board(training.machine())
    board.close()
    return f"{plot.report('run').name} {paths[0].name}"


# ---------------------------------------------------------------- what memory costs
def costs() -> str:
    run: Run = Kernel("copy.cu", constants={"N": 4}).run(1, (32, 8), {"x": np.ones(64, np.float32), "y": (64,)})
    total: Counts = run.counts.total + run.counts.lines[3]
    loads: Global = total.loads
    shared: Shared = total.shared_loads
    share: float = loads.per_request * loads.moved / loads.asked + shared.conflicts
    table: Table = count("avg_pool2d", [(1, 1, 9, 9)], "float64", stride=2, window=3)
    with counting(132) as tables:
        ops.relu(there(np.ones(8, np.float32)))
    return f"{table + tables['activation']} {share}"
