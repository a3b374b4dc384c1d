"""Weight files of the formats beside HDF5, made to harm: as test_hostile_weights.py has it for those."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hostile_files import archive, entry
from test_hostile_weights import BIG, ESCAPE, PARTS, Recipe, some, trial
from test_keras_weights import keras_file
from tiers import tiered

import minidl
from minidl import nn

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs a process's peak memory")

Change = Callable[[bytes], bytes]
DATA = np.ones(2, "f4")
# Texts that stand for one of the attributes, and for all of them.
TEXTS = {"escape": ESCAPE, "long": "x" * 3_000_000, "brackets": "[" * 100_000, "empty": "", "object": '{"a": "b"}',
         "digits": '{"a": ' + "9" * 500_000 + "}", "parts": '{"a": [' + "[]," * 300_000 + "[]]}",
         "many parts": '{"a": [' + "[]," * 600_000 + "[]]}", "objects": "[" + '{"":0},' * 250_000 + "0]",
         "not JSON": "{'a': 1}", "surrogate": "\\ud800", "null": "null", "number": "7", "list": "[1]"}


def written(change: Change) -> Recipe:
    def recipe(path: Path) -> None:
        path.write_bytes(change(path.read_bytes()))

    return recipe


def attributes(change: Callable[[dict[str, Any]], Any]) -> Callable[[str], str]:
    """From the good file's attributes as JSON to others."""
    def other(text: str) -> str:
        found = json.loads(text)
        change(found)
        return json.dumps(found)

    return other


OTHERS: dict[str, Callable[[str], str]] = {f"metadata {kind}": lambda _, text=text: text
                                           for kind, text in TEXTS.items()}
for _name in ("format", "format_version", "minidl_version", "model", "model_args", "ties", "preprocessing", "classes",
              "sha256", "unknown"):
    for _kind, _value in {**TEXTS, "a list": [1], "null": None, "true": True, "half": 0.5, "nested": {"a": {}},
                          "huge": 10**400}.items():
        OTHERS[f"{_name} {_kind}"] = attributes(lambda found, name=_name, value=_value: found.update({name: value}))
    OTHERS[f"no {_name}"] = attributes(lambda found, name=_name: found.pop(name, None))
for _kind, _value in {"escape": ESCAPE, "long": "x" * 60_000, "none": None, "list": [1], "other": "0" * 64}.items():
    OTHERS[f"checksum {_kind}"] = attributes(lambda found, value=_value: found["sha256"].update({"c1.bias": value}))
OTHERS["many ties"] = attributes(lambda found: found.update(
    ties=json.dumps({f"n{i}": "c1.bias" for i in range(10_000)})))
OTHERS["tie of escape codes"] = attributes(lambda found: found.update(ties=json.dumps({ESCAPE: "c1.bias"})))
OTHERS["many checksums"] = attributes(lambda found: found["sha256"].update({f"n{i}": "x" for i in range(50_000)}))
for _kind, _args in {"huge layer": {"hidden": 2**31 - 1}, "text": {"in_channels": "x" * 10**6}}.items():
    OTHERS[f"model of {_kind}"] = attributes(lambda found, args=_args: found.update(
        model="mlp", model_args=json.dumps(args)))


