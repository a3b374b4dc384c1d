"""train.py goes on with a run, evaluates one, and repeats one from its file."""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiers import tiered

import minidl
from minidl import data, nn, zoo
from minidl.nn.weights import read_metadata
from minidl.ops.cpu import parallel
from minidl.tools.cli import train as cli
from minidl.tools.plot import run
from minidl.training import Interrupted, RunFolder, Views, read_config, read_metrics

QUICK = ["--model", "perceptron", "--data", "synthetic-digits", "--limit-train", "256", "--limit-test", "128",
         "--device", "cpu", "--no-progress", "--lr", "0.05"]


resolve = functools.cache(data.resolve)   # the same generated images for all tests


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINIDL_OFFLINE", "1")
    monkeypatch.setattr(data, "resolve", resolve)
    monkeypatch.chdir(tmp_path)


def lines(folder: str) -> list[Any]:
    return [{name: value for name, value in metrics.items() if name not in ("seconds", "images_per_second")}
            for metrics in read_metrics(folder)]


def stop_after(monkeypatch: pytest.MonkeyPatch, epoch: int, signum: int = signal.SIGTERM) -> None:
    """A signal comes when an epoch's line is written."""
    append = RunFolder.append_metrics

    def stopping(self: RunFolder, metrics: Any) -> None:
        append(self, metrics)
        if metrics["epoch"] == epoch:
            os.kill(os.getpid(), signum)
    monkeypatch.setattr(RunFolder, "append_metrics", stopping)


@pytest.mark.parametrize(("signum", "status"), tiered(
    [(signal.SIGTERM, 143), (signal.SIGINT, 130)], slow=1, several=True))
def test_a_run_that_was_stopped_goes_on_by_its_own_settings(signum: int, status: int, monkeypatch: pytest.MonkeyPatch,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*QUICK, "--epochs", "3", "--seed", "4", "--output-dir", "whole"]) == 0
    with monkeypatch.context() as patch:
        stop_after(patch, 1, signum)
        patch.setattr(sys, "argv", ["train.py", *QUICK, "--epochs", "3", "--seed", "4", "--output-dir", "a run"])
        assert cli.main() == status
    assert capsys.readouterr().err == (f"train.py: interrupted by {signal.Signals(signum).name}; the run is in a run, "
                                       "go on with: python train.py --resume 'a run'\n")
    with open("a run/metrics.jsonl", "a") as file:     # of an epoch after which no checkpoint was written
        file.write('{"epoch": 2, "train_loss": 5.0}\n{"epo')
    assert cli.main(["--resume", "a run", "--no-progress"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1] == "goes on in epoch 2/3, after step 2"
    assert out[-1].startswith("perceptron on synthetic-digits: test accuracy ")
    assert lines("a run") == lines("whole")
    assert Path("a run/weights.h5").read_bytes() == Path("whole/weights.h5").read_bytes()
    before, after = read_config("whole/config.json"), read_config("a run/config.json")
    assert {**before, "output_dir": "a run"} == after
    assert cli.main(["--resume", "a run", "--no-progress"]) == 0       # nothing is left to do
    assert lines("a run") == lines("whole")


def test_a_run_that_was_stopped_stops_the_program_that_called_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(monkeypatch, 1)
    with pytest.raises(Interrupted, match=r"^by SIGTERM; the run is in run, go on with: python train\.py"):
        cli.main([*QUICK, "--epochs", "3", "--output-dir", "run"])


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM is not sent there")
@pytest.mark.parametrize("start", tiered(["bin/minidl train", "python -m minidl train", "python train.py"], slow=1))
def test_the_command_that_goes_on_can_be_typed_as_printed(start: str, tmp_path: Path) -> None:
    root = Path(minidl.__file__).parents[1]
    start = start.replace("python", sys.executable).replace("train.py", os.path.relpath(root / "train.py"))
    script = tmp_path / "bin" / "minidl"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nfrom minidl.tools.cli import main\nraise SystemExit(main())")
    script.chmod(0o755)
    options: dict[str, Any] = {"env": {**os.environ, "PYTHONPATH": str(root)}, "stdout": subprocess.PIPE,
                               "stderr": subprocess.PIPE, "text": True}
    flags = [*QUICK, "--epochs", "999999", "--output-dir", "a run"]
    with subprocess.Popen([*start.split(), *flags], **options) as run:
        assert run.stdout is not None
        assert any(line.startswith("epoch") for line in run.stdout)
        run.terminate()
        _, said = run.communicate(timeout=300)         # more is a deadlock
    command = said.splitlines()[-1].partition("go on with: ")[2]
    assert (run.returncode, command) == (143, f"{start} --resume 'a run'")
    done = subprocess.run(f"{command} --epochs 1", shell=True, check=False, **options)
    assert done.stderr.endswith("error: --epochs=1 contradicts the run in a run, which has 999999; leave it out\n")


@pytest.mark.parametrize(("name", "numbers"), tiered([
    ("muon", (0.02, 0.95, 0.01)), ("adam", (0.001, None, 0.0)), ("adamw", (0.001, None, 0.01)),
    ("rmsprop", (0.001, 0.0, 0.0))], slow=1, several=True))
def test_an_optimizer_is_recorded_and_goes_on(name: str, numbers: tuple[float | None, ...]) -> None:
    flags = ["--lr-schedule", "constant", "--optimizer", name, *QUICK[:QUICK.index("--lr")]]
    assert cli.main([*flags, "--epochs", "1", "--output-dir", "run"]) == 0
    config = read_config("run/config.json")
    assert tuple(config[each] for each in ("optimizer", "lr", "momentum", "weight_decay")) == (name, *numbers)
    assert cli.main(["--resume", "run", "--epochs", "2", "--threads", "1", "--no-progress"]) == 0
    assert cli.main([*flags, "--epochs", "2", "--output-dir", "whole"]) == 0
    assert lines("run") == lines("whole")


def test_an_optimizer_has_its_own_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*QUICK, "--epochs", "1", "--output-dir", "run"]) == 0
    assert cli.main(["--resume", "run", "--optimizer", "adam", "--epochs", "2"]) == 2
    assert "--optimizer=adam contradicts the run in run, which has sgd; leave it out" in capsys.readouterr().err
    assert cli.main(["--optimizer", "adamw", "--momentum", "0.9"]) == 2
    assert "error: --momentum=0.9 has no meaning for --optimizer=adamw; leave it out" in capsys.readouterr().err


