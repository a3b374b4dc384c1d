"""Every error of Tensor and the ops: its type and its words. No `raise` outside ops/cuda may be left out."""

from __future__ import annotations

import ast
import copy
import operator
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidl
from minidl import Tensor, nn, ops, optim
from minidl.core import device
from minidl.core.mode import no_grad
from minidl.ops import cpu
from minidl.ops.common import patterns, sources
from minidl.ops.common.backend import primitives_of
from minidl.ops.common.conv import own as own_conv
from minidl.ops.common.geometry import layouts
from minidl.ops.cpu import parallel
from minidl.training import top_k_accuracy

FOLDER = Path(minidl.__file__).parent
LAUNCH = own_conv.Launch(own_conv.OwnConv("mine", "mine.cu", "", False, {}, None, ""), np.dtype(np.float32))


def zeros(*shape: int, dtype: str = "float32", grad: bool = False) -> Tensor:
    return Tensor(np.zeros(shape, dtype), requires_grad=grad)


def conv(**options: Any) -> Tensor:
    return ops.conv2d(zeros(1, 1, 8, 8), zeros(1, 1, 3, 3), **options)


def attend(query: Any, key: Any, value: Any, *mask: Tensor, **options: Any) -> Tensor:
    return ops.scaled_dot_product_attention(zeros(*query), zeros(*key), zeros(*value), *mask, **options)


def same(k: Any, x: Tensor) -> Any:
    return x


def used_up() -> None:
    y = (zeros(2, grad=True) * 2).sum()
    y.backward()
    y.backward()


def changed_leaf() -> None:
    w = zeros(2, grad=True)
    sgd = optim.SGD([w], lr=0.1)
    (w * w).sum().backward()
    y = (w * w).sum()
    sgd.step()
    y.backward()


def constant() -> Tensor:
    x = zeros(2, grad=True)
    with no_grad():
        return x * 2


