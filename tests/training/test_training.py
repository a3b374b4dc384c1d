"""The loop behind train.py, and the command line itself, on small generated data."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiers import tiered

import minidl
from minidl import Tensor, data, nn, optim, zoo
from minidl.core import device
from minidl.data.sets.catalog import SPECS
from minidl.nn.weights import read_metadata
from minidl.tools.cli import train as cli
from minidl.tools.cli.common import complain
from minidl.training import RunFolder, evaluate, fit, machine, read_metrics, train_step

ROOT = Path(__file__).resolve().parents[2]
QUICK = ["--data", "synthetic-digits", "--limit-train", "256", "--limit-test", "128", "--epochs", "1",
         "--device", "cpu", "--no-progress"]               # test_cuda_ops.py runs the command line on a GPU
without_cuda = pytest.mark.skipif(not device._missing(), reason="CUDA serves here and is not refused")


def tiny_loaders(count: int = 64) -> tuple[data.DataLoader, data.DataLoader]:
    train = data.load("synthetic-digits", "train", count=count)
    test = data.load("synthetic-digits", "test", count=count)
    return data.DataLoader(train, 32, padding=2), data.DataLoader(test, 32, shuffle=False, padding=2)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test reaches the network, a home folder or a data set that lies around."""
    monkeypatch.setenv("MINIDL_OFFLINE", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MINIDL_CACHE", raising=False)
    monkeypatch.delenv("MINIDL_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


# ------------------------------------------------------------------ fit and evaluate
def test_fit_reports_every_epoch_and_follows_the_schedule() -> None:
    minidl.manual_seed(0)
    model = zoo.build("perceptron")
    train, test = tiny_loaders()
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)
    seen: list[dict] = []
    history = fit(model, optimizer, train, test, epochs=2, schedule=optim.linear(4), callbacks=seen.append)
    assert history == seen
    assert [m["epoch"] for m in history] == [1, 2]
    assert [m["step"] for m in history] == [2, 4]
    assert history[0]["lr"] == pytest.approx(0.1 * 0.75)
    assert history[1]["lr"] == pytest.approx(0.1 * 0.25)
    assert history[1]["train_loss"] < history[0]["train_loss"]
    assert optimizer.lr == 0.1


@pytest.mark.parametrize("compiled", [True, False])
def test_fit_scales_each_groups_own_rate_and_does_not_set_it(compiled: bool) -> None:
    """A rate that on_epoch sets holds from the next epoch on."""
    def trained(by_fit: bool) -> list[list[float]]:
        minidl.manual_seed(0)
        model = zoo.build("perceptron")
        train, test = tiny_loaders(32)                         # one step per epoch
        weight, bias = model.parameters()
        optimizer = optim.SGD([{"params": [weight], "lr": 0.2}, {"params": [bias]}], 0.1)
        seen: list[Any] = []

        def on_epoch(metrics: Any) -> None:
            seen.append(([group["lr"] for group in optimizer.groups], metrics["lr"]))
            if metrics["epoch"] == 2:
                optimizer.lr = 0.4
        if by_fit:
            fit(model, optimizer, train, test, epochs=3, schedule=optim.step(1, 0.5), callbacks=on_epoch,
                compiled=compiled)
            assert seen == [([0.2, 0.1], 0.2), ([0.2, 0.1], 0.1), ([0.4, 0.4], 0.1)]
        else:
            for rates in ((0.2, 0.1), (0.1, 0.05), (0.1, 0.1)):
                for group, rate in zip(optimizer.groups, rates, strict=True):
                    group["lr"] = rate
                for images, labels in train:
                    train_step(model, optimizer, Tensor(images), labels)
        return [p.tolist() for p in model.parameters()]
    assert trained(True) == trained(False)


def test_a_compiled_loss_that_is_no_number_is_seen_at_the_epochs_end() -> None:
    minidl.manual_seed(0)
    model = zoo.build("perceptron")
    train, test = tiny_loaders()
    with np.errstate(all="ignore"), pytest.raises(
            FloatingPointError, match=r"training: diverged in step \d+ \(epoch \d\): the loss is (nan|inf) \(learning "
                                      r"rate 1e\+38\); use a smaller learning rate"):
        fit(model, optim.SGD(model.parameters(), 1e38), train, test, epochs=3, compiled=True)


@pytest.mark.slow
def test_the_command_line_compiles_when_asked_to(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--compile", "--no-compile"):
        assert cli.main(["--model", "perceptron", *QUICK, flag, "--output-dir", f"out{flag}"]) == 0
    first, second = (json.loads(Path(f"out{flag}/metrics.jsonl").read_text()) for flag in ("--compile", "--no-compile"))
    assert first["test_loss"] == second["test_loss"]


def test_evaluate_leaves_the_mode_and_counts_right_answers() -> None:
    class Fixed(nn.Module):
        def forward(self, x: minidl.Tensor) -> minidl.Tensor:
            assert not self.training
            return minidl.Tensor(np.tile(np.array([[0.0, 5.0]], np.float32), (x.shape[0], 1)))

    model = Fixed()
    loss, accuracy = evaluate(model, [(np.zeros((4, 1)), np.array([1, 1, 0, 1]))])
    assert accuracy == 0.75
    assert loss == pytest.approx(np.log1p(np.exp(-5)) + 5 / 4, rel=1e-5)
    assert model.training


def test_evaluate_measures_what_is_asked_for() -> None:
    """The mean over images, not over batches."""
    batches = [(np.full((n, 2), value, np.float32), np.zeros(n, np.int64)) for n, value in ((3, 1.0), (1, 5.0))]
    _, accuracy, more = evaluate(nn.Identity(), batches, metrics={"largest": lambda y, labels: y.max(axis=1).mean()})
    assert accuracy == 1
    assert more == {"largest": 2.0}


def test_evaluate_refuses_no_images() -> None:
    with pytest.raises(ValueError, match="evaluate: got 0 images but needs at least 1"):
        evaluate(nn.Flatten(), [])


def test_fit_refuses_a_negative_number_of_epochs() -> None:
    model = zoo.build("perceptron")
    train, test = tiny_loaders(32)
    with pytest.raises(ValueError, match="fit: epochs is -1 but must be an int of at least 0"):
        fit(model, optim.SGD(model.parameters(), 0.1), train, test, epochs=-1)


def test_a_loss_that_is_no_number_stops_and_leaves_the_parameters() -> None:
    model = zoo.build("perceptron")
    before = model.state_dict()
    images = minidl.Tensor(np.full((2, 1, 32, 32), np.nan, np.float32))
    with pytest.raises(FloatingPointError, match=r"training: the loss is nan \(learning rate 0.1\); use a smaller"):
        train_step(model, optim.SGD(model.parameters(), 0.1), images, np.array([0, 1]))
    for name, values in model.state_dict().items():
        np.testing.assert_array_equal(values, before[name])


def test_parameters_broken_by_the_last_step_are_no_success() -> None:
    model = zoo.build("perceptron")
    train, test = tiny_loaders(32)
    optimizer = optim.SGD(model.parameters(), 1e38)
    with pytest.raises(FloatingPointError, match=r"evaluate: the test loss is (nan|inf); the parameters are unusable"):
        fit(model, optimizer, train, test, epochs=1, schedule=optim.linear(2))
    assert optimizer.lr == 1e38
    assert model.training


# ------------------------------------------------------------------ the run folder
def test_run_folder_refuses_an_earlier_run(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match=r"run folder: .* holds an earlier run already; name another folder"):
        RunFolder(tmp_path)


def test_run_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"run folder: .*file/run cannot be written \(Not a directory\); name another"):
        RunFolder(tmp_path / "file" / "run")


@pytest.mark.slow
def test_two_runs_never_share_a_folder(tmp_path: Path) -> None:
    """Threads that meet at a barrier, as processes would that begin at one instant."""
    named: list[list[Path]] = []
    for attempt in range(30):
        meet, folders, refused = threading.Barrier(8), [], []

        def begin(meet: threading.Barrier = meet, folders: list = folders, refused: list = refused,
                  attempt: int = attempt) -> None:
            meet.wait()
            folders.append(RunFolder.beside(tmp_path / "runs" / f"{attempt}").path)
            try:
                folders.append(RunFolder(tmp_path / "named" / f"{attempt}").path)
            except ValueError as error:
                refused.append(str(error))

        threads = [threading.Thread(target=begin) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        named.append(folders)
        assert len(refused) == 7
        assert all("holds an earlier run already" in said for said in refused)
    assert all(len(set(folders)) == len(folders) == 9 for folders in named)


def full_at(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A disk that is full when a file of this name is written."""
    def replace(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(f"minidl.training.run_folder.os.{name}", replace)


@pytest.mark.parametrize("place", [None, "a/b/c", "mine", "mine/a/b"])
def test_a_run_refused_for_a_full_disk_leaves_no_folder(place: str | None, tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("")
    full_at(monkeypatch, "replace")
    folder = RunFolder(place) if place else RunFolder.beside("runs/lenet5-mnist")
    with pytest.raises(OSError, match=r"run folder: .* cannot be written \(No space left on device\); name another"):
        folder.write_config({"lr": 0.1})
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} == {"mine", "mine/notes"}


@pytest.mark.parametrize("held", ['{"epoch": 1}\n', '{"epoch": 1}\n{"epo', ""])
def test_half_a_line_of_metrics_is_repaired(tmp_path: Path, held: str) -> None:
    folder = RunFolder(tmp_path / "run")
    file = tmp_path / "run" / "metrics.jsonl"
    file.write_text(held)
    assert read_metrics(tmp_path / "run") == ([{"epoch": 1}] if held else [])
    folder.append_metrics({"epoch": 2})
    assert read_metrics(tmp_path / "run") == ([{"epoch": 1}] if held else []) + [{"epoch": 2}]


def test_a_line_of_metrics_is_written_when_it_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole: what a disk refuses is refused there, and a power failure behind it loses nothing."""
    folder, synced = RunFolder(tmp_path / "run"), []
    monkeypatch.setattr("minidl.training.run_folder.os.fsync", lambda file: synced.append(
        (tmp_path / "run" / "metrics.jsonl").read_text()))
    for epoch in (1, 2):
        folder.append_metrics({"epoch": epoch})
    assert synced == ['{"epoch": 1}\n', '{"epoch": 1}\n{"epoch": 2}\n']


def test_runs_of_one_second_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minidl.training.run_folder.time.strftime", lambda form: "20261122-120000")
    assert [RunFolder.beside(tmp_path / "run").path.name for _ in range(3)] == [
        "run-20261122-120000", "run-20261122-120000-1", "run-20261122-120000-2"]


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.append_metrics({"epoch": 1})
    full_at(monkeypatch, "fsync")
    with pytest.raises(OSError, match=r"run folder: .* cannot be written \(No space left on device\)"):
        folder.append_metrics({"epoch": 2})
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == '{"epoch": 1}\n'


@pytest.mark.parametrize("line", ["half", "[1]", "", "[" * 100_000, "\x00"])
def test_a_line_that_is_no_metrics_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n' + line + '\n{"epoch": 2}\n')
    with pytest.raises(ValueError, match=rf"^metrics: line 2 of {tmp_path}/metrics.jsonl is b.* but must be an object"):
        read_metrics(tmp_path)


def test_the_processor_is_told_by_its_model() -> None:
    facts = Path("/proc/cpuinfo")
    models = [line.partition(":")[2].strip() for line in facts.read_text().splitlines()
              if line.startswith("model name")] if facts.exists() else []
    if not models:
        pytest.skip("this system does not tell its processor's model")
    assert machine()["processor"] == models[0]


# ------------------------------------------------------------------ the command line
def test_one_command_does_the_whole_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--model", "lenet5", *QUICK, "--output-dir", "out"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert re.fullmatch(r"lenet5 on synthetic-digits: test accuracy \d+\.\d\d % after 1 epoch in \d+\.\d s \(cpu\); "
                        "weights in out/weights.h5; next: minidl predict --weights out/weights.h5 FILE, or minidl plot "
                        "out", lines[-1])
    assert lines[1].startswith("epoch  1/1: loss ")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["model"], config["data"], config["device"]) == ("lenet5", "synthetic-digits", "cpu")
    assert config["train_images"] == 256
    assert config["lr"] == zoo.MODELS["lenet5"].recipe.lr
    (metrics,) = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    assert metrics["data"] == "synthetic-digits"
    assert f"{100 * metrics['test_accuracy']:.2f} %" in lines[-1]


SPEED = ["--model", "airbench", "--option", "width=4", "--data", "synthetic-shapes", "--limit-train", "200",
         "--limit-test", "50", "--batch-size", "50", "--epochs", "2", "--no-progress", "--device", "cpu"]


@pytest.mark.deep
def test_a_model_is_trained_by_its_own_optimizer_from_images(tmp_path: Path,
                                                             capsys: pytest.CaptureFixture[str]) -> None:
    """By the recipe: whitened, smoothed, several views; stopped and resumed it comes to the same weights."""
    cli.main([*SPEED, "--output-dir", "whole"])
    config = json.loads((tmp_path / "whole/config.json").read_text())
    assert [config[name] for name in ("optimizer", "label_smoothing", "tta", "augment")] == [
        "own", 0.2, "flip-shift", "crop=2,reflect,flip=alternate"]
    state = minidl.load("whole/weights.h5").state_dict()
    np.testing.assert_array_equal(state["whiten.weight"][12:], -state["whiten.weight"][:12])
    cli.main([*SPEED, "--lr-schedule", "constant", "--epochs", "1", "--output-dir", "parts"])
    assert cli.main(["--resume", "parts", "--epochs", "2"]) == 0
    cli.main([*SPEED, "--lr-schedule", "constant", "--output-dir", "constant"])
    one, other = (minidl.load(f"{name}/weights.h5").state_dict() for name in ("parts", "constant"))
    assert {name: values.tobytes() for name, values in one.items()} == {
        name: values.tobytes() for name, values in other.items()}
    capsys.readouterr()
    assert cli.main(["--eval", "whole"]) == 0
    last = json.loads((tmp_path / "whole/metrics.jsonl").read_text().splitlines()[-1])
    assert f"test accuracy {100 * last['test_accuracy']:.2f} %, test loss {last['test_loss']:.4f}" in (
        capsys.readouterr().out)


@pytest.mark.parametrize(("flags", "message"), [
    (["--optimizer", "own"], "--optimizer=own: --model=lenet5 brings none; use sgd, adam, adamw, rmsprop, muon"),
    (["--label-smoothing", "2"], r"--label-smoothing=2.0 must be in [0, 1]"),
    (["--clip", "0"], "--clip=0 must be above 0; leave it out to clip nothing"),
    (["--model", "autoencoder", "--tta", "flip"], "--tta=flip has no meaning for --model=autoencoder, which answers"),
    (["--model", "autoencoder", "--label-smoothing", "0.1"],
     "--label-smoothing=0.1 has no meaning for a model that brings its loss; leave it out"),
    (["--option", "original=true", "--tta", "flip", "--label-smoothing", "0.1"],
     "--label-smoothing=0.1 has no meaning for a model that brings its loss; leave it out")])
def test_what_does_not_go_with_a_model_is_refused(flags: list[str], message: str,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*QUICK, *flags]) == 2
    assert f"error: {message}" in capsys.readouterr().err


