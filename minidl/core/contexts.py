"""Contexts that also decorate functions and generators, and one in which an attribute has another value."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator
from contextlib import _GeneratorContextManager, contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])


class _Context(_GeneratorContextManager[Any]):
    """A context that decorates generators too: it holds while their body runs, and not while they wait."""

    def __call__(self, function: F) -> F:
        name = self.func.__qualname__
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{name}: {function.__qualname__} is async but a decorated function must run to its end "
                            f"at once; write with {name}(): around what is in it, without an await there")
        return cast(F, self._steps(function)) if inspect.isgeneratorfunction(function) else super().__call__(function)

    def _steps(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def steps(*arguments: Any, **options: Any) -> Generator[Any, Any, Any]:
            body = function(*arguments, **options)
            go_on, what = body.send, None
            while True:
                try:
                    with self._recreate_cm():    # one that was not entered yet
                        value = go_on(what)
                except StopIteration as end:
                    return end.value
                try:
                    go_on, what = body.send, (yield value)
                except GeneratorExit:
                    with self._recreate_cm():
                        body.close()
                    raise
                except BaseException as error:
                    go_on, what = body.throw, error
        return steps


def context(function: Callable[P, Iterator[Any]]) -> Callable[P, _Context]:
    """contextlib.contextmanager, whose contexts decorate generators as well as functions."""
    @wraps(function)
    def made(*arguments: P.args, **options: P.kwargs) -> _Context:
        return _Context(cast(Any, function), arguments, options)
    return made


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Within this, an attribute has another value."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
