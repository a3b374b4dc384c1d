"""Contexts that also decorate functions and generators."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator
from contextlib import _GeneratorContextManager
from functools import wraps
from typing import Any


class _Context(_GeneratorContextManager[Any]):
    """A context that decorates generators too: it holds while their body runs, and not while they wait."""

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        name = self.func.__qualname__          # type: ignore[attr-defined]  # what contextlib makes it anew from
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{name}: {function.__qualname__} is async but a decorated function must run to its end "
                            f"at once; write with {name}(): around what is in it, without an await there")
        return self._steps(function) if inspect.isgeneratorfunction(function) else super().__call__(function)

    def _steps(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def steps(*arguments: Any, **options: Any) -> Generator[Any, Any, Any]:
            body = function(*arguments, **options)
            go_on, what = body.send, None
            while True:
                try:
                    with self._recreate_cm():  # type: ignore[attr-defined]  # one that was not entered yet
                        value = go_on(what)
                except StopIteration as end:
                    return end.value
                try:
                    go_on, what = body.send, (yield value)
                except GeneratorExit:
                    with self._recreate_cm():  # type: ignore[attr-defined]
                        body.close()
                    raise
                except BaseException as error:
                    go_on, what = body.throw, error
        return steps


def context(function: Callable[..., Iterator[Any]]) -> Callable[..., _Context]:
    """contextlib.contextmanager, whose contexts decorate generators as well as functions."""
    @wraps(function)
    def made(*arguments: Any, **options: Any) -> _Context:
        return _Context(function, arguments, options)
    return made
