"""The lock of the kernels: what NVRTC made of each configuration, so that CI compiles only what has changed.

    python tests/kernels.py --check             # what changed, and a sample of the rest; this is what CI runs
    python tests/kernels.py --write             # compile what changed, and write cuda/kernels.lock
    python tests/kernels.py --all               # compile everything: each row must be what comes out

The first line of the lock names the compiler. Each further line is a row: one configuration of one file. It holds the
digest of what the compiler is given (source with includes but without lines that are comments, constants, options), a
seal over the rest of the row, file, constants, and the most registers that one of its kernels takes on each of
ARCHITECTURES ("-" where it is not compiled). What follows is there only if it says something: bytes of spills, warnings
about wgmma, and the names of the kernels if the constants leave some of the file's out.

--check compiles the rows whose digest is old, on all architectures, up to MAX_CHANGED pairs of row and architecture.
More are an error, which says how to write the lock. Of the rest it draws SAMPLE of the pairs by the digest of the
commit, and compiles them again: they must equal their rows, registers in units of UNIT. A row that somebody edited has
a seal that is wrong.

It needs no GPU, but CuPy and cuda-core.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))   # minidl and zoo as they lie here, installed or not

import cuda.core  # noqa: F401  # before two threads do at once
from checks.sources import CONFIGURATIONS, Constants, compiled, kernels, registers, spilled

from minidl.ops.cuda import launch

LOCK = Path(__file__).with_name("cuda") / "kernels.lock"
WRITE = "python tests/kernels.py --write"
ARCHITECTURES = 75, 80, 86, 90, 100, 120   # not 89: its machine code is that of 86, which the deep tests check
SPILLS = {                                 # (file, architecture) -> bytes that a kernel may spill; else none
    ("layers/loss/cross_entropy.cu", 120): 8}     # the fused loss of doubles, at 1024 threads per block
MAX_CHANGED = 600                          # pairs that a check compiles: three minutes on two cores
SAMPLE = 0.01                              # of the pairs whose rows are as they should be
UNIT = 8                                   # registers that a thread gets at a time; runs of the compiler
                                           # differ by fewer: of 5,679 pairs one has 225 or 227
THREADS = int(os.environ.get("WORKERS", 2))   # as in .ci/deep
SAVED_AT_ONCE = 40                         # configurations, of which --write loses no more if it is interrupted

Configuration = tuple[str, Constants]


# ---------------------------------------------------------------- rows
class Outcome(NamedTuple):
    """What the compiler made of a configuration for one architecture."""

    registers: int                         # the most of its kernels
    spills: int                            # bytes, the most of its kernels
    warnings: int                          # about products of wgmma that have to wait for each other
    kernels: tuple[str, ...]               # names, if the constants leave some of the file's out

    def is_like(self, other: Outcome | None) -> bool:
        """Whether they are the same to a GPU."""
        return other is not None and self._replace(registers=-(-self.registers // UNIT)) == other._replace(
            registers=-(-other.registers // UNIT))

    def faults(self, file: str, architecture: int) -> Iterator[str]:
        """Which rules it breaks."""
        if self.spills > SPILLS.get((file, architecture), 0):
            yield f"{self.spills} bytes are spilled on {architecture}"
        if self.warnings:
            yield f"{self.warnings} warnings about wgmma on {architecture}"


class Row(NamedTuple):
    """One line of the lock. constants: as text, "BM=64,REAL=float"."""

    digest: str
    file: str
    constants: str
    outcomes: dict[int, Outcome]

    def text(self) -> str:
        """The line, with its seal."""
        rest = [self.file, self.constants or "-", *(
            str(self.outcomes[each].registers) if each in self.outcomes else "-" for each in ARCHITECTURES)]
        for name in ("spills", "warnings"):
            found = {each: getattr(outcome, name) for each, outcome in self.outcomes.items()}
            rest += [f"{name}={each}:{count}" for each, count in found.items() if count]
        if names := next(iter(self.outcomes.values())).kernels:
            rest.append(f"kernels={','.join(names)}")
        return " ".join([self.digest, seal(self.digest, *rest), *rest])

    @classmethod
    def read(cls, line: str) -> Row:
        """The row of a line. Raises ValueError if somebody edited it."""
        digest, sealed, *rest = line.split()
        if sealed != seal(digest, *rest):
            raise ValueError(f"kernels.lock: this row was edited by hand, write it with {WRITE}: {line}")
        file, constants, *counts = rest[:2 + len(ARCHITECTURES)]
        notes = [note.partition("=")[::2] for note in rest[2 + len(ARCHITECTURES):]]
        names = next((tuple(value.split(",")) for name, value in notes if name == "kernels"), ())
        said = {(name, int(value.partition(":")[0])): int(value.partition(":")[2])
                for name, value in notes if name != "kernels"}
        outcomes = {each: Outcome(int(count), said.get(("spills", each), 0), said.get(("warnings", each), 0), names)
                    for each, count in zip(ARCHITECTURES, counts, strict=True) if count != "-"}
        return cls(digest, file, constants.removeprefix("-"), outcomes)


def seal(*words: str) -> str:
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:6]


def name_of(constants: Constants) -> str:
    """In one word."""
    return ",".join(f"{name}={value}" for name, value in constants).replace(" ", "_")


def compiler() -> str:
    """The installed one, as the first line of the lock names it."""
    return f"nvrtc {importlib.metadata.version('nvidia-cuda-nvrtc')}"


def bare(file: str) -> str:
    """A source without lines that are comments, or that say where others are from."""
    return "\n".join(line for line in launch.source(file).splitlines() if not re.match(r"\s*(//|#line|$)", line))


def digest(named: str, text: str, constants: Constants) -> str:
    """Of all that a compiler, so named, is given."""
    return hashlib.sha256("\n".join([named, *launch.options(constants), text]).encode()).hexdigest()[:12]


def architectures(constants: Constants) -> tuple[int, ...]:
    """Those that a configuration is for."""
    return (90,) if launch.HOPPER in constants else ARCHITECTURES


def outcome(configuration: Configuration, architecture: int) -> Outcome:
    """By the compiler. Raises its exception if the source does not compile."""
    file, constants = configuration
    log = compiled(launch.source(file), constants, architecture)
    taken, spills = registers(log), spilled(log)
    assert taken.keys() == spills.keys(), f"{file}: the compiler's log is not as it was: {log[:500]}"
    some = () if taken.keys() == set(kernels(file)) else tuple(sorted(taken))
    return Outcome(max(taken.values()), max(spills.values()), log.count("C75"), some)


def outcomes(pairs: Iterable[tuple[Configuration, int]]) -> list[Outcome | str]:
    """Of each pair, in order; or the compiler's error."""
    def one(pair: tuple[Configuration, int]) -> Outcome | str:
        try:
            return outcome(*pair)
        except Exception as error:         # whatever the compiler says, the other pairs are wanted too
            return str(error)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(one, pairs))


