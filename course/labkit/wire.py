"""How judge and player talk: messages of plain values, behind their length. Neither side unpickles anything."""

from __future__ import annotations

import base64
import json
import os
import select
import time
from typing import Any

import numpy as np

MAX_BYTES = 64 << 20                       # of one message
HEAD = 8                                   # bytes of its length


def pack(value: Any) -> Any:
    """A value as JSON knows it. Raises TypeError for one that is neither a number, a text, an array, None, nor a list,
    tuple or dict of these."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return pack(value.item())
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        whole = np.ascontiguousarray(value).tobytes()
        return {"array": [value.dtype.str, list(value.shape), base64.b64encode(whole).decode()]}
    if isinstance(value, list):
        return [pack(each) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [pack(each) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[pack(name), pack(each)] for name, each in value.items()]}
    raise TypeError(f"a {type(value).__name__} is not a number, a text, an array, or a list, tuple or dict of these")


def unpack(value: Any) -> Any:
    """What `pack` was given. Raises ValueError, KeyError or TypeError for what it did not make."""
    if isinstance(value, list):
        return [unpack(each) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "tuple":
        return tuple(unpack(each) for each in held)
    if kind == "dict":
        return {unpack(name): unpack(each) for name, each in held}
    text, shape, whole = held
    dtype = np.dtype(str(text))
    if kind != "array" or dtype.kind not in "biuf":
        raise ValueError(f"{kind} of {dtype} is not known")
    return np.frombuffer(base64.b64decode(whole), dtype).reshape(shape).copy()


def plain(done: Any) -> dict[str, Any]:
    """A kernel's arrays, faults, and counts by line, of a minidl.lab.emulator.watch.Run."""
    counts = done.counts
    lines = {line: {way: each if isinstance(each, int) else list(vars(each).values())
                    for way, each in vars(of_line).items()} for line, of_line in counts.lines.items()}
    return {"arrays": done.arrays, "faults": done.faults, "lines": lines, "complete": counts.complete,
            "blocks": counts.blocks, "kernel": counts.kernel}


def send(to: int, value: Any) -> None:
    """Write a message to a file descriptor."""
    text = json.dumps(pack(value)).encode()
    rest = memoryview(len(text).to_bytes(HEAD, "little") + text)
    while rest:
        rest = rest[os.write(to, rest):]


def receive(source: int, until: float | None = None) -> Any:
    """Read a message. Raises EOFError where the other side ended, TimeoutError at a time of time.monotonic(), and
    ValueError for what is not a message."""
    size = int.from_bytes(_read(source, HEAD, until), "little")
    if size > MAX_BYTES:
        raise ValueError(f"a message of {size:,} bytes is longer than {MAX_BYTES:,}")
    text = _read(source, size, until)
    try:
        return unpack(json.loads(text))
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise ValueError(f"not a message: {type(error).__name__}: {error}") from None


def _read(source: int, size: int, until: float | None) -> bytes:
    got = bytearray()
    while len(got) < size:
        left = None if until is None else max(0.0, until - time.monotonic())
        if not select.select([source], [], [], left)[0]:
            raise TimeoutError
        part = os.read(source, min(size - len(got), 1 << 20))
        if not part:
            raise EOFError
        got += part
    return bytes(got)
