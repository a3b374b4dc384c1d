"""`minidl` and its commands. minidl train is train.py, whose flags tests/training/test_training.py checks."""

from __future__ import annotations

import configparser
import contextlib
import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import data, nn, zoo
from minidl.core import device, host
from minidl.core.host import install
from minidl.tools import cli
from minidl.tools.cli import doctor, train
from minidl.tools.cli.common import typed

pytestmark = pytest.mark.usefixtures("elsewhere")

ROOT = Path(__file__).resolve().parents[2]


# ---------------------------------------------------------------- the command
@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: minidl {command} ")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("command", [["models"], ["models", "--json"], ["summary", "perceptron"]])
def test_an_output_that_is_lost_is_a_failure(command: list[str], monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    """But not if its reader wants no more of it, as head does."""
    read, written = os.pipe()
    os.close(read)
    for where, status in (("/dev/full", 2), (written, 0)):
        with open(where, "w") as stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            assert cli.main(command) == status
        assert "warning: the output cannot be written (" in capsys.readouterr().err
    assert cli.main(command) == 0


@pytest.mark.parametrize("own", [False, True])
def test_a_top_k_of_all_classes_leaves_no_folder(own: bool, monkeypatch: pytest.MonkeyPatch,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    """It was refused in the first epoch, and the corrected command then because of the folder."""
    Path("mine.py").write_text("from minidl import nn\ndef build():\n    return nn.Sequential(nn.Linear(10, 7))\n")
    data_of = ["mine.py:build", "--data", "synthetic-table"] if own else ["perceptron", "--data", "synthetic-digits"]
    run = ["train", *data_of, "--limit-train", "8", "--limit-test", "4", "--epochs", "0", "--output-dir", "run",
           "--no-progress", "--device", "cpu", "--batch-size", "4"]
    classes = 7 if own else 10
    assert cli.main([*run, "--top-k", str(classes)]) == 2
    name = "mine.py:build" if own else "perceptron"
    assert capsys.readouterr().err == (f"minidl train: error: --top-k={classes} must be below {classes}, the number of "
                                       f"classes that {name} answers with: the label is always among all of them\n")
    assert not Path("run").exists()
    monkeypatch.setattr(train, "_pictures", lambda *_: None)
    assert cli.main([*run, "--top-k", str(classes - 1)]) == 0


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(any(line.split()[:1] == [command] for line in lines) for command in cli.COMMANDS)
    assert max(map(len, lines)) <= 100


@pytest.mark.slow
@pytest.mark.parametrize(("argv", "message"), [
    ([], "minidl: error: no command is given; it must be one of train, predict,"),
    (["tarin"], "minidl: error: 'tarin' is not a command; it must be one of train, predict,"),
    (["summary"], "minidl summary: error: one of --model and --weights must be given"),
    (["summary", "--model", "mlp", "--input", "1,28,28"], "minidl summary: error: linear: x has 784 features but w"),
    (["data", "fetch"], "minidl data: error: fetch: no data set is named; name some of mnist"),
    (["data", "list", "minst"], "minidl data: error: 'minst' is not a data set; it must be one of mnist,"),
    (["plot", "nowhere"], "minidl plot: error: nowhere is not a folder; name a run folder"),
    (["train", "--load", "no.h5", "--data", "synthetic-digits", "--limit-train", "9", "--limit-test", "9",
      "--device", "cpu"], "minidl train: error: "),
])
def test_an_error_is_one_line(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(message)


@pytest.mark.parametrize(("argv", "message"), [
    (["summary", "--model", "lenet5", "--input", "3,x"],
     "minidl summary: error: argument --input: '3,x' is not a shape, ints of at least 1 such as 3,32,32; see minidl "
     "summary --help\n"),
    (["models", "--all"], "minidl models: error: unrecognized arguments: --all; see minidl models --help\n"),
    (["train", "--epochs", "-1"],
     "minidl train: error: argument --epochs: '-1' is not an int of at least 0; see minidl train --help\n"),
])
def test_a_wrong_flag_is_one_line(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == 2
    assert capsys.readouterr().err == message


@pytest.mark.slow
def test_python_m_minidl_is_the_command(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "minidl", "--version"], cwd=ROOT, capture_output=True, text=True,
                          check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"minidl {minidl.__version__}\n", "")


@pytest.mark.slow
def test_help_is_quick_because_no_command_is_imported() -> None:
    code = ("from minidl import cli; cli.main(['--help']); import sys; "
            "print([name for name in sys.modules if name.startswith('minidl.tools.cli.') or name in "
            "('h5py', 'tqdm')])")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['minidl.tools.cli.common']"


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(FileNotFoundError, match="nowhere is not a folder"):
        cli.main(["plot", "nowhere", "--debug"])


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_is_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("minidl.tools.cli.models.list_models", interrupted)
    monkeypatch.setattr(sys, "argv", ["minidl", "models"])
    assert cli.main() == 130
    assert capsys.readouterr().err == "minidl models: interrupted\n"


def test_an_interrupt_ends_the_program_that_calls_a_command(monkeypatch: pytest.MonkeyPatch,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    """A loop over trainings, or a suite of tests, would otherwise go on with the next."""
    monkeypatch.setattr("minidl.tools.cli.models.list_models", interrupted)
    monkeypatch.setattr("minidl.tools.cli.train.load_data", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cli.main(["models"])
    with pytest.raises(KeyboardInterrupt, match="there is no run folder yet"):
        cli.main(["train"])
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(sys.platform == "win32", reason="paths and quotes of POSIX")
@pytest.mark.parametrize(("prog", "argv", "before", "expected"), [
    ("minidl train", "bin/minidl", "/v/bin/python3", "minidl train"),              # the one that is on the path
    ("minidl train", "./minidl", "/v/bin/python3", "./minidl train"),
    ("minidl train", ".venv/bin/minidl", "/v/bin/python3", ".venv/bin/minidl train"),
    ("minidl train", "/lib/minidl/__main__.py", ".venv/bin/python -m minidl", ".venv/bin/python -m minidl train"),
    ("train.py", "train.py", "python -u train.py", "python -u train.py"),
    ("train.py", "../train.py", "python3 ../train.py", "python3 ../train.py"),
    ("minidl train", "sweep.py", "python sweep.py", "minidl train"),      # which calls minidl.tools.cli.main
    ("minidl train", "train.py", "python train.py", "minidl train"),
    ("train.py", "/lib/pytest/__main__.py", "python -m pytest", "python train.py"),
    ("train.py", "train.py", "", "python train.py"),                               # in a notebook, by %run
])
def test_a_command_is_printed_as_it_was_typed(prog: str, argv: str, before: str, expected: str,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [argv, "--epochs", "3"])
    monkeypatch.setattr(sys, "orig_argv", [*before.split(), *([argv] if argv.endswith("minidl") else []),
                                           *(["--epochs", "3"] if before else ["-f", "kernel.json"])])
    Path("bin").mkdir()
    Path("bin/minidl").touch(0o755)
    monkeypatch.setenv("PATH", str(Path("bin").resolve()))
    assert typed(prog) == expected


def test_models_names_every_model_with_its_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models"]) == 0
    out = capsys.readouterr().out
    assert all(f"{name:15} " in out for name in zoo.MODELS)
    assert "data cifar10, epochs 20, batch_size 128" in out


@pytest.mark.deep
@pytest.mark.usefixtures("drawing")
def test_plot_draws_what_train_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--model", "perceptron", "--data", "synthetic-digits", "--epochs", "1", "--device", "cpu",
                     "--limit-train", "200", "--limit-test", "50", "--no-progress", "--output-dir", "out"]) == 0
    capsys.readouterr()
    assert cli.main(["plot", "out"]) == 0
    drawn = capsys.readouterr().out.splitlines()
    assert {str(Path("out") / name) for name in ("curves.png", "report.html")} <= set(drawn)
    assert all(Path(each).stat().st_size > 1000 for each in drawn)


# ---------------------------------------------------------------- summary
LENET5 = """\
layer      kind                 output           parameters  multiply-adds
--------------------------------------------------------------------------
net        Sequential           (n, 10)
  c1       Conv2d (6,1,5,5)     (n, 6, 28, 28)          156        117,600
  act1     Tanh                 (n, 6, 28, 28)
  s2       AvgPool2d            (n, 6, 14, 14)
  c3       Conv2d (16,6,5,5)    (n, 16, 10, 10)       2,416        240,000
  act3     Tanh                 (n, 16, 10, 10)
  s4       AvgPool2d            (n, 16, 5, 5)
  c5       Conv2d (120,16,5,5)  (n, 120, 1, 1)       48,120         48,000
  act5     Tanh                 (n, 120, 1, 1)
  flatten  Flatten              (n, 120)
  f6       Linear (84,120)      (n, 84)              10,164         10,080
  act6     Tanh                 (n, 84)
  output   Linear (10,84)       (n, 10)                 850            840
--------------------------------------------------------------------------
input           (n, 1, 32, 32), n images
parameters      61,706
multiply-adds   416,520 per image
neurons         6,518 per image, outputs of layers that multiply
memory          241.0 KiB for parameters, as much again for gradients, and for velocities
                57.0 KiB per image for results of layers, and training as much for their gradients
"""


def test_lenet5_as_computed_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """C1: 6*28*28 outputs of 25 products each; C3: 16*10*10 of 150; C5: 120 of 400; F6: 84 of 120; output: 10 of 84."""
    found = nn.summary(zoo.build("lenet5"), (1, 32, 32))
    convolutions = 6 * 28 * 28 * 25 + 16 * 10 * 10 * 6 * 25 + 120 * 16 * 25
    assert found.multiply_adds == convolutions + 84 * 120 + 10 * 84 == 416_520
    assert found.parameters == 156 + 2_416 + 48_120 + 10_164 + 850 == 61_706
    assert found.neurons == 6 * 28 * 28 + 16 * 10 * 10 + 120 + 84 + 10
    values = 2 * 6 * 28 * 28 + 6 * 14 * 14 + 2 * 16 * 10 * 10 + 16 * 5 * 5 + 2 * 120 + 2 * 84 + 10
    assert (found.parameter_bytes, found.value_bytes) == (4 * 61_706, 4 * values)
    assert cli.main(["summary", "--model", "lenet5"]) == 0
    assert capsys.readouterr().out == LENET5


def test_krizhevsky2009_as_computed_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """64 filters 8x8 over 3 channels at 32x32 places, and 4096 -> 10."""
    found = nn.summary(zoo.build("krizhevsky2009"), (3, 32, 32))
    assert found.multiply_adds == 64 * 32 * 32 * 3 * 64 + 10 * 4096 == 12_623_872
    assert found.parameters == 64 * 3 * 64 + 64 + 40_970 == 53_322
    assert found.value_bytes == 4 * (2 * 64 * 32 * 32 + 64 * 8 * 8 + 10)
    assert cli.main(["summary", "--model", "krizhevsky2009", "--input", "3,32,32"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


def test_other_channels_are_an_option_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["summary", "--model", "lenet5", "--input", "3,32,32"]) == 0
    assert "Conv2d (6,3,5,5)" in capsys.readouterr().out


def test_transposed_convolutions_and_attention_are_counted() -> None:
    """2x2 filters from 8 maps to 2 at 4x4 places; and 5 queries by 5 keys of 4 numbers each, twice, in 2 heads."""
    assert nn.summary(nn.ConvTranspose2d(8, 2, 2, 2), (8, 4, 4)).multiply_adds == 8 * 16 * 2 * 4

    class Net(nn.Module):
        def forward(self, x: minidl.Tensor) -> minidl.Tensor:
            return minidl.ops.scaled_dot_product_attention(x, x, x[..., :3])
    assert nn.summary(Net(), (2, 5, 4)).multiply_adds == 2 * 5 * 5 * (4 + 3)


class Sequences(nn.Module):
    """Reads the last state of a recurrence; turned: gives it (l,n,5) of (n,l,5), and reads its last step."""

    def __init__(self, batch_first: bool, turned: bool = False):
        super().__init__()
        self.layer, self.head = nn.LSTM(5, 7, 2, batch_first=batch_first), nn.Linear(7, 2)
        self.turned = turned

    def forward(self, x: minidl.Tensor) -> minidl.Tensor:
        y, (h, _) = self.layer(x.swapaxes(0, 1) if self.turned else x)
        return self.head(y[-1] if self.turned else h[-1])


def test_images_of_layers_that_have_steps_first() -> None:
    """A sequence was taken for as many sequences of one step, and layers behind it were counted as many times."""
    found = [nn.summary(net, given) for net, given in (
        (Sequences(True), (9, 5)), (Sequences(False), (9, 5)), (Sequences(False, turned=True), (9, 5)),
        (Sequences(False), minidl.ones(9, 1, 5)), (Sequences(True), minidl.ones(1, 9, 5)))]
    assert {each.multiply_adds for each in found} == {9 * 4 * 7 * (5 + 7 + 7 + 7) + 7 * 2}
    assert {each.neurons for each in found} == {9 * 7 + 2}
    assert "  (n, 9, 7), (2, n, 7), (2, n, 7)  " in str(found[0])
    assert "  (9, n, 7), (2, n, 7), (2, n, 7)  " in str(found[1])
    assert "\ninput           (9, n, 5), n images" in str(found[1])
    with pytest.raises(ValueError, match=r"^summary: the input has shape \(9, 2, 5\) but must hold one image, \(n, 1, "
                                         r"\.\.\.\); pass x\[:, :1\]$"):
        nn.summary(Sequences(False), minidl.ones(9, 2, 5))

    class Beside(Sequences):
        def forward(self, x: minidl.Tensor, more: minidl.Tensor) -> minidl.Tensor:  # type: ignore[override]
            return super().forward(x) + more
    beside = nn.summary(Beside(False), minidl.ones(9, 1, 5), minidl.ones(1, 2))
    assert (beside.multiply_adds, beside.input_shapes) == (found[0].multiply_adds, ((9, 1, 5), (1, 2)))

    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(5, 7)

        def forward(self, x: minidl.Tensor) -> minidl.Tensor:
            return self.layer(x.reshape(1, -1, 5))[0]
    with pytest.raises(ValueError, match=r"^summary: GRU .* has the axis of steps first, and got 9 sequences of one "):
        nn.summary(Folded(), (9, 5))


@pytest.mark.parametrize(("net", "products"), [
    (nn.LocallyConnected2d(3, 4, (8, 8), 3, padding=1), 4 * 27 * 8 * 8),
    (nn.TableConv2d(3, [(0, 1), (1, 2)], 5), 2 * 3 * 25 * 4 * 4)])
def test_copies_of_pixels_and_weights_are_no_products(net: nn.Module, products: int) -> None:
    assert nn.summary(net, (3, 8, 8)).multiply_adds == products


@pytest.mark.parametrize(("net", "shapes", "neurons"), [
    (nn.LSTM(6, 4, batch_first=True), [(5, 6)], 5 * 4), (nn.LSTMCell(6, 4), [(6,)], 4),
    (nn.GRU(6, 4, 2, batch_first=True, bidirectional=True), [(5, 6)], 5 * 8),
    (nn.MultiheadAttention(8, 2, batch_first=True), [(5, 8)] * 3, 5 * 8 + 5 * 8)])
def test_states_and_weights_of_attention_are_no_neurons(net: nn.Module, shapes: Any, neurons: int) -> None:
    assert nn.summary(net, *shapes).neurons == neurons


def test_views_of_views_take_no_memory() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1000)

        def forward(self, x: minidl.Tensor) -> minidl.Tensor:
            return self.layer(x).unsqueeze(1).unsqueeze(2).squeeze(1).squeeze(1)
    assert nn.summary(Net(), (4,)).value_bytes == 4000


def test_a_net_of_token_ids_is_given_integers(capsys: pytest.CaptureFixture[str]) -> None:
    Path("ids.py").write_text("from minidl import nn\ndef build(classes=3):\n    return nn.Sequential("
                              "nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, classes))\n")
    assert cli.main(["summary", "ids.py:build", "--input", "5"]) == 0
    assert "multiply-adds   60 per image" in capsys.readouterr().out
    assert cli.main(["profile", "ids.py:build", "--input", "5", "--device", "cpu", "--steps", "1"]) == 0
    assert "embedding_grad_w" in capsys.readouterr().out


def test_inputs_may_be_named() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: minidl.Tensor, *, y: minidl.Tensor) -> minidl.Tensor:
            return self.layer(x) + y
    assert nn.summary(Net(), (4,), y=(2,)).input_shapes == ((1, 4), (1, 2))


@pytest.mark.parametrize("bias", [False, True])
def test_tied_parameters_are_counted_in_one_row(bias: bool) -> None:
    """The rows added up to more than the net has."""
    net = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7, bias))
    net[1].weight = net[0].weight
    found = nn.summary(net, (3,))
    assert [(row.parameters, row.again) for row in found.rows] == [(0, False), (28, False), (7 * bias, not bias)]
    assert found.parameters == 28 + 7 * bias


