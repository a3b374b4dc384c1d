"""Weight files made to harm: every one is refused, or loads right, in bounded time, memory and words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from tiers import tiered

import minidl
from minidl import nn

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs a process's peak memory")

SECONDS, MEGABYTES, BYTES = 1.0, 100, 4000     # that a load may take, and the length of its message
BIG = 130 * 2**20                              # more than a load may take
ESCAPE = "\x1b[31mred\x1b[0m\r\n\x07\u202e"


def net() -> nn.Module:
    """The victim: parameters, a tie, and buffers of three types."""
    minidl.manual_seed(1)
    model = nn.Sequential(c1=nn.Conv2d(1, 2, 3), f=nn.Linear(4, 3), g=nn.Linear(4, 3))
    model.g.weight = model.f.weight
    model.mean, model.count = minidl.Tensor(np.arange(3.0)), minidl.Tensor([5])
    model.seen = minidl.Tensor(np.array([True, False, True]))
    return model


# ---------------------------------------------------------------- recipes
Recipe = Callable[[Path], None]
RECIPES: dict[str, Recipe] = {}
DATA = np.ones(2, "f4")


def edit(name: str, change: Callable[[Any], Any]) -> None:
    """A recipe that changes the good file through h5py."""
    def recipe(path: Path) -> None:
        with h5py.File(path, "r+", libver=("v108", "v110")) as file:
            change(file)

    assert name not in RECIPES
    RECIPES[name] = recipe


def rewrite(name: str, change: Callable[[bytearray], Any]) -> None:
    """A recipe that changes the good file's bytes."""
    def recipe(path: Path) -> None:
        content = bytearray(path.read_bytes())
        changed = change(content)
        path.write_bytes(content if changed is None else changed)

    assert name not in RECIPES
    RECIPES[name] = recipe


def put(place: str, **options: Any) -> Callable[[Any], Any]:
    """Another dataset at a place."""
    def change(file: Any) -> None:
        if place in file:
            del file[place]
        file.create_dataset(place, **options)

    return change


def attribute(owner: str, name: str, value: Any) -> Callable[[Any], Any]:
    """Another attribute: a str as fixed-length text, a function is called with the owner, all else as h5py has it."""
    def change(file: Any) -> None:
        if name in file[owner].attrs:
            del file[owner].attrs[name]
        file[owner].attrs[name] = np.bytes_(value.encode()) if isinstance(value, str) else value

    return change


