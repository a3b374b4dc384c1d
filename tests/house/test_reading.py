"""docs/reading.md: each file that a training step of LeNet-5 runs is on its path.

Run as a script, with cpu, cuda or compiler as its argument, it prints the files that run. For cuda no kernel is
compiled or run: the real launchers are called with the primitives of a recorded step, on the emulator's arrays.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.cfg").exists())
TEXT = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")

WAYS = ("cpu", "cuda", "compiler")         # the second and the third are read after the first
CPU_ROOM = "minidl/ops/cpu/"


def path_of(way: str) -> list[str]:
    """The files of a path, in the order of its table."""
    table = TEXT.split(f"<!-- path: {way} -->")[1].split("<!-- /path -->")[0]
    return re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE)


def lines_of(way: str) -> int:
    return sum(len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in path_of(way))


# ---------------------------------------------------------------- what runs
def ran_by(function: Callable[[], Any]) -> set[str]:
    """The files under minidl and zoo of which a call runs a function, on any thread."""
    files = set()

    def look(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            files.add(frame.f_code.co_filename)

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        function()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    inside = (Path(file).resolve() for file in files if not file.startswith("<"))
    return {file.relative_to(ROOT).as_posix() for file in inside
            if any(file.is_relative_to(ROOT / folder) for folder in ("minidl", "zoo"))}


def lenet5_step() -> Callable[..., Any]:
    """step(images, labels): one update of LeNet-5 by arrays or Tensors, as in the README."""
    from minidl import Tensor, ops, optim, zoo

    net = zoo.build("lenet5")
    sgd = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(images: Any, labels: Any) -> Any:
        images = images if isinstance(images, Tensor) else Tensor(images)
        loss = ops.cross_entropy(net(images), labels)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        return loss
    return step


def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((128, 1, 32, 32), np.float32), rng.integers(0, 10, 128)


def ran_on_the_cpu() -> set[str]:
    step, given = lenet5_step(), batch()
    return ran_by(lambda: step(*given))


def ran_by_the_compiler() -> set[str]:
    """Two recordings, and a replay."""
    import minidl

    step, given = minidl.compile(lenet5_step()), tuple(map(minidl.Tensor, batch()))
    return ran_by(lambda: [step(*given) for _ in range(3)])


def ran_on_cuda() -> set[str]:
    """The launchers and sources of an eager step by the algorithms that are the fastest for its layers on an H200."""
    from emulator import Emulator

    import minidl
    from minidl.compiler.program import Dynamic, Slot, replace
    from minidl.ops import cuda

    class Unrun(Emulator):
        """Kernels that do nothing."""

        def __init__(self) -> None:
            self.launched, self.sources = set(), set()

        def compiled(self, text: str, constants: Any) -> Any:
            self.sources |= set(re.findall(r'#line 1 "(.+?)"', text))
            return types.SimpleNamespace(run=None)

        def _launch(self, function: Any, *numbers: Any) -> None:
            self.launched.add(function.name)

    step = minidl.compile(lenet5_step())
    step(*map(minidl.Tensor, batch()))
    unrun, arrays = Unrun(), dict[Any, Any]()

    def there(value: Any) -> Any:
        if isinstance(value, Slot):
            return arrays.setdefault(value, unrun.memory.asarray(np.zeros(value.shape, value.dtype)))
        if hasattr(value, "algorithm"):                # C5's filters are as large as its images
            return value._replace(algorithm="gemm" if value.oh == 1 else "whole_image")
        return value.read() if isinstance(value, Dynamic) else value

    with unrun.running():
        calls = [(getattr(cuda, call.name), replace((call.arguments, call.options), there))
                 for call in step.recorded.calls]
        ran = ran_by(lambda: [primitive(*arguments, **options) for primitive, (arguments, options) in calls])
    assert len(unrun.launched) > 10
    ran = {file for file in ran if not file.startswith("minidl/lab/emulator/")}      # which stands in for the GPU
    written = (f"minidl/ops/cuda/{file}" for file in unrun.sources)
    return ran | {file for file in written if (ROOT / file).exists()}    # some sources are made


RAN = {"cpu": ran_on_the_cpu, "cuda": ran_on_cuda, "compiler": ran_by_the_compiler}


# ---------------------------------------------------------------- tests
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_what_runs_is_on_the_path(way: str) -> None:
    """In a process of its own: what another test has already looked up would not run again."""
    if way == "cuda" and importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed: the launchers cannot be imported")
    done = subprocess.run([sys.executable, __file__, way], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ran = set(json.loads(done.stdout))
    before = [] if way == "cpu" else path_of("cpu") if way == "cuda" else [*path_of("cpu"), *path_of("cuda")]
    assert len(ran) > 20
    assert way != "cuda" or not any(file.startswith(CPU_ROOM) for file in ran)
    assert ran - set(before) - set(path_of(way)) == set(), f"add to the path {way} of docs/reading.md"


@pytest.mark.parametrize("way", WAYS)
def test_the_document_states_what_a_path_takes(way: str) -> None:
    """Rounded to hundreds of lines, give or take one hundred."""
    stated = re.search(rf"<!-- lines: {way} -->([\d,]+) lines in (\d+) files<!-- /lines -->", TEXT)
    assert stated, f"docs/reading.md does not say what the path {way} takes"
    assert abs(int(stated[1].replace(",", "")) - lines_of(way)) <= 100
    assert int(stated[2]) == len(path_of(way))


def test_no_file_is_on_two_paths() -> None:
    files = [file for way in WAYS for file in path_of(way)]
    assert len(files) == len(set(files))


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    print(json.dumps(sorted(RAN[sys.argv[1]]())))
