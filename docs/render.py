"""Write the tables of docs/from-pytorch.md from the tables that the code itself reads, or say that they differ.

    python docs/render.py             write every block
    python docs/render.py --check     write nothing; exit with 1 where the page and the code differ

A block is what stands between <!-- habits: NAME --> and <!-- /habits -->.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))                                  # minidl as it lies here, installed or not

from minidl import nn  # noqa: E402
from minidl.habits import ADVICE, OPTIONS  # noqa: E402
from minidl.ops import create  # noqa: E402
from minidl.ops.arrays import methods  # noqa: E402

PAGE = ROOT / "docs" / "from-pytorch.md"
BLOCK = re.compile(r"<!-- habits: (?P<name>[\w.]+) -->\n(?P<text>.*?)<!-- /habits -->", re.DOTALL)


def plain(text: str) -> str:
    """Plain text in a cell: two indices in a row are not a link."""
    return text.replace("|", "\\|").replace("][", "]\\[")


def first_line(value: Any) -> str:
    """What a docstring says first, up to its first full stop or colon."""
    text = (value.__doc__ or "").strip().splitlines()[0] if value.__doc__ else ""
    return plain(text)


def works(*rooms: type) -> list[str]:
    """A row per method; one that has several names, once."""
    named: dict[int, tuple[list[str], Any]] = {}
    for room in rooms:
        for name, value in vars(room).items():
            if name[0] != "_":
                named.setdefault(id(value), ([], value))[0].append(name)
    rows = sorted((", ".join(f"`{name}`" for name in names), first_line(value)) for names, value in named.values())
    return ["| method | what it is |", "|---|---|", *(f"| {names} | {says} |" for names, says in rows)]


def makers() -> list[str]:
    """A row per function of minidl/ops/create.py."""
    found = {name: value for name, value in vars(create).items()
             if name[0] != "_" and getattr(value, "__module__", "") == create.__name__}
    return ["| function | what it makes |", "|---|---|",
            *(f"| `minidl.{name}` | {first_line(value)} |" for name, value in sorted(found.items()))]


def advice(table: dict[str, str]) -> list[str]:
    """A row per name that is not there; names with one answer share it."""
    rows: dict[str, list[str]] = {}
    for name, instead in table.items():
        rows.setdefault(plain(instead), []).append(f"`{name}`")
    return ["| PyTorch | here |", "|---|---|", *(f"| {', '.join(names)} | {says} |" for says, names in rows.items())]


BLOCKS = {
    "Tensor": lambda: works(methods.Methods, methods.Conversions), "Module": lambda: works(nn.habits.Habits),
    "create": makers, **{f"advice.{place}": lambda table=table: advice(table) for place, table in ADVICE.items()},
    **{f"options.{place}": lambda table=table: advice(table) for place, table in OPTIONS.items()},
}


def rendered(text: str) -> str:
    """The page with every block as the code has it. Raises ValueError for a block of no name."""
    def block(found: re.Match[str]) -> str:
        name = found["name"]
        if name not in BLOCKS:
            raise ValueError(f"{PAGE.name}: there is no block {name!r}; there are {', '.join(BLOCKS)}")
        return f"<!-- habits: {name} -->\n" + "\n".join(BLOCKS[name]()) + "\n<!-- /habits -->"
    return BLOCK.sub(block, text)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args(arguments).check
    text = PAGE.read_text(encoding="utf-8")
    new = rendered(text)
    if check:
        print(f"{PAGE.name}: {'is as the code has it' if new == text else 'differs; run python docs/render.py'}")
        return int(new != text)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
