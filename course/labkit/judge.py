"""The process that knows what is right: runs a lab's checks on a student's file, which another process runs.

    python judge.py LAB_FOLDER FILE SEED SECONDS

reads a token, and prints it before the result as JSON, so that a text of another process is not taken for it. What is
right is not sent to the student's process, and that one has no way to this one's memory or files. What only a container
can keep from it is in course/teachers.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import re
import runpy
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[0] = str(HERE.parent)

import numpy as np  # noqa: E402

from labkit import Lab, Step, Wrong  # noqa: E402
from labkit.wire import receive, send  # noqa: E402

MAX_FILE = 1 << 20                         # bytes of a student's file
STARTUP = 30.0                             # seconds that a new process may take beside its own
USERS = 61_000                             # and above: the users of students' processes, where root judges
NOT_DUMPABLE, SUBREAPER = 4, 36            # of linux/prctl.h


def hide() -> None:
    """Keep other processes of this user from this one's memory and open files, where Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(NOT_DUMPABLE, 0, 0, 0, 0)


def limits(seconds: float) -> dict[str, int]:
    """What a student's process may use: CPU seconds, bytes, files, processes."""
    return {"CPU": int(seconds) + 2, "AS": 4 << 30, "FSIZE": 16 << 20, "NOFILE": 128, "NPROC": _threads() + 64,
            "CORE": 0}


def _all_may_read() -> bool:
    """Whether users without rights find Python and its packages, without which their processes cannot start."""
    places = {Path(place).resolve() for place in (sys.base_prefix, np.__file__, HERE)}
    return all(folder.stat().st_mode & 0o5 == 0o5 for place in places for folder in place.parents)


def _threads() -> int:
    """What the user of this process runs already, which counts as the student's where users are one."""
    mine, count = os.getuid(), 0
    for each in Path("/proc").glob("[0-9]*/task/*"):
        try:
            count += mine > 0 and each.stat().st_uid == mine
        except OSError:                    # it ended meanwhile
            continue
    return count


