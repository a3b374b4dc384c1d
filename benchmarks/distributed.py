"""A training step on several processes, beside one and beside peers.

    python benchmarks/distributed.py --device cpu --ranks 2 --threads 2 --batch-size 64

A step is that of train_step.py, with --batch-size images on each rank, whose gradients are averaged; the images of one
process are those of all ranks together, and so are its threads. minidl is the compiled step as `fit` runs it, on ranks
that mpiexec starts; torch is DistributedDataParallel; jax is `pmap` over a `lax.scan`, in one process. All are float32.
Each measurement is a fresh start of all processes; peers take turns; --in-a-row steps are timed on all ranks together,
until the last has ended, --steps times. Reported are the median of all, and the smallest and largest median of a start.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))   # minidl and zoo as they lie here, installed or not

import machine
import results
from results import Result, digits
from train_step import IN_A_ROW, LR, MOMENTUM, names, parser, positive, publish, random_batches

MODELS = dict.fromkeys(("lenet5", "krizhevsky2009"))
Steps = Callable[[int], object]                                # so many steps, until all ranks have done them


# ---------------------------------------------------------------- within the processes that are measured
def minidl_steps(model: str, size: int, ranks: int, device: str) -> tuple[Steps, bool]:
    """The compiled step of `training.fit`, on this rank's part; whether this rank prints."""
    import measured_nets
    import numpy as np

    from minidl import Tensor, data, distributed, optim, zoo
    from minidl.training import RunningMetrics, compiled_step

    world = distributed.start()
    world.prepare(device)
    rng, shape, whole = np.random.default_rng(0), measured_nets.item_shape(model), size * ranks
    count = whole * max(4, 51_200 // whole)
    source = data.Dataset("random", "train", rng.integers(0, 256, (count, *shape), np.uint8),
                          rng.integers(0, 10, count))
    loader = data.DataLoader(source, whole, mean=[0.5] * shape[0], std=[0.3] * shape[0], device=device,
                             part=(world.rank, world.size))
    taken, net = data.DeviceBatches(loader), zoo.build(model).to(device)
    rates = optim.Rates(Tensor(np.full((1, len(taken.sizes)), LR), device=device), taken.position)
    step = compiled_step(net, optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM), taken, RunningMetrics(device),
                         rates)
    parts = itertools.chain.from_iterable(itertools.repeat(taken))

    def run(count: int) -> None:
        for _ in range(count):
            step(next(parts), whole)
        machine.finish(device)
        world.barrier()
    return run, world.rank == 0


def torch_steps(model: str, size: int, ranks: int, rank: int, device: str) -> Steps:
    """A step of DistributedDataParallel, by Gloo on CPUs and by NCCL on GPUs."""
    import torch
    import torch_nets
    from torch import distributed as ranks_of
    from torch.nn.parallel import DistributedDataParallel

    where = torch.device(f"cuda:{rank}" if device == "cuda" else "cpu")
    if device == "cuda":
        torch.cuda.set_device(where)
    ranks_of.init_process_group("nccl" if device == "cuda" else "gloo", rank=rank, world_size=ranks)
    turn = itertools.cycle([(torch.tensor(x, device=where), torch.tensor(y, device=where))
                            for x, y in random_batches(model, size)])
    net: Any = DistributedDataParallel(torch_nets.build(model).to(where))
    sgd = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)

    def run(count: int) -> None:
        for images, labels in itertools.islice(turn, count):
            sgd.zero_grad()
            torch.nn.functional.cross_entropy(net(images), labels).backward()
            sgd.step()
        machine.finish(device)
        ranks_of.barrier()
    return run


def jax_steps(model: str, size: int, ranks: int, device: str) -> Steps:
    """One call of the devices for so many steps."""
    import jax
    import jax.numpy as jnp
    import jax_nets
    from jax import lax

    jax.config.update("jax_default_matmul_precision", "highest")
    devices = jax.local_devices()[:ranks]
    if len(devices) < ranks:
        sys.exit(f"distributed.py: error: JAX sees {len(devices)} devices but --ranks is {ranks}; ask for fewer")
    init, net = jax_nets.NETS[model]
    batches = random_batches(model, size)

    def each(x: Any) -> Any:
        """The same on all devices, where it stays."""
        alike = jax.tree.map(lambda a: jnp.broadcast_to(a, (ranks, *a.shape)), x)
        return jax.pmap(lambda x: x, devices=devices)(alike)
    params = init(jax.random.key(0))
    state, given = each((params, jax.tree.map(jnp.zeros_like, params))), each([
        jnp.stack([batch[i] for batch in batches]) for i in range(2)])

    def loss(p: Any, x: Any, y: Any) -> Any:
        log_p = jax.nn.log_softmax(net(p, x))
        return -jnp.take_along_axis(log_p, y[:, None], 1).mean()

    def steps(count: int) -> Any:
        def scan(state: Any, given: Any) -> Any:
            def step(state: Any, i: Any) -> Any:
                p, v = state
                images, labels = given
                value, grads = jax.value_and_grad(loss)(p, images[i % len(batches)], labels[i % len(batches)])
                grads = lax.pmean(grads, "ranks")
                v = jax.tree.map(lambda v, g: MOMENTUM * v + g, v, grads)
                return (jax.tree.map(lambda p, v: p - LR * v, p, v), v), value
            return lax.scan(step, state, jnp.arange(count))
        return jax.pmap(scan, axis_name="ranks", devices=devices, donate_argnums=0)
    made: dict[int, Any] = {}

    def run(count: int) -> None:
        nonlocal state
        made.setdefault(count, steps(count))
        state, losses = made[count](state, given)
        losses.block_until_ready()
    return run


