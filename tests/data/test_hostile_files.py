"""Files from strangers: each is refused by name, in under a second and 100 MB, and none is believed."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import lzma
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks.downloads import _alone, check, content, python2_pickle, python3_pickle, served  # noqa: F401  fixtures
from hostile_files import MB, ROOMS, damaged
from tiers import marks

from minidl import data

TESTS = Path(__file__).resolve().parents[1]
MOST_SECONDS, MOST_MEMORY, MOST_TEXT = 1.0, 100 * MB, 4096
CUPY = importlib.util.find_spec("cupy")


@pytest.fixture
def rows(room: str, tmp_path: Path) -> list[dict[str, Any]]:
    """What came of each file of a room."""
    if sys.platform != "linux":
        pytest.skip("memory is counted as Linux does it")
    if room == "cache" and not CUPY:
        pytest.skip("CuPy is not installed: the cache's reader cannot be imported")
    done = subprocess.run([sys.executable, TESTS / "hostile_files.py", tmp_path, room], capture_output=True, text=True,
                          timeout=500, cwd=tmp_path, env={
                              **os.environ, "PYTHONPATH": str(TESTS.parent), "MINIDL_OFFLINE": "1", "MINIDL_DATA": "",
                              "HOME": str(tmp_path / "home"), "MINIDL_CACHE": str(tmp_path / "cache"),
                              "OPENBLAS_NUM_THREADS": "1"})
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


# test_datasets.py refuses pickles of each kind, in tiny files.
@pytest.mark.parametrize("room", [pytest.param(room, marks=marks("slow" if room == "gz" else "deep"))
                                  for room in ROOMS])
def test_hostile_files_are_refused(room: str, rows: list[dict[str, Any]]) -> None:
    assert [row["name"] for row in rows] == list(ROOMS[room][3])
    wrong = {}
    for row in rows:
        faults = []
        if row["status"] == -signal.SIGALRM:
            faults.append("hangs")
        elif row["status"]:
            faults.append(f"ends with {row['status']}")
        elif row["said"] == "accepted":
            faults.append("is accepted")
        elif row["said"] != "measured anew" if room == "cache" else not named(Path(row["path"]), row["said"]):
            faults.append(f"is not refused as it should be: {row['said'][:200]}")
        if len(row["said"]) > MOST_TEXT:
            faults.append(f"{len(row['said'])} characters")
        if row["seconds"] > MOST_SECONDS:
            faults.append(f"{row['seconds']:.1f} s")
        if row["memory"] > MOST_MEMORY:
            faults.append(f"{row['memory'] / MB:.0f} MB")
        if faults:
            wrong[row["name"]] = faults
    assert not wrong, "\n".join(f"{room}: {name}: {', '.join(faults)}" for name, faults in wrong.items())


def named(path: Path, said: str) -> bool:
    """Whether a message names a file, or says that it is not there, where it is none."""
    return str(path) in said or (not path.is_file() and f" is in none of {path.parent}, " in said)


def test_there_are_enough() -> None:
    assert sum(len(recipes) for _, _, _, recipes in ROOMS.values()) >= 200


def numpy_archive(name: str, file: str) -> bytes:
    held = {f"{axis}_{split}": np.frombuffer(content(name, f"{start}-{rest}"), np.uint8,
                                             offset=16 if axis == "x" else 8)
            for split, start in (("train", "train"), ("test", "t10k"))
            for axis, rest in (("x", "images-idx3-ubyte"), ("y", "labels-idx1-ubyte"))}
    packed = io.BytesIO()
    np.savez_compressed(packed, **{k: v.reshape(-1, 28, 28) if k[0] == "x" else v for k, v in held.items()})
    return packed.getvalue()


IMAGES, BIN = "t10k-images-idx3-ubyte", "test_batch.bin"
CONTAINERS: dict[str, tuple[str, str, Callable[[str, str], bytes]]] = {
    "idx": ("mnist", IMAGES, content), "gz": ("mnist", f"{IMAGES}.gz", lambda *file: gzip.compress(content(*file))),
    "xz": ("mnist", f"{IMAGES}.xz", lambda *file: lzma.compress(content(*file))),
    "npz": ("mnist", "mnist.npz", numpy_archive), "bin": ("cifar10", BIN, content),
    "Python 2's pickle": ("cifar10", "test_batch", lambda *file: python2_pickle(content(*file))),
    "Python 3's pickle": ("cifar10", "test_batch", lambda *file: python3_pickle(content(*file))),
}


@pytest.mark.slow
@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("container", CONTAINERS)
def test_no_damaged_file_is_believed(container: str, tmp_path: Path) -> None:
    """Whatever is changed in a good file, it is refused by name, or what it holds is right."""
    name, file, make = CONTAINERS[container]
    whole = make(name, IMAGES if name == "mnist" else BIN)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(content("mnist", "t10k-labels-idx1-ubyte"))
    right, refused = 0, list[str]()
    for seed in range(-1, 150):
        (tmp_path / file).write_bytes(damaged(whole, seed) if seed >= 0 else whole)
        try:
            found = data.load(name, "test", tmp_path)
        except ValueError as error:
            refused.append(str(error))
        else:
            right += 1
            check(found, name, "test", tmp_path)
    assert right, "not even the whole file is read"
    assert len(refused) > 40
    assert all(str(tmp_path / file) in said and len(said) < MOST_TEXT for said in refused)
