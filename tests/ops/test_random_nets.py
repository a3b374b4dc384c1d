"""Random nets of all layers (tests/random_nets.py): compiled as plain, as PyTorch, and on CUDA as on the CPU.

More: python tests/random_nets.py --nets 5000 [--device cuda].
"""

from __future__ import annotations

import re
import types
from collections import Counter
from typing import Any

import numpy as np
import pytest
import random_nets
from random_nets import NAMES, Net
from tiers import tiered
from twins import Verdict, compare

import minidl
from minidl import nn
from minidl.ops import cpu

NETS = 500
LAYERS = {*nn.__all__} - {"Module", "Parameter", "Summary", "init", "summary"}


# ---------------------------------------------------------------- what is drawn
def test_every_layer_is_drawn() -> None:
    texts = [str(random_nets.net(i)) for i in range(NETS)]
    found = Counter({name: sum(f"nn.{name}(" in text for text in texts) for name in LAYERS})
    assert all(count >= 10 for count in found.values()), found


def test_the_same_number_gives_the_same_net() -> None:
    assert str(random_nets.net(7)) == str(random_nets.net(7)) != str(random_nets.net(8))


# ---------------------------------------------------------------- compiled
def run(net: Net, device: str) -> Verdict:
    return compare(random_nets.scenario(net), device, None)


@pytest.mark.parametrize("first", tiered(range(0, NETS, 2), fast=4, slow=10))
def test_compiled_nets_have_the_bits_of_plain_ones(first: int) -> None:
    """Results, parameters, gradients, running values and what optimizers keep, after each of nine steps."""
    calls = replays = 0
    for i in range(first, first + 2):
        net = random_nets.net(i)
        verdict = run(net, "cpu")
        assert verdict.kind == "equal", f"{verdict.kind}: {verdict.why}\n{net}"
        calls, replays = calls + verdict.calls, replays + verdict.replays
    assert replays > 0.2 * calls, f"{replays} replays of {calls} calls"


@pytest.mark.usefixtures("handed_out_again")
@pytest.mark.parametrize("number", tiered(range(0, NETS, 10), slow=7))
def test_results_that_are_handed_out_again(number: int) -> None:
    """As above, with each result in an array that held one before."""
    verdict = run(random_nets.net(number), "cpu")
    assert verdict.kind == "equal", f"{verdict.kind}: {verdict.why}\n{random_nets.net(number)}"


def test_a_wrong_bit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison sees a single element of one gradient."""
    net = next(net for net in map(random_nets.net, range(NETS)) if net.layers[-1].startswith("nn.Linear"))
    right = random_nets.notes(net)
    gradient = cpu.linear_grad_w

    def wrong(*arguments: Any) -> np.ndarray:
        gw: np.ndarray = gradient(*arguments)
        gw[0, 0] *= 1.01
        return gw
    limits = random_nets.allowed(net, right)
    monkeypatch.setattr(cpu, "linear_grad_w", wrong)
    gaps = random_nets.apart(right, random_nets.notes(net))
    assert max(gaps[at] / limits[at] for at in gaps) > 1


# ---------------------------------------------------------------- on CUDA
@pytest.mark.gpu
@pytest.mark.parametrize("hundred", range(NETS // 100))
def test_gpu_nets_are_the_cpus(hundred: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain and compiled, in float32, as near to the CPU's float64 as float32's rounding explains. Only every fifth net
    has the fastest convolutions: for each of many shapes, `auto` compiles and measures all algorithms."""
    from minidl.ops.cuda import conv

    wrong, fastest = [], conv.fastest
    for i in range(100 * hundred, 100 * hundred + 100):
        net = random_nets.net(i)
        monkeypatch.setattr(conv, "fastest", fastest if i % 5 == 0 else (
            lambda _, g, *__: "direct" if g.dense else "grouped"))
        reference = random_nets.notes(net)
        limits = random_nets.allowed(net, reference)
        for compiled in (False, True):
            share, where = random_nets.worst(net, "cuda", compiled, reference, limits)
            if share > 1 or where.startswith("refused"):
                wrong.append(f"{'compiled' if compiled else 'plain'}, {share:.3g} of its limit: {where}\n{net}")
    assert not wrong, "\n".join([f"{len(wrong)} of 200 runs", *wrong])


