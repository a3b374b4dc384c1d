"""Several ranks on the CPU: the numbers of one process, on any number of them.

Needs mpi4py and an mpiexec of the same MPI: pip install -e '.[mpi]' brings both. MPIEXEC names another one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trainings
from tiers import tiered

import minidl
from minidl import Tensor, data, distributed, nn
from minidl.compiler import graph
from minidl.core import pools
from minidl.distributed import gradients, mpi
from minidl.distributed.world import joined_as

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BESIDE = Path(sys.executable).parent / "mpiexec"
MPIEXEC = os.environ.get("MPIEXEC") or (str(BESIDE) if BESIDE.exists() else shutil.which("mpiexec"))
needs_mpi = pytest.mark.skipif(find_spec("mpi4py") is None or MPIEXEC is None,
                               reason="mpi4py or mpiexec is missing: pip install -e '.[mpi]'")
TINY = 1e-12
GPUS = len(list(Path("/dev").glob("nvidia[0-9]")))


def started(ranks: int, *command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command on so many ranks."""
    return subprocess.run([str(MPIEXEC), "-n", str(ranks), sys.executable, *map(str, command)], timeout=600, text=True,
                          capture_output=True, cwd=ROOT, check=False, env=surroundings(**environment))


def surroundings(**more: str) -> dict[str, str]:
    """Open MPI has to be asked for more ranks than cores, and by root twice."""
    asked = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                           "OMPI_MCA_rmaps_base_oversubscribe"), "1")
    return {**asked, **os.environ, "PYTHONPATH": str(ROOT), "MINIDL_OFFLINE": "1", **more}


def result_of(ranks: int, what: str, folder: Path, *given: object) -> dict[str, np.ndarray]:
    done = started(ranks, HERE / "trainings.py", what, folder / f"WHAT{ranks}.npz", *given)
    assert done.returncode == 0, done.stderr
    return loaded(folder / f"{what}{ranks}.npz")


def loaded(file: Path, said: str = "") -> dict[str, np.ndarray]:
    assert file.exists(), said
    with np.load(file) as arrays:
        return dict(arrays)


class Several:
    """Trainings that one start of the ranks does in turn: it takes longer than most of them."""

    def __init__(self, ranks: int, folder: Path, *names: str):
        self.ranks, self.folder = ranks, folder
        self.done = started(ranks, HERE / "trainings.py", ",".join(names), folder / f"WHAT{ranks}.npz")

    def __getitem__(self, name: str) -> dict[str, np.ndarray]:
        return loaded(self.folder / f"{name}{self.ranks}.npz", self.done.stderr)


