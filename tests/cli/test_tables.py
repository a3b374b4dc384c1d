"""Commands that print tables: `profile`, `runs`, `report`, --json, and what is said of a nearly right choice."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

import minidl
from minidl import nn, zoo
from minidl.lab import profile
from minidl.tools import cli
from minidl.tools.cli import common, report
from minidl.training import RunFolder, Step, read_statistics

pytestmark = pytest.mark.usefixtures("elsewhere")

NET = """
from minidl import nn
def build(width=4):
    return nn.Sequential(c1=nn.Conv2d(2, width, 3), act=nn.ReLU(), flat=nn.Flatten(), out=nn.Linear(width * 36, 3))
def number():
    return 7
"""


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert cli.main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


# ---------------------------------------------------------------- profile
QUICK = ("--batch-size", "4", "--steps", "1", "--device", "cpu")


def test_profile_times_each_call_of_an_own_net(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my_net.py").write_text(NET)
    argv = "profile", "my_net.py:build", "--option", "width=5", "--input", "2,8,8", *QUICK, "--ops"
    found = printed(capsys, *argv)
    (conv,) = [row for row in found["rows"] if row["primitive"] == "conv2d"]
    assert conv["result"] == [[4, 5, 6, 6]]
    assert conv["flop"] == 2 * 4 * 5 * 36 * 2 * 9
    assert {"linear_grad_w", "relu_grad_x", "sgd"} <= {row["primitive"] for row in found["rows"]}
    assert cli.main([*argv]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("my_net.py:build, batch 4, fp32, cpu: ")
    assert lines[1].split("  ")[0] == "call"
    assert lines[-2].startswith("all ")
    assert len(lines) == 2 + len(found["rows"]) + 1 + 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["perceptron", "autoencoder", "table-mlp"])
def test_profile_knows_the_zoo(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "profile", name, *QUICK)["title"].startswith(f"{name}, batch 4")


def test_a_profile_is_part_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    RunFolder("run").close()
    assert cli.main(["profile", "perceptron", *QUICK, "--run", "run"]) == 0
    assert cli.main(["report", "run"]) == 0
    html = Path("run/report.html").read_text(encoding="utf-8")
    assert "time goes" in html
    assert "perceptron, batch 4" in html
    for strange in ({"rows": [1]}, {"rows": [], "limits": 3, "title": "<script>"}, {}):
        Path("run/profile.json").write_text(json.dumps(strange))
        assert cli.main(["report", "run"]) == 0
        assert "<script" not in Path("run/report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("net", "message"), [
    ("my_net.py:build", "my_net.py:build does not say the shape of what it reads; name it: --input 3,32,32"),
    ("my_net.py:net", "my_net.py has no function 'net'; it has build, number; name one that returns a net"),
    ("none.py:build", "'none.py' is not a file"),
    ("my_net.py:number --input 3", "gives a int but must give an nn.Module")])
def test_profile_refuses_in_a_line(net: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my_net.py").write_text(NET)
    assert cli.main(["profile", *net.split(), *QUICK]) == 2
    assert message in capsys.readouterr().err


def test_cells_have_a_sum_and_a_limit() -> None:
    rows = [{"primitive": "a", "result": [[2, 3]], "median_s": 1e-6, "bytes": 1000, "flop": 10},
            {"primitive": "b", "result": [[]], "median_s": 3e-6, "bytes": 0, "flop": 4000}]
    assert profile.cells(rows, {"bytes": 2e9, "flop": 4e9}) == [
        ["b", "1", "3", "75.0", "0", "0.004", "1", "33"], ["a", "2x3", "1", "25.0", "0.001", "1e-05", "0.5", "50"],
        ["all", "", "4", "100.0", "0.001", "0.00401", "1.5", "38"]]


# ---------------------------------------------------------------- runs
def a_run(name: str, accuracies: list[float], **config: Any) -> None:
    with RunFolder(f"runs/{name}") as folder:
        folder.write_config({"model": "lenet5", "lr": 0.1, "epochs": 9, "machine": {"cores": 2}, **config})
        for i, share in enumerate(accuracies, 1):
            folder.append_metrics({"epoch": i, "test_accuracy": share, "test_loss": 1 - share, "seconds": 2.0})


def test_runs_are_listed_the_best_first(capsys: pytest.CaptureFixture[str]) -> None:
    a_run("low", [0.5, 0.4], lr=0.5)
    a_run("high", [0.6, 0.9, 0.8])
    a_run("none", [])
    found = printed(capsys, "runs")
    assert [row["run"] for row in found] == ["runs/high", "runs/low", "runs/none"]
    assert found[0] == {"run": "runs/high", "lr": 0.1, "best": 0.9, "of": "test_accuracy", "epoch": 2, "epochs": 3,
                        "seconds": 6.0, "started": None}       # the model is the same in all
    assert cli.main(["runs", "--best"]) == 0
    assert capsys.readouterr().out == "runs/high\n"
    assert cli.main(["runs"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == list(found[0])


def test_runs_have_their_curves_over_one_another(capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(10):
        a_run(f"<b>{i}", [0.1 * i, 0.5], lr=float(i))
    assert cli.main(["runs", "--curves"]) == 0
    html = Path(capsys.readouterr().out.strip()).read_text(encoding="utf-8")
    assert html.count("<figure>") == 2                         # of accuracy and loss
    assert "Curves are those of the first 8 of 10 runs" in html
    assert "<b>" not in html


def test_a_folder_without_runs_is_refused_and_a_damaged_run_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runs"]) == 2
    assert "runs holds no run folder" in capsys.readouterr().err
    a_run("good", [0.5])
    a_run("bad", [0.9])
    Path("runs/bad/config.json").write_text("{")
    assert [row["run"] for row in printed(capsys, "runs")] == ["runs/good"]


# ---------------------------------------------------------------- report
def test_a_live_report_ends_with_its_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen = []

    def sleep(seconds: float) -> None:
        seen.append(Path("run/report.html").read_text(encoding="utf-8"))
        if len(seen) == 2:
            Path("run/statistics.jsonl").write_text('{"epoch": 1, "ended": "Ctrl-C"}\n')
    RunFolder("run").close()
    monkeypatch.setattr(report.time, "sleep", sleep)
    assert cli.main(["report", "run", "--live"]) == 0
    assert len(seen) == 2
    assert all('http-equiv="refresh"' in html for html in seen)
    last = Path("run/report.html").read_text(encoding="utf-8")
    assert "refresh" not in last
    assert "The run ended in epoch 1: Ctrl-C" in last


def test_a_run_that_goes_on_has_not_ended() -> None:
    """Whatever it has left before: an error, and the weights of fewer epochs."""
    with RunFolder("run", net := nn.Linear(3, 2)) as run:      # killed before its training began,
        pass
    assert not (run.path / "config.json").exists()             # and goes on all the same
    assert report.ended(Path("run"))                           # its weights
    Path("run/statistics.jsonl").write_text('{"epoch": 0}\n{"epoch": 1, "ended": "Ctrl-C"}\n')
    assert report.ended(Path("run"))
    again = RunFolder("run", net, resume=True)
    again.on_train_begin()
    os.utime("run/config.json", ns=(2**62, 2**62))             # a file system may tell no two instants apart
    again.on_step_end(Step(1, 3, 3, lambda: {"loss": 0.5}, 24, lambda: 0.1))
    assert not report.ended(Path("run"))
    assert read_statistics("run")[-1]["epoch"] == 1
    os.utime("run/weights.h5", ns=(2**62, 2**62))
    assert report.ended(Path("run"))


def test_report_wants_a_run_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "nowhere"]) == 2
    assert "nowhere is not a folder; name a run folder" in capsys.readouterr().err


# ---------------------------------------------------------------- JSON, and nearly right choices
def test_models_data_and_summary_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert [model["name"] for model in printed(capsys, "models")] == list(zoo.MODELS)
    (digits,) = printed(capsys, "data", "list", "synthetic-digits")
    assert digits == {"name": "synthetic-digits", "found": True,
                      "text": "12,000 images (1,28,28), 10 classes, generated"}
    assert printed(capsys, "summary", "--model", "lenet5")["parameters"] == 61_706


@pytest.mark.slow
def test_doctor_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"of", "state", "text", "cure"} == printed(capsys, "doctor", "--offline")[0].keys()


@pytest.mark.parametrize(("given", "choice"), [
    (["tran"], "train"), (["summary", "--model", "lenet"], "lenet5"), (["train", "--lr-schedule", "cos"], "cosine"),
    (["data", "list", "MNIST"], "mnist"), (["train", "--optimizer", "adamm"], "adam"),
    (["train", "--data", "fashion_mnist"], "fashion-mnist"), (["train", "my_nett.py"], "my_net.py"),
    (["profile", "my_net"], "my_net.py"), (["summary", "my_net.py:biuld"], "build"),
    (["report", ".", "--code", "./mynet.py:build"], "my_net.py"),
    (["predict", ".", "a.png", "--code", "my_net"], "my_net.py"),
    (["summary", "my_net.py", "--option", "widht=3"], "width")])
def test_a_choice_that_is_nearly_right_is_named(given: list[str], choice: str,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    Path("my_net.py").write_text(NET)
    Path("config.json").write_text("{}")
    minidl.save(nn.Linear(3, 2), "weights.h5")
    with contextlib.suppress(SystemExit):                      # of a flag
        assert cli.main(given) == 2
    assert f"; did you mean '{choice}'?" in capsys.readouterr().err


def test_what_is_like_no_choice_is_not_guessed_at() -> None:
    assert common.meant("'xyz' must be one of mnist, cifar10") == ""
    assert common.meant("no file is there") == ""
