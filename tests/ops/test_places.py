"""What PyTorch takes by position means the same here, or is refused: of every function that has a name of PyTorch's.

Signatures are read from both. Those of PyTorch's functions that are written in C are in PLACES, as its documentation
has them; the others are read from PyTorch itself where it is installed.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import minidl
from minidl import Tensor, data, init, nn, ops, optim

# What PyTorch calls an argument -> what it is called here
RENAMED = {
    "input": ("x", "logits", "log_p", "ids", "labels", "condition"), "target": ("labels", "y", "path"),
    "weight": ("w",), "bias": ("b",), "dim": ("axis",), "dims": ("axis",), "keepdim": ("keepdims",),
    "kernel_size": ("size",), "start_dim": ("start",), "min": ("low",), "max": ("high",), "other": ("y",),
    "vec2": ("y", "other"),
    "chunks": ("count",), "exponent": ("p",), "tensor": ("x",), "split_size_or_sections": ("sizes",),
    "val": ("value",), "a": ("low",), "b": ("high",), "fn": ("function",), "param": ("tensor",),
    "state_dict": ("state",), "mode": ("training",), "obj": ("model",), "f": ("path",), "ext_tensor": ("x",),
    "object": ("array",), "defaults": ("common",), "pad": ("widths",), "operands": ("tensors",)}
# PyTorch's functions in C, by its documentation
PLACES = {
    **dict.fromkeys(("abs", "exp", "log", "sqrt", "rsqrt", "neg", "clone", "silu", "relu", "sigmoid", "tanh",
                     "hardsigmoid", "sin", "cos", "log1p", "expm1", "erf", "sign", "round", "floor", "ceil"),
                    "input"),
    **dict.fromkeys(("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum", "matmul",
                     "remainder", "floor_divide"),
                    "input other"),
    "pow": "input exponent", "outer": "input vec2", "where": "condition input other",
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), "input weight bias stride padding dilation groups"),
    "conv_transpose2d": "input weight bias stride padding output_padding groups dilation",
    "linear": "input weight bias", "avg_pool2d": "input kernel_size stride padding ceil_mode count_include_pad",
    "max_pool2d": "input kernel_size stride padding dilation ceil_mode return_indices", "gelu": "input",
    "softplus": "input beta threshold", "pixel_shuffle": "input upscale_factor", "softmax": "input dim",
    "scaled_dot_product_attention": "query key value attn_mask dropout_p is_causal scale enable_gqa",
    "log_softmax": "input dim", "leaky_relu": "input negative_slope", "elu": "input alpha",
    **dict.fromkeys(("sum", "mean", "prod"), "input dim keepdim"), "argmax": "input dim keepdim",
    "argmin": "input dim keepdim", "argsort": "input dim descending", "cumsum": "input dim",
    **dict.fromkeys(("max", "min"), "input"),              # with a dim they are other functions, which give pairs
    **dict.fromkeys(("var", "std"), "input dim unbiased keepdim"), "norm": "input p dim keepdim",
    "flatten": "input start_dim end_dim", "squeeze": "input dim", "unsqueeze": "input dim", "flip": "input dims",
    "gather": "input dim index", "clip": "input min max", "concatenate": "tensors dim", "stack": "tensors dim",
    "einsum": "equation operands", "split": "tensor split_size_or_sections dim",
    **dict.fromkeys(("tril", "triu"), "input diagonal"), "unique": "input sorted return_inverse return_counts dim",
    "one_hot": "input num_classes",
    # methods
    **dict.fromkeys(("all", "any", "amax", "amin"), "input dim keepdim"), "logsumexp": "input dim keepdim",
    "sort": "input dim descending", "topk": "input k dim largest sorted", "chunk": "input chunks dim",
    "narrow": "input dim start length", "select": "input dim index", "index_select": "input dim index",
    "unbind": "input dim", "masked_fill": "input mask value", "clamp": "input min max"}
EXCEPTIONS = {
    "minidl.compile": "a function of ours, a model of theirs; it calls what it is given",
    "minidl.load": "a model comes first; a file's name alone builds the zoo's net, and map_location is refused",
    "ops.reshape": "sizes, as a tuple or one by one: so does PyTorch's method", "ops.expand": "the same",
    "ops.transpose": "NumPy's: all axes in their new order", "Tensor.transpose": "the same (docs/from-pytorch.md)",
    "ops.pad": "widths as PyTorch's pad, then the value, a number; a mode, which is a text, is refused",
    "optim.step": "rates in the place of a closure, which is refused",
    "ops.conv_transpose2d": "an algorithm's name in the place of groups, a number, which is refused",
}
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def places(function: Callable[..., Any]) -> list[str]:
    """What a function takes by position, by name, but for the object of a method."""
    signature = inspect.signature(function)
    found = [p.name for p in signature.parameters.values() if p.kind in POSITIONAL and p.name != "self"]
    return found + getattr(function, "by_place", [])


def other(theirs: list[str], mine: list[str]) -> str:
    """The first of mine that stands in another place there."""
    for i, name in enumerate(mine):
        if i == len(theirs):
            return ""                      # more than PyTorch takes
        if name != theirs[i] and name not in RENAMED.get(theirs[i], ()):
            return f"{name} in the place of {theirs[i]}"
    return ""


def mine() -> dict[str, Callable[..., Any]]:
    """All public functions, methods and classes, by the name of their place and their own."""
    found = {f"ops.{name}": value for name, value in vars(ops).items() if callable(value)}
    found |= {f"init.{name}": value for name, value in vars(init).items() if inspect.isfunction(value)}
    found |= {f"minidl.{name}": value for name, value in vars(minidl).items() if inspect.isfunction(value)}
    found |= {f"nn.{name}": value.__init__ for name, value in vars(nn).items() if inspect.isclass(value)}
    found |= {f"optim.{name}": value.__init__ for name, value in vars(optim).items() if inspect.isclass(value)}
    found |= {f"{room}.{name}": getattr(cls, name) for room, cls in (("nn", nn.Module), ("optim", optim.SGD))
              for name in dir(cls) if callable(getattr(cls, name))}
    found["data.DataLoader"] = data.DataLoader.__init__
    return {name: value for name, value in found.items() if not name.split(".")[1].startswith("_")}


@pytest.mark.parametrize("name", PLACES)
def test_functions_in_c(name: str) -> None:
    theirs = PLACES[name].split()
    if hasattr(ops, name) and f"ops.{name}" not in EXCEPTIONS:
        assert other(theirs, places(getattr(ops, name))) == ""
    if hasattr(Tensor, name) and f"Tensor.{name}" not in EXCEPTIONS:
        method = inspect.getattr_static(Tensor, name)
        assert other(theirs[1:], [p for p in places(method) if p != "x"]) == ""


def test_the_table_is_of_what_there_is() -> None:
    assert [name for name in PLACES if not hasattr(ops, name) and not hasattr(Tensor, name)] == []


def pairs() -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any]]]:
    """(name, mine, PyTorch's) of what has one name in both."""
    import torch

    rooms = {"ops": (torch.nn.functional, torch), "init": (torch.nn.init,), "minidl": (torch,), "nn": (torch.nn,
             torch.nn.Module), "optim": (torch.optim, torch.optim.SGD), "data": (torch.utils.data,)}
    for name, function in mine().items():
        room, own = name.split(".")
        theirs = next((getattr(place, own) for place in rooms[room] if callable(getattr(place, own, None))), None)
        if theirs is not None and name not in EXCEPTIONS:
            yield name, function, theirs.__init__ if inspect.isclass(theirs) else theirs


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_pytorchs_own_signatures() -> None:
    wrong, seen = {}, 0
    for name, function, theirs in pairs():
        try:
            signature = inspect.signature(theirs)
        except ValueError:                 # in C: PLACES has it, or nobody can know
            continue
        names = [p.name for p in signature.parameters.values() if p.kind in POSITIONAL and p.name != "self"]
        if any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
            continue
        seen += 1
        if found := other(names, places(function)):
            wrong[name] = found
    assert wrong == {}
    assert seen > 60
