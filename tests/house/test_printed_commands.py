"""tests/printed_commands.py: it types every command that is printed, and knows right from wrong."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("printed_commands.py needs bash", allow_module_level=True)

import printed_commands as tool
from test_guides import PAGES, page_name, printed

GO_ON = "interrupted by SIGINT; the run is in runs/a, go on with: minidl train --resume runs/a"
REFUSED = "x.py: error: device: 'cuda' was asked for but there is no NVIDIA GPU that CUDA can use here"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in tool.NOT_TYPED], ids=page_name)
def test_every_printed_command_is_a_step(page: Path) -> None:
    found = [step.text for step in tool.steps(page)]
    lines = [re.sub(r"\s+#.*", "", line) for _, line in printed(page.read_text(encoding="utf-8"))]
    assert {command for line in lines for command in line.split(" && ")} <= set(found)


def test_steps_come_in_the_order_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("    pip install x   # why\n`.venv/bin/minidl data` and `minidl train`\n```python\n1\n```\n```sh\n"
                    "pip install y && minidl models\n```\n```pycon\n>>> 2\n2\n```\n`minidl data`\n", encoding="utf-8")
    assert [step.text for step in tool.steps(page)] == [
        "pip install x", ".venv/bin/minidl data", "2 blocks of Python", "pip install y", "minidl models", "minidl data"]
    assert [step.blocks for step in tool.steps(page) if step.blocks] == [("1\n", ">>> 2\n2\n")]


@pytest.mark.parametrize(("command", "status", "output", "stopped", "outcome"), [
    ("minidl models", 0, "lenet5", False, "ok"),
    ("minidl models", 2, "minidl: error: no", False, "WRONG"),
    ("minidl models", 0, "Traceback (most recent call last):\n  X\nlenet5", False, "WRONG"),
    ("minidl models", 130, "interrupted", True, "WRONG"),
    ("minidl train", 130, f"epoch  1/2: loss 1\n{GO_ON}", True, "stopped"),
    ("minidl train", 130, GO_ON, True, "WRONG"),                       # nothing was shown
    ("minidl train", 130, "epoch  1/2: loss 1\ninterrupted", True, "WRONG"),
    ("minidl train", -9, f"epoch  1/2: loss 1\n{GO_ON}", True, "WRONG"),
    ("python train.py --device cuda", 2, REFUSED, False, "refused"),
    ("python train.py", 2, REFUSED, False, "WRONG"),                   # it did not ask for a GPU
    ("python train.py --device cuda", 1, f"Traceback (most recent call last):\n{REFUSED}", False, "WRONG"),
    ("python -m pytest --collect-only -q", 0, "5264 tests collected in 9.12s", False, "stopped"),
    ("python -m pytest --collect-only -q", 2, "5000 tests collected, 1 error in 9.12s", False, "WRONG"),
    ("python benchmarks/overhead.py", -2, "KeyboardInterrupt", True, "stopped"),
    ("minidl train", -2, "lenet5 on mnist: test accuracy 51.60 % after 1 epoch in 1.7 s (cpu)", True, "ok"),
    ("minidl train", -2, "lenet5 on mnist (/data): 60000 training images, run folder runs/x", True, "WRONG"),
])
def test_an_outcome_is_judged(command: str, status: int, output: str, stopped: bool, outcome: str) -> None:
    assert tool.judged(command, status, output, stopped)[0] == outcome


def test_the_wheel_stands_for_the_checkout(tmp_path: Path) -> None:
    who = tool.Newcomer(sys.executable, "3.x wheel", tmp_path, Path("/w/minidl.whl"), 1)
    assert [who.typed(command) for command in (
        "pip install -e .", ".venv/bin/pip install -q -e '.[plot,image]'", ".venv/bin/python train.py --model lenet5",
        "pip install 'minidl[plot]'", ".venv/bin/python -m pytest")] == [
        "pip install '/w/minidl.whl'", ".venv/bin/pip install -q '/w/minidl.whl[plot,image]'",
        ".venv/bin/minidl train --model lenet5", "pip install 'minidl[plot]'",
        ".venv/bin/python -m pytest --collect-only -q"]
