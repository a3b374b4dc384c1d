"""Fetching a data set's files: https mirrors in turn, size and SHA-256 pinned, installed all or nothing."""

from __future__ import annotations

import hashlib
import os
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .catalog import Download, File, Spec

TIMEOUT = 10.0                             # seconds that a mirror may be silent
BLOCK = 1 << 16


def cache_folder(name: str) -> Path:
    """Where a data set is kept for this user: $XDG_CACHE_HOME/minidl/<name>, by default under ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minidl" / name


def _open(url: str) -> Any:
    import urllib.request                  # late: it costs a third of minidl's import

    return urllib.request.urlopen(url, timeout=TIMEOUT)


def install(spec: Spec, opener: Callable[[str], Any] = _open) -> Path:
    """Fetch all of a data set's files into the user's cache and name that folder.

    Raises OSError with every mirror's reason where a file cannot be had from any.
    """
    folder = cache_folder(spec.name)
    folder.mkdir(parents=True, exist_ok=True)
    files = [file for split in spec.splits.values() for file in split]
    for download in spec.downloads:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
            archive = Path(scratch) / download.name
            _fetch(download, archive, opener)
            if download.name.endswith(".tar.gz"):
                _unpack(archive, files, folder)
            else:
                os.replace(archive, folder / download.name)
    return folder


def _fetch(download: Download, target: Path, opener: Callable[[str], Any]) -> None:
    """From the first mirror that serves the right bytes."""
    reasons = []
    for url in download.mirrors:
        try:
            _fetch_one(url, download, target, opener)
            return
        except (OSError, ValueError) as error:  # URLError and HTTPError are OSErrors; ValueError is a wrong content
            reasons.append(f"{url}: {error}")
    raise OSError(f"{download.name} could not be downloaded ({'; '.join(reasons)})")


def _fetch_one(url: str, download: Download, target: Path, opener: Callable[[str], Any]) -> None:
    from tqdm import tqdm

    digest, size = hashlib.sha256(), 0
    with opener(url) as answer, open(target, "wb") as file, \
            tqdm(total=download.size, desc=download.name, unit="B", unit_scale=True, leave=False,
                 disable=not sys.stderr.isatty()) as bar:
        while block := answer.read(BLOCK):
            size += len(block)
            if size > download.size:
                break
            digest.update(block)
            file.write(block)
            bar.update(len(block))
        file.flush()
        os.fsync(file.fileno())
    if size != download.size:
        raise ValueError(f"it sent {'more than ' if size > download.size else ''}{min(size, download.size)} bytes "
                         f"but the file has {download.size}")
    if digest.hexdigest() != download.sha256:
        raise ValueError(f"its SHA-256 is {digest.hexdigest()} but must be {download.sha256}")


def _unpack(archive: Path, files: list[File], folder: Path) -> None:
    """The wanted files of a tar archive, found by their exact names, each put in place whole."""
    with tarfile.open(archive, "r:gz") as tar:
        members = {Path(member.name).name: member for member in tar if member.isfile()}
        for file in files:
            source = tar.extractfile(members[file.name]) if file.name in members else None
            if source is None:
                raise OSError(f"{archive.name} holds no {file.name}")
            part = archive.with_name(file.name)
            part.write_bytes(source.read(file.size))
            os.replace(part, folder / file.name)
