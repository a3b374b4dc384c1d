"""README's pictures: docs/pictures.py draws them, they are small, and need nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from checks.compiler import needs_compiler

from minidl import data, nn, optim, training

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.cfg").exists())
MAX_BYTES = 60_000


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "pictures.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def texts(svg: str) -> str:
    """What a picture says. Raises for one that is not whole; nothing in it is loaded."""
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in svg
    assert not re.search(r"href|url\(|<script|<image", svg)
    return "\n".join(root.itertext())


def test_readme_shows_them_and_they_are_small() -> None:
    shown = re.findall(r"!\[[^\]]+\]\((docs/\w+\.svg)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert shown == ["docs/run.svg", "docs/race.svg"]
    said = []
    for name in shown:
        assert (ROOT / name).stat().st_size < MAX_BYTES
        said.append(texts((ROOT / name).read_text(encoding="utf-8")))
    assert "wrong answers (%)" in said[0]
    assert "a race, with no barrier" in said[1]


@pytest.mark.slow
@needs_compiler
def test_the_fault_is_what_the_command_prints(pictures: ModuleType) -> None:
    """At the same places; which of the threads it names first, the compiler has a part in."""
    place = re.compile(r"total\.cu:\d+|a race|before anything")
    drawn, kept = (texts(svg) for svg in (pictures.of_race(pictures.emulated()),
                                          (ROOT / "docs/race.svg").read_text(encoding="utf-8")))
    assert place.findall(drawn) == place.findall(kept)


def test_the_curves_are_those_of_the_report_that_it_is_given(pictures: ModuleType, tmp_path: Path) -> None:
    digits = data.DataLoader(data.load("synthetic-digits", "test").first(60), 20)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    with training.RunFolder(tmp_path / "run", net, digits, digits) as run:
        training.fit(net, optim.SGD(net.parameters(), lr=0.1), digits, digits, epochs=2, callbacks=run, say=None)
    page = pictures.plot.report(run.path, net, digits).read_text(encoding="utf-8")
    said = texts(pictures.of_run(page))
    assert all(words in said for words in ("Loss", "Error", "training, each step", "best: epoch ", "epoch"))
    with pytest.raises(SystemExit, match=r"error: the report has no section 'Error'; name the run of a classifier"):
        pictures.of_run(page.replace("<h2>Error</h2>", ""))
