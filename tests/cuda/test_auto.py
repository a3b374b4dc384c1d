"""What `algorithm="auto"` keeps of its measurements. Times are made up: no GPU is needed."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from minidl.core import pools
from minidl.core.mode import mode
from minidl.ops.common.geometry import conv_geometry
from minidl.ops.cuda import conv
from minidl.ops.cuda.conv import auto
from minidl.ops.cuda.conv.auto import measuring

G = conv_geometry((2, 3, 9, 9), (4, 3, 3, 3), None, 1, 0, "auto")
DTYPE = np.dtype(np.float32)


class Process:
    """What one process sees: a cache file, and algorithms that take so long, or raise."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.measured: list[str] = []
        self.patch = monkeypatch
        monkeypatch.setattr(auto, "cache_file", lambda: file)
        self.restart()

    def restart(self) -> None:
        self.patch.setattr(auto, "choices", {})
        self.patch.setattr(auto, "_files", {})
        self.measured.clear()

    def fastest(self, times: dict[str, float | Exception], g: Any = G) -> str | None:
        def time_of(name: str) -> float:
            self.measured.append(name)
            found = times[name]
            if isinstance(found, Exception):
                raise found
            return found

        # a launcher stands for its name here
        self.patch.setattr(measuring, "_time", lambda launcher, arguments, g: time_of(launcher))
        self.patch.setattr(measuring, "free_all_blocks", lambda: None)
        return auto.fastest("y", g, DTYPE, (), lambda *case: {name: name for name in times})  # type: ignore[misc]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "choices.json"


