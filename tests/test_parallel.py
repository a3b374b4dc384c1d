"""The threads under the CPU primitives."""

from __future__ import annotations

import inspect
import os
import signal
import threading

import numpy as np
import pytest

from minidl.ops.cpu import linear, parallel


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


def test_an_error_in_a_chunk_reaches_the_caller() -> None:
    def work(begin: int, end: int) -> None:
        if begin == 4:
            raise RuntimeError("chunk 4")

    with pytest.raises(RuntimeError, match="chunk 4"):
        parallel.parallel_for(8, 2, work)


def test_blas_threads_are_as_before_outside() -> None:
    blas = parallel._openblas()
    if blas is None:
        pytest.skip("NumPy uses another BLAS than OpenBLAS here")
    before = blas[1]()
    with parallel.one_blas_thread():
        assert blas[1]() == 1
        with parallel.one_blas_thread():
            assert blas[1]() == 1
        assert blas[1]() == 1
    assert blas[1]() == before


def test_another_blas_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_openblas", lambda: None)
    x = np.ones((100, 100), np.float32)
    np.testing.assert_array_equal(linear(x, x, None), np.full((100, 100), 100, np.float32))


def test_scratch_belongs_to_its_thread_and_grows() -> None:
    small = parallel.scratch("test", (2, 3), np.float32)
    assert small.shape == (2, 3)
    assert np.shares_memory(small, parallel.scratch("test", (3,), np.float64))
    assert parallel.scratch("test", (1000,), np.float64).shape == (1000,)
    others: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: others.append(parallel.scratch("test", (2, 3), np.float32)))
    thread.start()
    thread.join()
    assert not np.shares_memory(others[0], parallel.scratch("test", (2, 3), np.float32))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")     # Python warns of forking a process with threads
def test_a_forked_child_works_on() -> None:
    x = np.ones((200, 50), np.float32)
    expected = linear(x, x[:50, :], None)                      # starts the threads that the child will not have
    child = os.fork()
    if child == 0:
        signal.alarm(20)                                       # a child that hangs ends by this
        os._exit(0 if np.array_equal(linear(x, x[:50, :], None), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("count", [1, 2, 7])
def test_minidl_num_threads_says_how_many(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIDL_NUM_THREADS", str(count))
    assert inspect.unwrap(parallel.threads)() == count


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


def test_where_affinity_is_unknown_there_is_a_thread_for_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINIDL_NUM_THREADS", raising=False)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    for cores, wanted in ((6, 6), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        assert inspect.unwrap(parallel.threads)() == wanted


@pytest.mark.skipif(parallel.threads() == 1, reason="one thread does all the work here")
def test_chunks_are_worked_on_at_the_same_time() -> None:
    together = threading.Barrier(2, timeout=10)
    parallel.parallel_for(2, 1, lambda i, j: together.wait())  # alone, a chunk would wait in vain


def test_a_chunk_has_as_many_images_as_its_budget_holds_and_one_at_least() -> None:
    assert [parallel.images_a_chunk(size, 350) for size in (100, 350, 351, 1000, 0)] == [3, 1, 1, 1, 350]
