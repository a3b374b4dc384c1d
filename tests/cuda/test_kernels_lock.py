"""The lock of the kernels (tests/kernels.py): what it holds, and that each kind of fault is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: the launchers cannot be imported")
pytest.importorskip("cuda.core", reason="cuda.core is not installed: nothing compiles CUDA without a GPU")

import kernels
from checks.sources import CONFIGURATIONS, FILES
from kernels import Lock, Outcome, Row

from minidl.ops.cuda import launch

FILE = "mine.cu"
TEXT = '''// Doubles each number.
// A thread has one.
extern "C" __global__ void doubled(const REAL* __restrict__ x, REAL* __restrict__ y) {
    y[threadIdx.x] = 2 * x[threadIdx.x];
}
'''
SPILLING = '''// Keeps more numbers than a thread has registers, 255.
extern "C" __global__ void spilling(const REAL* __restrict__ x, REAL* __restrict__ y, int n) {
    REAL kept[270];
    #pragma unroll
    for (int i = 0; i < 270; i++) kept[i] = x[i * 1024 + threadIdx.x];
    for (int turn = 0; turn < n; turn++) {
        #pragma unroll
        for (int i = 0; i < 270; i++) kept[i] = kept[i] * kept[(i + 7) % 270] + kept[(i + 1) % 270];
    }
    #pragma unroll
    for (int i = 0; i < 270; i++) y[i * 1024 + threadIdx.x] = kept[i];
}
'''
ROWS = [(FILE, (("REAL", "float"),)), (FILE, (("REAL", "double"),))]


# ---------------------------------------------------------------- the lock in this checkout
def test_the_lock_has_a_row_for_each_configuration_and_no_fault() -> None:
    """Nothing is compiled: the rows' seals, the rules for spills and warnings, and each kernel of each file."""
    lock = Lock.read()
    assert lock.compiler.startswith("nvrtc ")
    assert list(lock.faults(CONFIGURATIONS)) == []


def test_every_file_is_compiled() -> None:
    assert FILES
    assert set(FILES) == {file for file, _ in CONFIGURATIONS}
    assert {file for file, _ in kernels.SPILLS} <= set(FILES)
    assert {architecture for _, architecture in kernels.SPILLS} <= set(kernels.ARCHITECTURES)


def test_the_lock_is_written_as_it_is_read(tmp_path: Path) -> None:
    lock = Lock.read()
    lock.write(tmp_path / "lock")
    assert (tmp_path / "lock").read_text() == kernels.LOCK.read_text()


def test_a_sample_is_drawn_by_the_commit() -> None:
    pairs = kernels.pairs_of(CONFIGURATIONS)
    first, again, other = (kernels.drawn(pairs, 0.02, commit) for commit in ("a", "a", "b"))
    assert first == again != other
    assert 0.01 < len(first) / len(pairs) < 0.03
    assert kernels.drawn(pairs, 1, "a") == pairs


# ---------------------------------------------------------------- faults, each found
@pytest.fixture
def compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one small source in the place of ops/cuda, for two architectures."""
    monkeypatch.setattr("minidl.ops.common.sources.FOLDER", tmp_path)
    monkeypatch.setattr(kernels, "ARCHITECTURES", (75, 80))
    (tmp_path / FILE).write_text(TEXT)
    return tmp_path


def locked(configurations: list[Any] = ROWS) -> Lock:
    lock, faults = kernels.written(Lock("", {}), configurations, "nvrtc 1")
    assert faults == []
    return lock


def checked(lock: Lock, configurations: list[Any] = ROWS, share: float = 0) -> str:
    return "\n".join(kernels.check(lock, configurations, share, "commit"))


def test_a_lock_that_is_right(compiles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = locked()
    lock.write(tmp_path / "lock")
    assert Lock.read(tmp_path / "lock") == lock
    capsys.readouterr()
    assert checked(lock, share=1) == ""
    assert capsys.readouterr().out == ("kernels.lock: 2 rows by nvrtc 1; 0 configurations changed, of which 0 pairs "
                                       "are compiled; of the rest 4, drawn by commit\n")


def test_only_what_changed_is_compiled(compiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comment changes nothing; a new constant is one row more."""
    lock, seen, outcome = locked(), [], kernels.outcome

    def noted(configuration: Any, architecture: int) -> Outcome:
        seen.append(configuration)
        return outcome(configuration, architecture)
    monkeypatch.setattr(kernels, "outcome", noted)
    (compiles / FILE).write_text("// Another word.\n" + TEXT)
    assert checked(lock) == ""
    assert seen == []
    wide = (FILE, (("REAL", "float"), ("WIDE", "unsigned short")))            # a constant of two words
    again, faults = kernels.written(lock, [*ROWS, wide], "nvrtc 1")
    assert faults == []
    assert seen == [wide, wide]
    assert len(again.rows) == 3
    assert checked(again, [*ROWS, wide]) == ""
    again.write(tmp_path / "lock")
    assert Lock.read(tmp_path / "lock") == again


