"""The benchmark scripts run on the CPU, count what they say, and name what is missing in one line."""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from checks.compiler import needs_compiler
from tiers import tiered

import minidl
from minidl import data, nn, ops, optim
from minidl.core import device
from minidl.lab import profile
from minidl.lab.gpus import held, occupancy

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import cliff_cases  # noqa: E402
import cliffs  # noqa: E402
import cold_start  # noqa: E402
import conv  # noqa: E402
import conv_report  # noqa: E402
import fft  # noqa: E402
import ladder  # noqa: E402
import layouts  # noqa: E402
import machine  # noqa: E402
import many_nets  # noqa: E402
import overhead  # noqa: E402
import report2009  # noqa: E402
import results  # noqa: E402
import speed_run  # noqa: E402
import tiles  # noqa: E402
import time_to_accuracy  # noqa: E402
import train_step  # noqa: E402
import untuned  # noqa: E402


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


def test_each_script_says_how_it_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    """All can be imported without a GPU and without their peers."""
    scripts = sorted(path.stem for path in BENCHMARKS.glob("*.py") if "def main(" in path.read_text(encoding="utf-8"))
    for script in scripts:
        with pytest.raises(SystemExit) as ended:
            importlib.import_module(script).main(["--help"])
        assert (ended.value.code, capsys.readouterr().out[:6]) == (0, "usage:"), script
    assert len(scripts) > 10


# ---------------------------------------------------------------- a training step
STEP = ("--models", "lenet5", "--batch-size", "2", "--steps", "1", "--repeats", "1", "--warmup", "1")


