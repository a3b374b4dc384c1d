"""examples/book: the kernels and loop nests of the sources, each right by itself; and short, as in its figure."""

from __future__ import annotations

import re

import pytest
from checks.book import BOOK, check, fault
from checks.compiler import needs_compiler
from checks.own_convs import forget
from tiers import tiered

import minidl
from minidl.ops.common.sources import pasted
from minidl.zoo.own import import_file

FIGURES = ["fig16_12", "fig16_13", "fig16_15_4th", "fig16_18", "fig16_18_4th", "report2009_fig5", "report2009_fig7",
           "report2009_fig10", "report2009_fig12"]
SLOW = {"fig16_12", "fig16_18", "report2009_fig7"}
KERNELS = sorted(BOOK.glob("*.cu"))


def test_the_loop_nests_compute_what_minidl_computes() -> None:
    module = check().imported("loops.py")
    assert {name for name in vars(module) if name.startswith("fig")} == {
        "fig16_4", "fig16_5", "fig16_8", "fig16_10_4th", "fig16_9", "fig16_10", "fig16_11", "fig16_15", "fig16_16",
        "fig16_17_4th"}
    assert len([*module.beside_minidl()]) == 10
    assert fault("loops.py") == ""


@needs_compiler
@pytest.mark.parametrize("figure", [pytest.param(figure, marks=pytest.mark.slow if figure in SLOW else pytest.mark.deep)
                                    for figure in FIGURES])
def test_a_kernel_computes_its_formula(figure: str) -> None:
    assert fault(f"{figure}.cu") == ""


@pytest.mark.deep
@needs_compiler
def test_each_is_an_algorithm() -> None:
    """Of PMPP's, by `minidl check-conv`; the report's takes no layer that it draws, but says which it takes."""
    try:
        import_file(str(BOOK / "pmpp.py"))
        for name in ("fig16_12", "fig16_13", "fig16_15_4th", "fig16_18", "fig16_18_4th"):
            assert minidl.check_conv(name, shapes=3)["y"].compared >= 3
        import_file(str(BOOK / "report2009.py"))
        with pytest.raises(AssertionError, match=r"report2009 y: it refused all \d+ cases"):
            minidl.check_conv("report2009", shapes=0)
    finally:
        forget()


@pytest.mark.parametrize("architecture", tiered([75, 90], slow=1))
def test_the_kernels_compile_for_gpus(architecture: int) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")
    from checks.sources import compiled, spilled

    for file in KERNELS:
        found = spilled(compiled(pasted(file.name, file.read_text(encoding="utf-8"), set()), (), architecture))
        assert set(found.values()) == {0}, (file.name, found)


def test_each_kernel_is_as_short_as_its_figure() -> None:
    """And says of which it is. helpers.cu has what no figure has."""
    assert {file.stem for file in KERNELS} == {*FIGURES, "helpers"}
    assert [*check().KERNELS] == [f"{figure}.cu" for figure in FIGURES]
    page = (BOOK / "README.md").read_text(encoding="utf-8")
    for file in KERNELS:
        text = file.read_text(encoding="utf-8")
        if file.name != "helpers.cu":
            assert len(re.sub(r"^//.*\n", "", text, flags=re.MULTILINE).splitlines()) <= 38, file.name
            edition, number = ("report" if file.stem.startswith("report") else "PMPP",
                               re.findall(r"fig(\d+(?:_\d+)?)", file.stem)[0].replace("_", "."))
            assert re.match(rf"// .*{edition}.*Figs?\. [^:]*{number}", text), file.name
        assert f"`{file.name}`" in page