def test_a_net_that_calls_ops_shares_layers_and_has_buffers() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.scale = minidl.Tensor(np.ones((4, 4), np.float32), requires_grad=True)
            self.mean = minidl.Tensor(np.zeros(4, np.float32))
            self.drop = nn.Dropout(0.5)

        def forward(self, x: minidl.Tensor) -> tuple[minidl.Tensor, minidl.Tensor]:
            x = (x - self.mean) @ self.scale
            return self.drop(self.layer(self.layer(x))), x

    net = Net()
    net.drop.training = False
    found = nn.summary(net, (4,))
    assert [(row.path, row.parameters, row.buffers, row.multiply_adds, row.again) for row in found.rows] == [
        ("", 16, 4, 16, False), ("layer", 20, 0, 16, False), ("layer", 0, 0, 16, True), ("drop", 0, 0, 0, False)]
    assert (found.parameters, found.buffers, found.multiply_adds) == (36, 4, 48)
    assert found.rows[0].shapes == ((1, 4), (1, 4))
    assert "as above" in str(found)
    assert "16 (4 fixed)" in str(found)
    assert "36 and 4 fixed" in str(found)
    assert net.training
    assert net.layer.training
    assert not net.drop.training
    assert all("forward" not in vars(module) for _, module in net.named_modules())


