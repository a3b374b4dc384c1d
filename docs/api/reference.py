"""How the reference shows docstrings, which are plain text: arguments as a list, examples as code. mkdocs.yml names it.

An op is shown as it is called: without the backend `k`, which `@op` passes.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import griffe


def markdown(text: str, arguments: Collection[str]) -> str:
    """A docstring as Markdown.

    >>> markdown("Doubled: 2 * x. x: a number. y: another.", {"x", "y"}).splitlines()
    ['Doubled: 2 &#42; x.', '', '- `x`: a number.', '- `y`: another.']
    >>> markdown(">" ">> 1 + 1\\n2", set()).splitlines()
    ['```pycon', '>>> 1 + 1', '2', '```']
    """
    parts = []
    for part in re.split(r"\n\s*\n", text.strip("\n")):
        if part.startswith(">>> "):
            part = "```pycon\n" + re.sub(r" *# doctest: .*", "", part) + "\n```"
        elif not part.startswith("    "):
            part = re.sub(r"(`[^`]*`)|([*<\[])", lambda found: found[1] or f"&#{ord(found[2])};", part)
            part = re.sub(r"(?:^|\n|(?<=[.;)]) )(\w+(?:, \w+)*): ", lambda found: listed(found, arguments), part)
            part = part.replace("\n- ", "\n\n- ", 1)         # a list begins after an empty line
        parts.append(part.strip("\n"))
    return "\n\n".join(parts)


def listed(found: re.Match[str], arguments: Collection[str]) -> str:
    """The start of what is said about some arguments, as an item; about anything else, as it is."""
    names = found[1].split(", ")
    if not set(names) <= set(arguments):
        return found[0]
    return "\n- " + ", ".join(f"`{name}`" for name in names) + ": "


class Docstrings(griffe.Extension):
    """Docstrings as Markdown, ops as they are called."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change what griffe has read of an object."""
        if isinstance(obj, griffe.Function):
            if any(str(decorator.value).split("(")[0] == "op" for decorator in obj.decorators):
                del obj.parameters["k"]
                obj.returns = "Tensor"
            arguments = {p.name for p in obj.parameters}
        elif isinstance(obj, griffe.Class):
            made = obj.members.get("__init__")
            arguments = {p.name for p in made.parameters} if isinstance(made, griffe.Function) else set(obj.members)
        else:
            arguments = set()
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value, arguments)