@pytest.fixture
def process(file: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(file, monkeypatch)


def test_what_was_measured_serves_this_process_and_later_ones(process: Process, file: Path) -> None:
    times: dict[str, float | Exception] = {"gemm": 2.0, "whole_image": 1.0}
    assert process.fastest(times) == "whole_image"
    assert sorted(process.measured) == ["gemm", "whole_image"]
    process.measured.clear()
    assert process.fastest(times) == "whole_image"
    process.restart()
    assert process.fastest({"gemm": 1.0, "whole_image": 2.0}) == "whole_image"      # as the file says
    assert not process.measured
    assert [*file.parent.iterdir()] == [file]                                        # no temporary file is left


def test_an_algorithm_that_is_new_or_gone_is_a_reason_to_measure_anew(process: Process) -> None:
    process.fastest({"gemm": 2.0, "whole_image": 1.0})
    process.restart()
    assert process.fastest({"gemm": 2.0, "whole_image": 1.0, "winograd": 0.5}) == "winograd"
    assert len(process.measured) == 3
    process.restart()
    assert process.fastest({"gemm": 2.0, "whole_image": 1.0}) == "whole_image"
    assert len(process.measured) == 2


def test_entries_of_other_cases_stay(process: Process, file: Path) -> None:
    process.fastest({"gemm": 2.0, "whole_image": 1.0})
    process.restart()
    process.fastest({"gemm": 1.0, "whole_image": 2.0}, G._replace(n=5))
    assert sorted(json.loads(file.read_text()).values()) == [["gemm", "whole_image"], ["whole_image", "gemm"]]


ENTRY = f"y float32 fp32 {' '.join(map(str, G[:-1]))}"
NOT_OURS = {
    "empty": "", "half": "{", "a list": "[1]", "a name": '{"a": "gemm"}', "text": '"text"', "NaN": "NaN",
    "no UTF-8": b"\xff", "zeros": bytes(99),
    "brackets": "[" * 100_000, "nested names": '{"a":' * 50_000, "a huge number": "9" * 10_000,
    "too large": " " * auto.MAX_BYTES + "{}", "20 MB": '{"a": [' + '"gemm",' * 3_000_000 + '"gemm"]}',
    **{f"names {names}": json.dumps({ENTRY: names}) for names in (
        ["gemm", 1], [1, "gemm"], [["gemm"], "whole_image"], [{"gemm": 1}, "whole_image"], [None, None], [],
        ["gemm", "gemm"], [True, "gemm"], {"gemm": 1, "whole_image": 2}, "gemm", 5, None)},
}


@pytest.mark.parametrize("content", NOT_OURS.values(), ids=NOT_OURS)
def test_a_file_that_is_not_one_of_ours_is_replaced(content: str | bytes, process: Process, file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    assert process.fastest({"gemm": 1.0, "whole_image": 2.0}) == "gemm"
    assert [*json.loads(file.read_text()).values()] == [["gemm", "whole_image"]]


def test_a_folder_that_cannot_be_written_only_means_measuring_again(process: Process, file: Path) -> None:
    file.parent.write_text("a file where the folder would be")
    for _ in range(2):
        assert process.fastest({"gemm": 1.0, "whole_image": 2.0}) == "gemm"
        assert len(process.measured) == 2
        process.restart()


def pipe(file: Path) -> None:
    os.mkfifo(file)


def full_folder(file: Path) -> None:
    (file / "more").mkdir(parents=True)


def loop(file: Path) -> None:
    file.symlink_to(file)


def nowhere(file: Path) -> None:
    file.symlink_to(file.parent / "not" / "there")


def no_memory(file: Path) -> None:
    file.symlink_to("/proc/self/mem")      # an error of the device where there is no memory


@pytest.mark.parametrize("make", [pipe, full_folder, loop, nowhere, no_memory])
def test_what_is_no_file_does_not_stop_a_convolution(make: Callable[[Path], None], process: Process,
                                                     file: Path) -> None:
    file.parent.mkdir()
    make(file)
    reader = threading.Thread(target=process.fastest, args=[{"gemm": 1.0, "whole_image": 2.0}], daemon=True)
    reader.start()
    reader.join(100)
    assert not reader.is_alive(), "it waits"
    assert sorted(process.measured) == ["gemm", "whole_image"]
    assert not list(file.parent.glob("*.part"))


def test_a_pipe_in_place_of_the_part_that_is_written(process: Process, file: Path) -> None:
    file.parent.mkdir()
    os.mkfifo(file.with_name(f"{file.name}.{os.getpid()}.part"))
    writer = threading.Thread(target=process.fastest, args=[{"gemm": 1.0, "whole_image": 2.0}], daemon=True)
    writer.start()
    writer.join(100)
    assert not writer.is_alive(), "it waits"
    assert [*json.loads(file.read_text()).values()] == [["gemm", "whole_image"]]


def test_what_runs_out_of_memory_is_not_chosen(process: Process) -> None:
    assert process.fastest({"gemm": MemoryError(), "whole_image": 2.0}) == "whole_image"


def test_what_cannot_be_captured_is_not_chosen(process: Process) -> None:
    assert process.fastest({"gemm": NotImplementedError(), "whole_image": 2.0}) == "whole_image"


def test_one_alone_is_not_measured(process: Process) -> None:
    assert process.fastest({"gemm": 1.0}) == "gemm"
    assert not process.measured


# ---------------------------------------------------------------- while a step records, and before it is captured
def test_nothing_is_measured_while_a_step_records(process: Process, file: Path,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode, "recorder", SimpleNamespace(recording=True))
    for _ in range(2):
        assert process.fastest({"gemm": 2.0, "whole_image": 1.0}) is None
    assert not process.measured
    assert not auto.choices
    assert not file.exists()


def test_what_is_known_is_not_looked_up_while_a_step_records(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trainings end in the same bits, whatever was measured between them."""
    process.fastest({"gemm": 2.0, "whole_image": 1.0})
    monkeypatch.setattr(mode, "recorder", SimpleNamespace(recording=True))
    assert process.fastest({"gemm": 2.0, "whole_image": 1.0}) is None
    process.restart()
    assert process.fastest({"gemm": 2.0, "whole_image": 1.0}) is None


def test_cases_are_measured_ahead(process: Process, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once each, after the kernels of all of them were asked for, on arrays of the same shapes."""
    array = SimpleNamespace(shape=(2, 3), dtype=DTYPE, nbytes=24, data=SimpleNamespace(memset_async=lambda *_: None))
    log: list[str] = []

    def launcher(name: str) -> Callable[..., None]:
        def launch_it(*arguments: Any) -> None:
            log.append(f"{name} {arguments[-1].n} dry {auto.launch.is_dry()}")
            if name == "fft":
                raise NotImplementedError
        return launch_it
    launchers = {name: launcher(name) for name in ("gemm", "fft")}

    def time_of(launch_it: Callable[..., None], arguments: Any, g: Any) -> float:
        assert arguments == (array, None)
        launch_it(g)
        return float(g.n)

    def run() -> None:
        for n in (2, 5, 2):
            log.append(f"{auto.fastest('y', G._replace(n=n), DTYPE, (array, None), lambda *_: launchers)}")
    monkeypatch.setattr(measuring, "_time", time_of)
    monkeypatch.setattr(measuring, "free_all_blocks", lambda: None)
    monkeypatch.setattr(auto.launch, "empty", lambda shape, dtype: array if shape == array.shape else None)
    measuring.ahead(run)
    asked = [f"{name} {n} dry True" for n in (2, 5) for name in launchers]
    measured = [f"{name} {n} dry False" for n in (5, 2) for name in launchers]
    assert log == [*asked[:2], "None", *asked[2:], "None", "None", *measured, "gemm", "gemm", "gemm"]
    assert len(json.loads(file.read_text())) == 2
    measuring.ahead(run)
    assert log[-3:] == ["gemm"] * 3        # one dry run is enough where nothing is to be measured
    assert len(log) == 4 + 3 + 4 + 3 + 3


def test_what_is_taken_before_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that serve all shapes."""
    monkeypatch.setattr(conv, "fastest", lambda *_: None)
    for g, name in ((G, "gemm_tiled"), (G._replace(groups=3, m=6), "grouped"),
                    (G._replace(algorithm="direct"), "direct")):
        assert conv.chosen("y", g, (np.zeros(1, DTYPE),)) == name


@pytest.mark.gpu
def test_gpu_the_device_has_the_memory_of_a_search_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of an algorithm that runs out of memory while it is captured."""
    import cupy

    made: list[Any] = []

    class Noted(pools.GraphMemory):
        def __init__(self) -> None:
            super().__init__()
            made.append(self.pool)

    def works(*arguments: Any) -> Any:
        return cupy.ones(1 << 20, np.float32)

    def fails(*arguments: Any) -> Any:
        held = works()
        if cupy.cuda.get_current_stream().ptr:         # it is being captured
            assert made[-1].total_bytes()
            raise MemoryError
        return held

    monkeypatch.setattr(measuring, "GraphMemory", Noted)
    times = measuring.measure({"works": works, "fails": fails}, (), G)
    assert times["works"] < times["fails"] == float("inf")
    assert len(made) == 2
    assert not any(pool.total_bytes() for pool in made)
    assert pools._ended.isdisjoint(made)