def test_a_changed_source_is_compiled_and_judged(compiles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = locked()
    (compiles / FILE).write_text(TEXT.replace("2 *", "3 *"))
    assert checked(lock) == ""
    assert "2 configurations changed, of which 4 pairs are compiled" in capsys.readouterr().out
    (compiles / FILE).write_text(TEXT.replace("2 *", "nothing *"))
    assert 'does not compile for 75' in checked(lock)


def test_a_constant_that_changed_has_no_row(compiles: Path) -> None:
    changed = [ROWS[0], (FILE, (("REAL", "double"), ("WIDE", 1)))]
    found = checked(locked(), changed)
    assert "mine.cu REAL=double,WIDE=1: has no row" in found
    assert "mine.cu REAL=double: is a row of no configuration" in found


def test_a_kernel_without_a_row(compiles: Path) -> None:
    """A second one in the file, which no configuration compiles."""
    lock = locked()
    (compiles / FILE).write_text(f"{TEXT}#ifdef NEVER\nextern \"C\" __global__ void second(float* y) {{}}\n#endif\n")
    lock, faults = kernels.written(lock, ROWS, "nvrtc 1")
    assert faults == ["mine.cu: no row compiles second"]
    assert {row.text().split()[-1] for row in lock.rows.values()} == {"kernels=doubled"}
    assert checked(lock) == "mine.cu: no row compiles second"


@pytest.mark.slow
def test_a_spill(compiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its row is written or not."""
    monkeypatch.setattr(kernels, "ARCHITECTURES", (80,))
    (compiles / FILE).write_text(SPILLING)
    lock, faults = kernels.written(Lock("", {}), ROWS[:1], "nvrtc 1")
    assert len(faults) == 1
    assert " bytes are spilled on 80" in faults[0]
    assert "spills=80:" in lock.rows[FILE, "REAL=float"].text()
    assert " bytes are spilled on 80" in checked(lock, ROWS[:1])
    assert " bytes are spilled on 80" in checked(Lock("nvrtc 1", {}), ROWS[:1])


def test_a_row_that_was_edited(compiles: Path, tmp_path: Path) -> None:
    locked().write(tmp_path / "lock")
    text = (tmp_path / "lock").read_text()
    row = text.splitlines()[1].split()
    (tmp_path / "lock").write_text(text.replace(" ".join(row), " ".join([*row[:-1], str(int(row[-1]) - 1)])))
    with pytest.raises(ValueError, match=rf"this row was edited by hand, write it with python .*: {row[0]} {row[1]} "):
        Lock.read(tmp_path / "lock")


def test_a_row_that_is_false(compiles: Path) -> None:
    """Its seal is right: the sample finds it."""
    lock = locked()
    key = FILE, "REAL=float"
    row = lock.rows[key]
    lock.rows[key] = row._replace(outcomes={**row.outcomes, 80: row.outcomes[80]._replace(registers=3)})
    assert checked(lock) == ""
    assert "mine.cu REAL=float: the row says Outcome(registers=3, " in checked(lock, share=1)


@pytest.mark.parametrize(("there", "here", "like"), [(225, 227, True), (227, 225, True), (232, 225, True),
                                                     (224, 225, False), (233, 232, False)])
def test_registers_count_in_units_that_a_thread_gets(there: int, here: int, like: bool, compiles: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of the compiler differ by fewer."""
    monkeypatch.setattr(kernels, "outcome", lambda *pair: Outcome(there, 0, 0, ()))
    lock, _ = kernels.written(Lock("", {}), ROWS, "nvrtc 1")
    monkeypatch.setattr(kernels, "outcome", lambda *pair: Outcome(here, 0, 0, ()))
    assert checked(lock, share=1).count("the row says") == (0 if like else 4)


def test_too_many_changes_are_an_error(compiles: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MAX_CHANGED", 3)
    assert "2 configurations changed: 4 pairs with an architecture, but a check compiles 3 at most; run python " \
        in checked(Lock("nvrtc 1", {}))


def test_warnings_about_products(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row("0", "nhwc/conv/conv.cu", "SM_90A=1", {90: Outcome(168, 0, 2, ())})
    assert row.text().endswith(" - - - 168 - - warnings=90:2")
    assert Row.read(row.text()) == row
    assert list(row.outcomes[90].faults(row.file, 90)) == ["2 warnings about wgmma on 90"]


def test_another_compiler_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(kernels, "compiler", lambda: "nvrtc 1.2.3")
    assert kernels.main(["--check"]) == 1
    assert "but nvrtc 1.2.3 is installed: install that one, or run python tests/kernels.py" in capsys.readouterr().out


# ---------------------------------------------------------------- an architecture that is left out
def machine_code(file: str, constants: kernels.Constants, architecture: int) -> bytes:
    """The sections of an ELF file that hold instructions."""
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(arch=f"sm_{architecture}", std="c++17",
                             define_macro=[(name, str(value)) for name, value in constants])
    code = bytes(Program(launch.source(file), "c++", options).compile("cubin").code)
    at, size, count = (int.from_bytes(code[i:i + n], "little") for i, n in ((0x28, 8), (0x3a, 2), (0x3c, 2)))
    sections = [code[at + i * size:at + (i + 1) * size] for i in range(count)]
    places = [(int.from_bytes(each[0x18:0x20], "little"), int.from_bytes(each[0x20:0x28], "little"))
              for each in sections if int.from_bytes(each[4:8], "little") == 1                 # program's own
              and int.from_bytes(each[8:16], "little") & 4]                                   # and executable
    return b"".join(code[begin:begin + length] for begin, length in places)


@pytest.mark.deep
@pytest.mark.parametrize("file", ["layers/linear/gemm.cu", "layers/norm/norm.cu", "nhwc/conv/conv.cu"])
def test_code_for_8_9_is_that_for_8_6(file: str) -> None:
    """So 8.9 is not among ARCHITECTURES; and 8.0's is other code."""
    constants = next(constants for name, constants in CONFIGURATIONS if name == file and launch.HOPPER not in constants)
    codes = {each: machine_code(file, constants, each) for each in (80, 86, 89)}
    assert codes[86]
    assert codes[86] == codes[89] != codes[80]
