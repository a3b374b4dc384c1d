"""A student's file may do what it likes: it is not passed for it, nothing of it is left, and the judge goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks.compiler import COMPILER

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
# Each is a file, and what its first sentence says
HOSTILE: dict[str, tuple[str, str]] = {
    "exit": ("import os\nos._exit(0)", "ended the process (status 0) without an answer"),
    "exit at a call": (SOLVED.replace("self.data + other.data", "__import__('os')._exit(0)"),
                       "ended the process (status 0) without an answer"),
    "SystemExit": ("raise SystemExit(0)", "raises SystemExit: 0"),
    "endless": ("while True:\n    pass", "did not end within 3 seconds; look for a loop"),
    "sleeping": ("import time\ntime.sleep(1000)", "did not end within 3 seconds"),
    "deaf to signals": ("import signal\nfor each in range(1, 65):\n    try:\n        signal.signal(each, signal.SIG_IGN)\n"
                        "    except (OSError, ValueError):\n        pass\nwhile True:\n    pass", "did not end within"),
    "50 GB": ("held = bytearray(50 << 30)", "lab.py:2: calling 'one' raises MemoryError"),
    "50 GB in pieces": ("held = []\nwhile True:\n    held.append(b'x' * (1 << 28))", "lab.py:4: calling 'one' raises "
                        "MemoryError"),
    "huge output": ("while True:\n    print('x' * 100_000)", "lab.py:3: calling 'one' raises OSError"),
    "huge file": ("with open('big', 'wb') as big:\n    while True:\n        big.write(bytes(1 << 20))", "raises OSError"),
    "huge answer": ("class Value:\n    def __init__(self, data):\n        self.grad = 0\n    def __add__(self, other):\n"
                    "        other = Value(0)\n        other.data = 'x' * (1 << 27)\n        return other\n"
                    "    def _backward(self):\n        pass", "gave no answer that can be read (a message of"),
    "kills its parents": ("import os, signal\nfor each in range(1, 200):\n    try:\n        os.kill(os.getppid(), 9)\n"
                          "        os.kill(-1, 9)\n    except OSError:\n        pass\nos.kill(os.getpid(), 9)",
                          "ended the process (by signal 9) without an answer"),
    "closes its files": ("import os\nos.closerange(0, 256)", "ended the process"),
    "forges by print": (f"import os\nprint({FORGED!r})\nos.write(1, {FORGED.encode()!r})\nos._exit(0)",
                        "ended the process (status 0) without an answer"),
    "forges by all files": (f"import os\nfor each in range(3, 256):\n    try:\n        os.write(each, {FORGED.encode()!r})\n"
                            "    except OSError:\n        pass", "gave no answer that can be read"),
    "forges by the judge's files": (
        "import glob, os\nfor each in glob.glob('/proc/[0-9]*/fd/*'):\n    try:\n        if os.readlink(each)[:5] == "
        f"'pipe:':\n            os.write(os.open(each, os.O_WRONLY | os.O_NONBLOCK), {FORGED.encode()!r})\n"
        "    except OSError:\n        pass\nos._exit(0)", "ended the process (status 0) without an answer"),
    "patches NumPy": ("import numpy\nfor each in 'allclose isclose array_equal any all abs'.split():\n"
                      "    setattr(numpy, each, lambda *a, **k: True)\n" + SOLVED.replace(FUTURE, "").replace("other.data * result.grad", "0"),
                      "the gradient of"),
    "patches the messages": (
        "import sys\nfor module in list(sys.modules.values()):\n    for each in ('send', 'pack', 'receive', 'fault'):\n"
        "        if hasattr(module, each) and 'labkit' in getattr(module, '__name__', ''):\n"
        "            setattr(module, each, lambda *a: {'passed': True})\n", "gave no answer that can be read"),
    "looks at frames": (
        "import gc, sys\nfound = []\nframe = sys._getframe()\nwhile frame:\n    found += [each for each in "
        "frame.f_locals.values() if hasattr(each, 'check') or 'expected' in str(type(each))]\n    frame = frame.f_back\n"
        "found += [each for each in gc.get_objects() if type(each).__name__ in ('Step', 'Lab')]\nassert not found\n",
        "AttributeError: module 'lab' has no attribute 'Value'"),
    "strange numbers": (SOLVED.replace("self.data + other.data", "float('nan')"), "is not written, or NaN, but must be"),
    "equal to all": ("class All:\n    def __eq__(self, other):\n        return True\n    __float__ = lambda self: 1.0\n"
                     + SOLVED.replace(FUTURE, "").replace("float(data)", "All()"), "raises TypeError"),
    "named as a module": ("import sys\nsys.modules['labkit.wire'] = sys.modules['json'] = None", "has no attribute 'Value'"),
}
LIMITED = os.getuid() != 0 or _all_may_read()          # root's own processes have no limit to their number


def judge(text: str, folder: Path, seconds: float = 3) -> tuple[dict[str, Any], str]:
    """What is said of a file, and the first sentence."""
    file = folder / "lab.py"
    file.write_text(FUTURE + text.replace(FUTURE, ""), encoding="utf-8")
    result = judged(LAB, file, 0, seconds)
    return result, next((row["wrong"] for row in result["steps"] if row["wrong"]), str(result.get("wrong")))


@pytest.mark.deep
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_not_passed(name: str, tmp_path: Path) -> None:
    text, expected = HOSTILE[name]
    began = time.monotonic()
    result, sentence = judge(text, tmp_path)
    assert not result["passed"]
    assert result["points"] < result["of"] == 100
    assert expected in sentence
    assert time.monotonic() - began < 20


@pytest.mark.slow
def test_a_file_that_exits_is_not_passed(tmp_path: Path) -> None:
    result, sentence = judge(HOSTILE["exit"][0], tmp_path)
    assert (result["passed"], result["points"]) == (False, 0)
    assert HOSTILE["exit"][1] in sentence


@pytest.mark.deep
@pytest.mark.parametrize("text", ["os.fork()", "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"])
@pytest.mark.skipif(not LIMITED, reason="root, whose processes have no limit")
def test_a_fork_bomb_ends_with_its_time(text: str, tmp_path: Path) -> None:
    result, _ = judge(f"import os, subprocess, sys\nwhile True:\n    try:\n        {text}\n    except OSError:\n"
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
    with __import__("socket").create_server(("127.0.0.1", 0)) as server:
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
    ("for (;;) fork();" if LIMITED else "for (;;) ;", "did not end within"), ("for (volatile int i = 0;; i++) ;", "did not"),
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
    file.write_text(f"#include <cstdlib>\n#include <unistd.h>\n__global__ void add(float* y) {{\n    {statement}\n}}\n")
    began = time.monotonic()
    result = judged(folder, file, 0, 6)
    assert result["points"] == 0
    assert expected in result["steps"][0]["wrong"]
    assert time.monotonic() - began < 25


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
    assert {name: row["points"] for name, row in rows.items() if name != "good"} == dict.fromkeys(set(rows) - {"good"}, 0)


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


@pytest.mark.parametrize("text", [b"{", b'{"array": ["O", [1], "AAAA"]}', b'{"array": ["<f8", [2], "AAAA"]}', b'{"a": 1}',
                                  b"[" * 100_000, b'{"array": ["<f8", [1000000000000], ""]}', b'{"pickle": ["", "", ""]}',
                                  b'{"dict": [[[], 1]]}', b"\xff", b'{"array": ["<f8", [-1, 0], ""]}'])
def test_what_is_not_a_message_is_refused(text: bytes) -> None:
    source, to = os.pipe()
    os.set_blocking(to, False)
    os.write(to, len(text[:1000]).to_bytes(8, "little") + text[:1000])
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
    (1.0, [1.0], "lab.py:2: y has the shape () but must have (1,); look"), (None, 2.0, "lab.py:2: y is not written, or NaN"),
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


def test_no_process_of_this_one_is_taken_for_the_files() -> None:
    assert isinstance(_children(), list)
