"""The guides: the Python of each page runs in order, and each command has flags that its program knows."""

from __future__ import annotations

import argparse
import configparser
import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checks.compiler import needs_compiler
from tiers import of_files

from minidl.tools import cli

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.cfg").exists())
PAGES = [file for pattern in ("*.md", "docs/*.md", "examples/*.md") for file in sorted(ROOT.glob(pattern))]
BLOCK = re.compile(r"^( *)```(python|pycon|cuda|sh)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
EXTRAS = configparser.ConfigParser(interpolation=None)
EXTRAS.read(ROOT / "setup.cfg", encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    """CONTRIBUTING's are parts of files to be added; tests of their own follow them."""
    found = [] if page.name == "CONTRIBUTING.md" else BLOCK.findall(page.read_text(encoding="utf-8"))
    return [text for _, kind, text in found if kind == language]


def python(block: str) -> str:
    """A block as a program: of a session, what is typed, but for what raises."""
    if ">>> " not in block:
        return block
    return "".join(example.source for example in doctest.DocTestParser().get_examples(block) if not example.exc_msg)


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


MODULE = re.compile(r"# (\w+\.py)\b")              # the first line of a file that the reader writes
# Pages of nothing but sessions and modules have other tests, but the sessions of these are deep in test_documents.py.
LONG_SESSIONS = ("docs/report2009.md", "docs/training.md")


def runs(page: Path) -> bool:
    return page_name(page) in LONG_SESSIONS or any(
        ">>> " not in block and not MODULE.match(block) for block in blocks(page, "python"))


def bring(page: Path, folder: Path) -> None:
    """Lay into the folder what a reader of the page brings: pictures (without Pillow, empty files), tables, and its
    kernels and modules, whose first line names their file."""
    try:
        from PIL import Image
    except ImportError:
        Image = None
    pets = {f"pets/{kind}/{i}.png": 10 * i for kind in ("cat", "dog") for i in range(10)}
    for name, value in {"cat.png": 50, "dog.jpg": 200, **pets}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        if Image:
            Image.fromarray(np.full((40, 48, 3), value, np.uint8)).save(file)
    rows = [f"{i % 7},{3 * i % 11}" for i in range(40)]
    (folder / "new.csv").write_text("\n".join(["width,height", *rows]), encoding="utf-8")
    (folder / "flowers.csv").write_text("\n".join(["width,height,kind", *(
        f"{row},{('rose', 'aster')[i % 2]}" for i, row in enumerate(rows))]), encoding="utf-8")
    for kernel in blocks(page, "cuda"):
        (folder / kernel.split()[1].rstrip(".")).with_suffix(".cu").write_text(kernel, encoding="utf-8")
    for module in blocks(page, "python"):
        if name := MODULE.match(module):
            (folder / name[1]).write_text(module, encoding="utf-8")


@pytest.mark.parametrize("page", of_files(filter(runs, PAGES), page_name, deep=["docs/pictures.md"]))
def test_the_python_of_a_page_runs_in_order(page: Path, tmp_path: Path) -> None:
    """In a process of its own, since what a page registers stays. A page that needs an extra is left out without it."""
    bring(page, tmp_path)
    file = tmp_path / "page.py"
    file.write_text("\n".join(map(python, blocks(page, "python"))), encoding="utf-8")
    before = {*tmp_path.iterdir()}
    done = subprocess.run([sys.executable, str(file)], cwd=tmp_path, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "MINIDL_OFFLINE": "1", "PYTHONPATH": str(ROOT)})
    last = done.stderr.strip().rpartition("\n")[2]
    if last.startswith("ImportError") and "run pip install -e '" in last:
        pytest.skip(last)
    assert done.returncode == 0, done.stderr
    if page.name == "README.md":
        assert {*tmp_path.iterdir()} - before == {tmp_path / "digits.h5"}


EMULATED = """
from unittest import mock

from emulator import Emulator, cupy
from minidl.core.tensor import wrap

emulator = Emulator(Path(__file__).parent)
a = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
with emulator.running() as running, mock.patch.object(cupy, "empty", running.memory.empty):
    there = wrap(cupy.asarray(a))
    there.requires_grad = True
    here, y = Tensor(a, requires_grad=True), leaky_relu(there)
    y.backward(wrap(cupy.asarray(a)))
    leaky_relu(here).backward(Tensor(a))
    assert np.array_equal(np.array(y.data), leaky(a, 0.1))
    assert np.array_equal(np.array(there.grad.data), here.grad.numpy())
assert emulator.launched == {"leaky", "leaky_grad"}, emulator.launched
"""


@pytest.mark.slow
@needs_compiler
def test_the_kernel_of_the_page_agrees_with_its_numpy(tmp_path: Path) -> None:
    """docs/own-kernel.md up to its training, on the emulated GPU."""
    pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")
    page = ROOT / "docs" / "own-kernel.md"
    bring(page, tmp_path)
    file = tmp_path / "page.py"
    file.write_text("\n".join([*blocks(page, "python")[:2], EMULATED]), encoding="utf-8")
    done = subprocess.run([sys.executable, str(file)], cwd=tmp_path, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"})
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------- commands
PROGRAMS = ("minidl", "python", "python3", "pip", "pre-commit", "ruff", "mypy", "mkdocs", "bash", "compute-sanitizer")
LAUNCHERS = ("mpiexec", "srun")            # of several processes
WORDS = {"<model>": "lenet5", "<folder>": "folder", "<seed>": "1"}


INDENTED = re.compile(rf"^    ((?:[A-Z_]+=\S+ )?(?:{'|'.join(PROGRAMS)}) .*)$", re.MULTILINE)


def printed(text: str) -> list[tuple[int, str]]:
    """(place, line) of each line of commands: those in blocks of sh but for comments, and indented ones that begin with
    a program."""
    found = [(match.start(), line) for match in BLOCK.finditer(text) if match[2] == "sh"
             for line in match[3].splitlines() if not line.startswith("#")]
    return found + [(match.start(), match[1]) for match in INDENTED.finditer(text)]


def commands(text: str) -> list[list[str]]:
    """The commands of a page, in words."""
    found = []
    for _, line in printed(text):
        for name, value in WORDS.items():
            line = line.replace(name, value)
        words = shlex.split(line.replace(".venv/bin/", ""), comments=True)
        while words:
            end = words.index("&&") if "&&" in words else len(words)
            found.append([word for word in words[:end] if not re.fullmatch(r"[A-Z_]+=\S+", word)])
            words = words[end + 1:]
    return found


def declared(script: Path) -> str:
    """The text that declares a script's flags: its own, and that of the scripts beside it that it imports."""
    text = script.read_text(encoding="utf-8")
    beside = [script.with_name(f"{name}.py") for name in re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)]
    return text + "".join(file.read_text(encoding="utf-8") for file in beside if file.exists())


class Parsed(BaseException):
    """A program has taken its flags, and would begin."""


def fault(command: list[str], monkeypatch: pytest.MonkeyPatch) -> str | None:
    """What is wrong with a command, as far as its program says without running."""
    if command[0] in LAUNCHERS:            # flags of its own, and what it starts
        command = command[next((i for i, word in enumerate(command) if word in PROGRAMS), 0):]
    program, *rest = command
    if program == ".":
        return None
    if program not in PROGRAMS:
        return "unknown program"
    if program == "pip":
        extras = [name for found in re.findall(r"\[(.*?)\]", rest[-1]) for name in found.split(",")]
        return None if set(extras) <= set(EXTRAS["options.extras_require"]) else "unknown extra"
    if program == "compute-sanitizer":
        return None if (ROOT / rest[-1]).exists() else "no such file"
    if program == "bash" or (program.startswith("python") and rest[0] != "-m"):
        if not (ROOT / rest[0]).exists():
            return "no such file"
        if rest[0] != "train.py":
            known = re.findall(r'"(--[\w-]+)"', declared(ROOT / rest[0]))
            return next((f"unknown flag {word}" for word in rest if word[:2] == "--" and word not in known), None)
        program, rest = "minidl", ["train", *rest[1:]]
    if program.startswith("python") and rest[1] == "minidl":
        program, rest = "minidl", rest[2:]
    if program != "minidl":
        return None

    def parsed(self: argparse.ArgumentParser, args: list[str]) -> None:
        _, unknown = self.parse_known_args(args)
        raise Parsed(f"unknown {unknown}" if unknown else "")

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    try:
        cli.main(rest)
    except Parsed as done:
        return str(done) or None
    except SystemExit:
        return "refused"
    return "not a command"


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page.read_text(encoding="utf-8"))
                                  and page.name != "CHANGELOG.md"], ids=page_name)
def test_the_commands_of_a_page_have_flags_that_exist(page: Path, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    bring(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    found = {" ".join(command): fault(command, monkeypatch) for command in commands(page.read_text(encoding="utf-8"))}
    assert {command: wrong for command, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(("command", "wrong"), [
    ("minidl train --modle lenet5", "unknown ['--modle']"), ("minidl train --model lenet9", "refused"),
    ("minidl fly", "not a command"), ("pip install -e '.[cuda14]'", "unknown extra"), ("nvcc x.cu", "unknown program"),
    ("python benchmarks/overhaed.py", "no such file"), ("python benchmarks/conv.py --jsno x", "unknown flag --jsno"),
    ("mpiexec -n 4 python train.py --modle lenet5", "unknown ['--modle']"),
    ("mpiexec -n 4", "unknown program"), ("srun --mpi=pmi2 minidl train --model lenet5", None),
    ("python train.py --model lenet5", None), ("python -m minidl doctor", None), ("python3 -m venv .venv", None),
])
def test_a_wrong_command_is_found(command: str, wrong: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fault(shlex.split(command), monkeypatch) == wrong
