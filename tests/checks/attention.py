"""Attention on CUDA, each way and in all types, beside float64 of the same numbers."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import pytest

from minidl.core import device
from minidl.lab.check import ROUNDING, used
from minidl.ops import cpu
from minidl.ops.common.geometry.nhwc import bf16, widened

cupy = pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")

from checks.sources import counted  # noqa: E402
from minidl.ops import cuda  # noqa: E402
from minidl.ops.cuda.layers import attention as launcher  # noqa: E402

# kind -> (precision, the type in which matrices are stored)
KINDS = {"fp32": ("fp32", np.float32), "tf32": ("tf32", np.float32), "bf16": ("bf16", np.float32),
         "bf16 stored": ("bf16", np.uint16), "3xtf32": ("3xtf32", np.float32)}
WRITTEN_OUT = {"float64": ("tf32", np.float64)}
KERNELS = {"attention", "attention_dots", "attention_grad"}
EPS = float(np.finfo(np.float32).eps)


class Case(NamedTuple):
    """Leading axes of q, k and v, rows of q, rows of k and v, columns; and which mask: "", "causal", "queries" (a row
    for each query, for all heads), "heads" (each its own) or "keys" (one row for all queries)."""

    lead: tuple[int, ...]
    queries: int
    keys: int
    width: int
    mask: str = ""
    joined: bool = True                    # q, k and v are parts of one array


# One row and tiles that end within rows; more keys than queries and fewer; widths that fill no step of a product, two
# steps, and more than half of the registers
CASES = [
    Case((2, 2), 5, 7, 8), Case((1, 3), 64, 64, 32, "causal"), Case((2, 1), 130, 70, 24, "causal"),
    Case((3,), 33, 129, 64, "heads"), Case((), 1, 65, 40, "queries", False), Case((1, 2), 70, 1, 16, "keys"),
    Case((2, 1, 2), 66, 40, 72, "causal", False), Case((1, 1), 40, 66, 128, "queries"), Case((2,), 65, 33, 104)]


def drawn(seed: int, most: int) -> Case:
    """A random case with up to `most` rows."""
    rng = random.Random(seed)
    lead = tuple(rng.randint(1, 3) for _ in range(rng.choice((0, 1, 2, 2, 2, 3))))
    return Case(lead, rng.randint(1, most), rng.randint(1, most), rng.choice((8, 16, 24, 32, 32, 64, 64, 80, 128)),
                rng.choice(("", "causal", "causal", "queries", "heads", "keys")), rng.random() < 0.7)


def numbers(case: Case, kind: str) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """q, k, v, go and the mask, as float32 holds them, or the kind. In a mask one query attends to nothing."""
    rng = np.random.default_rng(sum(case[1:4]))
    arrays = {name: rng.standard_normal((*case.lead, rows, case.width)).astype(np.float32) for name, rows in (
        ("q", case.queries), ("k", case.keys), ("v", case.keys), ("go", case.queries))}
    if kind == "bf16 stored":
        arrays = {name: widened(bf16(x)) for name, x in arrays.items()}
    shape = {"queries": (case.queries, case.keys), "heads": (*case.lead, case.queries, case.keys),
             "keys": (1, case.keys)}.get(case.mask)
    if shape is None:
        return arrays, None
    mask = rng.standard_normal(shape).astype(np.float32)
    mask[rng.random(shape) < 0.3] = -np.inf
    if case.mask != "keys":
        mask[..., case.queries // 2, :] = -np.inf
    return arrays, mask


def moved(case: Case, arrays: dict[str, np.ndarray], stored: Any) -> dict[str, Any]:
    """There: q, k and v each in C order, or (n,rows,3,heads,d) in memory, with go as (n,rows,heads,d)."""
    given = {name: bf16(x) if stored == np.uint16 else x.astype(stored) for name, x in arrays.items()}
    if not case.joined or len(case.lead) != 2:
        return {name: cupy.asarray(x) for name, x in given.items()}
    n, heads = case.lead
    qkv = np.zeros((n, max(case.queries, case.keys), 3, heads, case.width), given["q"].dtype)
    for at, name in enumerate("qkv"):
        qkv[:, :given[name].shape[-2], at] = given[name].transpose(0, 2, 1, 3)
    parts = cupy.asarray(qkv).transpose(2, 0, 3, 1, 4)
    go = cupy.asarray(np.ascontiguousarray(given["go"].transpose(0, 2, 1, 3))).transpose(0, 2, 1, 3)
    return {"q": parts[0][:, :, :case.queries], "k": parts[1][:, :, :case.keys], "v": parts[2][:, :, :case.keys],
            "go": go}


def bounds(u: float, arrays: dict[str, np.ndarray], mask: np.ndarray | None, causal: bool, scale: float,
           o: np.ndarray, sums: np.ndarray) -> list[np.ndarray]:
    """How far o, gq, gk and gv may be from the exact ones.

    Rounding operands to u changes a sum of products by about u times the root of the sum of their squares, Q of a score
    (as check.product_bound has it); and a score's error changes its weight by that share. Weights and what they
    are made of are rounded for the next product. Errors of different keys have random signs. Those of a query's sum and
    dot have one sign for all its keys. Eight times that is no chance.
    """
    q, k, v, go = (arrays[name].astype(float) for name in ("q", "k", "v", "go"))
    written = cpu.layers.attention.WRITTEN
    w = written.weights(written.scores(q, k, mask, causal, scale), sums)
    dots = np.sum(go * o, axis=-1, keepdims=True)
    gw = go @ v.swapaxes(-1, -2)
    gs = w * (gw - dots)
    score = scale * np.sqrt((q * q) @ (k * k).swapaxes(-1, -2)) + EPS / u
    of_sum = np.sqrt(np.sum((w * score) ** 2, axis=-1, keepdims=True))
    changed = score ** 2 + 2
    of_o = np.sqrt((w * w * changed) @ (v * v) + (w * w * score ** 2).sum(-1, keepdims=True) * o * o) + abs(o)
    of_dot = np.sqrt(np.sum((go * of_o) ** 2, axis=-1, keepdims=True))
    of_gs = gs ** 2 * changed + w * w * ((go * go) @ (v * v).swapaxes(-1, -2))
    gq = np.sqrt(of_gs @ (k * k)) + abs(gs @ k) * of_sum + abs(w @ k) * of_dot
    rows = gs * of_sum, w * of_dot
    gk = np.sqrt(of_gs.swapaxes(-1, -2) @ (q * q) + sum((x * x).swapaxes(-1, -2) @ (q * q) for x in rows))
    gv = np.sqrt((w * w * (changed + of_sum ** 2)).swapaxes(-1, -2) @ (go * go))
    return [8 * u * each for each in (of_o, gq * scale, gk * scale, gv)]


def is_right(kind: str, case: Case) -> None:
    """Within rounding, twice to the same bits, by the kernels, and results lie as (n,rows,heads,d)."""
    precision, stored = (KINDS | WRITTEN_OUT)[kind]
    before = device.precision()
    device.set_precision(precision)
    try:
        _is_right(kind, case, precision, stored)
    finally:
        device.set_precision(before)


def _is_right(kind: str, case: Case, precision: str, stored: Any) -> None:
    arrays, mask = numbers(case, kind)
    causal, scale = case.mask == "causal", 1.2 * case.width ** -0.5
    there = moved(case, arrays, stored)
    qkv = [there[name] for name in "qkv"]
    masked = None if mask is None else cupy.asarray(mask if stored == np.uint16 else mask.astype(stored))

    def run() -> list[Any]:
        o, sums = cuda.attention(*qkv, masked, causal, scale)
        return [o, *cuda.attention_grad(there["go"], *qkv, masked, o, sums, causal, scale), sums]
    launcher._plan.cache_clear()           # a launch that another precision has prepared is not counted
    with counted() as launches:
        first = run()
    assert (launches.keys() & KERNELS) == (KERNELS if kind in KINDS else set()), launches
    for got, again in zip(first, run(), strict=True):
        assert got.tobytes() == again.tobytes(), f"{kind} {case}: two runs differ"

    wide = {name: x.astype(float) for name, x in arrays.items()}
    exact_mask = None if mask is None else mask.astype(float)
    o, sums = cpu.attention(wide["q"], wide["k"], wide["v"], exact_mask, causal, scale)
    exact = [o, *cpu.attention_grad(wide["go"], wide["q"], wide["k"], wide["v"], exact_mask, o, sums, causal, scale)]
    # Sums of n numbers in float32 are off by 2 root(n) roundings, as check.product_bound has it; u is an eighth
    longest = max(case.queries, case.keys)
    u = (max(ROUNDING[precision], 4 * EPS, EPS * longest ** 0.5 / 4) if stored != np.float64 else
         4 * float(np.finfo(float).eps))
    most = bounds(u, wide, exact_mask, causal, scale, o, sums)
    for name, got, want, bound in zip(("o", "gq", "gk", "gv"), first, exact, most, strict=False):
        assert (got.shape, got.dtype) == (want.shape, stored)
        if kind in KINDS and len(case.lead) == 2:
            assert got.transpose(0, 2, 1, 3).flags.c_contiguous
        found = widened(np.ascontiguousarray(got.get()))
        if stored == np.uint16:
            bound = bound + abs(want) * 2.0**-8
        share = used(found, want, bound + 1e-30)
        assert share <= 1, f"{name} {kind} {case}: used {share:.3g} of its tolerance"
    np.testing.assert_array_equal(np.isinf(first[-1].get()), np.isinf(sums))
