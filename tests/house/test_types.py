"""Types, as a user's editor sees them."""

from __future__ import annotations

import copy
import inspect
import os
import re
import shutil
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, GenericAlias, ModuleType
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, data, distributed, nn, ops, optim, plot, training, zoo

SCRIPT = Path(__file__).with_name("users_script.py")
PROGRAM = Path(__file__).with_name("users_program.py")
# What a user may get wrong: the words of PROGRAM, those in their place, and a pattern of what a checker says.
PLANTED = [
    ("padding=1)\n        self.norm", "pading=1)\n        self.norm", "pading"),
    ("beta=self.beta)", "betas=self.beta)", "betas"),
    ("ops.relu(self.stem(x))", "ops.relu(self.stem)", "Conv2d"),
    ("self.head(x) * self.scale", "self.head(x).numpy()", "ndarray"),
    ("labels, label_smoothing", "label_smoothing", "labels"),
    ("AdamW(net.parameters(),", "AdamW(net,", "Net"),
    ("step(Tensor(images), Tensor(labels), rate", "step(images, labels, rate", "ndarray"),
    ("yield loss.item()", "yield loss", "Tensor"),
    ("trainer.loss(Tensor(images), Tensor(labels))", "trainer.loss(Tensor(images))", "labels|Too few arguments"),
    ("loss=smooth_loss,", 'loss="mse",', "loss"),
    ("StopEarly(2)", 'StopEarly("2")', "int"),
    ("minidl.load(twin, path)", "minidl.load(path, twin)", "Path"),
    ("eval()(Tensor(images))", "eval()(images)", "ndarray")]
TABLES = {"ACTIVATIONS", "CONV_ALGORITHMS", "OPS"}
SEVERAL = {"split", "unique"}                        # ops that give several Tensors


def public(module: ModuleType) -> set[str]:
    """A module's __all__, or what it defines, or for ops, which gathers its families' names, what a user may call."""
    own = {name for name, value in vars(module).items() if name[0] != "_" and not isinstance(value, ModuleType) and (
        module is ops or getattr(value, "__module__", None) == module.__name__)}
    return set(getattr(module, "__all__", own))


def every_public_name() -> str:
    """Lines that use each; of ops, as functions to a Tensor."""
    lines = ["from collections.abc import Callable", "from typing import Any"]
    for module in (minidl, data, nn, optim, plot, training, zoo):
        name = module.__name__.rpartition(".")[2]
        lines.append(f"{name}s: list[Any] = [{', '.join(f'{name}.{each}' for each in sorted(public(module)))}]")
    calls = sorted(public(ops) - TABLES - SEVERAL)
    return "\n".join([*lines, f"calls: list[Callable[..., Tensor]] = [{', '.join(f'ops.{each}' for each in calls)}]\n"])


def with_mistakes() -> tuple[str, dict[int, str]]:
    """PROGRAM with all that is planted in it, and what the message at each such line shall say."""
    text = PROGRAM.read_text(encoding="utf-8")
    for right, wrong, _ in PLANTED:
        assert text.count(right) == 1, right
        text = text.replace(right, wrong)
    return text, {text[:text.index(wrong)].count("\n") + 1: named for _, wrong, named in PLANTED}


def checked(checker: list[str], folder: Path) -> None:
    """Let a type checker read both programs and all public names, and the mistakes, of which it must find each."""
    wrong, lines = with_mistakes()
    texts = {"script": SCRIPT.read_text(encoding="utf-8") + every_public_name(),
             "program": PROGRAM.read_text(encoding="utf-8"), "wrong": wrong}
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    done = subprocess.run([*checker, *(str(folder / f"{name}.py") for name in texts)], cwd=PROGRAM.parents[2],
                          capture_output=True, text=True, check=False)
    found: dict[tuple[str, int], str] = {}
    for name, line, says in re.findall(r"(\w+)\.py:(\d+):(?:\d+ -)? error: (.*)", done.stdout):
        found.setdefault((name, int(line)), says)
    assert found.keys() == {("wrong", line) for line in lines}, done.stdout + done.stderr
    assert [(line, says) for line, says in lines.items() if not re.search(says, found["wrong", line])] == []


