"""The fused primitives, and images in NHWC, on NumPy arrays: by their patterns (common/patterns.py)."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from typing import Any

from ..common.fused import FUSED
from ..common.geometry.rows import COMPUTED, LAID_OUT
from ..common.patterns import in_turn
from .layers.norm import normalized
from .nhwc import STORED, by_plain, stores_half, takes_nhwc, to_nchw, to_nhwc

Primitives = dict[str, Callable[..., Any]]


def made(plain: Primitives, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]) -> dict[str, Any]:
    """What a backend with these primitives has beside them, by name. `plain` is looked at when one is called.

    IN_NHWC: what a primitive whose geometry has a layout computes in NHWC; itself it takes NCHW.
    """
    own: Primitives = {name: in_turn(rules, plain, STORED) for name, rules in FUSED.items()}
    there = {name: by_plain(own.get(name) or plain[name], rules) for name, rules in LAID_OUT.items()}
    of_forms: ChainMap[str, Callable[..., Any]] = ChainMap(there, plain, {"normalized": normalized})
    own |= {name: in_turn(rules, of_forms, STORED) for name, rules in COMPUTED.items()}
    own |= {"to_nhwc": to_nhwc, "to_nchw": to_nchw}
    return {"IN_NHWC": there, "takes_nhwc": takes_nhwc, "stores_half": stores_half,
            **{name: wrapped(primitive) for name, primitive in own.items()}}