def _seed(path: Path) -> None:
    """As if the checkpoint were of a loader with another seed."""
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "seed": 7}))


REFUSED: dict[str, tuple[Any, list[str], str]] = {     # what is done to the run, flags, and the end of the message
    "other data": (lambda run: _seed(run / "config.json"), [], "from other batches: seed is 7 here but 0 there"),
    "half a file": (lambda run: (run / "checkpoint.h5").write_bytes(b"\x89HDF"), [], "checkpoint.h5"),
    "another file": (lambda run: (run / "checkpoint.h5").write_text("text"), ["--epochs", "3"], "checkpoint.h5"),
    "a folder in its place": (lambda run: ((run / "checkpoint.h5").unlink(), (run / "checkpoint.h5").mkdir()), [],
                              "checkpoint.h5"),
    "another batch size": (lambda run: (run / "config.json").write_text((run / "config.json").read_text().replace(
        '"batch_size": 128', '"batch_size": 64')), ["--threads", "1"], "batch_size is 64 here but 128 there"),
    "another optimizer": (lambda run: (run / "config.json").write_text((run / "config.json").read_text().replace(
        '"optimizer": "sgd"', '"optimizer": "rmsprop"')), ["--save-every", "5"], "")}


@pytest.mark.parametrize("case", REFUSED)
def test_a_resume_that_is_refused_leaves_the_run_as_it_was(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    change, flags, said = REFUSED[case]
    assert cli.main([*QUICK, "--epochs", "1", "--batch-size", "128", "--output-dir", "run"]) == 0
    change(Path("run"))
    before = {path.name: path.read_bytes() for path in Path("run").iterdir() if path.is_file()}
    flags = flags if "--epochs" in flags else ["--epochs", "2", *flags]
    assert cli.main(["--resume", "run", *flags, "--no-progress"]) == 2
    assert said in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in Path("run").iterdir() if path.is_file()} == before