def cores(wanted: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIDL_NUM_THREADS", wanted)
        return parallel.threads.__wrapped__()


def without_cuda(call: Callable[[], Any]) -> Any:
    """A call on a machine that cannot compute with CUDA, whichever this one is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "_missing", lambda: "there is no GPU; use a machine that has one")
        return call()


@minidl.op
def keeps(k, x: Tensor):
    y = k.exp(k.mul(x, 2))                 # neither an input nor the result
    return k.add(y, 1), lambda gy, need: (k.mul(gy, k.mul(y, 2)),)


@minidl.op
def updates(k, x: Tensor):
    return k.mul(x, 2), lambda gy, need: (k.sgd(gy, gy, 0.1),)


INTS = Tensor(np.ones((1, 1, 1, 1), np.int64))
IMAGES = np.zeros((5, 1, 2, 2), np.uint8)


def changed_result() -> Tensor:
    """What was changed after its operation gave it to the tape."""
    y = ops.exp(zeros(2, grad=True))
    with minidl.no_grad():
        y += 1
    return y


class Alien:
    """An array of no backend."""

    shape, dtype = (1,), np.dtype("float32")


def elsewhere(t: Tensor) -> Tensor:
    """A Tensor whose array claims to live on another device: `Tensor.device` is decided by the array's type."""
    t._data = Alien()
    return t


MASKED = np.ma.masked_array([1.0, -999.0], mask=[False, True])


def own_op(backward: Callable[[Any], Any]) -> None:
    @minidl.op
    def own(k: Any, x: Any) -> Any:
        return k.neg(x), lambda gy, need: backward(gy)
    own(Tensor(np.ones((2, 3), np.float32), requires_grad=True)).sum().backward()


# what: (call, error, words)
NO: Any = "no"
FLAGS: list[tuple[object, str, Callable[[], Any]]] = [         # in the place of something else
    ("relu", "RNN: bias", lambda: nn.RNN(2, 3, bias="relu")),  # type: ignore[arg-type]
    (0.5, "LSTM: bias", lambda: nn.LSTM(2, 3, 2, 0.5)),        # type: ignore[arg-type]
    (None, "Conv1d: bias", lambda: nn.Conv1d(2, 3, 1, bias=None)),         # type: ignore[arg-type]
    ("no", "BatchNorm2d: affine", lambda: nn.BatchNorm2d(4, affine=NO)),
    ("no", "train: training", lambda: nn.Tanh().train(NO)),
    ("no", "requires_grad_: requires_grad", lambda: nn.Tanh().requires_grad_(NO)),
    ("yes", "requires_grad: requires_grad", lambda: zeros(2).requires_grad_("yes")),       # type: ignore[arg-type]
    (np.float64, "Tensor: requires_grad", lambda: Tensor([1.0], np.float64)),          # type: ignore[arg-type]
    ("no", "backward: create_graph", lambda: zeros(2).sum().backward(create_graph=NO)),
    ("stable", "sort: descending", lambda: zeros(2, 3).sort(0, "stable")),             # type: ignore[arg-type]
    ("stable", "argsort: descending", lambda: ops.argsort(zeros(2), 0, "stable")),     # type: ignore[arg-type]
    (np.float64, "sum: keepdims", lambda: zeros(2, 3).sum(0, np.float64)),             # type: ignore[arg-type]
    ("no", "logsumexp: keepdims", lambda: zeros(2, 3).logsumexp(0, NO)),
    ("no", "unique: sorted", lambda: zeros(2).unique(NO)),
    ("no", "dropout: training", lambda: ops.dropout(zeros(2), 0.5, NO)),
    ("no", "batch_norm: training", lambda: ops.batch_norm(zeros(2, 3), training=NO)),
    ("no", "kl_div: log_target", lambda: ops.kl_div(zeros(2), zeros(2), log_target=NO))]
NUMBERS: list[tuple[object, str, Callable[[], Any]]] = [
    (False, "BatchNorm2d: eps", lambda: nn.BatchNorm2d(4, False)), (True, "LeakyReLU: negative_slope",
                                                                   lambda: nn.LeakyReLU(True)),
    (True, "BatchNorm1d: momentum", lambda: nn.BatchNorm1d(4, 1e-5, True)),
    (True, "SGD: momentum", lambda: minidl.optim.SGD(nn.Linear(2, 3).parameters(), 0.1, True)),
    ("no", "Dropout: p", lambda: nn.Dropout(NO)), ("no", "ELU: alpha", lambda: nn.ELU(NO))]
ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a line of a pattern that is no call": (lambda: patterns.line("y = f(x"), ValueError,
                                            r"fuse: 'y = f\(x' is not a line of a rule; write it as"),
    # ---- Tensor
    "data is a Tensor": (lambda: Tensor(zeros(2, 3)), TypeError,
                         r"Tensor: data is a Tensor already \(shape \(2, 3\)\); use .detach\(\) or .to\(\)"),
    "ragged": (lambda: Tensor([[1.0], [1.0, 2.0]]), ValueError,
               r"Tensor: list data do not become an array \(.*\); pass numbers in nested lists of equal lengths"),
    "unknown dtype": (lambda: Tensor([1.0], dtype="flot"), TypeError,
                      r"Tensor: list data do not become an array \(.*flot.*\); .* and a NumPy dtype"),
    "text": (lambda: Tensor(["a"]), TypeError,
             r"Tensor: data has dtype <U1 but must be bool, integer or floating"),
    "complex": (lambda: Tensor([1j]), TypeError, "Tensor: data has dtype complex128 but must be"),
    **{f"masked, {name}": (call, ValueError, r"Tensor: data is masked at 1 of 2 places, and a Tensor has no mask; pass "
                                             r"data.filled\(number\), or leave these items out")
       for name, call in {
           "an array": lambda: Tensor(MASKED), "from_numpy": lambda: minidl.from_numpy(MASKED),
           "integers": lambda: Tensor(MASKED.astype(np.int64)), "matrices": lambda: Tensor(MASKED.reshape(2, 1)),
           "a column": lambda: minidl.tensor(MASKED), "another dtype": lambda: Tensor(MASKED, dtype="float32"),
           "in a list": lambda: Tensor([np.ones(2), MASKED]), "a row": lambda: Tensor((MASKED, MASKED)),
           "in nested lists": lambda: Tensor([[MASKED], [MASKED]]),
           "labels": lambda: ops.cross_entropy(zeros(2, 3), np.ma.masked_array([0, 1], mask=[True, False])),
           "ids": lambda: ops.embedding(np.ma.masked_array([0, 1], mask=[True, False]), zeros(3, 2)),
           "not a number": lambda: Tensor(np.ma.masked_invalid([1.0, np.nan])),
           "beyond a limit": lambda: Tensor(np.ma.masked_greater([1.0, 1e20], 1e10))}.items()},
    "integer gradient": (lambda: Tensor([1, 2], requires_grad=True), TypeError,
                         "Tensor: dtype int64 cannot require a gradient, only .* pass dtype='float32'"),
    "float16 gradient": (lambda: Tensor(np.ones(1, np.float16), requires_grad=True), TypeError,
                         "Tensor: dtype float16 cannot require a gradient"),
    "a leaf moved to integers": (lambda: zeros(2, grad=True).to("int64"), TypeError,
                                 "to: dtype int64 cannot require a gradient, only float32 and float64 can; call"),
    "data holds Tensors": (lambda: Tensor([zeros(2), zeros(2)]), TypeError,
                           "Tensor: data holds Tensors, whose gradients would be lost; join them with ops.concatenate"),
    "data set to a list": (lambda: setattr(zeros(2), "data", [1.0]), TypeError,
                           "data: got a list but a Tensor holds a NumPy or CuPy array in the machine's byte order; "),
    "a state with a masked array": (
        lambda: nn.Linear(2, 1).load_state_dict({"weight": MASKED.astype(np.float32)[None], "bias": np.zeros(1, "f4")}),
        ValueError, "load_state_dict: weight: data is masked at 1 of 2 places, and a Tensor has no mask"),
    "data set to a masked array": (lambda: setattr(zeros(2), "data", MASKED), ValueError,
                                   "data: data is masked at 1 of 2 places, and a Tensor has no mask"),
    "data set to another byte order": (lambda: setattr(zeros(2), "data", np.ones(2, ">f4")), TypeError,
                                       "data: got an array of >f4 but a Tensor holds .*; pass one, or write"),
    "an array of what needs a gradient": (lambda: np.linalg.norm(zeros(2, grad=True)), TypeError,
                                          r"numpy: a Tensor that requires a gradient \(shape \(2,\)\) does not become "
                                          "an array by itself, since .*; use an op of minidl.ops, or say t.numpy"),
    "grad set to an array": (lambda: setattr(zeros(2), "grad", np.zeros(2)), TypeError,
                             "grad: gradient is a ndarray but must be a Tensor; wrap it in minidl.Tensor"),
    "grad of another shape": (lambda: setattr(zeros(2), "grad", zeros(3)), ValueError,
                              r"grad: gradient has shape \(3,\) but the Tensor has shape \(2,\); they must be equal"),
    "deepcopy": (lambda: copy.deepcopy(zeros(2, grad=True) * 2), ValueError,
                 r"deepcopy: the Tensor \(shape \(2,\)\) was made by 'mul', and a graph cannot be copied; copy t.de"),
    "pickle": (lambda: pickle.dumps(zeros(2, grad=True) * 2), ValueError,
               r"pickle: the Tensor \(shape \(2,\)\) was made by 'mul', and a graph cannot be kept; keep t.detach"),
    "result changed": (lambda: changed_result().backward(zeros(2)), ValueError,
                       "backward: the result of 'exp' was changed in place after the operation was recorded; run the"),
    # ---- in place
    "setitem on the tape": (lambda: zeros(2, grad=True).__setitem__(0, 1.0), ValueError,
                            r"setitem: the tape records a Tensor of shape \(2,\), and cannot .* under minidl.no_grad"),
    "setitem shape": (lambda: zeros(2).__setitem__(slice(None), zeros(3)), ValueError,
                      r"setitem: could not broadcast .* \(x \(2,\), index slice\(None, None, None\), value \(3,\)\)"),
    "setitem index": (lambda: zeros(2).__setitem__(5, 1.0), IndexError,
                      r"setitem: .* out of bounds .* \(x \(2,\), index 5, value \(\)\); the value must fit the place"),
    "isub of a leaf": (lambda: zeros(2, grad=True).__isub__(1.0), ValueError,
                       r"isub: the Tensor \(shape \(2,\)\) requires a gradient and the tape records, .* minidl.no_"),
    "iadd grows": (lambda: zeros(2).__iadd__(zeros(3, 2)), ValueError,
                   r"iadd: the result is \(3, 2\) float32 but must fit in place of \(2,\) float32; write x = x op y"),
    "a reduction's option": (lambda: zeros(2, 3).sum(order=1), TypeError,
                             r"sum: does not take order; it takes axis, keepdims, as in t.sum\(axis=1\)$"),
    "axis and dim of a method": (lambda: zeros(2, 3).sum(0, dim=1), TypeError,
                                 "sum: axis is given twice, as 0 and 1; give it once$"),
    "keepdims by place and keepdim": (lambda: zeros(2, 3).sum(1, True, keepdim=False), TypeError,
                                      "sum: keepdims is given twice, as True and False; give it once$"),
    "float16": (lambda: Tensor(np.ones(2, np.float16)).sum(), TypeError,
                r"sum: an input has dtype float16, in which nothing is computed; convert it with .to\(dtype='flo"),
    "a number that a dtype has not": (lambda: Tensor(np.ones(2, np.uint8)) + 300, OverflowError,
                                      r"add: of uint8 and int: .*; convert with .to\(dtype=...\)"),
    "a difference of masks": (lambda: Tensor([True]) - Tensor([False]), TypeError, "sub: of bool and bool: .*; conv"),
    "a norm that is not Euclid's": (lambda: zeros(2, 3).norm(1), ValueError,
                                    "norm: p is 1 but must be 2, the Euclidean norm; an axis goes by name, axis=1"),
    "a place where PyTorch has another option": (lambda: ops.var(zeros(2, 3), 1, False), TypeError,
                                                 "var: takes keepdims and correction by name alone, since PyTorch's "
                                                 ".*; write keepdims=..."),
    "the pairs of PyTorch's max": (lambda: zeros(2, 3).max(dim=1), TypeError,
                                   r"max: gives the values alone, and PyTorch's max\(dim\) gives \(values, indices\); "
                                   r"write max\(axis=...\), and argmax\(axis=...\) for the indices"),
    "axis by name and dim of a method": (lambda: zeros(2, 3).var(axis=0, dim=1), TypeError,
                                         "var: axis is given twice, as 0 and 1; give it once$"),
    "another ufunc": (lambda: np.arctan(zeros(2)), TypeError,
                      r"np.arctan: is not computed on Tensors; use an op of minidl.ops, or t.numpy\(\)"),
    "len": (lambda: len(Tensor(1.0)), TypeError, r"len: a Tensor of shape \(\) has no length; .*see .item\(\)"),
    "iter": (lambda: list(Tensor(1.0)), TypeError, r"len: a Tensor of shape \(\) has no length"),
    "item": (lambda: zeros(2, 3).item(), ValueError,
             r"item: the Tensor has 6 values \(shape \(2, 3\)\) but .* 1; use"),
    "float": (lambda: float(zeros(2)), ValueError, "item: the Tensor has 2 values"),
    "bool": (lambda: bool(zeros(2)), ValueError,
             r"bool: the truth of a Tensor with 2 values \(shape \(2,\)\) .*any"),
    "to": (lambda: (zeros(2, grad=True) * 2).to(dtype="float64"), ValueError,
           "to: the Tensor was made by 'mul' and no gradient would flow back .* move the inputs instead"),
    "format": (lambda: f"{zeros(2):.3f}", ValueError, "item: the Tensor has 2 values"),
    "logits of a tuple": (lambda: ops.cross_entropy((zeros(2, 3), zeros(2, 3)), [0, 1]), TypeError,
                          r"cross_entropy: logits is a tuple but must be a Tensor \(n, classes\); of a net with"),
    "second derivative of a value that a closure kept": (
        lambda: keeps(zeros(1, grad=True)).sum().backward(create_graph=True), ValueError,
        r"backward: create_graph=True: the closure of 'keeps' kept an array of shape \(1,\).*compute it in the clo"),
    "second derivative of two Tensors of one array": (
        lambda: [x := zeros(2, grad=True), (Tensor(x.data) * x).sum().backward(create_graph=True)], ValueError,
        r"backward: create_graph=True: two inputs of 'mul' are Tensors of one array \(shape \(2,\)\), and it is not "
        r"known which one its gradient depends on; pass one of them as t.clone\(\)"),
    "second derivative of a primitive without a rule": (
        lambda: updates(zeros(1, grad=True)).sum().backward(create_graph=True), ValueError,
        "backward: create_graph=True: the gradient of 'updates' calls 'sgd', whose own gradient is not known"),
    "second derivative of a product of many": (
        lambda: ops.prod(zeros(5000, grad=True)).backward(create_graph=True), ValueError,
        "backward: create_graph=True: the gradient of a product of 5000 values, 1 times, takes 25000000 numbers; "
        r".*exp\(sum\(log\(x\)\)\)"),
    "no gradient": (lambda: constant().backward(), ValueError,
                    r"backward: this Tensor \(shape \(2,\)\) does not require a gradient; "
                    r"compute it from a Tensor"),
    "seed missing": (lambda: (zeros(2, 3, grad=True) * 2).backward(), ValueError,
                     r"backward: the Tensor has 6 values \(shape \(2, 3\)\), so its gradient must be given"),
    "seed no Tensor": (lambda: (zeros(2, grad=True) * 2).backward(np.ones(2)), TypeError,  # type: ignore[arg-type]
                       "backward: gradient is a ndarray but must be a Tensor; wrap it"),
    "seed shape": (lambda: (zeros(2, grad=True) * 2).backward(zeros(3)), ValueError,
                   r"backward: gradient has shape \(3,\) but the Tensor has shape \(2,\); they must be equal"),
    "seed dtype": (lambda: (zeros(2, grad=True) * 2).backward(zeros(2, dtype="float64")), ValueError,
                   "backward: gradient has dtype float64 but the Tensor has dtype float32"),
    "used up": (used_up, ValueError,
                "backward: the graph through 'sum' was already used by an earlier .*retain_graph"),
    "changed": (changed_leaf, ValueError,
                r"backward: an input of 'mul' \(shape \(2,\)\) was changed in place .* run "
                r"the forward pass again"),
    # ---- devices, randomness
    "cuda": (lambda: without_cuda(lambda: Tensor([1.0], device="cuda")), ValueError,
             "device: 'cuda' was asked for but there is no GPU; .*, or use device 'cpu'"),
    "to cuda": (lambda: without_cuda(lambda: zeros(1).to("cuda")), ValueError, "device: 'cuda' was asked for"),
    "device": (lambda: Tensor([1.0], device="gpu"), ValueError, "device: 'gpu' is not one of auto, cpu, cuda"),
    "device_of": (lambda: device.device_of([1]), TypeError,
                  "device: a list is not an array of a known device; pass a numpy"),
    "precision": (lambda: minidl.set_precision("fp16"), ValueError,
                  "set_precision: precision 'fp16' is not one of fp32, 3xtf32, tf32, bf16"),
    "workspace": (lambda: minidl.set_workspace_limit(2**20 - 1), ValueError,
                  r"set_workspace_limit: limit is 1048575 but must be an int of at least 1048576 \(bytes\)"),
    "workspace 1e9": (lambda: minidl.set_workspace_limit(1e9), ValueError,  # type: ignore[arg-type]
                      "set_workspace_limit: limit is 1000000000.0 but must be an int"),
    "backend": (lambda: primitives_of([1.0]), TypeError,
                "ops: no backend computes on a list; pass a Tensor made from"),
    "numbers alone": (lambda: ops.add(1, 2), TypeError,
                      "add: got no Tensor but needs at least one; wrap an input in minidl.Tensor"),
    "seed": (lambda: minidl.manual_seed(-1), ValueError,
             r"manual_seed: seed is -1 but must be an int in \[0, 2\*\*64\)"),
    "state of the stream": (lambda: minidl.core.rng.set_state((0, -1)), ValueError,
                            r"set_state: state is \(0, -1\) but must be \(seed, counter\), ints in "),
    "no such kernel": (lambda: sources.parameters("", "scale"), ValueError,
                       r"kernel: there is no __global__ void scale\(...\) in the source; correct the name"),
    "no such struct": (lambda: sources.struct("Nothing"), ValueError,
                       r"kernel: there is no struct Nothing \{...\}; in the sources; correct the name"),
    "seed 1.5": (lambda: minidl.manual_seed(1.5), ValueError,  # type: ignore[arg-type]
                 "manual_seed: seed is 1.5 but must be an int"),
    **{f"threads {wanted!r}": (lambda wanted=wanted: cores(wanted), ValueError,  # type: ignore[misc]
                               f"MINIDL_NUM_THREADS: '{wanted}' is not an int of at least 1; unset it")
       for wanted in ("0", "-1", "two", "")},
    # ---- any op
    "array": (lambda: zeros(2) + np.ones(2), TypeError,
              r"add: an input is a numpy.ndarray but must be a Tensor or a plain number; "
              r"wrap it in minidl.Tensor"),
    "array, left": (lambda: np.ones(2) * zeros(2), TypeError,
                    "mul: an input is a numpy.ndarray but must be a Tensor"),
    "array @": (lambda: np.ones((2, 2)) @ zeros(2, 2), TypeError, "matmul: an input is a numpy.ndarray but"),
    "list": (lambda: zeros(2) - [1, 2], TypeError,
             "sub: an input is a builtins.list but must be a Tensor or a plain"),
    "None": (lambda: ops.eq(zeros(2), None), TypeError,
             "eq: an input is a builtins.NoneType but must be a Tensor or"),
    "number": (lambda: ops.linear(zeros(2, 2), 3.0), TypeError,
               r"linear: an input is a builtins.float but must be a Tensor; wrap it"),
    "complex number": (lambda: zeros(2) * 1j, TypeError, "mul: an input is a builtins.complex but must be"),
    "dtypes": (lambda: zeros(2) + zeros(2, dtype="float64"), TypeError,
               r"add: inputs have dtypes float32 and float64; convert them to one with .to\(dtype=...\)"),
    "devices": (lambda: zeros(1) + elsewhere(zeros(1)), ValueError,
                r"add: inputs are on devices cpu and elsewhere; move them to one with .to\(\)"),
    "a gelu that there is not": (lambda: ops.gelu(zeros(1), "sigmoid"), ValueError,
                                 "gelu: approximate is 'sigmoid' but must be 'none' or 'tanh'"),
    "an own algorithm that there is not": (
        lambda: ops.linear(zeros(1, 2), zeros(1, 2), algorithm="mine"), ValueError,
        "linear: algorithm 'mine' is not one of auto; your own is registered by minidl.register_linear, register_pool "
        "or register_activation"),
    "a symbol that there is not": (
        lambda: LAUNCH.copy_to_symbol("F", zeros(1)), ValueError,
        "mine: mine.cu declares no __constant__ and no __device__ memory 'F'; correct the name"),
    "too many inputs": (lambda: ops.softplus(zeros(1), zeros(1)), TypeError,
                        "softplus: got 2 positional arguments and none by name, but takes x; give each once"),
    "an option twice": (lambda: ops.sum(zeros(2, 3), 1, axis=0), TypeError,
                        "sum: got 2 positional arguments and axis by name, but takes x, axis, keepdims; give each"),
    "axis by place and dim": (lambda: ops.sum(zeros(2, 3), 0, dim=1), TypeError,
                              "sum: got 2 positional arguments and axis by name, but takes x, axis, keepdims; give"),
    "axis and dim": (lambda: ops.sum(zeros(2, 3), axis=0, dim=1), TypeError,
                     "sum: axis is given twice, as 0 and 1; give it once$"),
    "size and kernel_size": (lambda: ops.max_pool2d(zeros(1, 1, 4, 4), 2, kernel_size=4), TypeError,
                             "max_pool2d: got 2 positional arguments and size by name"),
    "low and min": (lambda: ops.clip(zeros(2), low=1, min=3), TypeError,
                    "clip: low is given twice, as 1 and 3; give it once$"),
    "too few inputs": (lambda: ops.linear(zeros(1, 1)), TypeError,
                       r"linear: got 1 inputs but 'w' is missing; it takes x, w, b"),
    # ---- launchers of one's own
    "no blocks": (lambda: LAUNCH("k", 0, 32), ValueError,
                  r"mine: the grid of k is \(0,\) but must be 1 to 3 ints of at least 1; -\(-count // threads\)"),
    "too many threads": (lambda: LAUNCH("k", 1, (64, 32)), ValueError,
                         r"mine: k has the grid \(1,\) and the block \(64, 32\), but a block has at most 1024 threads"),
    # ---- by PyTorch's names
    "reshape order": (lambda: zeros(2, 3).reshape(6, order="F"), ValueError,
                      "reshape: order 'F' is not 'C', in which values are read here; transpose first"),
    "expand": (lambda: zeros(2, 3).expand(4, 3), ValueError,
               r"expand: shape \(2, 3\) does not broadcast to \(4, 3\); from the right, sizes must be equal or"),
    "expand to fewer axes": (lambda: zeros(2, 3).expand(3), ValueError,
                             r"expand: shape \(2, 3\) does not broadcast to \(3,\)"),
    "pad": (lambda: ops.pad(zeros(2, 3), (1, 2, 3)), ValueError,
            r"pad: widths \(1, 2, 3\) do not fit shape \(2, 3\); give ints of at least 0, two for each axis from"),
    "pad by pairs": (lambda: ops.pad(zeros(2, 3), ((1, 1), (2, 2))), ValueError, "pad: widths"),
    "gather": (lambda: zeros(2, 3).gather(1, zeros(2, dtype="int64")), ValueError,
               r"gather: x has shape \(2, 3\) and index \(2,\) but both must have as many axes"),
    "gather by a mask": (lambda: zeros(3).gather(0, zeros(3, dtype="bool")), TypeError,
                         r"gather: index has dtype bool but must be integers; with a mask, use x\[mask\]"),
    "gather by floats": (lambda: ops.gather(zeros(2, 3), 1, np.zeros((2, 1))), TypeError,
                         "gather: index has dtype float64 but must be integers; with a mask, use"),
    "gather by a number": (lambda: ops.gather(zeros(2, 3), 1, 1), TypeError,
                           r"gather: index is a int but must be integers; with a mask, use x\[mask\]"),
    "dropout of an array in evaluation": (lambda: ops.dropout(np.ones(3), 0.5, False), TypeError,
                                          "dropout: an input is a numpy.ndarray but must be a Tensor; wrap it in min"),
    "dropout2d of a list": (lambda: ops.dropout2d([1.0], 0.5, False), TypeError,
                            "dropout2d: an input is a builtins.list but must be a Tensor; wrap it in minidl.Tensor"),
    "einsum of one array": (lambda: ops.einsum("ij", np.ones((2, 2))), TypeError,
                            "einsum: an input is a numpy.ndarray but must be a Tensor; wrap it in minidl.Tensor"),
    "where of a number": (lambda: ops.where(True, zeros(2), 1.0), TypeError,
                          "where: an input is a builtins.bool but must be a Tensor; wrap it in minidl.Tensor"),
    "unique of an array": (lambda: ops.unique(np.ones(2)), TypeError,
                           "unique: an input is a numpy.ndarray but must be a Tensor; wrap it in minidl.Tensor"),
    "float_power": (lambda: np.float_power(zeros(3, dtype="int64"), 2), TypeError,
                    r"np.float_power: is not computed on Tensors; use an op of minidl.ops, or t.numpy\(\)"),
    "select by a boolean": (lambda: zeros(2, 3).select(1, True), TypeError,
                            r"select: index is True but must be an int; for several, see \.index_select\(\)"),
    "gather of more": (lambda: zeros(2, 3).gather(1, zeros(3, 1, dtype="int64")), IndexError,
                       r"gather: index has shape \(3, 1\), which is larger than x \(2, 3\) outside axis 1; it may be "),
    "gather out of range": (lambda: ops.gather(zeros(2, 3), 1, np.full((2, 1), 3)), IndexError,
                            r"gather: .*out of bounds .*\(shape \(2, 3\)\); index within the shape"),
    "select by NumPy's boolean": (lambda: zeros(2, 3).select(-1, np.True_), TypeError, "select: index is .*True"),
    "select by a comparison": (lambda: zeros(2, 3).select(0, zeros() == 0), TypeError, "select: index is Tensor"),
    "select by a slice": (lambda: zeros(2, 3).select(0, slice(1)), TypeError, r"select: index is slice\(None, 1"),
    "stack": (lambda: ops.stack([zeros(2), zeros(3)]), ValueError,
              r"stack: got Tensors of shapes \(2,\), \(3,\); give at least 1, all of one shape"),
    **{f"{join.__name__} of {given!r}": (
        (lambda join=join, given=given: join(given)), TypeError,
        f"{join.__name__}: an input is a {kind} but must be a Tensor; wrap it in")
       for join in (ops.stack, ops.concatenate)
       for given, kind in ((5, "builtins.int"), ([zeros(2), "a"], "builtins.str"), ([np.ones(2)], "numpy.ndarray"))},
    "linspace from a flag": (lambda: minidl.linspace(True, 2, 3), ValueError,
                             "linspace: start is True but must be a number; a flag goes by its name"),
    "arange of a flag": (lambda: minidl.arange(0, True), ValueError, "arange: end is True but must be a number; a"),
    "stack of none": (lambda: ops.stack([]), ValueError, "stack: got Tensors of shapes none; give at least 1"),
    "randint of a fraction": (lambda: minidl.randint(0, 2.5, (3,)), ValueError,  # type: ignore[arg-type]
                              "randint: high is 2.5 but must be an int of at least 1"),
    "randint from a fraction": (lambda: minidl.randint(0.5, 2, 3), ValueError,  # type: ignore[arg-type]
                                "randint: low is 0.5 but must be an int"),
    "randint of nothing": (lambda: minidl.randint(3, 3, 2), ValueError, "randint: high is 3 but must be an int of"),
    "randint of a bool": (lambda: minidl.randint(0, True, 2), ValueError, "randint: high is True but must be an int"),
    "randint in a fraction": (lambda: minidl.randint(0, 2, (2.0,)), ValueError,  # type: ignore[arg-type]
                              "randint: a size is 2.0 but must be an int of at least 0"),
    "randint of too many bits": (lambda: minidl.randint(0, 2**63, 2), ValueError,
                                 r"randint: low and high are 0 and 9223372036854775808 but must be from -2\*\*63"),
    "rand of half precision": (lambda: minidl.rand(2, dtype="float16"), TypeError,
                               "rand: dtype is float16 but must be float32 or float64; convert with"),
    "randn_like integers": (lambda: minidl.randn_like(zeros(2, dtype="int64")), TypeError,
                            "randn: dtype is int64 but must be float32 or float64; convert with"),
    "randperm of a bool": (lambda: minidl.randperm(True), ValueError, "randperm: n is True but must be an int of at"),
    "randperm below 0": (lambda: minidl.randperm(-1), ValueError, "randperm: n is -1 but must be an int of at least 0"),
    "randperm of a float": (lambda: minidl.randperm(3.0), ValueError, "randperm: n is 3."),  # type: ignore[arg-type]
    "linspace of a fraction": (lambda: minidl.linspace(0, 1, 2.5), ValueError,  # type: ignore[arg-type]
                               "linspace: steps is 2.5 but must be an int of at least 0"),
    **{f"{make.__name__} of {size!r}": ((lambda make=make, size=size: make(size)), ValueError,
                                        f"{make.__name__}: a size is {size!r} but must be an int of at least 0")
       for make in (minidl.zeros, minidl.ones, minidl.rand, minidl.randn, minidl.eye) for size in (2.0, True, -1)},
    "full of a fraction": (lambda: minidl.full((2.5,), 1.0), ValueError,  # type: ignore[arg-type]
                           "full: a size is 2.5 but must be an int of at least 0"),
    "transpose by booleans": (lambda: ops.transpose(zeros(2, 3), (True, False)), ValueError,
                              r"transpose: axes \(True, False\) are not a permutation of the 2 axes"),
    "reshape by booleans": (lambda: zeros(2, 3).reshape(True, 6), ValueError,
                            r"reshape: 6 values of shape \(2, 3\) do not fill shape \(True, 6\)"),
    "topk of a bool": (lambda: zeros(2, 3).topk(True), ValueError, "topk: k is True but axis 1 of shape"),
    "topk of a float": (lambda: zeros(2, 3).topk(2.0), ValueError, "topk: k is 2.0 bu"),  # type: ignore[arg-type]
    "pad by booleans": (lambda: ops.pad(zeros(2, 3), (True, 1)), ValueError, r"pad: widths \(True, 1\) do not fit"),
    "a stride of True": (lambda: conv(stride=True), ValueError, "conv2d: stride is True but must be an int or a pair"),
    "a padding of True": (lambda: conv(padding=True), ValueError, "conv2d: padding is True but must be p"),
    "groups of True": (lambda: conv(groups=True), ValueError, "conv2d: groups is True but must be an int of at least"),
    **{f"a flag that is {value!r}, of {what}": ((lambda call=call: call()), ValueError,
                                                f"{what} is {re.escape(repr(value))} but must be True or False")
       for value, what, call in FLAGS},
    **{f"{what} is {value!r}": ((lambda call=call: call()), ValueError, f"{what} is {value!r} but must be a number")
       for value, what, call in NUMBERS},
    "features of True": (lambda: minidl.nn.Linear(True, 2), ValueError, "Linear: in_features is True but must be an i"),
    "expand to a float": (lambda: ops.expand(zeros(2, 1), (2, 3.0)), ValueError,  # type: ignore[arg-type]
                          r"expand: shape \(2, 1\) does not broadcast to \(2, 3.0\); from the right, sizes must be e"),
    "layer_norm of a float": (lambda: ops.layer_norm(zeros(2, 3), 3.0), ValueError,  # type: ignore[arg-type]
                              "layer_norm: normalized_shape is 3.0 but the last axes of x are"),
    "an ignored fraction": (lambda: ops.cross_entropy(zeros(2, 3), [0, 1], ignore_index=1.5), ValueError,
                            "cross_entropy: ignore_index is 1.5 but must be an int, a label"),
    "an ignored bool": (lambda: ops.nll_loss(zeros(2, 3), [0, 1], ignore_index=True), ValueError,
                        "nll_loss: ignore_index is True but must be an int, a label"),
    "a metric's labels": (lambda: top_k_accuracy(1)(zeros(4, 3), zeros(4, 1)), ValueError,
                          r"top_k_accuracy: logits have shape \(4, 3\) and labels \(4, 1\) but must be \(n,class"),
    "derivatives by integers": (lambda: minidl.jacobian(lambda x: x.float() ** 2, Tensor([1, 2])), TypeError,
                                "jacobian: input 0 has dtype int64 but must be float32 or float64"),
    "a metric's ignored fraction": (lambda: top_k_accuracy(1, 1.5), ValueError,  # type: ignore[arg-type]
                                    "top_k_accuracy: ignore_index is 1.5 but must be an int, a label"),
    "repeat below 0": (lambda: zeros(2).repeat(-1), ValueError,
                       r"repeat: counts are \(-1,\) but must be ints of at least 0"),
    "repeat by a fraction": (lambda: zeros(2).repeat(1.5), ValueError,  # type: ignore[arg-type]
                             r"repeat: counts are \(1.5,\) but must be ints"),
    "logsumexp of integers": (lambda: zeros(2, dtype="int64").logsumexp(0), TypeError,
                              "logsumexp: the input has dtype int64 but must be float32 or float64; convert it with"),
    "logsumexp of float16": (lambda: zeros(2, dtype="float16").logsumexp(0), TypeError,
                             "logsumexp: the input has dtype float16 but must be float32 or float64"),
    "logsumexp of nothing": (lambda: zeros(0).logsumexp(0), ValueError,
                             r"logsumexp: there is no sum of 0 values \(shape \(0,\), axis \(0,\)\); reduce over axes"),
    "a Tensor for an axis": (lambda: ops.softmax(zeros(2), zeros(3)), TypeError,
                             r"softmax: the axis is a Tensor of shape \(3,\) but must be an int; several Tensors are "),
    "arange's step": (lambda: minidl.arange(0, 5, 0.0), ValueError,
                      "arange: step is 0.0 but must be a number above or below 0"),
    "an op without a gradient": (lambda: minidl.op(same)(zeros(2, 3)), TypeError,
                                 r"same: its body returns one value \(ndarray\) but must return \(y, backward\)"),
    "an op's gradients": (lambda: own_op(lambda gy: gy), TypeError,
                          r"own: its backward returns one value \(ndarray\) but must return a tuple of 1: a gradient"),
    "an op's gradient": (lambda: own_op(lambda gy: (gy[0],)), ValueError,
                         r"own: its backward returns float32 of shape \(3,\) for input 0, which is float32 of shape "),
    "weights of classes that learn": (
        lambda: ops.cross_entropy(zeros(2, 3), [0, 1], weight=Tensor([1.0, 2.0, 3.0], requires_grad=True)), ValueError,
        r"cross_entropy: weight \(shape \(3,\)\) requires a gradient, and the loss has none by it; pass weight"),
    "an index of masks": (lambda: zeros(2, 3).index_select(0, Tensor([True, False])), TypeError,
                          r"index_select: index has dtype bool and shape \(2,\) but must be one row of integers"),
    "an index that is a number": (lambda: zeros(2, 3).index_select(1, Tensor(1)), TypeError,
                                  r"index_select: index has dtype int64 and shape \(\) but must be one row"),
    "a number that integers do not hold": (
        lambda: Tensor([1, 2]).masked_fill(Tensor([True, False]), 2.7), TypeError,
        "masked_fill: value is 2.7 but must be a number of int64, the dtype of x; convert x first"),
    "a mask of integers": (lambda: zeros(2).masked_fill(Tensor([1, 0]), 0.0), TypeError,
                           "masked_fill: an input is of dtype int64 but must be a bool Tensor"),
    "a selection by integers": (lambda: zeros(2).masked_select(Tensor([1, 0])), TypeError,
                                "masked_select: an input is of dtype int64 but must be a bool Tensor"),
    "a mask that does not fit": (lambda: zeros(2, 3).masked_select(Tensor([True, False])), ValueError,
                                 r"masked_select: shapes \(2, 3\) and \(2,\) do not broadcast"),
    "a number that a byte does not hold": (lambda: zeros(2, dtype="uint8").__setitem__(0, 300), OverflowError,
                                           "setitem: Python integer 300 out of bounds for uint8 "),
    "amax's axis": (lambda: zeros(2).amax(3), ValueError, r"amax: axis 3 is out of range for a Tensor of shape \(2,\)"),
    "amin's axis": (lambda: zeros(2).amin(True), ValueError, "amin: axis True is out of range for a Tensor of shape"),
    "compile of nothing": (lambda: minidl.compile(None), TypeError,  # type: ignore[arg-type]
                           "compile: the step is a NoneType but must be a function"),
    "split into floats": (lambda: ops.split(zeros(4), 2.0), ValueError,  # type: ignore[arg-type]
                          "split: size 2.0 of a part must be at least 1, an int"),
    "split into fractions": (lambda: ops.split(zeros(4), [1.5, 2.5]), ValueError,  # type: ignore[list-item]
                             r"split: sizes \[1.5, 2.5\] do not add up to the 4 of axis 0 \(shape \(4,\)\); give ints"),
    "split size": (lambda: ops.split(zeros(3), 0), ValueError, "split: size 0 of a part must be at least 1"),
    "split sizes": (lambda: ops.split(zeros(3), [1, 1]), ValueError,
                    r"split: sizes \[1, 1\] do not add up to the 3 of axis 0 \(shape \(3,\)\)"),
    "clip without bounds": (lambda: ops.clip(zeros(2)), ValueError,
                            "clip: got neither low nor high; give one of them, or both"),
    "clip by a Tensor": (lambda: ops.clip(zeros(2), zeros(2)), TypeError,
                         r"clip: a bound is a Tensor but must be a plain number; write ops.minimum\(ops.maximum\(x"),
    "min": (lambda: ops.min(zeros(0, 3), axis=0), ValueError,
            r"min: there is no smallest of 0 values \(shape \(0, 3\), axis 0\); reduce over axes that are not"),
    "argmin": (lambda: ops.argmin(zeros(0, 3), 0), ValueError,
               r"argmin: there is no smallest of 0 values \(shape \(0, 3\), axis 0\); search an axis that is not"),
    "var of one": (lambda: zeros(1).var(), ValueError,
                   r"var: 1 values \(shape \(1,\), axes \(0,\)\) have none with correction 1; .* or pass correction=0"),
    "repeat": (lambda: zeros(2, 3).repeat(2), ValueError,
               r"repeat: got 1 counts for the 2 axes of shape \(2, 3\); give one for each axis"),
    "swapaxes": (lambda: zeros(2, 3).swapaxes(0, 2), ValueError,
                 r"swapaxes: axis 2 is out of range for a Tensor of shape \(2, 3\); use an int from -2 to 1"),
    "sum of uint64": (lambda: zeros(2, dtype="uint64").sum(), TypeError,
                      r"sum: the input has dtype uint64, whose sums int64 may not hold; convert it with .to\(dtype="),
    "narrow": (lambda: zeros(2, 3).narrow(1, 1, 9), ValueError,
               r"narrow: start 1 and length 9 leave axis 1 of shape \(2, 3\); use a range within its 3 values"),
    "topk": (lambda: zeros(2, 3).topk(4), ValueError,
             r"topk: k is 4 but axis 1 of shape \(2, 3\) has 3 values; use an int from 0 to that"),
    "chunk": (lambda: zeros(2, 3).chunk(0), ValueError, "chunk: count is 0 but must be at least 1, a number of parts"),
    "axis of True": (lambda: zeros(2, 3).sum(True), ValueError, "sum: axis True is out of range"),
    "t": (lambda: zeros(2, 3, 4).t(), ValueError,
          r"t: the Tensor has 3 axes \(shape \(2, 3, 4\)\) but must have at most 2; see .swapaxes"),
    "requires_grad_ of a result": (lambda: (zeros(2, grad=True) * 2).requires_grad_(False), ValueError,
                                   r"requires_grad: the Tensor was made by 'mul'; set it on a leaf, or on .detach"),
    "retain_grad of no gradient": (lambda: zeros(2).retain_grad(), ValueError,
                                   "retain_grad: the Tensor does not require a gradient; make what it is computed of"),
    "requires_grad_ of integers": (lambda: Tensor([1]).requires_grad_(), TypeError,
                                   "requires_grad: dtype int64 cannot require a gradient, only float32 and float64"),
    "and": (lambda: Tensor([True]) & zeros(1), TypeError,
            r"and: an input is of dtype float32 but must be a bool Tensor; compare first, \(x > 0\) & \(y > 0\)"),
    "invert a number": (lambda: True ^ Tensor([1]), TypeError, "xor: an input is of dtype int64 but must be a bool"),
    "floor_divide of a mask": (lambda: zeros(1, dtype="bool") // 2, TypeError,
                               r"floor_divide: an input has dtype bool but must hold numbers; .*\(dtype='int64'\)"),
    "mod of shapes": (lambda: zeros(2) % zeros(3), ValueError, r"remainder: shapes \(2,\) and \(3,\) do not broadcast"),
    "sign of a mask": (lambda: zeros(1, dtype="bool").sign(), TypeError, r"sign: of bool: ufunc .*; convert with .to"),
    "an array beside the tape": (lambda: np.add(zeros(2, grad=True), 1, out=np.zeros(2)), TypeError,
                                 r"np.add: an array would take the values of a Tensor that requires a gradient, which "
                                 r"the tape would not see; add Tensors, total = total \+ t, or pass t.detach\(\)"),
    "tril of a vector": (lambda: ops.tril(zeros(2)), ValueError,
                         r"tril: x has shape \(2,\) but must have at least 2 axes, the last two a matrix; see"),
    "triu of a fraction": (lambda: zeros(2, 2).triu(0.5), ValueError,  # type: ignore[arg-type]
                           "triu: diagonal is 0.5 but must be an int: 0 is the main one, 1 the next above it"),
    "a required option": (lambda: ops.expand(zeros(2)), TypeError, "expand: lacks 'shape'; give it by name"),
    "one_hot of floats": (lambda: ops.one_hot(zeros(2), 3), TypeError,
                          r"one_hot: labels have dtype float32 but must be integers; convert them with .to\(dtype='in"),
    "one_hot of no classes": (lambda: ops.one_hot([0], 0), ValueError,
                              "one_hot: num_classes is 0 but must be an int of at least 1, or -1 for labels"),
    "one_hot out of range": (lambda: ops.one_hot([[0, 3]], 3), ValueError,
                             "one_hot: label 3 at position 1 is out of range for 3 classes; labels must be 0 to 2"),
    "one_hot of negative labels": (lambda: ops.one_hot([-1]), ValueError,
                                   "one_hot: num_classes is 0 but must be an int"),
    "padding by another word": (lambda: conv(padding="full"), ValueError,
                                "conv2d: padding 'full' is not 'same' or 'valid'; write it in numbers"),
    "padding same of a stride": (lambda: conv(padding="same", stride=2), ValueError,
                                 r"conv2d: padding is 'same' but stride is \(2, 2\), by which .*; use stride 1, or"),
    "conv3d of images": (lambda: ops.conv3d(zeros(1, 1, 2, 2), zeros(1, 1, 2, 2)), ValueError,
                         r"conv3d: x has shape \(1, 1, 2, 2\), w \(1, 1, 2, 2\) and groups is 1 but they must be"),
    "conv3d of other channels": (lambda: ops.conv3d(zeros(1, 3, 2, 2, 2), zeros(1, 2, 1, 1, 1)), ValueError,
                                 "conv3d: x has shape"),
    "conv3d too deep": (lambda: ops.conv3d(zeros(1, 1, 2, 2, 2), zeros(1, 1, 3, 1, 1)), ValueError,
                        "conv3d: the window is 3 deep, more than the 2 planes of the padded input; use a smaller wind"),
    "conv3d by a pair": (lambda: ops.conv3d(zeros(1, 1, 2, 2, 2), zeros(1, 1, 1, 1, 1), stride=(1, 2)), ValueError,
                         r"conv3d: stride is \(1, 2\) but must be an int or a triple of ints \(depth, height, width\)"),
    "dropout2d of rows": (lambda: ops.dropout2d(zeros(2, 3)), ValueError,
                          r"dropout2d: x has shape \(2, 3\) but must have 4 axes \(n,c,h,w\); see .reshape"),
    "dropout2d of all": (lambda: ops.dropout2d(zeros(1, 1, 1, 1), 1), ValueError,
                         r"dropout2d: p is 1 but must be in \[0"),
    # ---- arithmetic, reductions, shapes
    "broadcast": (lambda: zeros(2, 3) + zeros(2), ValueError,
                  r"add: shapes \(2, 3\) and \(2,\) do not broadcast; from the right, .* see .reshape\(\)"),
    **{f"broadcast {name}": (lambda name=name: getattr(ops, name)(zeros(2, 3), zeros(4)),  # type: ignore[misc]
                             ValueError, rf"{name}: shapes \(2, 3\) and \(4,\) do not broadcast")
       for name in ("sub", "mul", "div", "pow", "gt", "ge", "lt", "le", "eq", "ne")},
    "matmul axes": (lambda: ops.matmul(zeros(2), zeros(2, 2)), ValueError,
                    r"matmul: shapes \(2,\) and \(2, 2\) must have at least 2 axes each; see .reshape\(\)"),
    "matmul sizes": (lambda: zeros(2, 3) @ zeros(2, 3), ValueError,
                     r"matmul: x has 3 columns but y has 2 rows \(x \(2, 3\), y \(2, 3\)\); the "
                     r"inner sizes must be equal"),
    "matmul batch": (lambda: zeros(2, 1, 1) @ zeros(3, 1, 1), ValueError,
                     r"matmul: shapes \(2,\) and \(3,\) do not"),
    "matmul number": (lambda: zeros(2, 2) @ Tensor(1.0), ValueError,
                      r"matmul: shapes \(2, 2\) and \(\): a single number has no columns; use \*"),
    "axis": (lambda: zeros(2, 3).sum(axis=2), ValueError,
             r"sum: axis 2 is out of range for a Tensor of shape \(2, 3\); use an int from -2 to 1"),
    "axis type": (lambda: zeros(2, 3).mean(axis=1.0), ValueError, "mean: axis 1.0 is out of range"),
    "axis of a list": (lambda: zeros(2, 3).sum(axis=[0, 2]), ValueError, "sum: axis 2 is out of range for a Tensor of"),
    "axis twice": (lambda: zeros(2, 3).max(axis=(1, -1)), ValueError,
                   r"max: axis \(1, -1\) names one axis of shape \(2, 3\) twice; name each once"),
    "max of none": (lambda: zeros(2, 0).max(axis=1), ValueError,
                    r"max: there is no largest of 0 values \(shape \(2, 0\), axis 1\); reduce over axes"),
    "argmax of none": (lambda: zeros(0, 2).argmax(), ValueError,
                       r"argmax: there is no largest of 0 values \(shape \(0, 2\), axis None\); search an axis"),
    "argmax axes": (lambda: ops.argmax(zeros(2, 2), axis=(0, 1)), ValueError,
                    r"argmax: axis \(0, 1\) is out of range"),
    "reshape": (lambda: zeros(2, 3).reshape(4), ValueError,
                r"reshape: 6 values of shape \(2, 3\) do not fill shape \(4,\); the products of the sizes"),
    **{f"reshape {shape}": (lambda shape=shape: zeros(2, 3).reshape(shape), ValueError,  # type: ignore[misc]
                            "reshape: 6 values of shape")
       for shape in [(-1, -1), (-1, -2), (-1, 4), (-1, 0), (-2, -3), (6.0,), (None,)]},
    "transpose": (lambda: zeros(2, 3).transpose((0, 0)), ValueError,
                  r"transpose: axes \(0, 0\) are not a permutation of the 2 axes of shape "
                  r"\(2, 3\); name each of 0 to 1"),
    **{f"transpose {axes}": (lambda axes=axes: zeros(2, 3).transpose(axes), ValueError,  # type: ignore[misc]
                             "transpose: axes .* are not a permutation")
       for axes in [(0,), (0, 2), (3, 0), (0, 1, 2), ("a", 0)]},
    "index": (lambda: zeros(2, 3)[2], IndexError,
              r"getitem: index 2 is out of bounds .*\(shape \(2, 3\)\); index within the shape"),
    "no primitive": (lambda: cpu.nothing, AttributeError, "module 'minidl.ops.cpu' has no attribute 'nothing'"),
    "a leaf in another dtype": (lambda: Tensor([1.0], requires_grad=True).double(), ValueError,
                                r"to: the Tensor \(shape \(1,\)\) requires a gradient, which would not flow back f"),
    "an array of another byte order": (lambda: minidl.from_numpy(np.zeros(2, ">f4")), TypeError,
                                       "from_numpy: got an array of >f4 but takes an array in the machine's byte ord"),
    "no array to share": (lambda: minidl.from_numpy([1.0]), TypeError, "from_numpy: got a list but takes an array"),
    "a view in place": (lambda: operator.iadd(Tensor([[1.0]], requires_grad=True).reshape(1), 1.0), ValueError,
                        r"iadd: the Tensor \(shape \(1,\)\) shares its memory with another, by an index, a resh"),
    "index type": (lambda: zeros(2, 3)[1.0], IndexError, r"getitem: only integers, slices .*\(shape \(2, 3\)\)"),
    "no concatenate": (lambda: ops.concatenate([]), ValueError, "concatenate: got 0 Tensors but needs at least 1"),
    "concatenate": (lambda: ops.concatenate([zeros(2, 3), zeros(2, 4)]), ValueError,
                    r"concatenate: shapes \(2, 3\) and \(2, 4\) differ outside axis 0; all "
                    r"other sizes must be equal"),
    "concatenate ndim": (lambda: ops.concatenate([zeros(2, 3), zeros(2)]), ValueError,
                         r"concatenate: shapes \(2, 3\) and \(2,\) differ"),
    "concatenate axis": (lambda: ops.concatenate([zeros(2)], axis=1), ValueError,
                         "concatenate: axis 1 is out of range"),
    "flatten": (lambda: zeros(2, 3).flatten(2), ValueError, "flatten: axis 2 is out of range"),
    # ---- layers
    "linear axes": (lambda: ops.linear(zeros(2, 3, 4), zeros(1, 5, 4)), ValueError,
                    r"linear: x has shape \(2, 3, 4\) and w has shape \(1, 5, 4\) but they must "
                    r"be x \(\.\.\.,in\) and w \(out,in\)"),
    "linear sizes": (lambda: ops.linear(zeros(2, 3), zeros(5, 4)), ValueError,
                     r"linear: x has 3 features but w expects 4 \(x \(2, 3\), w \(5, 4\)\); make them equal"),
    "linear bias": (lambda: ops.linear(zeros(2, 3), zeros(5, 3), zeros(3)), ValueError,
                    r"linear: b has shape \(3,\) but w has 5 outputs; b must have shape \(5,\)"),
    "conv axes": (lambda: ops.conv2d(zeros(3, 8, 8), zeros(2, 3, 3, 3)), ValueError,
                  r"conv2d: x has shape \(3, 8, 8\) and w has shape \(2, 3, 3, 3\) but both must have 4 axes"),
    "conv channels": (lambda: ops.conv2d(zeros(1, 3, 8, 8), zeros(2, 1, 3, 3)), ValueError,
                      r"conv2d: x has 3 channels but w expects 1 \(x \(1, 3, 8, 8\), w \(2, 1, "
                      r"3, 3\)\); make them equal"),
    "conv empty": (lambda: ops.conv2d(zeros(1, 3, 0, 8), zeros(2, 3, 3, 3)), ValueError,
                   r"conv2d: x \(1, 3, 0, 8\) and w \(2, 3, 3, 3\) must have at least 1 "
                   r"channel, row, column and filter"),
    "conv bias": (lambda: ops.conv2d(zeros(1, 3, 8, 8), zeros(2, 3, 3, 3), zeros(3)), ValueError,
                  r"conv2d: b has shape \(3,\) but w has 2 filters; b must have shape \(2,\)"),
    "conv window": (lambda: ops.conv2d(zeros(1, 3, 2, 8), zeros(2, 3, 5, 5), padding=(1, 0)), ValueError,
                    r"conv2d: the window 5x5 is larger than the padded input 4x8 \(input "
                    r"2x8\); use a smaller window"),
    **{f"conv stride {stride}": (lambda stride=stride: conv(stride=stride), ValueError,  # type: ignore[misc]
                                 f"conv2d: stride is {re.escape(repr(stride))} but must be an int or a pair")
       for stride in (0, 1.0, (1, 2, 3), (1, 0), [1, 1], "1", None)},
    **{f"conv padding {padding}": (lambda padding=padding: conv(padding=padding), ValueError,  # type: ignore[misc]
                                   f"conv2d: padding is {re.escape(repr(padding))} but must be p, ")
       for padding in (-1, 0.5, (1, 2, 3), ((1, 2, 3), 1), [1, 1], ((0, -1), (0, 0)))},
    "conv algorithm": (lambda: conv(algorithm="fast"), ValueError,
                       "conv2d: algorithm 'fast' is not one of direct, unroll, gemm, fft, grouped, auto on the cpu"),
    **{f"conv groups {groups}": (lambda groups=groups: conv(groups=groups), ValueError,  # type: ignore[misc]
                                 f"conv2d: groups is {re.escape(repr(groups))} but must be an int of at least 1")
       for groups in (0, -1, 2.0, "2", None)},
    "layout": (lambda: layouts.known("conv2d", "NCWH"), ValueError,
               "conv2d: layout is 'NCWH' but must be one of NCHW, NHWC, CHWN; write it so"),
    "conv groups axes": (lambda: ops.conv2d(zeros(3, 8, 8), zeros(2, 3, 3, 3), groups=3), ValueError,
                         r"conv2d: x has shape \(3, 8, 8\) and w has shape \(2, 3, 3, 3\) but both must have 4 axes"),
    **{f"conv groups of {c}, {m}, {own}": (
        lambda c=c, m=m, own=own: ops.conv2d(zeros(1, c, 8, 8), zeros(m, own, 3, 3), groups=2),  # type: ignore[misc]
        ValueError, rf"conv2d: groups is 2 but x \(1, {c}, 8, 8\) has {c} channels and w \({m}, {own}, 3, 3\) has {m} "
        rf"filters of {own}; groups must divide channels and filters, and w must have the channels of one group")
       for c, m, own in ((3, 4, 1), (4, 3, 2), (4, 4, 4))},
    "conv groups bias": (lambda: ops.conv2d(zeros(1, 4, 8, 8), zeros(4, 2, 3, 3), zeros(6), groups=2), ValueError,
                         r"conv2d: b has shape \(6,\) but w has 4 filters; b must have shape \(4,\)"),
    "conv groups empty": (lambda: ops.conv2d(zeros(1, 0, 8, 8), zeros(4, 0, 3, 3), groups=2), ValueError,
                          r"conv2d: x \(1, 0, 8, 8\) and w \(4, 0, 3, 3\) must have at least 1 channel"),
    "response axes": (lambda: ops.local_response_norm(zeros(3, 8), 5), ValueError,
                      r"local_response_norm: x has shape \(3, 8\) but must be \(n,c,...\), 3 axes or more; see "
                      r".reshape\(\)"),
    "response size": (lambda: ops.local_response_norm(zeros(1, 3, 8), 0), ValueError,
                      "local_response_norm: size is 0 but must be an int of at least 1, a number of maps"),
    "response size of a pair": (lambda: ops.local_response_norm(zeros(1, 3, 8), (3, 3)), ValueError,  # type: ignore[arg-type]
                                r"local_response_norm: size is \(3, 3\) but must be an int of at least 1"),
    **{f"{name} axes {x}": (call, ValueError, rf"{name}: x has shape {re.escape(str(x))} but must be \(n,c,...\), with "
                            r"at least one channel and one value in each; see .reshape\(\)")
       for x in ((3,), (2, 0), (2, 3, 0)) for name, call in (
           ("batch_norm", lambda x=x: ops.batch_norm(zeros(*x), training=True)),  # type: ignore[misc]
           ("group_norm", lambda x=x: ops.group_norm(zeros(*x), 1)))},  # type: ignore[misc]
    "batch of one value": (lambda: ops.batch_norm(zeros(1, 3), training=True), ValueError,
                           r"batch_norm: x \(1, 3\) has 1 value per channel, which is its own mean and has no "
                           r"variance; train with more images per batch, or call .eval\(\)"),
    "batch weight": (lambda: ops.batch_norm(zeros(2, 3), weight=zeros(2), training=True), ValueError,
                     r"batch_norm: weight has shape \(2,\) but x \(2, 3\) wants \(3,\)"),
    "batch bias": (lambda: ops.batch_norm(zeros(2, 3), bias=zeros(3, 1), training=True), ValueError,
                   r"batch_norm: bias has shape \(3, 1\) but x \(2, 3\) wants \(3,\)"),
    **{f"batch running, {training}": (
        lambda training=training: ops.batch_norm(zeros(2, 3), zeros(3), zeros(4), training=training),  # type: ignore[misc]
        ValueError, r"batch_norm: running_var has shape \(4,\) but x \(2, 3\) wants \(3,\)")
       for training in (False, True)},
    "batch running alone": (lambda: ops.batch_norm(zeros(2, 3), zeros(3)), ValueError,
                            "batch_norm: running_mean is given and running_var is None; give both or none"),
    "batch without running": (lambda: ops.batch_norm(zeros(2, 3)), ValueError,
                              "batch_norm: running_mean and running_var are None but evaluation needs both; pass "
                              "them, or training=True to take the batch's own"),
    "batch running array": (
        lambda: ops.batch_norm(zeros(2, 3), np.zeros(3), np.ones(3)), ValueError,  # type: ignore[arg-type]
        "batch_norm: running_mean is a ndarray but must be a Tensor that requires none; pass a buffer"),
    "batch running parameter": (
        lambda: ops.batch_norm(zeros(2, 3), zeros(3), Tensor(np.ones(3), requires_grad=True)), ValueError,
        "batch_norm: running_var requires a gradient but must be a Tensor that requires none; pass a buffer"),
    "batch running dtype": (
        lambda: ops.batch_norm(zeros(2, 3), Tensor(np.zeros(3)), Tensor(np.ones(3)), training=True), TypeError,
        r"batch_norm: running_mean is float64 on cpu but x is float32 on cpu; move both to one with .to\(\)"),
    "batch running dtype in evaluation": (
        lambda: ops.batch_norm(zeros(2, 3), Tensor(np.zeros(3)), Tensor(np.ones(3))), TypeError,
        "batch_norm: inputs have dtypes float32 and float64 and float64; convert them to one"),
    **{f"batch momentum {momentum}": (
        lambda momentum=momentum: ops.batch_norm(zeros(2, 3), zeros(3), zeros(3), None, None, True,  # type: ignore[misc]
                                                 momentum), ValueError,
        f"batch_norm: momentum is {momentum} but must be a number from 0 to 1, the share of the batch's values in the")
       for momentum in (None, 1.5, -0.1)},
    **{f"layer {normalized} of {x}": (
        lambda x=x, normalized=normalized: ops.layer_norm(zeros(*x), normalized), ValueError,  # type: ignore[misc]
        rf"layer_norm: normalized_shape is {re.escape(repr(normalized))} but the last axes of x are "
        rf"{re.escape(str(x))}; name the sizes of its last axes, at least one and none of them 0")
       for x, normalized in (((2, 3), 2), ((2, 3), (3, 2)), ((3,), (2, 3)), ((2, 3), ()), ((2, 0), 0))},
    "layer weight": (lambda: ops.layer_norm(zeros(2, 3), 3, zeros(2)), ValueError,
                     r"layer_norm: weight has shape \(2,\) but x \(2, 3\) wants \(3,\)"),
    **{f"groups {groups}": (lambda groups=groups: ops.group_norm(zeros(2, 4), groups), ValueError,  # type: ignore[misc]
                            rf"group_norm: num_groups is {groups!r} but x \(2, 4\) has 4 channels; num_groups must d")
       for groups in (3, 0, -1, 2.0)},
    "group bias": (lambda: ops.group_norm(zeros(2, 4), 2, zeros(4), zeros(2)), ValueError,
                   r"group_norm: bias has shape \(2,\) but x \(2, 4\) wants \(4,\)"),
    **{f"adaptive {x}": (lambda x=x: ops.adaptive_avg_pool2d(zeros(*x), 1), ValueError,  # type: ignore[misc]
                         rf"adaptive_avg_pool2d: x has shape {re.escape(str(x))} but must be \(n,c,h,w\), with at l")
       for x in ((3, 4, 4), (1, 3, 0, 4))},
    **{f"adaptive to {to}": (
        lambda to=to: ops.adaptive_avg_pool2d(zeros(1, 1, 4, 4), to), ValueError,  # type: ignore[misc]
        rf"adaptive_avg_pool2d: output_size is {re.escape(repr(to))} but must be an int or a pair \(oh, ow\), each at")
       for to in (0, (1, 2, 3), (1, -1), 2.0)},
    "pool axes": (lambda: ops.max_pool2d(zeros(8, 8), size=2), ValueError,
                  r"max_pool2d: x has shape \(8, 8\) but must have 4 axes \(n,c,h,w\); see .reshape\(\)"),
    "pool size": (lambda: ops.avg_pool2d(zeros(1, 1, 8, 8), size=0), ValueError,
                  "avg_pool2d: size is 0 but must be an int or a pair"),
    "pool stride": (lambda: ops.avg_pool2d(zeros(1, 1, 8, 8), size=2, stride=-1), ValueError,
                    "avg_pool2d: stride is -1"),
    "pool padding": (lambda: ops.max_pool2d(zeros(1, 1, 8, 8), size=2, padding=2), ValueError,
                     "max_pool2d: padding 2 is not smaller than the window 2x2.*use less padding"),
    "pool window": (lambda: ops.max_pool2d(zeros(1, 1, 2, 2), size=3), ValueError,
                    r"max_pool2d: the window 3x3 is larger than the padded input 2x2 \(input 2x2\)"),
    # ---- activations, losses
    # ---- attention
    "attention of a vector": (lambda: attend((4,), (5, 4), (5, 4)), ValueError,
                              r"scaled_dot_product_attention: query \(4,\), key \(5, 4\), value \(5, 4\) must each "
                              r"have 2 axes or more, .*; see .reshape\(\)"),
    "attention of other features": (lambda: attend((3, 4), (5, 6), (5, 4)), ValueError,
                                    "scaled_dot_product_attention: query has 4 features but key has 6 .*; make them"),
    "attention to too few values": (lambda: attend((3, 4), (5, 4), (6, 4)), ValueError,
                                    "scaled_dot_product_attention: key has 5 rows but value has 6 .*; give a value"),
    "attention of other heads": (lambda: attend((2, 3, 4), (3, 5, 4), (5, 4)), ValueError,
                                 r"scaled_dot_product_attention: the leading axes of query \(2, 3, 4\), .* do not "
                                 r"broadcast; from the right, .* see .reshape\(\)"),
    "attention by two masks": (lambda: attend((3, 4), (5, 4), (5, 4), zeros(3, 5), is_causal=True), ValueError,
                               "scaled_dot_product_attention: attn_mask is given and is_causal is True; give one"),
    "attention by a mask of another shape": (lambda: attend((3, 4), (5, 4), (5, 4), zeros(2, 3, 5)), ValueError,
                                             r"scaled_dot_product_attention: attn_mask has shape \(2, 3, 5\) but must "
                                             r"broadcast to \(3, 5\) .*; see .reshape\(\)"),
    "attention by a mask of integers": (lambda: attend((3, 4), (5, 4), (5, 4), zeros(3, 5, dtype="int64")), TypeError,
                                        "scaled_dot_product_attention: attn_mask has dtype int64 but must be bool, or "
                                        "float32 as query; convert it"),
    "attention with dropout": (lambda: attend((3, 4), (5, 4), (5, 4), dropout_p=0.1), ValueError,
                               "scaled_dot_product_attention: dropout_p is 0.1 but no weights are dropped here; pass "
                               "0, or write ops.dropout"),
    # ---- recurrences
    "a recurrence of another kind": (lambda: ops.recurrence(zeros(3, 2, 4), zeros(4, 4), zeros(1, 2, 4), kind="elu"),
                                     ValueError, "recurrence: kind is 'elu' but must be one of lstm, gru, tanh, relu"),
    "a recurrence of a list": (
        lambda: ops.recurrence(zeros(3, 2, 4), zeros(4, 4), zeros(1, 2, 4), kind=["tanh"]),  # type: ignore[arg-type]
        ValueError, r"recurrence: kind is \['tanh'\] but must be one of lstm, gru, tanh, relu"),
    "an algorithm that is a list": (
        lambda: ops.conv2d(zeros(1, 1, 4, 4), zeros(1, 1, 3, 3), algorithm=["auto"]),  # type: ignore[arg-type]
        TypeError, "conv2d: an option is a list but must be a text, a number or a tuple of them$"),
    "an equation that is a list": (lambda: ops.einsum(["ij"], zeros(2, 2)), ValueError,  # type: ignore[arg-type]
                                   r"einsum: \['ij'\] is not a list of terms of letters, as in 'ij,jk->ik'"),
    "a gain of a list": (lambda: nn.init.kaiming_uniform_(zeros(2, 2), nonlinearity=["relu"]),  # type: ignore[arg-type]
                         ValueError, r"kaiming: nonlinearity is \['relu'\] but must be "),
    "a layer's kind that is a list": (lambda: nn.RNN(2, 2, nonlinearity=["tanh"]), ValueError,  # type: ignore[arg-type]
                                      r"RNN: nonlinearity is \['tanh'\] but must be 'tanh' or 'relu'"),
    "a flag for a smoothing": (lambda: ops.cross_entropy(zeros(2, 3), Tensor([0, 1]), label_smoothing=True), ValueError,
                               "cross_entropy: label_smoothing is True but must be a number; a flag goes by its name"),
    "a flag for a limit": (lambda: zeros(3).clip(min=True), ValueError,
                           "clip: low is True but must be a number; a flag goes by its name"),
    "NumPy's flag for an eps": (lambda: ops.layer_norm(zeros(2, 4), (4,), eps=np.True_), ValueError,
                                "layer_norm: eps is (np.)?True_? but must be a number; a flag goes by its name"),
    "a schedule that is a list": (lambda: optim.schedule(["step"], 9), ValueError,  # type: ignore[arg-type]
                                  r"schedule: \['step'\] is not one of "),
    "a recurrence of other gates": (
        lambda: ops.recurrence(zeros(3, 2, 12), zeros(12, 4), zeros(2, 2, 4), kind="lstm"), ValueError,
        r"recurrence: gx has shape \(3, 2, 12\) and w has shape \(12, 4\) but of kind 'lstm' they must be gx \(l,n,4 h"
        r"\) and w \(4 h,h\); see nn.LSTM, nn.GRU and nn.RNN"),
    "a recurrence of no unit": (
        lambda: ops.recurrence(zeros(3, 2, 0), zeros(0, 0), zeros(2, 2, 0), kind="lstm"), ValueError,
        r"recurrence: w has shape \(0, 0\), of 0 units, but needs at least 1$"),
    "a recurrence of no step": (
        lambda: ops.recurrence(zeros(0, 2, 12), zeros(12, 4), zeros(1, 2, 4), kind="gru"), ValueError,
        r"recurrence: gx has shape \(0, 2, 12\), whose sequences have 0 steps but need at least 1; leave empty "
        "ones out"),
    "a recurrence from another state": (
        lambda: ops.recurrence(zeros(3, 2, 12), zeros(12, 4), zeros(2, 2, 4), kind="gru"), ValueError,
        r"recurrence: state has shape \(2, 2, 4\) but of kind 'gru', with gx \(3, 2, 12\) and w \(12, 4\), it must "
        r"have \(1, 2, 4\); see ops.stack"),
    "a recurrence with another bias": (
        lambda: ops.recurrence(zeros(3, 2, 12), zeros(12, 4), zeros(1, 2, 4), zeros(4), kind="gru"), ValueError,
        r"recurrence: b has shape \(4,\) but w has 12 outputs; b must have shape \(12,\)"),
    "softmax": (lambda: ops.softmax(zeros(2, 3), axis=2), ValueError,
                r"softmax: axis 2 is out of range for a Tensor of shape \(2, 3\); use an int from -2 to 1"),
    "log_softmax": (lambda: ops.log_softmax(zeros(2, 3), axis=-3), ValueError,
                    "log_softmax: axis -3 is out of range"),
    "softmax of a number": (lambda: ops.softmax(Tensor(1.0)), ValueError, r"softmax: axis -1 .* shape \(\)"),
    "dropout": (lambda: ops.dropout(zeros(2), 1.0), ValueError, r"dropout: p is 1.0 but must be in \[0, 1\)"),
    "labels shape": (lambda: ops.cross_entropy(zeros(2, 3), [0]), ValueError,
                     r"cross_entropy: logits have shape \(2, 3\) and labels \(1,\) but must be "
                     r"\(n, classes\) and \(n,\)"),
    "labels dtype": (lambda: ops.cross_entropy(zeros(2, 3), zeros(2)), TypeError,
                     "cross_entropy: labels have dtype float32 but must be integers; convert them"),
    "outer of matrices": (lambda: ops.outer(zeros(2, 3), zeros(3)), ValueError,
                          r"outer: x has shape \(2, 3\) and y has shape \(3,\) but both must have 1 axis; see"),
    "einsum of dots": (lambda: ops.einsum("...i->i", zeros(2, 3)), ValueError,
                       r"einsum: '\.\.\.i->i' is not a list of terms of letters, as in 'ij,jk->ik'; it takes no"),
    "einsum of too few letters": (lambda: ops.einsum("ij,j", zeros(2, 3), zeros(3, 3)), ValueError,
                                  r"einsum: 'ij,j' does not fit Tensors of shapes \(2, 3\), \(3, 3\); give a letter"),
    "einsum of a diagonal": (lambda: ops.einsum("ii->i", zeros(3, 3)), ValueError,
                             "einsum: 'ii' names a letter twice, and diagonals are not computed; name each once"),
    "einsum of two sizes": (lambda: ops.einsum("ij,jk", zeros(2, 3), zeros(4, 5)), ValueError,
                            "einsum: 'j' has size 3 and size 4 in 'ij,jk'; make them equal"),
    "einsum of a new letter": (lambda: ops.einsum("ij->ik", zeros(2, 3)), ValueError,
                               "einsum: the result 'ik' has letters that no term has; take them out"),
    "ids of another dtype": (lambda: ops.embedding(zeros(2, 3), INTS), TypeError,
                             "embedding: ids have dtype float32 but must be integers; the table comes second"),
    "a table of vectors": (lambda: ops.embedding([0], zeros(3)), ValueError,
                           r"embedding: w has shape \(3,\) but must be \(rows, d\)"),
    "an id that is no row": (lambda: ops.embedding([[0, 1], [7, 2]], zeros(3, 2)), ValueError,
                             "embedding: id 7 at position 2 is out of range for 3 rows; ids must be 0 to 2"),
    "padding that is no row": (lambda: ops.embedding([0], zeros(3, 2), padding_idx=3), ValueError,
                               "embedding: padding_idx is 3 but must be a row of w, 0 to 2"),
    "dilation": (lambda: conv(dilation=0), ValueError,
                 r"conv2d: dilation is 0 but must be an int or a pair of ints \(height, width\), each at least 1"),
    "dilated window": (lambda: conv(dilation=4), ValueError,
                       "conv2d: the window of 3 with dilation 4 is 9 wide, larger than the padded input 8; use a"),
    "conv1d of images": (lambda: ops.conv1d(zeros(1, 2, 3, 3), zeros(1, 2, 3)), ValueError,
                         r"conv1d: x has shape \(1, 2, 3, 3\) and w has shape \(1, 2, 3\) but both must have 3 axes"),
    "transposed channels": (lambda: ops.conv_transpose2d(zeros(1, 2, 3, 3), zeros(1, 2, 3, 3)), ValueError,
                            r"conv_transpose2d: x has shape \(1, 2, 3, 3\) and w has shape \(1, 2, 3, 3\) but they "),
    "transposed bias": (lambda: ops.conv_transpose2d(zeros(1, 1, 3, 3), zeros(1, 2, 3, 3), zeros(1)), ValueError,
                        r"conv_transpose2d: b has shape \(1,\) but w has 2 maps; b must have shape \(2,\)"),
    "transposed output padding": (
        lambda: ops.conv_transpose2d(zeros(1, 1, 3, 3), zeros(1, 2, 3, 3), stride=2, output_padding=2), ValueError,
        "conv_transpose2d: output_padding 2 is not less than the stride 2; use less"),
    "transposed padding": (lambda: ops.conv_transpose2d(zeros(1, 1, 1, 1), zeros(1, 2, 3, 3), padding=2), ValueError,
                           r"conv_transpose2d: padding 2 leaves -1x-1 of x \(1, 1, 1, 1\) by w .*; use less"),
    "interpolate of vectors": (lambda: ops.interpolate(zeros(3), scale_factor=2), ValueError,
                               r"interpolate: x has shape \(3,\) but must have 4 axes \(n,c,h,w\); see \.reshape"),
    "interpolate between": (lambda: ops.interpolate(zeros(1, 1, 2, 2), scale_factor=2, mode="bilinear"), ValueError,
                            "interpolate: mode 'bilinear' is not 'nearest', the only one"),
    "interpolate to nothing": (lambda: ops.interpolate(zeros(1, 1, 2, 2)), ValueError,
                               "interpolate: size is None and scale_factor is None; give one of them"),
    "interpolate by a half": (lambda: ops.interpolate(zeros(1, 1, 2, 2), size=3), ValueError,
                              "interpolate: size 3x3 is not a multiple of 2x2; name rows and columns by"),
    "pixel_shuffle": (lambda: ops.pixel_shuffle(zeros(1, 6, 2, 2), 2), ValueError,
                      "pixel_shuffle: upscale_factor is 2 but must be an int of at least 1 whose square divides the 6"),
    "labels range": (lambda: ops.cross_entropy(zeros(2, 3), [0, 3]), ValueError,
                     "cross_entropy: label 3 at position 1 is out of range for 3 classes; labels must be 0 to 2"),
    "labels negative": (lambda: ops.cross_entropy(zeros(2, 3), [-1, 0]), ValueError,
                        "cross_entropy: label -1 at position 0"),
    "labels range of log probabilities": (lambda: ops.nll_loss(zeros(2, 3), [0, 3], ignore_index=1), ValueError,
                                          "nll_loss: label 3 at position 1 is out of range for 3 classes"),
    "labels that nobody ignores": (lambda: ops.cross_entropy(zeros(2, 3), [0, -100]), ValueError,
                                   "cross_entropy: label -100 at position 1"),
    "weight of classes": (lambda: ops.cross_entropy(zeros(2, 3), [0, 1], zeros(2)), ValueError,
                          r"cross_entropy: weight has shape \(2,\) but logits \(2, 3\) have 3 classes; give one"),
    "weight by labels": (lambda: ops.cross_entropy(zeros(2, 3), [0, 1], Tensor([1, 2, 3])), TypeError,
                         "cross_entropy: weight has dtype int64 but logits float32; convert it with"),
    "weight of a list": (lambda: ops.cross_entropy(zeros(2, 3), [0, 1], [1.0, 2.0, 3.0]), TypeError,
                         "cross_entropy: weight is a list but must be a Tensor, one floating number for each class"),
    "nll's reduction": (lambda: ops.nll_loss(zeros(1, 3), [0], reduction="avg"), ValueError,
                        "nll_loss: reduction 'avg' is not one of mean, sum, none"),
    "l1 of a list": (lambda: ops.l1_loss(zeros(2), [1.0, 2.0]), TypeError,
                     "l1_loss: got a Tensor and a list but both must be Tensors; wrap them"),
    "a divergence of two shapes": (lambda: ops.kl_div(zeros(2), zeros(3), reduction="batchmean"), ValueError,
                                   r"kl_div: x has shape \(2,\) but target has shape \(3,\); make them equal"),
    "huber of two shapes": (lambda: ops.huber_loss(zeros(2), zeros(3)), ValueError,
                            r"huber_loss: x has shape \(2,\) but target has shape \(3,\); make them equal"),
    "l1's reduction": (lambda: ops.l1_loss(zeros(2), zeros(2), reduction="avg"), ValueError,
                       "l1_loss: reduction 'avg' is not one of mean, sum, none"),
    "huber's delta": (lambda: ops.huber_loss(zeros(2), zeros(2), delta=0.0), ValueError,
                      "huber_loss: delta is 0.0 but must be above 0"),
    "pos_weight": (lambda: ops.binary_cross_entropy_with_logits(zeros(2, 3), zeros(2, 3), pos_weight=zeros(2, 2, 3)),
                   ValueError, r"binary_cross_entropy_with_logits: pos_weight has shape \(2, 2, 3\), which does not "),
    "pos_weight of no shape that fits": (
        lambda: ops.binary_cross_entropy_with_logits(zeros(2, 3), zeros(2, 3), pos_weight=zeros(2)),
        ValueError, r"binary_cross_entropy_with_logits: pos_weight has shape \(2,\), which does not broadcast to x's"),
    "reduction": (lambda: ops.cross_entropy(zeros(1, 3), [0], reduction="avg"), ValueError,
                  "cross_entropy: reduction 'avg' is not one of mean, sum, none"),
    "smoothing": (lambda: ops.cross_entropy(zeros(1, 3), [0], label_smoothing=1.5), ValueError,
                  r"cross_entropy: label_smoothing is 1.5 but must be in \[0, 1\]"),
    "mse shapes": (lambda: ops.mse_loss(zeros(2), zeros(2, 1)), ValueError,
                   r"mse_loss: x has shape \(2,\) but target has shape \(2, 1\); make them equal"),
    "mse arrays": (lambda: ops.mse_loss(np.zeros(2), np.zeros(2)), TypeError,  # type: ignore[arg-type]
                   "mse_loss: got a ndarray and a ndarray but both must be Tensors; wrap them in minidl.Tensor"),
    **{f"integers {name}": (call, TypeError, rf"{name}: the input has dtype int64 but must be float32 or float64; "
                            r"convert it with .to\(dtype='float32'\)") for name, call in {
        "conv2d": lambda: ops.conv2d(INTS, INTS), "linear": lambda: ops.linear(INTS[0, 0], INTS[0, 0]),
        "avg_pool2d": lambda: ops.avg_pool2d(INTS, size=1), "max_pool2d": lambda: ops.max_pool2d(INTS, size=1),
        "relu": lambda: ops.relu(INTS), "softmax": lambda: ops.softmax(INTS), "dropout": lambda: ops.dropout(INTS),
        "cross_entropy": lambda: ops.cross_entropy(INTS[0, 0], [0])}.items()},
    "no batch left": (lambda: primitives_of(IMAGES).next_batch(
        IMAGES, np.zeros(5, int), np.arange(5), np.array([0, 0]), 3, 3, (1.0,), (0.0,), 0, np.float32), ValueError,
                      "next_batch: 3 images were asked for but the epoch has 2 left; start the next one by iterating"),
    "mse reduction": (lambda: ops.mse_loss(zeros(2), zeros(2), reduction="avg"), ValueError,
                      "mse_loss: reduction 'avg' is not one of mean, sum, none"),
}