# ---------------------------------------------------------------- the lock
class Lock(NamedTuple):
    """The file: the compiler, and the rows by file and constants."""

    compiler: str
    rows: dict[tuple[str, str], Row]

    @classmethod
    def read(cls, path: Path = LOCK) -> Lock:
        """Raises ValueError if a row was edited."""
        first, *lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else [""]
        return cls(first, {(row.file, row.constants): row for row in map(Row.read, lines)})

    def write(self, path: Path = LOCK) -> None:
        lines = sorted((row.file, row.constants, row.text()) for row in self.rows.values())
        path.write_text("\n".join([self.compiler, *(text for *_, text in lines)]) + "\n", encoding="utf-8")

    def changed(self, configurations: list[Configuration]) -> list[Configuration]:
        """Those without a row of what they are now."""
        texts = {file: bare(file) for file, _ in configurations}
        return [(file, constants) for file, constants in configurations
                if (row := self.rows.get((file, name_of(constants)))) is None
                or row.digest != digest(self.compiler, texts[file], constants)]

    def faults(self, configurations: list[Configuration]) -> Iterator[str]:
        """What is wrong with it as a text: nothing is compiled."""
        wanted = {(file, name_of(constants)) for file, constants in configurations}
        yield from (f"{file} {constants}: has no row" for file, constants in sorted(wanted - self.rows.keys()))
        yield from (f"{file} {constants}: is a row of no configuration"
                    for file, constants in sorted(self.rows.keys() - wanted))
        for row in self.rows.values():
            for architecture, found in row.outcomes.items():
                yield from (f"{row.file} {row.constants}: {fault}" for fault in found.faults(row.file, architecture))
        for file in sorted({file for file, _ in configurations}):
            names = kernels(file)
            of_file = [row for row in self.rows.values() if row.file == file]
            made = {name for row in of_file for each in row.outcomes.values() for name in each.kernels or names}
            yield from (f"{file}: no row compiles {name}" for name in names if name not in made)


def pairs_of(configurations: Iterable[Configuration]) -> list[tuple[Configuration, int]]:
    return [(each, architecture) for each in configurations for architecture in architectures(each[1])]