def link(place: str, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def change(file: Any) -> None:
        made = make(file)
        if place in file:
            del file[place]
        file[place] = made

    return change


LINKS = {"soft": lambda f: h5py.SoftLink("/model/f/bias"), "dangling": lambda f: h5py.SoftLink("/nowhere"),
         "to itself": lambda f: h5py.SoftLink("."), "external": lambda f: h5py.ExternalLink("secret.h5", "/x"),
         "device": lambda f: h5py.ExternalLink("/dev/zero", "/"), "root": lambda f: f["/"],
         "model": lambda f: f["model"], "dataset": lambda f: f["model/f/bias"], "group": lambda f: f["model/f"],
         "type": lambda f: np.dtype("f4")}
for _place in ("model", "model/c1", "model/c1/bias", "model/x", "beside"):
    for _kind, _make in LINKS.items():
        edit(f"link {_kind} at {_place}", link(_place, _make))

TYPES = {"f8": np.dtype("f8"), "f2": np.dtype("f2"), "big-endian": np.dtype(">f4"), "i4": np.dtype("i4"),
         "S1000000": np.dtype("S1000000"), "V100": np.dtype("V100"), "complex": np.dtype("c8"),
         "compound": np.dtype([(f"m{i}" * 10, "f4") for i in range(200)]), "array": np.dtype(("f4", (2, 3))),
         "text": h5py.string_dtype(), "vlen": h5py.vlen_dtype("f4"), "reference": h5py.ref_dtype,
         "enum": h5py.enum_dtype({ESCAPE: 0, "b" * 1000: 1})}
for _kind, _type in TYPES.items():
    edit(f"type {_kind}", put("model/c1/bias", shape=(2,), dtype=_type))
for _kind, _options in {
        "chunked": {"data": DATA, "chunks": (1,)}, "gzip": {"data": DATA, "compression": "gzip"},
        "lzf": {"data": DATA, "compression": "lzf"}, "shuffle": {"data": DATA, "shuffle": True},
        "fletcher": {"data": DATA, "fletcher32": True}, "scaleoffset": {"data": np.ones(2, "i4"), "scaleoffset": 4},
        "bomb": {"shape": (2**34,), "dtype": "f4", "chunks": (2**25,), "compression": "gzip"},
        "external": {"shape": (2,), "dtype": "f4", "external": [("/dev/zero", 0, 8)]},
        "unlimited": {"shape": (2,), "dtype": "f4", "maxshape": (None,), "chunks": (2,)},
        "huge": {"shape": (2**50,), "dtype": "f4"}, "huge twice": {"shape": (2**30, 2**29), "dtype": "f4"},
        "32 axes": {"shape": (1,) * 32, "dtype": "f4"}, "wide axes": {"shape": (0,) + (2**60,) * 31, "dtype": "f4"},
        "none": {"shape": (2,), "dtype": "f4"}, "empty": {"data": h5py.Empty("f4")}, "scalar": {"data": np.float32(1)},
        "zero": {"shape": (0,), "dtype": "f4"}, "late": {"shape": (2,), "dtype": "f4", "fillvalue": 3}}.items():
    edit(f"storage {_kind}", put("model/c1/bias", **_options))


def virtual(file: Any) -> None:
    layout = h5py.VirtualLayout((2,), "f4")
    layout[:] = h5py.VirtualSource("/dev/zero", "x", (2,))
    del file["model/c1/bias"]
    file["model/c1"].create_virtual_dataset("bias", layout)


edit("storage virtual", virtual)
edit("compressed", put("model/x", shape=(10**7,), data=np.zeros(10**7, "f4"), chunks=(10**7,), compression="gzip"))


# -------------------------------- many names, deep and wide groups, long names
def nest(depth: int) -> Callable[[Any], Any]:
    def change(file: Any) -> None:
        group = file["model"].id
        for _ in range(depth):
            group = h5py.h5g.create(group, b"n")

    return change


def diamond(file: Any) -> None:
    """Two ways down at each of 60 levels: 2^60 paths."""
    group = file["model"]
    for _ in range(60):
        below = group.create_group("a")
        group["b"] = below
        group = below


def fill(count: int, make: Callable[[Any, bytes], Any], place: str = "model", size: int = 8) -> Callable[[Any], Any]:
    def change(file: Any) -> None:
        group = file.require_group(place).id
        for i in range(count):
            make(group, (b"%08d" % i).rjust(size, b"x"))

    return change


def soft(group: Any, name: bytes) -> None:
    group.links.create_soft(name, b"/nowhere")


def dataset(group: Any, name: bytes) -> None:
    h5py.h5d.create(group, name, h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((6,)))


for _place in ("model", "model/c1", "model/deep/er", "/", "beside"):
    edit(f"20,000 soft links in {_place}", fill(20_000, soft, _place))
edit("200 names of 60,000 letters", fill(200, soft, size=60_000))
edit("2,000 names of 1,000 letters", fill(2000, dataset, size=1000))
edit("5,000 datasets", fill(5000, dataset))
edit("5,000 empty groups", fill(5000, h5py.h5g.create))
edit("5,000 hard links", fill(5000, lambda g, name: g.links.create_hard(name, g, b"f")))
edit("10 groups deep", nest(10))
edit("3,000 groups deep", nest(3000))
edit("diamonds", diamond)
for _name in (ESCAPE, "\x1b]0;title\x07", "a\nb", "a.b", "..", "\u202ebias", "bias\u200b", "b" * 60_000, " ",
              "\U0010ffff" * 9000, "c1.weight", "-", "\u6f22" * 500):
    edit(f"name {ascii(_name)[:30]} {len(_name)}", put(f"model/{_name}", data=DATA))
edit("name not UTF-8", lambda f: dataset(f["model"].id, b"\xff\xfe\x1b[2J"))

# -------------------------------- attributes
for _name in ("format", "format_version", "minidl_version", "model", "model_args", "ties", "preprocessing", "classes",
              "unknown"):
    for _kind, _value in {"escape": ESCAPE, "long": "x" * 3_000_000, "giant": np.zeros(4_000_000, "u1"),
                          "brackets": "[" * 100_000, "digits": '{"a": ' + "9" * 500_000 + "}",
                          "empty": h5py.Empty("f4"), "object": '{"a": "b"}', "int": np.int64(2**62),
                          "not UTF-8": np.bytes_(b"\xff\x1b[2J\n")}.items():
        edit(f"{_name} {_kind}", attribute("/", _name, _value))
    edit(f"{_name} vlen", lambda f, name=_name: f.attrs.create(name, "x" * 1000, dtype=h5py.string_dtype()))
for _name in ("format", "unknown"):
    edit(f"{_name} of {BIG} bytes", attribute("/", _name, np.zeros(BIG, "u1")))
edit("JSON of many parts", attribute("/", "model_args", '{"a": [' + "[]," * 300_000 + "[]]}"))
edit("half a million classes", attribute("/", "classes", "[" + '"",' * 300_000 + '""]'))
edit("half a million channels", attribute("/", "preprocessing", '{"mean": [' + "1," * 400_000 + '1], "std": [1]}'))
for _name, _args in {"huge layer": {"hidden": 2**31 - 1}, "huge all": {"hidden": 2**31, "in_channels": 2**31},
                     "text": {"in_channels": "x" * 10**6}, "list": {"in_channels": [[]] * 10**5},
                     "digits": {"hidden": 10**4000}, "many": {f"o{i}": 1 for i in range(50_000)},
                     "escape": {"activation": ESCAPE}, "escape name": {ESCAPE: 1}}.items():
    edit(f"model of {_name}", lambda f, args=_args: [
        attribute("/", "model", "mlp")(f), attribute("/", "model_args", json.dumps(args))(f)])
edit("many ties", attribute("/", "ties", json.dumps({f"n{i}": "c1.bias" for i in range(10_000)})))
edit("tie to escape codes", attribute("/", "ties", json.dumps({"g.weight": ESCAPE})))
edit("tie of escape codes", attribute("/", "ties", json.dumps({ESCAPE: "c1.bias"})))
edit("tie to a group", attribute("/", "ties", '{"g.weight": "c1"}'))
edit("tie to itself", attribute("/", "ties", '{"g.weight": "g.weight"}'))
edit("no ties", lambda f: f.attrs.__delitem__("ties"))
edit("false type of integer", attribute("/", "format_version", np.zeros((), "V64")))
for _kind, _value in {"escape": ESCAPE, "long": "x" * 60_000, "giant": np.zeros(10**7, "u1"), "array": np.ones(9),
                      "int": np.int64(7), "none": h5py.Empty("f4")}.items():
    edit(f"sha256 {_kind}", attribute("model/c1/bias", "sha256", _value))
edit("sha256 vlen", lambda f: f["model/c1/bias"].attrs.create("sha256", "x", dtype=h5py.string_dtype()))
edit("5,000 attributes", lambda f: [f.attrs.create(f"a{i}", 1) for i in range(5000)])
edit("bool of 7", lambda f: f["model/seen"].write_direct(np.array([1, 7, 255], "u1").view(bool)))
edit("other values", lambda f: f["model/c1/bias"].write_direct(DATA))


# -------------------------------- bytes
def lookup3(data: bytes) -> int:
    """Bob Jenkins's hash, HDF5's checksum over metadata."""
    mask = 2**32 - 1
    a = b = c = 0xDEADBEEF + len(data) & mask

    def rot(x: int, k: int) -> int:
        return (x << k | x >> 32 - k) & mask

    words = np.frombuffer(data + bytes(-len(data) % 12), "<u4").tolist()
    for i in range(0, len(words) - 3, 3):
        a, b, c = a + words[i] & mask, b + words[i + 1] & mask, c + words[i + 2] & mask
        for j in (4, 6, 8, 16, 19, 4):                         # the three change places after each round
            a, b, c = b, c + b & mask, (a - c & mask) ^ rot(c, j)
    a, b, c = a + words[-3] & mask, b + words[-2] & mask, c + words[-1] & mask
    c = (c ^ b) - rot(b, 14) & mask
    a = (a ^ c) - rot(c, 11) & mask
    b = (b ^ a) - rot(a, 25) & mask
    c = (c ^ b) - rot(b, 16) & mask
    a = (a ^ c) - rot(c, 4) & mask
    b = (b ^ a) - rot(a, 14) & mask
    return (c ^ b) - rot(b, 24) & mask


def headers(content: bytes) -> list[tuple[int, int]]:
    """(begin, end) of the metadata that a checksum follows: superblock and object headers."""
    found, at = [(0, 44)], content.find(b"OHDR")
    while at >= 0:
        flags = content[at + 5]
        begin = at + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        width = 1 << (flags & 3)
        found.append((at, begin + width + int.from_bytes(content[begin:begin + width], "little")))
        at = content.find(b"OHDR", at + 4)
    return found


def reseal(content: bytearray) -> None:
    for begin, end in headers(bytes(content)):
        if end + 4 <= len(content):
            content[end:end + 4] = lookup3(bytes(content[begin:end])).to_bytes(4, "little")


def flip(seed: int, sealed: bool) -> Callable[[bytearray], Any]:
    def change(content: bytearray) -> None:
        rng = np.random.default_rng(seed)
        begin, end = headers(bytes(content))[rng.integers(len(headers(bytes(content))))]
        for _ in range(rng.integers(1, 4)):
            content[rng.integers(begin, end) if sealed else rng.integers(len(content))] = rng.integers(256)
        if sealed:
            reseal(content)

    return change


def noise(seed: int) -> Callable[[bytearray], Any]:
    def change(content: bytearray) -> None:
        rng = np.random.default_rng(seed)
        at = rng.integers(8, len(content) - 300)
        content[at:at + 300] = rng.bytes(300)

    return change


for _seed in range(15):
    rewrite(f"flipped {_seed}", flip(_seed, sealed=False))
    rewrite(f"truncated {_seed}", lambda content, seed=_seed: content[:int(len(content) * (seed + 0.5) / 15)])
    rewrite(f"noise {_seed}", noise(_seed))
for _seed in range(100):
    rewrite(f"flipped and sealed {_seed}", flip(_seed, sealed=True))
for _count in (1, 8, 1000):
    rewrite(f"{_count} bytes after the end", lambda content, count=_count: content + bytes(count))
rewrite("the file after itself", lambda content: content + content)
rewrite("the file behind a user block", lambda content: bytes(512) + content)
rewrite("nothing", lambda content: b"")
rewrite("a signature", lambda content: content[:8])


def hole(path: Path) -> None:
    os.truncate(path, 2**36)


RECIPES["a hole of 64 GB after the end"] = hole


# ---------------------------------------------------------------- the trial
CHILD = """
import json, re, sys, time
sys.dont_write_bytecode = True
sys.path[:0] = json.loads(sys.argv[1])
import numpy as np
import minidl, h5py
victim, summed = __import__(sys.argv[3]), sys.argv[3] == "test_hostile_weights"
net = victim.net if summed else victim.keras_net

def peak():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", status.read())[1]) / 1024

good, model = net().state_dict(), net()
minidl.load(model, sys.argv[2])                # the machinery, once
from minidl import zoo                     # once, for all loads to come
before = peak()
for line in sys.stdin:
    path = json.loads(line)
    for act in ("load", "build", "read_metadata"):
        for parameter in model.named_tensors():
            parameter[1].data[...] = 0
        print(json.dumps({"begins": act}), flush=True)
        started, outcome = time.process_time(), "right"
        try:
            {"load": lambda: minidl.load(model, path), "build": lambda: minidl.load(path),
             "read_metadata": lambda: minidl.weights.read_metadata(path)}[act]()
        except minidl.weights.WeightsError as error:
            outcome = str(error)
        seconds, memory = time.process_time() - started, peak() - before
        state = model.state_dict()
        whole = not summed or all(np.array_equal(state[n], good[n]) for n in good)
        same = not any(np.any(state[n]) for n in good)
        print(json.dumps({"seconds": seconds, "memory": memory, "outcome": outcome, "whole": whole, "same": same}),
              flush=True)
"""


def trial(folder: Path, ending: str, recipes: dict[str, Recipe], write: Callable[[Any, Path], None] = minidl.save,
          victim: str = "test_hostile_weights", least: float = 0.8) -> None:
    """Each recipe on a good file of a format, which one other process then loads.

    The victim's module has its net; a file of Keras has no checksums, so that other values in it are not noticed.
    """
    good = folder / f"good{ending}"
    code = list(map(str, (Path(minidl.__file__).parents[1], *Path(__file__).parents[:2])))
    write(net(), good)
    content = good.read_bytes()
    command = [sys.executable, "-c", CHILD, json.dumps(code), good, victim]
    wrong, refused = [], 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True) as child:
        watch = threading.Timer(600, child.kill)               # of what never ends
        watch.daemon = True
        watch.start()
        assert child.stdin is not None
        assert child.stdout is not None
        for name, recipe in recipes.items():
            path = folder / f"hostile{ending}"
            path.write_bytes(content)
            recipe(path)
            child.stdin.write(json.dumps(str(path)) + "\n")
            child.stdin.flush()
            for act in ("load", "build", "read_metadata"):
                assert child.stdout.readline() == json.dumps({"begins": act}) + "\n", name
                line = child.stdout.readline()
                assert line, f"{act} of {name!r} ended the process with {child.wait()}"
                got = json.loads(line)
                words = got["outcome"]
                checks = {"time": got["seconds"] <= SECONDS, "memory": got["memory"] <= MEGABYTES,
                          "length": len(words.encode()) <= BYTES, "characters": words.isprintable(),
                          "subject": words == "right" or words.startswith(f"load: '{path}' "),
                          "weights": got["whole" if (act, words) == ("load", "right") else "same"]}
                wrong += [(name, act, what, got) for what, held in checks.items() if not held]
                assert (act, words) != ("build", "right")          # the net is not the zoo's
                refused += act == "load" and words != "right"
            path.unlink()
        watch.cancel()
    assert child.returncode == 0
    assert not wrong, wrong[:10]
    assert refused >= least * len(recipes)


PARTS = slice(0, None, 9), *(slice(i, None, 3) for i in range(3))        # of the recipes: a ninth for CI, and all


def some(recipes: dict[str, Recipe], part: slice) -> dict[str, Recipe]:
    return dict(list(recipes.items())[part])


@pytest.mark.parametrize("part", tiered(PARTS, slow=1))
def test_hostile_files_are_refused_or_load_right_within_bounds(part: slice, tmp_path: Path) -> None:
    minidl.save(net(), tmp_path / "w.h5")
    content = (tmp_path / "w.h5").read_bytes()
    sealed = bytearray(content)
    reseal(sealed)
    assert sealed == content                   # so the checksums are HDF5's
    assert len(RECIPES) >= 100
    trial(tmp_path, ".h5", some(RECIPES, part))
