"""The gradients of whole nets against finite differences: `training.check_gradients`, `minidl train --check-grads`."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tiers import tiered

import minidl
from minidl import Tensor, nn, ops, training
from minidl.core import rng
from minidl.core.gradcheck import GradcheckError
from minidl.tools.cli import train

X = Tensor(np.random.default_rng(0).standard_normal((4, 1, 8, 8)).astype(np.float32))
LABELS = Tensor(np.array([0, 2, 1, 1]))
DATA = ["--device", "cpu", "--data", "synthetic-digits", "--check-grads"]


@minidl.op(floating=True)
def cube(k, x: Tensor, *, factor: float = 3.0):
    """x * x * x, and a gradient that is right where factor is 3."""
    square = k.mul(x, x)
    return k.mul(square, x), lambda gy, need: (k.mul(gy, k.mul(square, factor)),)


class Cube(nn.Module):
    def __init__(self, factor: float = 3.0):
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return cube(x, factor=self.factor)


def net(factor: float = 3.0) -> nn.Module:
    minidl.manual_seed(2)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.3),
                         nn.Flatten(), Cube(factor), nn.Linear(27, 3))


def test_a_right_net_passes_and_stays_as_it_is() -> None:
    checked = net()
    before, state = {name: value.copy() for name, value in checked.state_dict().items()}, rng.get_state()
    assert training.check_gradients(checked, X, LABELS) < 1
    assert rng.get_state() == state
    for name, value in checked.state_dict().items():
        assert value.tobytes() == before[name].tobytes()
    assert all(parameter.grad is None for parameter in checked.parameters())


def test_a_net_of_several_inputs() -> None:
    """Integers stay so, and targets are as precise as outputs."""
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.ids = nn.Linear(3, 2), nn.Embedding(5, 2)

        def forward(self, rows: Tensor, ids: Tensor) -> Tensor:
            return self.rows(rows).tanh() * self.ids(ids)
    given = {"rows": Tensor(np.ones((4, 3), np.float32)), "ids": LABELS}
    for inputs in (given, tuple(given.values())):
        assert training.check_gradients(Two(), inputs, Tensor(np.ones((4, 2), np.float32)), ops.mse_loss) < 1


def test_a_loss_that_is_a_module_is_compared_too() -> None:
    class Loss(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.centres, self.cube = Tensor(np.ones((3, 3), np.float32), requires_grad=True), Cube(factor)

        def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
            return (self.cube(self.centres)[labels] - outputs).square().mean()
    checked, loss = nn.Linear(3, 3), Loss(3.0)
    x, y = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32), np.array([0, 2, 1, 1])
    assert training.check_gradients(checked, x, y, loss) < 1           # of NumPy's arrays
    assert loss.centres.grad is None
    checked.loss = loss
    assert training.check_gradients(checked, x, y, loss) < 1
    with pytest.raises(GradcheckError, match=r"^check_gradients: loss.centres, element \(\d, \d\): backward gives "):
        training.check_gradients(nn.Linear(3, 3), x, y, Loss(2.0))


def test_a_wrong_gradient_is_found_behind_the_op_alone() -> None:
    with pytest.raises(GradcheckError, match=r"check_gradients: 0.weight, element \(\d, 0, \d, \d\): backward gives "
                                             r"\S+ but differences give \S+; correct the backward of an op between"):
        training.check_gradients(net(3.001), X, LABELS)
    assert training.check_gradients(nn.Sequential(nn.Flatten(), Cube(2), nn.Linear(64, 3)), X, LABELS) < 1


def test_a_gradient_that_does_not_arrive_is_found() -> None:
    class Cut(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.detach()

    with pytest.raises(GradcheckError, match=r"0.weight, element .*: backward gives 0 but differences give"):
        training.check_gradients(nn.Sequential(nn.Conv2d(1, 3, 8), Cut(), nn.Flatten(), nn.Linear(3, 3)), X, LABELS)


def test_a_loss_that_is_not_finite() -> None:
    with pytest.raises(GradcheckError, match="check_gradients: the loss is nan; choose inputs and parameters where"):
        training.check_gradients(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), Tensor(X.numpy() * np.nan), LABELS)


@pytest.mark.parametrize("flags", tiered([
    ["--model", "lenet5"], ["--model", "lenet5", "--option", "original=true"], ["--model", "autoencoder"],
    ["--model", "perceptron"], ["--model", "resnet", "--option", "depth=8", "--option", "width=4"]], slow=1))
def test_nets_of_the_zoo(flags: list[str], elsewhere: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main([*flags, *DATA]) == 0
    said = capsys.readouterr().out
    assert re.search(r"on 4 images of synthetic-digits: the gradients of its \d+ parameters \([\d,]+ numbers\) are "
                     r"those of finite differences in float64, at most \S+ of the tolerance off\n$", said)
    assert not Path("runs").exists()


@pytest.mark.slow
def test_a_net_of_a_file_with_a_wrong_op(elsewhere: None, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my_net.py").write_text("""
import minidl
from minidl import nn, ops


@minidl.op(floating=True)
def twice(k, x: minidl.Tensor):
    return k.add(x, x), lambda gy, need: (gy,)


class Twice(nn.Module):
    def forward(self, x):
        return twice(x)


def build(in_channels=1, classes=10):
    return nn.Sequential(nn.Conv2d(in_channels, 2, 5), Twice(), nn.Flatten(), nn.Linear(2 * 24 * 24, classes))
""")
    assert train.main(["--model", "my_net.py", *DATA]) == 2
    assert re.search(r"check_gradients: 0.weight, element .*: backward gives \S+ but differences give \S+; correct",
                     capsys.readouterr().err)
