"""Two worlds from one seed: in one a step runs as the plain function that it is, in the other it is compiled.

Whatever a user can see is noted after each call: what the step returned or raised, and all that is watched (parameters,
gradients, velocities, buffers, other values). The worlds are equal if their notes are, bit for bit or within a
tolerance, up to a CompileError at most, which must name the step and the line.
"""

from __future__ import annotations

import importlib
import random
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import minidl
from minidl import Tensor, nn, optim
from minidl.core.mode import mode


def _compile_error() -> type[Exception]:
    """The class of refusals, wherever it lives."""
    for where in ("minidl", "minidl.compiler.record", "minidl.compiler.record", "minidl.compile", "minidl.compiler"):
        try:
            found = getattr(importlib.import_module(where), "CompileError", None)
        except ImportError:
            continue
        if found is not None:
            return found
    raise ImportError("twins: minidl has no CompileError; name its module in _compile_error")


CompileError = _compile_error()
Notes = dict[str, Any]
CHANGED = "written since it was returned"


class Refused(Exception):
    """The compiled step was refused: the world ends here."""


# ---------------------------------------------------------------- what there is to see
def notes_of(value: Any, path: str = "", state: bool = True) -> Notes:
    """All arrays and plain values in something, copied, by their paths. state: with gradients and flags of Tensors."""
    found: Notes = {}
    _note(value, path, state, found, 0)
    return found


def _note(value: Any, path: str, state: bool, found: Notes, depth: int) -> None:
    if depth > 8:
        found[path] = "..."
    elif isinstance(value, Tensor):
        found[path] = _copied(value.data)
        if value.weights is not None:
            found[f"{path}.weights"] = _copied(value.weights.data)
        if state:
            found[f"{path} requires a gradient"] = value.requires_grad and value.is_leaf
            found[f"{path}.grad"] = None if value.grad is None else _copied(value.grad.data)
    elif hasattr(value, "dtype") and hasattr(value, "shape"):
        found[path] = _copied(value)
    elif isinstance(value, optim.Optimizer):
        for g, group in enumerate(value.groups):
            for name, entry in group.items():
                _note(entry, f"{path}.groups[{g}].{name}", state, found, depth + 1)
            for i, p in enumerate(group["params"]):
                found |= {f"{path}.{value.kept[name]}[{g}][{i}]": _kept(arrays.get(p))
                          for name, arrays in value._kept.items()}
    elif isinstance(value, nn.Module):
        for name, entry in vars(value).items():
            _note(entry, f"{path}.{name}", state, found, depth + 1)
    elif isinstance(value, (list, tuple)):
        found[path] = f"{type(value).__name__} of {len(value)}"
        for i, entry in enumerate(value):
            _note(entry, f"{path}[{i}]", state, found, depth + 1)
    elif isinstance(value, dict):
        found[path] = f"dict of {len(value)}"
        for name, entry in value.items():
            _note(entry, f"{path}[{name!r}]", state, found, depth + 1)
    elif isinstance(value, (type(None), bool, int, float, complex, str, bytes, set, frozenset)):
        found[path] = (type(value).__name__, repr(value))
    elif callable(value) and getattr(value, "__name__", "") == "<lambda>":
        _note(value(), path, state, found, depth + 1)
    else:
        found[path] = type(value).__name__


def _kept(array: Any) -> Any:
    """A copy of what an optimizer keeps of a parameter; None for nothing, and for zeros."""
    return _copied(array) if array is not None and array.any() else None


def _copied(array: Any) -> np.ndarray:
    return np.array(array) if isinstance(array, (np.ndarray, np.generic)) else array.get()


def difference(mine: Notes, other: Notes, tolerance: float | None) -> str:
    """The first that differs, in words; "" for none. tolerance: of the largest value of an array; None: equal bits."""
    for path, a in mine.items():
        if path not in other:
            return f"{path} ({_short(a)}) is missing: {other.get('raised', 'nothing was raised')}"
        b = other[path]
        if a is CHANGED:
            continue
        if tolerance is not None and (a is None) != (b is None) and re.search(r"\[\d+\]\[\d+\]$", path):
            a, b = (np.zeros_like(y) if x is None else x for x, y in ((a, b), (b, a)))     # `_kept`: None is zeros
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            if a.dtype != b.dtype or a.shape != b.shape:
                return f"{path} is {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}"
            if a.tobytes() != b.tobytes() and not _near(a, b, tolerance):
                return f"{path} is {a.ravel()[:4].tolist()} and {b.ravel()[:4].tolist()}"
        elif isinstance(a, np.ndarray) or isinstance(b, np.ndarray) or repr(a) != repr(b):
            return f"{path} is {_short(a)} and {_short(b)}"
    return next((f"{path} is new" for path in other if path not in mine), "")


def _short(value: Any) -> str:
    return f"array{value.ravel()[:4].tolist()}" if isinstance(value, np.ndarray) else str(value)[:300]


def _near(a: np.ndarray, b: np.ndarray, tolerance: float | None) -> bool:
    if tolerance is None:
        return False
    if a.dtype.kind != "f":                # an index of the largest, a mask: near ties fall either way
        return True
    size = max(1.0, float(np.max(np.abs(a), initial=0)))
    return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance * size, equal_nan=True))


