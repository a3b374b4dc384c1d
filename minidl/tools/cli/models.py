"""`minidl models`: the models of the zoo and their recipes."""

from __future__ import annotations

from dataclasses import asdict

from minidl import zoo

from .common import Parser, add_json, run, say_json
from .train import list_models


def main(argv: list[str] | None = None, prog: str = "minidl models") -> int:
    """Run with these arguments; returns the exit status."""
    parser = Parser(prog=prog, description="Name the models of the zoo and the recipes that they are trained by.",
                    epilog="minidl summary --model NAME prints the layers of one.")
    add_json(parser)
    return run(parser, argv, lambda args: say_json(
        [{"name": model.name, "summary": model.summary, "shape": model.shape, "recipe": asdict(model.recipe),
          "of_options": {name: asdict(recipe) for name, recipe in model.of_options.items()}}
         for model in zoo.MODELS.values()]) if args.json else list_models())
