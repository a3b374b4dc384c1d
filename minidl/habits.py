"""What users of PyTorch write that has another name here: one table, told by AttributeErrors and by a page.

`ADVICE` says, for each name that a user may look for in a place, what to write instead. A name that is there is in no
row: a test checks this. docs/from-pytorch.md is rendered from it, and from the methods that work
(ops/arrays/methods.py, nn/habits.py), by docs/render.py.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial, wraps
from types import ModuleType
from typing import Any, NoReturn, TypeVar, cast

from . import data, nn, ops, optim
from .core.device import flags, no_flags, resolve
from .core.tensor import Tensor
from .ops.create import tensor

F = TypeVar("F", bound=Callable[..., Any])
_ON_NO_TAPE = ("tan asin acos atan sinh cosh trunc frac fmod isnan isinf isfinite median mode quantile bincount histc "
               "nonzero cumprod kthvalue roll diagonal det inverse")
_DTYPES = {name: name for name in ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")}
_DTYPES |= {"long": "int64", "float": "float32", "double": "float64", "int": "int32"}
_NUMPY = "compute with t.numpy(), or write an op of your own: docs/own-op.md"

ADVICE: dict[str, dict[str, str]] = {
    "Tensor": {
        **dict.fromkeys(_ON_NO_TAPE.split(), _NUMPY),
        **{f"log{base}": f"t.log() / math.log({base})" for base in (2, 10)},
        "exp2": "2 ** t",
        "logical_and": "a & b, of masks: (a != 0) & (b != 0)",
        "logical_or": "a | b, of masks: (a != 0) | (b != 0)",
        "logical_xor": "(a != 0) != (b != 0)",
        "logical_not": "~mask, or t == 0",
        "count_nonzero": "(t != 0).sum()",
        "lerp": "x + (y - x) * weight",
        "addmm": "b + x @ y",
        "isclose": "(x - y).abs() < tolerance",
        "allclose": "numpy.allclose(x, y)",
        "equal": "bool((x == y).all())",
        "take": "t.flatten()[index]",
        **dict.fromkeys(("scatter_", "scatter", "index_fill_"), "t[index] = value, under minidl.no_grad()"),
        **dict.fromkeys(("scatter_add_", "index_add_"),
                        "t[index] += value for indices that are named once, under minidl.no_grad()"),
        "masked_fill_": "t[mask] = value, under minidl.no_grad()",
        **dict.fromkeys(("index_copy_", "put_"), "t[index] = values, under minidl.no_grad()"),
        "cat": "ops.concatenate([x, y], axis)",
        "stack": "ops.stack([x, y], axis)",
        "unfold": "ops.conv2d and the poolings slide windows",
        "repeat_interleave": "t[numpy.arange(n).repeat(times)]",
        "grad_fn": "t.node, the Node that made it, or None",
        "register_hook": "read t.grad after backward(); an op of your own sees the gradient between: docs/own-op.md",
        "detach_": "t = t.detach()",
        "data_ptr": "t.numpy().ctypes.data on the CPU",
        "is_contiguous": "t.numpy().flags.c_contiguous",
        "stride": "t.numpy().strides, in bytes",
        "storage": "t.numpy(), which shares the memory on the CPU",
        "half": "minidl.set_precision('bf16') for products; Tensors that require a gradient are float32 or float64",
        "bfloat16": "minidl.set_precision('bf16')",
        "short": "t.to(dtype='int16')",
        "pin_memory": "leave it out: a loader with device='cuda' copies batches ahead",
        "share_memory_": "leave it out: threads share memory",
        "names": "shapes have no names here",
        **{f"new_{name}": f"minidl.{name}(shape, dtype=t.dtype, device=t.device)" for name in ("zeros", "ones")},
        "new_full": "minidl.full(shape, value, dtype=t.dtype)",
        "new_tensor": "minidl.Tensor(data, dtype=t.dtype)",
        "uniform_": "minidl.init.uniform_(t, low, high)",
        "normal_": "minidl.init.normal_(t, mean, std)",
        "random_": "minidl.randint(low, high, shape)",
        **{f"{name}_": f"t[...] = t.{name}(), under minidl.no_grad()" for name in ("exp", "sqrt", "relu")},
        "layout": "arrays are dense here",
        **dict.fromkeys(("conj", "imag"), "numbers are real here"),
    },
    "minidl": {
        **{name: f"numpy.{dtype}, or {dtype!r}" for name, dtype in _DTYPES.items()},
        **dict.fromkeys(("half", "bfloat16", "amp"), "minidl.set_precision('bf16')"),
        **{name: f"math.{name}" for name in ("nan", "inf", "pi")},
        "as_tensor": "minidl.Tensor(data), which shares an array's memory",
        "empty": "minidl.zeros(shape)",
        "empty_like": "minidl.zeros_like(t)",
        "normal": "mean + std * minidl.randn(shape)",
        "autograd": "minidl.grad, minidl.jacobian, minidl.hessian, minidl.hvp; minidl.gradcheck checks",
        "enable_grad": "leave minidl.no_grad() before it",
        "set_grad_enabled": "with minidl.no_grad(): where it is off",
        "inference_mode": "minidl.no_grad()",
        "is_grad_enabled": "t.requires_grad of a result says whether it was recorded",
        "FloatTensor": "minidl.Tensor(data)",
        "LongTensor": "minidl.Tensor(data, dtype='int64')",
        "is_tensor": "isinstance(t, minidl.Tensor)",
        "numel": "t.numel()",
        "jit": "minidl.compile",
        **dict.fromkeys(("Generator", "seed"), "minidl.manual_seed(seed)"),
        "cuda": "device='cuda', or 'auto' for the best there is",
        "backends": "minidl.set_precision('fp32' | 'tf32' | '3xtf32' | 'bf16')",
        "utils": "minidl.data",
        "set_default_dtype": "net.to(dtype=...), Tensor(data, dtype=...)",
        "set_default_device": "device= where Tensors are made, net.to(device)",
        "set_float32_matmul_precision": "minidl.set_precision('tf32')",
        "allclose": "numpy.allclose(x, y)",
        "meshgrid": "numpy.meshgrid, then minidl.Tensor",
        "bernoulli": "minidl.rand(shape) < p",
        "multinomial": "numpy.random.choice",
        "distributions": "minidl.randn and rand; a class by its logits: "
                         "(x - (-minidl.rand_like(x).log()).log()).argmax(1)",
        "Size": "a tuple",
        "set_num_threads": "the environment variable MINIDL_NUM_THREADS, before the import",
        "functional": "minidl.ops",
    },
    "minidl.ops": {
        "cat": "ops.concatenate(tensors, axis)",
        "hardtanh": "ops.clip(x, -1, 1)",
        "relu6": "ops.clip(x, 0, 6)",
        "smooth_l1_loss": "ops.huber_loss(x, y, delta=beta) / beta",
        "binary_cross_entropy": "-(y * p.clip(1e-38).log() + (1 - y) * (1 - p).clip(1e-38).log()).mean()",
        "unfold": "ops.conv2d slides windows",
        "normalize": "x / x.norm(dim=1, keepdim=True).clip(1e-12)",
        **dict.fromkeys(("bmm", "mm"), "ops.matmul(x, y)"),
        "cosine_similarity": "(x * y).sum(1) / (x.norm(dim=1).clip(1e-8) * y.norm(dim=1).clip(1e-8))",
        "logsigmoid": "ops.minimum(x, 0) - ((-x.abs()).exp() + 1).log()",
        "permute": "ops.transpose(x, axes)",
        "clamp": "ops.clip(x, low, high)",
        "chunk": "t.chunk(count, axis)",
        **{f"a{name}": f"ops.{name}(x, axis)" for name in ("max", "min")},
    },
    "minidl.nn": {
        "ParameterList": "a list of Tensors",
        "ParameterDict": "a dict of Tensors",
        "LogSoftmax": "ops.log_softmax(x, axis) in forward",
        "Hardtanh": "ops.clip(x, -1, 1) in forward",
        "SmoothL1Loss": "nn.HuberLoss(delta=beta), over beta",
        "BCELoss": "-(y * p.clip(1e-38).log() + (1 - y) * (1 - p).clip(1e-38).log()).mean()",
        "ZeroPad2d": "ops.pad(x, widths) in forward",
        **dict.fromkeys(("Transformer", "TransformerEncoder", "TransformerEncoderLayer", "TransformerDecoderLayer"),
                        "nn.MultiheadAttention in a Module of your own"),
        "KLDivLoss": "ops.kl_div(log_q, p, reduction='batchmean')",
        "DataParallel": "one process per GPU: mpiexec -n 2 minidl train ..., see docs/distributed.md",
        "Bilinear": "matmul in forward",
        "Unflatten": "x.reshape(shape) in forward",
        "BatchNorm3d": "nn.BatchNorm2d(c) of x.flatten(3), then .reshape(x.shape)",
        **dict.fromkeys(("MaxPool3d", "AvgPool3d"), "ops.max_pool2d or avg_pool2d of x.reshape(n * c, d, h, w), then "
                        "over d alone"),
    },
    "minidl.nn.utils": {
        "rnn": "sequences padded to one length, of which the end is read: y[range(n), lengths - 1]",
        **dict.fromkeys(("parameters_to_vector", "vector_to_parameters"), "ops.concatenate of t.flatten() of each, and "
                        "its .split(sizes)"),
    },
    "minidl.optim": {
        "Adagrad": "optim.RMSprop(params), a moving average of squares in place of their sum",
        "NAdam": "optim.AdamW(params), which has no Nesterov momentum",
        "swa_utils": "optim.EMA(model), whose averages `with ema.applied()` puts in place",
        "clip_grad_norm_": "optim.clip_grad_norm(params, max_norm)",
        "clip_grad_value_": "optim.clip_grad_value(params, value)",
        "lr_scheduler": "fit(schedule=optim.cosine(epochs * len(loader))), optim.Plateau(sgd) among its callbacks, or "
                        "sgd.lr = rate between epochs",
        "LBFGS": "optim.Adam(params): there are no second-order methods",
    },
    "minidl.data": {
        "TensorDataset": "data.DataLoader((x, y), batch_size), which takes arrays as they are",
        "ConcatDataset": "numpy.concatenate of the arrays",
        "RandomSampler": "DataLoader(shuffle=True, seed=...)",
        "WeightedRandomSampler": "repeat items by their weight: x[numpy.repeat(range(n), times)]",
        "default_collate": "a loader stacks items by itself",
    },
    "Module": {
        **dict.fromkeys(("half", "bfloat16"), "minidl.set_precision('bf16')"),
        "register_forward_hook": "call the layer in your own forward, and look at its result there",
        "register_full_backward_hook": "read .grad after backward()",
        "share_memory": "leave it out: threads share memory",
        "register_module": "net.name = module",
        "get_parameter": "dict(net.named_parameters())[path]",
        "type": "net.to(dtype=...)",
        "compile": "minidl.compile(step), of the whole training step",
        "flatten_parameters": "leave it out: kernels read the weights where they are",
    },
    "Optimizer": {
        "param_groups": "sgd.groups, sgd.group(name), or sgd.lr for one group",
        "add_param_group": "sgd.groups[0]['params'] += parameters, which keeps momentum and steps",
        "defaults": "sgd.groups[0]",
        "state": "sgd.state_dict()",
    },
    "DataLoader": {
        "num_workers": "prefetch=, batches made ahead on a thread",
        "sampler": "shuffle= and seed=",
        "batch_sampler": "batch_size= and shuffle=",
        "collate_fn": "a loader stacks items by itself",
        "pin_memory": "device='cuda'",
        "generator": "seed=",
    },
}
_BY_ITSELF = "leave it out: kernels are chosen by themselves"
# What users of other libraries write for an option, of a class and its subclasses, or of a function.
OPTIONS: dict[str, dict[str, str]] = {
    "Module": {
        "inplace": "leave it out: a result is a new Tensor, whose memory compiled steps use again",
        "device": "net.to(device)",
        "dtype": "net.to(dtype=...)",
        "activation": "the activation as the next layer",
        "padding_mode": "ops.pad(x, widths) before it",
        "input_shape": "the number of inputs, which comes first",
        "size_average": "reduction='mean' or 'sum'",
        "reduce": "reduction='none', or 'mean'",
    },
    "Optimizer": {
        "learning_rate": "lr=",
        "maximize": "(-loss).backward()",
        **dict.fromkeys(("foreach", "fused", "capturable", "differentiable"), _BY_ITSELF),
        **dict.fromkeys(("clipnorm", "max_grad_norm"), "optim.clip_grad_norm(params, max_norm) before step(), or "
                        "training.fit(..., clip=max_norm)"),
    },
    "DataLoader": {
        **ADVICE["DataLoader"],
        **dict.fromkeys(("persistent_workers", "prefetch_factor"), ADVICE["DataLoader"]["num_workers"]),
    },
    "fit": {
        "batch_size": "data.DataLoader(dataset, batch_size)",
        "shuffle": "data.DataLoader(dataset, batch_size, shuffle=...)",
        **dict.fromkeys(("validation_data", "val_data", "val_loader"), "test, the fourth argument"),
        "validation_split": "data.random_split(dataset, [0.9, 0.1])",
        **dict.fromkeys(("criterion", "loss_fn"), "loss="),
        **dict.fromkeys(("scheduler", "lr_scheduler"), "schedule="),
        "max_epochs": "epochs=",
        **dict.fromkeys(("accumulate_grad_batches", "gradient_accumulation_steps"), "accumulate="),
        **dict.fromkeys(("gradient_clip_val", "max_grad_norm", "clip_grad_norm"), "clip="),
        "sample_weight": "data.DataLoader((inputs, targets, weights), batch_size)",
        **dict.fromkeys(("patience", "early_stopping"), "callbacks=training.EarlyStop(metric, patience)"),
        "verbose": "progress= and say=",
        "device": "net.to(device) and data.DataLoader(dataset, batch_size, device=...)",
        "lr": "the optimizer's, as optim.Adam(net.parameters(), lr)",
    },
    "EarlyStop": {"monitor": "metric=", "min_delta": "better_by="},
}
_MODULES = ("minidl", "minidl.ops", "minidl.nn", "minidl.nn.utils", "minidl.optim", "minidl.data")


def missing(place: str, name: str) -> NoReturn:
    """Raise AttributeError that says what to write in place of a name."""
    advice = ADVICE[place].get(name)
    if advice is None and place != "minidl.ops" and callable(vars(ops).get(name)):
        advice = f"minidl.ops.{name}"
    if advice is None and place in ("minidl", "minidl.ops"):
        own = name[:1] != "_" and hasattr(Tensor, name)
        advice = f"t.{name}(...)" if own else ADVICE["Tensor"].get(name)
    if advice is None:
        what = f"module {place!r}" if place in _MODULES else f"{place!r} object"
        raise AttributeError(f"{what} has no attribute {name!r}")
    raise AttributeError(f"{place}.{name}: is not here; in its place: {advice}")


def _asked_of(place: str) -> Any:
    def __getattr__(self: object, name: str) -> NoReturn:
        if place != "Tensor" and name not in ADVICE[place]:  # a subclass says what it is
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        missing(place, name)

    return __getattr__


def told(function: F) -> F:
    """A function, or a class's __init__, that for wrong arguments says what it takes, and what replaces the options of
    other libraries. Of those that an __init__ accepts, flags are True or False, and other numbers are not."""
    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        made = function.__name__ == "__init__"
        try:
            result = function(*arguments, **options)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                if made:
                    _require_kinds(function, arguments, options)
                raise                      # the function's own
            raise TypeError(_not_taken(function, arguments, options, error)) from None
        if made:
            _require_kinds(function, arguments, options)
        return result
    return cast(F, call)


def _require_kinds(function: Callable[..., Any], arguments: tuple[object, ...], options: dict[str, object]) -> None:
    """Refuse flags that are not True or False, and what is not a number in the place of one: a dropout may be given
    where a layer has its bias, and False for its bias where it has its eps."""
    who = type(arguments[0]).__name__
    by_place = zip(function.__code__.co_varnames[:function.__code__.co_argcount], arguments, strict=False)
    for what, given in {**dict(by_place), **options}.items():
        kind = function.__annotations__.get(what)
        if kind == "bool":
            flags(who, **{what: given})
        elif kind == "float" or (kind == "float | None" and given is not None):
            no_flags(who, **{what: given})
            if not hasattr(given, "__float__"):
                raise ValueError(f"{who}: {what} is {given!r} but must be a number; a flag goes by its name")


def _not_taken(function: Callable[..., Any], arguments: tuple[object, ...], options: dict[str, object],
               error: TypeError) -> str:
    signature, method = inspect.signature(function), function.__name__ == "__init__"
    owners = type(arguments[0]).__mro__ if method else (function,)
    try:
        words = str(error)
        signature.bind(*arguments, **options)
    except TypeError as why:
        words = str(why)
    name, takes = owners[0].__name__, [*signature.parameters][method:]
    known = {option: each for owner in reversed(owners) for option, each in OPTIONS.get(owner.__name__, {}).items()}
    instead = [f"; in place of {each}: {known[each]}" for each in options if each in known and each not in takes]
    if method and any(isinstance(each, Tensor) for each in arguments):
        instead.append(f"; make the layer first and call it then, {name}(...)(x)")
    return f"{name}: {words}; it takes {', '.join(takes) or 'no arguments'}{''.join(instead)}"


class _Callable(ModuleType):
    """A module that can be called, as PyTorch's function of the same name can."""

    def __call__(self, *arguments: object, **options: object) -> Any:
        return _CALLED[self.__name__](*arguments, **options)


