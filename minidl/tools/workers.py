"""Who trains the nets of a sweep: this thread, one after the other, or processes, which share the cores of a CPU, or a
GPU with it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from minidl.core.device import leave_room, precision, set_precision, set_workspace_limit, workspace_limit
from minidl.ops.cpu import parallel
from minidl.training import Interrupted

PAUSE, FIRST_PAUSE = 0.5, 0.02             # seconds between two looks at how far the nets are, and at the first one
PATIENCE = 10.0                            # seconds for a process to end, and free its memory
MOST_ON_A_GPU = 8                          # processes
AGAIN = "again"                            # the state of a net for which there was no memory
# In messages of errors that are no MemoryError
NO_MEMORY = "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED"
AT_ITS_START = ("sweep: a process ended at its start, with status {}; in a script, call minidl.sweep below "
                '`if __name__ == "__main__":`, and define functions above it, or train in this process: workers=0, on '
                "the command line --workers 0")

Connection: TypeAlias = "connection.Connection[Any, Any]"
Outcome = tuple[str, str]                  # a net's state, and why it failed


class Net(NamedTuple):
    """One of a sweep: the name of its run folder, its settings, and how many epochs it has."""

    name: str
    settings: dict[str, Any]
    epochs: int


class Job(NamedTuple):
    """What a worker needs: the sweep's folder, and work(shared, net, run folder, told), which trains a net. It may be
    called again for a run folder that is partly there; told(text) takes a line per epoch. within: a context that each
    process enters first."""

    folder: Path
    work: Callable[..., object]
    shared: object
    within: Callable[[], AbstractContextManager[object]] = nullcontext


Done = Callable[[Net, str, str], None]     # takes what became of a net
Look = Callable[[Sequence[Net]], None]     # takes the nets that are trained now


def most_at_once(device: str) -> int:
    """How many nets are trained at once if nothing else is said: a process per CPU thread; on a GPU one for two of
    these, each with 2 GiB of its memory, or none, since a process for one net at a time would only begin later."""
    if device != "cuda":
        return parallel.threads()
    import cupy

    runtime = cupy.cuda.runtime
    memory: int = runtime.getDeviceProperties(runtime.getDevice())["totalGlobalMem"]       # this takes none of it
    count = min(MOST_ON_A_GPU, parallel.threads() // 2, memory >> 31)
    return count if count > 1 else 0


def train_all(todo: Sequence[Net], job: Job, workers: int, device: str, done: Done, look: Look,
              say: Callable[[str], object] | None) -> None:
    """Train the nets, `workers` at once, in processes, which share the CPU's threads; 0, or what cannot be sent to a
    process: one after another."""
    sent, why_not = packed(job) if workers else (b"", "")
    if why_not and say:
        say(f"sweep: trains one net after another in this process, since {why_not}")
    if sent:
        Processes(todo, job.folder, sent, min(workers, len(todo)), device, done, look).run()
    else:
        one_by_one(todo, job, done, look)


def _train(job: Job, net: Net, look: Look = lambda nets: None) -> Outcome:
    """Train a net; what it prints goes to a file of its own."""
    def told(line: str) -> None:
        print(line)
        look([net])

    with (open(job.folder / f"{net.name}.log", "a", encoding="utf-8", buffering=1) as log,
          redirect_stdout(log), redirect_stderr(log)):
        try:
            job.work(job.shared, net, job.folder / net.name, told)
        except FloatingPointError as error:
            print(error)
            return "diverged", str(error)
        except Exception as error:         # whatever a user's net may raise
            traceback.print_exc()
            no_memory = isinstance(error, MemoryError) or any(name in str(error) for name in NO_MEMORY)
            return AGAIN if no_memory else "failed", str(error) or type(error).__name__
    return "finished", ""


def one_by_one(todo: Sequence[Net], job: Job, done: Done, look: Look) -> None:
    """Train the nets in this thread."""
    with job.within():
        for net in todo:
            state, why = _train(job, net, look)
            done(net, "failed" if state == AGAIN else state, why)


# ---------------------------------------------------------------- processes
def packed(job: Job) -> tuple[bytes, str]:
    """A job in the form that can be sent to a process; or why it cannot be."""
    try:
        sent = pickle.dumps(job)
    except Exception as error:             # PicklingError, AttributeError, TypeError: as the object has it
        return b"", f"a process cannot be sent it ({error}); functions at the top of a file can be"
    if b"__main__" in sent and not hasattr(sys.modules["__main__"], "__file__"):
        return b"", "a process cannot import what was typed here; functions in a file can be"
    return sent, ""


class Processes:
    """Share nets out among `workers` processes. If one ends, its net has failed, and another one follows. If there is
    no memory for a net, its process ends, and it is trained again beside fewer others, and in the end by itself.

    On a GPU the others begin when a first net has had an epoch: so kernels are compiled once, and algorithms measured
    while nothing else is computed there.
    """

    def __init__(self, todo: Sequence[Net], folder: Path, sent: bytes, workers: int, device: str, done: Done,
                 look: Look):
        self.folder, self.sent, self.workers, self.done, self.look = folder, sent, workers, done, look
        self.context, self.queue = multiprocessing.get_context("spawn"), deque(todo)
        self.gpu = _current_gpu() if device == "cuda" else None
        self.alone = device == "cuda"                  # until a net has had an epoch
        self.before = {net.name: _written(folder, net) for net in todo} if self.alone else {}
        self.running = dict[Connection, tuple[BaseProcess, Net | None]]()      # a process, and its net
        self.idle, self.ended = list[Connection](), list[BaseProcess]()        # those without one; that are to end
        self.again, self.large = set[str](), deque[Net]()      # nets for which there was no memory, once and twice
        self.last: Net | None = None                   # the one of these that is trained by itself now
        self.begun = False                             # whether a process could do what it is there for

    def run(self) -> None:
        """Until all nets are done."""
        with _sigterm_interrupts():
            try:
                for _ in range(self.workers):
                    self.begin()
                while self.running:
                    self.turn()
            except BaseException:
                for process, _ in self.running.values():
                    process.terminate()    # a training then writes its checkpoint
                raise
            finally:
                for process in (*self.ended, *(process for process, _ in self.running.values())):
                    process.join()

    def turn(self) -> None:
        """Hear what processes say, and give nets to those that have none, before what was heard is written."""
        outcomes = list[tuple[Net, str, str]]()
        try:
            for here in connection.wait(list(self.running), FIRST_PAUSE if self.alone else PAUSE):
                self.hear(cast(Connection, here), outcomes)
            self.hand_out()
        finally:
            for outcome in outcomes:
                self.done(*outcome)
        self.look(self.nets())

    def nets(self) -> list[Net]:
        """Those that are trained now."""
        return [net for _, net in self.running.values() if net is not None]

    def begin(self) -> None:
        """Another process."""
        here, there = self.context.Pipe()
        threads = max(1, parallel.threads() // self.workers)
        process = self.context.Process(target=_serve, daemon=True, args=(
            there, threads, sys.orig_argv, self.gpu, self.workers > 1, (precision(), workspace_limit())))
        process.start()                    # this never returns if a process dies before it has read large args
        there.close()
        self.running[here] = process, None

    def end(self, here: Connection, wait: float | None = 0) -> int | None:
        """A process has nothing left to do, or is gone. Returns its status, if it ends within `wait` seconds."""
        process, _ = self.running.pop(here)
        here.close()
        process.join(wait)
        self.ended += [process] if process.exitcode is None else []
        return process.exitcode

    def hear(self, here: Connection, outcomes: list[tuple[Net, str, str]]) -> None:
        """What a process says: that it is ready for the job, or has it, or no memory; and what became of its net."""
        process, net = self.running[here]
        try:
            answer = here.recv()
        except (EOFError, OSError):
            return self.gone(here, net, outcomes)
        if answer == "ready":
            with suppress(OSError):        # it has just ended: the next look finds that
                here.send_bytes(self.sent)
            return
        state, why = answer
        if state == AGAIN:
            return self.no_memory(here, net, why, outcomes)
        self.running[here], self.begun = (process, None), True
        self.idle.append(here)
        if net is not None:
            self.alone = self.alone and state == "failed"
            outcomes.append((net, state, why))

    def gone(self, here: Connection, net: Net | None, outcomes: list[tuple[Net, str, str]]) -> None:
        """A process has ended by itself."""
        idle = here in self.idle
        if idle:
            self.idle.remove(here)
        status = self.end(here, None)
        if net is not None:
            outcomes.append((net, "failed", f"its process ended with status {status}"))
        elif not self.begun or (self.queue and not self.running and not idle):
            raise ValueError(AT_ITS_START.format(status))
        if self.queue and (idle or net is not None):
            self.begin()

    def no_memory(self, here: Connection, net: Net | None, why: str, outcomes: list[tuple[Net, str, str]]) -> None:
        """A process ends, so that its memory is free. For a net that is too large beside fewer others, too, another one
        takes its place: that net waits until there are no others."""
        if self.end(here, PATIENCE) is None:
            self.ended[-1].terminate()     # a thread that the net has left keeps it
        if net is None:
            if self.queue and not self.running:
                raise ValueError(f"sweep: no process can begin on the GPU: {why}; end what else uses its memory, or "
                                 "train in this process: workers=0, on the command line --workers 0")
        elif net is self.last or self.workers == 1:    # by itself, too
            outcomes.append((net, "failed", why))
        elif net.name not in self.again:
            self.again.add(net.name)
            self.queue.append(net)
        else:
            self.large.append(net)
            if self.queue:
                self.begin()

    def hand_out(self) -> None:
        """Give nets to processes that have none. If there are no more, these end; if no process is left, begin one."""
        self.alone = self.alone and not any(_written(self.folder, net) > self.before[net.name] for net in self.nets())
        while self.idle and self.queue and not (self.alone and self.nets()):
            here, net = self.idle.pop(), self.queue.popleft()
            self.running[here] = self.running[here][0], net
            with suppress(OSError):        # as above
                here.send(net)
        while self.idle and not self.queue:
            self.end(self.idle.pop())
        if not self.running and not self.queue and self.large:
            self.last = self.large.popleft()
            self.queue.append(self.last)
            for process in self.ended:     # their memory is free
                process.join(PATIENCE)
        if self.queue and not self.running:
            self.begin()


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Within this, SIGTERM raises Interrupted: its default would end the process before nets have their checkpoints."""
    def interrupt(signum: int, frame: object) -> None:
        raise Interrupted("sweep: SIGTERM stopped it", signum)

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _written(folder: Path, net: Net) -> int:
    """Bytes of the epochs that a net has had."""
    try:
        return (folder / net.name / "metrics.jsonl").stat().st_size
    except OSError:
        return 0