def test_a_resume_that_is_accepted_is_in_the_config_before_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main([*QUICK, "--epochs", "1", "--output-dir", "run"]) == 0
    stop_after(monkeypatch, 2)
    monkeypatch.setattr(sys, "argv", ["train.py", "--resume", "run", "--epochs", "3", "--no-progress"])
    assert cli.main() == 143
    assert read_config("run/config.json")["epochs"] == 3
    assert len(lines("run")) == 2


@pytest.mark.deep
def test_epochs_may_grow() -> None:
    assert cli.main([*QUICK, "--epochs", "1", "--lr-schedule", "constant", "--output-dir", "run"]) == 0
    assert cli.main(["--resume", "run", "--epochs", "3", "--threads", "1", "--no-progress"]) == 0
    assert [metrics["epoch"] for metrics in lines("run")] == [1, 2, 3]
    assert (read_config("run/config.json")["epochs"], read_config("run/config.json")["lr"]) == (3, 0.05)
    assert cli.main([*QUICK, "--epochs", "3", "--lr-schedule", "constant", "--output-dir", "whole"]) == 0
    assert lines("run") == lines("whole")


@pytest.mark.deep
def test_more_epochs_change_a_schedule_that_stretches_over_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*QUICK, "--epochs", "1", "--lr-schedule", "cosine", "--output-dir", "run"]) == 0
    assert cli.main(["--resume", "run", "--no-progress"]) == 0
    assert capsys.readouterr().err == ""
    assert cli.main(["--resume", "run", "--epochs", "2", "--no-progress"]) == 0
    assert capsys.readouterr().err == (
        "train.py: warning: --epochs grows from 1 to 2, and the cosine schedule with it: the run goes on at the rates "
        "of the longer one, and is not what 2 epochs from the start give\n")
    assert cli.main(["--resume", "run", "--epochs", "2", "--no-progress"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("flags", "said"), [
    (["--lr", "0.3"], "--lr=0.3 contradicts the run in run, which has 0.05; leave it out"),
    (["--model", "lenet5"], "--model=lenet5 contradicts the run in run, which has perceptron; leave it out"),
    (["--epochs", "1"], "--epochs=1 contradicts the run in run, which has 2; leave it out"),
    (["--compile"], "--compile contradicts the run in run, which has False; leave it out"),
    (["--output-dir", "x"], "--output-dir=x contradicts --resume=run, which goes on in its own folder; leave it out"),
    (["--seed", "1"], "--seed=1 contradicts the run in run, which has 0; leave it out"),
    (["--accumulate", "2"], "--accumulate=2 contradicts the run in run, which has 1; leave it out"),
    (["--clip", "2"], "--clip=2.0 contradicts the run in run, which has None; leave it out"),
])
def test_flags_that_contradict_a_run_are_refused_by_name(flags: list[str], said: str,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    Path("run").mkdir()
    config = {"model": "perceptron", "data": "synthetic-digits", "device": "cpu", "epochs": 2, "lr": 0.05, "seed": 0,
              "compile": False, "limit_train": 64, "data_note": None}
    Path("run/config.json").write_text(json.dumps(config))
    assert cli.main(["--resume", "run", *flags]) == 2
    assert capsys.readouterr().err == f"train.py: error: {said}\n"
    assert [path.name for path in Path("run").iterdir()] == ["config.json"]


@pytest.mark.slow
def test_a_run_without_a_checkpoint_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was killed before the first was written."""
    assert cli.main([*QUICK, "--epochs", "1", "--output-dir", "whole"]) == 0
    assert cli.main([*QUICK, "--epochs", "1", "--output-dir", "run"]) == 0
    for path in Path("run").glob("*.h5"):
        path.unlink()
    assert cli.main(["--resume", "run", "--no-progress"]) == 0
    assert lines("run") == lines("whole")


@pytest.mark.parametrize(("held", "said"), [
    (None, "run folder: 'run/config.json' does not exist, so no run is there; name the folder that train.py made"),
    ("{", "run folder: 'run/config.json' cannot be read (Expecting property name"),
    ("[1]", "run folder: 'run/config.json' holds a list but must hold an object of JSON"),
])
def test_what_is_no_run_is_named(held: str | None, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    if held is not None:
        Path("run").mkdir()
        Path("run/config.json").write_text(held)
    for flags in (["--resume", "run"], ["--eval", "run"], ["--config", "run/config.json"]):
        assert cli.main(flags) == 2
        assert capsys.readouterr().err.startswith(f"train.py: error: {said}")


def test_a_setting_of_a_file_that_cannot_be_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.json").write_text('{"model": "perceptron", "batch_size": "many"}')
    with pytest.raises(SystemExit) as stop:
        cli.main(["--config", "c.json"])
    assert stop.value.code == 2
    assert "argument --batch-size: 'many' is not an int of at least 1" in capsys.readouterr().err


STRANGERS = {                              # what a config.json has for "plugin", and the flag that is named
    "a list": (["evil.py"], "--plugin=evil.py"),
    "a text": ("evil.py", "--plugin=evil.py"),
    "two files": (["evil.py", "other.py"], "--plugin=evil.py --plugin=other.py"),
    "a space": (["./e vil.py"], "'--plugin=./e vil.py'"),
    "a control character": (["evil.py\x1b[2J"], r"'--plugin=evil.py\x1b[2J'"),
    "a file that is not there": (["none.py"], "--plugin=none.py"),
    "no text": (True, "--plugin"),
}


@pytest.mark.parametrize("flags", [["--resume", "run"], ["--eval", "run"], ["--config", "run/config.json"],
                                   ["--eval", "run", "--load", "run/weights.h5", "--conv-algorithm", "auto"]])
@pytest.mark.parametrize("name", STRANGERS)
def test_a_run_folder_runs_nothing_that_it_names(name: str, flags: list[str],
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    named, flag = STRANGERS[name]
    for file in ("evil.py", "other.py", "e vil.py", "evil.py\x1b[2J"):
        Path(file).write_text("open('ran', 'w')\n")
    Path("run").mkdir()
    Path("run/config.json").write_text(json.dumps({"model": "perceptron", "plugin": named, "conv_algorithm": "evil"}))
    assert cli.main(flags) == 2
    assert capsys.readouterr().err == (
        "train.py: error: 'run/config.json' names code, which is run only if the command line names it; if you trust "
        f'it, add {flag}, else remove "plugin" from that file\n')
    assert not Path("ran").exists()


def test_what_the_command_line_names_is_run_and_not_what_the_folder_does(capsys: pytest.CaptureFixture[str]) -> None:
    Path("evil.py").write_text("open('ran', 'w')\n")
    Path("mine.py").write_text("open('mine', 'w')\n1 / 0\n")
    Path("run").mkdir()
    Path("run/config.json").write_text(json.dumps({"model": "perceptron", "plugin": ["evil.py"]}))
    assert cli.main(["--eval", "run", "--plugin", "mine.py"]) == 2
    assert "mine.py: ZeroDivisionError" in capsys.readouterr().err
    assert Path("mine").exists()
    assert not Path("ran").exists()


@pytest.mark.slow
def test_a_stopped_run_with_a_plugin_says_the_flag_and_needs_none_elsewhere(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my own.py").write_text("open('ran', 'a').write('.')\n")
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(Interrupted, match=r"--resume run --plugin 'my own\.py'$"):
            cli.main([*QUICK, "--plugin", "my own.py", "--epochs", "2", "--output-dir", "run"])
    monkeypatch.delitem(sys.modules, "plugin_my own")
    assert cli.main(["--resume", "run", "--plugin", "my own.py", "--no-progress"]) == 0
    assert Path("ran").read_text() == ".."
    minidl.load("run/weights.h5")              # as predict does: weights name no code
    pytest.importorskip("matplotlib")
    minidl.plot.report("run")
    assert Path("ran").read_text() == ".."


LARGE = {"model": "mlp", "data": "synthetic-digits", "device": "cpu", "limit_train": 9, "limit_test": 9}


@pytest.mark.parametrize(("model", "option"), [
    ("mlp", {"hidden": 2**31}), ("mlp", {"hidden": 10**6}), ("perceptron", {"classes": 2**40}),
    ("lenet5", {"classes": 10**7}), ("mlp", {"hidden": 10**15})])
@pytest.mark.parametrize("flags", [[], ["--load", "run/weights.h5"]])
def test_a_config_builds_no_net_larger_than_its_weights(model: str, option: dict[str, int], flags: list[str],
                                                        capsys: pytest.CaptureFixture[str]) -> None:
    Path("run").mkdir()
    minidl.save(zoo.build("mlp", in_channels=1, hidden=8), "run/weights.h5")
    Path("run/config.json").write_text(json.dumps({**LARGE, "model": model, "option": option}))
    assert cli.main(["--eval", "run", *flags]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    if "classes" not in option:                # which the data set decides
        assert re.search(r"error: run/weights\.h5 has \d+ bytes, too few for --model mlp and its options \(init: a "
                         r"parameter of shape \(\d+, \d+\) takes \d+ bytes but only \d+ are left; .*\); name", said)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("flags", [["--resume", "run"], ["--eval", "run"], ["--config", "run/config.json"]])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path), os.mkdir,
                                  lambda path: Path(path).write_text(" " * 2**20 + "{}"),
                                  lambda path: Path(path).write_text("[" * 2**19),
                                  lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 2**40)])
def test_what_is_no_file_of_settings_is_not_read(make: Any, flags: list[str],
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    Path("run").mkdir()
    make("run/config.json")
    assert cli.main(flags) == 2
    assert capsys.readouterr().err.startswith("train.py: error: run folder: 'run/config.json' cannot be read (")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path), os.mkdir])
def test_what_is_no_file_of_metrics_is_not_read(make: Any) -> None:
    make("metrics.jsonl")
    with pytest.raises(OSError, match=r"metrics\.jsonl is not an ordinary file; name one that train\.py wrote"):
        read_metrics(".")


@pytest.mark.parametrize("held", ['{"option": [[1]]}', '{"lr": {"a": [1]}}', '{"epochs": [{}]}',
                                  f'{{"seed": {"[" * 900}{"]" * 900}}}', f'{{"plugin": {"[" * 900}{"]" * 900}}}',
                                  '{"top_k": [[]]}'])
def test_a_setting_that_is_nested_is_refused_by_name(held: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.json").write_text(held)
    assert cli.main(["--config", "c.json"]) == 2
    assert re.fullmatch(r"train\.py: error: run folder: 'c\.json' has a \w+ of \S.{,90} but a setting is a number, a "
                        r"text, or a list or an object of these; correct it\n", capsys.readouterr().err)


def test_flags_that_name_a_run_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--resume", "run", "--config", "c.json"])
    assert "argument --config: not allowed with argument --resume" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_accumulates_and_clips_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of an epoch, whose last step has a batch less: to the bit. It is not what one without them is."""
    flags = [*QUICK, "--batch-size", "50", "--epochs", "2", "--lr-schedule", "cosine", "--optimizer", "sgd"]
    assert cli.main([*flags, "--output-dir", "plain"]) == 0
    flags += ["--accumulate", "4", "--clip", "0.5"]
    assert cli.main([*flags, "--output-dir", "whole"]) == 0
    assert [line["step"] for line in lines("whole")] == [2, 4]         # of 6 batches, the last of 6 images
    assert lines("whole")[-1]["lr"] < 0.02                 # the schedule has come to its end
    told = RunFolder.on_step_end

    def stopping(self: RunFolder, step: Any) -> None:
        told(self, step)
        if step.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "on_step_end", stopping)
        patch.setattr(sys, "argv", ["train.py", *flags, "--output-dir", "parts"])
        assert cli.main() == 143
    assert len(lines("parts")) == 1
    assert cli.main(["--resume", "parts", "--no-progress"]) == 0
    assert cli.main(["--config", "whole/config.json", "--output-dir", "again", "--no-progress"]) == 0
    weights = {name: Path(name, "weights.h5").read_bytes() for name in ("plain", "whole", "parts", "again")}
    assert weights["whole"] == weights["parts"] == weights["again"] != weights["plain"]
    config = read_config("parts/config.json")
    assert (config["accumulate"], config["clip"]) == (4, 0.5)


@pytest.mark.slow
def test_a_run_is_repeated_from_its_own_file() -> None:
    assert cli.main([*QUICK, "--epochs", "2", "--seed", "7", "--output-dir", "first"]) == 0
    assert cli.main(["--config", "first/config.json", "--output-dir", "second", "--no-progress"]) == 0
    assert lines("first") == lines("second")
    assert Path("first/weights.h5").read_bytes() == Path("second/weights.h5").read_bytes()
    assert cli.main(["--config", "first/config.json", "--seed", "8", "--output-dir", "third", "--no-progress"]) == 0
    assert lines("first") != lines("third")
    assert {**read_config("first/config.json"), "output_dir": "third", "seed": 8} == read_config("third/config.json")


def test_weights_are_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*QUICK, "--epochs", "1", "--output-dir", "run"]) == 0
    accuracy = 100 * lines("run")[0]["test_accuracy"]
    capsys.readouterr()
    for flags in (["--eval", "run"], [*QUICK, "--eval", "--load", "run/weights.h5"]):
        before = sorted(Path().rglob("*"))
        assert cli.main(flags) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith(f"perceptron on synthetic-digits: test accuracy {accuracy:.2f} %, test loss ")
        assert line.endswith(f"128 images, weights {Path('run/weights.h5')} (cpu)")
        assert sorted(Path().rglob("*")) == before                     # nothing is left
    assert cli.main(["--eval", "run", "--top-k", "9"]) == 0
    found = re.search(r"test accuracy (\S+) %, top-9 accuracy (\S+) %, test loss", capsys.readouterr().out)
    assert found is not None
    assert float(found[1]) < float(found[2]) <= 100
    assert cli.main([*QUICK, "--eval"]) == 2
    assert capsys.readouterr().err == ("train.py: error: --eval needs weights; name a run's folder, --eval RUN, or a "
                                       "file, --load FILE\n")


