"""Who trains the nets of a sweep: this thread, one after the other; for a GPU several threads of this process, each
with a stream of its own, so that small nets fill it together; or processes on a CPU, which share its cores."""

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
from contextvars import ContextVar
from multiprocessing import connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TextIO

from minidl.core.device import shared_with_threads
from minidl.ops.cpu import parallel
from minidl.training.checkpoint import Interrupted, Stop

PAUSE, FIRST_PAUSE = 0.5, 0.02             # seconds between two looks at how far the nets are, and at the first one
AGAIN = "again"                            # the state of a net that gives its place back
AT_ITS_START = ("sweep: a process ended at its start, with status {}; in a script, call minidl.sweep below "
                '`if __name__ == "__main__":`, and define functions above it, or train in this process: workers=0')

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


def train_all(todo: Sequence[Net], job: Job, workers: int, device: str, done: Done, look: Look,
              say: Callable[[str], object] | None) -> None:
    """Train the nets, `workers` at once: in processes, which share the CPU's threads, or for "cuda" in threads; 0, or
    what cannot be sent to a process: one after another."""
    sent, why_not = packed(job) if workers and device == "cpu" else (b"", "")
    if why_not and say:
        say(f"sweep: trains one net after another in this process, since {why_not}")
    workers = min(workers, len(todo))
    if sent:
        in_processes(todo, sent, workers, parallel.threads(), done, look)
    elif workers > 1 and device == "cuda":
        in_threads(todo, job, workers, done, look)
    else:
        one_by_one(todo, job, done, look)


# ---------------------------------------------------------------- in this thread
def one_by_one(todo: Sequence[Net], job: Job, done: Done, look: Look) -> None:
    """Train the nets in this thread."""
    with job.within():
        for net in todo:
            done(net, *_train(job, net, _redirected, look))


def _train(job: Job, net: Net, printed_to: Callable[[TextIO], AbstractContextManager[object]],
           look: Look = lambda nets: None, again: Callable[[Exception], bool] = lambda error: False) -> Outcome:
    """Train a net; what it prints goes to a file of its own. again: whether after an error it is to be trained again.
    """
    def told(line: str) -> None:
        print(line)
        look([net])

    with open(job.folder / f"{net.name}.log", "a", encoding="utf-8", buffering=1) as log, printed_to(log):
        try:
            job.work(job.shared, net, job.folder / net.name, told)
        except FloatingPointError as error:
            print(error)
            return "diverged", str(error)
        except Exception as error:         # whatever a user's net may raise
            traceback.print_exc()
            return AGAIN if again(error) else "failed", str(error) or type(error).__name__
    return "finished", ""


@contextmanager
def _redirected(log: TextIO) -> Iterator[None]:
    with redirect_stdout(log), redirect_stderr(log):
        yield


# ---------------------------------------------------------------- threads
def in_threads(todo: Sequence[Net], job: Job, threads: int, done: Done, look: Look) -> None:
    """Share the nets out among `threads` threads. The others wait until a first net has an epoch: so kernels are
    compiled, and algorithms measured, on an idle GPU. A net that gets no memory beside others is trained again by fewer
    threads. If this is interrupted, the nets stop as by a signal, with a checkpoint."""
    team, left = _Team(todo, job), len(todo)
    lines = {net.name: _written(job, net) for net in todo}
    with redirect_stdout(_Printed(sys.stdout)), redirect_stderr(_Printed(sys.stderr)), \
            _sigterm_interrupts(), job.within():
        try:
            team.begin(min(1, left))
            while left:
                with suppress(Empty):
                    found = team.ended.get(timeout=PAUSE if len(team.threads) > 1 else FIRST_PAUSE)
                    if isinstance(found, BaseException):
                        raise found
                    left -= 1
                    done(found[0], *found[1])
                now = list(team.running.values())
                look(now)
                if len(team.threads) == 1 and any(_written(job, net) > lines[net.name] for net in now):
                    team.begin(min(threads, left) - 1)
        except BaseException as error:
            team.end(getattr(error, "signum", signal.SIGINT))
            raise


