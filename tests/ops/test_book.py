"""examples/book: the kernels and loop nests of the sources, each right by itself; and short, as in its figure."""

from __future__ import annotations

import importlib.util
import re

import pytest
from checks.book import BOOK, CHECKS, fault
from checks.compiler import needs_compiler

from minidl.ops.common.sources import pasted

KERNELS = sorted(BOOK.glob("*.cu"))


def test_the_loop_nests_compute_what_minidl_computes(capsys: pytest.CaptureFixture[str]) -> None:
    assert fault("loops.py") == ""
    assert capsys.readouterr().out.count("from minidl's") == 10


@needs_compiler
@pytest.mark.parametrize("file", [pytest.param(file, marks=pytest.mark.slow if file in (
    "fig16_12.cu", "report2009_fig7.cu") else pytest.mark.deep) for file in sorted(CHECKS) if file.endswith(".cu")])
def test_a_kernel_computes_its_formula(file: str) -> None:
    assert fault(file) == ""


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [75, 90])
def test_the_kernels_compile_for_gpus(architecture: int) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")
    from checks.sources import compiled, spilled

    for file in KERNELS:
        found = spilled(compiled(pasted(file.name, file.read_text(encoding="utf-8"), set()), (), architecture))
        assert set(found.values()) == {0}, (file.name, found)


def test_each_kernel_is_as_short_as_its_figure() -> None:
    """And says of which it is. helpers.cu has what no figure has."""
    assert {file.name for file in KERNELS} == {*(file for file in CHECKS if file.endswith(".cu")), "helpers.cu"}
    page = (BOOK / "README.md").read_text(encoding="utf-8")
    for file in KERNELS:
        text = file.read_text(encoding="utf-8")
        if file.name != "helpers.cu":
            assert len(re.sub(r"^//.*\n", "", text, flags=re.MULTILINE).splitlines()) <= 38, file.name
            edition, number = ("report" if file.stem.startswith("report") else "PMPP",
                               re.findall(r"fig(\d+(?:_\d+)?)", file.stem)[0].replace("_", "."))
            assert re.match(rf"// .*{edition}.*Figs?\. [^:]*{number}", text), file.name
        assert f"`{file.name}`" in page


def test_the_plugins_name_files_that_are_there() -> None:
    for plugin in ("pmpp", "report2009"):
        assert importlib.util.spec_from_file_location(plugin, BOOK / f"{plugin}.py")
        assert f"`{plugin}.py`" in (BOOK / "README.md").read_text(encoding="utf-8")
