"""How several ranks end: all together. If one cannot go on, all of them end, with one message that names it."""

from __future__ import annotations

import atexit
import faulthandler
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .world import Launched, OtherRank

if TYPE_CHECKING:
    from .mpi import Mpi

PATIENCE = 2.0                             # s that a rank with an error waits for others, which may have the same one
STAGGER = 0.1                              # s between the ranks that wait no longer: the first one's message is enough
JOINING = 60                               # s that MPI may take to join the ranks


def complain(text: str) -> None:
    """A line on stderr that begins with the program's name."""
    script = Path(sys.argv[0]).name
    with suppress(OSError):
        print(f"{script if script[:1] not in ('', '-') else 'minidl'}: error: {text}", file=sys.__stderr__, flush=True)


@contextmanager
def ends_all(found: Launched) -> Iterator[None]:
    """Within this, MPI joins the ranks. An error also ends the ranks that wait for this one there. If several ranks
    have the error, the first one tells it."""
    faulthandler.dump_traceback_later(JOINING, exit=True)          # MPI waits without an end, and lets no thread run
    try:
        yield
    except (ImportError, ValueError, RuntimeError, OSError) as error:
        time.sleep(STAGGER * min(found.rank, 50))
        complain(f"rank {found.rank}: {error}")
        time.sleep(STAGGER)                  # for the launcher to pass it on
        with suppress(KeyError, ValueError, OSError):  # what the process manager of MPICH understands
            os.write(int(os.environ["PMI_FD"]), b"cmd=abort exitcode=2\n")
            time.sleep(PATIENCE)
        os._exit(2)
    finally:
        faulthandler.cancel_dump_traceback_later()


class Ends:
    """The end of a rank, which happens once.

    Errors that are not caught, and the end of the program, come here by themselves.
    """

    def __init__(self, world: Mpi):
        self.world, self.done, self.status = world, False, 0
        sys.excepthook = self.uncaught
        atexit.register(self.at_exit)

    def end(self, error: str = "", status: int = 2, tell: Callable[[str], Any] = complain) -> int:
        """As World.end. It waits for all others; with an error only for a moment, and then ends them."""
        if self.done:
            return status if error else 0
        self.done, world = True, self.world
        patience = PATIENCE + STAGGER * min(world.rank, 50) if error else None
        words = world.meet(f"{status} {error}" if error else "", patience)
        if words is None:
            tell(f"rank {world.rank}: {error}")
            world.abort(status)
        failed = [rank for rank, each in enumerate(words or ()) if each]
        if failed and world.rank == failed[0]:
            same = len(failed) == world.size and len(set(words or ())) == 1
            tell(error if same else f"rank {world.rank}: {error}")
        world.close()
        self.status = int((words or ())[failed[0]].split()[0]) if failed else 0
        return self.status

    def uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """In the place of sys.excepthook: the traceback is printed by the first rank that has one, and all end."""
        text = "" if isinstance(error, OtherRank) else "".join(traceback.format_exception(kind, error, trace)).rstrip()
        status = 128 + getattr(error, "signum", 2) if isinstance(error, KeyboardInterrupt) else 1

        def tell(told: str) -> None:
            print(told, file=sys.__stderr__, flush=True)

        _leave(self.end(text, status, tell))

    def at_exit(self) -> None:
        """The end of a program that did not say so itself, and of one whose GPUs are still joined."""
        if self.end() or not self.world.apart:
            _leave(self.status)


def _leave(status: int) -> None:
    """End the process with a status, whatever would come next."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)