def assert_near(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    assert got.keys() == want.keys()
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=TINY, atol=TINY, err_msg=name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def alone() -> dict[str, np.ndarray]:
    return trainings.all_kinds()


@pytest.fixture(scope="module")
def three(folder: Path) -> dict[str, np.ndarray]:
    return result_of(3, "all_kinds", folder)


@pytest.fixture(scope="module")
def of_two(folder: Path) -> Several:
    return Several(2, folder, "only_statistics", "draws", "diverging", "ways", "refused")


@pytest.fixture(scope="module")
def of_three(folder: Path) -> Several:
    return Several(3, folder, "one_kind", "ignoring", "options", "counted", "changed", "own_statistics", "called")


# ---------------------------------------------------------------- the numbers of one process
@pytest.mark.deep
@needs_mpi
def test_two_ranks_give_the_losses_and_weights_of_one(alone: dict[str, np.ndarray], folder: Path) -> None:
    assert_near(result_of(2, "all_kinds", folder), alone)


@pytest.mark.deep
@needs_mpi
def test_three_ranks_of_all_kinds(alone: dict[str, np.ndarray], three: dict[str, np.ndarray]) -> None:
    assert_near(three, alone)


@pytest.mark.slow
@needs_mpi
def test_three_ranks_give_the_losses_and_weights_of_one(of_three: Several) -> None:
    """The last step of an epoch has one image: two ranks have none."""
    assert_near(of_three["one_kind"], trainings.one_kind())
    assert of_three.done.returncode == 0, of_three.done.stderr


@needs_mpi
@pytest.mark.parametrize("ranks", tiered([2, 3], slow=0))
def test_ranks_of_as_many_images_each(ranks: int, folder: Path) -> None:
    assert_near(result_of(ranks, "alike", folder), trainings.alike())


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize("what", ["ignoring", "options"])
def test_ranks_with_all_that_fit_is_told(what: str, of_three: Several) -> None:
    """Some have ignored labels alone, or no image."""
    alone = trainings.WHAT[what]()
    for name in [name for name in alone if name.startswith("False")]:
        np.testing.assert_array_equal(alone[name], alone[name.replace("False", "True")], err_msg=name)
    assert_near(of_three[what], alone)


@pytest.mark.slow
@needs_mpi
@pytest.mark.parametrize("what", ["counted", "changed"])
def test_ranks_with_batch_normalisation_and_what_callbacks_change(what: str, of_three: Several) -> None:
    """By weights and several batches to a step; a net, rates and a loader that rank 0 changes between epochs."""
    assert_near(of_three[what], trainings.WHAT[what]())


@pytest.mark.slow
@needs_mpi
def test_an_epoch_measures_the_net_that_it_leaves(of_three: Several) -> None:
    got = of_three["own_statistics"]
    np.testing.assert_allclose(got["told"], got["seen"], rtol=TINY)


@pytest.mark.slow
@needs_mpi
def test_ranks_diverge_in_the_same_step(of_two: Several) -> None:
    for said in of_two["diverging"]["said"]:
        assert [line.partition(":")[2].partition(":")[0] for line in said] == [" diverged in step 5 (epoch 1)"] * 2


@pytest.mark.slow
@needs_mpi
def test_what_ranks_would_get_wrong_is_refused(of_two: Several) -> None:
    """In the same words on both: one value per channel, a weighted loss after batch normalisation, and other data."""
    for said in of_two["refused"]["said"]:
        assert [line[:62] for line in said] == [
            *["batch_norm: the batch of all ranks has 1 value per channel, wh"] * 2,
            *["average: share is a Tensor but batch normalisation over all ra"] * 2,
            "fit: rank 1 has other data, or other numbers of its loaders, i"]


@pytest.mark.slow
@needs_mpi
def test_ranks_that_take_different_ways_are_an_error(of_two: Several) -> None:
    """On all of them, in the same words; in a compiled step, too. They would hang, or add up what is not the same."""
    told_apart(of_two["ways"]["told"].tolist())
    assert of_two.done.returncode == 0, of_two.done.stderr


@pytest.mark.deep
@needs_mpi
def test_three_ranks_that_take_different_ways_are_an_error(tmp_path: Path) -> None:
    told_apart(result_of(3, "ways", tmp_path)["told"].tolist())


def told_apart(told: list[list[str]]) -> None:
    assert told[1:] == told[:1] * (len(told) - 1)
    after = "; take the same way through the net on all ranks, and freeze the same parameters"
    a, b, c = (f"parameter {i} {shape} float32, parameter {i + 1} (3,) float32"
               for i, shape in ((0, "(3, 4)"), (2, "(3, 4)"), (4, "(3, 3)")))
    begin = "average: the ranks have gradients of other parameters: rank"
    for name, line in (("ways", f"{begin} 0 alone has that of {a}; rank 1 alone has that of {b}{after}"),
                       ("fit", f"{begin} 0 alone has that of {a}; rank 1 alone has that of {b}{after}"), ("same", "ok"),
                       ("none on one", f"{begin} 0 alone has that of {a}, parameter 4 (3, 3) float32{after}"),
                       ("none", "ok"), ("frozen on one", f"{begin} 1 alone has that of {c}{after}")):
        for compiled in (False, True):
            assert f"{name} {compiled}: {line}" in told[0]
    assert told[0][-1].startswith(f"other order: {begin} 0 alone has that of {a}; rank 1 alone has that of parameter 0")


@pytest.mark.deep
@needs_mpi
def test_two_runs_give_the_same_bits(three: dict[str, np.ndarray], tmp_path: Path) -> None:
    again = result_of(3, "all_kinds", tmp_path)
    for name, array in three.items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)