@pytest.mark.deep
def test_views_of_a_net_leave_its_training_and_its_loss_as_they_are(tmp_path: Path) -> None:
    """LeNet-5 as in 1998 brings a loss of its own."""
    for tta in ("none", "flip"):
        assert cli.main([*QUICK, "--option", "original=true", "--tta", tta, "--output-dir", tta]) == 0
    plain, seen = (json.loads((tmp_path / tta / "metrics.jsonl").read_text().splitlines()[-1])
                   for tta in ("none", "flip"))
    assert seen["train_loss"] == plain["train_loss"]
    assert seen["test_loss"] != plain["test_loss"]


@pytest.mark.slow
def test_running_values_are_those_of_training_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The image of zeros that a model is tried on, when it is built or loaded, is not among them."""
    cli.main(["--model", "resnet", "--option", "depth=8", "--option", "width=2", *QUICK, "--output-dir", "first"])
    (metrics,) = [json.loads(line) for line in (tmp_path / "first/metrics.jsonl").read_text().splitlines()]
    capsys.readouterr()
    assert cli.main(["--eval", "first"]) == 0
    assert f"test accuracy {100 * metrics['test_accuracy']:.2f} %, test loss {metrics['test_loss']:.4f}, " in (
        capsys.readouterr().out)
    cli.main(["--model", "resnet", "--option", "depth=8", "--option", "width=2", *QUICK, "--epochs", "0",
              "--output-dir", "none"])
    state = minidl.load("none/weights.h5").state_dict()
    assert all(set(values.tolist()) == {0} for name, values in state.items() if name.endswith("running_mean"))


def test_loaded_weights_give_the_same_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["--model", "perceptron", *QUICK, "--output-dir", "first"])
    first = capsys.readouterr().out.splitlines()[-1]
    assert cli.main(["--model", "perceptron", *QUICK, "--epochs", "0", "--load", "first/weights.h5",
                     "--output-dir", "second"]) == 0
    second = capsys.readouterr().out.splitlines()[-1]
    assert second.split(" after ")[0] == first.split(" after ")[0]
    assert " after 0 epochs in " in second


@pytest.mark.parametrize("algorithm", tiered(["fft", "direct", "unroll", "gemm"], slow=1))
def test_every_convolution_algorithm_trains(algorithm: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*QUICK, "--limit-train", "32", "--limit-test", "16", "--conv-algorithm", algorithm]
    assert cli.main(["--model", "lenet5", *flags, "--output-dir", "out"]) == 0


@pytest.mark.parametrize("compiled", tiered(["--compile", "--no-compile"], slow=1))
def test_the_target_may_be_the_image(compiled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Then there is a loss, and no accuracy: in the metrics, in what is told, and where it is evaluated or goes on."""
    flags = ["--model", "autoencoder", "--option", "width=4", "--option", "code=8", *QUICK, compiled]
    assert cli.main([*flags, "--output-dir", "out"]) == 0
    (metrics,) = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    assert not any("accuracy" in name for name in metrics)
    told = capsys.readouterr().out.strip().splitlines()[-1]
    assert told.startswith(f"autoencoder on synthetic-digits: test loss {metrics['test_loss']:.4f} after 1 epoch")
    assert told.endswith("; weights in out/weights.h5; next: minidl plot out")
    assert cli.main(["--eval", "out"]) == 0
    assert (f"autoencoder on synthetic-digits: test loss {metrics['test_loss']:.4f}, 128 images, weights out/weights.h5"
            in capsys.readouterr().out)
    net = minidl.load("out/weights.h5").eval()
    test = data.load("synthetic-digits", "test", count=128)
    ((images, _),) = data.DataLoader(test, 128, shuffle=False, **read_metadata("out/weights.h5")["preprocessing"])
    with minidl.no_grad():
        assert np.mean((net(Tensor(images)).numpy() - images)**2) == pytest.approx(metrics["test_loss"], rel=1e-5)
    assert cli.main(["--resume", "out", "--epochs", "2"]) == 0
    assert len((tmp_path / "out/metrics.jsonl").read_text().splitlines()) == 2
    capsys.readouterr()
    assert cli.main([*flags, "--top-k", "3"]) == 2
    assert ("--top-k=3 has no meaning for --model=autoencoder, which answers with images; leave it out"
            in capsys.readouterr().err)


