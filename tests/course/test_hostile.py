"""A student's file may do what it likes: it is not passed for it, nothing of it is left, and the judge goes on."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks.compiler import COMPILER
from tiers import tiered

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "setup.cfg").exists())
COURSE = ROOT / "course"
LAB = COURSE / "01-autograd"
FUTURE = "from __future__ import annotations\n"
SOLVED = (COURSE / "solutions" / LAB.name / "lab.py").read_text(encoding="utf-8")

sys.path.insert(0, str(COURSE))
from labkit import Lab, Wrong  # noqa: E402
from labkit.commands import judged, submissions  # noqa: E402
from labkit.judge import _all_may_read, _children  # noqa: E402
from labkit.wire import pack, receive, send, unpack  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces and limits of Linux")

FORGED = json.dumps({"points": 100, "of": 100, "passed": True, "steps": [], "seconds": 0.1, "printed": ""})
# A name, what the first sentence says, and a file. The line SOLVED stands for the solution with a replacement.
TABLE = """
=== exit === ended the process (status 0) without an answer
import os
os._exit(0)
=== exit at a call === ended the process (status 0) without an answer
SOLVED self.data + other.data -> __import__("os")._exit(0)
=== SystemExit === raises SystemExit: 0
raise SystemExit(0)
=== endless === did not end within 3 seconds; look for a loop
while True:
    pass
=== sleeping === did not end within 3 seconds
import time
time.sleep(1000)
=== deaf to signals === did not end within 3 seconds
import signal
for each in range(1, 65):
    try:
        signal.signal(each, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    pass
=== 50 GB === lab.py:2: calling 'one' raises MemoryError
held = bytearray(50 << 30)
=== 50 GB in pieces === lab.py:4: calling 'one' raises MemoryError
held = []
while True:
    held.append(b"x" * (1 << 28))
=== huge output === lab.py:3: calling 'one' raises OSError
while True:
    print("x" * 100_000)
=== huge file === lab.py:4: calling 'one' raises OSError
with open("big", "wb") as big:
    while True:
        big.write(bytes(1 << 20))
=== huge answer === gave no answer that can be read (a message of
class Value:
    def __init__(self, data):
        self.data, self.grad, self._backward = data, 0, lambda: None

    def __add__(self, other):
        return Value("x" * (1 << 27))
=== kills its parents === ended the process (by signal 9) without an answer
import os
for each in range(200):
    try:
        os.kill(os.getppid(), 9)
        os.kill(-1, 9)
    except OSError:
        pass
os.kill(os.getpid(), 9)
=== closes its files === ended the process
import os
os.closerange(0, 256)
=== forges by print === ended the process (status 0) without an answer
import os
print(FORGED)
os.write(1, FORGED.encode())
os._exit(0)
=== forges by all files === gave no answer that can be read
import os
for each in range(3, 256):
    try:
        os.write(each, FORGED.encode())
    except OSError:
        pass
=== forges by the judge's files === ended the process (status 0) without an answer
import glob, os
for each in glob.glob("/proc/[0-9]*/fd/*"):
    try:
        if os.readlink(each).startswith("pipe:"):
            os.write(os.open(each, os.O_WRONLY | os.O_NONBLOCK), FORGED.encode())
    except OSError:
        pass
os._exit(0)
=== patches NumPy === the gradient of
import numpy
for each in "allclose isclose array_equal any all abs".split():
    setattr(numpy, each, lambda *a, **k: True)
SOLVED other.data * result.grad -> 0
=== patches the messages === gave no answer that can be read
import sys
for module in list(sys.modules.values()):
    for each in ("send", "pack", "receive", "fault"):
        if hasattr(module, each) and "labkit" in getattr(module, "__name__", ""):
            setattr(module, each, lambda *a: {"passed": True})
=== looks at frames === AttributeError: module 'lab' has no attribute 'Value'
import gc, sys
found, frame = [], sys._getframe()
while frame:
    found += [each for each in frame.f_locals.values() if hasattr(each, "check")]
    frame = frame.f_back
found += [each for each in gc.get_objects() if type(each).__name__ in ("Step", "Lab")]
assert not found
=== strange numbers === is not written, or NaN, but must be
SOLVED self.data + other.data -> float("nan")
=== equal to all === raises TypeError
class All:
    __float__ = lambda self: 1.0

    def __eq__(self, other):
        return True
SOLVED float(data) -> All()
=== hides modules === has no attribute 'Value'
import sys
sys.modules["labkit.wire"] = sys.modules["json"] = None
"""


def filled(text: str) -> str:
    """A file of the table."""
    def solved(found: re.Match[str]) -> str:
        assert found[1] in SOLVED
        return SOLVED.replace(FUTURE, "").replace(found[1], found[2])
    return FUTURE + re.sub(r"^SOLVED (.+) -> (.+)$", solved, text, flags=re.MULTILINE).replace("FORGED", repr(FORGED))


HOSTILE = {name: (filled(text), expected) for name, expected, text in
           re.findall(r"^=== (.+) === (.+)\n((?:(?!===).*\n)+)", TABLE, re.MULTILINE)}
LIMITED = os.getuid() != 0 or _all_may_read()          # root's own processes have no limit to their number


def judge(text: str, folder: Path, seconds: float = 3) -> tuple[dict[str, Any], str]:
    """What is said of a file, and the first sentence."""
    file = folder / "lab.py"
    file.write_text(FUTURE + text.replace(FUTURE, ""), encoding="utf-8")
    result = judged(LAB, file, 0, seconds)
    return result, next((row["wrong"] for row in result["steps"] if row["wrong"]), str(result.get("wrong")))


@pytest.mark.parametrize("name", tiered(HOSTILE, slow=1))
def test_a_hostile_file_is_not_passed(name: str, tmp_path: Path) -> None:
    text, expected = HOSTILE[name]
    seconds, began = 3.0 if "3 seconds" in expected else 40.0, time.monotonic()
    result, sentence = judge(text, tmp_path, seconds)
    assert not result["passed"]
    assert result["points"] < (1 if name == "exit" else 100) <= result["of"] == 100
    assert expected in sentence
    assert time.monotonic() - began < seconds + 20


@pytest.mark.deep
@pytest.mark.parametrize("text", ["os.fork()", "subprocess.Popen(['sleep', '60'])"])
@pytest.mark.skipif(not LIMITED, reason="root, whose processes have no limit")
def test_a_fork_bomb_ends_with_its_time(text: str, tmp_path: Path) -> None:
    result, _ = judge(f"import os, subprocess\nwhile True:\n    try:\n        {text}\n    except OSError:\n"
                      "        pass\n", tmp_path)
    assert result["points"] == 0


MARK = "minidl-lab-daemon"
DAEMON = f"""
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", {MARK!r}], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(300)", {MARK!r}])
    os._exit(0)