# ---------------------------------------------------------------- PyTorch
def twins_layers(torch: Any) -> dict[str, Any]:
    """The names of `random_nets.NAMES` in PyTorch: its own layers, and those that it lacks."""
    layers, functional = torch.nn, torch.nn.functional

    class ScaledTanh(layers.Module):
        def forward(self, x: Any) -> Any:
            return 1.7159 * torch.tanh(2 * x / 3)

    class Subsample2d(layers.Module):
        def __init__(self, channels: int):
            super().__init__()
            self.weight, self.bias = (layers.Parameter(torch.zeros(channels)) for _ in range(2))

        def forward(self, x: Any) -> Any:
            sums = 4 * functional.avg_pool2d(x, 2)
            return sums * self.weight[:, None, None] + self.bias[:, None, None]

    class TableConv2d(layers.Module):
        def __init__(self, c: int, table: list[tuple[int, ...]], k: int):
            super().__init__()
            self.table, self.c = table, c
            self.weight = layers.Parameter(torch.zeros(sum(map(len, table)), 1, k, k))
            self.bias = layers.Parameter(torch.zeros(len(table)))
            self.register_buffer("places", torch.zeros(len(table) * c, sum(map(len, table))))

        def forward(self, x: Any) -> Any:
            connections, maps = iter(self.weight[:, 0]), []
            for reads in self.table:
                maps.append(sum(functional.conv2d(x[:, c:c + 1], next(connections)[None, None]) for c in reads))
            return torch.cat(maps, 1) + self.bias[:, None, None]

    class LocallyConnected2d(layers.Module):
        def __init__(self, c: int, m: int, size: tuple[int, int], k: int):
            super().__init__()
            self.k, self.out = k, (size[0] - k + 1, size[1] - k + 1)
            self.weight = layers.Parameter(torch.zeros(m, c * k * k, *self.out))
            self.bias = layers.Parameter(torch.zeros(m, *self.out))

        def forward(self, x: Any) -> Any:
            windows = functional.unfold(x, self.k).reshape(len(x), -1, *self.out)
            return torch.einsum("nthw,mthw->nmhw", windows, self.weight) + self.bias

    class RBF(layers.Module):
        def __init__(self, codes: list[list[float]], j: float):
            super().__init__()
            self.register_buffer("codes", torch.tensor(codes))

        def forward(self, x: Any) -> Any:
            return -((x[:, None] - self.codes) ** 2).sum(2)

    class Residual(layers.Module):
        def __init__(self, body: Any):
            super().__init__()
            self.body = body

        def forward(self, x: Any) -> Any:
            return x + self.body(x)

    class Beside(layers.Module):
        def __init__(self, parts: Any):
            super().__init__()
            self.parts = parts

        def forward(self, x: Any) -> Any:
            parts = self.parts.values() if isinstance(self.parts, layers.ModuleDict) else self.parts
            return torch.cat([part(x) for part in parts], 1)

    class First(layers.Module):
        def __init__(self, body: Any, inputs: int = 1):
            super().__init__()
            self.body, self.inputs = body, inputs

        def forward(self, x: Any) -> Any:
            return self.body(*[x] * self.inputs)[0]

    class Deep(layers.Module):
        def __init__(self, body: Any):
            super().__init__()
            self.body = body

        def forward(self, x: Any) -> Any:
            return self.body(x.unsqueeze(1)).squeeze(1)

    class Means(layers.Module):
        def forward(self, x: Any) -> Any:
            return x.mean(1)

    class Hardsigmoid(layers.Module):      # PyTorch's own has a gradient of 1/6 rounded to float32
        def forward(self, x: Any) -> Any:
            return functional.relu6(x + 3) / 6

    both = types.SimpleNamespace(**{name: layer for name, layer in vars(layers).items() if not name.startswith("_")})
    vars(both).update(ScaledTanh=ScaledTanh, Subsample2d=Subsample2d, TableConv2d=TableConv2d, RBF=RBF,
                      LocallyConnected2d=LocallyConnected2d, Hardsigmoid=Hardsigmoid,
                      GELU=lambda how="none": layers.GELU(approximate=how))
    return {"nn": both, "optim": torch.optim, "Residual": Residual, "Beside": Beside, "First": First,
            "Deep": Deep, "Means": Means}


def without_dropout(net: Net) -> Net:
    """Its masks are minidl's own."""
    layers = tuple(re.sub(r"(Dropout(2d)?)\(0.3\)", r"\1(0.0)", layer) for layer in net.layers)
    return Net(net.number, layers, net.loss, net.optimizer, net.shape, net.tokens)


@pytest.mark.slow
@pytest.mark.torch
def test_nets_are_pytorchs() -> None:
    """Losses and logits of six steps and of evaluation, then parameters and running values: float64, to 1e-9."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)               # its threads would wait for each other on tiny arrays
    names = twins_layers(torch)
    assert NAMES.keys() == names.keys()
    for i in range(NETS):
        net = without_dropout(random_nets.net(i))
        ours = random_nets.notes(net)
        twin = eval(f"nn.Sequential({', '.join(net.layers)})", dict(names)).double()
        minidl.manual_seed(i)
        state = random_nets.built(net, "float64").state_dict()
        twin.load_state_dict({**twin.state_dict(), **{name: torch.tensor(values) for name, values in state.items()}})
        criterion = eval(net.loss, dict(names))
        optimizer = eval(net.optimizer, {**names, "net": twin})
        batches = [[torch.tensor(a) for a in batch] for batch in net.batches()]
        theirs: list[Any] = []
        for x, labels, target in batches:
            optimizer.zero_grad()
            y = twin(x)
            given = torch.log_softmax(y, -1) if net.loss.startswith("nn.NLL") else y
            loss = criterion(given, labels if net.loss.startswith(("nn.NLL", "nn.Cross")) else target)
            loss.backward()
            optimizer.step()
            theirs += [loss, y]
        twin.eval()
        theirs += [twin(x) for x, *_ in batches[:3]]
        mine = [array for when, arrays in ours if when.startswith("call") for path, array in arrays.items()
                if isinstance(array, np.ndarray) and not path.endswith(".weights")]        # which PyTorch's lack
        last, after = ours[-1][1], twin.state_dict()
        pairs = [*zip(mine, theirs, strict=True), *((last[f"state {name}"], after[name]) for name in state)]
        for got, wanted in pairs:
            np.testing.assert_allclose(got, wanted.detach().numpy(), rtol=1e-9, atol=1e-9, err_msg=str(net))
