"""Fetching a data set's files: https mirrors in turn, size and SHA-256 pinned, installed all or nothing."""

from __future__ import annotations

import hashlib
import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from .catalog import Download, File, Spec

TIMEOUT = 10.0                             # seconds that a mirror may be silent
BLOCK = 1 << 16


def cache_folder(name: str) -> Path:
    """Where a data set is kept for this user: $XDG_CACHE_HOME/minidl/<name>, by default under ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minidl" / name


def _open(url: str) -> Any:
    import urllib.request

    return urllib.request.urlopen(url, timeout=TIMEOUT)


def install(spec: Spec, opener: Callable[[str], Any] = _open) -> Path:
    """Fetch all of a data set's files into the user's cache and name that folder.

    Raises OSError with every mirror's reason where a file cannot be had from any, and for a cache that cannot
    be written; the cache is then as before.
    """
    folder = cache_folder(spec.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-")
    except OSError as error:
        raise OSError(f"the cache folder {folder} cannot be written ({error.strerror}; $XDG_CACHE_HOME names "
                      "another)") from None
    with temporary as scratch:
        for download in spec.downloads:
            fetched = Path(scratch) / download.name
            _fetch(download, fetched, opener)
            if download.name.endswith(".tar.gz"):
                _unpack(fetched, [file for files in spec.splits.values() for file in files])
                fetched.unlink()
        for path in Path(scratch).iterdir():
            os.replace(path, folder / path.name)
    return folder


def _fetch(download: Download, target: Path, opener: Callable[[str], Any]) -> None:
    """From the first mirror that serves the right bytes, at most one try each."""
    from http.client import HTTPException  # what urllib lets through of a broken answer

    reasons = []
    for url in download.mirrors:
        try:
            _fetch_one(url, download, target, opener)
            return
        except (OSError, ValueError, HTTPException) as error:
            reasons.append(f"{url}: {str(error) or type(error).__name__}")
    raise OSError(f"{download.name} could not be downloaded ({'; '.join(reasons)})")


def _fetch_one(url: str, download: Download, target: Path, opener: Callable[[str], Any]) -> None:
    from tqdm import tqdm

    digest, size = hashlib.sha256(), 0
    with opener(url) as answer, open(target, "wb") as file:
        announced = answer.headers.get("Content-Length")
        if announced not in (None, str(download.size)):
            raise ValueError(f"it offers {announced} bytes but the file has {download.size}")
        with tqdm(total=download.size, desc=download.name, unit="B", unit_scale=True, leave=False,
                  disable=None) as bar:    # None: only where stderr is a terminal
            while size <= download.size and (block := answer.read(BLOCK)):
                size += len(block)
                digest.update(block)
                file.write(block)
                bar.update(len(block))
        _to_disk(file)
    if size != download.size:
        more = "more than " if size > download.size else ""
        raise ValueError(f"it sent {more}{min(size, download.size)} bytes but the file has {download.size}")
    if digest.hexdigest() != download.sha256:
        raise ValueError(f"what it sent has SHA-256 {digest.hexdigest()} but the file has {download.sha256}")


def _unpack(archive: Path, files: list[File]) -> None:
    """Put the wanted files of a tar archive beside it; names come from our table, never from the archive."""
    with tarfile.open(archive, "r:gz") as tar:
        members = {Path(member.name).name: member for member in tar if member.isfile()}
        for file in files:
            source = tar.extractfile(members[file.name]) if file.name in members else None
            if source is None:
                raise OSError(f"{archive.name} holds no {file.name}")
            with source, open(archive.with_name(file.name), "wb") as target:
                target.write(source.read(file.size))
                _to_disk(target)


def _to_disk(file: BinaryIO) -> None:
    """So that a file that has its name also has its content, whatever happens to the machine."""
    file.flush()
    os.fsync(file.fileno())
