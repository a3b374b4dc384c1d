"""Opening files from strangers, which must have an end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO


def open_file(who: str, path: str | os.PathLike[str]) -> BinaryIO:
    """A file, open for reading. Raises, in the name of `who`, ValueError for a pipe, a device or a folder, and OSError
    for what cannot be opened."""
    path = Path(path).expanduser()
    if path.exists() and not path.is_file():               # a pipe may have no end
        raise ValueError(f"{who}: {path} is not a file, but a folder, a pipe or a device; write its content to a file, "
                         "and name that")
    try:
        return open(path, "rb")
    except OSError as error:
        raise type(error)(f"{who}: {path} cannot be opened ({error.strerror}); name a file that is there and may be "
                          "read") from None
