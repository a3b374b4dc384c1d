"""The benchmark scripts run on the CPU, count what they say, and name what is missing in one line."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import zoo
from minidl import data, device

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import cold_start  # noqa: E402  # the folder first
import conv_report  # noqa: E402
import machine  # noqa: E402
import time_to_accuracy  # noqa: E402
import train_step  # noqa: E402


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch, fp32: None) -> None:
    """The scripts' number of threads is theirs alone."""
    for library in ("MINIDL", "OPENBLAS", "OMP", "MKL"):
        monkeypatch.setenv(f"{library}_NUM_THREADS", "1")


def table(text: str) -> list[dict[str, str]]:
    """The rows of a text's tables, by column."""
    rows: list[dict[str, str]] = []
    head: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells or not head:
            head = cells
        elif not cells[0].startswith("--"):
            rows.append(dict(zip(head, cells, strict=True)))
    return rows


def printed(main: Any, capsys: pytest.CaptureFixture[str], *flags: str) -> list[dict[str, str]]:
    main([*flags, "--threads", "1"])
    return table(capsys.readouterr().out)


# ---------------------------------------------------------------- a training step
STEP = ("--models", "lenet5", "--batch-size", "2", "--steps", "1", "--repeats", "1", "--warmup", "1")


def test_train_step_measures_each_peer(capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed(train_step.main, capsys, *STEP, "--peers", "minidl-compiled", "--precision", "fp32,3xtf32")
    assert [(row["peer"], row["precision"]) for row in rows] == [
        ("minidl", "fp32"), ("minidl-compiled", "fp32"), ("minidl", "3xtf32"), ("minidl-compiled", "3xtf32")]
    assert all(float(row["median ms/step"]) > 0 and row["batch"] == "2" for row in rows)
    assert "share of limit" not in rows[0]


def test_a_row_says_which_precision_its_peer_used(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    rows = printed(train_step.main, capsys, *STEP, "--peers", "torch", "--precision", "tf32,3xtf32")
    assert [(row["peer"], row["precision"]) for row in rows] == [
        ("minidl", "tf32"), ("torch", "tf32"), ("minidl", "3xtf32"), ("torch", "fp32")]
    assert all(float(row["speed / torch"]) > 0 for row in rows)
    assert not torch.backends.cuda.matmul.allow_tf32           # the last precision's setting
    assert device.precision() == "3xtf32"


def test_multiply_adds_of_forward_and_backward() -> None:
    c1, c3, c5, f6, output = 6 * 25 * 28**2, 16 * 6 * 25 * 10**2, 120 * 16 * 25, 84 * 120, 10 * 84
    assert train_step.multiply_adds("lenet5", 128) == 128 * (2 * c1 + 3 * (c3 + c5 + f6 + output))
    assert train_step.multiply_adds("krizhevsky2009", 1) == 2 * 64 * 3 * 64 * 32**2 + 3 * 10 * 64 * 8**2


def test_share_of_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    work = 2 * train_step.multiply_adds("lenet5", 8)
    monkeypatch.setattr(machine, "peaks_of", lambda where: {"fp32": work * 10.0, "tf32": work * 60.0})
    shares = [train_step.share("lenet5", 8, precision, 0.2, "cuda") for precision in ("fp32", "tf32", "3xtf32")]
    assert shares == ["50.0 %", "8.3 %", "25.0 %"]
    monkeypatch.setattr(machine, "peaks_of", lambda where: {"fp32": None, "tf32": None})
    assert train_step.share("lenet5", 8, "tf32", 0.2, "cuda") == ""


@pytest.mark.parametrize(("multiprocessors", "kilohertz", "capability", "fp32", "tf32"), [
    (132, 1_980_000, "90", 66.9e12, 535.3e12), (108, 1_410_000, "80", 19.5e12, 155.9e12),
    (128, 2_520_000, "89", 82.6e12, None)])
def test_peaks_of_known_devices(multiprocessors: int, kilohertz: int, capability: str, fp32: float,
                                tf32: float | None) -> None:
    found = machine.peaks(multiprocessors, kilohertz, capability)
    assert found == {"fp32": pytest.approx(fp32, rel=2e-3), "tf32": tf32 and pytest.approx(tf32, rel=2e-3)}


# ---------------------------------------------------------------- memory
def test_most_memory_held_at_once() -> None:
    pytest.importorskip("cupy")
    hook = machine.allocations()
    hook.free_postprocess(pmem_id=7, mem_size=4096)            # it was there before
    hook.malloc_postprocess(pmem_id=1, mem_size=512, size=100)
    hook.malloc_postprocess(pmem_id=2, mem_size=1024, size=1000)
    hook.free_postprocess(pmem_id=1, mem_size=512)
    hook.malloc_postprocess(pmem_id=3, mem_size=256, size=256)
    assert (hook.most, hook.now) == (1536, 1280)
    assert train_step.mebibytes(3 * 2**19) == "1.5"
    assert train_step.mebibytes(None) == ""


@pytest.mark.gpu
def test_memory_of_a_device() -> None:
    import cupy

    with machine.memory("minidl", "cuda") as held:
        for _ in range(3):
            cupy.zeros(2**20, np.uint8)                        # one at a time
    assert held.bytes == 2**20


# ---------------------------------------------------------------- what is missing
@pytest.mark.parametrize("script", ["train_step", "cold_start", "time_to_accuracy"])
def test_a_missing_peer_is_one_line(script: str) -> None:
    path = str(BENCHMARKS / f"{script}.py")
    code = ("import runpy, sys; sys.modules['torch'] = None; "         # as if it were not installed
            f"sys.path.insert(0, {str(BENCHMARKS)!r}); sys.argv = [{path!r}, '--peers', 'torch']; "
            f"runpy.run_path({path!r}, run_name='__main__')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (f"{script}.py: error: peer 'torch' needs the package torch, which is not installed; "
                           "pip install torch, or leave it out of --peers\n")


@pytest.mark.parametrize("main", [train_step.main, time_to_accuracy.main])
def test_a_graph_wants_a_gpu(main: Any) -> None:
    with pytest.raises(SystemExit, match="error: peer 'torch-graph' is a CUDA graph and needs --device cuda"):
        main(["--peers", "torch-graph"])


@pytest.mark.parametrize("main", [train_step.main, cold_start.main, time_to_accuracy.main])
@pytest.mark.skipif(not device._missing(), reason="there is a GPU here")
def test_a_missing_gpu_is_one_line(main: Any) -> None:
    with pytest.raises(SystemExit, match="error: device: 'cuda' was asked for but"):
        main(["--device", "cuda", "--peers", ""])


# ---------------------------------------------------------------- a cold start
def test_cold_start_clocks_whole_processes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed(cold_start.main, capsys, "--models", "lenet5", "--batch-size", "2", "--repeats", "1")
    assert [(row["net"], row["peer"], row["caches"]) for row in rows] == [
        ("lenet5", "minidl", "empty"), ("lenet5", "minidl", "filled")]
    assert all(0.01 < float(row["first step s"]) <= float(row["first replay s"]) for row in rows)


def test_caches_are_empty_and_then_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    begins: list[dict[str, str]] = []

    def run(command: Sequence[str], env: dict[str, str], **options: Any) -> SimpleNamespace:
        folders = {env[name] for name in cold_start.FOLDERS}
        assert len(folders) == 3
        state = {folder: "filled" if Path(folder).exists() else "empty" for folder in folders}
        for folder in folders:
            Path(folder).mkdir(exist_ok=True)
        begins.append(state)
        later = 3.0 if "filled" in state.values() else 5.0
        return SimpleNamespace(stdout=f"{time.time() + later} {time.time() + later + 1}\n")
    monkeypatch.setattr(subprocess, "run", run)
    args = argparse.Namespace(models=["lenet5"], batch_size=2, device="cpu", threads=1, repeats=2)
    taken = cold_start.take_turns(["minidl", "torch"], args)
    assert [set(state.values()) for state in begins] == 6 * [{"empty"}, {"filled"}]        # 3 rounds of 2 peers
    assert len(set(itertools.chain(*begins))) == 6 * 3                                     # each pair has its own
    assert {key: len(times) for key, times in taken.items()} == {
        ("lenet5", peer, caches): 2 for peer in ("minidl", "torch") for caches in cold_start.CACHES}
    assert cold_start.cells([t for t, _ in taken["lenet5", "minidl", "filled"]])[0] == "3.00"
    assert cold_start.cells([None, None]) == ["", ""]


# ---------------------------------------------------------------- time to an accuracy
QUICK = time_to_accuracy.Recipe("synthetic-digits", 0.5, batch=32, lr=0.1, warmup=0.25, momentum=0.9,
                                weight_decay=1e-3, epochs=2)


@pytest.fixture(scope="module")
def digits() -> time_to_accuracy.Data:
    train, test = (data.load("synthetic-digits", split).first(count) for split, count in (("train", 320), ("test", 50)))
    return time_to_accuracy.Data(train, test, *data.channel_statistics(train), 2)


def test_the_ladder_has_every_algorithm_and_knows_who_is_on_tensor_cores() -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")
    from test_cuda_conv import TENSOR_CORES

    from minidl.ops.cuda import conv

    assert sorted(conv_report.LADDER) == sorted(conv.ALGORITHMS)
    assert list(conv_report.ON_TENSOR_CORES) == TENSOR_CORES


def test_recipes_are_for_the_zoos_nets_and_their_data() -> None:
    assert {name: recipe.data for name, recipe in time_to_accuracy.RECIPES.items()} == {
        name: zoo.MODELS[name].recipe.data for name in ("lenet5", "krizhevsky2009")}


def test_a_plan_of_rates_and_looks() -> None:
    rates, points = time_to_accuracy.plan(QUICK, 330)          # 10 batches an epoch, and a rest
    assert points == [5, 10, 15, 20]
    assert rates == pytest.approx([0.1 * min((i + 1) / 5, (20 - i) / 15, 1) for i in range(20)])
    assert time_to_accuracy.plan(QUICK._replace(epochs=1.2), 330)[1] == [5, 10, 12]


class Scripted:
    """A peer whose accuracy is known beforehand and which takes long to find it."""

    def __init__(self, accuracies: Sequence[float]):
        self.accuracies, self.rates = iter(accuracies), []

    def train(self, rates: Sequence[float]) -> None:
        self.rates += rates
        time.sleep(0.01)

    def accuracy(self) -> float:
        time.sleep(0.2)
        return next(self.accuracies)


@pytest.mark.parametrize(("accuracies", "step", "reached"), [
    ([0.2, 0.9, 1.0], 4, True), ([0.2, 0.8999, 0.3], 6, False), ([0.95], 2, True)])
def test_the_first_look_at_the_mark_counts_and_looking_does_not(accuracies: list[float], step: int,
                                                                reached: bool) -> None:
    peer: Any = Scripted(accuracies)
    outcome = time_to_accuracy.reach(peer, [1.0, 2, 3, 4, 5, 6], [2, 4, 6], 0.9, "cpu")
    assert (outcome.step, outcome.accuracy) == (step, accuracies[step // 2 - 1])
    assert peer.rates == [1, 2, 3, 4, 5, 6][:step]
    assert (outcome.seconds is not None) is reached
    if outcome.seconds is not None:
        assert 0.01 * step / 2 <= outcome.seconds < 0.2


def test_means_are_of_the_seeds_that_got_there() -> None:
    found = [time_to_accuracy.Outcome(*of) for of in ((1.0, 10, 0.9), (None, 20, 0.8), (2.0, 20, 0.91))]
    assert time_to_accuracy.row("lenet5", "3xtf32", "torch", found) == (
        "| lenet5 | fp32 | torch | 2 of 3 | 1.500 | 0.500 | 1.000-2.000 | 15 | 87.00 % |")
    assert "| 0 of 1 |  |  |  |  | 80.00 % |" in time_to_accuracy.row("lenet5", "fp32", "minidl", found[1:2])


def trained(peer: Any, seed: int, rates: Sequence[float]) -> dict[str, np.ndarray]:
    peer.start(time_to_accuracy.first_parameters("lenet5", seed), seed)
    peer.train(rates)
    return {name: value.copy() if isinstance(value, np.ndarray) else value.cpu().numpy().copy()
            for name, value in peer.net.state_dict().items()}


@pytest.mark.parametrize(("kind", "where"), [
    ("minidl", "cpu"), ("torch", "cpu"), pytest.param("minidl", "cuda", marks=pytest.mark.gpu)])
def test_a_start_forgets_all_that_was(kind: str, where: str, digits: time_to_accuracy.Data) -> None:
    pytest.importorskip(kind)
    peer = time_to_accuracy.PEERS[kind]("lenet5", QUICK, digits, where)
    rates = [0.1, 0.2, 0.1] * 4                                # beyond an epoch
    trained(peer, 0, rates)                                    # a step is recorded uncompiled, with its own roundings
    first, other, again = (trained(peer, seed, rates) for seed in (1, 2, 1))
    for name, values in first.items():
        np.testing.assert_array_equal(again[name], values)
        assert not np.array_equal(other[name], values)


@pytest.mark.parametrize(("kind", "where"), [
    ("torch", "cpu"), pytest.param("torch-graph", "cuda", marks=pytest.mark.gpu)])
def test_both_peers_take_the_same_steps(kind: str, where: str, digits: time_to_accuracy.Data) -> None:
    torch = pytest.importorskip("torch")
    train_step.set_precision("fp32", ["minidl", "torch"])
    ours, theirs = (time_to_accuracy.PEERS[peer]("lenet5", QUICK, digits, where) for peer in ("minidl", kind))
    rates = [0.05, 0.1, 0.1, 0.05]
    expected = trained(ours, 3, rates)
    theirs.start(time_to_accuracy.first_parameters("lenet5", 3), 3)
    theirs.order = iter(torch.tensor(ours.loader.order(0), device=where).split(QUICK.batch))     # in place of its own
    theirs.train(rates)
    for name, values in theirs.net.state_dict().items():
        np.testing.assert_allclose(values.cpu().numpy(), expected[name], rtol=1e-4, atol=1e-5)
    assert theirs.accuracy() == pytest.approx(ours.accuracy(), abs=0.021)                  # an image of 50


def test_torchs_order_takes_each_image_once_an_epoch(digits: time_to_accuracy.Data) -> None:
    torch = pytest.importorskip("torch")
    peer = time_to_accuracy.PEERS["torch"]("lenet5", QUICK, digits, "cpu")
    peer.start(time_to_accuracy.first_parameters("lenet5", 0), 0)
    first, second = (torch.cat(list(itertools.islice(peer.order, 10))) for _ in range(2))
    assert first.sort().values.tolist() == second.sort().values.tolist() == list(range(320))
    assert first.tolist() != second.tolist()


def test_parameters_that_have_left_the_numbers_got_nothing_right(digits: time_to_accuracy.Data) -> None:
    peer = time_to_accuracy.PEERS["minidl"]("lenet5", QUICK, digits, "cpu")
    peer.start({name: values * np.nan for name, values in
                time_to_accuracy.first_parameters("lenet5", 0).items()}, 0)
    assert peer.accuracy() == 0.0


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(time_to_accuracy.RECIPES, "lenet5", QUICK._replace(batch=128, epochs=1))


def test_time_to_accuracy_reports_each_peer(quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    peers = ["minidl", *(["torch"] if importlib.util.find_spec("torch") else [])]
    rows = printed(time_to_accuracy.main, capsys, "--models", "lenet5", "--seeds", "2", "--peers",
                   ",".join(peers[1:]))
    assert [(row["net"], row["peer"], row["reached"]) for row in rows] == [
        ("lenet5", peer, "2 of 2") for peer in peers]
    assert all(float(row["mean s"]) > 0 for row in rows)


def test_the_documents_state_the_recipes() -> None:
    documents = (BENCHMARKS.parent / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    rows = {row["model"]: row for row in table(documents) if "highest rate" in row}
    for model, recipe in time_to_accuracy.RECIPES.items():
        row, images = rows[model], {"mnist": 60_000, "cifar10": 50_000}[recipe.data]
        rates, _ = time_to_accuracy.plan(recipe, images)
        assert [float(row[column]) for column in ("batch", "highest rate", "Nesterov momentum", "weight decay",
                                                  "epochs", "steps")] == [
            recipe.batch, recipe.lr, recipe.momentum, recipe.weight_decay, recipe.epochs, len(rates)]
        assert row["rises over"] == f"{100 * recipe.warmup:g} %"
