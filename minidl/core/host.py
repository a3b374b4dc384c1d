"""What surrounds a run: where files are kept between runs, and whether there is anything to print to."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where data sets are kept, and which convolutions were the fastest: $MINIDL_CACHE, or minidl in $XDG_CACHE_HOME,
    or ~/.cache/minidl, on every system.

    >>> cache_folder().is_absolute() or "MINIDL_CACHE" in os.environ
    True
    """
    own = os.environ.get("MINIDL_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minidl"


def can_print(stream: object) -> bool:
    """Whether a stream is there and open: a service, pythonw and `2>&-` have no stderr.

    >>> can_print(None)
    False
    """
    return stream is not None and not getattr(stream, "closed", False)
