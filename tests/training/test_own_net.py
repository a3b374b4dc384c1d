"""A net of the user's, in a file of the user's: every command trains, resumes, evaluates, uses and draws it, and code
runs only where the command line names it."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tiers import tiered

import minidl
from minidl import data, nn, ops, optim, plot, training, zoo
from minidl.nn.weights import WEIGHTS, _attributes, files
from minidl.tools import cli
from minidl.training import RunFolder, read_config, read_metrics
from minidl.training.checkpoint import read_state, write_state

MY_NET = '''"""A file of the user's."""
from minidl import nn, zoo

RECIPE = zoo.Recipe(data="synthetic-digits", epochs=2, batch_size=100, lr=0.05, momentum=0.9)


def build(in_channels=1, classes=10, image_size=28, width=2):
    """A convolution and a full connection."""
    side = image_size - 4
    return nn.Sequential(c1=nn.Conv2d(in_channels, width, 5), act1=nn.ReLU(), flat=nn.Flatten(),
                         out=nn.Linear(width * side * side, classes))


def rows(in_features, classes):
    return nn.Sequential(out=nn.Linear(in_features, classes))


def wipe(path="/"):
    open("ran", "w")


def images(in_channels=1):
    return zoo.autoencoder.layers(in_channels, code=2, width=2)


