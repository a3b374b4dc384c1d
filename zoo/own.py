"""A net of the user's as a model: a function of options in a file, or in an installed module, that the user names."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from minidl import nn

from .recipe import Model, Recipe

FUNCTION = "build"                         # what is called if only a file is named
RECIPE = Recipe(lr=1e-3, weight_decay=1e-2, optimizer="adamw")         # of a file that has none


def import_file(file: str) -> ModuleType:
    """Import a Python file, once; other files of its folder can be imported from it.

    Raises FileNotFoundError for a file that is not there, ValueError with what went wrong in it.
    """
    path = Path(file).resolve()
    if not path.is_file():
        near = files_like(file)
        raise FileNotFoundError(f"{file!r} is not a file; name a Python file of yours" + (
            f", one of {', '.join(near)}" if near else ""))
    name = f"plugin_{path.stem}"
    if getattr(known := sys.modules.get(name), "__file__", "") == str(path):
        return known                       # type: ignore[return-value]  # what has a __file__ is a module
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} is not a Python file; name one that ends in .py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:             # whatever a user's file may raise
        del sys.modules[name]
        raise ValueError(f"{file}: {type(error).__name__}: {error}") from error
    return module


def files_like(name: str) -> list[str]:
    """Python files in the folder of a name, those that are like it."""
    return difflib.get_close_matches(name, map(str, sorted(Path(name).parent.glob("*.py"))))


def is_code(name: str) -> bool:
    """Whether a model's name is a place in code: FILE.py, FILE.py:NAME, or package.module:NAME."""
    return name.endswith(".py") or ":" in name


def named(name: str) -> Model:
    """The model that is in such a place; imports the code.

    Raises ValueError if it has neither a function nor a `Model` of that name, and as `import_file` does.
    """
    place, _, attribute = (name, "", FUNCTION) if name.endswith(".py") else name.rpartition(":")
    if place.endswith(".py"):
        module = import_file(place)
    else:
        try:
            module = importlib.import_module(place)
        except Exception as error:
            raise ValueError(f"{place}: {type(error).__name__}: {error}; name a Python file, or an installed "
                             "module") from error
    found = getattr(module, attribute, None)
    if not isinstance(found, Model) and not callable(found):
        there = [each for each, value in vars(module).items() if isinstance(value, Model) or (
            inspect.isfunction(value) and value.__module__ == module.__name__)]
        raise ValueError(f"{place} has no function {attribute!r}; it has {', '.join(there) or 'none'}; name one that "
                         f"returns a net: {place}:NAME")
    return of(found, module, place, attribute)


def of(found: Model | Callable[..., nn.Module], module: ModuleType | None = None, place: str = "",
       attribute: str = "") -> Model:
    """A function, or a `Model`, of a module as the model that knows where its code is.

    Raises TypeError for a RECIPE of that module that is not a `Recipe`.
    """
    layers = found.layers if isinstance(found, Model) else found
    module = module or inspect.getmodule(layers)
    file = getattr(module, "__file__", None)
    if file and not Path(file).is_file():  # "<stdin>": what was typed has no code to find again
        file = None
    place = place or str(file or getattr(module, "__name__", ""))
    attribute = attribute or getattr(layers, "__qualname__", FUNCTION)
    name = f"{Path(place).name if place.endswith('.py') else place}:{attribute}"
    source = Path(file).read_bytes() if file else b""
    code = {"file": place, "name": attribute, "sha256": hashlib.sha256(source).hexdigest()}
    if isinstance(found, Model):
        return replace(found, name=name, code=code)
    recipe = getattr(module, "RECIPE", RECIPE)
    if not isinstance(recipe, Recipe):
        raise TypeError(f"{place}: RECIPE is a {type(recipe).__name__} but must be a zoo.Recipe")
    summary = (inspect.getdoc(layers) or name).partition("\n")[0]
    return Model(name, summary, layers, recipe, image_size=None, code=code)
