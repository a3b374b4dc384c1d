"""Recipes of files from strangers, and a program that makes them and reads each in a process of its own, whose time and
memory the kernel counts. Limits are those of the official files: the catalog is not pinned.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import random
import resource
import signal
import struct
import sys
import traceback
import zlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from minidl import data

MB = 1 << 20
HANG = 100                                 # seconds after which a process is ended
TERABYTE = 1 << 40
Recipe = Callable[[Path], object]


def write(path: Path, *parts: bytes, size: int | None = None) -> None:
    """These bytes, and then zeros that take no room on the disk up to a size."""
    with open(path, "wb") as file:
        for part in parts:
            file.write(part)
        if size is not None:
            file.truncate(size)


# ---------------------------------------------------------------- pickled batches
BATCH = 30_730_000                         # bytes of one without its labels' instructions
LARGEST = BATCH + 64 * 10_000 + 4096


def pickled(**change: Any) -> bytes:
    """A batch in which something is not as it should be; None leaves it out."""
    batch = {"labels": [1] * 10_000, "data": np.zeros((10_000, 3072), np.uint8), **change}
    return pickle.dumps({key.encode(): value for key, value in batch.items() if value is not None}, 4)


def dag(depth: int, make: bytes = b"\x86") -> bytes:
    """A value that holds the last one twice, again and again: 2^depth of them."""
    return b"N" + b"".join(b"q\x01h\x01" + make for _ in range(depth))


def lists(depth: int) -> bytes:
    return b"]q\x00K\x01a" + b"".join(b"]q%ch%ch%c\x86a" % (i + 1, i, i) for i in range(depth))


def chosen(seed: int, among: bytes) -> bytes:
    return bytes(random.Random(seed).choices(among, k=4096))


LABELS = b"}(U\x06labels"
KNOWN = b"KMJUTCBX\x8cN\x88\x89(t\x85\x86\x87])}aesuqr\x94hjc\x93Rb\x80\x95"
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
DTYPE = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR"
SHORT_PICKLES = {                          # zeros come after these
    "lists that stand for 2^40 labels": LABELS + lists(40) + b"u.",
    "tuples that stand for 2^99 labels": LABELS + dag(99) + b"u.",
    "memo at 200 million": b"\x80\x02]r\x00\xc2\xeb\x0bh\x01.", "memo at 2^32": b"]r\xff\xff\xff\xffN.",
    "memo at 2^31 in words": b"]p2147483647\n.", "memo at -1": b"]p-1\n.", "memo at nothing": b"j\xff\xff\xff\xff.",
    "marks": b"(" * 4096, "equal hashes": LABELS + b"(" + b"".join(
        b"\x8a\x0b" + (i * ((1 << 61) - 1)).to_bytes(11, "little") + b"N" for i in range(1, 20_001)) + b"du.",
    "tuple of 2^99 as key": b"}(" + dag(99) + b"Nu.", "tuple of 2^99 as name": dag(99) + b"U\x01a\x93.",
    "tuple of 2^99 as data": pickled(data=None)[:-2] + b"C\x04data" + dag(99) + b"u.",
    "tuple of 2^99 as state": pickled(data=None)[:-2] + b"C\x04data" + ARRAY + dag(99) + b"bu.",
    "long number": b"\x8b\x00\x00\xd0\x01", "longer number": b"\x8b\xff\xff\xff\x7f", "digits": b"I" + b"9" * 100_000,
    "digits of a long": b"L" + b"9" * 100_000, "a float": b"F1e999\n.", "a binary float": b"G\x7f\xf8\0\0\0\0\0\0.",
    "escapes": b"S'" + b"\\x41" * 20_000 + b"'\n.", "unicode escapes": b"V" + b"\\u0041" * 20_000 + b"\n.",
    "bytes of 2^62": b"\x8e" + (1 << 62).to_bytes(8, "little"),
    "text of 2^62": b"\x8d" + (1 << 62).to_bytes(8, "little"),
    "bytearray of 2^40": b"\x96" + (1 << 40).to_bytes(8, "little"), "bytes of 4 GB": b"B\xff\xff\xff\xff",
    "frame of 2^60": b"\x80\x04\x95" + (1 << 60).to_bytes(8, "little") + b"N.", "string of -1": b"T\xff\xff\xff\xff",
    "text that is no UTF-8": b"X\x04\0\0\0\xff\xff\xff\xff.", "command": b"cos\nsystem\n(U\x04trueR.",
    "command in words": b"U\x02osU\x06system\x93(U\x04trueR.", "instance": b"(ios\nsystem\n.",
    "object": b"(cos\nsystem\no.",
    "new object": b"cos\nsystem\n)\x81.", "new object with names": b"cos\nsystem\n)}\x92.", "extension": b"\x82\x01.",
    "numpy.load": b"cnumpy\nload\n(U\x01atR.", "numpy.ndarray of 2^40": b"cnumpy\nndarray\n(J\xff\xff\xff\x7f\x85tR.",
    "array of 2^40": pickled(data=None)[:-2] + b"C\x04data" + ARRAY
    + b"(K\x01\x8a\x06\0\0\0\0\0\1\x85" + DTYPE + b"\x89Btb",
    "dtype of a wrong state": LABELS + DTYPE + b"(K\x03U\x01|NNNJ\xff\xff\xff\x7fJ\xff\xff\xff\x7fK\x00tbu.",
    "dtype of itself": DTYPE + b"q\x01(h\x01h\x01h\x01tb.", "list in itself": LABELS + b"]q\x01h\x01au.",
    "persistent": b"Pname\n.", "persistent value": b"NQ.", "buffer": b"\x97.", "read-only buffer": b"\x98.",
    "set": b"\x8f(K\x01\x90.", "frozen set": b"(K\x01\x91.", "pops": b"N00.", "pops marks": b"1.", "twice": b"2.",
    "nothing": b".", "None": b"N.", "a mark": b"(.", "a number": b"K\x01.", "empty": b"}.", "call of a list": b"])R.",
    "state of None": b"NNb.", "appended to None": b"NNa.", "odd items": b"}(Nu.",
    **{f"{kind} {seed}": chosen(seed, among) for kind, among in (("bytes", bytes(range(256))), ("instructions", KNOWN),
                                                                ("numbers", b"K\x01]}(aeu")) for seed in range(4)},
}
FULL_PICKLES: dict[str, Callable[[], bytes]] = {
    **{f"31 MB of {code!r}": partial(lambda code: code * BATCH, code)
       for code in (b"(", b"]", b"}", b"N", b")", b"]a", b"K\x01", b"]q\x01", b"\x8c\x00", b"\x94", b"c\n\n")},
    "tuples in tuples": lambda: b"N" + b"\x85" * BATCH, "a line without an end": lambda: b"c" + b"n" * BATCH,
    "digits": lambda: b"I" + b"9" * BATCH,
    "a long number": lambda: b"\x8b" + struct.pack("<i", BATCH) + b"\xff" * BATCH,
    "escapes": lambda: b"S'" + b"\\x41" * (BATCH // 4) + b"'\n.", "a huge text": lambda: b"X" + struct.pack("<I", BATCH)
    + b"\xc3\xa9" * (BATCH // 2) + b".", "a huge key again and again": lambda: b"B" + struct.pack("<I", BATCH)
    + bytes(BATCH) + b"q\x010}(" + b"h\x01N" * 40_000 + b"u.",
    "a huge key often": lambda: b"}(B"
    + struct.pack("<I", BATCH) + bytes(BATCH) + b"q\x01" + b"Nh\x01" * 30_000 + b"Nu.",
    **{f"labels {name}": partial(lambda labels: pickled(labels=labels), labels) for name, labels in {
        "too few": [1] * 9999, "too many": [1] * 10_001, "none": [], "text": ["1"] * 10_000, "floats": [1.0] * 10_000,
        "nested": [[1]] * 10_000, "negative": [-1] * 10_000, "large": [1 << 30] * 10_000, "a tuple": (1,) * 10_000,
        "bytes": bytes(10_000), "a dict": dict.fromkeys(["a"], 1), "an array": np.ones(10_000, np.uint8),
        "missing": None}.items()},
    **{f"data {name}": partial(lambda make: pickled(data=make()), make) for name, make in {
        "bytes": lambda: bytes(BATCH), "missing": lambda: None, "a list": lambda: [0] * 99,
        "short": lambda: np.zeros((9999, 3072), np.uint8), "long": lambda: np.zeros((10_001, 3072), np.uint8),
        "floats": lambda: np.zeros((10_000, 768), np.float32),
        "of one axis": lambda: np.zeros(BATCH - 10_000, np.uint8),
        "other images": lambda: np.ones((10_000, 3072), np.uint8)}.items()},
}



def padded(held: bytes) -> Recipe:
    return lambda path: write(path, held, size=max(BATCH, len(held)))


def made(make: Callable[[], bytes]) -> Recipe:
    return lambda path: write(path, make())


def sized(size: int) -> Recipe:
    return lambda path: write(path, size=size)


PICKLES: dict[str, Recipe] = {
    **{name: padded(held) for name, held in SHORT_PICKLES.items()},
    **{f"{name}, in full": made(make) for name, make in FULL_PICKLES.items()},
    **{f"{size} bytes": sized(size) for size in (0, 12, BATCH - 1, LARGEST + 1, TERABYTE)},
}


# ---------------------------------------------------------------- Keras's archive
SHAPE = (60_000, 28, 28)


def header(shape: object = SHAPE, descr: object = "|u1", order: object = False, version: bytes = b"\1\0",
           form: str = "<H") -> bytes:
    text = f"{{'descr': {descr!r}, 'fortran_order': {order!r}, 'shape': {shape!r}, }}\n".encode()
    return b"\x93NUMPY" + version + struct.pack(form, len(text)) + text


def zeros(megabytes: int) -> bytes:
    """So many megabytes of zeros, deflated without having been there."""
    deflate = zlib.compressobj(9, wbits=-15)
    start = deflate.compress(bytes(MB)) + deflate.flush(zlib.Z_FULL_FLUSH)
    return start * megabytes + deflate.flush()


def entry(held: bytes, *, name: bytes = b"x_train.npy", method: int = 0, size: int | None = None, crc: int = 0,
          flags: int = 0, at: int = 0) -> tuple[bytes, bytes]:
    """A member of an archive, as it says it is, and its line of the directory."""
    facts = struct.pack("<HHHHHLLLHH", 20, flags, method, 0, 33, crc, len(held), len(held) if size is None else size,
                        len(name), 0)
    return b"PK\3\4" + facts + name + held, b"PK\1\2\x14\0" + facts + struct.pack("<HHHLL", 0, 0, 0, 0, at) + name


def archive(*entries: tuple[bytes, bytes], count: int | None = None, length: int | None = None, at: int | None = None,
            before_end: bytes = b"", comment: bytes = b"") -> bytes:
    members, lines = (b"".join(parts) for parts in zip(*entries, strict=True)) if entries else (b"", b"")
    count = len(entries) if count is None else count
    end = struct.pack("<HHHHLLH", 0, 0, count & 0xFFFF, count & 0xFFFF, len(lines) if length is None else length,
                      len(members) if at is None else at, len(comment))
    return members + lines + before_end + b"PK\5\6" + end + comment


def deflated(held: bytes, more: bytes = b"") -> bytes:
    deflate = zlib.compressobj(9, wbits=-15)
    return deflate.compress(held) + deflate.flush(zlib.Z_FULL_FLUSH) + (more or deflate.flush())


def bomb(held: bytes, megabytes: int, says: int) -> bytes:
    return archive(entry(deflated(held, zeros(megabytes)), method=8, size=says))


def stored(held: bytes, **facts: Any) -> bytes:
    return archive(entry(held, **facts))


ALL = len(header()) + 47_040_000
ZIP64 = struct.pack("<4sLQL", b"PK\6\7", 0, 0, 1)
ARCHIVES: dict[str, Recipe] = {
    **{f"shape {shape}": made(partial(stored, header(shape) + bytes(999))) for shape in (
        (10**17,), (0, 28, 28), (-1, 28, 28), (60_000, 784), (60_000, 28, 29), (59_999, 28, 28), (), "many", None,
        10**400)},
    **{f"dtype {descr!r}": made(partial(stored, header(descr=descr) + bytes(999))) for descr in (
        "|O", "<i8", "<f8", "|V47040000", "|S2147483647", "|u1,|u1", [("a", "|u1", (1 << 31,))], None, "|b1")},
    "columns first": made(partial(stored, header(order=True) + bytes(999))),
    "a pickle": made(partial(stored, header(descr="|O") + pickle.dumps([1]))),
    "header of version 2": made(partial(stored, header(version=b"\2\0", form="<I"))),
    "header of 4 GB": made(lambda: bomb(b"\x93NUMPY\2\0\xff\xff\xff\xff", 2900, 1 << 31)),
    "header of 64 kB": made(partial(stored, b"\x93NUMPY\1\0\xff\xff" + b"(" * 65_535)),
    "brackets": made(partial(stored, b"\x93NUMPY\1\0\xf0\0" + b"[" * 0xF0)),
    "no header": made(partial(stored, bytes(ALL))), "no bytes": made(partial(stored, b"")),
    "half a header": made(partial(stored, header()[:30])),
    "half of the values": made(partial(stored, header() + bytes(MB))),
    "2.9 GB": made(lambda: bomb(header(), 2900, ALL)), "2.9 GB, said": made(lambda: bomb(header(), 2900, 3040870400)),
    "one byte more": made(lambda: stored(header() + bytes(47_040_001))), "other images": made(lambda: bomb(
        header(), 44, ALL)),
        "damaged bits": made(lambda: stored(deflated(header(), b"\xff" * 999), method=8, size=ALL)),
    "empty blocks": made(lambda: stored(deflated(header(), b"\0\0\0\xff\xff" * 8_000_000), method=8, size=ALL)),
    "bzip2": made(lambda: stored(bz2.compress(bytes(50 * MB)), method=12, size=ALL)),
    "lzma that wants 4 GB": made(lambda: stored(b"\x09\x04\5\0\x5d\xff\xff\xff\xff" + bytes(999), method=14, size=ALL)),
    "unknown method": made(lambda: stored(header(), method=99)), "implode": made(lambda: stored(header(), method=6)),
    "a password": made(lambda: stored(header(), flags=1)), "patches": made(lambda: stored(header(), flags=0x20)),
    "says 2^32 bytes": made(lambda: stored(header(), size=0xFFFFFFFE)),
    "other name": made(lambda: stored(header(), name=b"x_test.npy")), "outside": made(lambda: stored(
        header(), name=b"../x_train.npy")), "no name": made(lambda: stored(header(), name=b"")),
    "name of 60 kB": made(lambda: stored(header(), name=b"n" * 60_000)),
    "a million members": made(lambda: archive(*[entry(b"", name=b"x_train.npy", at=0)] * 1_000_000)),
    "two thousand members": made(lambda: archive(*[entry(b"", name=b"%d" % i) for i in range(2000)])),
    "directory of 4 GB": made(lambda: archive(entry(header()), length=0xFFFFFFF0)),
    "directory of 40 MB": made(lambda: bytes(40 * MB) + archive(length=40 * MB, at=0)),
    "directory elsewhere": made(lambda: archive(entry(header()), at=0xFFFFFFF0)),
    "member elsewhere": made(lambda: archive(entry(header(), at=0xFFFFFFF0))),
    "member in itself": made(lambda: archive(entry(header()), (b"", entry(header(), at=9)[1]))),
    "zip64": made(lambda: archive(entry(header()), before_end=struct.pack(
        "<4sQHHLLQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, 1 << 40, 1 << 40, 1 << 40, 0) + ZIP64)),
    "comment": made(lambda: archive(entry(header()), comment=b"PK\5\6" * 16_000)), "end alone": made(archive),
    "not a zip": made(lambda: bytes(60 * MB)), "an array": made(lambda: header() + bytes(47_040_000)),
    "text": made(lambda: b"<html>not found</html>"),
    **{f"{size} bytes": sized(size) for size in (0, 21, 1 << 27, TERABYTE)},
    **{f"damaged {seed}": made(partial(lambda seed: damaged(keras(), seed), seed)) for seed in range(10)},
}


@cache
def keras() -> bytes:
    """An archive as NumPy writes it, of other images."""
    held = io.BytesIO()
    np.savez_compressed(held, x_train=np.zeros(SHAPE, np.uint8), y_train=np.zeros(60_000, np.uint8))
    return held.getvalue()


def damaged(held: bytes, seed: int) -> bytes:
    """Some bytes of the ends of a file changed, or a part of it cut out."""
    rng, changed = random.Random(seed), bytearray(held)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(200) if rng.random() < 0.5 else len(changed) - 1 - rng.randrange(200)
        changed[at] = rng.randrange(256)
    if seed % 3 == 0:
        del changed[rng.randrange(len(changed)):][:rng.randint(1, 99)]
    return bytes(changed)


# ---------------------------------------------------------------- IDX files and records, plain and compressed
IDX = struct.pack(">4I", 0x803, 60_000, 28, 28)
XZ_EMPTY = lzma.compress(b"")


def alone(properties: bytes) -> bytes:
    """A file of the old .lzma format, which names the memory that it wants."""
    return b"\x5d" + properties + b"\xff" * 8 + bytes(999)


PLAIN: dict[str, Recipe] = {
    **{f"header {words}": partial(lambda head, path: write(path, head, size=47_040_016), struct.pack(">4I", *words))
       for words in ((0x803, *[0xFFFFFFFF] * 3), (0x8FF, 1, 1, 1), (0x801, 60_000, 28, 28), (0xD03, 60_000, 28, 28),
                     (0x803, 0, 28, 28), (0, 0, 0, 0), (0x803, 60_000, 784, 1))},
    **{f"{size} bytes": sized(size) for size in (0, 3, 16, 47_040_015, 47_040_017, TERABYTE)},
    "other images": lambda path: write(path, IDX, size=47_040_016),
    "no memory": lambda path: path.symlink_to("/proc/self/mem"), "a device": lambda path: path.symlink_to("/dev/zero"),
    "itself": lambda path: path.symlink_to(path), "nowhere": lambda path: path.symlink_to("nowhere"),
    "a folder": lambda path: path.mkdir(), "a pipe": os.mkfifo,
}
GZIPS: dict[str, Recipe] = {
    "2.9 GB": made(lambda: gzip.compress(b"")[:10] + zeros(2900) + bytes(8)),
    "two million streams": made(lambda: gzip.compress(b"") * 2_300_000),
    "nine million empty blocks": made(lambda: gzip.compress(b"")[:10] + b"\0\0\0\xff\xff" * 9_000_000),
    "a name of 40 MB": made(lambda: b"\x1f\x8b\x08\x08" + bytes(6) + b"n" * 40 * MB),
    "a comment of 40 MB": made(lambda: b"\x1f\x8b\x08\x10" + bytes(6) + b"n" * 40 * MB),
    "an extra field": made(lambda: b"\x1f\x8b\x08\x04" + bytes(6) + b"\xff\xff" + bytes(9)),
    "reserved flags": made(lambda: b"\x1f\x8b\x08\xe0" + bytes(99)),
    "method 7": made(lambda: b"\x1f\x8b\x07" + bytes(99)),
    "a wrong sum": made(lambda: gzip.compress(IDX)[:-8] + bytes(8)), "a wrong length": made(
        lambda: gzip.compress(IDX)[:-4] + bytes(4)), "cut": made(lambda: gzip.compress(IDX + bytes(MB))[:-99]),
    "zeros after it": made(lambda: gzip.compress(IDX) + bytes(40 * MB)), "a gzip in it": made(
        lambda: gzip.compress(gzip.compress(IDX))), "an xz": made(lambda: lzma.compress(IDX)), "empty": sized(0),
    "a terabyte": sized(TERABYTE), "noise": made(lambda: b"\x1f\x8b\x08\0" + random.Random(1).randbytes(MB)),
    "too few images": made(lambda: gzip.compress(IDX + bytes(999))), "a pipe": os.mkfifo,
    "no memory": lambda path: path.symlink_to("/proc/self/mem"),
}
XZS: dict[str, Recipe] = {
    "200 MB": made(lambda: lzma.compress(bytes(200 * MB), preset=0)), "a million streams": made(
        lambda: XZ_EMPTY * 1_000_000), "40 MB of padding": made(lambda: XZ_EMPTY + bytes(40 * MB)),
    "wants 1.5 GB": made(lambda: huge_dictionary()),
    "lzma that wants 4 GB": made(lambda: alone(b"\xff\xff\xff\xff")),
    "lzma of nothing": made(lambda: alone(b"\0\0\1\0")),
    "cut": made(lambda: lzma.compress(IDX + bytes(MB))[:-9]), "a wrong sum": made(
        lambda: lzma.compress(IDX)[:-30] + bytes(30)), "a gzip": made(lambda: gzip.compress(IDX)), "empty": sized(0),
    "a terabyte": sized(TERABYTE), "noise": made(lambda: XZ_EMPTY[:12] + random.Random(2).randbytes(MB)),
    "filters": made(lambda: lzma.compress(IDX, filters=[{"id": lzma.FILTER_DELTA, "dist": 256}] * 3 + [
        {"id": lzma.FILTER_LZMA2, "preset": 0}])), "an unknown sum": made(
        lambda: XZ_EMPTY[:7] + b"\x0f" + zlib.crc32(b"\0\x0f").to_bytes(4, "little") + bytes(999)),
    "too few images": made(lambda: lzma.compress(IDX + bytes(999))), "a pipe": os.mkfifo,
}


def huge_dictionary() -> bytes:
    """An xz file whose header wants a dictionary of 1.5 GB; it was made with a small one."""
    held = bytearray(lzma.compress(IDX, preset=0))
    at = held.index(b"\x21\x01", 12) + 2       # the filter's properties: 2 or 3 times a power of two
    held[at] = 37
    size = (held[12] + 1) * 4
    held[12 + size - 4:12 + size] = zlib.crc32(bytes(held[12:12 + size - 4])).to_bytes(4, "little")
    return bytes(held)


RECORDS: dict[str, Recipe] = {
    **{f"{size} bytes": sized(size) for size in (0, 3072, BATCH - 1, BATCH, BATCH + 1, TERABYTE)},
    "no memory": lambda path: path.symlink_to("/proc/self/mem"), "a pipe": os.mkfifo,
}

# ---------------------------------------------------------------- caches of the fastest convolutions
ENTRY = "y float32 fp32 2 3 9 9 4 3 3 7 7 1 1 0 0 0 0"      # of the case that is asked for
CACHES: dict[str, Recipe] = {
    **{f"names {names!r}"[:60]: made(partial(lambda names: json.dumps({ENTRY: names}).encode(), names)) for names in (
        ["gemm", 1], [1, "gemm"], [1, 2], [None, None], [["gemm"], ["whole_image"]], [{}, {}], [True,
        "gemm"], {"gemm": 1},
        "gemm", 5, None, [], ["gemm"], ["gemm", "gemm"], ["gemm"] * 100_000, ["magic", "more"], ["\ud800", "gemm"])},
    **{f"{name}": made(make) for name, make in {
        "nothing": lambda: b"", "half": lambda: b"{", "a list": lambda: b"[1]", "a text": lambda: b'"gemm"',
        "no UTF-8": lambda: b"\xff\xfe\xff", "UTF-32": lambda: json.dumps({ENTRY: 1}).encode("utf-32"),
        "brackets": lambda: b"[" * 100_000, "braces": lambda: b'{"a":' * 100_000, "digits": lambda: b"9" * 900_000,
        "minus": lambda: b"-", "infinite": lambda: b"Infinity", "noise": lambda: random.Random(3).randbytes(MB),
        "a million names": lambda: b'{"a": [' + b'"gemm",' * 1_000_000 + b'""]}',
        "20 MB of blanks": lambda: b" " * 20 * MB,
        "a million entries": lambda: json.dumps({str(i): ["gemm"] for i in range(100_000)}).encode(),
        "escapes": lambda: b'"' + b"\\ud800" * 100_000 + b'"'}.items()},
    "zeros": sized(MB), "a terabyte": sized(TERABYTE), "a pipe": os.mkfifo, "a folder": lambda path: path.mkdir(),
    "itself": lambda path: path.symlink_to(path), "nowhere": lambda path: path.symlink_to("not/there"),
    "a device": lambda path: path.symlink_to("/dev/zero"), "no memory": lambda path: path.symlink_to("/proc/self/mem"),
}

# Where a recipe's file lies, and what is asked for: the set and its split.
ROOMS: dict[str, tuple[str, str, str, dict[str, Recipe]]] = {
    "pickle": ("cifar10", "test", "test_batch", PICKLES),
    "npz": ("mnist", "train", "mnist.npz", ARCHIVES),
    "idx": ("mnist", "train", "train-images-idx3-ubyte", PLAIN),
    "gz": ("mnist", "train", "train-images-idx3-ubyte.gz", GZIPS),
    "xz": ("fashion-mnist", "train", "train-images-idx3-ubyte.xz", XZS),
    "bin": ("cifar10", "test", "test_batch.bin", RECORDS),
    "cache": ("", "", "choices.json", CACHES),
}


# ---------------------------------------------------------------- the program: one process to make, one to read
def forked(work: Callable[[], object]) -> tuple[int, float, int]:
    """(status, seconds, bytes) of a process that does this; one that hangs is ended."""
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    if not (process := os.fork()):
        signal.alarm(HANG)
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status, use = os.wait4(process, 0)
    return os.waitstatus_to_exitcode(status), use.ru_utime + use.ru_stime, use.ru_maxrss * 1024 - before


def choose(room: str, path: Path, answer: Path) -> None:
    """The fastest of two launchers, with made-up times in place of a GPU and this file as the cache."""
    from minidl.ops.common.geometry import conv_geometry
    from minidl.ops.cuda.conv import auto

    times = {"gemm": 1.0, "whole_image": 2.0}
    auto.cache_file = lambda: path
    auto.measure = lambda able, arguments, g: times
    g = conv_geometry((2, 3, 9, 9), (4, 3, 3, 3), None, 1, 0, "auto")
    name = auto.fastest("y", g, np.dtype("f4"), (), lambda *case: {name: name for name in times})  # type: ignore[misc]
    answer.write_text("measured anew" if name == "gemm" else f"believed: {name}")


def load(room: str, path: Path, answer: Path) -> None:
    name, split, _, _ = ROOMS[room]
    try:
        data.load(name, split, path.parent, download=False)
        answer.write_text("accepted")
    except (ValueError, OSError) as error:
        answer.write_text(f"{type(error).__name__}: {error}")


def main(room: str, root: Path) -> None:
    """Prints a line of JSON per recipe: what came of its file, the time and the memory."""
    if room == "cache":
        from minidl.ops.cuda.conv import auto  # noqa: F401      once, for all processes to come
    for number, (name, recipe) in enumerate(ROOMS[room][3].items()):
        folder, answer = root / room / f"{number}", root / room / f"{number}.answer"
        folder.mkdir(parents=True)
        (folder / "train-labels-idx1-ubyte").write_bytes(b"")
        path = folder / ROOMS[room][2]
        recipe(path)
        status, seconds, memory = forked(partial(choose if room == "cache" else load, room, path, answer))
        print(json.dumps({"room": room, "name": name, "path": str(path), "status": status, "seconds": seconds,
                          "memory": memory, "said": answer.read_text() if answer.exists() else ""}), flush=True)
        if path.is_file() and not path.is_symlink():
            path.unlink()


if __name__ == "__main__":
    for room in sys.argv[2:]:
        main(room, Path(sys.argv[1]))
