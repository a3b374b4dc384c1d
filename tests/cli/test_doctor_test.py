"""`minidl doctor --test`: each part passes here, a fault that is planted in it is a line that FAILS, and what a machine
lacks is skipped."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from checks.compiler import needs_compiler

from minidl import optim
from minidl.compiler.replay import ByCalls
from minidl.core import device
from minidl.ops import cpu
from minidl.ops.common import sources
from minidl.tools import cli
from minidl.tools.cli import selftest

pytestmark = pytest.mark.usefixtures("elsewhere")

ON_CPU = [name for name in selftest.PARTS if name not in ("emulated kernel", "GPU")]
CURE = "        -> minidl doctor lists what is missing; minidl doctor --test --debug shows the traceback\n"


@pytest.fixture
def tested(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """tested(*names): the exit status and the output of `minidl doctor --test` with these parts alone."""
    def run(*names: str) -> tuple[int, str]:
        monkeypatch.setattr(selftest, "PARTS", {name: selftest.PARTS[name] for name in names})
        status = cli.main(["doctor", "--test"])
        captured = capsys.readouterr()
        assert captured.err == ""
        assert "Traceback" not in captured.out
        return status, captured.out
    return run


def wrong(function: Callable[..., Any]) -> Callable[..., Any]:
    """A primitive with results that are off by a hundredth."""
    return lambda *arguments, **options: function(*arguments, **options) * np.float32(1.01)


# ---------------------------------------------------------------- what works
@pytest.mark.parametrize("part", ON_CPU)
def test_each_part_on_the_cpu_passes(part: str, tested: Callable[..., tuple[int, str]]) -> None:
    status, out = tested(part)
    title, line, last = out.splitlines()
    assert status == 0
    assert (title, last) == ("tests", f"works here: {part}")
    assert re.match(rf"  ok    {part} +\d+\.\d\d s  \w", line)


def test_the_compiled_training_is_replayed(tested: Callable[..., tuple[int, str]]) -> None:
    assert " 8 steps, of which 6 are replayed, " in tested("compiled training")[1]


def test_only_the_tests_run(tested: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minidl.tools.cli.doctor.LOOKS", None)
    assert tested("eager training")[0] == 0


def test_help_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["doctor", "--help"])
    assert "run small tests instead" in " ".join(capsys.readouterr().out.split())


@needs_compiler
@pytest.mark.slow
def test_the_emulated_kernel_passes_and_a_wrong_one_fails(tested: Callable[..., tuple[int, str]], tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    assert tested("emulated kernel")[0] == 0
    shutil.copytree(sources.FOLDER / "include", tmp_path / "include")
    file = tmp_path / selftest.KERNEL
    file.parent.mkdir(parents=True)
    text = (sources.FOLDER / selftest.KERNEL).read_text(encoding="utf-8")
    monkeypatch.setattr(sources, "FOLDER", tmp_path)
    for words, fault, told in (("b ? sum + b[m] : sum", "sum", "conv2d_direct_y's y is "),
                               ("y[element] =", "y[element + g.oh] =", "outside of all arrays")):
        assert words in text
        file.write_text(text.replace(words, fault), encoding="utf-8")
        status, out = tested("emulated kernel")
        assert status == 1
        assert "  FAILS emulated kernel " in out
        assert told in out
        assert out.endswith(f"{CURE}fails here: emulated kernel\n")


@pytest.mark.gpu
def test_the_gpu_passes(tested: Callable[..., tuple[int, str]]) -> None:
    assert tested("GPU")[0] == 0


# ---------------------------------------------------------------- planted faults
def wrong_gradient(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cpu, "conv2d_grad_w", wrong(cpu.conv2d_grad_w))


def wrong_loss(patch: pytest.MonkeyPatch) -> None:
    plain = cpu.cross_entropy

    def with_wrong_loss(*arguments: Any) -> tuple[np.ndarray, np.ndarray]:
        loss, log_p = plain(*arguments)
        return loss * np.float32(1.01), log_p
    patch.setattr(cpu, "cross_entropy", with_wrong_loss)


def wrong_update(patch: pytest.MonkeyPatch) -> None:
    sgd = cpu.sgd
    patch.setattr(cpu, "sgd", lambda params, grads, kept, lr, *more: sgd(params, grads, kept, 1.01 * lr, *more))


def wrong_momentum(patch: pytest.MonkeyPatch) -> None:
    sgd = cpu.sgd
    patch.setattr(cpu, "sgd", lambda params, grads, kept, lr, _, *more: sgd(params, grads, kept, lr, -1.0, *more))


def wrong_fused_call(patch: pytest.MonkeyPatch) -> None:
    fused = cpu.cross_entropy_with_grad
    patch.setattr(cpu, "cross_entropy_with_grad", lambda *arguments: tuple(
        np.nextafter(array, np.float32(9)) for array in fused(*arguments)))      # by one bit


def replay_that_raises(patch: pytest.MonkeyPatch) -> None:
    def raising(*_: Any) -> Any:
        raise RuntimeError("this machine\nis odd")
    patch.setattr(ByCalls, "run", raising)


def lost_momentum(patch: pytest.MonkeyPatch) -> None:
    load = optim.SGD.load_state_dict

    def without_velocities(self: optim.SGD, state: dict[str, Any]) -> None:
        groups = [{**group, "velocities": [None] * len(group["velocities"])} for group in state["groups"]]
        load(self, {**state, "groups": groups})
    patch.setattr(optim.SGD, "load_state_dict", without_velocities)


def unread_weights(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(selftest, "load", lambda model, path: model)


# planted fault -> the part that it is in, and what is said of it
FAULTS = {
    wrong_gradient: ("gradients", "GradcheckError: gradcheck: input 1, element (0, 0, 0, 0)"),
    wrong_loss: ("eager training", "; 1 of 1 elements are off by more than 1e-05"),
    wrong_update: ("eager training", "4.weight of the first step is "),
    wrong_momentum: ("eager training", "but it should be less than half by then"),
    wrong_fused_call: ("compiled training", "the compiled step gives another loss: "),
    replay_that_raises: ("compiled training", "RuntimeError: this machine is odd"),
    lost_momentum: ("resumed training", "the resumed training gives another loss: 1 of 2 elements differ, by up to "),
    unread_weights: ("resumed training", "minidl.load of minidl.save gives another 0.weight: ")}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_fails(plant: Callable[[pytest.MonkeyPatch], None], tested: Callable[..., tuple[int, str]],
                               monkeypatch: pytest.MonkeyPatch) -> None:
    part, told = FAULTS[plant]
    plant(monkeypatch)
    status, out = tested(part)
    assert status == 1
    assert f"  FAILS {part} " in out
    assert told in out
    assert out.endswith(f"{CURE}fails here: {part}\n")


def test_a_fault_leaves_the_other_parts(tested: Callable[..., tuple[int, str]], without: Callable[..., None]) -> None:
    without("h5py")
    status, out = tested("eager training", "resumed training", "compiled training")
    assert status == 1
    assert "FAILS resumed training" in out
    assert "Error: " in out
    assert out.endswith("fails here: resumed training; works here: eager training, compiled training\n")


def test_debug_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_gradient(monkeypatch)
    with pytest.raises(ValueError, match="gradcheck: input 1"):
        cli.main(["doctor", "--test", "--debug"])


# ---------------------------------------------------------------- what is skipped
@pytest.mark.parametrize(("platform", "lack"), [
    ("linux", "no C++ compiler, which minidl emulate needs\n        -> apt install g++, or your system's command"),
    ("darwin", "minidl emulate needs Linux\n")])
def test_without_a_compiler_nothing_is_emulated(platform: str, lack: str, tested: Callable[..., tuple[int, str]],
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr("minidl.tools.cli.doctor.sys", SimpleNamespace(platform=platform))
    status, out = tested("emulated kernel")
    assert status == 0
    assert "  lacks emulated kernel " in out
    assert f" s  skipped: {lack}" in out
    assert out.endswith("skipped: emulated kernel\n")


def test_without_a_gpu_its_part_is_skipped(tested: Callable[..., tuple[int, str]],
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_missing", lambda: "there is no NVIDIA GPU here; use a machine that has one")
    status, out = tested("eager training", "GPU")
    assert status == 0
    assert "s  skipped: there is no NVIDIA GPU here\n        -> use a machine that has one\n" in out
    assert out.endswith("works here: eager training; skipped: GPU\n")