def _current_gpu() -> int:
    import cupy

    number: int = cupy.cuda.runtime.getDevice()
    return number


def _use_gpu(number: int, beside: bool) -> None:
    """Compute on this GPU; beside: while others do, too. With NVIDIA's MPS their kernels then run at the same time."""
    import cupy

    from minidl.ops.cuda.launch.device import is_served_by_mps

    cupy.cuda.Device(number).use()
    leave_room(beside and is_served_by_mps())


def _serve(parent: Connection, threads: int, command: list[str], gpu: int | None, beside: bool,
           settings: tuple[str, int]) -> None:
    """A process: train the nets that it is sent, until there are no more, or the process that sends them is gone.
    settings: what the program has set for all it computes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)       # Ctrl-C reaches the first process, which ends the others
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["MINIDL_NUM_THREADS"] = str(threads)
    parallel.threads.cache_clear()
    set_precision(settings[0])
    set_workspace_limit(settings[1])
    sys.orig_argv[:] = command             # what a run's record says of how it began
    with suppress(EOFError, ConnectionError, KeyboardInterrupt):
        parent.send("ready")
        job = pickle.loads(parent.recv_bytes())
        try:
            if gpu is not None:
                _use_gpu(gpu, beside)
        except Exception as error:
            return parent.send((AGAIN, str(error)))
        with job.within():
            parent.send(("has the job", ""))
            while True:                    # until the first process is gone, or stops this one
                parent.send(_train(job, parent.recv()))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
