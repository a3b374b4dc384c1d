"""Says which rank of a machine was lost. It is a separate process: a rank that is killed cannot say so, nor can one
that the launcher then kills.

Each rank of the machine holds a connection to it, and says goodbye before it ends. If a connection ends without that,
the rank was killed or has crashed. The launcher ends the others; if it does not, the witness does.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

GRACE = 3.0                                # s that the launcher has for ending the other ranks
GOODBYE, END = b".", b"!"                  # of a rank that ends, and of one that ends all


def begin(ranks: int) -> str:
    """Start the witness of `ranks` ranks on this machine; returns where they find it."""
    path = os.path.join(tempfile.mkdtemp(prefix="minidl-"), "witness")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(ranks)
        subprocess.Popen([sys.executable, "-I", "-S", __file__, str(listener.fileno()), str(ranks),
                          os.path.basename(sys.argv[0]) or "minidl"], pass_fds=[listener.fileno()],
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    return path


def connect(path: str, rank: int, size: int) -> socket.socket:
    """This rank's connection, once the witness knows it."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.sendall(f"{rank} of {size} (process {os.getpid()} on {socket.gethostname()})".encode())
    connection.recv(1)
    return connection


def remove(path: str) -> None:
    """Remove the witness's path, once all ranks have found it."""
    with contextlib.suppress(OSError):
        os.unlink(path)
        os.rmdir(os.path.dirname(path))


def watch(listener: socket.socket, ranks: int, program: str) -> None:
    """Run until all ranks have said goodbye, or one is lost.

    A rank that ends all says so before the others are killed. The witness may find both at once, in any order; so it
    reads all words before it calls a rank lost. If it is late and the launcher has killed others too, it names all.
    """
    names: dict[socket.socket, str] = {}
    while ranks or names:
        words: dict[str, bytes] = {}
        for ready in select.select([listener, *names] if ranks else list(names), [], [])[0]:
            if ready is listener:
                connection, _ = listener.accept()
                names[connection] = connection.recv(1000).decode()
                connection.sendall(GOODBYE)
                ranks -= 1
                continue
            word = b""
            with contextlib.suppress(ConnectionError):
                word = ready.recv(1)
            words[names.pop(ready)] = word
        lost = [name for name, word in words.items() if word != GOODBYE]
        if lost and END not in words.values():
            print(f"{program}: error: rank {' or rank '.join(lost)} was lost: it was killed, or has crashed; all ranks "
                  "end", file=sys.stderr, flush=True)
        if lost:
            end(names)
            return


def end(names: dict[socket.socket, str]) -> None:
    """The launcher ends the ranks that are left; those that still live after that are killed."""
    until = time.monotonic() + GRACE
    while names and time.monotonic() < until:
        for ready in select.select(list(names), [], [], 0.1)[0]:
            del names[ready]
    for name in names.values():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(int(name.split("process ")[1].split()[0]), signal.SIGKILL)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        watch(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3])