def damage(count: int) -> dict[str, Recipe]:
    """Bytes changed, cut off and added."""
    def flipped(seed: int) -> Change:
        def change(content: bytes) -> bytes:
            rng, changed = np.random.default_rng(seed), bytearray(content)
            for _ in range(rng.integers(1, 4)):
                near = rng.integers(3)         # most of what a format says of itself lies at an end
                at = int(rng.integers(len(changed)) if near == 0 else rng.integers(300))
                changed[-1 - at if near == 2 else at] = rng.integers(256)
            return bytes(changed)

        return change

    def hole(path: Path) -> None:
        os.truncate(path, 2**36)

    return {**{f"flipped {seed}": written(flipped(seed)) for seed in range(count)},
            **{f"truncated {i}": written(lambda content, i=i: content[:len(content) * i // 20]) for i in range(20)},
            "more after the end": written(lambda content: content + bytes(9)),
            "twice": written(lambda content: content + content), "before it": written(lambda content: b"x" + content),
            "HDF5": written(lambda content: b"\x89HDF\r\n\x1a\n" + content), "nothing": written(lambda content: b""),
            "a hole of 64 GB after the end": hole}


# ---------------------------------------------------------------- .npz
def npy(array: np.ndarray) -> bytes:
    held = io.BytesIO()
    np.save(held, array)
    return held.getvalue()


def header(descr: str = "'<f4'", shape: str = "(2,)", order: str = "False", values: bytes = DATA.tobytes(),
           version: bytes = b"\1\0") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + values


Members = list[tuple[zipfile.ZipInfo, bytes]]


def zipped(change: Callable[[Members], Any], compression: int = zipfile.ZIP_STORED) -> Recipe:
    """A recipe that changes the good archive's members."""
    def recipe(path: Path) -> None:
        with zipfile.ZipFile(path) as read:
            members = [(info, read.read(info)) for info in read.infolist()]
        change(members)
        with zipfile.ZipFile(path, "w") as file:
            for info, content in members:
                file.writestr(info.filename, content, compress_type=compression)

    return recipe


def put(name: str, content: bytes) -> Recipe:
    """Another member in a member's place, or one more."""
    def change(members: Members) -> None:
        at = next((i for i, (info, _) in enumerate(members) if info.filename == name), len(members))
        members[at:at + 1] = [(zipfile.ZipInfo(name), content)]

    return zipped(change)


def noted(other: Callable[[str], str]) -> Recipe:
    def change(members: Members) -> None:
        at = next(i for i, (info, _) in enumerate(members) if info.filename == "minidl.json")
        members[at] = members[at][0], other(members[at][1].decode()).encode("utf-8", "surrogatepass")

    return zipped(change)


def add(*more: tuple[str, bytes]) -> Recipe:
    return zipped(lambda members: members.extend((zipfile.ZipInfo(name), content) for name, content in more))


GOOD_NOTE = json.dumps({"format": "minidl", "format_version": 1, "model": "x", "model_args": "{}", "sha256": {}})


def summed(parts: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """A member and its line in the directory with the checksum that they lack."""
    member, line = parts
    if not member:
        return parts
    length, more = struct.unpack_from("<2H", member, 26)
    code = struct.pack("<L", zlib.crc32(member[30 + length + more:]))
    return member[:14] + code + member[18:], line[:16] + code + line[20:]


def stored(*entries: tuple[bytes, bytes], **facts: Any) -> Recipe:
    """An archive of which the test writes each byte."""
    return written(lambda content: archive(*(summed(e) for e in (entry(GOOD_NOTE.encode(), name=b"minidl.json"),
                                                                 *entries)), **facts))


NPZ: dict[str, Recipe] = {
    **{name: noted(other) for name, other in OTHERS.items()}, **damage(150),
    **{f"array {name}": put("c1.bias.npy", content) for name, content in {
        "pickle": npy(np.array([{"a": 1}, 2], object)), "a pickle alone": pickle.dumps([1]),
        "f8": npy(DATA.astype("f8")), "f2": npy(DATA.astype("f2")), "big-endian": npy(DATA.astype(">f4")),
        "columns": npy(np.ones((2, 2), "f4").T), "text": npy(np.array(["a"])),
        "record": npy(np.zeros(2, [("a", "f4")])), "bool": npy(np.ones(2, bool)),
        "other values": npy(DATA), "other shape": npy(np.ones(3, "f4")), "scalar": npy(np.float32(1)),
        "empty": b"",
        "magic": b"\x93NUMPY", "version 2": header(version=b"\2\0"), "huge": header(shape=f"({2**50},)"),
        "huge twice": header(shape=f"({2**40}, {2**40})"), "negative": header(shape="(-2,)"), "digits": header(
            shape=f"({'9' * 400},)"), "64 axes": header(shape="(" + "1, " * 64 + ")"), "object": header("'|O'"),
        "void": header("'|V2147483647'"), "zero": header(shape="(0,)"), "brackets": header(shape="(" * 900),
        "a long header": b"\x93NUMPY\1\0\xff\xff" + b"(" * 65_535, "more values": header(values=bytes(9)),
        "fewer values": header(values=bytes(7)), "true order": header(order="True"), "a call": header(
            "__import__('os').system('true')"), "escape": header(f"'{ESCAPE}'"), "bool of 7": header("'|b1'"),
        "130 MB": header(values=bytes(BIG))}.items()},
    "truth of 7": put("seen.npy", header("'|b1'", "(3,)", values=b"\1\7\xff")),
    "compressed": zipped(lambda members: None, zipfile.ZIP_DEFLATED),
    "bzip2": zipped(lambda members: None, zipfile.ZIP_BZIP2),
    "a bomb": zipped(lambda members: members.append((zipfile.ZipInfo("x.npy"), bytes(BIG))), zipfile.ZIP_DEFLATED),
    "a bomb of metadata": zipped(lambda members: members.insert(0, (
        zipfile.ZipInfo("minidl.json"), b"[" + b" " * BIG)), zipfile.ZIP_DEFLATED),
    "no metadata": zipped(lambda members: members.pop(0)), "metadata twice": add(("minidl.json", b"{}")),
    "an array twice": add(("c1.bias.npy", npy(DATA))), "one array less": zipped(lambda members: members.pop()),
    **{f"name {ascii(name)[:30]} {len(name)}": add((name, npy(DATA))) for name in (
        ESCAPE + ".npy", "../x.npy", "/x.npy", "a\nb.npy", ".npy", "x", "x.txt", "c1/bias.npy", "b" * 60_000 + ".npy",
        "\u6f22" * 5000 + ".npy", "C1.BIAS.npy", "c1.bias", "\u202ex.npy")},
    "300 arrays more": add(*[(f"x{i}.npy", npy(DATA)) for i in range(300)]),
    "20,000 empty members": stored(*[entry(b"", name=b"%d.npy" % i) for i in range(20_000)]),
    "a million members": stored(*[entry(b"", name=b"c1.bias.npy", at=0)] * 1_000_000),
    "30,000 names of one": stored(*[entry(b"", name=b"%d" % i, at=0) for i in range(30_000)]),
    "directory of 4 GB": stored(length=0xFFFFFFF0), "directory elsewhere": stored(at=0xFFFFFFF0),
    "member elsewhere": stored(entry(npy(DATA), name=b"c1.bias.npy", at=0xFFFFFFF0)),
    "member in itself": stored((b"", entry(npy(DATA), name=b"c1.bias.npy", at=9)[1])),
    "a size of 4 GB": stored(entry(npy(DATA), name=b"c1.bias.npy", size=0xFFFFFFFE)),
    "a comment": stored(comment=b"PK\5\6" * 9), "a password": stored(entry(npy(DATA), name=b"c1.bias.npy", flags=1)),
    "patches": stored(entry(npy(DATA), name=b"c1.bias.npy", flags=0x20)),
    "method 99": stored(entry(npy(DATA), name=b"c1.bias.npy", method=99)),
    "deflated lie": stored(entry(zlib.compress(bytes(99)), name=b"c1.bias.npy", method=8)),
    "zip64": stored(before_end=struct.pack("<4sQHHLLQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, 1 << 40, 1 << 40, 1 << 40, 0)
                    + struct.pack("<4sLQL", b"PK\6\7", 0, 0, 1)),
    "an end alone": written(lambda content: archive()),
}


# ---------------------------------------------------------------- .safetensors
def titled(change: Callable[[dict[str, Any], bytes], Any], dump: Callable[[Any], str] = json.dumps) -> Recipe:
    """A recipe that changes the good file's header."""
    def other(content: bytes) -> bytes:
        length = int.from_bytes(content[:8], "little")
        found, values = json.loads(content[8:8 + length]), content[8 + length:]
        values = change(found, values) or values
        title = dump(found).encode("utf-8", "surrogatepass")
        return len(title).to_bytes(8, "little") + title + values

    return written(other)


def tensor(**facts: Any) -> Recipe:
    def change(found: dict[str, Any], values: bytes) -> None:
        found["c1.bias"].update(facts)

    return titled(change)


def note(other: Callable[[str], str]) -> Recipe:
    def change(found: dict[str, Any], values: bytes) -> None:
        found["__metadata__"]["minidl"] = other(found["__metadata__"]["minidl"])

    return titled(change)


def says(text: bytes, length: int | None = None) -> Recipe:
    """A header of which the test writes each byte."""
    return written(lambda content: (len(text) if length is None else length).to_bytes(8, "little") + text + content)


def more(name: str, **facts: Any) -> Recipe:
    return titled(lambda found, values: found.update({name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0],
                                                             **facts}}))


def longer(found: dict[str, Any], values: bytes) -> bytes:
    found["x"] = {"dtype": "U8", "shape": [BIG], "data_offsets": [len(values), len(values) + BIG]}
    return values + bytes(BIG)


def truth(found: dict[str, Any], values: bytes) -> bytes:
    at = found["seen"]["data_offsets"][0]
    return values[:at] + b"\1\7\xff" + values[at + 3:]


SAFETENSORS: dict[str, Recipe] = {
    **{name: note(other) for name, other in OTHERS.items()}, **damage(150),
    **{f"dtype {dtype!r}": tensor(dtype=dtype) for dtype in ("F16", "BF16", "F64", "I32", "F8_E4M3", "C64", "f4", "",
                                                             ESCAPE, None, 7, ["F32"], "x" * 60_000)},
    **{f"shape {str(shape)[:30]}": tensor(shape=shape) for shape in (
        [2**50], [2**40, 2**40], [-2], [2.0], ["2"], [[2]], [], [1] * 100_000, None, 2, [3], [1, 2], [2, 1], [2**64])},
    **{f"offsets {offsets}": tensor(data_offsets=offsets) for offsets in (
        [0, 8], [8, 0], [0], [0, 2**60], [2**63, 2**63 + 8], [-8, 0], [0, 8, 16], None, "08", [0.0, 8.0])},
    **{f"name {ascii(name)[:30]} {len(name)}": more(name) for name in (
        ESCAPE, "", "a\nb", "..", "b" * 60_000, "\u6f22" * 5000, "c1", "c1.bias.x", "\u202ebias", "\ud800")},
    "one array less": titled(lambda found, values: found.pop("c1.bias") and None),
    "a fact more": tensor(more=1), "130 MB more": titled(longer), "truth of 7": titled(truth),
    "a gap": more("x", dtype="U8", shape=[8], data_offsets=[10**6, 10**6 + 8]),
    "no metadata": titled(lambda found, values: found.pop("__metadata__") and None),
    **{f"all metadata {str(value)[:20]}": titled(lambda found, values, value=value: found.update(__metadata__=value))
       for value in ({}, [], "x", {"minidl": 7}, {"minidl": {"a": 1}}, {"other": "x"}, None, {"minidl": None},
                     {str(i): "" for i in range(100_000)})},
    "20,000 arrays more": titled(lambda found, values: found.update({
        f"x{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(20_000)})),
    "200,000 arrays more": titled(lambda found, values: found.update({
        f"x{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(200_000)})),
    "blanks": titled(lambda found, values: None, lambda found: json.dumps(found) + " " * 1_000_000),
    "20 MB of blanks": titled(lambda found, values: None, lambda found: json.dumps(found) + " " * 20_000_000),
    **{f"header {text[:20]!r}": says(text) for text in (
        b"{}", b"", b"x", b"[]", b"{", b"[" * 100_000, b'{"a":' * 100_000, b"null", b"\xff\xfe", b'"' * 9,
        b'{"a": ' + b"9" * 500_000 + b"}", b'{"c1.bias": null}', b'{"c1.bias": {}}',
        b'{"a": {"dtype": "F32", "shape": [' + b"1," * 900_000 + b'1], "data_offsets": [0, 4]}}')},
    **{f"length {length}": says(b"{}", length) for length in (0, 1, 3, 10**6, 2**31, 2**40, 2**63, 2**64 - 1)},
}


# ---------------------------------------------------------------- Keras's .weights.h5
def keras_net() -> nn.Module:
    minidl.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))


def write_keras(_: Any, path: Path) -> None:
    state = keras_net().state_dict()
    keras_file(path, {"conv2d": [state["0.weight"].transpose(2, 3, 1, 0), state["0.bias"]], "flatten": [],
                      "dense": [state["2.weight"].reshape(3, 2, 4).transpose(2, 1, 0).reshape(8, 3), state["2.bias"]]})


def kept(change: Callable[[Any], Any]) -> Recipe:
    def recipe(path: Path) -> None:
        with h5py.File(path, "r+", libver="earliest") as file:
            change(file)

    return recipe


def turned(place: str, **options: Any) -> Recipe:
    def change(file: Any) -> None:
        if place in file:
            del file[place]
        file.create_dataset(place, **options)

    return kept(change)


def linked(place: str, target: Any) -> Recipe:
    def change(file: Any) -> None:
        made = file[target] if isinstance(target, str) else target
        if place in file:
            del file[place]
        file[place] = made

    return kept(change)


def any_bytes(seed: int) -> Recipe:
    def change(content: bytes) -> bytes:
        rng, changed = np.random.default_rng(seed), bytearray(content)
        for _ in range(rng.integers(1, 6)):
            at = int(rng.integers(len(changed)))
            changed[at] = rng.choice([0, 1, 0xFF, int(rng.integers(256))])
        return bytes(changed)

    return written(change)


BIAS = "layers/conv2d/vars/1"
KERAS: dict[str, Recipe] = {
    **{f"bytes {seed}": any_bytes(seed) for seed in range(400)}, **damage(40),
    **{f"link {place} {target}": linked(place, target)
       for place in ("layers", "layers/conv2d", BIAS, "layers/x", "vars")
       for target in ("/", "layers/dense", "layers/dense/vars/1", h5py.SoftLink("/layers/dense/vars/1"),
                      h5py.ExternalLink("/dev/zero", "/"), np.dtype("f4"))},
    **{f"storage {name}": turned(BIAS, **options) for name, options in {
        "f8": {"data": np.ones(2)}, "chunks": {"data": DATA, "chunks": (1,)}, "gzip": {
            "data": DATA, "compression": "gzip"}, "huge": {"shape": (2**50,), "dtype": "f4"}, "text": {
            "shape": (2,), "dtype": h5py.string_dtype()}, "reference": {"shape": (2,), "dtype": h5py.ref_dtype},
        "external": {"shape": (2,), "dtype": "f4", "external": [("/dev/zero", 0, 8)]}, "scalar": {"data": 1.0},
        "bomb": {"shape": (2**34,), "dtype": "f4", "chunks": (2**25,), "compression": "gzip"}}.items()},
    **{f"{count} {what}": kept(lambda file, count=count, what=what: [file.create_group(f"layers/{what}{i}/vars")
                                                                     for i in range(count)])
       for count in (900, 5000) for what in ("pool", "n" * 300)},
    "an array more": turned("layers/dense_1/vars/0", data=DATA), "a net's own": turned("vars/0", data=DATA),
    "a name": turned(f"layers/{ESCAPE}/vars/0", data=DATA), "no group": kept(lambda file: file.pop("layers")),
    "deep": kept(lambda file: file.create_group("layers/" + "n/" * 300)),
    "many attributes": kept(lambda file: [file.attrs.create(f"a{i}", "x" * 1000) for i in range(1000)]),
}


@pytest.mark.parametrize("part", tiered(PARTS, slow=1))
def test_hostile_files_of_keras(part: slice, tmp_path: Path) -> None:
    trial(tmp_path, ".weights.h5", some(KERAS, part), write_keras, "test_hostile_formats", least=0.3)  # no checksums


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(("ending", "recipes", "part"), tiered([
    (ending, recipes, part) for part in PARTS for ending, recipes in ((".safetensors", SAFETENSORS), (".npz", NPZ))],
    slow=1, several=True))
def test_hostile_files_of_other_formats(tmp_path: Path, ending: str, recipes: dict[str, Recipe], part: slice) -> None:
    if ending == ".safetensors":
        pytest.importorskip("safetensors", reason="the package safetensors is not installed")
    assert len(recipes) >= 100
    trial(tmp_path, ending, some(recipes, part))
