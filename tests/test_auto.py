"""What `algorithm="auto"` keeps of its measurements. Times are made up: no GPU is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from minidl.ops.cuda.conv import auto
from minidl.ops.window import conv_geometry

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
        self.patch.setattr(auto, "_chosen", {})
        self.patch.setattr(auto, "_files", {})
        self.measured.clear()

    def fastest(self, times: dict[str, float | Exception], g: Any = G) -> str:
        def time_of(name: str) -> float:
            self.measured.append(name)
            found = times[name]
            if isinstance(found, Exception):
                raise found
            return found

        # a launcher stands for its name here
        self.patch.setattr(auto, "_time", lambda launcher, arguments, g: time_of(launcher))
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


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": "gemm"}', '"text"'])
def test_a_file_that_is_not_one_of_ours_is_replaced(content: str, process: Process, file: Path) -> None:
    file.parent.mkdir()
    file.write_text(content)
    assert process.fastest({"gemm": 1.0, "whole_image": 2.0}) == "gemm"
    assert [*json.loads(file.read_text()).values()] == [["gemm", "whole_image"]]


def test_a_folder_that_cannot_be_written_only_means_measuring_again(process: Process, file: Path) -> None:
    file.parent.write_text("a file where the folder would be")
    for _ in range(2):
        assert process.fastest({"gemm": 1.0, "whole_image": 2.0}) == "gemm"
        assert len(process.measured) == 2
        process.restart()


def test_what_runs_out_of_memory_is_not_chosen(process: Process) -> None:
    assert process.fastest({"gemm": MemoryError(), "whole_image": 2.0}) == "whole_image"


def test_one_alone_is_not_measured(process: Process) -> None:
    assert process.fastest({"gemm": 1.0}) == "gemm"
    assert not process.measured