def clocked(run: Steps, args: argparse.Namespace) -> list[float]:
    """Seconds of a step, of each reading of the clock."""
    taken = []
    for i in range(3 + args.steps):
        begin = time.perf_counter()
        run(args.in_a_row)
        taken += [(time.perf_counter() - begin) / args.in_a_row] if i >= 3 else []
    return taken


def torch_rank(rank: int, args: argparse.Namespace) -> None:
    """A process of PyTorch's."""
    from torch import distributed as ranks_of

    taken = clocked(torch_steps(args.models[0], args.batch_size, args.ranks, rank, args.device), args)
    if rank == 0:
        print(*taken, flush=True)
    ranks_of.destroy_process_group()


def inside(args: argparse.Namespace) -> None:
    """What is measured, in the processes that `started` asks for."""
    machine.set_threads(args.threads)
    model, size = args.models[0], args.batch_size
    if args.inside == "torch":
        from torch import multiprocessing

        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
        multiprocessing.spawn(torch_rank, (args,), nprocs=args.ranks)
        return
    if args.inside == "jax":
        print(*clocked(jax_steps(model, size, args.ranks, args.device), args))
        return
    run, prints = minidl_steps(model, size, args.ranks, args.device)
    taken = clocked(run, args)
    if prints:
        print(*taken)


# ---------------------------------------------------------------- from outside
def mpiexec() -> str:
    """The one that MPIEXEC names, else that of this Python's environment, else the system's."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = os.environ.get("MPIEXEC") or (str(beside) if beside.exists() else shutil.which("mpiexec"))
    if found is None:
        sys.exit("distributed.py: error: there is no mpiexec; run pip install -e '.[mpi]'")
    return found


def started(peer: str, model: str, ranks: int, args: argparse.Namespace) -> list[float]:
    """Seconds of a step of a peer on so many ranks, of each reading of the clock."""
    on_cpu = args.device == "cpu"
    size = args.batch_size * (args.ranks // ranks if on_cpu else 1)
    threads = args.threads // ranks if on_cpu else args.threads
    command = [sys.executable, __file__, "--inside", peer, "--models", model, "--device", args.device, "--ranks",
               str(ranks), "--batch-size", str(size), "--threads", str(max(1, threads)), "--steps", str(args.steps),
               "--in-a-row", str(args.in_a_row)]
    before = [mpiexec(), "-n", str(ranks)] if peer == "minidl" and ranks > 1 else []
    done = subprocess.run([*before, *command], stdout=subprocess.PIPE, text=True, check=True)
    return [float(word) for word in done.stdout.split()[-args.steps:]]


def measure(args: argparse.Namespace, peers: Sequence[str]) -> Result:
    result = results.about("distributed", peers, args.device, args.threads, ranks=args.ranks, batch=args.batch_size,
                           steps=args.steps, in_a_row=args.in_a_row, repeats=args.repeats)
    taken: dict[tuple[str, str, int], list[list[float]]] = {
        key: [] for key in itertools.product(args.models, peers, (1, args.ranks))}
    for i in range(args.repeats):
        for model, peer, ranks in list(taken)[::-1 if i % 2 else 1]:
            taken[model, peer, ranks].append(started(peer, model, ranks, args))
    rows = []
    for (model, peer, ranks), starts in taken.items():
        medians = [statistics.median(times) for times in starts]
        rows.append({"net": model, "peer": peer, "ranks": ranks, "median_s": statistics.median(
            itertools.chain.from_iterable(starts)), "least_s": min(medians), "largest_s": max(medians)})
    return {**result, "rows": rows}


def report(several: Sequence[Result]) -> list[str]:
    of = several[0]["method"]
    body = []
    for result in several:
        alone = {(row["net"], row["peer"]): row["median_s"] for row in result["rows"] if row["ranks"] == 1}
        body += [[row["net"], row["peer"], str(row["ranks"]), digits(row["median_s"] * 1e6),
                  results.span(row["least_s"] * 1e6, row["largest_s"] * 1e6),
                  f"{alone[row['net'], row['peer']] / row['median_s']:.2f}"] for row in result["rows"]]
    columns = "net, peer, ranks, us per step, medians of the starts, speed of a step / that of one"
    return [*results.table(columns, body, 3),
            f"{of['batch']} images on each rank; {of['repeats']} start{'s' * (of['repeats'] > 1)} of {of['steps']} "
            f"readings of the clock, {of['in_a_row']} steps between two.", "", *results.facts(several)]


def main(argv: Sequence[str] | None = None) -> None:
    flags = parser(__doc__, MODELS)
    flags.add_argument("--peers", type=names(dict.fromkeys(("torch", "jax"))), default="",
                       help="beside minidl, separated by commas")
    flags.add_argument("--ranks", type=positive, default=2, help="beside 1")
    flags.add_argument("--batch-size", type=positive, default=128, help="images on each rank")
    flags.add_argument("--steps", type=positive, default=10, help="readings of the clock, of a start")
    flags.add_argument("--repeats", type=positive, default=3, help="starts")
    flags.add_argument("--in-a-row", type=positive, default=argparse.SUPPRESS,
                       help=f"steps between two readings of the clock (default: {IN_A_ROW})")
    flags.add_argument("--inside", choices=["minidl", "torch", "jax"], help=argparse.SUPPRESS)
    args = flags.parse_args(argv)
    args = argparse.Namespace(**{"in_a_row": IN_A_ROW[args.device], **vars(args)})
    if args.inside:
        inside(args)
    else:
        publish(measure, report, args)


if __name__ == "__main__":
    main()