@pytest.mark.slow
def test_mypy_finds_a_users_mistakes_and_no_others(tmp_path: Path) -> None:
    """What it knows of NumPy and minidl is kept from one run to the next, as by the command itself."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    checked([sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", "--cache-dir",
             ".mypy_cache/users"], tmp_path)


@pytest.mark.slow
def test_pyright_finds_a_users_mistakes_and_no_others(tmp_path: Path) -> None:
    pyright = shutil.which("pyright") or shutil.which("basedpyright")
    if pyright is None:
        pytest.skip("neither pyright nor basedpyright is installed: pip install basedpyright")
    checked([pyright, "--pythonpath", sys.executable], tmp_path)


@pytest.mark.slow
def test_the_program_that_the_checkers_read_runs(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(PROGRAM)], cwd=tmp_path, capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": str(PROGRAM.parents[2]), "MINIDL_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "net.h5").exists()


def test_ops_tell_their_types_at_run_time() -> None:
    hints = typing.get_type_hints(ops.conv2d)
    assert (hints["x"], hints["algorithm"], hints["return"]) == (Tensor, str, Tensor)
    for name in public(ops) - TABLES:
        op = getattr(ops, name)
        assert typing.get_type_hints(op).keys() == {*inspect.signature(op).parameters, "return"}, name


@pytest.mark.parametrize("room", [minidl, ops, nn, optim, data, training], ids=lambda room: room.__name__)
def test_completion_shows_public_names_alone(room: ModuleType) -> None:
    shown = {name for name in dir(room) if not name.startswith("__")}
    late = {"cli", "compiler", "emulator", "lab", "layouts", "onnx", "plot", "training", "zoo"}
    named = {"device", "tensor", "weights"} | late if room is minidl else set()
    assert shown == (public(room) | named) - {"__version__"}
    assert all(hasattr(room, name) for name in shown)
    assert {"__doc__", "__name__"} <= {*dir(room)}


def test_notebooks_complete_as_dir_shows() -> None:
    jedi = pytest.importorskip("jedi", reason="jedi is not installed, by which IPython completes")

    def completed(text: str) -> set[str]:
        return {each.name for each in jedi.Interpreter(text, [{"minidl": minidl}]).complete()}
    assert {name for name in completed("minidl.ops.") if name[0] != "_"} == public(ops)
    assert completed("minidl.optim.A") == {"Adam", "AdamW"}
    call, = {each.to_string() for each in jedi.Interpreter("minidl.ops.conv2d(", [{"minidl": minidl}]).get_signatures()}
    assert call.startswith("conv2d(x: ")


def test_a_signature_is_the_users() -> None:
    for name in public(ops) - TABLES:
        assert next(iter(inspect.signature(getattr(ops, name)).parameters)) != "k", name

    def step(x: Tensor, rate: float = 0.1) -> Tensor:
        return x * rate
    assert inspect.signature(minidl.compile(step)) == inspect.signature(step)


def test_few_values_may_be_anything() -> None:
    """Options and arguments that only a user's own function knows, and values of any kind that are computed with."""
    rooms = (SCRIPT.parents[2] / room for room in ("minidl", "zoo"))
    texts = [path.read_text(encoding="utf-8") for room in rooms for path in room.rglob("*.py")]
    assert len(texts) > 200
    assert sum(len(re.findall(r": Any\b", text)) for text in texts) <= 60


# ---------------------------------------------------------------- arguments of each type that a signature promises
FLOATS = np.arange(1.0, 17.0, dtype=np.float32).reshape(1, 4, 2, 2) / 16
ROWS, VALUES, INTEGERS = FLOATS.reshape(4, 4), FLOATS[0, :, 0, 0], np.array([2, 0, 1, 3])
PICTURES = (ROWS.reshape(4, 1, 2, 2) * 255).astype(np.uint8)
# A value for each parameter of that name, where no function has one of its own. Arrays are given as what the parameter
# promises to take; a list of arrays stands for several Tensors.
ARGUMENTS: dict[str, Any] = {
    "x": ROWS, "y": ROWS.T.copy(), "p": 2.0, "target": ROWS.T.copy(), "tensors": [ROWS, ROWS.T.copy()],
    "params": [ROWS, VALUES], "inputs": [ROWS.astype(np.float64)], "tensor": ROWS, "t": ROWS, "array": ROWS,
    "logits": ROWS, "log_p": ROWS, "labels": INTEGERS, "images": FLOATS, "rows": ROWS, "weight": VALUES, "bias": VALUES,
    "w": ROWS, "b": VALUES, "running_mean": VALUES, "running_var": VALUES, "index": INTEGERS.reshape(4, 1),
    "ids": INTEGERS, "condition": ROWS > 0.5, "pos_weight": VALUES, "indices": INTEGERS, "codes": ROWS,
    "axis": 1, "size": 2, "value": 0.5, "max_norm": 1.0, "lr": 0.1, "classes": 4, "name": "mine", "split": "train",
    "source": ROWS, "j": 1.0, "batch_size": 2, "shape": (2, 8)}