def test_a_net_is_left_as_it_was_where_it_fails() -> None:
    net = zoo.build("lenet5")
    with pytest.raises(ValueError, match="conv2d: x has 3 channels but w expects 1"):
        nn.summary(net, (3, 32, 32))
    assert net.training
    assert all("forward" not in vars(module) for _, module in net.named_modules())
    assert net(minidl.Tensor(np.zeros((2, 1, 32, 32), np.float32))).shape == (2, 10)


@pytest.mark.parametrize(("inputs", "error", "message"), [
    ((), ValueError, "summary: got no input but needs the shape of one"),
    ((32,), TypeError, "summary: the input is 32 but must be a shape without the axis of images"),
    (((1, 0, 3),), TypeError, r"summary: the input is \(1, 0, 3\) but must be a shape"),
    ((minidl.Tensor(np.zeros((2, 1, 32, 32), np.float32)),), ValueError, "but must hold one image"),
])
def test_what_is_not_an_input_is_refused(inputs: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        nn.summary(zoo.build("lenet5"), *inputs)


def test_a_tensor_is_an_input() -> None:
    x = minidl.Tensor(np.zeros((1, 1, 32, 32), np.float32))
    assert nn.summary(zoo.build("lenet5"), x).multiply_adds == 416_520


def test_long_names_keep_to_100_columns() -> None:
    net = nn.Sequential(a_layer_with_a_very_long_name_that_nobody_reads_to_its_end=nn.Conv2d(128, 1024, 3))
    lines = str(nn.summary(net, (128, 112, 112))).splitlines()
    assert max(map(len, lines)) <= 100


# ---------------------------------------------------------------- data
def test_data_says_what_is_there_and_what_fetches_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines.keys() == set(data.DATASETS)
    assert lines["mnist"] == "not found; minidl data fetch mnist downloads it (11.6 MB)"
    assert lines["synthetic-shapes-224"] == "2,400 images (3,224,224), 10 classes, generated"
    assert lines["synthetic-shapes"] == "12,000 images (3,32,32), 10 classes, generated"


def test_a_set_that_is_asked_for_and_not_there_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "list", "cifar10"]) == 1
    assert cli.main(["data", "list", "synthetic-digits"]) == 0
    capsys.readouterr()
    assert cli.main(["data", "fetch", "mnist"]) == 1
    assert "downloading is off" in capsys.readouterr().err