@pytest.mark.deep
@needs_mpi
def test_a_checkpoint_of_three_ranks_goes_on_with_two(tmp_path: Path) -> None:
    """In the middle of an epoch."""
    checkpoints = tmp_path / "checkpoints"
    stopped = result_of(3, "first_part", tmp_path, checkpoints)
    assert len(stopped["metrics"]) == 2
    middle = checkpoints / "checkpoint-previous.h5"    # the newest is after the callback's stop
    assert_near(result_of(2, "second_part", tmp_path, middle), trainings.trained("normalised", True))


@pytest.mark.deep
@needs_mpi
def test_a_run_that_goes_on_with_as_many_ranks_ends_in_the_same_bits(three: dict[str, np.ndarray],
                                                                     tmp_path: Path) -> None:
    """The weights. A checkpoint has one sum of the epoch's losses so far, over all ranks, which is added last."""
    checkpoints = tmp_path / "checkpoints"
    result_of(3, "first_part", tmp_path, checkpoints)
    resumed = result_of(3, "second_part", tmp_path, checkpoints / "checkpoint-previous.h5")
    whole = {name: three[f"normalised compiled {name}"] for name in resumed}
    for name in resumed.keys() - {"metrics"}:
        np.testing.assert_array_equal(resumed[name], whole[name], err_msg=name)
    assert_near(resumed, whole)


@pytest.mark.deep
@needs_mpi
def test_a_loop_of_ones_own(tmp_path: Path) -> None:
    assert_near(result_of(3, "by_hand", tmp_path), trainings.by_hand())


@pytest.mark.slow
@needs_mpi
def test_callbacks_are_called_on_rank_0_and_hold_for_all(of_three: Several) -> None:
    here, got = trainings.called(), of_three["called"]
    assert got.pop("calls").tolist() == [13, 0, 0]
    del here["calls"]
    assert here["epochs"] == 2
    assert_near({name: got[name].astype(np.float64) for name in here}, here)


@pytest.mark.slow
@needs_mpi
def test_ranks_share_out_the_nets_of_a_sweep(tmp_path: Path) -> None:
    """Each is trained by one of them, with the bits that it has alone. On the command line, by a process of its own."""
    got, alone = result_of(2, "swept", tmp_path, tmp_path / "shared"), trainings.swept(str(tmp_path / "alone"))
    assert got.pop("built").tolist() == [2, 2]
    del alone["built"]
    assert got.keys() == alone.keys()
    for name, array in alone.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)
    assert len((tmp_path / "shared" / "sweep.jsonl").read_text().splitlines()) == 4
    assert (tmp_path / "shared" / "sweep.html").read_text().count("<td>finished") == 4


@pytest.mark.slow
@needs_mpi
def test_ranks_share_out_a_sweep_of_the_command_line(tmp_path: Path) -> None:
    flags = ("train", "lenet5", "--data", "synthetic-digits", "--limit-train", 60, "--limit-test", 20, "--epochs", 1,
             "--sweep", "seed=0:3", "--batch-size-per-rank", 15, "--no-progress", "--output-dir", tmp_path / "nets")
    done = started(2, "-m", "minidl", *flags)
    assert done.returncode == 0, done.stderr
    assert "3 nets, 1 at once on each of 2 ranks" in done.stdout
    assert done.stdout.count("finished") == 3
    assert len((tmp_path / "nets" / "sweep.jsonl").read_text().splitlines()) == 3
    sizes = [json.loads(file.read_text())["batch_size"] for file in tmp_path.glob("nets/*/config.json")]
    assert sizes == [15, 15, 15]           # of the one rank that a net has


@pytest.mark.slow
@needs_mpi
def test_own_statistics_if_asked_for(of_two: Several) -> None:
    got = of_two["only_statistics"]
    np.testing.assert_allclose(got["y"], [[-1, -1], [1, 1]], rtol=1e-4)
    np.testing.assert_allclose(got["mean"], [0.1, 0.25], rtol=1e-6)
    assert "across_ranks=False" in repr(nn.BatchNorm1d(2, across_ranks=False))