MODEL = zoo.Model("anything", "for images", images, RECIPE, target="image")
'''
OF_THE_NET = ("Layers", "Confusion matrix", "First layer&#x27;s filters")      # boxes of a report
FEW = ["--limit-train", "200", "--limit-test", "100", "--no-progress", "--device", "cpu"]


@pytest.fixture(autouse=True)
def _there(elsewhere: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MINIDL_OFFLINE", "1")
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("my_net.py").write_text(MY_NET)
    forget()
    yield
    forget()


def forget() -> None:
    """The next import is the first, as in a new process."""
    for name in [name for name in sys.modules if name.startswith("plugin_")]:
        del sys.modules[name]


def said(capsys: pytest.CaptureFixture[str], *flags: str, status: int = 0) -> str:
    forget()
    assert cli.main(list(flags)) == status
    captured = capsys.readouterr()
    return captured.out if status == 0 else captured.err


def picture() -> np.ndarray:
    digit = data.load("synthetic-digits", "test", count=4).images[3]
    pytest.importorskip("PIL.Image").fromarray(digit[0]).save("one.png")
    return digit


def test_every_command_takes_a_net_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert "16,0" not in said(capsys, "summary", "my_net.py:build", "--option", "width=3")
    out = said(capsys, "train", "my_net.py:build", *FEW, "--option", "width=3", "--output-dir", "run")
    assert "my_net.py:build on synthetic-digits: test accuracy" in out.splitlines()[-1]
    assert [line["epoch"] for line in read_metrics("run")] == [1, 2]       # its recipe
    known = minidl.weights.read_metadata("run/weights.h5")
    code = {"file": "my_net.py", "name": "build", "sha256": known["code"]["sha256"]}
    assert (known["model"], known["code"], known["input"]) == ("my_net.py:build", code, [1, 28, 28])
    assert known["model_args"] == {"in_channels": 1, "classes": 10, "image_size": 28, "width": 3}
    assert known["classes"] == list("0123456789")
    assert read_config("run/config.json")["code"] == code
    assert "test accuracy" in said(capsys, "train", "my_net.py:build", "--eval", "run")
    for weights in ("run", "run/weights.h5"):
        assert "(3,1,5,5)" in said(capsys, "summary", "--weights", weights, "--code", "my_net.py")
    quick = "--code", "my_net.py", "--steps", "1", "--batch-size", "2", "--device", "cpu"
    assert said(capsys, "profile", "--run", "run", *quick).startswith("my_net.py:build, batch 2, fp32, cpu: ")
    assert said(capsys, "report", "run", "--code", "my_net.py") == "run/report.html\n"
    html = Path("run/report.html").read_text(encoding="utf-8")
    assert all(f"<h2>{title}</h2>" in html for title in OF_THE_NET)
    assert "time goes" in html
    assert "my_net.py:build on synthetic-digits" in html
    picture()
    net = minidl.load("run/weights.h5", code="my_net.py:build").eval()
    third = data.load("synthetic-digits", "test", count=4)[3:4]
    loader = data.DataLoader(third, 1, shuffle=False, **known["preprocessing"])
    best = int(net(minidl.Tensor(next(iter(loader))[0])).numpy().argmax())
    assert said(capsys, "predict", "run", "one.png", "--code", "my_net.py").startswith(f"one.png: {best} ")
    found = json.loads(said(capsys, "predict", "run", "one.png", "--code", "my_net.py", "--json"))
    assert (found["item"], next(iter(found["classes"]))) == ("one.png", str(best))
    assert said(capsys, "predict", "--weights", "run", "one.png", "--code", "my_net.py:build").startswith("one.png: ")


def test_a_report_without_the_code_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "train", "my_net.py:build", *FEW, "--epochs", "1", "--output-dir", "run")
    forget()
    assert cli.main(["report", "run"]) == 0
    told = capsys.readouterr().err
    assert told.startswith("minidl report: warning: The net's layers, filters and answers are left out: weights.h5 was")
    assert "if you trust it, add --code 'my_net.py:build', in Python code='my_net.py:build'" in told
    assert "plugin_my_net" not in sys.modules
    html = Path("run/report.html").read_text(encoding="utf-8")
    assert "add --code &#x27;my_net.py:build&#x27;" in html
    assert not any(f"<h2>{title}</h2>" in html for title in OF_THE_NET)
    assert "<h2>Loss</h2>" in html
    plot.report("run", code=zoo.find("my_net.py").layers)
    assert "<h2>Layers</h2>" in Path("run/report.html").read_text(encoding="utf-8")


def test_runs_whose_code_changed_differ_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    for name in "a", "b":
        said(capsys, "train", "my_net.py:build", *FEW, "--epochs", "0", "--output-dir", f"runs/{name}")
        with open("my_net.py", "a") as file:
            file.write("# another line\n")
    head, *lines = [line.split() for line in said(capsys, "runs").splitlines()]
    assert head[:2] == ["run", "code"]
    codes = {name: read_config(f"runs/{name}/config.json")["code"]["sha256"][:12] for name in "ab"}
    assert {line[0]: line[1] for line in lines} == {f"runs/{name}": code for name, code in codes.items()}


@pytest.mark.slow
def test_plot_draws_it(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    said(capsys, "train", "my_net.py:build", *FEW, "--output-dir", "run")
    assert said(capsys, "plot", "run", "--code", "my_net.py").split() == [
        f"run/{name}" for name in ("curves.png", "filters.png", "confusion.png", "report.html")]
    assert said(capsys, "plot", "run").split() == ["run/curves.png", "run/report.html"]       # without its code


def test_a_run_that_was_killed_goes_on(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    said(capsys, "train", "my_net.py:build", *FEW, "--output-dir", "whole")
    append = RunFolder.append_metrics

    def killed(self: RunFolder, metrics: Any) -> None:
        append(self, metrics)
        os.kill(os.getpid(), signal.SIGTERM)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append_metrics", killed)
        with pytest.raises(training.Interrupted, match=r"go on with: minidl train my_net\.py:build --resume run$"):
            said(capsys, "train", "my_net.py:build", *FEW, "--output-dir", "run")
    assert "not finished; go on with --resume run" in said(capsys, "train", "my_net.py", "--eval", "run", status=2)
    said(capsys, "train", "my_net.py:build", "--resume", "run", "--no-progress")
    assert Path("run/weights.h5").read_bytes() == Path("whole/weights.h5").read_bytes()


def test_a_source_that_changed_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "train", "my_net.py:build", *FEW, "--epochs", "1", "--output-dir", "run")
    with open("my_net.py", "a") as file:
        file.write("# another line\n")
    picture()
    forget()
    for flags in (["predict", "run", "one.png", "--code", "my_net.py"], ["train", "my_net.py", "--eval", "run"],
                  ["train", "my_net.py", "--resume", "run", "--epochs", "2", "--no-progress"]):
        assert cli.main(flags) == 0
        assert "my_net.py has changed since, or is other code" in capsys.readouterr().err
    assert cli.main(["train", "my_net.py", "--eval", "run"]) == 0
    assert capsys.readouterr().err == ""   # the weights are those of the changed file


@pytest.mark.slow
def test_tables_and_models(capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.csv").write_text("a,b,kind\n" + "".join(f"{i % 7},{3 * i % 11},{'xy'[i % 2]}\n" for i in range(60)))
    out = said(capsys, "train", "my_net.py:rows", "--data", "t.csv", "--epochs", "1", "--batch-size", "5",
               "--no-progress", "--output-dir", "rows")
    assert "my_net.py:rows on t:" in out
    Path("new.csv").write_text("a,b\n1,2\n")
    assert said(capsys, "predict", "rows", "new.csv", "--code", "my_net.py:rows").startswith("new.csv, line 2: ")
    said(capsys, "train", "my_net.py:MODEL", *FEW, "--epochs", "1", "--output-dir", "images")
    assert read_config("images/config.json")["code"]["name"] == "MODEL"
    assert "test loss" in said(capsys, "train", "my_net.py:MODEL", "--eval", "images")


def test_pictures_of_any_size_need_one(capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image")
    for kind in ("cat", "dog"):
        for i in range(10):
            Path(f"pets/{kind}").mkdir(parents=True, exist_ok=True)
            image.fromarray(np.full((40, 48, 3), 5 * i + 100 * (kind == "dog"), np.uint8)).save(f"pets/{kind}/{i}.png")
    Path("free.py").write_text("from minidl import nn\ndef build(in_channels, classes):\n    return nn.Sequential("
                               "nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(in_channels, classes))\n")
    flags = ["--data", "pets", "--epochs", "1", "--no-progress", "--batch-size", "4"]
    told = said(capsys, "train", "free.py", *flags, status=2)
    assert "pets has pictures of any size, and free.py does not say which it reads; give build an option image" in told
    said(capsys, "train", "my_net.py", *flags, "--option", "image_size=16", "--output-dir", "run")
    assert minidl.weights.read_metadata("run/weights.h5")["input"] == [1, 16, 16]
    found = json.loads(said(capsys, "predict", "run", "pets/dog/1.png", "--code", "my_net.py", "--json"))
    assert found["classes"].keys() == {"cat", "dog"}
    said(capsys, "report", "run", "--code", "my_net.py")
    html = Path("run/report.html").read_text(encoding="utf-8")
    assert all(f"<h2>{title}</h2>" in html for title in OF_THE_NET)


@pytest.mark.parametrize(("text", "name", "message"), [
    ("", "net.py:build", "net.py has no function 'build'; it has none; name one that returns a net: net.py:NAME"),
    ("def other(): pass\n", "net.py", "net.py has no function 'build'; it has other; name one"),
    ("1 / 0\n", "net.py", "net.py: ZeroDivisionError: division by zero"),
    ("def build(): return 3\n", "net.py", "'net.py:build' gives a int but must give an nn.Module; return the net"),
    ("def build(depth): pass\n", "net.py", "model 'net.py:build' needs the option depth, which has no default"),
    ("RECIPE = {}\ndef build(): pass\n", "net.py", "net.py: RECIPE is a dict but must be a zoo.Recipe"),
    ("from minidl import zoo\nRECIPE = zoo.Recipe(epochs='3')\n", "net.py", "net.py: TypeError: Recipe: epochs is '3' "
     "but must be of type int"),
    ("", "none.py", "'none.py' is not a file; name a Python file of yours"),
    ("", "no.such.module:build", "no.such.module: ModuleNotFoundError: No module named 'no'; name a Python file"),
])
def test_code_that_is_no_net_is_one_line(text: str, name: str, message: str,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    Path("net.py").write_text(text)
    (line,) = said(capsys, "train", name, *FEW, "--data", "synthetic-digits", status=2).splitlines()
    assert line.startswith("minidl train: error: ")
    assert message in line


def test_a_recipe_is_read_as_flags_are(capsys: pytest.CaptureFixture[str]) -> None:
    Path("net.py").write_text(MY_NET.replace("momentum=0.9", 'optimizer="adamw", lr_schedule="zigzag"'))
    with pytest.raises(SystemExit):
        cli.main(["train", "net.py"])
    assert "argument --lr-schedule: invalid choice: 'zigzag'" in capsys.readouterr().err
    Path("net.py").write_text(MY_NET.replace("momentum=0.9", 'optimizer="adamw"'))
    said(capsys, "train", "net.py", *FEW, "--epochs", "0", "--output-dir", "run")
    config = read_config("run/config.json")
    assert [config[name] for name in ("optimizer", "lr", "momentum")] == ["adamw", 0.05, None]
    said(capsys, "train", "net.py", *FEW, "--epochs", "0", "--optimizer", "adam", "--output-dir", "adam")
    assert read_config("adam/config.json")["lr"] == 0.001      # the recipe's is of another optimizer


@pytest.mark.parametrize("size", [0, -1, 2**13, "big", 1.5, True])
def test_an_image_size_that_cannot_be(size: object, capsys: pytest.CaptureFixture[str]) -> None:
    """Before pictures are resized to it; where the model has no such option, it decides nothing."""
    told = said(capsys, "train", "my_net.py", *FEW, "--option", f"image_size={json.dumps(size)}", status=2)
    assert f"image_size of 'my_net.py:build' is {size!r} but must be an int from 1 to 4096" in told
    assert zoo.find("lenet5").item((1, 28, 28), image_size=size) == (1, 32, 32)


def test_an_installed_module(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("site/nets_of_mine").mkdir(parents=True)
    Path("site/nets_of_mine/small.py").write_text(MY_NET)
    monkeypatch.syspath_prepend("site")
    said(capsys, "train", "nets_of_mine.small:build", *FEW, "--epochs", "1", "--output-dir", "run")
    picture()
    assert "code that runs only if you name it; if you trust it, add --code 'nets_of_mine.small:build', in Python" in (
        said(capsys, "predict", "run", "one.png", status=2))
    assert said(capsys, "predict", "run", "one.png", "--code", "nets_of_mine.small:build").startswith("one.png: ")


@pytest.mark.parametrize("file", ["<stdin>", None])
def test_a_function_that_was_typed_is_in_no_file(file: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    typed: Any = ModuleType("typed")
    typed.__file__ = file
    exec("from minidl import nn\ndef build(): return nn.Linear(2, 3)", vars(typed))
    monkeypatch.setitem(sys.modules, "typed", typed)
    net: Any = zoo.build(typed.build)
    assert (net.model_code["file"], net.model_code["name"]) == ("typed", "build")


def test_a_file_may_import_files_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    Path("nets").mkdir()
    Path("nets/of_my_layers.py").write_text("from minidl import nn\nclass Mine(nn.Linear): pass\n")
    Path("nets/net.py").write_text("from of_my_layers import Mine\nfrom minidl import nn\ndef build(classes=10):\n"
                                   "    return nn.Sequential(nn.Flatten(), Mine(784, classes))\n")
    assert "Mine" in said(capsys, "summary", "nets/net.py", "--input", "1,28,28")
    assert "net.py:build does not say the shape of what it reads; name it: --input" in (
        said(capsys, "summary", "nets/net.py", status=2))


# ---------------------------------------------------------------- what a stranger's files name
HOSTILE = ("evil.py:build", "evil.py", "evil:build", "os:system", "my_net.py:wipe")


@pytest.fixture
def stranger() -> Path:
    """A run whose files name code, which lies beside it."""
    Path("evil.py").write_text("open('ran', 'w')\ndef build(): pass\n")
    net = zoo.build("perceptron", in_channels=1)
    with RunFolder("run", net, loader := data.DataLoader(data.load("synthetic-digits", "test", count=50), 50), loader):
        pass
    Path("run/metrics.jsonl").write_text("")
    return Path("run")


@pytest.mark.parametrize("named", HOSTILE)
def test_a_file_or_a_folder_imports_nothing_that_it_names(named: str, stranger: Path,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    file, _, name = named.partition(":")
    net = zoo.build("perceptron", in_channels=1)
    net.model_name, net.model_args = named, {"command": "touch ran", "path": "/"}
    net.model_code = {"file": file, "name": name, "sha256": "0" * 64}
    minidl.save(net, stranger / "weights.h5", data=data.DataLoader(data.load("synthetic-digits", "test", count=50), 50))
    config = {"model": named, "code": dict(net.model_code), "epochs": 1, "data": "synthetic-digits"}
    picture()
    before = set(sys.modules)
    for value in (named, [named], {named: 1}):
        (stranger / "config.json").write_text(json.dumps({**config, "model": value}))
        for flags in (["predict", "run", "one.png"], ["summary", "--weights", "run"], ["profile", "--run", "run"],
                      ["train", "--eval", "run"], ["train", "--resume", "run"],
                      ["train", "--config", "run/config.json"]):
            assert ended(flags) == 2
            assert "error: " in capsys.readouterr().err
        assert (ended(["report", "run"]), ended(["runs", "."])) == (0, 0)
    with pytest.raises(minidl.weights.WeightsError, match="code that runs only if you name it"):
        minidl.load(stranger / "weights.h5")
    if find_spec("matplotlib"):
        cli.main(["plot", "run"])
    assert not Path("ran").exists()
    assert not {"evil", "plugin_evil", "plugin_my_net"} & (set(sys.modules) - before)


def ended(flags: list[str]) -> object:
    """The status of a command, also where a value of the file cannot be a flag."""
    try:
        return cli.main(flags)
    except SystemExit as stop:
        return stop.code


def test_options_of_a_file_are_checked_before_the_code_gets_them(stranger: Path) -> None:
    """The user names a function; which, and with what it is called, no file decides."""
    net = zoo.build("perceptron", in_channels=1)
    net.model_code = {"file": "my_net.py", "name": "wipe", "sha256": ""}
    for args, message in (({"path": "/"}, "with the option 'path': '/', but its options are like in_channels=1"),
                          ({"width": "9"}, "with the option 'width': '9'"), ({"width": [2]}, "with the option 'width'"),
                          ({"width": 2**40}, "with the option 'width'"),
                          ({"width": 2**20}, "which cannot be built as it says (init: a parameter of shape")):
        net.model_name, net.model_args = "my_net.py:wipe", args
        minidl.save(net, "w.h5")
        with pytest.warns(UserWarning, match="has changed since"), pytest.raises(minidl.weights.WeightsError) as error:
            minidl.load("w.h5", code="my_net.py")
        assert message in str(error.value)
    assert not Path("ran").exists()


@pytest.mark.parametrize("value", ["[1, 2]", "[0, 3, 3]", "[3, 5000, 5000]", "[true]", "3", "{}", '["a"]'])
def test_an_input_that_cannot_be_is_refused(value: str) -> None:
    net = zoo.build("perceptron", in_channels=1)
    files.write(WEIGHTS, "save", "w.h5", net.state_dict(), {**_attributes(net, {}), "input": value})
    with pytest.raises(minidl.weights.WeightsError, match="but must have a JSON list of 1 or 3 sizes"):
        minidl.weights.read_metadata("w.h5")


@pytest.mark.parametrize("code", ["text", {"file": "a"}, {"file": "a", "name": "b", "sha256": 3},
                                  {"file": "\x1b[2J", "name": "b", "sha256": ""},
                                  {"file": "a" * 2000, "name": "b", "sha256": ""}])
def test_a_code_that_is_none_is_refused(code: Any) -> None:
    net = nn.Linear(3, 2)
    net.model_code = code
    with pytest.raises((ValueError, TypeError)):
        minidl.save(net, "w.h5")
    assert not Path("w.h5").exists()


def test_a_checkpoint_knows_the_net_and_says_that_its_code_changed() -> None:
    def build(width: int = 2) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(4, width))

    loader = data.DataLoader(data.Dataset("mine", "train", np.zeros((8, 1, 2, 2), np.uint8), np.arange(8) % 2), 4)

    def fit(epochs: int) -> None:
        net = zoo.build(build)
        training.fit(net, optim.SGD(net.parameters(), 0.1), loader, loader, epochs=epochs, checkpoints="run",
                     resume=True, say=None)
    fit(1)
    path = Path("run/checkpoint.h5")
    net = zoo.build(build)
    like = {"model": {f"{name}": t.numpy() for name, t in net.named_tensors()}}
    state = read_state(path, like)
    code = dict(net.model_code or {})
    assert state["net"] == {"model": "test_own_net.py:build", "model_args": {"width": 2}, "code": code} | {
        "model": net.model_name}
    write_state(path, {**state, "net": {**state["net"], "code": {**code, "sha256": "0" * 64}}})
    with pytest.warns(UserWarning, match="has changed since, or is other code"):
        fit(2)
    for wrong in (3, [], {"model": ""}, {**state["net"], "code": {"file": "x"}}, {**state["net"], "code": [1]}):
        write_state(path, {**state, "net": wrong})
        if wrong:
            with pytest.raises(ValueError, match=r"has a state that is not what training\.fit writes here"):
                fit(3)


# ---------------------------------------------------------------- from Python
PROGRAM = '''
import sys
from minidl import data, nn, optim, training, zoo

