"""The threads under the CPU primitives."""

from __future__ import annotations

import gc
import inspect
import itertools
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minidl.ops.cpu import linear, parallel

HANG = 100                                 # seconds: more is a deadlock


@pytest.fixture
def helper(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """There is one helper, whatever the machine. A call waits until it has let go of the jobs that it has had."""
    monkeypatch.setattr(parallel, "threads", lambda: 2)
    parallel._helpers.cache_clear()

    def wait() -> None:
        free = threading.Event()
        parallel._helpers().put(free.set)  # its next job
        assert free.wait(HANG)

    yield wait
    parallel._helpers.cache_clear()


def test_results_come_in_the_order_of_the_chunks() -> None:
    assert parallel.parallel_for(10, 3, lambda i, j: (i, j)) == [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert parallel.parallel_for(0, 3, lambda i, j: (i, j)) == []


def test_bits_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = (np.random.default_rng(i).standard_normal((200, 300), dtype=np.float32) for i in range(2))
    results = []
    for count in (1, 2, 3):
        monkeypatch.setattr(parallel, "threads", lambda count=count: count)
        results.append(linear(x, w, None))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_there_is_one_helper_fewer_than_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is a thread as well."""
    started: list[Any] = []
    monkeypatch.setattr(parallel, "threads", lambda: 5)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread))
    parallel._helpers.__wrapped__()
    assert [thread.name for thread in started] == [f"minidl-{i}" for i in range(4)]
    assert all(thread.daemon for thread in started)            # nobody waits for them at the end


def test_an_error_in_a_chunk_reaches_the_caller() -> None:
    def work(begin: int, end: int) -> None:
        if begin == 4:
            raise RuntimeError("chunk 4")

    with pytest.raises(RuntimeError, match="chunk 4"):
        parallel.parallel_for(8, 2, work)


def test_a_helper_that_is_slow_to_return_holds_no_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Any] = []

    class Kept:
        def put(self, job: Callable[[], None]) -> None:
            jobs.append(job)
            threading.Thread(target=job).start()

    monkeypatch.setattr(parallel, "threads", lambda: 2)
    monkeypatch.setattr(parallel, "_helpers", Kept)

    def filled() -> weakref.ref[np.ndarray]:
        array = np.zeros(4)
        parallel.parallel_for(4, 1, lambda i, j: array.__setitem__(slice(i, j), 1.0))
        return weakref.ref(array)

    assert filled()() is None
    assert jobs


def test_an_error_in_a_chunk_holds_no_arrays(helper: Callable[[], None]) -> None:
    """One of a helper's too: once it is handled, what the chunks worked on is free, without waiting for a collection
    of cycles."""
    main, begun = threading.current_thread(), threading.Event()

    def refused() -> weakref.ref[np.ndarray]:
        array = np.zeros(1000)

        def work(begin: int, end: int) -> None:
            if threading.current_thread() is main:
                assert begun.wait(HANG)
            else:
                begun.set()
                raise RuntimeError(f"cannot use {array[begin:end]}")

        with pytest.raises(RuntimeError, match="cannot use"):
            parallel.parallel_for(20, 1, work)
        return weakref.ref(array)

    gc.disable()
    try:
        alive = refused()
        helper()
        assert alive() is None
    finally:
        gc.enable()


@pytest.fixture
def blas() -> Callable[[], int]:
    """How many threads BLAS has now."""
    found = parallel._openblas()
    if found is None:
        pytest.skip("NumPy uses another BLAS than OpenBLAS here")
    return found[1]


def test_blas_threads_are_as_before_outside(blas: Callable[[], int]) -> None:
    before = blas()
    assert parallel.on_one_blas_thread(lambda: (blas(), parallel.on_one_blas_thread(blas), blas())) == (1, 1, 1)
    assert blas() == before


@pytest.mark.skipif(np.show_config("dicts")["Build Dependencies"]["blas"]["name"] != "scipy-openblas",
                    reason="NumPy is not one of its own wheels with OpenBLAS")
def test_the_number_of_blas_threads_is_read_and_set() -> None:
    """Looked up anew: which library, and which names its functions have."""
    found = parallel._openblas.__wrapped__()
    assert found is not None
    set_threads, get_threads = found
    before = get_threads()
    try:
        for count in (1, 2, 1):
            set_threads(count)
            assert get_threads() == count
    finally:
        set_threads(before)


def test_a_section_that_a_forked_child_finds_closed_stays_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that a handler forks within a section has left it; the section's own end counts no further."""
    given: list[int] = []
    monkeypatch.setattr(parallel, "_openblas", lambda: (given.append, lambda: 5))
    parallel.on_one_blas_thread(parallel._after_fork)
    assert (parallel._inside, given) == (0, [1, 5, 5])


@pytest.mark.parametrize("call", range(4))
def test_an_interrupt_leaves_no_section_open(call: int, blas: Callable[[], int],
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes right behind one of the calls: get_threads, set_threads, the work and set_threads again."""
    functions: Any = parallel._openblas()
    before, calls = blas(), itertools.count()

    def behind(function: Callable[..., Any]) -> Callable[..., Any]:
        def interrupted(*arguments: Any) -> Any:
            result = function(*arguments)
            if next(calls) == call:
                raise KeyboardInterrupt
            return result
        return interrupted

    set_threads, get_threads = map(behind, functions)
    with monkeypatch.context() as patch:
        patch.setattr(parallel, "_openblas", lambda: (set_threads, get_threads))
        patch.setattr(parallel, "_before", before % 2 + 1)     # what an earlier section found
        with pytest.raises(KeyboardInterrupt):
            parallel.on_one_blas_thread(behind(lambda: None))
    assert (parallel._inside, blas()) == (0, before)


def test_after_an_interrupt_no_thread_writes_any_more(helper: Callable[[], None],
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper's chunk, which ends only when it is waited for, is waited for, and no other is taken."""
    begun, awaited, wrote, main = threading.Event(), threading.Event(), [], threading.current_thread()

    class Lock:
        """One that the helper holds while it works."""

        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __enter__(self) -> None:
            if threading.current_thread() is main:
                awaited.set()
            self.lock.acquire()

        def __exit__(self, *error: object) -> None:
            self.lock.release()

    def work(begin: int, end: int) -> None:
        if threading.current_thread() is main:
            assert begun.wait(HANG)
            raise KeyboardInterrupt
        begun.set()
        assert awaited.wait(HANG)
        wrote.append(begin)

    monkeypatch.setattr(parallel, "threading", SimpleNamespace(Lock=Lock, Thread=threading.Thread))
    with pytest.raises(KeyboardInterrupt):
        parallel.parallel_for(100, 1, work)
    assert len(wrote) == 1
    helper()
    assert (len(wrote), parallel._inside) == (1, 0)


def test_a_chunk_may_do_minidls_work_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a finalizer does that the collector calls there, on whatever thread."""
    monkeypatch.setattr(parallel, "threads", lambda: 3)
    inner = parallel.parallel_for(6, 1, lambda i, j: parallel.parallel_for(4, 1, lambda k, _: 10 * i + k))
    assert inner == [[10 * i + k for k in range(4)] for i in range(6)]


def test_another_blas_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_openblas", lambda: None)
    x = np.ones((100, 100), np.float32)
    np.testing.assert_array_equal(linear(x, x, None), np.full((100, 100), 100, np.float32))


def test_scratch_is_used_again_and_grows() -> None:
    place = parallel.scratch("test", (2, 3), np.float32).ctypes.data
    assert parallel.scratch("test", (3,), np.float64).ctypes.data == place
    assert parallel.scratch("test", (1000,), np.float64).shape == (1000,)


def test_scratch_belongs_to_whoever_uses_it() -> None:
    """Within one thread too: a signal handler may come between."""
    mine = parallel.scratch("test", (2, 3), np.float32)[1:]
    handlers = parallel.scratch("test", (2, 3), np.float32)
    assert not np.shares_memory(mine, handlers)
    others: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: others.append(parallel.scratch("test", (2, 3), np.float32)))
    thread.start()
    thread.join()
    assert not any(np.shares_memory(others[0], a) for a in (mine, handlers))


@pytest.mark.parametrize(("wanted", "count"), [("1", 1), ("2", 2), ("3", 3), ("7", 7), (None, None)])
def test_how_many_threads(wanted: str | None, count: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for, 1 included; else the cores that the process may use, not all that there are."""
    monkeypatch.delenv("MINIDL_NUM_THREADS", raising=False)
    if wanted:
        monkeypatch.setenv("MINIDL_NUM_THREADS", wanted)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {2, 5, 7}, raising=False)
    assert inspect.unwrap(parallel.threads)() == (count or 3)
    if not wanted:
        monkeypatch.delattr(os, "sched_getaffinity")
        assert inspect.unwrap(parallel.threads)() == 64
        monkeypatch.setattr(os, "cpu_count", lambda: None)
        assert inspect.unwrap(parallel.threads)() == 1


TRACED = """if True:
    import sys
    def trace(frame, event, argument):
        if frame.f_globals["__name__"] != "{module}":
            return None                    # CPython 3.12.1 cannot import ast under what follows
        frame.f_trace_opcodes = True
        frame.f_locals                     # until Python 3.12 a dict, which holds what the frame's names do
        return trace
    sys.settrace(trace)
    from {module} import {name} as unused
    sys.settrace(None)
    print(unused)
    for array in [object()]:
        print(sys.getrefcount(array))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["minidl.ops.cpu.parallel._UNUSED", "minidl.ops.cuda.launch.memory.UNUSED"])
def test_a_tracer_does_not_change_what_counts_as_unused(name: str) -> None:
    if "cuda" in name:
        pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")
    module, name = name.rsplit(".", 1)
    done = subprocess.run([sys.executable, "-c", TRACED.format(module=module, name=name)], capture_output=True,
                          text=True, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    under_a_tracer, now = done.stdout.split()
    assert under_a_tracer == now
    test_scratch_is_used_again_and_grows()                     # in this process, which may have a tracer of its own


WAITS = """if True:
    import os
    from pathlib import Path
    import numpy as np
    import minidl
    from minidl import data, nn
    def build():
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    def others():                          # hundredths of a second of each thread but this one
        fields = [each.read_text().rsplit(")", 1)[1].split() for each in Path("/proc/self/task").glob("*/stat")
                  if each.parent.name != str(os.getpid())]
        return sum(int(of[11]) + int(of[12]) for of in fields)
    sets = [data.load("synthetic-digits", split, count=512) for split in ("train", "test")]
    before = others()
    minidl.sweep(build, sets, epochs=4, lr=[0.1], workers=0, folder="runs", device="cpu", progress=False)
    trained = others()
    for _ in range(400):
        np.linalg.norm(np.ones(50_000))
    print(trained - before, others() - trained)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux") or (os.cpu_count() or 1) < 2,
                    reason="Linux says how long each thread has worked, and one core needs no other thread")
def test_blas_threads_do_nothing_beside_a_training(tmp_path: Path) -> None:
    """A net's products run on our threads. A product of BLAS elsewhere, as in what a run's record says of weights,
    would wake its threads, one per core, which wait for the next one by working: in each process of a sweep."""
    environment = {**os.environ, "MINIDL_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("OPENBLAS_NUM_THREADS", None)
    done = subprocess.run([sys.executable, "-c", WAITS], cwd=tmp_path, env=environment, capture_output=True, text=True,
                          timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    trained, by_itself = map(int, done.stdout.split()[-2:])
    if not by_itself:
        pytest.skip("this BLAS has no threads of its own here")
    assert trained == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")     # Python warns of forking a process with threads
def test_a_forked_child_works_on() -> None:
    x = np.ones((200, 50), np.float32)
    expected = linear(x, x[:50, :], None)                      # starts the threads that the child will not have
    child = os.fork()
    if child == 0:
        signal.alarm(HANG)                                     # a child that hangs ends by this
        os._exit(0 if np.array_equal(linear(x, x[:50, :], None), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_that_is_forked_in_a_section_has_its_blas_threads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """And helpers of its own; a child that is forked outside of one has them as they are."""
    given: list[int] = []
    monkeypatch.setattr(parallel, "_openblas", lambda: (given.append, lambda: 1))
    monkeypatch.setattr(parallel, "_before", 5)
    for inside, expected in ((2, [5]), (0, [5])):
        monkeypatch.setattr(parallel, "_inside", inside)
        helpers = parallel._helpers()
        parallel._after_fork()
        assert (given, parallel._inside) == (expected, 0)
        assert parallel._helpers() is not helpers


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not confine a process to cores")
def test_there_is_a_thread_for_each_core_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINIDL_NUM_THREADS", raising=False)
    every = os.sched_getaffinity(0)
    assert inspect.unwrap(parallel.threads)() == len(every)
    os.sched_setaffinity(0, {min(every)})
    try:
        assert inspect.unwrap(parallel.threads)() == 1
    finally:
        os.sched_setaffinity(0, every)


@pytest.mark.usefixtures("helper")
def test_chunks_are_worked_on_at_the_same_time() -> None:
    together = threading.Barrier(2, timeout=HANG)
    parallel.parallel_for(2, 1, lambda i, j: together.wait())  # alone, a chunk would wait in vain


def test_a_chunk_has_as_many_images_as_its_budget_holds_and_one_at_least() -> None:
    assert [parallel.images_per_chunk(size, 350) for size in (100, 350, 351, 1000, 0)] == [3, 1, 1, 1, 350]
