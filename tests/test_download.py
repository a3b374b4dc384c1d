"""Installing into the cache, one small file at a time: mirrors in turn, archives, nothing half done.

How a whole data set is fetched through `load` is with the data sets' own tests.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from minidl.data.catalog import Download, File, Spec
from minidl.data.download import install

MIRRORS = ("https://one.example/", "https://two.example/")
HELD = b"0123456789"
Opener = Callable[[str], Any]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The cache folder of the set "tiny", with one file in it that is no business of the installer."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "minidl" / "tiny"
    folder.mkdir(parents=True)
    (folder / "notes").write_text("mine")
    return folder


def tiny(downloads: dict[str, bytes], files: tuple[str, ...] = ()) -> Spec:
    """A data set of these downloads, of which the archives hold the files, ten bytes each."""
    wanted = tuple(Download(name, len(held), hashlib.sha256(held).hexdigest(), tuple(m + name for m in MIRRORS))
                   for name, held in downloads.items())
    inside = tuple(File(name, len(HELD), hashlib.sha256(HELD).hexdigest()) for name in files)
    return Spec("tiny", (), {"train": inside}, (), wanted, "synthetic-digits", "idx")


def serving(pages: Mapping[str, bytes | Exception]) -> Opener:
    """Opens a page by its address; an exception in a page's place is raised half-way through its ten bytes."""
    @contextmanager
    def opener(url: str) -> Iterator[Any]:
        page = pages[url]
        answer = io.BytesIO(HELD[:5] if isinstance(page, Exception) else page)
        read = answer.read

        def failing(count: int) -> bytes:
            block = read(count)
            if not block and isinstance(page, Exception):
                raise page
            return block

        answer.headers, answer.read = {}, failing  # type: ignore[attr-defined, method-assign, assignment]
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
    assert everything(folder) == {"notes": b"mine"}
    assert list(folder.iterdir()) == [folder / "notes"]


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "notes"))
    said = (f"the cache folder {folder}/notes/minidl/tiny cannot be written (Not a directory; $XDG_CACHE_HOME names "
            "another)")
    with pytest.raises(OSError, match=f"^{re.escape(said)}$"):
        install(tiny({"a.gz": HELD}), serving({}))


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
    assert everything(folder) == {"notes": b"mine"}
    assert list(folder.iterdir()) == [folder / "notes"]