_CALLED: dict[str, Any] = {"minidl.core.tensor": tensor, "minidl.core.device": resolve}


def public(module: ModuleType) -> list[str]:
    """What dir() and completion show of a module: its __all__, or for ops, which gathers its families' names, what is
    not a module; also the names that all modules have."""
    own = vars(module).get("__all__") or [name for name, value in vars(module).items()
                                          if name[0] != "_" and not isinstance(value, ModuleType)]
    return sorted({*own, *(name for name in vars(module) if name.startswith("__"))})


def shown(place: str) -> None:
    """Make a module's dir() show what is public, and its classes say what they take."""
    module = sys.modules[place]
    vars(module)["__dir__"] = partial(public, module)
    for each in {base for found in vars(module).values() if isinstance(found, type) for base in found.__mro__}:
        init = vars(each).get("__init__")
        if each.__module__.startswith("minidl.") and init is not None and not hasattr(init, "__wrapped__"):
            setattr(each, "__init__", told(init))  # noqa: B010  # type checkers shall not see it


def attach() -> None:
    """Make modules and classes say what to write for a name that they do not have."""
    for place, owner in {"Tensor": Tensor, "Module": nn.Module, "Optimizer": optim.Optimizer,
                         "DataLoader": data.DataLoader}.items():
        setattr(owner, "__getattr__", _asked_of(place))  # noqa: B010  # type checkers shall not see it
    for place in _MODULES[1:]:             # minidl itself asks from its own __getattr__
        vars(sys.modules[place])["__getattr__"] = lambda name, place=place: missing(place, name)
        shown(place)
    for name in _CALLED:
        sys.modules[name].__class__ = _Callable
