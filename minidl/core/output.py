"""Whether there is anything to print to."""

from __future__ import annotations


def can_print(stream: object) -> bool:
    """Whether a stream is there and open: a service, pythonw and `2>&-` have no stderr.

    >>> can_print(None)
    False
    """
    return stream is not None and not getattr(stream, "closed", False)