IMAGES, NET = FLOATS.reshape(4, 1, 2, 2), nn.Sequential(nn.Flatten(), nn.Linear(4, 4))
FILTERS, ONE = np.ones((4, 4, 2, 2), np.float32), np.ones((1, 4, 4), np.float32)
# A function's own values, by parameter: its positional-only shapes and options.
OWN: dict[str, dict[str, Any]] = {
    "adaptive_avg_pool2d": {"x": FLOATS, "output_size": 1}, "avg_pool2d": {"x": FLOATS}, "max_pool2d": {"x": FLOATS},
    "conv1d": {"x": ONE, "w": np.ones((4, 4, 2), np.float32)}, "conv2d": {"x": FLOATS, "w": FILTERS},
    "conv3d": {"x": FLOATS[None], "w": np.ones((4, 1, 2, 2, 2), np.float32)},
    "conv_transpose2d": {"x": FLOATS, "w": FILTERS}, "local_response_norm": {"x": FLOATS},
    "pixel_shuffle": {"x": FLOATS, "upscale_factor": 2}, "interpolate": {"x": FLOATS, "size": 4},
    "einsum": {"equation": "ij,jk->ik"}, "expand": {"x": VALUES, "shape": (3, 4)}, "outer": {"x": VALUES, "y": VALUES},
    "group_norm": {"num_groups": 2}, "layer_norm": {"normalized_shape": 4}, "pad": {"widths": (1, 2)},
    "scaled_dot_product_attention": {"query": ROWS, "key": ROWS, "value": ROWS, "attn_mask": ROWS > 0.5},
    "recurrence": {"gx": ROWS[:, None], "w": ROWS[:, :1], "state": ROWS[:2, None, :1], "kind": "lstm"},
    "dropout2d": {"x": FLOATS, "key": (1, 2)},
    "split": {"sizes": np.array([1, 3])}, "dropout": {"key": (1, 2)}, "getitem": {"index": 1}, "stack": {"axis": 0},
    "concatenate": {"axis": 0}, "squeeze": {"axis": None}, "gradcheck": {"fn": lambda x: (x * x).sum()},
    "gradgradcheck": {"fn": lambda x: (x * x).sum()},
    "DataLoader": {"dataset": data.Dataset("mine", "train", PICTURES, INTEGERS), "mean": np.array([0.5]),
                   "std": np.array([0.25])},
    "Dataset": {"images": PICTURES}, "random_split": {"sizes": np.array([3, 1])},
    "mixup": {"images": IMAGES, "key": (1, 2)}, "dirac_": {"tensor": FILTERS}, "Muon": {"params": [ROWS]},
    "predict": {"model": nn.Identity(), "batches": ROWS},
    "clip_grad_norm": {"params": [ROWS]}, "clip_grad_value": {"params": [ROWS]},
    "Optimizer": {"common": {"lr": 0.1}}, "clip": {"low": 0.5}, "summary": {"net": nn.Identity(), "inputs": [ROWS[:1]]},
    "Rates": {"table": ROWS, "position": INTEGERS[:1]}, "average": {"share": np.array(0.5)},
    "check_gradients": {"net": NET, "inputs": IMAGES, "targets": INTEGERS},
    "train_step": {"model": NET, "optimizer": optim.SGD(NET.parameters(), 0.0), "images": IMAGES}}