def test_a_damaged_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sets").mkdir()
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (tmp_path / "sets" / name).write_bytes(b"\0" * 100)
    assert cli.main(["data", "list", "mnist", "--data-dir", str(tmp_path / "sets")]) == 1
    out = capsys.readouterr().out
    assert "damaged: data: " in out
    assert "train-images-idx3-ubyte" in out


# ---------------------------------------------------------------- doctor
def doctored(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str]:
    status = cli.main(["doctor", *flags])
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "Traceback" not in captured.out
    return status, captured.out


def test_doctor_reports_each_part(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = doctored(capsys, "--offline")
    assert status == 0
    assert [line for line in out.splitlines() if line[:1] != " "] == [
        *(title for title in doctor.LOOKS if title != "network"), "minidl works here"]
    assert f"numpy {np.__version__}" in out
    assert f"minidl {minidl.__version__}" in out


# OpenBLAS's kernels, what NumPy finds in the processor, OPENBLAS_CORETYPE -> the cure, if there is a lack
KERNELS = {
    "AVX-512 is used": ("SkylakeX", ["X86_V3", "X86_V4", "AVX512_ICL"], None, None),
    "and by newer kernels": ("SapphireRapids", ["X86_V3", "X86_V4"], None, None),
    "there is none": ("Haswell", ["X86_V3"], None, None),
    "there is none, says an older NumPy": ("Zen", ["SSE41", "AVX2", "AVX512F"], "Zen", None),
    "the environment keeps it off": ("Haswell", ["X86_V3", "X86_V4"], "Haswell", "unset OPENBLAS_CORETYPE"),
    "so it does with an older NumPy": ("Zen", ["AVX512F", "AVX512_SKX"], "ZEN", "unset OPENBLAS_CORETYPE"),
    "OpenBLAS was built without": ("Haswell", ["X86_V4"], None, "pip install --upgrade numpy"),
    "a processor of another kind": ("neoversen1", ["ASIMDHP"], None, None),
    "another BLAS": (None, ["X86_V4"], None, None)}


@pytest.mark.parametrize("case", KERNELS)
def test_doctor_tells_when_products_are_half_as_wide_as_they_could_be(case: str) -> None:
    kernels, simd, wanted, cure = KERNELS[case]
    assert [finding.cure for finding in doctor.narrow(kernels, simd, wanted)] == ([cure] if cure else [])


@pytest.mark.slow
def test_blas_runs_the_kernels_that_the_environment_names() -> None:
    """In a process of its own, since OpenBLAS looks when NumPy loads it; without a wish it uses all there is."""
    if doctor.blas_kernels() is None or "x86" not in platform.machine():
        pytest.skip("NumPy has no OpenBLAS for x86 here")
    program = "from minidl.tools.cli import doctor; print(doctor.blas_kernels(), len(list(doctor.products())))"
    for wish, told in ({"OPENBLAS_CORETYPE": "Nehalem"}, "Nehalem"), ({}, ""):
        environment = {key: value for key, value in os.environ.items() if key != "OPENBLAS_CORETYPE"} | wish
        said = subprocess.run([sys.executable, "-c", program], env=environment | {"PYTHONPATH": str(ROOT)}, text=True,
                              capture_output=True, check=True).stdout
        assert told in said if told else said.endswith(" 1\n"), said


@pytest.mark.parametrize("name", ["h5py", "tqdm"])
def test_a_core_package_that_is_lacking_fails(name: str, without: Callable[..., None],
                                              capsys: pytest.CaptureFixture[str]) -> None:
    without(name)
    status, out = doctored(capsys, "--offline")
    assert status == 1
    assert f"FAILS {name} is not installed\n        -> pip install '{name}>=" in out
    assert out.endswith("minidl cannot work here: 1 of the above must be cured\n")


def test_a_package_that_cannot_be_imported_or_is_old_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "h5py.py").write_text("raise OSError('libhdf5.so: cannot open\\nshared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "h5py", raising=False)
    monkeypatch.setattr(np, "__version__", "1.26.4")
    status, out = doctored(capsys, "--offline")
    assert status == 1
    assert "FAILS numpy 1.26.4, but minidl needs 2\n" in out
    assert "FAILS h5py cannot be imported (OSError: libhdf5.so: cannot open shared object file)\n" in out
    assert "-> pip install --force-reinstall 'h5py>=" in out


def test_a_hint_names_what_the_user_can_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(host.ROOT)
    assert install("plot") == "pip install -e '.[plot]'"
    monkeypatch.chdir(tmp_path)
    assert shlex.split(install("plot")) == ["pip", "install", "-e", f"{host.ROOT}[plot]"]
    monkeypatch.setattr(host, "ROOT", tmp_path)                # as in site-packages
    monkeypatch.setattr("importlib.metadata.requires", lambda name: [
        "numpy>=2", 'matplotlib>=3.7; extra == "plot"', 'mpi4py>=4; extra == "mpi"', "mpich; extra == 'mpi'"])
    assert install("plot") == "pip install 'matplotlib>=3.7'"
    assert install("mpi") == "pip install 'mpi4py>=4' mpich"
    assert host.requirements() == ["numpy>=2"]
    assert install("onnx") == "pip install the packages of the extra 'onnx' of minidl"       # a folder that was copied


def test_no_message_names_an_extra_by_itself_or_one_that_is_not_there() -> None:
    """What `install` is asked for is an extra of setup.cfg, and nothing else says how to install one."""
    config = configparser.ConfigParser(interpolation=None)
    config.read(host.ROOT / "setup.cfg", encoding="utf-8")
    sources = "".join(file.read_text(encoding="utf-8") for file in (host.ROOT / "minidl").rglob("*.py"))
    asked = set(re.findall(r"""\binstall\(["'](\w+)["']\)""", sources)) | {extra for _, extra in doctor.EXTRAS.values()}
    assert len(asked) > 8
    assert asked <= set(config["options.extras_require"])
    assert "minidl[" not in sources


def test_extras_that_are_lacking_have_their_command(without: Callable[..., None],
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    without(*doctor.EXTRAS)
    status, out = doctored(capsys, "--offline")
    assert status == 0
    for name, (_, extra) in doctor.EXTRAS.items():
        assert any(line.startswith(f"  lacks {name}, ") for line in out.splitlines())
        assert f"-> {install(extra)}\n" in out


def test_what_ranks_need_has_its_command(monkeypatch: pytest.MonkeyPatch, without: Callable[..., None],
                                         tmp_path: Path) -> None:
    without("mpi4py", "cupy")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    mpi, launcher = doctor.ranks()
    assert (mpi.state, launcher.state, launcher.text) == ("lacks", "lacks", "no mpiexec, which starts them")
    assert mpi.text.startswith("mpi4py: one process trains (")
    assert mpi.cure == launcher.cure == install("mpi")
    (tmp_path / "mpiexec").touch()
    assert list(doctor.ranks())[1] == ("ok", f"{tmp_path / 'mpiexec'}, which starts them", "")


def test_a_gpu_without_cupy_has_its_command(monkeypatch: pytest.MonkeyPatch, without: Callable[..., None],
                                            capsys: pytest.CaptureFixture[str]) -> None:
    without("cupy")
    monkeypatch.setattr("minidl.device.has_nvidia_gpu", lambda: True)
    monkeypatch.setattr(doctor, "_nvidia_smi", lambda: ["NVIDIA H200, driver 580.1, compute capability 9.0, 141 GB"])
    minidl.device._missing.cache_clear()
    status, out = doctored(capsys, "--offline")
    minidl.device._missing.cache_clear()
    assert status == 0
    assert "ok    GPU NVIDIA H200, driver 580.1" in out
    assert f"lacks CuPy is not installed: nets run on the CPU\n        -> {install('cuda13')}" in out


def test_a_gpu_is_described(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """By a CuPy that is made up, on which no kernel runs."""
    properties = {"name": b"NVIDIA H200", "major": 9, "minor": 0, "totalGlobalMem": 140 * 2**30,
                  "multiProcessorCount": 132, "maxThreadsPerMultiProcessor": 2048, "regsPerMultiprocessor": 65536,
                  "sharedMemPerMultiprocessor": 228 * 1024, "sharedMemPerBlockOptin": 227 * 1024,
                  "maxThreadsPerBlock": 1024, "regsPerBlock": 65536, "l2CacheSize": 60 * 2**20}
    runtime = SimpleNamespace(getDeviceProperties=lambda number: properties, driverGetVersion=lambda: 13010)
    cuda = SimpleNamespace(runtime=runtime, nvrtc=SimpleNamespace(getVersion=lambda: (13, 0)))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(__version__="14.2.0", cuda=cuda, ndarray=type(None)))
    monkeypatch.setattr("minidl.device.resolve", lambda device: device)
    status, out = doctored(capsys, "--offline")
    assert status == 0
    assert "ok    CuPy 14.2.0, NVIDIA H200, compute capability 9.0, 140 GiB, driver for CUDA 13.1\n" in out
    assert ("ok    132 multiprocessors, each of 2,048 threads (270,336 in all), 65,536 registers and 228 KiB of shared "
            "memory, of which a block has at most 1,024 threads, 65,536 registers and 227 KiB; 60 MiB of second-level "
            "cache\n") in out
    assert "ok    NVRTC 13.0\n  lacks this cannot be looked at: " in out


def test_no_network_is_a_lack(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError("Network is unreachable")
    monkeypatch.delenv("MINIDL_OFFLINE")
    monkeypatch.setattr(socket, "create_connection", refused)
    status, out = doctored(capsys)
    assert status == 0
    assert "lacks no answer from " in out
    assert "(Network is unreachable)" in out


def test_a_network_that_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    release = threading.Event()

    def silent(*_: Any, **__: Any) -> Any:
        release.wait(60)
        return contextlib.ExitStack()      # which can be closed, too

    monkeypatch.delenv("MINIDL_OFFLINE")
    monkeypatch.setattr(doctor, "SECONDS", 0.05)
    monkeypatch.setattr(socket, "create_connection",  silent)
    (finding,) = doctor.network()
    release.set()
    assert finding.state == "lacks"
    assert "silent for" in finding.text


def failing(*_: Any, **__: Any) -> Any:
    raise RuntimeError("this machine\nis odd")


@pytest.mark.parametrize("broken", ["minidl.core.host.cache_folder", "minidl.device.resolve", "shutil.which",
                                    "minidl.ops.cpu.parallel.threads", "os.access", "shutil.disk_usage"])
def test_whatever_fails_is_a_line(broken: str, monkeypatch: pytest.MonkeyPatch,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(broken, failing)
    status, out = doctored(capsys, "--offline")
    assert status == 0
    assert "this cannot be looked at: RuntimeError: this machine is odd" in out
    assert out.endswith("minidl works here\n")


def test_doctor_warms_each_net_in_each_precision(monkeypatch: pytest.MonkeyPatch,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    warmed: list[tuple[str, str]] = []

    def first_steps(name: str, on: str, size: int) -> None:
        assert (on, size) == ("cuda", zoo.MODELS[name].recipe.batch_size)
        warmed.append((name, device.precision()))
    monkeypatch.setattr(doctor, "first_steps", first_steps)
    monkeypatch.setattr(doctor, "lacking_gpu", lambda: None)
    before = device.precision()
    status, out = doctored(capsys, "--warm")
    assert status == 0
    assert warmed == [(name, precision) for name in zoo.MODELS for precision in ("fp32", "tf32", "bf16")]
    assert out.count(" s\n") == len(warmed)
    assert device.precision() == before
    monkeypatch.setattr(doctor, "lacking_gpu", lambda: doctor.Finding("lacks", "there is no GPU", "buy one"))
    assert doctored(capsys, "--warm") == (0, "first steps\n  lacks there is no GPU\n        -> buy one\n")
    assert len(warmed) == 3 * len(zoo.MODELS)


@pytest.mark.parametrize("name", ["lenet5", "autoencoder", "table-mlp"])
def test_a_net_that_is_warmed_is_replayed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Any] = []
    compiled = minidl.compile
    monkeypatch.setattr(minidl, "compile", lambda step: steps.append(compiled(step)) or steps[-1])
    doctor.first_steps(name, "cpu", 2)
    assert steps[0].recordings == 2


def test_a_wrong_number_of_threads_is_a_line(monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    from minidl.ops.cpu import parallel

    monkeypatch.setenv("MINIDL_NUM_THREADS", "many")
    parallel.threads.cache_clear()
    _status, out = doctored(capsys, "--offline")
    monkeypatch.delenv("MINIDL_NUM_THREADS")
    parallel.threads.cache_clear()
    assert "'many' is not an int of at least 1; unset it" in out
