"""Where minidl keeps files between runs: data sets, and which convolutions were the fastest."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$MINIDL_CACHE, or minidl in $XDG_CACHE_HOME, or ~/.cache/minidl, on every system.

    >>> cache_folder().is_absolute() or "MINIDL_CACHE" in os.environ
    True
    """
    own = os.environ.get("MINIDL_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minidl"