# ---------------------------------------------------------------- a world
class World:
    """One of the two. `calls` counts those of compiled steps, `replays` those that did not run the step's body."""

    def __init__(self, compiled: bool, device: str = "cpu", seed: int = 3):
        self.compiled, self.device = compiled, device
        self.log: list[tuple[str, Notes]] = []
        self.outputs: list[tuple[Any, Notes]] = []     # arrays that steps returned, and what they were then
        self.watched: dict[str, Any] = {}
        self.calls = self.replays = 0
        self.replayed: list[bool] = []     # of each call
        minidl.manual_seed(seed)
        np.random.seed(seed)               # steps under test draw from it
        random.seed(seed)

    def watch(self, *things: Any, **named: Any) -> None:
        """Look at these after each call: Modules, optimizers, Tensors, arrays, containers, and lambdas of such."""
        self.watched |= {f"watched {len(self.watched) + i}": thing for i, thing in enumerate(things)} | named

    def look(self, when: str) -> None:
        """Note all that is watched."""
        found: Notes = {}
        for name, thing in self.watched.items():
            _note(thing, name, True, found, 0)
        self.log.append((when, found))

    def compile(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The step of this world; each call is looked at."""
        run: Any = minidl.compile(step) if self.compiled else step

        def call(*arguments: Any, **options: Any) -> Any:
            returned = self._outcome(step, run, arguments, options)
            self.look(f"after call {len(self.replayed)}")
            return returned
        call.step = run  # type: ignore[attr-defined]
        return call

    def _outcome(self, step: Callable[..., Any], run: Any, arguments: Any, options: Any) -> Any:
        """What the step returned, None where it raised: either is noted."""
        ran = False

        def profile(frame: Any, event: str, arg: Any) -> None:
            nonlocal ran
            if event == "call" and frame.f_code is code:
                ran = True
                sys.setprofile(None)

        code, before = _code_of(step), sys.getprofile()
        note: Notes
        try:
            if self.compiled:
                sys.setprofile(profile)
            returned = run(*arguments, **options)
            sys.setprofile(before)
            note = notes_of(returned, "returned", state=False)
            self.outputs.append((_arrays(returned), note))
        except CompileError as error:
            sys.setprofile(before)
            if not self.compiled:
                raise
            self._check_refusal(step, str(error))
            raise Refused(str(error)) from None
        except Exception as error:
            sys.setprofile(before)
            returned, note = None, {"raised": f"{type(error).__name__}: {error}"}
        self.calls += self.compiled
        self.replayed.append(self.compiled and not ran)
        self.replays += self.compiled and not ran
        self.log.append((f"call {len(self.replayed)}", note))
        return returned

    def _check_refusal(self, step: Any, message: str) -> None:
        """It names the step, and a line of the file that the step is written in; nothing is left being recorded."""
        assert not mode.recorder.recording, "a refusal left the recorder on"
        code = _code_of(step)
        names = {getattr(f, "__name__", type(f).__name__) for f in _functions(step)}
        assert any(name in message for name in names), f"a refusal names none of {sorted(names)}: {message}"
        assert code is None or re.search(rf"{re.escape(code.co_filename)}:\d+", message), \
            f"a refusal names no line of {code.co_filename}: {message}"

    def end(self) -> None:
        """What the steps returned, looked at again: later calls must not have written there. On CUDA, where what is
        returned is a copy, also of a parameter that changes later, only whether something wrote there is looked at."""
        for i, (arrays, before) in enumerate(self.outputs):
            now = notes_of(arrays, "returned", state=False)
            if self.device != "cpu":
                now = {path: CHANGED if difference({path: a}, {path: now[path]}, None) else "as returned"
                       for path, a in before.items()}
            self.log.append((f"at the end, returned by call {i + 1}", now))


def _arrays(value: Any) -> Any:
    """The arrays that Tensors have now, nested as they are."""
    if isinstance(value, Tensor):
        return value.data
    if type(value) in (tuple, list):
        return type(value)(map(_arrays, value))
    return {name: _arrays(entry) for name, entry in value.items()} if type(value) is dict else value


def _functions(step: Any) -> Iterator[Any]:
    """A step, and what it is made of: partial, bound method, object with __call__."""
    yield step
    for inner in ("func", "__func__", "__wrapped__"):
        if hasattr(step, inner):
            yield from _functions(getattr(step, inner))
    if not any(hasattr(step, name) for name in ("func", "__code__")):
        yield type(step).__call__


def _code_of(step: Any) -> Any:
    return next((f.__code__ for f in _functions(step) if hasattr(f, "__code__")), None)


# ---------------------------------------------------------------- both
@dataclass
class Verdict:
    """equal, refused or different, why, and how much was really replayed."""

    kind: str
    why: str
    calls: int
    replays: int
    replayed: list[bool]


def compare(scenario: Callable[[World], None], device: str = "cpu", tolerance: float | None = None) -> Verdict:
    """Run a scenario in both worlds. Raises what the plain world raises outside its steps' calls."""
    plain, compiled = World(False, device), World(True, device)
    scenario(plain)
    plain.end()
    kind, why = "equal", ""
    World.__init__(compiled, True, device)             # the seeds anew
    try:
        scenario(compiled)
        compiled.end()
    except Refused as refusal:
        kind, why = "refused", str(refusal)
    except Exception as error:
        kind, why = "different", f"raised {type(error).__name__}: {error}"
    finally:
        sys.setprofile(None)
    for (when, mine), (when_too, other) in zip(plain.log, compiled.log, strict=False):
        found = difference(mine, other, tolerance) if when == when_too else f"there {when_too}"
        if found:
            kind, why = "different", f"{when}: {found}"
            break
    else:
        if kind == "equal" and len(plain.log) != len(compiled.log):
            kind, why = "different", f"{len(plain.log)} and {len(compiled.log)} notes"
    return Verdict(kind, why, compiled.calls, compiled.replays, compiled.replayed)
