"""The sdist and the wheel that is built from it: what they hold, and that the wheel works away from the checkout."""

from __future__ import annotations

import configparser
import email
import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("elsewhere")

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.cfg").exists())
LEFT = {".git", ".venv", "venv", "build", "dist", "runs", "data"}      # at the top of a checkout, of no package
NOT_SHIPPED = ("__pycache__", ".pyc", ".so", ".o")
IN_AN_SDIST = ["setup.cfg", "pyproject.toml", "MANIFEST.in", "train.py", "conftest.py", "LICENSE", "README.md",
               "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "Dockerfile", "PKG-INFO", "docs/architecture.md",
               "docs/roofline.png", "tests/conftest.py", "tests/cases.py", "benchmarks/render.py", "zoo/lenet5.py",
               "minidl/zoo/lenet5.py", ".ci/run", ".ci/coverage.cfg", "minidl/ops/cuda/conv/README.md"]


def build(what: str, source: Path, target: Path) -> Path:
    """By the build backend itself: no network, and no copy of setuptools but the one here."""
    code = f"import sys; from setuptools import build_meta; print(build_meta.build_{what}(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(target)], cwd=source, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return target / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked sdist of a copy of this checkout: building writes beside the sources."""
    setuptools = pytest.importorskip("setuptools", reason="setuptools is not installed: nothing can be built")
    if int(setuptools.__version__.split(".")[0]) < 77:
        pytest.skip(f"setuptools is {setuptools.__version__}, and 77 is needed to build")
    folder = tmp_path_factory.mktemp("packages")
    copy = folder / "copy"
    copy.mkdir()
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*_cache")
    for entry in ROOT.iterdir():
        if entry.is_dir() and entry.name not in LEFT and not entry.name.endswith((".egg-info", "_cache")) and not (
                entry.name.startswith((".venv", ".emulated"))):
            shutil.copytree(entry, copy / entry.name, symlinks=True, ignore=unwanted)
        elif entry.is_file() and entry.name != ".git":
            shutil.copy(entry, copy)
    with tarfile.open(build("sdist", copy, folder)) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder / "unpacked", filter="data")
        else:
            tar.extractall(folder / "unpacked")
    (only,) = (folder / "unpacked").iterdir()
    return only


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    return build("wheel", sdist, sdist.parents[1])


def shipped(folder: Path) -> set[str]:
    """The sources under a folder of the checkout, as a package would hold them."""
    return {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*")
            if path.is_file() and not any(part in path.as_posix() for part in NOT_SHIPPED)}


def test_an_sdist_is_complete(sdist: Path) -> None:
    held = {path.relative_to(sdist).as_posix() for path in sdist.rglob("*") if path.is_file()}
    tops = "minidl", "zoo", "tests", "docs", "examples", "benchmarks", "notebooks"
    wanted = {*IN_AN_SDIST, *(name for top in tops for name in shipped(Path(top))
                              if "_cache" not in name and ".egg-info" not in name)}
    assert wanted - held == set()


def test_a_wheel_holds_minidl_alone_and_all_of_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        held = set(file.namelist())
    assert {name.split("/")[0] for name in held if ".dist-info" not in name} == {"minidl"}
    code = {name for name in shipped(Path("minidl")) if not name.endswith(".md")}
    zoo = {f"minidl/{name}" for name in shipped(Path("zoo"))}
    assert len(zoo) > 4
    assert {name for name in held if ".dist-info" not in name} == code | zoo


