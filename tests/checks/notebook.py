"""Run a notebook's code without Jupyter: `python notebook.py FILE` prints what each cell prints and shows.

As in a notebook, the value of a cell's last line is shown, unless it is None. A value that a notebook shows as a
picture or a table is drawn, and its kind is printed.
"""

from __future__ import annotations

import ast
import json
import linecache
import sys
from pathlib import Path
from typing import Any

SHOWN = {"_repr_png_": "image/png", "_repr_html_": "text/html"}


def show(value: object) -> None:
    """As IPython chooses: by the methods that a value has for it."""
    for method, kind in SHOWN.items():
        if drawn := getattr(value, method, lambda: None)():
            print(f"{kind}, {len(drawn[0] if isinstance(drawn, tuple) else drawn):,} long")
            return
    if value is not None:
        print(repr(value))


def run(path: Path) -> None:
    """Its code cells, one after the other, as one program."""
    names: dict[str, Any] = {"__name__": "__main__", "show": show}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        text, name = "".join(cell["source"]), f"{path.name}, {cell['id']}"
        linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
        tree = ast.parse(text, name)
        if isinstance(last := tree.body[-1], ast.Expr):
            last.value = ast.copy_location(ast.Call(ast.Name("show", ast.Load()), [last.value], []), last.value)
        print(f"--- {cell['id']}", flush=True)
        exec(compile(ast.fix_missing_locations(tree), name, "exec"), names)


if __name__ == "__main__":
    run(Path(sys.argv[1]).resolve())
