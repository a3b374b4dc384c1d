"""The files of examples/book, in that folder or in a copy with a fault, and what is wrong with each."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from minidl import Tensor, ops
from minidl.lab import check_conv
from minidl.lab.emulator.watch import Kernel
from minidl.ops.common.conv.own import OWN
from minidl.ops.common.geometry import conv_geometry
from minidl.zoo.own import import_file

from .own_convs import forget
from .references import ROOT

BOOK = ROOT / "examples" / "book"
RNG = np.random.default_rng(0)


def of_loops(folder: Path, file: str) -> None:
    spec = importlib.util.spec_from_file_location("loops", folder / file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()


def of_pmpp(folder: Path, file: str) -> None:
    """By `minidl check-conv`; pmpp.py by its unrolling in two kernels, which is the last that it registers."""
    import_file(str(folder / "pmpp.py"))
    check_conv.check_conv([*OWN][-1] if file == "pmpp.py" else Path(file).stem, shapes=5)


def of_the_report(folder: Path, file: str) -> None:
    """The report's layer for a few filters and images, which `check_conv` does not draw."""
    import_file(str(folder / "report2009.py"))
    own, failures = OWN["report2009"], list[str]()
    filters, direction = {"report2009_fig5.cu": (3, "y"), "report2009_fig12.cu": (16, "dw")}[file]
    g = conv_geometry((2, 3, 32, 32), (filters, 3, 8, 8), None, 1, ((4, 3), (4, 3)), "gemm")
    with ExitStack() as stack:
        seen = check_conv._compared(own, direction, check_conv.drawn(g, 1, np.float32),
                                    check_conv._emulated(own, stack), check_conv.Seen(0, 0, 0.0), failures)
    assert (seen.compared, seen.refused) == (1, 0)
    assert not failures, "; ".join(failures)


def emulated(path: Path, grid: Any, block: Any, expected: np.ndarray, **arguments: Any) -> None:
    """One launch, whose last argument is the result."""
    done = Kernel(path).run(grid, block, arguments)
    assert not done.faults, "; ".join(done.faults)
    np.testing.assert_allclose(done.arrays[[*arguments][-1]].reshape(expected.shape), expected, rtol=1e-6)


def of_averages(folder: Path, file: str) -> None:
    plates = RNG.random((3, 1, 32, 32), np.float32)
    emulated(folder / file, 3, (32, 8), ops.avg_pool2d(Tensor(plates), 4).numpy(), plates=plates, targets=(3 * 64,))


def of_supersampling(folder: Path, file: str) -> None:
    """The matrix of Fig. 9 has a column per image. An average's gradient would be a sixteenth of it."""
    matrix = RNG.random((2 * 64, 32), np.float32)
    expected = np.kron(matrix.T.reshape(32, 2, 8, 8), np.ones((4, 4), np.float32))
    emulated(folder / file, (2, 8), (16, 16), expected, derivatives=matrix, F=2, N=32, plates=(32 * 2 * 1024,))


CHECKS: dict[str, Callable[[Path, str], None]] = {
    "loops.py": of_loops, "pmpp.py": of_pmpp, "fig16_12.cu": of_pmpp, "fig16_13.cu": of_pmpp,
    "fig16_15_4th.cu": of_pmpp, "fig16_18.cu": of_pmpp, "fig16_18_4th.cu": of_pmpp,
    "report2009_fig5.cu": of_the_report, "report2009_fig12.cu": of_the_report,
    "report2009_fig7.cu": of_averages, "report2009_fig10.cu": of_supersampling}


def fault(file: str, folder: Path = BOOK) -> str:
    """What is wrong with a file of that folder, in one line; "" if nothing is."""
    try:
        CHECKS[file](folder, file)
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())
    finally:
        forget()
    return ""
