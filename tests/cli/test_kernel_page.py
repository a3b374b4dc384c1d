"""The page of a kernel that was emulated: `minidl emulate --html`."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from checks.compiler import needs_compiler

from minidl.lab.emulator.counts import Counts, Global, LaunchConfiguration, Request, Shared, Table
from minidl.tools import cli
from minidl.tools.plot.kernel import kernel_page

SOURCE = """// <script>alert(1)</script>
__global__ void k(const float* x, float* y) {
    __shared__ float s[64];
    s[2 * threadIdx.x] = x[threadIdx.x]; // a < b
    y[threadIdx.x] = 2 * s[2 * threadIdx.x];
}
"""
FAULT = "k.cu:5: thread (3, 0, 0) of block (0, 0, 0) reads s[<6>] before anything wrote it"
STRIDED = tuple(4096 + 8 * lane for lane in range(32))
TABLE = Table("k", "k.cu", SOURCE, 2, {
    4: Counts(Global(2, 8, 256), shared_stores=Shared(2, 4, 2)),
    5: Counts(stores=Global(2, 8, 256), shared_loads=Shared(2, 4, 2), divergent=1, flop=64)}, requests={
        (4, "loads"): Request("loads", (0, 0, 0), 0, 4, tuple(range(128, 256, 4)), 4),
        (5, "shared_loads"): Request("shared_loads", (1, 0, 0), 0, 4, STRIDED, 2,
                                     tuple(f"s[<{2 * lane}>]" for lane in range(32)))},
    launch=LaunchConfiguration(32, 0, 256, SOURCE, ()))


class Nested(HTMLParser):
    """Raises where a tag closes another one; counts tags."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_has_source_counts_faults_and_who_asks() -> None:
    page = kernel_page(TABLE, [FAULT, "y depends on the order"])
    tags = Nested(page).count
    assert "script" not in tags
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert page.count("<details open>") == 1
    assert tags["details"] == 2
    lines = re.findall(r"<tr.*?</tr>", page[page.index("What each line costs"):])
    fault = next(i for i, line in enumerate(lines) if "before anything wrote it" in line)
    assert "2 * s[2 * threadIdx.x]" in lines[fault - 1]
    assert "s[&lt;6&gt;]" in lines[fault]
    assert '<p class="note">y depends on the order</p>' in page
    assert re.search(r'background:rgb\(224 112 0/0.75\)">1</td>', lines[fault - 1])       # the only divergent branch
    assert "<dd>4</dd>" in page            # bank conflicts
    assert "a &lt; b" in page


def test_two_words_of_a_bank_have_the_other_colour() -> None:
    """By 32 lanes all do, by halves each of the two in its bank too; neighbours do not."""
    for arch, cells, rows in (0, 32, 2), (13, 32, 4):
        page = kernel_page(TABLE, [], arch)
        picture = page[page.index("<details open>"):]
        picture = picture[:picture.index("</details>")]
        assert (picture.count('class="area s1"'), picture.count('class="area s0"')) == (cells, 0)
        assert picture.count(" B</text>") == rows
        assert "lane 3: s[&lt;6&gt;]" in picture
    same = Request("shared_stores", (0, 0, 0), 1, 4, (4096,) * 8 + tuple(range(4100, 4100 + 96, 4)), 1)
    page = kernel_page(Table("k", "k.cu", SOURCE, 1, {5: Counts(shared_stores=Shared(1, 1, 0))},
                             requests={(5, "shared_stores"): same}), [])
    assert (page.count('class="area s1"'), page.count('class="area s0"'), page.count(">8x<")) == (0, 25, 1)


def test_a_request_of_global_memory_shows_sectors() -> None:
    """What is moved and not asked for is grey; of many rows some are left out."""
    column = Request("loads", (0, 0, 0), 0, 4, tuple(1024 * lane + 4 for lane in range(32)), 32)
    many = Request("stores", (0, 0, 0), 0, 16, tuple(1024 * lane + 120 for lane in range(32)), 64)
    page = kernel_page(Table("k", "k.cu", SOURCE, 1, {4: Counts(Global(1, 32, 128), Global(1, 64, 512))},
                             requests={(4, "loads"): column, (4, "stores"): many}), [])
    assert page.count('class="moved"') == 32 + 40
    assert "24 more rows are not drawn" in page


def test_a_kernel_without_accesses_has_a_page() -> None:
    Nested(kernel_page(Table("k", "k.cu", SOURCE, 1, {}), []))


@pytest.mark.slow
@needs_compiler
@pytest.mark.usefixtures("elsewhere")
def test_the_command_writes_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a file with a fault, whose exit status stays 1, and of a kernel of minidl's."""
    Path("k.cu").write_text(SOURCE.replace("// a < b", "") .replace("2 * s[2 *", "2 * s[1 + 2 *"))
    assert cli.main(["emulate", "k.cu", "--args", "x=32:ones", "y=32", "--html", "k.html"]) == 1
    page = Path("k.html").read_text()
    Nested(page)
    assert "before anything wrote it" in page
    assert capsys.readouterr().out.splitlines()[-1] == "k.html"
    for path in ".", "missing/k.html":
        assert cli.main(["emulate", "k.cu", "--html", path]) == 2
        assert re.search(r"error: --html is \S+, which is not a file in a folder that", capsys.readouterr().err)
    assert cli.main(["emulate", "max_pool2d", "--shape", "1x1x8x8", "--html", "own.html"]) == 0
    assert "max_pool2d of layers/pool/" in Path("own.html").read_text()