class Player:
    """The student's process, in an empty folder of its own; a new one if the last has ended."""

    def __init__(self, file: Path, drive: Path | None, seconds: float, folder: Path):
        self.file, self.drive, self.folder, self.seconds = file, drive, folder, seconds
        self.until = time.monotonic() + seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self.walls: list[str] = []         # what it is kept from

    def _start(self) -> int:
        place = Path(tempfile.mkdtemp(dir=self.folder))
        files = [shutil.copyfile(each, place / each.name) for each in (self.file, self.drive) if each]
        beside = [shutil.copyfile(each, place / each.name) for each in (self.file.with_suffix(".cu"),)
                  if each.is_file() and each != self.file]
        user = USERS + os.getpid() % 4000 if os.getuid() == 0 and _all_may_read() else 0
        for each in map(Path, (place, *files, *beside)):
            if user:
                os.chown(each, user, user)
        ours, theirs = socket.socketpair()
        root = next((path for path in map(Path, sys.path) if (path / "minidl" / "__init__.py").is_file()), HERE)
        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        environment = {**kept, "HOME": str(place), "TMPDIR": str(place), "LANG": "C.UTF-8", "PYTHONHASHSEED": "0",
                       "PYTHONPATH": f"{root}:{Path(np.__file__).parents[1]}", "PYTHONDONTWRITEBYTECODE": "1",
                       "PYTHONNOUSERSITE": "1",
                       **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MINIDL_NUM_THREADS"), "1")}
        with open(self.folder / "printed", "ab") as printed:
            self._process = subprocess.Popen(
                [sys.executable, HERE / "player.py", str(theirs.fileno()), str(user), json.dumps(limits(self.seconds)),
                 *files], cwd=place, env=environment, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed,
                pass_fds=[theirs.fileno()], start_new_session=True)
        theirs.close()
        self._channel = ours
        try:
            self.walls = receive(ours.fileno(), time.monotonic() + STARTUP)
        except (EOFError, TimeoutError):
            said = (self.folder / "printed").read_text()
            raise SystemExit(f"the process of the file does not start:\n{said}") from None
        return ours.fileno()

    def ask(self, question: dict[str, Any]) -> Any:
        """The answer. Raises Wrong for an error, and where the process ends or is ended."""
        name = self.file.name
        if time.monotonic() > self.until:
            raise Wrong(f"{name}: the {self.seconds:g} seconds of this lab are over; look for a loop that does not end")
        channel = self._channel.fileno() if self._channel else self._start()
        asked = f"calling {question['call']!r}" if "call" in question else "launching the kernel"
        try:
            send(channel, question)
            reply = receive(channel, self.until)
            if "error" not in reply:
                return reply["value"]
            line, kind, text = int(reply["line"]), str(reply["error"]), str(reply["text"])
        except TimeoutError:
            self.end()
            raise Wrong(f"{name}: {asked} did not end within {self.seconds:g} seconds; look for a loop that does not "
                        "end") from None
        except (EOFError, OSError):
            raise Wrong(f"{name}: {asked} ended the process ({self.end()}) without an answer; a file must not exit, "
                        "and must get along with the memory and time that it has") from None
        except (ValueError, KeyError, TypeError) as error:
            self.end()
            raise Wrong(f"{name}: {asked} gave no answer that can be read ({str(error)[:200]})") from None
        if kind == "NotImplementedError":
            raise Wrong(f"{name}:{line}: not done yet: {text}")
        text = " ".join(text.split())
        if text.startswith("emulator: "):  # its sentences name the file
            raise Wrong(re.sub(r"/\S*/", "", text.removeprefix("emulator: ")))
        raise Wrong(f"{name}{f':{line}' * (line > 0)}: {asked} raises {kind}: {text}")

    def end(self) -> str:
        """End the process, with all that it has started; returns how it ended."""
        if self._process is None or self._channel is None:
            return "it never began"
        self._channel.close()
        self._channel = None
        try:
            status = self._process.wait(0.2)
        except subprocess.TimeoutExpired:
            status = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        while children := _children():     # those in groups of their own: this process inherits orphans
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        if status is None:
            return "it was stopped"
        return f"status {code}" if 0 <= code <= 128 else f"by signal {-code if code < 0 else code - 128}"


def _children() -> list[int]:
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(each.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == os.getpid():
            found.append(int(each.parent.name))
    return found


def steps_of(folder: Path) -> list[Step]:
    """Those of a lab's check.py, in their order."""
    return [each for each in runpy.run_path(str(folder / "check.py")).values() if isinstance(each, Step)]


def judged(folder: Path, file: Path, seed: int, seconds: float) -> dict[str, Any]:
    """Points and faults of each step. Each step draws from the seed anew, so that one that fails changes no other."""
    steps = steps_of(folder)
    began, results = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="minidl-lab-") as place:
        os.chmod(place, 0o711)
        drive = folder / "drive.py"
        own = Path(place) / f"lab{file.suffix}"                # a submission's file may have any name
        try:
            own.write_bytes(held := _read(file))
            if file.suffix == ".py" and (folder / "lab.cu").is_file():         # its kernels lie beside it
                own.with_suffix(".cu").write_bytes(beside := _read(file.with_name("lab.cu")))
                held += beside
        except Wrong as error:
            return _told(steps, [str(error)] * len(steps), began, "")
        player = Player(own, drive if drive.is_file() else None, seconds, Path(place))
        for at, each in enumerate(steps):
            try:
                each.check(Lab(own, player.ask, np.random.default_rng([seed, at])))
                results.append("")
            except Wrong as error:
                results.append(str(error))
            except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError) as error:
                results.append(f"{own.name}: an answer has another form than {each.name!r} needs "
                               f"({type(error).__name__}: {str(error)[:200]}); compare it with the page")
        player.end()
        printed = Path(place) / "printed"
        with open(printed, "rb") if printed.exists() else open(os.devnull, "rb") as lines:
            return {**_told(steps, results, began, lines.read(4000).decode("utf-8", "replace")),
                    "walls": player.walls, "sha256": hashlib.sha256(held).hexdigest()}


def _told(steps: list[Step], results: list[str], began: float, printed: str) -> dict[str, Any]:
    rows = [{"step": each.name, "points": each.points * (not wrong), "of": each.points, "wrong": wrong}
            for each, wrong in zip(steps, results, strict=True)]
    return {"points": sum(each.points for each, wrong in zip(steps, results) if not wrong),
            "of": sum(each.points for each in steps), "passed": not any(results), "steps": rows,
            "seconds": round(time.monotonic() - began, 1), "printed": printed}


def _read(file: Path) -> bytes:
    """A student's file. Raises Wrong for a link, which would hand in what it leads to, for what is not a text, and
    for one that is missing."""
    if not os.path.lexists(file):
        raise Wrong(f"there is no {file.name}; hand in all files of the lab, in one folder")
    kind = os.lstat(file).st_mode
    if not stat.S_ISREG(kind):
        raise Wrong(f"{file.name} is not a file of its own but a link or a device; hand in the file itself")
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as opened:
        held = opened.read(MAX_FILE + 1)
    if len(held) > MAX_FILE:
        raise Wrong(f"{file.name} has over {MAX_FILE:,} bytes; hand in the source alone")
    return held


def main() -> None:
    """Judge, and print the result where nothing that is imported prints."""
    folder, file, seed, seconds = sys.argv[1:]
    out = os.dup(1)
    os.dup2(2, 1)
    hide()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    token = sys.stdin.read()
    result = judged(Path(folder), Path(file), int(seed), float(seconds))
    with open(out, "w", encoding="utf-8") as to:
        to.write(token + json.dumps(result))


if __name__ == "__main__":
    main()