def drawn(pairs: list[tuple[Configuration, int]], share: float, commit: str) -> list[tuple[Configuration, int]]:
    """A share of the pairs, by the commit's digest."""
    def number(pair: tuple[Configuration, int]) -> float:
        (file, constants), architecture = pair
        text = f"{commit} {file} {name_of(constants)} {architecture}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32

    return [pair for pair in pairs if number(pair) < share]


def head() -> str:
    """The commit that is checked out."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=LOCK.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no commit"


def check(lock: Lock, configurations: list[Configuration], share: float, commit: str) -> list[str]:
    """All that is wrong; prints what it compiles."""
    faults = list(lock.faults(configurations))
    changed = lock.changed(configurations)
    new = pairs_of(changed)
    if len(new) > MAX_CHANGED:
        return [*faults, f"{len(changed)} configurations changed: {len(new)} pairs with an architecture, but a check "
                         f"compiles {MAX_CHANGED} at most; run {WRITE}, and commit the lock"]
    kept = set(configurations) - set(changed)
    old = drawn(pairs_of(each for each in configurations if each in kept), share, commit)
    print(f"kernels.lock: {len(lock.rows)} rows by {lock.compiler}; {len(changed)} configurations changed, of which "
          f"{len(new)} pairs are compiled; of the rest {len(old)}, drawn by {commit}", flush=True)
    for at, (((file, constants), architecture), found) in enumerate(zip(new + old, outcomes(new + old), strict=True)):
        what = f"{file} {name_of(constants)}"
        if isinstance(found, str):
            faults.append(f"{what}: does not compile for {architecture}: {found}")
            continue
        faults += [f"{what}: {fault}" for fault in found.faults(file, architecture)]
        want = found if at < len(new) else lock.rows[file, name_of(constants)].outcomes.get(architecture)
        if not found.is_like(want):
            faults.append(f"{what}: the row says {want} for {architecture}, but the compiler {found}; run {WRITE}")
    if changed:
        print(f"to compile these no more: {WRITE}, and commit the lock")
    return faults


def written(lock: Lock, configurations: list[Configuration], named: str,
            save: Callable[[Lock], None] = lambda lock: None) -> tuple[Lock, list[str]]:
    """The lock with rows of what changed, and what is wrong with it. It is saved again and again on the way."""
    wanted = {(file, name_of(constants)) for file, constants in configurations}
    lock = Lock(named, {key: row for key, row in lock.rows.items() if key in wanted})
    changed, faults = lock.changed(configurations), []
    for at in range(0, len(changed), SAVED_AT_ONCE):
        some = changed[at:at + SAVED_AT_ONCE]
        print(f"{at} of {len(changed)} changed configurations are compiled", flush=True)
        found: dict[Configuration, dict[int, Outcome]] = {each: {} for each in some}
        for (configuration, architecture), made in zip(pairs_of(some), outcomes(pairs_of(some)), strict=True):
            if isinstance(made, str):
                faults.append(f"{configuration[0]} {name_of(configuration[1])}: does not compile for {architecture}: "
                              f"{made}")
            else:
                found[configuration][architecture] = made
        for (file, constants), outcomes_ in found.items():
            if len(outcomes_) == len(architectures(constants)):
                text = name_of(constants)
                lock.rows[file, text] = Row(digest(named, bare(file), constants), file, text, outcomes_)
        save(lock)
    return lock, [*faults, *lock.faults(configurations)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_mutually_exclusive_group(required=True)
    ways.add_argument("--check", action="store_true", help="what changed, and a sample of the rest")
    ways.add_argument("--write", action="store_true", help="compile what changed, and write the lock")
    ways.add_argument("--all", action="store_true", help="compile everything")
    given = parser.parse_args(arguments)
    start = time.monotonic()
    try:
        lock = Lock.read()
    except ValueError as error:
        if not given.write:
            print(error)
            return 1
        lock = Lock("", {})
    if given.write:
        lock, faults = written(lock, CONFIGURATIONS, compiler(), Lock.write)
        lock.write()                       # also if nothing changed but a configuration that is gone
    elif lock.compiler != compiler():
        faults = [f"the lock is by {lock.compiler or 'no compiler'} but {compiler()} is installed: install that one, "
                  f"or run {WRITE}"]
    else:
        faults = check(lock, CONFIGURATIONS, 1 if given.all else SAMPLE, head())
    for fault in faults:
        print(fault)
    print(f"kernels.lock: {f'{len(faults)} faults' if faults else 'no fault'}, {time.monotonic() - start:.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
