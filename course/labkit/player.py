"""The process that runs a student's file: without rights, within limits, and without anything that it may not know.

It answers what the judge asks: what a function of the file returns for some arguments, or what a kernel of it writes.
What is right is known to the judge alone, in another process. So what this process can do to itself (patch NumPy,
look at its frames, print, end) does not make a wrong answer right.

    python player.py SOCKET USER LIMITS FILE [DRIVE]
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])
from labkit.wire import plain, receive, send  # noqa: E402

del sys.path[0]                            # what lies beside the judge is not imported by chance
NEW_USER, NEW_PROCESSES, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000      # of linux/sched.h


def confine(user: int, limits: dict[str, int], channel: int) -> list[str]:
    """Give up rights: root's, the network and other processes where Linux lets a user do so, then resources. Returns
    what this process is kept from."""
    walls = ["user"] if user else []
    if user:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    if sys.platform == "linux" and not ctypes.CDLL(None).unshare(NEW_USER | NEW_PROCESSES | NEW_NETWORK):
        walls += ["processes", "network"]
        for _ in range(2):                 # the first of the new processes only waits: all others end with it
            if child := os.fork():
                os.close(channel)
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                os._exit(code if code >= 0 else 128 - code)
    for name, most in limits.items():
        which = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(which)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (most, most))
    return walls


def imported(file: str) -> Any:
    """A Python file as a module; its imports find what is installed."""
    name = Path(file).stem
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Player:
    """A student's file, imported or compiled at the first question."""

    def __init__(self, file: str, drive: str | None):
        self.file, self.drive_file = file, drive
        self._modules: dict[str, Any] = {}
        self._kernels: dict[str, Any] = {}

    def module(self, file: str) -> Any:
        if file not in self._modules:
            self._modules[file] = imported(file)
        return self._modules[file]

    def answer(self, question: dict[str, Any]) -> Any:
        """What the judge asks for."""
        if "kernel" in question:
            return self.launched(**question)
        lab, name, args = self.module(self.file), question["call"], question["args"]
        drive = getattr(self.module(self.drive_file), name, None) if self.drive_file else None
        if drive is not None:
            return drive(lab, *args)
        if not hasattr(lab, name):
            raise NameError(f"there is no function {name!r} in it; the starting file has one: do not rename it")
        return getattr(lab, name)(*args)

    def launched(self, kernel: str | None, constants: dict[str, Any], grid: Any, block: Any,
                 arguments: dict[str, Any], shared: int, seed: int, orders: int) -> dict[str, Any]:
        """A kernel's arrays, faults, and counts by line, by the emulator."""
        from minidl.lab.emulator.watch import Kernel

        key = repr((kernel, constants))
        if key not in self._kernels:
            self._kernels[key] = Kernel(Path(self.file).with_suffix(".cu"), kernel, constants)
        return plain(self._kernels[key].run(grid, block, arguments, shared=shared, seed=seed, orders=orders))


def fault(error: BaseException, file: str) -> dict[str, Any]:
    """An error, and the last line of the student's file on its way."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if isinstance(error, SyntaxError) and error.filename == file:
        lines = [error.lineno]
    return {"error": type(error).__name__, "text": str(error)[:2000], "line": lines[-1] if lines else 0}


def main() -> None:
    """Answer until the judge ends."""
    socket, user, limits, file, *drive = sys.argv[1:]
    channel = int(socket)
    send(channel, confine(int(user), json.loads(limits), channel))
    player = Player(file, drive[0] if drive else None)
    while True:
        try:
            question = receive(channel)
        except EOFError:
            return
        try:
            reply = {"value": player.answer(question)}
            send(channel, reply)
        except BaseException as error:     # SystemExit, KeyboardInterrupt: whatever the file raises is an answer
            send(channel, fault(error, file))


if __name__ == "__main__":
    main()
