"""Fetching a data set's files: https mirrors in turn, size and SHA-256 pinned, installed all or nothing."""

from __future__ import annotations

import hashlib
import os
import queue
import shutil
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from ...core.host import cache_folder
from .catalog import DataFile, Download, Spec

SILENCE = 10.0                             # seconds that a mirror may be silent
GRACE, MIN_RATE = 20.0, 50_000           # at any time it may have taken 20 s, and what came at 50 kB/s
DAY = 86_400.0                             # seconds that a failure is remembered
BLOCK = 1 << 16


def _open(url: str) -> Any:
    """The answer to a request over https. A redirect to another scheme is refused."""
    import urllib.error
    import urllib.request

    class OnlyHttps(urllib.request.BaseHandler):
        def default_open(self, request: urllib.request.Request) -> None:     # called first, also after a redirect
            if request.type != "https":
                raise urllib.error.URLError(f"{request.full_url[:200]!r} is not https")

    return urllib.request.build_opener(OnlyHttps).open(url, timeout=SILENCE)


def install(spec: Spec, opener: Callable[[str], Any] = _open) -> Path:
    """Fetch all of a data set's files into the user's cache and return that folder. A line on stderr says so.

    Raises OSError if no mirror serves a file, with every mirror's reason, and if the cache cannot be written. The
    cache is then as before. A set that no mirror serves is not requested again for a day: a file in the cache
    records this.
    """
    folder, size = cache_folder() / spec.name, sum(download.size for download in spec.downloads)
    failed = folder / ".failed"
    _refuse_for_a_day(failed)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
            _say(f"downloading {spec.name} ({size / 1e6:.1f} MB) from {_host(spec.downloads[0].mirrors[0])} into "
                 f"{folder}; MINIDL_OFFLINE=1 forbids it")
            for download in spec.downloads:
                fetched = Path(scratch) / download.name
                _fetch(download, fetched, opener)
                if download.name.endswith(".tar.gz"):
                    _unpack(fetched, [file for files in spec.splits.values() for file in files])
                    fetched.unlink()
            for path in Path(scratch).iterdir():
                os.replace(path, folder / path.name)
        failed.unlink(missing_ok=True)
    except NotServed:
        with suppress(OSError):
            failed.touch()
        raise
    except OSError as error:
        raise OSError(f"the cache folder {folder} cannot be written ({error.strerror}; $MINIDL_CACHE names "
                      "another)") from None
    return folder


class NotServed(OSError):
    """A mirror does not serve a file, or none serves what is needed."""


def _refuse_for_a_day(failed: Path) -> None:
    """Raises OSError if the download failed within the last day."""
    try:
        when = failed.stat().st_mtime
    except OSError:
        return
    if 0 <= time.time() - when < DAY:
        raise OSError(f"it failed at {time.strftime('%Y-%m-%d %H:%M', time.localtime(when))} and is tried again a day "
                      f"later; remove {failed} to try at once")


def _sweep(folder: Path) -> None:
    """Remove what downloads that were killed have left here: folders that are a day old."""
    for path in folder.glob(".fetch-*"):
        if time.time() - path.lstat().st_mtime > DAY:
            shutil.rmtree(path, ignore_errors=True)


def _host(url: str) -> str:
    return url.split("/")[2]


def _say(text: str) -> None:
    with suppress(OSError):                # stderr may be closed
        print(f"minidl: {text}", file=sys.stderr, flush=True)


def _fetch(download: Download, target: Path, opener: Callable[[str], Any]) -> None:
    """Download from the first mirror that serves the right bytes, with at most one try each."""
    reasons: list[str] = []
    for url in download.mirrors:
        if reasons:
            _say(f"{reasons[-1]}; trying {_host(url)}")
        try:
            _fetch_one(url, download, target, opener)
            return
        except NotServed as error:
            reasons.append(f"{url}: {error}")
    raise NotServed(f"{download.name} could not be downloaded ({'; '.join(reasons)})")


def _fetch_one(url: str, download: Download, target: Path, opener: Callable[[str], Any]) -> None:
    from tqdm import tqdm

    digest, size = hashlib.sha256(), 0
    with open(target, "wb") as file, tqdm(total=download.size, desc=download.name, unit="B", unit_scale=True,
                                          leave=False, disable=None) as bar:  # None: only if stderr is a terminal
        for block in _blocks(url, opener, download.size):
            size += len(block)
            digest.update(block)
            file.write(block)
            bar.update(len(block))
        _to_disk(file)
    if size != download.size:
        more = "more than " if size > download.size else ""
        raise NotServed(f"it sent {more}{min(size, download.size)} bytes but the file has {download.size}")
    if digest.hexdigest() != download.sha256:
        raise NotServed(f"what it sent has SHA-256 {digest.hexdigest()} but the file has {download.sha256}")


def _blocks(url: str, opener: Callable[[str], Any], size: int) -> Iterator[bytes]:
    """What a mirror sends, up to one block more than the file has.

    Another thread waits for it: a socket's time-out does not limit the look-up of a name, or a header or line that
    comes byte by byte. If it takes too long, that thread is left alone, and ends with its next answer.
    """
    sent: queue.Queue[bytes | Exception] = queue.Queue(4)
    left = threading.Event()

    def put(item: bytes | Exception) -> None:
        while not left.is_set():
            try:
                return sent.put(item, timeout=1.0)
            except queue.Full:
                pass

    def ask() -> None:
        try:
            with opener(url) as answer:
                announced = answer.headers.get("Content-Length")
                if announced not in (None, str(size)):
                    raise ValueError(f"it offers {announced[:40]} bytes but the file has {size}")
                while not left.is_set() and (block := answer.read1(BLOCK)):
                    put(block)
            put(b"")
        except Exception as error:         # any error is passed to the thread that waits
            put(error)

    threading.Thread(target=ask, daemon=True).start()
    start, got = time.monotonic(), 0
    try:
        while got <= size:
            wait = GRACE + got / MIN_RATE - (time.monotonic() - start)
            try:
                block = sent.get(timeout=max(wait, 0.0))
            except queue.Empty:
                raise NotServed(f"it sent {got} bytes in {time.monotonic() - start:.0f} s") from None
            if isinstance(block, Exception):
                told = "".join(c if c.isprintable() else "?" for c in str(block)[:300])
                raise NotServed(told or type(block).__name__) from None
            if not block:
                return
            got += len(block)
            yield block
    finally:
        left.set()


def _unpack(archive: Path, files: list[DataFile]) -> None:
    """Put the wanted files of a tar archive next to it; names come from our table, never from the archive."""
    with tarfile.open(archive, "r:gz") as tar:
        members = {Path(member.name).name: member for member in tar if member.isfile()}
        for file in files:
            source = tar.extractfile(members[file.name]) if file.name in members else None
            if source is None:
                raise NotServed(f"{archive.name} holds no {file.name}")
            with source, open(archive.with_name(file.name), "wb") as target:
                target.write(source.read(file.size))
                _to_disk(target)


def _to_disk(file: BinaryIO) -> None:
    """Make sure that a file with its final name also has its content, whatever happens to the machine."""
    file.flush()
    os.fsync(file.fileno())
