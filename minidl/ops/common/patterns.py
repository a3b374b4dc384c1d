"""Calls as text, in the form in which programs print, and what is computed by it.

A pattern is a few lines `a, b = primitive(c, 'd')`. A name in it matches whatever a program has there, everywhere
the same; a literal matches itself; ACT matches each activation. The row of a fused call (fused.py), of an image's form
in NHWC (geometry/nhwc.py) and of what joins such forms is its pattern: from it come the compiler's pass and, by
`in_turn`, what a backend without a kernel of its own computes.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any


class Name(str):
    """A word of a pattern: the name of a value."""

    __slots__ = ()


ACT = Name("ACT")                          # for the name of an activation


@dataclass(frozen=True)
class Made:
    """An argument f(a, b): what a function makes of values."""

    function: str
    of: tuple[Name, ...]


@dataclass(frozen=True)
class Line:
    """A call as a pattern writes it: results = primitive(arguments). A value written `x.i` has the letter i in
    `roles`."""

    results: tuple[Name, ...]
    primitive: str
    arguments: tuple[Any, ...]                         # Names, Mades and literals
    roles: tuple[tuple[Name, str], ...] = ()


@dataclass(frozen=True)
class Rule:
    """Calls, and the one that takes their place."""

    pattern: tuple[Line, ...]
    fused: Line


@functools.cache                           # minidl's import reads each text once
def line(text: str) -> Line:
    """Read `a, b = primitive(c, 'd')`.

    Raises ValueError for a text that is not such a line.

    >>> line("y = f(x, 'tanh', None)")
    Line(results=('y',), primitive='f', arguments=('x', 'tanh', None), roles=())
    >>> line("y.i = f(x.i, g(a, b))").roles
    (('y', 'i'), ('x', 'i'))
    """
    roles: list[tuple[Name, str]] = []

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Name(word):
                return Name(word)
            case ast.Attribute(ast.Name(word), role):
                roles.append((Name(word), role))
                return Name(word)
            case ast.Call(ast.Name(function), of, []):
                return Made(function, tuple(map(value, of)))
        return ast.literal_eval(node)

    try:
        match ast.parse(text).body:
            case [ast.Assign([target], ast.Call(ast.Name(primitive), arguments, []))]:
                results = target.elts if isinstance(target, ast.Tuple) else [target]
                return Line(tuple(map(value, results)), primitive, tuple(map(value, arguments)), tuple(roles))
    except (SyntaxError, ValueError):
        pass
    raise ValueError(f"fuse: {text!r} is not a line of a rule; write it as `a, b = primitive(c, 'd')`")


def rule(pattern: str, fused: str) -> Rule:
    """Read a pattern of several lines, and its fused call."""
    return Rule(tuple(line(text.strip()) for text in pattern.strip().splitlines()), line(fused))


def each_act(pattern: str, fused: str, acts: Iterable[str]) -> list[Rule]:
    """A rule for each activation, in the place of ACT."""
    whole = rule(pattern, fused)
    return [Rule(tuple(_with_act(each, act) for each in whole.pattern), _with_act(whole.fused, act)) for act in acts]


def _with_act(each: Line, act: str) -> Line:
    return replace(each, primitive=each.primitive.replace(ACT, act), arguments=tuple(
        act if isinstance(a, Name) and a == ACT else a for a in each.arguments))


# ---------------------------------------------------------------- what a pattern computes
@dataclass(frozen=True)
class Stored:
    """How values with a letter are read, from the value and all arguments by name, and written, from the result and the
    first argument that has one, or None."""

    read: dict[str, Callable[[Any, dict[str, Any]], Any]]
    write: dict[str, Callable[[Any, Any], Any]]


def in_turn(rules: Iterable[Rule], primitives: Mapping[str, Any], stored: Stored | None = None) -> Callable[..., Any]:
    """The fused call of rules that differ in its literals, as a function that calls the pattern's primitives in turn.

    primitives: those of a backend by name, each looked up when it is called.

    >>> table = {"add": lambda a, b: a + b, "tanh": lambda z: f"tanh {z}"}
    >>> add_act = in_turn([rule("z = add(x, other)\\ny = ACT(z)", "y = add_act(x, other, ACT)")], table)
    >>> add_act(1, 2, "tanh")
    'tanh 3'
    """
    first: dict[tuple[Any, ...], Rule] = {}
    for each in rules:                                 # patterns of one call differ in the order of a sum, at most
        first.setdefault(tuple(None if isinstance(a, Name) else (a,) for a in each.fused.arguments), each)
    rows = sorted(first.values(), key=lambda each: sum(isinstance(a, Name) for a in each.fused.arguments))
    names = [next((_argument(a) for a in column if isinstance(a, Name)), Name(f"literal{i}"))
             for i, column in enumerate(zip(*(each.fused.arguments for each in rows), strict=True))]
    name = rows[0].fused.primitive
    text = "\n".join([f"def {name}({', '.join(names)}):", *(
        text for each in rows for text in _branch(each, names, stored is not None))])
    made: dict[str, Any] = {"__name__": __name__, "_k": primitives, "_stored": stored}
    exec(compile(text, f"<{name} by its pattern>", "exec"), made)
    call: Callable[..., Any] = made[name]
    call.__doc__ = "As " + ", or as ".join("; ".join(map(_printed, each.pattern)) for each in rows)
    return call


def _branch(each: Rule, names: list[Name], stored: bool) -> Iterator[str]:
    """The lines of a function for one rule, under the literals that its fused call has."""
    fused, roles = each.fused, dict(each.fused.roles) if stored else {}
    literals = [f"{name} {'is' if a is None else '=='} {a!r}" for name, a in zip(names, fused.arguments, strict=True)
                if not isinstance(a, Name)]
    yield f"    if {' and '.join(literals) or True}:"
    renamed = [(_argument(new), old) for old, new in zip(names, fused.arguments, strict=True)
               if isinstance(new, Name) and _argument(new) != old]
    steps = [" = ".join(map(", ".join, zip(*renamed, strict=True)))] if renamed else []
    if roles:
        steps += ["_given = dict(locals())", f"_like = {next((a for a in fused.arguments if a in roles), None)}"]
    steps += [f"{a} = _stored.read[{roles[a]!r}]({a}, _given)" for a in fused.arguments if a in roles]
    for call in each.pattern:
        primitive = repr(call.primitive).replace(ACT, "{act}")
        steps.append(f"{', '.join(call.results)} = _k[{'f' * ('{act}' in primitive)}{primitive}]({_words(call)})")
    results = [f"_stored.write[{roles[each]!r}]({each}, _like)" if each in roles else each for each in fused.results]
    yield from (f"        {step}" for step in (*steps, f"return {', '.join(results)}"))


def _argument(name: Name) -> Name:
    return Name("act") if name == ACT else name


def _words(call: Line) -> str:
    return ", ".join(_argument(each) if isinstance(each, Name) else repr(each) for each in call.arguments)


def _printed(call: Line) -> str:
    return f"{', '.join(call.results)} = {call.primitive}({_words(call)})"
