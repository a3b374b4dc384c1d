"""Installing into the cache, one small file at a time: mirrors in turn, archives, nothing half done.

How a whole data set is fetched through `load` is with the data sets' own tests.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import io
import math
import os
import queue
import re
import socket
import tarfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minidl.data.sets import download
from minidl.data.sets.catalog import DataFile, Download, Spec
from minidl.data.sets.download import install

MIRRORS = ("https://one.example/", "https://two.example/")
HELD = b"0123456789"
Opener = Callable[[str], Any]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The cache folder of the set "tiny", with one file in it that is no business of the installer."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("MINIDL_CACHE", raising=False)
    folder = tmp_path / "minidl" / "tiny"
    folder.mkdir(parents=True)
    (folder / "notes").write_text("mine")
    return folder


def tiny(downloads: dict[str, bytes], files: tuple[str, ...] = ()) -> Spec:
    """A data set of these downloads, of which the archives hold the files, ten bytes each."""
    wanted = tuple(Download(name, len(held), hashlib.sha256(held).hexdigest(), tuple(m + name for m in MIRRORS))
                   for name, held in downloads.items())
    inside = tuple(DataFile(name, len(HELD), hashlib.sha256(HELD).hexdigest()) for name in files)
    return Spec("tiny", (), {"train": inside}, (), wanted, "synthetic-digits", "idx")


def serving(pages: Mapping[str, bytes | Exception]) -> Opener:
    """Opens a page by its address; an exception in a page's place is raised half-way through its ten bytes."""
    @contextmanager
    def opener(url: str) -> Iterator[Any]:
        page = pages[url]
        answer = io.BytesIO(HELD[:5] if isinstance(page, Exception) else page)
        read1 = answer.read1

        def failing(count: int | None = -1, /) -> bytes:
            block = read1(count)
            if not block and isinstance(page, Exception):
                raise page
            return block

        answer.headers, answer.read1 = {}, failing  # type: ignore[attr-defined, method-assign]
        yield answer
    return opener


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_file_is_installed_beside_what_is_there(folder: Path) -> None:
    pages = {MIRRORS[0] + "a.gz": HELD, MIRRORS[0] + "b.gz": HELD * 20000}
    assert install(tiny({"a.gz": HELD, "b.gz": HELD * 20000}), serving(pages)) == folder
    assert everything(folder) == {"a.gz": HELD, "b.gz": HELD * 20000, "notes": b"mine"}


def test_a_damaged_file_of_the_same_name_is_replaced(folder: Path) -> None:
    (folder / "a.gz").write_bytes(b"half")
    install(tiny({"a.gz": HELD}), serving({MIRRORS[0] + "a.gz": HELD}))
    assert everything(folder) == {"a.gz": HELD, "notes": b"mine"}


@pytest.mark.parametrize("fault", [b"", HELD[:-1], HELD + b"!", HELD * 20000, HELD[::-1], TimeoutError("timed out")])
def test_the_second_mirror_serves(folder: Path, fault: bytes | Exception) -> None:
    install(tiny({"a.gz": HELD}), serving({MIRRORS[0] + "a.gz": fault, MIRRORS[1] + "a.gz": HELD}))
    assert everything(folder) == {"a.gz": HELD, "notes": b"mine"}


def test_all_reasons_in_one_line_and_the_cache_as_before(folder: Path) -> None:
    pages: dict[str, bytes | Exception] = {
        MIRRORS[0] + "a.gz": HELD, MIRRORS[0] + "b.gz": TimeoutError("timed out"), MIRRORS[1] + "b.gz": b"1234"}
    said = ("b.gz could not be downloaded (https://one.example/b.gz: timed out; https://two.example/b.gz: it sent 4 "
            "bytes but the file has 10)")
    with pytest.raises(OSError, match=f"^{re.escape(said)}$"):
        install(tiny({"a.gz": HELD, "b.gz": HELD}), serving(pages))
    assert everything(folder) == {".failed": b"", "notes": b"mine"}
    assert sorted(folder.iterdir()) == [folder / ".failed", folder / "notes"]


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "notes"))
    said = (f"the cache folder {folder}/notes/minidl/tiny cannot be written (Not a directory; $MINIDL_CACHE names "
            "another)")
    with pytest.raises(OSError, match=f"^{re.escape(said)}$"):
        install(tiny({"a.gz": HELD}), serving({}))


