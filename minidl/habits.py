"""What users of PyTorch write that has another name here: one table, told by AttributeErrors and by a page.

`ADVICE` says, for each name that somebody may look for in a place, what to write instead. A name that is there stands
in no row: a test looks. docs/from-pytorch.md is rendered from it, and from the methods that work
(ops/arrays/methods.py, nn/habits.py), by docs/render.py.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, NoReturn

from . import nn, ops, optim
from .core.device import resolve
from .core.tensor import Tensor
from .data import DataLoader
from .ops.create import tensor

_ON_NO_TAPE = (
    "tan asin acos atan sinh cosh trunc frac fmod isnan isinf isfinite median mode quantile bincount histc nonzero "
    "cumprod kthvalue roll diagonal det inverse"
)
_NUMPY = "compute with t.numpy(), or write an op of your own: docs/own-op.md"

_LOGICAL = {"logical_and": "x & y, of masks", "logical_or": "x | y, of masks", "logical_not": "~x, of a mask",
            "logical_xor": "x != y, of masks"}

ADVICE: dict[str, dict[str, str]] = {
    "Tensor": {
        **dict.fromkeys(_ON_NO_TAPE.split(), _NUMPY),
        "log2": "t.log() / math.log(2)",
        "log10": "t.log() / math.log(10)",
        "exp2": "2 ** t",
        "count_nonzero": "(t != 0).sum()",
        "lerp": "x + (y - x) * weight",
        "addmm": "b + x @ y",
        "isclose": "(x - y).abs() < tolerance",
        "allclose": "numpy.allclose(x, y)",
        "equal": "bool((x == y).all())",
        **_LOGICAL,
        "take": "t.flatten()[index]",
        "scatter_": "t[index] = value, under minidl.no_grad()",
        "scatter": "t[index] = value, under minidl.no_grad()",
        "scatter_add_": "t[index] += value for indices that are named once, under minidl.no_grad()",
        "index_add_": "t[index] += value for indices that are named once, under minidl.no_grad()",
        "masked_fill_": "t[mask] = value, under minidl.no_grad()",
        "index_fill_": "t[index] = value, under no_grad()",
        "index_copy_": "t[index] = values, under minidl.no_grad()",
        "put_": "t[index] = values, under no_grad()",
        "cat": "ops.concatenate([x, y], axis)",
        "stack": "ops.stack([x, y], axis)",
        "unfold": "ops.conv2d and the poolings slide windows",
        "repeat_interleave": "t[numpy.arange(n).repeat(times)]",
        "grad_fn": "t.node, the Node that made it, or None",
        "register_hook": "read t.grad after backward(); the gradient "
        "between is what an op of your own sees: docs/own-op.md",
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
        "new_zeros": "minidl.zeros(shape, dtype=t.dtype, device=t.device)",
        "new_ones": "minidl.ones(shape, dtype=t.dtype, device=t.device)",
        "new_full": "minidl.full(shape, value, dtype=t.dtype)",
        "new_tensor": "minidl.Tensor(data, dtype=t.dtype)",
        "uniform_": "minidl.init.uniform_(t, low, high)",
        "normal_": "minidl.init.normal_(t, mean, std)",
        "random_": "minidl.randint(low, high, shape)",
        "exp_": "t[...] = t.exp(), under minidl.no_grad()",
        "sqrt_": "t[...] = t.sqrt(), under minidl.no_grad()",
        "relu_": "t[...] = t.relu(), under minidl.no_grad()",
        "layout": "arrays are dense here",
        "conj": "numbers are real here",
        "imag": "numbers are real here",
    },
    "minidl": {
        **{
            name: f"numpy.{name}, or {name!r}"
            for name in ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")
        },
        "long": "numpy.int64, or 'int64'",
        "float": "numpy.float32, or 'float32'",
        "double": "numpy.float64, or 'float64'",
        "int": "numpy.int32, or 'int32'",
        "bool": "numpy.bool, or 'bool'",
        "half": "minidl.set_precision('bf16')",
        "bfloat16": "minidl.set_precision('bf16')",
        "nan": "math.nan",
        "inf": "math.inf",
        "pi": "math.pi",
        "as_tensor": "minidl.Tensor(data), which shares an array's memory",
        "empty": "minidl.zeros(shape)",
        "empty_like": "minidl.zeros_like(t)",
        "normal": "mean + std * minidl.randn(shape)",
        "autograd": "t.backward() and t.grad; minidl.gradcheck checks",
        "grad": "t.backward() and t.grad",
        "enable_grad": "leave minidl.no_grad() before it",
        "set_grad_enabled": "with minidl.no_grad(): where it is off",
        "inference_mode": "minidl.no_grad()",
        "is_grad_enabled": "t.requires_grad of a result says whether it was recorded",
        "FloatTensor": "minidl.Tensor(data)",
        "LongTensor": "minidl.Tensor(data, dtype='int64')",
        "is_tensor": "isinstance(t, minidl.Tensor)",
        "numel": "t.numel()",
        "jit": "minidl.compile",
        "Generator": "minidl.manual_seed(seed)",
        "seed": "minidl.manual_seed(seed)",
        "cuda": "device='cuda', or 'auto' for the best there is",
        "backends": "minidl.set_precision('fp32' | 'tf32' | '3xtf32' | 'bf16')",
        "utils": "minidl.data",
        "set_default_dtype": "net.to(dtype=...), Tensor(data, dtype=...)",
        "set_default_device": "device= where Tensors are made, net.to(device)",
        "amp": "minidl.set_precision('bf16')",
        "set_float32_matmul_precision": "minidl.set_precision('tf32')",
        "allclose": "numpy.allclose(x, y)",
        "meshgrid": "numpy.meshgrid, then minidl.Tensor",
        "bernoulli": "minidl.rand(shape) < p",
        "multinomial": "numpy.random.choice",
        "distributions": "minidl.randn and rand; a class by its logits: "
        "(x - (-minidl.rand_like(x).log()).log()).argmax(1)",
        "equal": "bool((x == y).all())",
        **_LOGICAL,
        "Size": "a tuple",
        "set_num_threads": "the environment variable MINIDL_NUM_THREADS, before the import",
        "functional": "minidl.ops",
    },
    "minidl.ops": {
        "cat": "ops.concatenate(tensors, axis)",
        "hardtanh": "ops.clip(x, -1, 1)",
        "relu6": "ops.clip(x, 0, 6)",
        "smooth_l1_loss": "ops.huber_loss(x, y, delta=beta) / beta",
        "binary_cross_entropy": "-(y * p.log() + (1 - y) * (1 - p).log()).mean()",
        "unfold": "ops.conv2d slides windows",
        "normalize": "x / x.norm(dim=1, keepdim=True)",
        "bmm": "ops.matmul(x, y)",
        "mm": "ops.matmul(x, y)",
        "cosine_similarity": "(x * y).sum(1) / (x.norm(dim=1) * y.norm(dim=1))",
        "logsigmoid": "ops.minimum(x, 0) - ((-x.abs()).exp() + 1).log()",
        "permute": "ops.transpose(x, axes)",
        "clamp": "ops.clip(x, low, high)",
        "chunk": "t.chunk(count, axis)",
        "amax": "ops.max(x, axis)",
        "amin": "ops.min(x, axis)",
    },
    "minidl.nn": {
        "ParameterList": "a list of Tensors",
        "ParameterDict": "a dict of Tensors",
        "LogSoftmax": "ops.log_softmax(x, axis) in forward",
        "Hardtanh": "ops.clip(x, -1, 1) in forward",
        "SmoothL1Loss": "nn.HuberLoss(delta=beta), over beta",
        "BCELoss": "-(y * p.log() + (1 - y) * (1 - p).log()).mean()",
        "ZeroPad2d": "ops.pad(x, widths) in forward",
        **dict.fromkeys(("Transformer", "TransformerEncoder", "TransformerEncoderLayer", "TransformerDecoderLayer"),
                        "nn.MultiheadAttention in a Module of your own"),
        "KLDivLoss": "ops.kl_div(log_q, p, reduction='batchmean')",
        "DataParallel": "one process per GPU: mpiexec -n 2 minidl train ..., see docs/distributed.md",
        "Bilinear": "matmul in forward",
        "Unflatten": "x.reshape(shape) in forward",
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
        "half": "minidl.set_precision('bf16')",
        "bfloat16": "minidl.set_precision('bf16')",
        "register_forward_hook": "call the layer in your own forward, and look at its result there",
        "register_full_backward_hook": "read .grad after backward()",
        "share_memory": "leave it out: threads share memory",
        "register_module": "net.name = module",
        "get_parameter": "dict(net.named_parameters())[path]",
        "type": "net.to(dtype=...)",
        "compile": "minidl.compile(step), of the whole training step",
    },
    "Optimizer": {
        "param_groups": "sgd.groups, sgd.group(name), or sgd.lr for one group",
        "add_param_group": "optim.SGD([*groups, group], lr)",
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
_MODULES = ("minidl", "minidl.ops", "minidl.nn", "minidl.optim", "minidl.data")


def missing(place: str, name: str) -> NoReturn:
    """Raise AttributeError that says what to write in place of a name."""
    advice = ADVICE[place].get(name)
    if advice is None and place in ("minidl", "minidl.ops") and name in _ON_NO_TAPE.split():
        advice = _NUMPY
    if advice is None and place != "minidl.ops" and callable(vars(ops).get(name)):
        advice = f"minidl.ops.{name}"
    if advice is None and place in ("minidl", "minidl.ops") and name[:1] != "_" and hasattr(Tensor, name):
        advice = f"t.{name}(...)"
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


class _Callable(ModuleType):
    """A module that is called as PyTorch's function of its name is."""

    def __call__(self, *arguments: object, **options: object) -> Any:
        return _CALLED[self.__name__](*arguments, **options)


_CALLED: dict[str, Any] = {"minidl.core.tensor": tensor, "minidl.core.device": resolve}


def attach() -> None:
    """Make modules and classes say what to write for a name that they do not have."""
    for place, owner in {"Tensor": Tensor, "Module": nn.Module, "Optimizer": optim.Optimizer,
                         "DataLoader": DataLoader}.items():
        setattr(owner, "__getattr__", _asked_of(place))  # noqa: B010  # type checkers shall not see it
    for place in _MODULES[1:]:             # minidl itself asks from its own __getattr__
        vars(sys.modules[place])["__getattr__"] = lambda name, place=place: missing(place, name)
    for name in _CALLED:
        sys.modules[name].__class__ = _Callable