@pytest.mark.slow
@needs_mpi
def test_ranks_draw_the_same_parameters_and_drop_other_values(of_two: Several) -> None:
    got, alone = of_two["draws"], trainings.draws()
    np.testing.assert_array_equal(got["weights"], np.repeat(alone["weights"], 2, axis=0))
    np.testing.assert_array_equal(got["kept"][0], alone["kept"][0])
    assert 400 < np.count_nonzero(got["kept"][0] != got["kept"][1]) < 600
    assert got["state"].tolist() == alone["state"].tolist()


@pytest.mark.deep
@needs_mpi
def test_the_benchmark_has_a_row_for_one_and_for_several() -> None:
    done = subprocess.run([sys.executable, "benchmarks/distributed.py", "--models", "lenet5", "--batch-size", "2",
                           "--repeats", "1", "--steps", "1", "--in-a-row", "1"], capture_output=True, text=True,
                          timeout=600, cwd=ROOT, check=False, env=surroundings())
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ")[:3] for line in done.stdout.splitlines() if line.startswith("| lenet5")]
    assert rows == [["| lenet5", "minidl", "1"], ["| lenet5", "minidl", "2"]]


# ---------------------------------------------------------------- parts of batches
@pytest.mark.parametrize("size", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("of_items", [False, True])
def test_the_parts_of_a_batch_are_the_batch(size: int, of_items: bool) -> None:
    x = np.arange(58.0).reshape(29, 2)

    def batches(**part: Any) -> list[Any]:
        how: Any = {"transform": lambda row: row} if of_items else {}
        return list(data.DataLoader(x, 7, seed=1, **how, **part))
    whole = batches()
    parts = [batches(part=(rank, size)) for rank in range(size)]
    for i, batch in enumerate(whole):
        np.testing.assert_array_equal(np.concatenate([part[i] for part in parts]), batch)
        counts = [len(part[i]) for part in parts]
        assert max(counts) - min(counts) <= 1
    loaders = [data.DataLoader(x, 7, seed=1, part=(rank, size)) for rank in range(size)]
    for part, loader in zip(parts, map(data.DeviceBatches, loaders), strict=True):
        for batch, n in zip(part, loader, strict=True):
            np.testing.assert_array_equal(loader.next(n).numpy(), batch)


@pytest.mark.parametrize("part", [(2, 2), (-1, 2), (0, 0), 1, (0.0, 2), [0, 1]])
def test_a_part_that_is_none_is_refused(part: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"DataLoader: part is {part!r} but must be (rank, size), ints")):
        data.DataLoader(np.ones(3), 2, part=part)


# ---------------------------------------------------------------- what is sent
@pytest.mark.parametrize(("share", "cpu", "gpus"), [
    (None, [1.0, 2.0, "sum"], [2.0, 4.0, "mean"]), (0.5, [1.0, 2.0, "sum"], [2.0, 4.0, "mean"]),
    (0.25, [0.5, 1.0, "sum"], [1.0, 2.0, "mean"]), (0, [0.0, 0.0, "sum"], [0.0, 0.0, "mean"])])