# What is not called here.
LEFT_OUT = {"CompileError": "of a text", "OtherRank": "of a text", "activation": "its grad is code",
            "grad": "its outputs are on a tape", "filters": "draws a picture", "confusion": "draws a picture"}
def trained(array: np.ndarray) -> Tensor:
    """A parameter with a gradient."""
    t = Tensor(array, requires_grad=True)
    t.grad = Tensor(np.ones_like(array))
    return t


KINDS: dict[str, Callable[[Any], Any]] = {           # what an annotation says: what an array is given as
    "Tensor": lambda given: trained(*given) if isinstance(given, list) else Tensor(given),
    "np.ndarray": np.asarray, "Array": np.asarray, "Number": Tensor, "list[int]": np.ndarray.tolist,
    "Sequence[int]": np.ndarray.tolist, "Sequence[float]": list, "Sequence[Sequence[float]]": np.ndarray.tolist,
    "Iterable[Tensor]": lambda arrays: map(trained, arrays),
    "Iterable[Any]": lambda arrays: [trained(each) for each in arrays],
    "Sequence[Tensor]": lambda arrays: tuple(Tensor(each, requires_grad=each.dtype == float) for each in arrays),
    "list[Tensor]": lambda arrays: [Tensor(each) for each in arrays],
    "tuple[Tensor, ...]": lambda arrays: tuple(Tensor(each) for each in arrays)}


def promises() -> dict[str, tuple[Callable[..., Any], str, str]]:
    """Functions of Tensors and arrays, by parameter, by each type that it promises to take."""
    found = {}
    for module in (minidl, data, nn, nn.init, optim, ops, training, distributed, plot):
        for name in sorted(public(module) - TABLES):
            function = getattr(module, name)
            if isinstance(function, GenericAlias) or not isinstance(function, (FunctionType, type)) or name in LEFT_OUT:
                continue
            for parameter in inspect.signature(function).parameters.values():
                for kind in kinds_of(parameter):
                    found[f"{module.__name__}.{name} {parameter.name}: {kind}"] = function, parameter.name, kind
    return found


def kinds_of(parameter: inspect.Parameter) -> list[str]:
    words = getattr(parameter.annotation, "__forward_arg__", str(parameter.annotation)).split(" | ")
    return [word for word in words if word in KINDS]


def called(function: Callable[..., Any], chosen: str, kind: str) -> Any:
    """The function's result, of which one argument is given in one way, and the others in their first."""
    minidl.manual_seed(1)
    given: list[Any] = []
    options: dict[str, Any] = {}
    own = OWN.get(function.__name__, {})
    values = {**ARGUMENTS, **own}
    copied: dict[int, Any] = {}            # a net's optimizer is that of its copy
    for p in inspect.signature(function).parameters.values():
        kinds = kinds_of(p)
        if p.kind is p.VAR_KEYWORD or (p.default is not p.empty and not kinds and p.name not in own):
            continue
        assert p.name in values, f"ARGUMENTS or OWN lacks {p.name}"
        value = copy.deepcopy(values[p.name], copied)
        if p.kind is p.VAR_POSITIONAL:
            given += [KINDS[kind if p.name == chosen else kinds[0]](each) for each in value]
            continue
        if kinds:
            value = KINDS[kind if p.name == chosen else kinds[0]](value)
        if p.kind is p.KEYWORD_ONLY:
            options[p.name] = value
        else:
            given.append(value)
    return function(*given, **options)


def plain(result: Any) -> Any:
    """As numbers, to compare."""
    if isinstance(result, (Tensor, np.ndarray)):
        return np.asarray(result).tolist()
    if isinstance(result, (tuple, list)):
        return [plain(each) for each in result]
    if isinstance(result, nn.Module):
        return {name: plain(t) for name, t in result.named_tensors()}
    return [plain(batch) for batch in result] if isinstance(result, data.DataLoader) else type(result)


PROMISES = promises()


@pytest.mark.parametrize("case", PROMISES)
def test_a_function_takes_what_its_signature_promises(case: str) -> None:
    """And answers the same, whichever of the types it is given."""
    function, name, kind = PROMISES[case]
    first = kinds_of(inspect.signature(function).parameters[name])[0]
    assert plain(called(function, name, kind)) == plain(called(function, name, first))