"""


def running() -> list[int]:
    """Processes with the mark among their arguments."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if MARK.encode() in each.read_bytes().split(b"\0"):
                found.append(int(each.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.deep
@pytest.mark.parametrize("ending", ["", "while True:\n    pass\n", "os._exit(0)\n"])
def test_no_process_of_a_file_is_left(ending: str, tmp_path: Path) -> None:
    result, _ = judge(DAEMON + ending + SOLVED, tmp_path)
    assert result["passed"] == (ending == "")
    assert running() == []


@pytest.mark.deep
def test_a_file_finds_no_network_and_no_surroundings(tmp_path: Path) -> None:
    """An empty folder, a clean environment; no judge among its processes' parents where there are namespaces."""
    probe = """
import json, os, socket, sys
try:
    socket.create_connection(("127.0.0.1", PORT), 1)
    network = True
except OSError:
    network = False
raise ValueError(json.dumps([sorted(os.listdir()), sorted(os.environ), network, os.getppid(), os.getpid()]))
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        os.environ["SECRET_OF_THE_GRADER"] = "1"
        try:
            result, sentence = judge(probe.replace("PORT", str(server.getsockname()[1])), tmp_path)
        finally:
            del os.environ["SECRET_OF_THE_GRADER"]
    files, names, network, parent, own = json.loads(sentence.partition("ValueError: ")[2])
    assert files == ["drive.py", "lab.py"]
    assert "SECRET_OF_THE_GRADER" not in names
    if "network" in result["walls"]:
        assert not network
        assert (parent, own) == (1, 2)


@pytest.mark.deep
@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
@pytest.mark.parametrize(("statement", "expected"), [
    ('system("kill -9 $PPID");', "ended the process (by signal 9)"), ('system("touch left");', "is not written"),
    ("_exit(0);", "ended the process (status 0)"),
    ("for (;;) fork();" if LIMITED else "for (;;) sleep(1);", "did not end within"),
    ("for (volatile int i = 0;; i++) ;", "does not end: it has taken more steps than a thread may"),
    ("*(volatile int*)8 = 1;", "lab.cu:")])
def test_native_code_is_held_as_well(statement: str, expected: str, tmp_path: Path) -> None:
    """What a kernel's file may call: all that C++ may."""
    folder = tmp_path / "04-add"
    folder.mkdir()
    (folder / "README.md").write_text("# Lab 4: add\n")
    (folder / "check.py").write_text(
        "import numpy as np\nfrom labkit import step\n@step('add', points=100)\ndef add(lab):\n"
        "    done = lab.launch(1, 32, {'y': (32,)})\n    lab.same('add', done.arrays['y'], np.ones(32), 'y')\n")
    file = tmp_path / "lab.cu"
    of_the_system = 'extern "C" { void _exit(int); unsigned sleep(unsigned); int fork(); }'      # no header brings them
    file.write_text(f"#include <cstdlib>\n{of_the_system}\n__global__ void add(float* y) {{\n    {statement}\n}}\n")
    began = time.monotonic()
    result = judged(folder, file, 0, 8 if expected == "did not end within" else 60)
    assert result["points"] == 0
    assert expected in result["steps"][0]["wrong"]
    assert time.monotonic() - began < 60


# ---------------------------------------------------------------- a class
@pytest.mark.deep
def test_a_class_is_graded_whole(tmp_path: Path) -> None:
    """Files, folders and links of submissions, good and hostile: a line for each, and only the good one is passed."""
    folder, out = tmp_path / "class", tmp_path / "out.jsonl"
    folder.mkdir()
    (folder / "good.py").write_text(SOLVED)
    (folder / "linked.py").symlink_to(COURSE / "solutions" / LAB.name / "lab.py")
    (folder / "broken.py").write_text("def (:\n")
    (folder / "empty.py").write_text("")
    (folder / "bytes.py").write_bytes(bytes(range(256)))
    (folder / "notes.txt").write_text("")
    os.mkfifo(folder / "pipe.py")
    for name in ("kills its parents", "forges by print", "endless", "forges by the judge's files"):
        (folder / name).mkdir()
        (folder / name / "my.py").write_text(HOSTILE[name][0])
    done = subprocess.run([sys.executable, "-m", "minidl", "lab", "grade", "1", str(folder), "--json", str(out),
                           "--seconds", "5"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = {row["submission"]: row for row in map(json.loads, out.read_text().splitlines())}
    assert sorted(rows) == sorted(["good", "linked", "broken", "empty", "bytes", "pipe", "kills its parents",
                                   "forges by print", "endless", "forges by the judge's files"])
    assert {name: row["points"] for name, row in rows.items() if row["passed"]} == {"good": 100}
    assert len({row["seed"] for row in rows.values()}) == 1
    assert "is not a file of its own but a link" in rows["linked"]["steps"][0]["wrong"]
    assert rows["broken"]["steps"][0]["wrong"].startswith("lab.py:1: ")
    assert {row["points"] for name, row in rows.items() if name != "good"} == {0}


def test_submissions_are_files_or_folders(tmp_path: Path) -> None:
    for name in ("b.py", "a/x.py", "c/lab.py", "c/a.py", "d/x.txt", "e.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [(name, file.relative_to(tmp_path).as_posix()) for name, file in submissions(tmp_path, ".py")]
    assert found == [("a", "a/x.py"), ("b", "b.py"), ("c", "c/lab.py")]
    with pytest.raises(NotADirectoryError, match="is not a folder; name one with the files of a class"):
        next(submissions(tmp_path / "b.py", ".py"))


# ---------------------------------------------------------------- messages
@pytest.mark.parametrize("value", [None, True, 3, 0.1, float("inf"), "text", [1, (2, [3])], {"a": 1, 2: (3,)}, (),
                                   {"array": [1]}, 1 << 100])
def test_a_message_arrives_as_it_was_sent(value: object) -> None:
    source, to = os.pipe()
    send(to, value)
    got = receive(source, time.monotonic() + 1)
    assert (type(got), got) == (type(value), value)


@pytest.mark.parametrize("array", [np.arange(6, dtype=np.float32).reshape(2, 3).T, np.zeros((0, 3)), np.array(True),
                                   np.array([np.nan, np.inf])])
def test_an_array_arrives(array: np.ndarray) -> None:
    got = unpack(json.loads(json.dumps(pack(array))))
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize("value", [object(), np.array([object()]), 1j, {1, 2}])
def test_what_is_not_plain_is_not_sent(value: object) -> None:
    with pytest.raises(TypeError, match="is not a number, a text, an array"):
        pack(value)


@pytest.mark.parametrize("text", [
    b"{", b'{"array": ["O", [1], "AAAA"]}', b'{"array": ["<f8", [2], "AAAA"]}', b'{"a": 1}', b"[" * 20_000, b"\xff",
    b'{"array": ["<f8", [1000000000000], ""]}', b'{"pickle": ["", "", ""]}', b'{"dict": [[[], 1]]}',
    b'{"array": ["<f8", [-1, 0], ""]}'])
def test_what_is_not_a_message_is_refused(text: bytes) -> None:
    source, to = os.pipe()
    os.write(to, len(text).to_bytes(8, "little") + text)
    with pytest.raises(ValueError, match="not a message"):
        receive(source, time.monotonic() + 1)


def test_a_message_that_is_too_long_or_late_is_not_awaited() -> None:
    source, to = os.pipe()
    with pytest.raises(TimeoutError):
        receive(source, time.monotonic() + 0.01)
    os.write(to, (1 << 60).to_bytes(8, "little"))
    with pytest.raises(ValueError, match="is longer than"):
        receive(source, time.monotonic() + 1)
    os.write(to, b"\x05")
    os.close(to)
    with pytest.raises(EOFError):
        receive(source, time.monotonic() + 1)


# ---------------------------------------------------------------- sentences
def lab(tmp_path: Path, text: str = "# a\ndef f(x):\n    pass\n") -> Lab:
    file = tmp_path / "lab.py"
    file.write_text(text)
    return Lab(file, lambda question: None, np.random.default_rng(0))


@pytest.mark.parametrize(("got", "expected", "sentence"), [
    ([1, 2], [1, 3], "lab.py:2: y[1] is 2 but must be 3 (1 of 2 elements differ); look"),
    (1.0, [1.0], "lab.py:2: y has the shape () but must have (1,); look"),
    (None, 2.0, "lab.py:2: y is not written, or NaN"),
    ("a", 2.0, "lab.py:2: y is 'a' but must be 2.0; look"), ([1, [2]], [1, 2], "lab.py:2: y is [1, [2]] but must be"),
    (float("nan"), 1.0, "lab.py:2: y is not written, or NaN, but must be 1"), (float("inf"), 1.0, "y is inf but must"),
    (1 + 1e-3, 1.0, "y is 1.001 but must be 1")])
def test_what_differs_is_said(got: object, expected: object, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(Wrong) as said:
        lab(tmp_path).same("f", got, expected, "y", todo="look")
    assert sentence in str(said.value)


@pytest.mark.parametrize(("got", "expected"), [(1, 1.0), ([], []), (float("nan"), float("nan")), ((2, 3), [2, 3]),
                                               (float("inf"), float("inf")), (1 + 1e-9, 1.0)])
def test_what_is_equal_passes(got: object, expected: object, tmp_path: Path) -> None:
    lab(tmp_path).same("f", got, expected, "y")


def test_a_gap_is_named(tmp_path: Path) -> None:
    text = str(lab(tmp_path, "\ndef f(x):\n    # TODO: fill\n").wrong("f", "it is empty"))
    assert text == "lab.py:2: it is empty; the TODO of line 3 is not done yet"


@pytest.mark.parametrize(("text", "place"), [
    ("# def f(x):\ndef f(x):\n", "lab.py:2"), ("def g(f):\n    return f(1)\n\n\n  def f (x):\n", "lab.py:5"),
    ("class f:\n", "lab.py:1"), ("// the kernel\n__global__ void f(int n) {\n", "lab.py:2"), ("ff(x)", "lab.py"),
    ("", "lab.py")])
def test_a_functions_line_is_found(text: str, place: str, tmp_path: Path) -> None:
    assert lab(tmp_path, text).at("f") == place


def test_no_process_of_this_one_is_taken_for_the_files() -> None:
    assert isinstance(_children(), list)
