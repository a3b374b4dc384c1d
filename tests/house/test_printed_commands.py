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