@pytest.fixture(autouse=True)
def another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alien arrays live "elsewhere", so that two devices can meet on any machine."""
    known = device.device_of
    monkeypatch.setattr(device, "device_of", lambda a: "elsewhere" if isinstance(a, Alien) else known(a))


def message(what: str) -> str:
    call, error, _ = ERRORS[what]
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("what", ERRORS)
def test_error(what: str) -> None:
    call, error, words = ERRORS[what]
    with pytest.raises(error, match=f"^{words}") as caught:
        call()
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- none is left out
def raised(tree: ast.AST) -> Iterator[str]:
    """Each `raise`'s message as a pattern: the f-string's holes match anything."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            text = node.exc.args[0]
            parts = text.values if isinstance(text, ast.JoinedStr) else [text]
            yield "".join(re.escape(str(p.value)) if isinstance(p, ast.Constant) else ".*" for p in parts)


def test_every_raise_has_a_test() -> None:
    messages = [message(what) for what in ERRORS]
    # not ops/cuda, which CuPy must be there for: the tests of its errors belong in tests/cuda
    files = [*(FOLDER / f"{name}.py" for name in ("core/tensor", "core/rng", "core/device")),
             *(path for path in (FOLDER / "ops").rglob("*.py") if FOLDER / "ops/cuda" not in path.parents)]
    patterns = [(path.relative_to(FOLDER), pattern) for path in files
                for pattern in raised(ast.parse(path.read_text(encoding="utf-8")))]
    assert len(patterns) > 40
    left_out = [f"{path}: {pattern}" for path, pattern in patterns
                if not any(re.fullmatch(pattern, text) for text in messages)]
    assert left_out == []