def test_train_step_measures_each_peer(capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed(train_step.main, capsys, *STEP, "--peers", "minidl-compiled", "--precision", "fp32,3xtf32")
    assert [(row["peer"], row["precision"]) for row in rows] == [
        ("minidl", "fp32"), ("minidl-compiled", "fp32"), ("minidl", "3xtf32"), ("minidl-compiled", "3xtf32")]
    assert all(float(row["ms per step"]) > 0 and row["batch"] == "2" for row in rows)
    assert "share of limit" not in rows[0]


@pytest.mark.torch
def test_a_row_says_which_precision_its_peer_used(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    rows = printed(train_step.main, capsys, *STEP, "--peers", "torch", "--precision", "tf32,3xtf32")
    assert [(row["peer"], row["precision"]) for row in rows] == [
        ("minidl", "tf32"), ("torch", "tf32"), ("minidl", "3xtf32"), ("torch", "fp32")]
    assert all(float(row["speed / torch"]) > 0 for row in rows)
    assert not torch.backends.cuda.matmul.allow_tf32           # the last precision's setting
    assert device.precision() == "3xtf32"


@pytest.mark.torch
def test_many_nets_beside_pytorchs_vmap(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    rows = printed(many_nets.main, capsys, "--nets", "1,3", "--batch-size", "2", "--steps", "3", "--repeats", "1",
                   "--peers", "torch-vmap")
    assert [(row["peer"], row["nets"]) for row in rows] == [
        ("minidl", "1"), ("torch-vmap", "1"), ("minidl", "3"), ("torch-vmap", "3")]
    assert all(row["us per step of one net"][0] in "123456789" for row in rows)
    assert not device.leaves_room()


@pytest.mark.torch
def test_a_step_of_pytorchs_vmap_is_one_of_each_net() -> None:
    """Of nets that all begin alike, those that take the same batch stay alike, and as a net that is trained alone."""
    torch = pytest.importorskip("torch")
    import torch_nets

    batches = train_step.random_batches("lenet5", 2)
    begin, trained = torch_nets.build("lenet5"), torch_nets.build("lenet5")
    trained.load_state_dict(begin.state_dict())
    sgd = torch.optim.SGD(trained.parameters(), lr=train_step.LR, momentum=train_step.MOMENTUM)
    for x, labels in batches[:2]:
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(trained(torch.tensor(x)), torch.tensor(labels)).backward()
        sgd.step()
    params, step = many_nets.torch_step(begin, [begin] * 5, batches, "cpu")
    step()
    step()
    for name, p in trained.named_parameters():
        assert torch.allclose(params[name][0], p, atol=1e-6)
        assert torch.equal(params[name][0], params[name][4])   # of four batches
        assert not torch.equal(params[name][0], params[name][1])


def test_multiply_adds_of_forward_and_backward() -> None:
    c1, c3, c5, f6, output = 6 * 25 * 28**2, 16 * 6 * 25 * 10**2, 120 * 16 * 25, 84 * 120, 10 * 84
    assert train_step.multiply_adds("lenet5", 128) == 128 * (2 * c1 + 3 * (c3 + c5 + f6 + output))
    assert train_step.multiply_adds("krizhevsky2009", 1) == 2 * 64 * 3 * 64 * 32**2 + 3 * 10 * 64 * 8**2


@pytest.mark.parametrize(("precision", "moved", "share"), [
    ("fp32", 0, 0.5), ("tf32", 0, 1 / 12), ("3xtf32", 0, 0.25), ("tf32", 8.0, 0.4), ("bf16", 8.0, None)])
def test_share_of_limit(precision: str, moved: float, share: float | None) -> None:
    limits = {"fp32": 10.0, "tf32": 60.0, "bf16": None, "bytes": 100.0}
    assert machine.share(limits, precision, 1, moved, 0.2) == (share and pytest.approx(share))
    assert machine.share(None, precision, 1, moved, 0.2) is None


def test_one_limit_for_every_script() -> None:
    h200 = machine.published("NVIDIA H200")
    assert h200["fp32"] == pytest.approx(machine.peaks(132, 1_980_000, "90")["fp32"], rel=1e-3)
    assert h200["tf32"] == pytest.approx(machine.peaks(132, 1_830_000, "90")["tf32"], rel=1e-3)    # at the lower clock


def step_row(**of: Any) -> results.Result:
    return {"net": "lenet5", "batch": 128, "beside": "fp32", "peer": "minidl", "precision": "fp32", "flop": 1e9,
            "median_s": 2e-4, "least_s": 1e-4, "largest_s": 3e-4, "peak_mib": None, **of}


def step_result(*rows: results.Result, **of: Any) -> results.Result:
    return {"limits": None, "method": {"warmup": 1, "steps": 3, "repeats": 9, "in_a_row": 20}, "rows": list(rows), **of}


def test_a_speed_is_the_ratio_of_the_two_medians() -> None:
    threefold = {"beside": "3xtf32", "precision": "3xtf32"}
    run = step_result(step_row(), step_row(peer="torch", median_s=3e-4, rounds_s=[9.0]), step_row(**threefold),
                      step_row(**threefold, peer="torch", median_s=5e-4))
    rows = table("\n".join(train_step.table([run])))
    assert [row["speed / torch"] for row in rows] == ["1.50", "1.00", "2.50", "1.00"]
    assert (rows[0]["ms per step"], rows[0]["medians of the rounds"]) == ("0.2", "0.1-0.3")
    assert train_step.speed(run, run["rows"][0], "jax") is None


@pytest.mark.parametrize(("multiprocessors", "kilohertz", "capability", "fp32", "tf32"), [
    (132, 1_980_000, "90", 66.9e12, 535.3e12), (108, 1_410_000, "80", 19.5e12, 155.9e12),
    (128, 2_520_000, "89", 82.6e12, None)])
def test_peaks_of_known_devices(multiprocessors: int, kilohertz: int, capability: str, fp32: float,
                                tf32: float | None) -> None:
    found = machine.peaks(multiprocessors, kilohertz, capability)
    assert found == {"fp32": pytest.approx(fp32, rel=2e-3), "tf32": tf32 and pytest.approx(tf32, rel=2e-3)}


# ---------------------------------------------------------------- where a step's time goes
PROFILE = ("--batch-size", "2", "--steps", "1", "--repeats", "2", "--warmup", "1")


@pytest.mark.parametrize("program", ["recorded", "compiled"])
@pytest.mark.parametrize("model", ["lenet5", "krizhevsky2009"])
def test_a_profile_has_each_call_of_the_program(model: str, program: str, capsys: pytest.CaptureFixture[str],
                                                tmp_path: Path) -> None:
    """The FLOP of its products are the net's multiply-adds, counted by another way."""
    kept = tmp_path / "profile.json"
    rows = printed(train_step.main, capsys, *PROFILE, "--models", model, "--profile", program, "--json", str(kept))
    kinds, calls = [row for row in rows if "kind" in row], [row for row in rows if "primitive" in row]
    assert sum(int(row["calls"]) for row in kinds) == len(calls)
    assert sum(float(row["share"].rstrip("%")) for row in calls) == pytest.approx(100, abs=0.05 * len(calls))
    us = [float(row["us"].replace(",", "")) for row in calls]
    assert us == sorted(us, reverse=True)
    products = sum(row["flop"] for row in json.loads(kept.read_text())["rows"]
                   if row["kind"] in ("convolution", "full connection") and not row["primitive"].endswith("_grad_b"))
    assert products == 2 * train_step.multiply_adds(model, 2)


def test_bytes_and_flop_of_calls() -> None:
    """By hand, of a small net."""
    net = nn.Linear(3, 5)
    sgd = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    @minidl.compile
    def step(x: Any) -> None:
        sgd.zero_grad()
        ops.relu(net(x)).reshape(10).sum().backward()
        sgd.step()
    for seed in (0, 1):
        step(minidl.Tensor(np.full((2, 3), seed, np.float32)))
    found = {call.name: (profile.moved(call) // 4, profile.flop(call)) for call in step.recorded.calls}
    assert {name: found[name] for name in ("linear", "linear_grad_w", "linear_grad_b", "relu", "reshape", "sgd")} == {
        "linear": (6 + 15 + 5 + 10, 60), "linear_grad_w": (10 + 6 + 15, 60), "linear_grad_b": (10 + 5, 10),
        "relu": (20, 10), "reshape": (0, 0), "sgd": (3 * 20 + 2 * 20, 2 * 20)}


@pytest.mark.parametrize(("function", "shapes", "products"), [
    (lambda x, y: x @ y, ((2, 3, 4), (4, 5)), {"matmul": 2 * 3 * 4 * 5, "matmul_grad_x": 2 * 3 * 4 * 5}),
    (lambda q, k: ops.scaled_dot_product_attention(q, k, k), ((2, 3, 8), (2, 5, 8)), {
        "attention": 2 * 2 * 3 * 5 * 8, "attention_grad": 5 * 2 * 3 * 5 * 8}),
    (lambda gx, w: ops.recurrence(gx, w, minidl.zeros(2, 2, 4), kind="lstm"), ((3, 2, 16), (16, 4)), {
        "recurrence": 3 * 2 * 16 * 4, "recurrence_grad": 3 * 2 * 16 * 4, "linear_grad_w": 3 * 2 * 16 * 4})])
def test_flop_of_products(function: Any, shapes: tuple[Any, ...], products: dict[str, int]) -> None:
    @minidl.compile
    def step(*xs: Any) -> None:
        (function(*xs) ** 2).sum().backward()
    for _ in range(2):
        step(*(minidl.Tensor(np.ones(shape, np.float32), requires_grad=True) for shape in shapes))
    found = {call.name: profile.flop(call) for call in step.recorded.calls}
    assert {name: found[name] for name in products} == {name: 2 * count for name, count in products.items()}


@pytest.mark.gpu
def test_a_profile_of_a_gpu_has_a_time_for_each_call(capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed(train_step.main, capsys, "--device", "cuda", "--models", "krizhevsky2009", "--profile", "recorded",
                   "--steps", "5", "--repeats", "2")
    us = [float(row["us"].replace(",", "")) for row in rows if "primitive" in row]
    print(f"{len(us)} calls, {sum(us):.0f} us")
    assert len(us) == 18
    assert min(us) > 0


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
    assert train_step.mebibytes(3 * 2**19) == 1.5
    assert train_step.mebibytes(None) is None


@pytest.mark.gpu
def test_memory_of_a_device() -> None:
    import cupy

    with machine.memory("minidl", "cuda") as held:
        for _ in range(3):
            cupy.zeros(2**20, np.uint8)                        # one at a time
    assert held.bytes == 2**20


# ---------------------------------------------------------------- a cold start
@pytest.mark.deep
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
        return SimpleNamespace(stdout=f"{100 + later} {100 + later + 1}\n")
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(cold_start, "time", SimpleNamespace(time=lambda: 100.0))
    args = argparse.Namespace(models=["lenet5"], batch_size=2, device="cpu", threads=1, repeats=2)
    taken = cold_start.take_turns(["minidl", "torch"], args)
    assert [set(state.values()) for state in begins] == 6 * [{"empty"}, {"filled"}]        # 3 rounds of 2 peers
    assert len(set(itertools.chain(*begins))) == 6 * 3                                     # each pair has its own
    assert {key: len(times) for key, times in taken.items()} == {
        ("lenet5", peer, caches): 2 for peer in ("minidl", "torch") for caches in cold_start.CACHES}
    first = cold_start.spread("first", [t for t, _ in taken["lenet5", "minidl", "filled"]])
    assert first["first_s"] == 3.0
    assert cold_start.spread("replay", [None, None]) == {}


# ---------------------------------------------------------------- convolutions


def conv_row(**of: Any) -> results.Result:
    return {"label": "krizhevsky", "shape": [128, 3, 39, 39, 64, 8, 1, 0], "direction": "y", "algorithm": "direct",
            "precision": "fp32", "flop": 2e9, "bytes": 4e6, "us": 200.0, "graph": True, "sets": 1, "calls": 2,
            "repeats": 20, "workspace_mib": 0.0, "error": 1e-7, **of}


def test_tables_of_convolutions() -> None:
    slow = [{"label": "krizhevsky", "direction": "y", "algorithm": name, "ms": ms}
            for name, ms in (("direct", 5), ("gemm", 2))]
    run = {"limits": {"fp32": 50e12, "tf32": None, "bytes": 4e12}, "cpu": slow,
           "rows": [conv_row(), conv_row(algorithm="krizhevsky", us=100.0), conv_row(algorithm="cudnn", us=50.0),
                    conv_row(algorithm="gemm", us=400.0, eager="cuBLAS"),
                    {**conv_row(algorithm="wgmma", precision="tf32"), "us": None, "why": "it has no kernel for y"}]}
    best = table("\n".join(conv_report.best_table(run)))[0]
    assert (best["fp32: fastest us"], best["fp32: speed / cuDNN"]) == ("`krizhevsky` 100", "0.50")
    ladder = table("\n".join(conv_report.ladder_table(run)))
    assert [row["krizhevsky y us"] for row in ladder] == ["200", "100", "50", "400"]
    slower = table("\n".join(conv_report.slower_table(run)))
    assert [(row["step"], row["the step before"], row["times as long"]) for row in slower] == [
        ("`gemm`", "`krizhevsky`", "4.00")]
    core = conv_report.core_table(run)
    assert "| y | `krizhevsky` | 100 | 5 | 50 | 2 | 20 | 125 times |" in core
    assert len(core) == 4
    entries = list(conv_report.shape_tables(run))
    assert "| y | `direct` | fp32 | 200 | 10.00 | 20.0% | 0.0 | 1.0e-07 | 20 x 2, 1 sets |" in entries
    assert "| y | `gemm` | fp32 | 400 | 5.00 | 10.0% | 0.0 (cuBLAS) | 1.0e-07 (cuBLAS) | 20 x 2, 1 sets |" in entries
    assert "- `wgmma`: it has no kernel for y (y)" in entries


# ---------------------------------------------------------------- widths of tiles
def test_reuse_is_what_the_formula_says() -> None:
    tile = np.arange((8 + 2) ** 2).reshape(10, 10)             # K = 3
    reads = sum(tile[i:i + 3, j:j + 3].size for i in range(8) for j in range(8))
    assert tiles.reuse(8, 3) == pytest.approx(reads / tile.size)
    assert tiles.reuse(16, 1) == 1


def test_transforms_beside_products(monkeypatch: pytest.MonkeyPatch) -> None:
    case = conv.Case("5x5", 2, 3, 12, 12, 4, 5, 1, 2)
    rows = fft.measure([case], [], 1, rounds=2)["rows"]
    assert [(row["direction"], row["algorithm"]) for row in rows] == [
        (direction, name) for direction in ("y", "dx", "dw") for name in ("gemm", "fft")]
    assert all(row["us"] > 0 and row["difference"] < 1e-5 for row in rows)

    made = fft.calls
    monkeypatch.setattr(fft, "calls", lambda *of: {**made(*of), "fft": lambda: 1.1 * made(*of)["gemm"]()})
    with pytest.raises(ArithmeticError, match=r"5x5 y: 'fft' differs from 'gemm' by 1\.0e-01; correct it"):
        fft.measure([case], [], 1)


@pytest.mark.torch
def test_transforms_beside_pytorchs() -> None:
    pytest.importorskip("torch")
    case = conv.Case("5x5", 2, 3, 12, 12, 4, 5, 1, 2)
    for direction in conv_report.DIRECTIONS:
        run = fft.calls(case, direction, torch=True)
        np.testing.assert_allclose(run["torch"](), run["gemm"](), rtol=0, atol=1e-3)


# ---------------------------------------------------------------- the 2009 report
@pytest.mark.parametrize(("threads", "registers", "shared", "blocks", "limit"), [
    (256, 32, 0, 8, "warps"), (1024, 32, 0, 2, "warps"), (32, 16, 0, 32, "blocks"), (64, 8, 0, 32, "blocks"),
    (256, 33, 0, 6, "registers, in units of 8 per thread"), (256, 40, 0, 6, "registers"), (256, 64, 0, 4, "registers"),
    (256, 128, 0, 2, "registers"), (256, 255, 0, 1, "registers"), (640, 96, 0, 1, "registers"),
    (96, 168, 0, 4, "registers of a quarter, which holds 3 warps"), (32, 255, 0, 8, "registers"),
    (128, 16, 48 * 1024, 4, "shared memory, with 1 KB for the system"), (128, 16, 227 * 1024, 1, "shared memory"),
    (128, 16, 13 * 1024, 16, "warps and shared memory"), (256, 14, 3264, 8, "warps: the report's forward kernel"),
    (512, 16, 5856, 4, "warps: its gradient of the filters")])
def test_blocks_that_a_multiprocessor_holds(threads: int, registers: int, shared: int, blocks: int, limit: str) -> None:
    """As NVIDIA's occupancy calculator has it for compute capability 9.0; by hand."""
    found = held(90, threads, registers, shared)
    assert (min(found.values()), next(name for name in found if limit.startswith(name)) in
            [name for name, fit in found.items() if fit == blocks]) == (blocks, True)


@pytest.mark.parametrize(("threads", "blocks", "share"), [(256, 8, 1.0), (256, 6, 0.75), (640, 1, 0.3125)])
def test_occupancy(threads: int, blocks: int, share: float) -> None:
    assert occupancy(90, threads, blocks) == share


@pytest.mark.parametrize(("row", "moved", "us"), [
    ({"loads": 400, "stores": 0, "wavefronts": 0, "flop": 256}, 3200e6, 100.0),         # four sectors per clock
    ({"loads": 4, "stores": 0, "wavefronts": 70, "flop": 256}, 3200e6, 71.0),           # from the same memory
    ({"loads": 4, "stores": 0, "wavefronts": 1, "flop": 51200}, 3200e6, 200.0),
    ({"loads": 0, "stores": 1000, "wavefronts": 0, "flop": 0}, 3200e6, 250.0),
    ({"loads": 0, "stores": 1000, "wavefronts": 0, "flop": 0}, 32e6, 1000.0)])          # by what is written
def test_a_time_predicted_by_counts(row: dict[str, int], moved: float, us: float) -> None:
    """Of a multiprocessor of 1 MHz: 128 bytes of its cache and 256 FLOP per us."""
    for images in (1, 2):
        assert ladder.predicted({"images": images, **row}, {"fp32": 256e6, "bytes": moved}) == pytest.approx(
            us / images)


@pytest.mark.slow
@needs_compiler
def test_the_ladders_first_step_is_counted() -> None:
    """One image of 8x8, one filter of 3x3: 36 outputs of nine taps, each two loads, by two warps."""
    (row,) = ladder.count(conv.Case("small", 1, 1, 8, 8, 1, 3), ["direct"])
    assert (row["kernel"], row["stores"], row["wavefronts"], row["flop"]) == ("conv2d_direct_y", 5, 0, 2 * 36 * 9)
    assert row["loads"] >= 2 * 2 * 9       # requests of both warps: a weight each time, and pixels


@pytest.mark.gpu
def test_blocks_that_the_driver_says_a_multiprocessor_holds() -> None:
    import cupy
    from cupy.cuda import driver

    from minidl.ops.cuda import launch

    if launch.compute_capability() != 90:
        pytest.skip("this GPU's compute capability is not 9.0")
    of = report2009.Batch(*map(cupy.asarray, report2009.batch(4, 16)))
    for step in report2009.STEPS:
        call = functools.partial(report2009.by_kernel, step, of)
        handle, threads, dynamic = report2009.launched(call)[0]
        found = report2009.resources(call)
        assert (found["threads"], found["local_bytes"]) == (threads, 0)
        assert found["blocks"] == driver.occupancyMaxActiveBlocksPerMultiprocessor(handle, threads, dynamic)
    print(f"compared {len(report2009.STEPS)} kernels")


def test_the_reports_steps_on_a_cpu(capsys: pytest.CaptureFixture[str], tmp_path: Path,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain C, if it is there, agrees with NumPy, or this would end; and a line says what is lacking."""
    monkeypatch.setattr(report2009, "lacking", lambda: "it is not there")
    report2009.main(["--images", "2", "--filters", "3", "--json", str(tmp_path / "r.json")])
    out = capsys.readouterr().out
    assert out.startswith("report2009.py: only the CPU's columns, since there is no GPU: it is not there\n")
    rows = table(out)
    assert [(row["section"], row["time"], row["speed / NumPy"]) for row in rows] == [
        (section, "-", "-") for section in ("6.2", "6.3", "6.5", "6.6")]
    assert [row["the report: speed / CPU"] for row in rows] == ["125 times", "31 times", "58 times", "156 times"]
    kept = json.loads((tmp_path / "r.json").read_text())
    assert kept["method"] == {"images": 2, "filters": 3}
    assert len(kept["rows"]) == 4
    for row in kept["rows"]:
        assert row["numpy_s"] > 0
        assert ("c_s" in row) is (report2009.compiler() is not None)


@pytest.mark.skipif(report2009.compiler() is None, reason="there is no C compiler")
def test_plain_loops_are_the_formulas(tmp_path: Path) -> None:
    plain, of = report2009.loops(tmp_path), report2009.batch(3, 5)
    assert plain is not None
    for step in report2009.STEPS:
        expected = report2009.by_numpy(step, report2009.Batch(*(a.astype(float) for a in of)))
        np.testing.assert_allclose(plain(step, of), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_a_wrong_result_is_not_measured() -> None:
    with pytest.raises(ArithmeticError, match=r"averages by plain C differs from NumPy's by 2\.0e\+00 .*; correct it"):
        report2009.rows_of("averages", report2009.batch(1, 1),
                           lambda step, of: report2009.by_numpy(step, of) + 2, False)


@pytest.mark.deep
@needs_compiler
def test_the_reports_kernels_with_variants_and_without_loads(capsys: pytest.CaptureFixture[str],
                                                             monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All that a GPU would run but for its clock: the kernels are emulated."""
    pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")
    from minidl.lab.emulator import own

    timing = conv.Timing(50.0, 40.0, 60.0, True, 1, 2, 3)
    registers = {"CU_FUNC_ATTRIBUTE_NUM_REGS": 40, "CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES": 0,
                 "CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES": 16}
    driver = SimpleNamespace(funcGetAttribute=lambda attribute, handle: attribute, **registers)
    with own.Emulator(tmp_path).running():
        monkeypatch.setattr(own.cupy.cuda, "driver", driver)
        monkeypatch.setattr(own.cupy.cuda, "Device", lambda: SimpleNamespace(attributes={"L2CacheSize": 1}))
        monkeypatch.setattr(report2009, "lacking", lambda: None)
        monkeypatch.setattr(report2009, "measure_ours", lambda call, sets: (timing, 0, call(sets - 1)))
        monkeypatch.setattr(results, "about", lambda *of, **method: {"method": method})
        monkeypatch.setattr(results, "facts", lambda several: [])
        report2009.main(["--images", "1", "--filters", "3"])
    out = capsys.readouterr().out
    rows = table(out)
    times, needs, variants = rows[:4], rows[4:8], rows[8:]
    assert "The gradient is faster than the forward convolution by 0 %; the report's by 25 %." in out
    left_out = ("without the loads of images", "without the loads of filters", "without any loads")
    assert all(row["time"] == "50 us" and float(row["largest difference"]) < 1e-5 for row in times)
    assert [(row["threads"], row["registers"], row["shared bytes"], row["blocks per multiprocessor"], row["occupancy"])
            for row in needs] == [("256", "40", str(4 * (3 * 64 + 15 * 39) + 16), "6", "75%"),
                                  ("256", "40", str(4 * 4 * (256 + 8) + 16), "6", "75%"),
                                  ("256", "40", str(4 * 256 + 16), "6", "75%"),
                                  ("512", "40", str(4 * (11 * 40 + 16 * 64) + 16), "3", "75%")]
    assert [(row["step"], row["variant"]) for row in variants] == [
        *(("forward", name) for name in (
            "2 filters per thread", "4 filters per thread", "512 threads, half an image",
            "512 threads, the whole image", *left_out)),
        *(("gradient", name) for name in left_out)]
    assert [row["the report: faster by"] for row in variants] == 6 * [""] + ["2 %", "", "", "5 %"]
    assert {row["faster by"] for row in variants} == {"0 %"}
    assert report2009.faster({"us": 40.0}, {"us": 50.0}) == 25


# ---------------------------------------------------------------- layouts
SMALL = conv.Case("small", 16, 3, 8, 8, 16, 3, 1, 1)


@pytest.mark.slow
@needs_compiler
@pytest.mark.usefixtures("elsewhere")
def test_layouts_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """All orders ask for the same bytes, and store whole sectors; which sectors they touch is their own."""
    monkeypatch.setattr(results, "about", lambda *of, **method: {"command": "c"})
    result = layouts.count([SMALL], ["direct"], 16)
    rows = result["rows"]
    assert [row["layout"] for row in rows] == ["NCHW", "NHWC", "CHWN"]
    assert len({row["loads_asked"] for row in rows}) == 1
    assert len({row["loads_sectors"] for row in rows}) == 3
    assert {row["stores_sectors"] for row in rows} == {16 * 16 * 8 * 8 * 4 // 32}
    text = layouts.report(result, None)
    assert [(row["stores"], row["us"]) for row in table("\n".join(
        line.replace("sectors per store", "stores") for line in text))] == [("4.00", "not measured yet")] * 3
    assert "Nobody has measured the times yet. On a GPU this does:" in text


@pytest.mark.usefixtures("elsewhere")
def test_an_algorithm_of_ones_own_gets_its_row(monkeypatch: pytest.MonkeyPatch,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")
    from minidl.ops import cpu
    from minidl.ops.common.conv.own import OWN
    from minidl.ops.cuda.conv import ALGORITHMS

    Path("my_conv.py").write_text("import minidl\nminidl.register_conv('mine', 'extern \"C\" __global__ void k() {}', "
                                  "y=lambda launch, x, w, b, y, g: None)\n")
    monkeypatch.setattr(machine, "require", lambda *needs: None)
    monkeypatch.setattr(results, "facts", lambda several: [])

    def run(cases: Any, args: argparse.Namespace) -> results.Result:
        assert [case.label for case in cases] == ["krizhevsky", "2,1,8,8,3,3"]
        return {"limits": {"fp32": 50e12, "tf32": None, "bytes": 4e12}, "cpu": [],
                "rows": [conv_row(algorithm=name, label=case.label) for name in args.algorithms for case in cases]}
    monkeypatch.setattr(conv, "run", run)
    given = ["--plugin", "my_conv.py", "--shapes", "krizhevsky", "--shape", "2,1,8,8,3,3"]
    try:
        conv.main([*given, "--algorithms", "direct,mine"])
        out = capsys.readouterr().out
        assert "| `mine` | fp32 | 200 | 200 |" in out
        assert "2,1,8,8,3,3 y us" in out
        with pytest.raises(SystemExit):
            conv.main([*given, "--algorithms", "yours"])
        assert "'yours' is not one of direct, " in (said := capsys.readouterr().err)
        assert ", mine" in said
    finally:
        for rows in (OWN, ALGORITHMS, cpu.conv.ALGORITHMS):
            rows.pop("mine", None)                     # type: ignore[attr-defined]
        sys.modules.pop("plugin_my_conv", None)


# ---------------------------------------------------------------- time to an accuracy
QUICK = time_to_accuracy.Recipe("synthetic-digits", 0.5, batch=32, lr=0.1, warmup=0.25, momentum=0.9,
                                weight_decay=1e-3, epochs=2)


@pytest.fixture(scope="module")
def digits() -> time_to_accuracy.Data:
    train, test = (data.load("synthetic-digits", split).first(count) for split, count in (("train", 320), ("test", 50)))
    return time_to_accuracy.Data(train, test, *data.channel_statistics(train), 2)


def test_a_plan_of_rates_and_evaluations() -> None:
    rates, points = time_to_accuracy.plan(QUICK, 330)          # 10 batches an epoch, and a rest
    assert points == [5, 10, 15, 20]
    assert rates == pytest.approx([0.1 * min((i + 1) / 5, (20 - i) / 15, 1) for i in range(20)])
    assert time_to_accuracy.plan(QUICK._replace(epochs=1.2), 330)[1] == [5, 10, 12]


class Scripted:
    """A peer whose accuracy is known beforehand, and its clock: a second for a step, 1000 to find the accuracy."""

    def __init__(self, accuracies: Sequence[float]):
        self.accuracies, self.rates, self.now = iter(accuracies), [], 0.0

    def train(self, rates: Sequence[float]) -> None:
        self.rates += rates
        self.now += len(rates)

    def accuracy(self) -> float:
        self.now += 1000
        return next(self.accuracies)


@pytest.mark.parametrize(("accuracies", "step", "reached"), [
    ([0.2, 0.9, 1.0], 4, True), ([0.2, 0.8999, 0.3], 6, False), ([0.95], 2, True)])
def test_the_first_look_at_the_mark_counts_and_looking_does_not(accuracies: list[float], step: int, reached: bool,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    peer: Any = Scripted(accuracies)
    monkeypatch.setattr(time_to_accuracy, "time", SimpleNamespace(perf_counter=lambda: peer.now))
    outcome = time_to_accuracy.reach(peer, [1.0, 2, 3, 4, 5, 6], [2, 4, 6], 0.9, "cpu")
    assert (outcome.step, outcome.accuracy) == (step, accuracies[step // 2 - 1])
    assert peer.rates == [1, 2, 3, 4, 5, 6][:step]
    assert outcome.seconds == (step if reached else None)


# ---------------------------------------------------------------- a speed run
@pytest.fixture(scope="module")
def shapes() -> speed_run.Data:
    train, test = (data.load("synthetic-shapes", split).first(count)
                   for split, count in (("train", 600), ("test", 200)))
    return speed_run.Data(train, test, *data.channel_statistics(train))


SMALL_RUN = speed_run.Settings(batch=50, epochs=3, width=8)


@pytest.mark.slow
@pytest.mark.torch
def test_both_peers_learn_generated_pictures(shapes: speed_run.Data) -> None:
    """Trained, tested by six views, and timed; the second run of a seed ends where the first did."""
    pytest.importorskip("torch")
    found = speed_run.outcomes(shapes, ["minidl", "torch"], 1, "cpu", "fp32", SMALL_RUN)
    for name in ("minidl", "torch"):
        ((seconds, accuracy),) = found[name]
        assert accuracy > 0.8, name
        assert seconds > 0
    rows = [time_to_accuracy.speed_row("bf16", name, found[name], 1) for name in found]
    shown = table("\n".join(time_to_accuracy.report([{
        **results.load("time_to_accuracy_cuda"), "rows": rows}])))
    assert [(row["peer"], row["precision"], row["seeds"]) for row in shown] == [("minidl", "bf16", "1"),
                                                                               ("torch", "fp16", "1")]


@pytest.mark.deep
def test_a_run_begins_anew_and_nothing_is_recorded_again(shapes: speed_run.Data) -> None:
    """The runs of a seed end in the same bits, whatever was trained before; labels at random teach nothing."""
    ours = speed_run.Ours(SMALL_RUN._replace(epochs=1), shapes, "cpu")
    seen = []
    for random_labels in (True, False, False):
        ours.start(speed_run.first_parameters(SMALL_RUN, 1), 1, random_labels)
        accuracy = ours.run()
        seen.append((accuracy, [t.numpy().tobytes() for _, t in ours.net.named_tensors()]))
    assert seen[1] == seen[2]
    assert seen[0][0] < 0.3
    assert (ours.step.recordings, ours.look.recordings) == (4, 2)      # with and without the first bias


@pytest.mark.torch
def test_one_step_of_both_peers_is_the_same(shapes: speed_run.Data) -> None:
    """From the same parameters and images: rates, decay, Muon and SGD of the sum of the loss, and whitening."""
    torch = pytest.importorskip("torch")
    one = SMALL_RUN._replace(epochs=1)
    ours, theirs = speed_run.Ours(one, shapes, "cpu"), speed_run.Torch(one, shapes, "cpu")
    state = speed_run.first_parameters(one, 2)
    for peer in (ours, theirs):
        peer.start(state, 0)
    ((few, _),) = ours.few
    ours.net.start_from(minidl.Tensor(few))
    theirs._whiten(theirs._normalized(theirs.train[0][:speed_run.IMAGES]))
    mine, other = ours.net.whiten.weight.numpy(), theirs.net.whiten.weight.numpy()
    one_by_one = np.abs(np.sum(mine[:12] * other[:12], axis=(1, 2, 3)))    # of both signs; rounding turns those of near
    own = np.sum(mine[:12] ** 2, axis=(1, 2, 3))                           # variances a little into each other
    np.testing.assert_allclose(one_by_one, own, rtol=0.02)
    theirs.net.whiten.weight.copy_(torch.tensor(ours.net.whiten.weight.numpy()))
    before = {name: t.numpy().copy() for name, t in ours.net.named_parameters()}
    for step in range(2):
        x, y = few[50 * step:50 * step + 50], np.arange(50) % 10
        theirs.x.copy_(torch.tensor(x))
        theirs.y.copy_(torch.tensor(y))
        for rate, lr, steps in theirs.rates:
            rate.fill_(lr * (1 - step / steps))
        theirs._step(step == 0)
        ours.optimizer.zero_grad()
        ops.cross_entropy(ours.net(minidl.Tensor(x), step == 0), y, label_smoothing=0.2).backward()
        for group, rates in zip(ours.optimizer.groups, ours.all_rates.numpy(), strict=True):
            group["lr"] = float(rates[0, step])
        ours.optimizer.step()
    twins = dict(theirs.net.named_parameters())
    for name, t in ours.net.named_parameters():
        moved, twin = t.numpy() - before[name], twins[name].detach().numpy() - before[name]
        assert np.linalg.norm(moved - twin) < 0.1 * np.linalg.norm(twin) > 0, name      # small singular values


def test_means_are_of_the_seeds_that_got_there() -> None:
    found = [time_to_accuracy.Outcome(*of) for of in ((1.0, 10, 0.9), (None, 20, 0.8), (2.0, 20, 0.91))]
    some, none = (time_to_accuracy.row("lenet5", "3xtf32", peer, of)
                  for peer, of in (("torch", found), ("minidl", found[1:2])))
    result = {"machine": {"cpu": "a CPU"}, "versions": {}, "date": "", "commit": None,
              "rows": [some, none]}
    report = time_to_accuracy.report([result])
    assert "| lenet5 | fp32 | torch | 2 of 3 | 1.500 | 0.500 | 1.000-2.000 | 15 | 87.00 % |" in report
    assert "| lenet5 | 3xtf32 | minidl | 0 of 1 |  |  |  |  | 80.00 % |" in report


def trained(peer: Any, seed: int, rates: Sequence[float]) -> dict[str, np.ndarray]:
    peer.start(time_to_accuracy.first_parameters("lenet5", seed), seed)
    peer.train(rates)
    return {name: value.copy() if isinstance(value, np.ndarray) else value.cpu().numpy().copy()
            for name, value in peer.net.state_dict().items()}


@pytest.mark.slow
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


@pytest.mark.torch
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


@pytest.mark.torch
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


@pytest.mark.deep
def test_time_to_accuracy_reports_each_peer(quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    peers = ["minidl", *(["torch"] if importlib.util.find_spec("torch") else [])]
    rows = printed(time_to_accuracy.main, capsys, "--models", "lenet5", "--seeds", "2", "--peers",
                   ",".join(peers[1:]))
    assert [(row["net"], row["peer"], row["reached"]) for row in rows] == [
        ("lenet5", peer, "2 of 2") for peer in peers]
    assert all(float(row["mean s"]) > 0 for row in rows)


# ---------------------------------------------------------------- accuracy, overhead


@pytest.mark.slow
def test_overhead_measures_each_op(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                   tmp_path: Path) -> None:
    monkeypatch.setattr(overhead, "CHAIN", 10)
    overhead.main(["--number", "1", "--repeats", "1", "--json", str(tmp_path / "file.json")])
    printed = table(capsys.readouterr().out)
    assert [row["op"] for row in printed if "op" in row] == list(overhead.CALLS)
    found = json.loads((tmp_path / "file.json").read_text())
    assert found["chain"]["ops"] == 10
    assert [row["replay: arguments"] for row in printed if "replay: arguments" in row] == [
        row["arguments"] for row in found["replays"]] == ["the same each time", "others each time"]
    assert all(row["call_us"] > row["checks_us"] > 0 for row in found["replays"])


@pytest.mark.gpu
def test_gpu_overhead_parts(capsys: pytest.CaptureFixture[str]) -> None:
    overhead.main(["--device", "cuda", "--parts", "--number", "2", "--repeats", "1"])
    found = {row["part of a replay"]: float(row["us"]) for row in table(capsys.readouterr().out)}
    assert found["the call"] > found["the look at arguments and facts"] > 0


# ---------------------------------------------------------------- cliffs
def test_every_public_op_is_swept_or_has_a_reason() -> None:
    swept = {name.split()[0] for name in cliff_cases.SWEEPS}
    assert cliff_cases.public() <= swept | set(cliff_cases.EXCEPT)
    assert set(cliff_cases.EXCEPT) <= cliff_cases.public() - swept
    assert swept - cliff_cases.public() == {"setitem"}             # Python's t[i] = value


@pytest.mark.parametrize("many", cliffs.MANY.values())
@pytest.mark.parametrize("name", cliff_cases.SWEEPS)
def test_a_sweep_is_of_many_shapes(name: str, many: int) -> None:
    """Each once, of inputs and options that its code names; a first one that is small, for --quick."""
    sweep = cliff_cases.SWEEPS[name]
    cases = list(sweep.grid(many))
    assert len({(case.label, str(case)) for case in cases}) == len(cases) >= 4
    assert cases[0].label == "small" or name == "adaptive_avg_pool2d" or name.startswith("expand")
    wanted = {"F", "x", *"yzwbmvij", *cases[0].options} & set(compile(sweep.code, name, "eval").co_names)
    for case in cases:
        assert set(case.inputs) | set(case.options) | {"F"} >= wanted
        assert case.layout in cliffs.LAYOUTS
        assert case.layout in ("contiguous", case.label)
        assert sweep.parts == cliff_cases.FORWARD or any(spec.learns for spec in case.inputs.values())


@pytest.mark.parametrize(("op", "part", "inputs", "options", "y", "flop", "moved"), [
    ("relu", "forward", {"x": (3, 4)}, {}, (3, 4), 0, 96), ("relu", "gradients", {"x": (3, 4)}, {}, (3, 4), 0, 96),
    ("matmul", "forward", {"x": (2, 3), "y": (3, 4)}, {}, (2, 4), 48, 4 * (6 + 12 + 8)),
    ("matmul", "gradients", {"x": (2, 3), "y": (3, 4)}, {}, (2, 4), 96, 4 * (6 + 12 + 8)),
    ("einsum", "forward", {"x": (2, 3), "y": (3, 4)}, {"equation": "ij,jk->ik"}, (2, 4), 48, 4 * (6 + 12 + 8)),
    ("linear", "gradients", {"x": (2, 3), "w": (4, 3), "b": (4,)}, {}, (2, 4), 96, 4 * (6 + 12 + 4 + 8)),
    ("conv2d", "forward", {"x": (1, 4, 5, 5), "w": (8, 2, 3, 3)}, {}, (1, 8, 3, 3), 2 * 72 * 18, 4 * (100 + 144 + 72)),
    ("getitem rows", "forward", {"x": (100, 4)}, {}, (2, 4), 0, 4 * 16)])
def test_work_of_a_call(op: str, part: str, inputs: dict[str, Any], options: dict[str, Any], y: tuple[int, ...],
                        flop: int, moved: int) -> None:
    case = cliff_cases.Case("", {name: cliff_cases.Spec(shape) for name, shape in inputs.items()}, options)
    assert cliffs.work(op, case, part, y, 4) == (flop, moved)


@pytest.mark.torch
@pytest.mark.parametrize("op", ["relu", "max", "embedding", "linear"])
def test_a_sweep_beside_pytorch(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first shape of an op; a wrong result is named and not timed."""
    pytest.importorskip("torch")
    monkeypatch.setattr(cliffs, "BUDGET", 0.0)
    case = next(iter(cliff_cases.SWEEPS[op].grid(1)))
    limits = {"bytes": 1e10, "fp32": 1e11}
    for part in ("forward", "gradients"):
        row = cliffs.row_of(op, case, part, "cpu", limits)
        assert min(row["us"], row["torch_us"], row["limit_us"]) > 0
    right = cliffs.array_of
    monkeypatch.setattr(cliffs, "array_of", lambda t: 1.01 * right(t))
    assert cliffs.row_of(op, case, "forward", "cpu", limits)["why"].startswith("failed: differs from PyTorch's by ")


@pytest.mark.torch
@pytest.mark.parametrize("layout", cliffs.LAYOUTS)
def test_a_layout_is_that_of_both(layout: str) -> None:
    torch = pytest.importorskip("torch")
    theirs = cliffs.drawn(cliff_cases.Spec((2, 3, 4, 5)), layout, "cpu")
    ours = cliffs.shared(theirs)
    assert tuple(theirs.shape) == ours.shape == (2, 3, 4, 5)
    assert tuple(4 * n for n in theirs.stride()) == ours.data.strides
    assert theirs.is_contiguous() == (layout == "contiguous")
    assert torch.equal(cliffs.array_of(ours), theirs)
    assert np.shares_memory(ours.data, theirs.numpy())


# ---------------------------------------------------------------- files
def test_a_file_has_all_that_is_needed_to_judge_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "step.json"
    shown = printed(train_step.main, capsys, *STEP, "--peers", "", "--json", str(file))
    found = json.loads(file.read_text())
    assert list(found) == ["benchmark", "command", "date", "commit", "machine", "versions", "limits", "method",
                           "ratio", "rows"]
    assert (found["benchmark"], found["limits"]) == ("train_step", None)
    assert {"minidl", "NumPy", "Python"} < set(found["versions"])
    assert found["machine"]["threads"] == 1
    assert found["method"] == {"warmup": 1, "steps": 1, "repeats": 1, "in_a_row": 1}
    (row,) = found["rows"]
    assert row["rounds_s"] == [row["median_s"]]
    assert results.digits(row["median_s"] * 1e3) == shown[0]["ms per step"]
    assert file.read_text().count("\n") == len(found) + 4      # a line for each field and each row


def test_the_command_leaves_out_whose_machine_it_was() -> None:
    argv = ["benchmarks/train_step.py", "--json", "x/y.json", "--data-dir=here", "--models", "lenet5", "--shape", "a b"]
    assert results.command(argv) == (
        "python benchmarks/train_step.py --data-dir <folder> --models lenet5 --shape 'a b'")


@pytest.mark.parametrize(("value", "text"), [
    (43.5664, "43.57"), (546.0, "546"), (1653.4, "1,653"), (999.96, "1,000"), (0.022222, "0.02222"),
    (16302.2, "16,302"), (63.7, "63.7"), (0.0, "0")])
def test_four_digits(value: float, text: str) -> None:
    assert results.digits(value) == text


# ---------------------------------------------------------------- nets that nobody tuned for
@pytest.mark.torch
@pytest.mark.parametrize("name", tiered(untuned.NETS, slow=1))
def test_a_net_is_the_same_for_both(name: str) -> None:
    """One text: of the same parameters the same values."""
    torch = pytest.importorskip("torch")
    build, shape, _ = untuned.NETS[name]
    minidl.manual_seed(0)
    mine, its = build(untuned.minidl_nn()), build(untuned.torch_nn())
    for ours, theirs in zip(mine.parameters(), its.parameters(), strict=True):
        theirs.data = torch.tensor(ours.numpy())
    rng, size = np.random.default_rng(0), (1, *(min(side, 64) for side in shape[1:]))
    x = rng.integers(0, 256, (1, 128)) if len(shape) == 2 else rng.standard_normal(size, np.float32)
    with minidl.no_grad():
        got = mine(minidl.Tensor(x)).numpy()
    np.testing.assert_allclose(got, its(torch.tensor(x)).detach().numpy(), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("functional", [False, True])
def test_a_loss_with_a_gradient_in_it_is_the_same_for_both(functional: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = untuned.minidl_nn(), untuned.torch_nn(functional)
    minidl.manual_seed(0)
    mine, its = untuned.critic(ours), untuned.critic(theirs)
    for p, q in zip(mine.parameters(), its.parameters(), strict=True):
        q.data = torch.tensor(p.numpy())
    arrays = [a[:3] for a in untuned.batch("critic")]
    share = np.random.default_rng(1).random((3, 1, 1, 1), np.float32)
    found = []
    for layers, net, tensor in (ours, mine, minidl.Tensor), (theirs, its, torch.tensor):
        monkeypatch.setattr(layers, "_rand", lambda *shape, device, tensor=tensor: tensor(share))
        loss = untuned.loss_of("critic", layers)(net, *map(tensor, arrays))
        loss.backward()
        found.append([loss.item(), *(p.grad.numpy() for p in net.parameters())])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.deep
def test_a_net_that_nobody_tuned_for_is_measured_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IN_A_ROW", "ROUNDS", "TURNS"):
        monkeypatch.setattr(untuned, name, 1)
    (row,) = untuned.rows("autoencoder", "fp32", ["minidl"], "cpu")
    assert (row["net"], row["peer"]) == ("autoencoder", "minidl")
    assert 0 < row["least_s"] <= row["median_s"] <= row["largest_s"] < row["first_s"] * 100
    with pytest.raises(RuntimeError, match="untuned: a peer ended with status 2; its messages are above"):
        untuned.rows("autoencoder", "fp8", ["minidl"], "cpu")
