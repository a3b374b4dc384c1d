"""What a newcomer writes by mistake: each message names the thing, what was given, and the way out.

Errors of ops by their own rows are in tests/ops/test_ops_errors.py; these are of a first day's programs.
"""

from __future__ import annotations

import inspect
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, data, nn, ops, optim, training, zoo
from minidl.habits import OPTIONS

NET = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
ADAM = optim.Adam(NET.parameters(), lr=1e-3)
DIGITS = data.load("synthetic-digits", "test").first(8)
LOADER = data.DataLoader(DIGITS, 4)
X = Tensor(np.ones((2, 3), np.float32))
MASK, BYTES = X > 0, Tensor(np.ones(2, np.uint8))


class TorchsLoader:
    """As much of PyTorch's as fit looks at."""

    dataset = DIGITS


TorchsLoader.__name__, TorchsLoader.__module__ = "DataLoader", "torch.utils.data.dataloader"


def fit(train: Any = LOADER, **options: Any) -> Any:
    return training.fit(NET, options.pop("optimizer", ADAM), train, LOADER, epochs=options.pop("epochs", 1),
                        progress=False, say=None, **options)


def of_torch(name: str) -> str:
    """A file as torch.save begins it: an archive, or before version 1.6 a pickle."""
    if name.endswith(".pt"):
        with zipfile.ZipFile(name, "w") as archive:
            archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
    else:
        Path(name).write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.")
    return name


def second_run() -> None:
    Path("run").mkdir()
    Path("run", "metrics.jsonl").write_text('{"epoch": 1}\n')
    training.RunFolder("run", NET, LOADER, LOADER)


def ragged(image: np.ndarray, label: int) -> tuple[np.ndarray, int]:
    ragged.calls = getattr(ragged, "calls", 0) + 1
    return image[:, :ragged.calls], label


@minidl.op
def doubled(k: Any, x: Tensor) -> Any:
    return k.mul(x, 2)


