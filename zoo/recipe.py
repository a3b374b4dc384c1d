"""What a file states about its model: how to build it, and how it is trained."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TypeVar

from minidl import init, nn, ops, optim

LAYERS: dict[str, type[nn.Module]] = {                 # the activations' layers: LeakyReLU is leaky_relu's
    act: layer for act in ops.ACTIVATIONS for name, layer in vars(nn).items() if name.lower() == act.replace("_", "")}


@dataclass(frozen=True)
class Recipe:
    """The defaults of train.py: data set, passes over it, the optimizer's settings, how images are augmented, as its
    --augment says it, and how test images are seen, as its --tta does. optimizer: one that --optimizer names. Raises
    TypeError for a value of another type.

    >>> Recipe(epochs=3, lr=0.1).batch_size
    128
    """

    data: str = "mnist"
    epochs: int = 10
    batch_size: int = 128
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_schedule: str = "constant"
    augment: str = "none"
    optimizer: str = "sgd"
    label_smoothing: float = 0.0
    tta: str = "none"

    def __post_init__(self) -> None:
        for each in fields(self):
            value, kind = getattr(self, each.name), type(each.default)
            if type(value) not in ((float, int) if kind is float else (kind,)):
                raise TypeError(f"Recipe: {each.name} is {value!r} but must be of type {kind.__name__}")


MAX_SIZE = 2**12                           # rows and columns of images that a model says it reads
PLAIN = (bool, int, float, str)            # types of the options that a weights file can hold


@dataclass(frozen=True)
class Model:
    """A net by its name: one line about it, its layers as a function of options, and its recipe.

    of_options: recipes that replace it for an option's value, "original=true". image_size: rows and columns of the
    images that it reads; smaller ones are padded. None: its option of that name, or as the data has them. target: what
    its outputs are to be: "label", logits of the class, or "image", what it is given; its method `loss` compares them.
    optimizer: if it brings one: (net, schedule's name, steps, batch size, lr, momentum, weight decay) -> (optimizer, a
    schedule for each group). code: where its source is, if that is not the zoo: {"file", "name", "sha256"}.
    """

    name: str
    summary: str
    layers: Callable[..., nn.Module]
    recipe: Recipe
    of_options: Mapping[str, Recipe] = field(default_factory=dict)
    image_size: int | None = 32
    target: str = "label"
    optimizer: Callable[..., tuple[optim.Optimizer, list[optim.Schedule]]] | None = None
    code: Mapping[str, str] | None = None

    @property
    def options(self) -> Mapping[str, inspect.Parameter]:
        """Its options, with their defaults."""
        return inspect.signature(self.layers).parameters

    @property
    def reads(self) -> str:
        """Its option that says what it reads: "in_channels", of images, or "in_features", of the rows of a table."""
        return "in_features" if "in_features" in self.options else "in_channels"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one item that it reads, if no option says otherwise: (in_channels, image_size, image_size) of an image,
        (in_features,) of a row of a table. What neither it nor a default says is 0."""
        first, size = (each.default if each and type(each.default) is int else 0
                       for each in map(self.options.get, (self.reads, "image_size")))
        size = self.image_size or size
        return (first, size, size) if self.reads == "in_channels" else (first,)

    def item(self, shape: tuple[int, ...], **options: object) -> tuple[int, ...]:
        """The shape in which it reads items of this shape: what it does not say itself is as they have it. Raises
        ValueError for an image_size that cannot be."""
        size = options.get("image_size", self.image_size) if "image_size" in self.options else self.image_size
        if size is None:
            return shape
        if type(size) is not int or not 0 < size <= MAX_SIZE:
            raise ValueError(f"zoo: image_size of {self.name!r} is {size!r} but must be an int from 1 to {MAX_SIZE}")
        return (shape[0], size, size) if len(shape) == 3 else shape

    def read_by(self, net: nn.Module) -> tuple[int, ...]:
        """The shape of an item that a net of it reads; a size that neither says is 0."""
        return self.item((net.model_args.get(self.reads, self.shape[0]), *self.shape[1:]), **net.model_args)

    def of_data(self, shape: tuple[int, ...], classes: int = 0) -> dict[str, int]:
        """Those of its options that data decide: items of this shape and `classes` classes."""
        said = {"in_features": shape[0]} if len(shape) == 1 else {"in_channels": shape[0], "image_size": shape[-1]}
        return {name: value for name, value in {**said, "classes": classes}.items() if value and name in self.options}

    def recipe_for(self, **options: object) -> Recipe:
        """The recipe of the model that `build` makes of these options."""
        given = {f"{option}={value}".lower() for option, value in options.items()}
        return next((recipe for option, recipe in self.of_options.items() if option in given), self.recipe)

    def build(self, **options: object) -> nn.Module:
        """Build the model and write its name, options and code on it, for the weights file."""
        known = self.options
        for option, value in options.items():
            if option not in known:
                raise ValueError(f"zoo: model {self.name!r} has no option {option!r}; it has "
                                 f"{', '.join(known) or 'none'}")
            if isinstance(known[option].default, bool) and not isinstance(value, bool) \
                    and known[option].annotation != "bool | str":
                raise ValueError(f"zoo: the option {option} of model {self.name!r} is {value!r} but must be True or "
                                 "False")
            if self.code and type(value) not in (*PLAIN, list, tuple):
                raise ValueError(f"zoo: the option {option} of {self.name!r} is a {type(value).__name__}, which a "
                                 "weights file cannot hold; use a number, a text, True, False or a list of these")
            if isinstance(known[option].default, float) and type(value) is int:
                options[option] = float(value)
        if lacking := [option for option, each in known.items() if option not in options
                       and each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]:
            raise ValueError(f"zoo: model {self.name!r} needs the option {lacking[0]}, which has no default; give it "
                             "one, or a value")
        model = self.layers(**options)
        if not isinstance(model, nn.Module):
            raise ValueError(f"zoo: {self.name!r} gives a {type(model).__name__} but must give an nn.Module; return "
                             "the net")
        model.model_name, model.model_code = self.name, self.code
        held = {option: options.get(option, each.default) for option, each in known.items()}
        # A default that a file cannot hold stays in the code alone
        model.model_args = {option: value for option, value in held.items()
                            if option in options or type(value) in PLAIN}
        return model


Net = TypeVar("Net", bound=nn.Module)


def start(model: Net, gain: float = 1.0) -> Net:
    """Redraw a model's weights with variance gain^2 / fan_in and set its biases to 0."""
    for name, parameter in model.named_parameters():
        if name.endswith("weight"):
            init.kaiming_uniform_(parameter, gain=gain)
        else:
            init.zeros_(parameter)
    return model


def activation_layer(name: str) -> type[nn.Module]:
    """The activation layer of a name. Raises ValueError for an unknown one."""
    if name not in LAYERS:
        raise ValueError(f"zoo: activation {name!r} is not one of {', '.join(LAYERS)}")
    return LAYERS[name]