@pytest.mark.parametrize("model", [
    pytest.param(name, marks=pytest.mark.slow if name in ("lenet5", "krizhevsky2009") else pytest.mark.deep)
    for name, model in zoo.MODELS.items() if model.recipe.data in SPECS])
def test_auto_falls_back_to_generated_images_loudly(model: str, tmp_path: Path,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--epochs", "0", "--limit-train", "20", "--limit-test", "20", "--output-dir", "out"]
    assert cli.main(["--model", model, *flags]) == 0
    captured = capsys.readouterr()
    wanted = zoo.MODELS[model].recipe.data
    stand_in = {"mnist": "synthetic-digits", "cifar10": "synthetic-shapes", "fashion-mnist": "synthetic-digits"}[wanted]
    assert captured.err.startswith("train.py: warning: ")
    assert wanted in captured.err
    assert captured.out.splitlines()[-1].startswith(f"{model} on {stand_in}: ")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["data"] == stand_in
    assert wanted in config["data_note"]


@pytest.mark.parametrize(("text", "augment"), [
    ("none", None), ("crop=4,flip,cutout=8", data.Augment(4, True, 8)),
    ("flip=alternate", data.Augment(flip="alternate")),
    ("brightness=0.1,contrast=0.2,color=0.3", data.Augment(brightness=0.1, contrast=0.2, color=0.3))])
def test_augment_says_how_training_images_are_seen(text: str, augment: data.Augment | None) -> None:
    args = cli.settings(["--model", "perceptron", "--augment", text], "train.py")
    images = data.load("synthetic-digits", "test", count=9)
    train, test = cli.loaders(args, images, images, "cpu", {})
    assert (train.augment, test.augment) == (augment, None)


def test_list_models_names_each_with_its_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--list-models"]) == 0
    out = capsys.readouterr().out
    for name, model in zoo.MODELS.items():
        assert name in out
        assert f"lr {model.recipe.lr}" in out


BAD_FLAGS = [
    (["--model", "lenet6"], "argument --model: 'lenet6' is not one of lenet5, "),
    (["--data", "imagenet"], "argument --data: 'imagenet' is not one of auto, mnist, "),
    (["--epochs", "-1"], "argument --epochs: '-1' is not an int of at least 0"),
    (["--batch-size", "0"], "argument --batch-size: '0' is not an int of at least 1"),
    (["--accumulate", "0"], "argument --accumulate: '0' is not an int of at least 1"),
    (["--clip", "-1"], "argument --clip: '-1' is not a number of at least 0"),
    (["--lr", "nan"], "argument --lr: 'nan' is not a number of at least 0"),
    (["--lr", "fast"], "argument --lr: 'fast' is not a number of at least 0"),
    (["--precision", "fp16"], "argument --precision: invalid choice: 'fp16'"),
    (["--lr-schedule", "zigzag"], "argument --lr-schedule: invalid choice: 'zigzag'"),
    (["--augment", "crop"], "argument --augment: 'crop' is not none, nor some of crop=PIXELS, reflect, flip, "),
    (["--augment", "flip,blur=2"], "argument --augment: 'flip,blur=2' is not none, nor some of crop=PIXELS, "),
    (["--augment", "crop=-1"], "argument --augment: 'crop=-1' is not none, nor some of crop=PIXELS, "),
    (["--augment", "reflect=2"], "argument --augment: 'reflect=2' is not none, nor some of crop=PIXELS, "),
    (["--label-smoothing", "-1"], "argument --label-smoothing: '-1' is not a number of at least 0"),
    (["--tta", "crops"], "argument --tta: invalid choice: 'crops'"),
    (["--optimizer", "lion"], "argument --optimizer: invalid choice: 'lion'"),
    (["--nonsense"], "unrecognized arguments: --nonsense"),
]


@pytest.mark.parametrize(("flags", "message"), BAD_FLAGS, ids=[" ".join(f) for f, _ in BAD_FLAGS])
def test_a_wrong_flag_is_one_line_and_exit_2(flags: list[str], message: str,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(flags)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"train.py: error: {message}")


def _break_weights(folder: Path) -> list[str]:
    (folder / "bad.h5").write_bytes(b"not HDF5")
    return [*QUICK, "--load", "bad.h5"]


def _other_model(folder: Path) -> list[str]:
    minidl.save(zoo.build("perceptron"), folder / "p.h5")
    return [*QUICK, "--load", "p.h5"]


def _truncated_data(folder: Path) -> list[str]:
    (folder / "d").mkdir()
    (folder / "d" / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03\0\0\xea\x60")
    (folder / "d" / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01\0\0\xea\x60")
    return ["--data", "mnist", "--data-dir", "d", "--epochs", "0"]


def _folder_without_the_set(folder: Path) -> list[str]:
    (folder / "empty").mkdir()
    return ["--data-dir", "empty", "--epochs", "0"]


def _file_as_folder(folder: Path) -> list[str]:
    (folder / "taken").write_text("")
    return [*QUICK, "--output-dir", "taken/run"]


BAD_INPUT = {
    "cuda": (lambda folder: [*QUICK, "--device", "cuda"], "device: 'cuda' was asked for"),
    "convolution": (lambda folder: ["--model", "lenet5", *QUICK, "--limit-train", "32", "--limit-test", "16",
                                    "--conv-algorithm", "magic"],
                    "error: conv2d: algorithm 'magic' is not one of direct, unroll, gemm, fft, grouped, auto on the "
                    "cpu$"),
    "no data": (lambda folder: ["--data", "mnist", "--epochs", "0"], "mnist"),
    "one step": (lambda folder: ["--model", "perceptron", *QUICK, "--limit-train", "128", "--lr", "1e38"],
                 r"evaluate: the test loss is \S+; the parameters are unusable"),
    "no folder": (lambda folder: ["--data-dir", "nowhere"], "nowhere"),
    "folder without the set": (_folder_without_the_set, "mnist is in none of empty, "),
    "truncated data": (_truncated_data, "train-images-idx3-ubyte"),
    "weights": (_break_weights, "bad.h5"),
    "other model": (_other_model, "c1.weight"),
    "output": (_file_as_folder, "run folder: .*cannot be written"),
    "nan": (lambda folder: ["--model", "perceptron", *QUICK, "--lr", "1e38", "--epochs", "9"],
            r"training: diverged in step \d+ \(epoch 1\): the loss is \S+ \(learning rate 1e\+38\); use a smaller "
            ".*; if the losses before did not grow, look for NaN in the inputs"),
}


@pytest.mark.parametrize("case", [pytest.param(case, marks=without_cuda) if case == "cuda" else case
                                  for case in BAD_INPUT])
def test_bad_input_is_one_line_exit_2_and_no_weights(case: str, tmp_path: Path,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    flags, message = BAD_INPUT[case]
    assert cli.main(["--output-dir", "out", *flags(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("train.py: error: ")
    assert re.search(message, line)
    assert not (tmp_path / "out" / "weights.h5").exists()
    if case not in ("nan", "one step"):
        assert not (tmp_path / "out").exists()


@without_cuda
def test_debug_shows_the_traceback() -> None:
    with pytest.raises(ValueError, match="device: 'cuda' was asked for"):
        cli.main([*QUICK, "--device", "cuda", "--debug"])


def shell(command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    """train.py with quick flags in place of TRAIN, and with the bar, which a terminal would show. As if matplotlib were
    not installed: its pictures take most of the time. More than 300 s are a deadlock."""
    quick = (f"{sys.executable} -c \"import runpy, sys; sys.modules['matplotlib'] = None; runpy.run_path("
             f"'{ROOT / 'train.py'}', run_name='__main__')\" --model perceptron {' '.join(QUICK[:-1])}")
    return subprocess.run(["bash", "-c", command.replace("TRAIN", quick)], capture_output=True, text=True, cwd=cwd,
                          env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, timeout=300)


@pytest.mark.parametrize("closed", tiered([">&- 2>&-", "2>&-", ">&-"], slow=1))
def test_a_stream_that_is_closed_costs_no_weights(closed: str, tmp_path: Path) -> None:
    done = shell(f"TRAIN --output-dir out {closed}", tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "out" / "weights.h5").exists()


@pytest.mark.parametrize("stream", [None, io.StringIO()], ids=["none", "closed"])
def test_a_warning_without_stderr_is_not_said_elsewhere(stream: Any, monkeypatch: pytest.MonkeyPatch,
                                                        capsys: pytest.CaptureFixture[str]) -> None:
    if stream:
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    complain("warning: too late")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("output", tiered(["| head -1", "| true", "> /dev/full"], slow=1))
def test_an_output_that_nobody_takes_costs_no_weights(output: str, tmp_path: Path) -> None:
    done = shell(f"TRAIN --epochs 3 --output-dir out {output}; echo ${{PIPESTATUS[0]}}", tmp_path)
    assert done.stdout.splitlines()[-1] == "0"
    if done.stderr or "head" not in output:    # it may end after the run does
        assert re.fullmatch(r"train.py: warning: the output cannot be written \((Broken pipe|No space left on device)"
                            r"\); the run goes on without it\n", done.stderr)
    assert (tmp_path / "out" / "weights.h5").exists()
    assert len(read_metrics(tmp_path / "out")) == 3


@pytest.mark.deep
def test_a_folder_that_the_output_cannot_spell(tmp_path: Path) -> None:
    done = shell("TRAIN --output-dir rüns", tmp_path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "run folder r\\xfcns" in done.stdout
    assert (tmp_path / "rüns" / "weights.h5").exists()


def test_an_interrupt_names_the_folder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["train.py", "--model", "perceptron", *QUICK, "--output-dir", "out"])
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append_metrics", stop)
        assert cli.main() == 130
    assert capsys.readouterr().err == ("train.py: interrupted; the run is in out, go on with: python train.py --resume "
                                       "out\n")
    monkeypatch.setattr(cli, "load_data", stop)
    assert cli.main() == 130
    assert capsys.readouterr().err == "train.py: interrupted; there is no run folder yet\n"


@pytest.mark.parametrize("name", ["numpy", "h5py", "tqdm"])
def test_what_is_not_installed_is_named(name: str, tmp_path: Path) -> None:
    hidden = f"import sys, runpy; sys.modules[{name!r}] = None; runpy.run_path({str(ROOT / 'train.py')!r})"
    done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 2
    assert done.stderr == f"train.py: error: {name} is not installed; run: pip install -e {ROOT}\n"


@pytest.mark.slow
def test_the_bar_is_off_where_stderr_is_no_terminal(tmp_path: Path) -> None:
    done = shell("TRAIN", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list((tmp_path / "runs").iterdir())) == 1


# ------------------------------------------------------------------ what an epoch is made of
class Noted(nn.Module):
    """One weight a class, from each image's first pixel; notes the pixels it sees, and in which mode."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = minidl.Tensor(np.zeros((10, 1), np.float32), requires_grad=True)
        self.seen: list[tuple[bool, list[int]]] = []

    def forward(self, x: minidl.Tensor) -> minidl.Tensor:
        first = x[:, 0, 0, :1]
        self.seen.append((self.training, np.rint(first.numpy() * 255).astype(int).ravel().tolist()))
        return minidl.ops.linear(first, self.weight, None)


def numbered_loaders(train: int = 10, test: int = 6) -> tuple[data.DataLoader, data.DataLoader]:
    """Images whose pixels are their number, in batches of 4."""
    def loader(split: str, count: int, shuffle: bool) -> data.DataLoader:
        images = np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None, None], (count, 1, 2, 2))
        return data.DataLoader(data.Dataset("mine", split, images, np.arange(count) % 10), 4, shuffle=shuffle)
    return loader("train", train, True), loader("test", test, False)


def test_fit_takes_the_orders_of_epoch_0_and_on_and_trains_a_model_left_in_evaluation() -> None:
    model = Noted()
    train, test = numbered_loaders()
    train.set_epoch(7)                                         # whatever the loader was used for before
    fit(model.eval(), optim.SGD(model.parameters(), 0.1), train, test, epochs=2)
    batches: list[tuple[bool, list[int]]] = []
    for epoch in (0, 1):
        order = train.order(epoch).tolist()
        batches += [(True, order[:4]), (True, order[4:8]), (True, order[8:]), (False, [0, 1, 2, 3]), (False, [4, 5])]
    assert model.seen == batches
    assert not model.training


@pytest.mark.parametrize("compiled", [False, True])
def test_fit_does_not_depend_on_what_was_done_with_model_and_loader_before(compiled: bool) -> None:
    states = []
    for used in (False, True):
        minidl.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 16), nn.Dropout(), nn.Linear(16, 10))
        train, test = numbered_loaders()
        if used:
            list(train)
            model.eval()
        fit(model, optim.SGD(model.parameters(), 0.5), train, test, epochs=2, compiled=compiled)
        states.append(model.state_dict())
    for name, values in states[0].items():
        np.testing.assert_array_equal(values, states[1][name])


class Bar:
    """In place of tqdm's bar: notes what it is told."""

    made: list[Bar] = []

    def __init__(self, **options: object) -> None:
        self.options, self.images, self.shown, self.closed, self.redrawn = options, [], [], False, False
        self.made.append(self)

    def set_postfix(self, shown: dict[str, str], refresh: bool = True) -> None:
        self.shown.append(shown)
        self.redrawn |= refresh

    def update(self, images: int) -> None:
        self.images.append(images)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("compiled", [False, True])
def test_the_bar_counts_images_and_shows_means_so_far(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled, the loss is known at the epoch's end alone."""
    monkeypatch.setattr("tqdm.auto.tqdm", Bar)
    monkeypatch.setattr(Bar, "made", [])
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 10))
    history = fit(model, optim.SGD(model.parameters(), 0.0), *numbered_loaders(), epochs=2, progress=True,
                  compiled=compiled)
    train, _ = numbered_loaders()
    for epoch, (bar, metrics) in enumerate(zip(Bar.made, history, strict=True)):
        assert (bar.options["desc"], bar.options["total"], bar.closed) == (f"epoch {epoch + 1}/2", 10, True)
        assert bar.options["disable"] is None                  # off where there is no terminal
        assert (bar.options["unit"], bar.options["unit_scale"], bar.options["leave"]) == ("image", True, False)
        assert bar.images == [4, 4, 2]
        assert not bar.redrawn                                 # at each step: tqdm does it a few times per second
        means = []
        for end in (4, 8, 10):                                 # the rate is 0: the model is the same all the time
            picked = train.dataset.images[train.order(epoch)[:end]], train.dataset.labels[train.order(epoch)[:end]]
            loss, accuracy = evaluate(model, [(picked[0].astype(np.float32) / 255, picked[1])])
            means.append({"loss": f"{loss:.4f}", "accuracy": f"{100 * accuracy:.2f} %"})
        assert bar.shown == (means[-1:] if compiled else means)
        assert (f"{metrics['train_loss']:.4f}", metrics["train_accuracy"]) == (means[-1]["loss"], accuracy)


def test_no_bar_without_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tqdm.auto.tqdm", Bar)
    monkeypatch.setattr(Bar, "made", [])
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 10))
    fit(model, optim.SGD(model.parameters(), 0.1), *numbered_loaders(), epochs=1, progress=False)
    assert Bar.made == []


def test_seconds_are_of_training_and_evaluation_and_images_per_second_of_training_alone(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that the model moves on: a second for a training batch, ten for one of the evaluation."""
    now = [1000.0]

    class Slow(Noted):
        def forward(self, x: minidl.Tensor) -> minidl.Tensor:
            now[0] += 1 if self.training else 10
            return super().forward(x)

    monkeypatch.setattr("minidl.training.loop.time.perf_counter", lambda: now[0])
    model = Slow()
    for metrics in fit(model, optim.SGD(model.parameters(), 0.1), *numbered_loaders(), epochs=2):
        assert metrics["seconds"] == 3 * 1 + 2 * 10
        assert metrics["images_per_second"] == 10 / 3


def test_a_line_of_metrics_that_no_json_reader_takes_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(ValueError, match="not JSON compliant"):
        folder.append_metrics({"epoch": 1, "train_loss": float("nan")})
    assert (tmp_path / "run/metrics.jsonl").read_text() == ""


WRONG_FOR_FIT: dict[str, tuple[dict[str, Any], str]] = {
    "a list of batches": ({"train": [1, 2]}, r"fit: train is a list but must be a data\.DataLoader .*; with other "
                          r"batches, write the loop with training\.train_step and training\.evaluate"),
    "no test set": ({"test": None}, r"fit: test is a NoneType but must be a data\.DataLoader"),
    "a name of a schedule": ({"schedule": "cosine"}, r"fit: schedule is 'cosine' but must be a function of the step, "
                             r"or a list of them; pass optim\.schedule\(name, total\)"),
    "schedules of other groups": ({"schedule": [optim.constant()] * 2}, r"fit: schedule has 2 functions but the "
                                  r"optimizer has 1 groups; give one to each, or one function for all"),
    "another optimizer": ({"optimizer": object()}, r"fit: optimizer is a object but must be one of minidl\.optim; "),
}


@pytest.mark.parametrize("what", WRONG_FOR_FIT)
def test_fit_says_what_it_can_work_with(what: str) -> None:
    change, message = WRONG_FOR_FIT[what]
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    loader = data.DataLoader(data.load("synthetic-digits", "test", count=20), 10)
    given: dict[str, Any] = {"optimizer": optim.SGD(net.parameters(), 0.1), "train": loader, "test": loader,
                             "schedule": None, **change}
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        fit(net, epochs=1, **given)


def test_a_net_of_several_outputs_is_told_to_choose() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x
    loader = data.DataLoader(data.load("synthetic-digits", "test", count=20), 10)
    net = Two()
    net.w = Tensor([1.0], requires_grad=True)
    with pytest.raises(TypeError, match=r"^cross_entropy: logits is a tuple but must be a Tensor"):
        fit(net, optim.SGD(net.parameters(), 0.1), loader, loader, epochs=1)


def test_a_loss_is_formatted_as_a_number() -> None:
    assert f"{Tensor(0.123456):.3f}" == "0.123"
    assert f"{Tensor([1.0])}".startswith("Tensor([1.]")