# What is written; the message's beginning, and what it must have behind: the value that was given, and the way out.
MISTAKES: dict[str, tuple[Callable[[], Any], str, list[str]]] = {
    # ------------------------------------------------------------ fit
    "a loss by name": (lambda: fit(loss="mse"), "fit: loss", ["'mse'", "ops.mse_loss"]),
    "a loss's class": (lambda: fit(loss=nn.CrossEntropyLoss), "fit: loss", ["class CrossEntropyLoss", "HuberLoss()"]),
    "metrics in a list": (lambda: fit(metrics=["accuracy"]), "fit: metrics", ["['accuracy']", "accuracy are measured"]),
    "a metric by name": (lambda: fit(metrics={"a": "f1"}), "fit: metric 'a'", ["'f1'", "of (outputs, targets)"]),
    "an optimizer by name": (lambda: fit(optimizer="adam"), "fit: optimizer", ["a str", "optim.Adam(net.par"]),
    "an optimizer's class": (lambda: fit(optimizer=optim.Adam), "fit: optimizer", ["class Adam", "optim.Adam(net."]),
    "net and optimizer turned": (lambda: fit(optimizer=NET), "fit: optimizer", ["a Sequential", "optim.Adam(net."]),
    "PyTorch's loader": (lambda: fit(TorchsLoader()), "fit: train",
                         ["torch.DataLoader", "data.DataLoader(train.dataset, batch_size)"]),
    "arrays": (lambda: fit((np.ones(3), np.ones(3))), "fit: train", ["a tuple", "data.DataLoader(train, batch_size)"]),
    "a Dataset": (lambda: fit(DIGITS), "fit: train", ["minidl.Dataset", "data.DataLoader(train, batch_size)"]),
    "epochs": (lambda: fit(epochs=1.5), "fit: epochs", ["1.5", "an int"]),
    "a schedule by name": (lambda: fit(schedule="cosine"), "fit: schedule", ["'cosine'", "optim.schedule(name"]),
    "a callback by name": (lambda: fit(callbacks=["stop"]), "fit: a callback", ["a str", "on_epoch_end"]),
    "a callback's class": (lambda: fit(callbacks=[training.SaveBest]), "fit: a callback",
                           ["class SaveBest", "SaveBest(...)"]),
    "Keras's validation": (lambda: fit(validation_data=LOADER), "fit: ", ["validation_data", "test, the fourth"]),
    "Lightning's accumulation": (lambda: fit(accumulate_grad_batches=2, gradient_clip_val=1.0), "fit: ",
                                 ["accumulate_grad_batches: accumulate=", "gradient_clip_val: clip="]),
    "a batch size": (lambda: fit(batch_size=8), "fit: ", ["batch_size", "data.DataLoader(dataset, batch_size)"]),
    "no test data": (lambda: training.fit(NET, ADAM, LOADER, epochs=1),
                     "fit: ", ["'test'", "it takes model, optimizer, train, test"]),
    "a path before the net": (lambda: training.SaveBest("best.h5", NET),
                              "SaveBest: ", ["a str", "SaveBest(model, path)"]),
    "the best as .pt": (lambda: training.SaveBest(NET, "best.pt"), "SaveBest: ", ["'best.pt'", ".h5, .npz or"]),
    "a net in Plateau": (lambda: optim.Plateau(NET),
                         "Plateau: ", ["a Sequential", "Plateau(optimizer, ...)"]),
    "a second run": (second_run, "run folder: run", ["an earlier run", "RunFolder.beside"]),
    # ------------------------------------------------------------ loaders
    "workers": (lambda: data.DataLoader(DIGITS, 4, num_workers=2), "DataLoader: ", ["num_workers", "prefetch="]),
    "collate_fn": (lambda: data.DataLoader(DIGITS, 4, collate_fn=list), "DataLoader: ", ["collate_fn", "by itself"]),
    "an option misspelt": (lambda: data.DataLoader(DIGITS, 4, shufle=True), "DataLoader: ", ["shufle", "shuffle, "]),
    "no batch size": (lambda: data.DataLoader(DIGITS), "DataLoader: ", ["'batch_size'", "it takes dataset, batch_"]),
    "a generator": (lambda: data.DataLoader(iter([1]), 1), "DataLoader: ", ["list_iterator", "pass arrays, or"]),
    "another net's means": (lambda: data.DataLoader(DIGITS, 4, mean=[0.5] * 3),
                            "DataLoader: mean", ["shape (3,)", "one number per channel"]),
    "a transform to (h,w,c)": (lambda: next(iter(data.DataLoader(DIGITS, 4, transform=lambda x, y: (
        x.transpose(1, 2, 0), y)))), "DataLoader: the transform", ["(28, 28, 1)", "must give uint8 (c,h,w)"]),
    "items of several shapes": (lambda: next(iter(data.DataLoader(DIGITS, 4, transform=ragged))), "DataLoader: items",
                                ["shape (1, 1, 28)", "make them equal"]),
    # ------------------------------------------------------------ files
    "an optimizer saved": (lambda: minidl.save(ADAM, "a.h5"), "save: ", ["Adam", "fit(checkpoints=folder)"]),
    "a dict saved": (lambda: minidl.save(NET.state_dict(), "a.h5"),
                     "save: ", ["a dict", "minidl.save(model, path)"]),
    "a file for PyTorch": (lambda: minidl.save(NET, "a.pt"), "save: 'a.pt'", ["PyTorch", "torch.tensor(a) for name"]),
    "a file for ONNX": (lambda: minidl.save(NET, "a.onnx"), "save: 'a.onnx'", ["ONNX", "minidl.onnx.export(net"]),
    "a pickle's name": (lambda: minidl.save(NET, "a.PKL"), "save: 'a.PKL'", ["HDF5", "choose .h5"]),
    "PyTorch's file": (lambda: minidl.load(NET, of_torch("t.pt")), "load: 't.pt'",
                       ["PyTorch", "net.load_state_dict(torch.load('t.pt', weights_only=True"]),
    "PyTorch's old file": (lambda: minidl.load(of_torch("t.pth")), "load: 't.pth'", ["PyTorch", "torch.load('t.pth'"]),
    "a path before the net, loaded": (lambda: minidl.load("a.h5", NET),
                                      "load: ", ["a str", "minidl.load(model, path)"]),
    "a file's name as state": (lambda: NET.load_state_dict("a.h5"),
                               "load_state_dict: ", ["a str", "minidl.load(model, path)"]),
    # ------------------------------------------------------------ nets
    "an activation of Linear": (lambda: nn.Linear(3, 2, activation="relu"),
                                "Linear: ", ["'activation'", "the next layer"]),
    "an activation, third": (lambda: nn.Linear(3, 2, "relu"),
                             "Linear: bias", ["'relu'", "nn.ReLU()"]),
    "in place": (lambda: nn.ReLU(inplace=True), "ReLU: ", ["'inplace'", "leave it out"]),
    "no kernel size": (lambda: nn.Conv2d(3, 2), "Conv2d: ", ["'kernel_size'", "out_channels, kernel_size"]),
    "a layer called at once": (lambda: nn.ReLU(X), "ReLU: ", ["too many positional", "ReLU(...)(x)"]),
    "a loss called at once": (lambda: nn.CrossEntropyLoss(X, [0, 1]),
                              "CrossEntropyLoss: ", ["too many positional", "CrossEntropyLoss(...)(x)"]),
    "layers in a list": (lambda: nn.Sequential([nn.ReLU()]),
                         "Sequential: layer 0", ["a list", "Sequential(*layers)"]),
    "a layer's class": (lambda: nn.Sequential(nn.ReLU),
                        "Sequential: layer 0", ["class ReLU", "ReLU(...)"]),
    "an option of the zoo": (lambda: zoo.build("lenet5", num_classes=3), "zoo: ", ["'num_classes'", "classes"]),
    "a share of 50": (lambda: nn.Dropout(50), "Dropout: p", ["50", "in [0, 1)"]),
    # ------------------------------------------------------------ optimizers and steps
    "learning_rate": (lambda: optim.Adam(NET.parameters(), learning_rate=0.1), "Adam: ", ["'learning_rate'", ": lr="]),
    "no rate": (lambda: optim.SGD(NET.parameters()), "SGD: ", ["'lr'", "it takes params, lr"]),
    "a net for its parameters": (lambda: optim.Adam(NET), "Adam: ", ["a Flatten", "model.parameters()"]),
    "None compiled": (lambda: minidl.compile(None),
                      "compile: the step", ["a NoneType", "must be a function"]),
    "an own op without gradient": (lambda: doubled(X), "doubled: ", ["one value (ndarray)", "return (y, backward)"]),
    # ------------------------------------------------------------ ops
    "logical_and": (lambda: X.logical_and(X), "Tensor.logical_and: ", ["is not here", "a & b"]),
    "ops.logical_or": (lambda: ops.logical_or(X, X), "minidl.ops.logical_or: ", ["is not here", "a | b"]),
    "attention as a method": (lambda: X.scaled_dot_product_attention(X, X),
                              "Tensor.scaled_dot", ["is not here", "minidl.ops.scaled_dot_product_attention"]),
    "no list": (lambda: ops.concatenate(X, X),
                "concatenate: the axis", ["a Tensor of shape (2, 3)", "concatenate([x, y])"]),
    "a step of 0": (lambda: minidl.arange(0, 5, 0), "arange: step", ["0", "above or below 0"]),
    "too large for a byte": (lambda: BYTES + 300, "add: ", ["uint8", "300", ".to(dtype=...)"]),
    "masks subtracted": (lambda: MASK - MASK, "sub: ", ["bool and bool", ".to(dtype=...)"]),
    "an integer's inverse": (lambda: Tensor([1, 2]) ** -1, "pow: ", ["int64", ".to(dtype=...)"]),
    "an axis of logsumexp": (lambda: X.logsumexp(5), "logsumexp: axis", ["5", "from -2 to 1"]),
    "too many of topk": (lambda: X.topk(9), "topk: k", ["9", "an int from 0"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_message_names_the_thing_the_value_and_the_way_out(
        mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, begins, words = MISTAKES[mistake]
    with pytest.raises((TypeError, ValueError, AttributeError, OverflowError)) as error:
        call()
    said = str(error.value)
    assert said.startswith(begins), said
    assert [word for word in words if word not in said[len(begins):]] == [], said
    assert "; " in said or " but must " in said, said
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix not in (".pt", ".pth", "")) == []


SIZES: dict[str, Callable[[np.int64], object]] = {                    # NumPy's integers are sizes
    "Linear": lambda size: nn.Linear(size, size), "Conv2d": lambda size: nn.Conv2d(1, size, size),
    "one_cycle": lambda size: optim.one_cycle(size), "cosine": lambda size: optim.cosine(size),
    "fit": lambda size: fit(epochs=size), "DataLoader": lambda size: data.DataLoader(DIGITS, size)}


@pytest.mark.parametrize("name", SIZES)
def test_numpys_integers_are_sizes(name: str) -> None:
    SIZES[name](np.int64(2))


@pytest.mark.parametrize("place", OPTIONS)
def test_an_option_that_is_advised_on_is_not_taken(place: str) -> None:
    bases: dict[str, type] = {"Module": nn.Module, "Optimizer": optim.Optimizer, "DataLoader": data.DataLoader}
    owners: dict[str, Any] = {place: getattr(training, place)} if hasattr(training, place) else {
        name: value for room in (nn, optim, data) for name, value in vars(room).items()
        if isinstance(value, type) and issubclass(value, bases[place])}
    assert place in owners
    for name, owner in owners.items():
        if any(each.kind is each.VAR_KEYWORD for each in inspect.signature(owner).parameters.values()):
            continue                       # layers by name, and Identity, which takes all
        for option, instead in OPTIONS[place].items():
            with pytest.raises(TypeError, match=f"^{name}: .*; in place of {option}: {re.escape(instead)}$"):
                owner(**{option: 1})


def test_what_a_function_itself_refuses_stays_as_it_is() -> None:
    class Own(nn.Linear):
        def __init__(self, size: int):
            super().__init__(size, "2")
    with pytest.raises(ValueError, match=r"^Linear: out_features is '2' but must be an int"):
        Own(3)
    with pytest.raises(TypeError, match=r"Own\.__init__\(\) got an unexpected keyword argument 'width'"):
        Own(3, width=2)
    with pytest.raises(TypeError, match=r"^add: an input is a builtins\.dict"):
        training.fit(NET, ADAM, LOADER, LOADER, epochs=1, progress=False, loss=lambda outputs, targets: outputs + {})