class _Team:
    """Threads that take nets from a queue. ended: what became of each net, or the error that a thread ended by."""

    def __init__(self, todo: Sequence[Net], job: Job):
        self.job, self.device, self.stop, self.lock = job, _device(), Stop(), threading.Lock()
        self.queue, self.ended = deque(todo), SimpleQueue[tuple[Net, Outcome] | BaseException]()
        self.running, self.beside = dict[str, Net](), set[str]()       # beside: those that were not always alone
        self.threads = list[threading.Thread]()

    def begin(self, count: int) -> None:
        """More threads."""
        for _ in range(count):
            self.threads.append(threading.Thread(target=self._serve, daemon=True))
            self.threads[-1].start()

    def end(self, signum: int) -> None:
        """Stop all as by a signal, and wait for them."""
        self.queue.clear()
        self.stop.signum = signum
        for thread in self.threads:
            thread.join()

    def _serve(self) -> None:
        """What each thread does."""
        try:
            with _on_a_stream(self.device), self.stop.obeyed():
                while net := self._take():
                    outcome = self._outcome(net)
                    others = self._leave(net, again=outcome[0] == AGAIN)
                    if outcome[0] != AGAIN:
                        self.ended.put((net, outcome))
                    elif others:
                        return
        except BaseException as error:     # there is no stream, for example
            self.ended.put(error)

    def _take(self) -> Net | None:
        with self.lock:
            if not self.queue:
                return None
            net = self.queue.popleft()
            self.running[net.name] = net
            if len(self.running) > 1:
                self.beside.update(self.running)
            return net

    def _outcome(self, net: Net) -> Outcome:
        try:
            return _train(self.job, net, _logged,
                          again=lambda error: isinstance(error, MemoryError) and net.name in self.beside)
        except (KeyboardInterrupt, SystemExit) as error:
            return "failed", f"its thread ended by {type(error).__name__}: {error}"

    def _leave(self, net: Net, again: bool) -> bool:
        """A net has come to its end, or is to be trained again. Returns whether others are trained now."""
        with self.lock:
            del self.running[net.name]
            self.beside.discard(net.name)
            if again:
                self.queue.appendleft(net)
            return bool(self.running)


def _written(job: Job, net: Net) -> int:
    """Bytes of the epochs that a net has had."""
    path = job.folder / net.name / "metrics.jsonl"
    return path.stat().st_size if path.exists() else 0


_log: ContextVar[TextIO | None] = ContextVar("log", default=None)      # of the net that this thread works for


@contextmanager
def _logged(log: TextIO) -> Iterator[None]:
    before = _log.set(log)
    try:
        yield
    finally:
        _log.reset(before)


class _Printed:
    """In the place of sys.stdout or sys.stderr: what is printed by a thread that trains a net, or by the thread that
    makes its batches, goes to the net's log."""

    def __init__(self, before: TextIO | None):
        self._before = before or open(os.devnull, "w", encoding="utf-8")       # noqa: SIM115  # until the end

    def __getattr__(self, name: str) -> Any:
        return getattr(_log.get() or self._before, name)


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


def _device() -> int:
    """The current GPU."""
    import cupy

    device: int = cupy.cuda.runtime.getDevice()
    return device


@contextmanager
def _on_a_stream(device: int) -> Iterator[None]:
    """Within this, the thread's work is on a stream of its own."""
    import cupy

    with cupy.cuda.Device(device), cupy.cuda.Stream(non_blocking=True), shared_with_threads():
        yield


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


def in_processes(todo: Sequence[Net], sent: bytes, workers: int, threads: int, done: Done, look: Look) -> None:
    """Share the nets out among `workers` processes. If one ends, its net has failed, and another one follows."""
    context, queue = multiprocessing.get_context("spawn"), deque(todo)
    running: dict[Any, tuple[Any, Net | None]] = {}

    def begin() -> None:
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there, max(1, threads // workers), sys.orig_argv), daemon=True)
        process.start()                    # this never returns if a process dies before it has read large args
        there.close()
        running[here] = process, None

    try:
        for _ in range(workers):
            begin()
        while running:
            ready: list[Any] = connection.wait(list(running), PAUSE)
            for here in ready:
                process, net = running[here]
                try:
                    if (answer := here.recv()) == "ready":
                        here.send_bytes(sent)
                        continue
                except (EOFError, OSError):
                    process.join()
                    if net is None:
                        raise ValueError(AT_ITS_START.format(process.exitcode)) from None
                    del running[here]
                    done(net, "failed", f"its process ended with status {process.exitcode}")
                    if queue:
                        begin()
                    continue
                if net is not None:
                    done(net, *answer)
                if queue:
                    running[here] = process, queue.popleft()
                    with suppress(OSError):            # it has just ended: the next look finds that
                        here.send(running[here][1])
                else:
                    del running[here]
                    here.close()
                    process.join()
            look([net for _, net in running.values() if net is not None])
    except BaseException:
        for process, _ in running.values():
            process.terminate()            # a training then writes its checkpoint
        for process, _ in running.values():
            process.join()
        raise


def _serve(parent: connection.Connection[Any, Any], threads: int, command: list[str]) -> None:
    """A process: train the nets that it is sent, until there are no more, or the process that sends them is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)       # Ctrl-C reaches the first process, which ends the others
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["MINIDL_NUM_THREADS"] = str(threads)
    parallel.threads.cache_clear()
    sys.orig_argv[:] = command             # what a run's record says of how it began
    parent.send("ready")
    job = pickle.loads(parent.recv_bytes())
    parent.send("has the job")
    with suppress(EOFError, ConnectionError, KeyboardInterrupt), job.within():
        while True:                        # until the first process is gone, or stops this one
            parent.send(_train(job, parent.recv(), _redirected))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