def test_a_mean_is_one_operation_on_gpus_whatever_the_shares(share: float | None, cpu: Any, gpus: Any,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that call NCCL with different ones would be silently wrong: it forms the mean, of what each has weighed."""
    for on_gpus, want in ((False, cpu), (True, gpus)):
        sent: list[Any] = []
        world: Any = SimpleNamespace(size=2, sum=lambda flat, sent=sent: sent.extend([*flat, "sum"]),
                                     gpus=SimpleNamespace(mean=lambda flat, sent=sent: sent.extend([*flat, "mean"])))
        monkeypatch.setattr(mpi, "is_cuda", lambda flat, on_gpus=on_gpus: on_gpus)
        mpi.Mpi.mean(world, np.array([2.0, 4.0]), share)
        assert sent == want


W, V = (0, (2,), "float32"), (1, (2,), "float32")


@pytest.mark.parametrize(("theirs", "said"), [
    ({W, V}, ""), ({W}, "rank 0 alone has that of parameter 1 (2,) float32"), (set(), "rank 0 alone has that of"),
    ({W, V, (2, (), "float32")}, "rank 1 alone has that of parameter 2 () float32"),
    ({W, (2, (2,), "float32")}, "of parameter 1 (2,) float32; rank 1 alone has that of parameter 2 (2,) float32"),
    ({W, (1, (2, 1), "float32")}, "rank 1 alone has that of parameter 1 (2, 1) float32"),
    ({W, (1, (2,), "float64")}, "rank 1 alone has that of parameter 1 (2,) float64"),
    ({W, V, *((i, (2,), "float32") for i in range(2, 99))}, "3 (2,) float32, parameter 4 (2,) float32; take")])
@pytest.mark.parametrize("compiled", [False, True])
def test_ranks_agree_on_the_gradients_that_they_send(theirs: set[Any], said: str, compiled: bool) -> None:
    """By sums of numbers: here the other rank is a stand-in, which sends what it is told."""
    other = gradients.Agreed(distributed.One(), frozenset(theirs))

    class Two(distributed.One):
        rank, size = 0, 2

        def sum(self, flat: Any) -> None:
            flat += other.number if flat.dtype == float else 3.0

        def gather(self, mine: Any) -> Any:
            return [mine, other.sent]
    world: Any = Two()
    params = [Tensor([1.0, 2.0], requires_grad=True) for _ in range(2)]

    def step(x: Tensor) -> Tensor:
        for p in params:
            p.grad = None
        loss = (x * params[0] + params[1]).sum()
        loss.backward()
        distributed.average(params, 0.5, world)
        return loss
    run = minidl.compile(step) if compiled else step
    for _ in range(4):
        with pytest.raises(ValueError, match=f"^average: .*{re.escape(said)}") if said else nullcontext():
            run(Tensor([4.0, 6.0]))
    if not said:
        assert [p.grad.tolist() for p in params if p.grad is not None] == [[5.0, 6.0], [3.5, 3.5]]


def test_a_compiled_step_is_of_the_world_that_is_current() -> None:
    """One that is compiled before `start`, or in a callback, does not leave the other ranks out later."""
    class Two(distributed.One):
        size = 2

        def sum(self, flat: Any) -> None:
            flat += flat
    w, found = Tensor([1.0], requires_grad=True), list[float]()

    @minidl.compile
    def step() -> None:
        w.grad = None
        (w * 3).sum().backward()
        distributed.average([w], 1)
    for each in (distributed.current(), Two(), distributed.current()):
        with joined_as(each):
            for _ in range(3):
                step()
                found.append(w.grad.item() if w.grad is not None else 0)
    assert found == [3, 3, 3, 6, 6, 6, 3, 3, 3]


# ---------------------------------------------------------------- what is refused
@pytest.mark.parametrize("share", [-0.1, 1.5, "half"])
def test_a_share_beyond_0_to_1_is_refused(share: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"average: share is {share!r} but must be a number from 0 to 1")):
        distributed.average([Tensor([1.0], requires_grad=True)], share)


@pytest.mark.parametrize(("rank", "size"), [("2", "2"), ("x", "2"), ("0", "-1")])
def test_a_launcher_that_makes_no_sense_is_refused(rank: str, size: str) -> None:
    with pytest.raises(ValueError, match=re.escape(
            f"distributed: mpiexec of MPICH sets PMI_RANK={rank} and PMI_SIZE={size} but they must be a rank, from 0")):
        distributed.launched({"PMI_RANK": rank, "PMI_SIZE": size})


def test_launchers_are_known() -> None:
    for by, rank, size in (("mpirun of Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
                           ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")):
        assert distributed.launched({rank: "1", size: "3"}) == (1, 3, by)
    assert distributed.launched({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None        # the script of sbatch


def test_a_world_of_one() -> None:
    world = distributed.start()
    x = np.array([1.0, 2.0])
    world.sum(x)
    world.mean(x)
    world.broadcast(x)
    world.barrier()
    world.prepare("cuda")
    assert (x.tolist(), world.rank, world.size, world.tell("a"), world.gather(3)) == ([1, 2], 0, 1, "a", [3])
    told: list[str] = []
    assert (world.end(), world.end("lost", 3, told.append), told) == (0, 3, ["lost"])


@pytest.mark.slow
@needs_mpi
@pytest.mark.skipif(GPUS > 1, reason="each rank has a GPU here")
def test_ranks_without_a_gpu_each_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from minidl import distributed\ndistributed.start().prepare('cuda')\n")
    done = started(2, script)
    assert done.returncode != 0
    assert re.search(r"ValueError: distributed: rank [01] of 2 cannot compute on a GPU: device: 'cuda' was asked for",
                     done.stderr)


@pytest.mark.deep
@needs_mpi
def test_ranks_on_different_devices_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from minidl import distributed\nworld = distributed.start()\n"
                      "world.prepare('cuda' if world.rank else 'cpu')\n")
    done = started(2, script)
    assert done.returncode != 0
    assert ("ValueError: distributed: the ranks compute on cpu, cuda but must all compute on one kind of device"
            in done.stderr)


@pytest.mark.parametrize(("visible", "here", "place", "left"), [
    (None, 2, 1, "1"), (None, 1, 0, None), ("4,6", 2, 1, "6"), ("3", 2, 1, "3"), ("0,1,2", 2, 0, "0"), ("", 2, 0, "")])
def test_each_rank_is_left_a_gpu_of_its_own(visible: str | None, here: int, place: int, left: str | None,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    mpi.choose(place, here)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == left


class Gathered:
    """A world of which only this is asked: what each rank says of its GPU."""

    rank, size = 0, 2

    def __init__(self, *gpus: tuple[str, str]):
        self.gpus = gpus

    def gather(self, own: Any) -> Any:
        return self.gpus


@pytest.mark.parametrize(("gpus", "says"), [
    ((("GPU 1 of a", ""), ("", "there is none")), "rank 1 of 2 cannot compute on a GPU: there is none"),
    ((("GPU 1 of a", ""),) * 2, "ranks 0 and 1 would both use GPU 1 of a but each needs its own; start as many ranks")])
def test_gpus_that_cannot_be_joined(gpus: Any, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"distributed: {says}")):
        mpi.Nccl(Gathered(*gpus))  # type: ignore[arg-type]  # as much of a world as is asked


def test_graphs_are_destroyed_before_the_gpus_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL waits for graphs that hold it. Captured graphs are in the list by themselves."""
    assert graph.give_up in pools.at_end
    done: list[str] = []
    monkeypatch.setattr(pools, "at_end", [*pools.at_end, lambda: done.append("graphs")])
    joined: Any = object.__new__(mpi.Nccl)
    joined.device = nullcontext()
    joined.device.synchronize = lambda: done.append("device")
    joined.communicator = SimpleNamespace(destroy=lambda: done.append("communicator"))
    assert joined.close()
    assert done == ["device", "graphs", "communicator"]


@pytest.mark.slow
@needs_mpi
def test_a_launcher_of_another_mpi_is_told_apart() -> None:
    """As where Open MPI's mpirun starts a Python whose mpi4py has MPICH: each process would be alone."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", "import minidl; minidl.distributed.start()"],
                          capture_output=True, text=True, timeout=600, cwd=ROOT, check=False,
                          env=surroundings(SLURM_PROCID="1", SLURM_STEP_NUM_TASKS="3"))
    assert done.returncode == 2
    assert re.fullmatch(r"minidl: error: rank 1: distributed: srun says that this is rank 1 of 3 but MPI \(.*\) finds "
                        r"rank 0 of 1; start with the mpiexec of that MPI, which pip install -e '\.\[mpi\]' brings, "
                        r"or build mpi4py with yours\n", done.stderr)


@pytest.mark.deep
@needs_mpi
def test_an_error_in_a_script_of_ones_own(tmp_path: Path) -> None:
    """An image that one rank cannot read, in the second epoch; the other waits for its gradients."""
    done = started(2, HERE / "trainings.py", "broken", tmp_path / "none.npz", tmp_path / "run")
    assert done.returncode != 0
    assert done.stderr.count("Traceback") == done.stderr.count("ValueError: image 3 is no image") == 1
    assert done.stderr.startswith("rank 1: Traceback")
    assert (tmp_path / "run" / "checkpoint.h5").exists()


@pytest.mark.deep
@needs_mpi
def test_many_replays_give_the_same_bits_on_all_ranks(tmp_path: Path) -> None:
    assert np.isfinite(result_of(2, "replays", tmp_path, 20)["loss"])