def test_a_disk_that_is_full_is_no_mirrors_fault(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def full(file: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(download, "_to_disk", full)
    said = f"the cache folder {folder} cannot be written (No space left on device; $MINIDL_CACHE names another)"
    with pytest.raises(OSError, match=f"^{re.escape(said)}$"):
        install(tiny({"a.gz": HELD}), serving({MIRRORS[0] + "a.gz": HELD}))       # the second mirror is not asked
    assert everything(folder) == {"notes": b"mine"}


def test_it_says_what_it_does_before_it_waits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = []

    def opener(url: str) -> Any:
        before.append(capsys.readouterr().err)
        return serving({MIRRORS[0] + "a.gz": b"", MIRRORS[1] + "a.gz": HELD * 200_000})(url)

    install(tiny({"a.gz": HELD * 200_000}), opener)
    assert before == [
        f"minidl: downloading tiny (2.0 MB) from one.example into {folder}; MINIDL_OFFLINE=1 forbids it\n",
        "minidl: https://one.example/a.gz: it sent 0 bytes but the file has 2000000; trying two.example\n"]


def test_a_failure_is_remembered_for_a_day(folder: Path) -> None:
    asked: list[str] = []

    def opener(url: str) -> Any:
        asked.append(url)
        raise OSError("no net\x1b[31m")

    def fail(said: str) -> None:
        asked.clear()
        with pytest.raises(OSError, match=said):
            install(tiny({"a.gz": HELD}), opener)

    failed, day = folder / ".failed", 24 * 3600
    fail(r"https://one.example/a.gz: no net\?\[31m; https")
    assert len(asked) == 2
    fail(rf"^it failed at 20\d\d-\d\d-\d\d \d\d:\d\d and is tried again a day later; remove {failed} to try at once$")
    assert not asked
    for age in (day + 9, -day):            # long ago, or by a clock that was wrong
        os.utime(failed, (time.time() - age,) * 2)
        fail("no net")
        assert len(asked) == 2
        fail("it failed at")
    failed.unlink()
    fail("no net")
    assert len(asked) == 2
    failed.unlink()
    install(tiny({"a.gz": HELD}), serving({MIRRORS[0] + "a.gz": HELD}))
    assert not failed.exists()


def test_what_killed_downloads_left_is_removed(folder: Path, tmp_path: Path) -> None:
    for name in (".fetch-old", ".fetch-now", ".other-old"):
        (folder / name).mkdir()
        (folder / name / "a.gz").write_bytes(HELD)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a").write_bytes(HELD)
    (folder / ".fetch-link").symlink_to(tmp_path / "outside")
    for name in (".fetch-old", ".other-old", ".fetch-link"):
        os.utime(folder / name, (0, 0), follow_symlinks=False)
    install(tiny({"a.gz": HELD}), serving({MIRRORS[0] + "a.gz": HELD}))
    assert everything(folder).keys() == {".fetch-now/a.gz", ".other-old/a.gz", "a.gz", "notes"}
    assert (tmp_path / "outside" / "a").read_bytes() == HELD


# ---------------------------------------------------------------- servers that do not serve
class Server:
    """A server on this machine: it answers each request by a function of its own, and says which paths it was asked."""

    def __init__(self, answer: Callable[[socket.socket], None]):
        self.asked: list[str] = []
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self.listening.getsockname()[1]}"
        self.answer = answer
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self.one, args=[self.listening.accept()[0]], daemon=True).start()

    def one(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            self.asked.append(connection.recv(4096).split()[1].decode())
            self.answer(connection)


class Clock:
    """Time as a download and its server know it: it passes only while the server is waited for.

    So the outcome is the same on a machine of any speed. It stands for the queue between the thread that asks and the
    one that waits, because it must know when that one has taken all that was sent.
    """

    HANG = 100.0                           # real seconds: only a deadlock takes as long

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now, self.deadline, self.given_up = 0.0, math.inf, False
        self.waiting, self.sent = False, deque[Any]()
        self.changed = threading.Condition()
        monkeypatch.setattr(download, "time", SimpleNamespace(time=time.time, monotonic=lambda: self.now))
        monkeypatch.setattr(download, "queue", SimpleNamespace(Queue=lambda size: self, Empty=queue.Empty,
                                                               Full=queue.Full))

    def sleep(self, seconds: float) -> None:
        """What the server does between two things that it sends."""
        with self.changed:
            free = self.changed.wait_for(lambda: self.given_up or (self.waiting and not self.sent), self.HANG)
            assert free, "nobody waits for the server"
            self.now = min(self.now + seconds, self.deadline)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.given_up or self.now < self.deadline, self.HANG)

    def put(self, item: Any, timeout: float) -> None:
        with self.changed:
            self.sent.append(item)
            self.changed.notify_all()

    def get(self, timeout: float) -> Any:
        with self.changed:
            self.waiting, self.deadline = True, self.now + timeout
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.sent or self.now >= self.deadline, self.HANG)
            self.waiting = False
            if not self.sent:
                self.given_up = True
                raise queue.Empty
            return self.sent.popleft()


