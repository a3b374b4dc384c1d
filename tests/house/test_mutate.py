"""The faults that mutate.py seeds: of one small text, all of them; and in the library, that each is a program."""

from __future__ import annotations

import ast
import sys

import pytest

if sys.platform == "win32":
    pytest.skip("mutate.py needs a system that forks", allow_module_level=True)

import mutate

TEXT = '''\
"""A docstring with 1 < 2."""
LIMIT: int = 8

class Row:
    def __repr__(self) -> str:
        return "x" + str(len(self) - 1)

    def cut(self, i: int | None = None, *, wrap: bool = False) -> list:
        """Another, not (1 + 1)."""
        if not wrap and i < LIMIT:
            raise ValueError(f"cut: {i - 1} is below {LIMIT}")
        self.last = i      # kept
        work(self.items,
             i)
        work(i, i)
        return self.items[:i]
'''
FAULTS = [
    (2, "", "LIMIT: int = 8", "LIMIT: int = 9"),
    (2, "", "LIMIT: int = 8", "LIMIT: int = 7"),
    (8, "", "def cut(self, i: int | None=None, *, wrap: bool=False) -> list",
     "def cut(self, i: int | None=None, *, wrap: bool=True) -> list"),
    (10, "Row.cut", "if not wrap and i < LIMIT", "if not (not wrap and i < LIMIT)"),
    (10, "Row.cut", "if not wrap and i < LIMIT", "if not wrap or i < LIMIT"),
    (10, "Row.cut", "if not wrap and i < LIMIT", "if wrap and i < LIMIT"),
    (10, "Row.cut", "if not wrap and i < LIMIT", "if not wrap and i <= LIMIT"),
    (10, "Row.cut", "if not wrap and i < LIMIT", "if not wrap and i >= LIMIT"),
    (11, "Row.cut", "raise ValueError(f'cut: {i - 1} is below {LIMIT}')", "pass"),
    (12, "Row.cut", "self.last = i", "pass"),
    (13, "Row.cut", "work(self.items, i)", "pass"),
    (13, "Row.cut", "work(self.items, i)", "work(i, self.items)"),
    (15, "Row.cut", "work(i, i)", "pass"),
    (16, "Row.cut", "return self.items[:i]", "return None"),
    (16, "Row.cut", "return self.items[:i]", "return self.items[:i + 1]"),
    (16, "Row.cut", "return self.items[:i]", "return self.items[:i - 1]"),
]


def applied(text: str, fault: mutate.Fault) -> str:
    raw = text.encode()
    return (raw[:fault.begin] + fault.text.encode() + raw[fault.end:]).decode()


def test_every_fault_of_a_text() -> None:
    found = list(mutate.faults("row.py", TEXT))
    assert sorted((f.line, f.function, f.before, f.after) for f in found) == sorted(FAULTS)
    for fault in found:
        changed = applied(TEXT, fault)
        assert changed.count("\n") == TEXT.count("\n")         # what stands below keeps its line
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(TEXT))
    assert fault.key == ("row.py Row.cut", "return self.items[:i]", "return self.items[:i - 1]")


@pytest.mark.slow
def test_faults_of_the_library_are_programs_and_a_seed_repeats_them() -> None:
    names = sorted(path.relative_to(mutate.ROOT).as_posix() for path in mutate.ROOT.glob("minidl/**/*.py"))
    chosen, replaced, total = mutate.sample(["*optim/*.py"], names, 12, 1)
    assert (chosen, len(chosen), replaced) == (mutate.sample(["*optim/*.py"], names, 12, 1)[0], 12, [])
    assert chosen != mutate.sample(["*optim/*.py"], names, 12, 2)[0]
    assert total > 200
    some = mutate.sample(["*optim/sgd.py"], names, 10**9, 1)[0]        # of less to draw from, in the same order
    assert [fault for fault in mutate.sample(["*optim/*.py"], names, 10**9, 1)[0] if fault in some] == some
    for fault in chosen:
        text = (mutate.ROOT / fault.file).read_text(encoding="utf-8")
        assert ast.dump(ast.parse(applied(text, fault))) != ast.dump(ast.parse(text))