@pytest.mark.slow
def test_a_full_disk_is_a_warning_of_one_line(monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    """For a checkpoint. For the metrics, and for the weights at the end, it is an error that says how to go on."""
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("minidl.training.checkpoint.write_state", full)
        assert cli.main([*QUICK, "--epochs", "2", "--output-dir", "run"]) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert first == ("train.py: warning: no checkpoint could be written to 'run' after step 2 (No space left on device)"
                     "; the training goes on, and the older ones stay")
    assert "after step 4" in second
    for name in ("minidl.tools.cli.train.RunFolder.append_metrics", "minidl.tools.cli.train.minidl.save"):
        with monkeypatch.context() as patch:
            patch.setattr(name, full)
            assert cli.main([*QUICK, "--epochs", "1", "--output-dir", name]) == 2
        assert capsys.readouterr().err.endswith(
            f"; the run is in {name}, go on with: python train.py --resume {name}\n")


def test_two_processes_are_never_at_one_run() -> None:
    folder = RunFolder("run")
    folder.write_config({"model": "perceptron"})
    with pytest.raises(ValueError, match=r"^run folder: another process is at the run in run; wait for its end"):
        RunFolder.again("run")
    del folder
    with RunFolder.again("run") as folder:
        pass
    RunFolder.again("run").close()                     # although the one before lives
    assert folder.path == Path("run")


def test_a_table_with_another_class_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """`aye` sorts before `no`: the classes would be exchanged."""
    rows = [f"{i},{i * i % 7},{'yes' if i % 2 else 'no'}" for i in range(60)]
    for name, part in (("train", rows), ("test", rows[:20])):
        Path("t").mkdir(exist_ok=True)
        Path("t", f"{name}.csv").write_text("\n".join(["p,q,label", *part, ""]))
    flags = ["--model", "table-mlp", "--data", "t", "--device", "cpu", "--no-progress", "--output-dir", "out"]
    assert cli.main([*flags, "--epochs", "1"]) == 0
    for name in ("train", "test"):
        Path("t", f"{name}.csv").write_text(Path("t", f"{name}.csv").read_text().replace("yes", "aye"))
    assert cli.main(["--resume", "out", "--epochs", "2"]) == 2
    said = capsys.readouterr().err
    assert "is from other data: train class names are 'aye, no' here but 'no, yes' there; train labels are " in said
    assert "; give the data that it began with, or begin anew in another folder\n" in said


@pytest.mark.slow
def test_weights_of_another_order_are_not_trained_on(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns that changed places, and classes: the net would take each for the other. Of others it learns again."""
    rows = [(i, i * i % 7, "yes" if i % 2 else "no") for i in range(60)]
    Path("t.csv").write_text("p,q,kind\n" + "".join(f"{p},{q},{kind}\n" for p, q, kind in rows))
    Path("turned.csv").write_text("q,p,kind\n" + "".join(f"{q},{p},{kind}\n" for p, q, kind in rows))
    Path("other.csv").write_text(Path("t.csv").read_text().replace("yes", "aye"))
    flags = ["--model", "table-mlp", "--device", "cpu", "--no-progress", "--epochs"]
    assert cli.main([*flags, "1", "--data", "t.csv", "--output-dir", "run"]) == 0
    again = [*flags, "0", "--load", "run/weights.h5", "--output-dir"]
    assert cli.main([*again, "same", "--data", "t.csv"]) == 0
    assert "knows the" not in capsys.readouterr().err
    assert cli.main([*again, "x", "--data", "turned.csv"]) == 2
    assert ("run/weights.h5 knows the columns p, q, but turned has q, p; name the data that it was trained on, in its "
            "order\n") in capsys.readouterr().err
    assert cli.main([*again, "y", "--data", "other.csv"]) == 0
    assert ("warning: run/weights.h5 knows the classes no, yes, but other has aye, no: what it has learned of its own"
            ) in capsys.readouterr().err
    pytest.importorskip("safetensors.numpy").save_file(minidl.load("run/weights.h5").state_dict(), "their.safetensors")
    assert cli.main([*flags, "0", "--load", "their.safetensors", "--output-dir", "their", "--data", "t.csv"]) == 0


def table(name: str, head: str = "p,q,kind", move: int = 0) -> None:
    """40 rows of two columns; `move` is added to both."""
    rows = (f"{i % 10 + move},{i * i % 7 - move},{'yes' if i % 3 else 'no'}\n" for i in range(40))
    Path(name).write_text(f"{head}\n{''.join(rows)}")


TABLE = ["--model", "table-mlp", "--device", "cpu", "--no-progress", "--lr-schedule", "constant"]


def test_weights_to_start_from_bring_their_normalisation(capsys: pytest.CaptureFixture[str]) -> None:
    """Through a run that goes on without their file, too; and a run is evaluated by what it learned, not by these."""
    table("t.csv")
    table("moved.csv", move=5)
    table("other.csv", head="r,q,kind", move=9)
    assert cli.main([*TABLE, "--data", "t.csv", "--epochs", "1", "--output-dir", "run"]) == 0
    assert "normalised as" not in capsys.readouterr().out
    begin = [*TABLE, "--load", "run/weights.h5", "--data", "moved.csv"]
    assert cli.main([*begin, "--epochs", "0", "--output-dir", "none"]) == 0
    assert "rows are normalised as those that run/weights.h5 was trained on\n" in (said := capsys.readouterr().out)
    assert cli.main([*begin, "--eval"]) == 0
    accuracy = re.compile(r"test accuracy \S+ %")
    assert accuracy.findall(capsys.readouterr().out) == accuracy.findall(said)
    assert cli.main([*begin, "--epochs", "1", "--lr", "0.5", "--output-dir", "more"]) == 0
    known = [read_metadata(f"{name}/weights.h5")["preprocessing"] for name in ("run", "none", "more")]
    assert known[0] == known[1] == known[2]
    capsys.readouterr()
    os.remove("run/weights.h5")
    assert cli.main(["--eval", "more"]) == 0
    line = capsys.readouterr().out
    assert line.startswith(f"table-mlp on moved: test accuracy {100 * lines('more')[0]['test_accuracy']:.2f} %")
    assert line.endswith("weights more/weights.h5 (cpu)\n")
    assert cli.main(["--resume", "more", "--epochs", "2", "--no-progress"]) == 0
    assert read_metadata("more/weights.h5")["preprocessing"] == known[0]
    capsys.readouterr()
    again = [*TABLE, "--load", "more/weights.h5", "--data", "other.csv", "--epochs", "0", "--output-dir", "own"]
    assert cli.main(again) == 0
    assert "normalised as" not in (said := capsys.readouterr()).out
    assert "more/weights.h5 knows the columns p, q, but other has r, q: what it has learned of its own" in said.err
    assert read_metadata("own/weights.h5")["preprocessing"] != known[0]


@pytest.mark.parametrize(("flags", "said"), [
    (["--seed", "3"], "--seed=3 contradicts the run in run, which has 0; leave it out"),
    (["--seed", "3", "--data", "auto"], "--seed=3 contradicts the run in run, which has 0; leave it out"),
    (["--seed", "3", "--data", "moved.csv"], "--seed=3 contradicts the run in run, which has 0; leave it out"),
    (["--label", "p"], "--label=p contradicts the run in run, which has kind; leave it out"),
    (["--no-header"], "--no-header contradicts the run in run, which has None; leave it out"),
    (["--seed", "0", "--label", "kind"], None), (["--data", "moved.csv", "--label", "q"], None),
    (["--data", "synthetic-digits", "--seed", "3"], None), (["--data", "both", "--seed", "3"], None)])
def test_a_run_is_evaluated_on_no_item_of_its_training(flags: list[str], said: str | None) -> None:
    Path("both").mkdir()                   # a folder with a test set of its own
    for name in ("t.csv", "moved.csv", "both/train.csv", "both/test.csv"):
        table(name)
    RunFolder("run").write_config({"model": "table-mlp", "data": str(Path("t.csv").resolve()), "seed": 0,
                                   "label": "kind", "header": None})
    if said is None:
        cli.settings(["--eval", "run", *flags], "train.py")
        return
    with pytest.raises(ValueError) as refused:
        cli.settings(["--eval", "run", *flags], "train.py")
    assert str(refused.value) == said


def test_a_report_draws_no_answers_of_data_that_changed() -> None:
    """Columns in another order, and a new class, would be taken for others."""
    table("t.csv")
    assert cli.main([*TABLE, "--data", "t.csv", "--epochs", "0", "--output-dir", "run"]) == 0
    whole = run.read(Path("run"))
    assert whole.answers is not None
    assert whole.notes == []
    for old, new, differ in (("p,q", "q,p", "the columns p, q, but t has q, p"),
                             ("no", "nay", "the classes no, yes, but t has nay, yes"),
                             ("1,1,yes", "1,1,zebra", "the classes no, yes, but t has no, yes, zebra")):
        table("t.csv")
        Path("t.csv").write_text(Path("t.csv").read_text().replace(old, new))
        found = run.read(Path("run"))
        assert found.answers is None
        assert found.layers is not None
        assert found.notes == ["The net's answers are left out, as the data have changed: run/weights.h5 knows "
                               f"{differ}."]


def test_answers_are_of_the_views_that_the_accuracy_is_of(capsys: pytest.CaptureFixture[str]) -> None:
    """The units that they count are those of the net alone."""
    assert cli.main([*QUICK, "--epochs", "1", "--tta", "flip", "--output-dir", "run"]) == 0
    assert "% (mean of views, --tta flip; minidl predict takes one) after 1 epoch in " in capsys.readouterr().out
    found = run.read(Path("run"))
    assert found.answers is not None
    counts = found.answers.counts
    assert counts.trace() / counts.sum() == lines("run")[0]["test_accuracy"]
    assert found.notes[0].startswith("The answers are means over views of each image (--tta flip), as in the metrics;")
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    batches = [(np.random.default_rng(0).normal(size=(8, 1, 4, 4)).astype(np.float32), np.arange(8) % 2)]
    alone, both = (run.answer(net, batches, [], views) for views in (None, Views(net)))
    assert alone["silent"] == both["silent"] != {}
    assert alone["answers"].counts.tolist() != both["answers"].counts.tolist() or (
        [mistake.of_label for mistake in alone["answers"].worst] != [m.of_label for m in both["answers"].worst])


def test_threads_are_those_that_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIDL_NUM_THREADS", "2")
    try:
        assert cli.main([*QUICK, "--epochs", "1", "--threads", "3", "--output-dir", "run"]) == 0
        assert parallel.threads() == 3
        assert read_config("run/config.json")["threads"] == 3
    finally:
        parallel.threads.cache_clear()


def test_checkpoints_between_epochs() -> None:
    assert cli.main([*QUICK, "--epochs", "1", "--batch-size", "32", "--save-every", "3", "--output-dir", "run"]) == 0
    pictures = {"confusion.png", "curves.png", "filters.png", "report.html"}       # where matplotlib is installed
    names = sorted({path.name for path in Path("run").iterdir()} - pictures)
    assert names == ["checkpoint-previous.h5", "checkpoint.h5", "config.json", "metrics.jsonl", "statistics.jsonl",
                     "weights.h5"]