def test_a_wheel_says_what_it_is_and_has_the_command_and_the_extras(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        (points,) = [name for name in file.namelist() if name.endswith("entry_points.txt")]
        entry = configparser.ConfigParser()
        entry.read_string(file.read(points).decode())
        fields = email.message_from_bytes(file.read(points.replace("entry_points.txt", "METADATA")))
    assert dict(entry["console_scripts"]) == {"minidl": "minidl.tools.cli:main"}
    assert {"cuda12", "cuda13", "plot", "image", "safetensors", "onnx", "tensorboard", "mpi", "nccl13", "docs", "test",
            "dev"} <= {*fields.get_all("Provides-Extra")}
    for field in ("Summary", "Keywords", "Maintainer", "License-Expression", "License-File"):
        assert fields[field], field
    classifiers = fields.get_all("Classifier")
    newest = [classifier.rpartition(".")[2] for classifier in classifiers if "Python :: 3." in classifier]
    assert fields["Requires-Python"] == f">=3.{newest[0]}"
    assert newest == [str(minor) for minor in range(int(newest[0]), int(newest[-1]) + 1)]
    kinds = {classifier.split(" :: ")[0] for classifier in classifiers}
    assert {"Development Status", "Intended Audience", "Operating System", "Topic", "Typing"} <= kinds
    assert fields.get_payload().startswith("# minidl\n")


@pytest.mark.slow
def test_an_unpacked_wheel_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "site")
    code = ("import sys; sys.path.insert(0, sys.argv.pop(1)); import runpy, minidl.zoo; print(minidl.zoo.__file__); "
            "from minidl.core.host import install; print(install('plot')); "
            "sys.argv[0] = 'minidl'; runpy.run_module('minidl', run_name='__main__')")
    done = subprocess.run([sys.executable, "-I", "-c", code, str(tmp_path / "site"), "models"], cwd=tmp_path,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, hint, *lines = done.stdout.splitlines()
    assert first == str(tmp_path / "site" / "minidl" / "zoo" / "__init__.py")
    assert hint == "pip install 'matplotlib>=3.7'"
    assert any(line.startswith("lenet5 ") for line in lines)


@pytest.mark.deep
def test_a_wheel_is_installed_from_an_index(wheel: Path, tmp_path: Path) -> None:
    """A folder on this machine, by the protocol of all indexes: what lies in minidl/ are its files."""
    shelf = tmp_path / "index" / "minidl"
    shelf.mkdir(parents=True)
    shutil.copy(wheel, shelf)
    files = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(shelf.parent))
    own = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), files) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        install = ["install", "--no-deps", "--no-cache-dir", "--target", "site", "--index-url",
                   f"http://127.0.0.1:{server.server_port}/", "minidl"]
        done = subprocess.run([sys.executable, "-m", "pip", *install], cwd=tmp_path, capture_output=True, text=True,
                              check=False, env={**own, "PIP_CONFIG_FILE": os.devnull, "NO_PROXY": "*"})
        server.shutdown()
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/bin/minidl").exists()
    code = ("import minidl; from minidl.tools.cli import main; print(minidl.__file__, flush=True); "
            "raise SystemExit(main(['doctor', '--test']))")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False,
                          env={**own, "PYTHONPATH": str(tmp_path / "site")})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(str(tmp_path / "site/minidl/__init__.py"))


def test_the_container_has_a_python_and_extras_that_are_known() -> None:
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    named = ",".join(re.findall(r"EXTRAS=([\w,]+)", text)).split(",")
    assert {"plot", "cuda13"} <= set(named) <= set(config["options.extras_require"])
    (version,) = re.findall(r"^FROM python:([\d.]+)-slim$", text, re.MULTILINE)
    assert f"Python :: {version}\n" in config["metadata"]["classifiers"]


@pytest.mark.slow
def test_an_editable_install_is_found_by_a_script_beside_the_checkout(sdist: Path, tmp_path: Path) -> None:
    """Python finds the folder `minidl` of the checkout first, which has no __init__.py and is not the package."""
    checkout = tmp_path / "minidl"
    shutil.copytree(sdist, checkout, symlinks=True)
    with zipfile.ZipFile(build("editable", checkout, tmp_path)) as file:
        file.extractall(tmp_path / "site")
    code = ("import importlib.util, site; site.addsitedir('site'); "
            "print(importlib.util.find_spec('minidl').origin)")
    # -S: without the packages that are installed beside pytest, of which minidl is one
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False,
                          env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"})
    assert done.stdout.strip() == str(checkout / "minidl" / "__init__.py"), done.stderr