class Connection(io.RawIOBase):
    """In place of a socket: what a server sends, and how many seconds before each piece it is silent."""

    def __init__(self, clock: Clock, pieces: Iterable[tuple[float, bytes]]):
        self.clock, self.pieces, self.rest = clock, iter(pieces), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self.rest:
            seconds, self.rest = next(self.pieces, (0.0, b""))
            self.clock.sleep(seconds)
        count = min(len(buffer), len(self.rest))
        buffer[:count], self.rest = self.rest[:count], self.rest[count:]
        return count


def sending(clock: Clock, pieces: Iterable[tuple[float, bytes]], asked: list[str]) -> Opener:
    """Opens any address: Python's own reader of HTTP, on a connection that sends these pieces."""
    @contextmanager
    def opener(url: str) -> Iterator[Any]:
        asked.append(url)
        connection: Any = SimpleNamespace(makefile=lambda mode: io.BufferedReader(Connection(clock, pieces)))
        with http.client.HTTPResponse(connection) as answer:
            answer.begin()
            yield answer
    return opener


OK = b"HTTP/1.1 200 OK\r\n"
DRIPS = {                                  # what a server sends at once, what once per second, bytes in GRACE seconds
    "nothing": (b"", b"", 0),
    "status": (b"HTTP/1.1 ", b"2", 0),
    "header": (OK, b"X", 0),
    "more headers": (OK, b"X: y\r\n", 0),
    "length of a chunk": (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0", 0),
    "chunks": (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", 20),
    "content": (OK + b"Content-Length: 1000000\r\n\r\n" + b"x" * 999, b"x", 999 + 20),
    "content without an end": (OK + b"\r\n", b"x", 20),
}


@pytest.mark.parametrize("drip", DRIPS)
def test_a_server_that_drips_does_not_hold_it(monkeypatch: pytest.MonkeyPatch, folder: Path, drip: str) -> None:
    at_once, piece, got = DRIPS[drip]
    clock, asked = Clock(monkeypatch), list[str]()
    pieces = [(0.0, at_once), *[(1.0, piece)] * 99] if piece else [(1000.0, b"")]
    wanted = Download("a.gz", 1_000_000, "", (MIRRORS[0] + "a",))
    with pytest.raises(OSError, match=rf"a: it sent {got} bytes in 20 s\)$"):
        install(Spec("tiny", (), {}, (), (wanted,), "", "idx"), sending(clock, pieces, asked))
    assert clock.now == pytest.approx(download.GRACE, abs=0.1)
    assert asked == [MIRRORS[0] + "a"]
    assert list(folder.glob(".fetch-*")) == []


@pytest.mark.parametrize(("rate", "said", "seconds"), [(500, "", 100), (300, "it sent 14400 bytes in 49 s", 48.8)])
def test_a_steady_server_has_the_time_that_the_minimum_rate_gives_it(monkeypatch: pytest.MonkeyPatch, rate: int,
                                                                     said: str, seconds: float) -> None:
    """At the minimum rate it may take many times GRACE. At less, it may take GRACE longer than the minimum rate."""
    monkeypatch.setattr(download, "MIN_RATE", 500)
    clock, held = Clock(monkeypatch), HELD * 5000
    pieces = [(0.0, OK + b"\r\n"), *((1.0, held[at:at + rate]) for at in range(0, len(held), rate))]
    wanted = Download("a.gz", len(held), hashlib.sha256(held).hexdigest(), (MIRRORS[0] + "a",))
    with pytest.raises(OSError, match=said) if said else nullcontext():
        install(Spec("tiny", (), {}, (), (wanted,), "", "idx"), sending(clock, pieces, []))
    assert clock.now == pytest.approx(seconds)


class Unsecured(http.client.HTTPConnection):
    """Stands for https on this machine, where no server has a certificate."""

    def __init__(self, host: str, **options: Any):
        super().__init__(host, timeout=options["timeout"])


@pytest.mark.parametrize("scheme", ["http", "ftp", "file", "HTTP"])
def test_only_https_is_followed(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(http.client, "HTTPSConnection", Unsecured)
    other = Server(lambda connection: connection.sendall(OK + b"\r\n" + HELD))
    server = Server(lambda connection: connection.sendall(
        f"HTTP/1.1 302 Found\r\nLocation: {scheme}://{other.host}/b\r\nContent-Length: 0\r\n\r\n".encode()))
    with download._open(f"https://{other.host}/c") as answer:
        assert answer.read() == HELD       # the stand-in serves
    wanted = Download("a.gz", 10, hashlib.sha256(HELD).hexdigest(),
                      (f"{scheme}://{other.host}/a", f"https://{server.host}/a"))
    with pytest.raises(OSError, match=r"is not https.*(is not https|is not allowed)"):
        install(Spec("tiny", (), {}, (), (wanted,), "", "idx"))
    assert (server.asked, other.asked) == (["/a"], ["/c"])


# ---------------------------------------------------------------- archives
def packed(*members: tuple[str, bytes | str]) -> bytes:
    """A .tar.gz of these names: files of the given bytes, or symbolic links to the given name."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, held in members:
            member = tarfile.TarInfo(name)
            if isinstance(held, str):
                member.type, member.linkname = tarfile.SYMTYPE, held
                archive.addfile(member)
            else:
                member.size = len(held)
                archive.addfile(member, io.BytesIO(held))
    return buffer.getvalue()


def unpack(archive: bytes, *files: str) -> None:
    install(tiny({"all.tar.gz": archive}, files), serving({MIRRORS[0] + "all.tar.gz": archive}))


def test_only_the_wanted_files_come_out_of_an_archive(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    unpack(packed(("set/a.bin", HELD), ("set/a.bin.txt", b"x"), ("set/xa.bin", b"x"), ("set/b.bin/readme", b"x"),
                  ("set/b.bin", HELD), ("../evil", b"x"), (str(outside), b"x"), ("link", str(outside)),
                  ("set/more", b"x")), "a.bin", "b.bin")
    assert everything(folder) == {"a.bin": HELD, "b.bin": HELD, "notes": b"mine"}
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.bin", "b.bin", "minidl", "notes", "tiny"]


@pytest.mark.parametrize("members", [
    [], [("b.bin", HELD)], [("a.bin", "/etc/hostname")], [("a.bin", "b.bin"), ("b.bin", HELD)],
    [("A.BIN", HELD)], [("a.bin.gz", HELD)],
])
def test_an_archive_without_a_wanted_file(folder: Path, members: list[tuple[str, bytes | str]]) -> None:
    with pytest.raises(OSError, match=r"^all\.tar\.gz holds no a\.bin$"):
        unpack(packed(*members), "a.bin")
    assert everything(folder) == {".failed": b"", "notes": b"mine"}
    assert sorted(folder.iterdir()) == [folder / ".failed", folder / "notes"]

