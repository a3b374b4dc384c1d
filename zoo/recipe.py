"""What a zoo file states about its model: how to build it and how its paper trained it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from minidl import init, nn, ops, optim

LAYERS: dict[str, type[nn.Module]] = {                 # the activations' layers: LeakyReLU is leaky_relu's
    act: layer for act in ops.ACTIVATIONS for name, layer in vars(nn).items() if name.lower() == act.replace("_", "")}


@dataclass(frozen=True)
class Recipe:
    """The defaults of train.py: data set, passes over it, the optimizer's settings, how images are augmented, as its
    --augment says it, and how test images are seen, as its --tta does. optimizer: one that --optimizer names."""

    data: str
    epochs: int
    batch_size: int
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_schedule: str = "constant"
    augment: str = "none"
    optimizer: str = "sgd"
    label_smoothing: float = 0.0
    tta: str = "none"


@dataclass(frozen=True)
class Model:
    """A zoo entry: name, one line about it, its layers as a function of options, and its recipe.

    of_options: recipes that replace it where the option of their name is True. image_size: rows and columns of the
    images that it reads, unless it reads tables; smaller ones are padded. target: what its outputs are to be: "label",
    logits of the class, or "image", what it is given; its method `loss` compares them. optimizer: where it brings one:
    (net, schedule's name, steps, batch size, lr, momentum, weight decay) -> (optimizer, a schedule for each group).
    """

    name: str
    summary: str
    layers: Callable[..., nn.Module]
    recipe: Recipe
    of_options: Mapping[str, Recipe] = field(default_factory=dict)
    image_size: int = 32
    target: str = "label"
    optimizer: Callable[..., tuple[optim.Optimizer, list[optim.Schedule]]] | None = None

    @property
    def reads(self) -> str:
        """Its option that says what it reads: "in_channels", of images, or "in_features", of the rows of a table."""
        return next(iter(inspect.signature(self.layers).parameters))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one item that it reads, if no option says otherwise: (in_channels, image_size, image_size) of an image,
        (in_features,) of a row of a table."""
        first: int = inspect.signature(self.layers).parameters[self.reads].default
        return (first, self.image_size, self.image_size) if self.reads == "in_channels" else (first,)

    def recipe_for(self, **options: object) -> Recipe:
        """The recipe of the model that `build` makes of these options."""
        return next((recipe for option, recipe in self.of_options.items() if options.get(option)), self.recipe)

    def build(self, **options: object) -> nn.Module:
        """Build the model and write its name and options on it, for the weights file."""
        known = inspect.signature(self.layers).parameters
        for option, value in options.items():
            if option not in known:
                raise ValueError(f"zoo: model {self.name!r} has no option {option!r}; it has {', '.join(known)}")
            if isinstance(known[option].default, bool) and not isinstance(value, bool):
                raise ValueError(f"zoo: the option {option} of model {self.name!r} is {value!r} but must be True or "
                                 "False")
            if isinstance(known[option].default, float) and type(value) is int:
                options[option] = float(value)
        model = self.layers(**options)
        model.model_name = self.name
        model.model_args = {option: options.get(option, known[option].default) for option in known}
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