def build(in_channels=1, classes=10, width=4):
    return nn.Sequential(flat=nn.Flatten(), f1=nn.Linear(784 * in_channels, width), act=nn.ReLU(),
                         out=nn.Linear(width, classes))

if __name__ == "__main__":
    net = zoo.build(build, width=6)
    def loader(split, **how):
        return data.DataLoader(data.load("synthetic-digits", split, count=200), 50, mean=[0.1], std=[0.3], **how)
    train, test = loader("train", seed=1), loader("test", shuffle=False)
    sgd = optim.SGD(net.parameters(), lr=0.1)
    with training.RunFolder("own", net, train, test, resume=True) as run:
        best = training.SaveBest(net, run.path / "best.h5", "test_loss", data=train)
        training.fit(net, sgd, train, test, epochs=int(sys.argv[1]), callbacks=[run, best], checkpoints=run.path,
                     resume=True, say=None)
'''


@pytest.mark.slow
def test_a_program_leaves_what_the_command_leaves(capsys: pytest.CaptureFixture[str],
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    Path("program.py").write_text(PROGRAM)
    subprocess.run([sys.executable, "program.py", "1"], check=True,
                   env={**os.environ, "PYTHONPATH": str(Path(minidl.__file__).parents[1])})
    monkeypatch.setattr(sys, "argv", ["program.py", "2"])
    runpy.run_path("program.py", run_name="__main__")
    assert {"config.json", "metrics.jsonl", "weights.h5", "best.h5", "checkpoint.h5"} <= set(os.listdir("own"))
    assert [line["epoch"] for line in read_metrics("own")] == [1, 2]
    assert [line["epoch"] for line in training.read_statistics("own")] == [0, 1, 2]
    known = minidl.weights.read_metadata("own/weights.h5")
    assert (known["model"], known["code"]["name"], known["input"]) == ("program.py:build", "build", [1, 28, 28])
    picture()
    for file in ("own", "own/best.h5"):
        assert said(capsys, "predict", file, "one.png", "--code", "program.py").startswith("one.png: ")
    shown = f"test accuracy {100 * read_metrics('own')[-1]['test_accuracy']:.2f} %"
    assert shown in said(capsys, "train", "program.py", "--eval", "own")
    assert "own is the run of a program, which alone can go on with it" in (
        said(capsys, "train", "program.py", "--resume", "own", status=2))
    said(capsys, "report", "own", "--code", "program.py")
    html = Path("own/report.html").read_text(encoding="utf-8")
    assert all(f"<h2>{title}</h2>" in html for title in (*OF_THE_NET, "Gradients", "Weights over the epochs"))


def test_a_regression_that_went_on_has_its_report() -> None:
    """On the columns of a table, from Python; without them, the report says what is missing."""
    def build(in_features: int = 3) -> nn.Module:
        return nn.Sequential(out=nn.Linear(in_features, 1))

    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    loader = data.DataLoader((x, x[:, :1]), 8)
    for epochs in 1, 2:
        net = zoo.build(build)
        with RunFolder("run", net, loader, loader, resume=True) as run:
            training.fit(net, optim.SGD(net.parameters(), 0.1), loader, loader, epochs=epochs, loss=ops.mse_loss,
                         callbacks=run, checkpoints=run.path, resume=True, say=None)
    assert [line["epoch"] for line in training.read_statistics("run")] == [0, 1, 2]
    html = plot.report("run", net, loader).read_text(encoding="utf-8")
    assert all(f"<h2>{title}</h2>" in html for title in ("Predictions", "Residuals", "Layers", "Gradients"))
    html = plot.report("run", code=build).read_text(encoding="utf-8")
    assert "No test set was given" in html
    assert "<h2>Layers</h2>" in html
    with pytest.warns(UserWarning, match="layers, filters and answers are left out"):
        plot.report("run")


def test_a_net_that_knows_no_code(capsys: pytest.CaptureFixture[str]) -> None:
    """Its run has all but a way to build it again: minidl.load(model, path) has."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    loader = data.DataLoader(data.Dataset("mine", "train", np.zeros((8, 1, 2, 2), np.uint8), np.arange(8) % 2), 4)
    with RunFolder("run", net, loader, loader) as run:
        training.fit(net, optim.SGD(net.parameters(), 0.1), loader, loader, epochs=1, callbacks=run, say=None)
    config = read_config("run/config.json")
    assert (config["model"], config["code"], config["train_images"]) == ("Sequential", None, 8)
    assert minidl.load(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), "run/weights.h5")[1].weight.tolist() == (
        net[1].weight.tolist())
    assert "which is not one of the zoo's" in said(capsys, "predict", "run", "x.png", status=2)
    assert "does not say on which data the net was trained; name them: --data" in (
        said(capsys, "train", "--eval", "run", status=2))


@pytest.mark.parametrize(("change", "named"), [
    (lambda test: test, True), (lambda test: test.first(7), True), (lambda test: test[1:8], False),
    (lambda test: data.random_split(test, [0.5, 0.5])[0], False),
    (lambda test: replace(test, images=255 - test.images), False),
    (lambda test: replace(test, classes=test.classes[::-1]), False)])
def test_a_run_names_no_set_of_which_it_has_other_items(change: Any, named: bool) -> None:
    """The commands take the first items of a set that config.json names."""
    part = change(data.load("synthetic-digits", "test", count=20))
    with RunFolder("run", nn.Linear(784, 10), test=data.DataLoader(part, 5)) as folder:
        found = {name: folder.config[name] for name in ("data", "limit_test") if name in folder.config}
    assert found == ({"data": "synthetic-digits", "limit_test": len(part)} if named else {})


def test_a_run_on_a_subset_names_no_source() -> None:
    """A Subset has the items themselves as its source, which no file can hold; `config.json` was not written."""
    train = data.DataLoader(data.Subset([(np.ones(7, np.float32), 1)] * 20, range(10)), 5)
    net = nn.Sequential(nn.Linear(7, 2))
    with RunFolder("run", net, train, train) as run:
        training.fit(net, optim.SGD(net.parameters(), 0.1), train, train, epochs=1, callbacks=[run], say=None)
    assert read_config("run/config.json")["data_source"] is None


@pytest.mark.parametrize("which", tiered([lambda net: net, lambda net: "my_net.py:build"], fast=1, slow=1))
def test_load_takes_the_function_or_its_place(which: Any) -> None:
    build = zoo.find("my_net.py:build").layers
    net = zoo.build(build, width=5)
    assert net.model_code is not None
    minidl.save(net, "w.h5")
    again = minidl.load("w.h5", code=which(build))
    assert again.c1.weight.tolist() == net.c1.weight.tolist()
    with pytest.raises(ValueError, match=r"the option width of 'my_net\.py:build' is a NoneType, which a weights file"):
        zoo.build(build, width=None)
