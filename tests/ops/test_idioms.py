"""What users of PyTorch type: idioms of which most work here as they stand, and the rest name what does.

A row is code, in which `torch` stands for minidl, `ops` for minidl.ops and `F` for minidl.ops; PyTorch runs the same
text with its own modules, and results and gradients must be equal. Where PyTorch's text is another, or where minidl
names another way, the row says so.
"""

from __future__ import annotations

import ast
import copy
import math
import pickle
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import minidl
from minidl import data, nn, ops, optim


class Row(NamedTuple):
    """code: as it is typed. theirs: what PyTorch runs, if that is another text; "" if it has none.
    error: the words that name the other way, where there is one."""

    area: str
    code: str
    theirs: str | None = None
    error: str = ""


def same(area: str, *codes: str) -> list[Row]:
    return [Row(area, code) for code in codes]


def names(area: str, *pairs: tuple[str, str]) -> list[Row]:
    """Idioms that name their other way."""
    return [Row(area, code, None, error) for code, error in pairs]


NUMPY = r"in its place: compute with t\.numpy\(\)"
# How the gradient penalty of a Wasserstein GAN is written
PENALTY = """between = (m * x.detach() + (1 - m) * y).requires_grad_(True)
scores = net(between)
gradients = GRAD(outputs=scores, inputs=between, grad_outputs=torch.ones_like(scores), create_graph=True,
                 retain_graph=True)[0]
gradients = gradients.view(gradients.size(0), -1)
((gradients.norm(2, dim=1) - 1) ** 2).mean()"""


def derivatives(*codes: str) -> list[Row]:
    """What PyTorch has in torch.autograd and torch.autograd.functional, and minidl beside Tensor."""
    return [Row("autograd", re.sub("[A-Z]{3,}", lambda name: f"torch.{name[0].lower()}", code),
                code.replace("GRAD", "torch.autograd.grad").replace("JACOBIAN", "torch.autograd.functional.jacobian")
                .replace("HESSIAN", "torch.autograd.functional.hessian")
                .replace("HVP", "torch.autograd.functional.hvp")) for code in codes]


ROWS: list[Row] = [
    *same("create",
          "torch.tensor([1.0, 2.0])", "torch.tensor([[1, 2], [3, 4]])", "torch.tensor(3.5)", "torch.tensor(A)",
          "torch.tensor([1.0], requires_grad=True).requires_grad", "torch.from_numpy(A)", "torch.zeros(2, 3)",
          "torch.zeros((2, 3))", "torch.ones(2)", "torch.full((2, 2), 0.5)", "torch.full((2,), 7)", "torch.arange(5)",
          "torch.arange(1, 2, 0.25)", "torch.arange(2, 8, 2)", "torch.linspace(0, 1, 5)", "torch.eye(3)",
          "torch.zeros_like(y)", "torch.ones_like(y)", "torch.full_like(y, 2.0)", "torch.rand(2, 3).shape",
          "torch.randn(2, 3).dtype", "torch.rand_like(y).shape", "torch.randn_like(y).shape",
          "torch.randint(0, 5, (4,)).dtype", "sorted(torch.randperm(5).tolist())", "torch.manual_seed(0)\n0",
          "nn.Parameter(torch.ones(2)).requires_grad"),
    *names("create", ("torch.empty(2)", r"minidl\.empty: is not here; in its place: minidl\.zeros\(shape\)"),
           ("torch.as_tensor(A)", r"minidl\.Tensor\(data\), which shares an array's memory")),
    *same("shape",
          "y.shape", "y.size()", "y.size(0)", "y.dim()", "y.ndim", "y.numel()", "len(y)", "x.view(3, 2)", "x.view(-1)",
          "x.reshape(3, 2)", "x.reshape(-1)", "x.reshape((6, 1))", "x.view_as(x.t())", "x.flatten()",
          "images.flatten(1)", "images.flatten(start_dim=1)", "ops.flatten(images, start_dim=1)", "s.squeeze()",
          "s.squeeze(1)", "s.squeeze(dim=2)", "x.unsqueeze(0)", "x.unsqueeze(-1)", "x.unsqueeze(dim=1)",
          "ops.squeeze(s)", "ops.unsqueeze(x, 0)", "x[None]", "x[:, None]", "v.expand(2, 3)", "v.expand(2, -1)",
          "v.expand_as(x)", "x.repeat(2, 1)", "x.t()", "x.T", "images.mT", "images.permute(0, 2, 3, 1)",
          "images.swapaxes(1, 2)", "images.transpose(1, 2)", "x.transpose(0, 1)", "images.transpose(-2, -1)",
          "images.movedim(1, -1)", "x.contiguous()", "x.clone()", "ops.stack([x, y])", "ops.stack([x, y], dim=1)",
          "x.split(1)", "x.split([1, 2], dim=1)", "x.chunk(3, dim=1)", "ops.split(x, 1)", "x.unbind(0)", "x.flip(0)",
          "ops.flip(x, (0, 1))", "x.ravel()", "x.broadcast_to((4, 2, 3))",
          "x.narrow(1, 0, 2)", "x.select(1, 0)", "ops.concatenate([x, y], 1)", "ops.concatenate([x, y], dim=0)"),
    *names("shape", ("ops.cat([x, y], 1)", r"in its place: ops\.concatenate\(tensors, axis\)"),
           ("y.roll(1, 0)", NUMPY), ("y.is_contiguous()", r"t\.numpy\(\)\.flags\.c_contiguous"),
           ("y.stride()", r"t\.numpy\(\)\.strides")),
    *same("arithmetic",
          "x * (x > 0)", "(y > 0) * x", "(x * (y > 0)).sum() / (y > 0).float().sum()", "x + (y > 0)", "i * (i > 0)",
          "x + y", "x - y", "x * y", "x / m", "x ** 2", "2 ** x", "1 / m", "-x", "x @ w", "x @ v", "x + 1", "1 - x",
          "x / 2", "x.add(1)", "x.sub(y)", "x.mul(2)", "x.div(2)", "x.pow(2)", "x.neg()", "x.abs()", "abs(x)",
          "ops.abs(x)", "m.log()", "m.sqrt()", "m.rsqrt()", "x.exp()", "x.square()", "m.reciprocal()", "x.tanh()",
          "x.sigmoid()", "x.relu()", "x.clamp(-1, 1)", "x.clamp(min=0)", "x.clip(0, 1)", "ops.clip(x, 0, 1)",
          "ops.clip(x, min=-0.5, max=0.5)", "x.maximum(y)", "ops.maximum(x, y)", "ops.minimum(x, y)", "x.matmul(w)",
          "x.mm(w)", "images[0].bmm(images[0])", "v.dot(v)", "v.outer(v)",
          "ops.outer(v, v)", "ops.einsum('ij,jk->ik', x, w)", "ops.einsum('ij,kj', x, y)",
          "ops.matmul(x, w)", "ops.exp(x)", "ops.pow(x, 2)"),
    *names("arithmetic", ("ops.clamp(x, 0, 1)", r"in its place: ops\.clip\(x, low, high\)"),
           ("y.trunc()", NUMPY), ("torch.topk(x, 2)", r"minidl\.topk: is not here; in its place: t\.topk\(\.\.\.\)")),
    *same("elementwise",
          "x.sin()", "x.cos()", "x.sign()", "x.round()", "(x * 2.5).floor()", "(x * 2.5).ceil()", "x.erf()",
          "m.log1p()", "x.expm1()", "torch.sin(x)", "torch.round(torch.tensor([0.5, 1.5, -2.5, 2.6]))",
          "torch.sign(torch.tensor([-2, 0, 3]))", "torch.floor(torch.tensor([1, 2]))",
          "torch.erf(torch.tensor([1, 2]))", "torch.log1p(torch.tensor([1, 2]))", "torch.sin(torch.tensor([True]))",
          "x % 2", "x % m", "x.remainder(-1.5)", "5.0 % m", "torch.tensor([5, -5, 7]) % 3",
          "torch.tensor([5, -5, 7]) % torch.tensor([-3, 3, 7])", "torch.remainder(m, y)", "y // 2", "-7 // m",
          "torch.tensor([5, -5, 7]) // 3", "torch.tensor([5, -5]) // torch.tensor([-3, 2])", "y.floor_divide(0.3)",
          "torch.floor_divide(y, m)", "torch.tensor([1.0, -1.0, 0.0]) // 0.0", "torch.tensor([3.0, -3.0]) % math.inf"),
    *same("top level",
          "torch.exp(x)", "torch.einsum('ij,jk', x, w)", "torch.cat([x, y], 1)", "torch.cat((x, y), dim=0)",
          "torch.concatenate([x, y])", "torch.stack([x, y])", "torch.where(b, x, 0.0)", "torch.relu(x)",
          "torch.sigmoid(x)", "torch.tanh(x)", "torch.softmax(x, 1)", "torch.log_softmax(x, dim=1)",
          "torch.matmul(x, w)", "torch.sum(x)", "torch.sum(x, 1)", "torch.mean(x, dim=1, keepdim=True)",
          "torch.max(x)", "torch.min(x)", "torch.abs(x)", "torch.sqrt(m)", "torch.log(m)", "torch.pow(x, 2)",
          "torch.clip(x, 0, 1)", "torch.maximum(x, y)", "torch.minimum(x, y)", "torch.squeeze(s)",
          "torch.unsqueeze(x, 0)", "torch.flatten(images, 1)", "torch.reshape(x, (3, 2))", "torch.argmax(y, 1)",
          "torch.argsort(y)", "torch.gather(x, 1, g)", "torch.flip(x, (0,))", "torch.outer(v, v)", "torch.prod(x, 1)",
          "torch.var(x)", "torch.std(x, 1)", "torch.norm(x)", "torch.add(x, y)", "torch.sub(x, 1)", "torch.mul(x, y)",
          "torch.div(x, m)", "torch.neg(x)", "torch.eq(y, v)", "torch.gt(y, 0)", "torch.split(x, 1)",
          "torch.cumsum(x, 1)", "torch.cumsum(x, dim=0)", "torch.logsumexp(x, 1)", "torch.logsumexp(x, (0, 1), True)",
          "torch.tril(x)", "torch.triu(x, 1)", "images.tril(-1)", "x.triu(diagonal=-1)",
          "torch.unique(torch.tensor([3, 1, 3, 2]))", "torch.unique(y, True, True, True)",
          "torch.tensor([[2.0, 1.0], [2.0, 3.0]]).unique(return_counts=True)",
          "torch.unique(torch.tensor([math.nan, 1.0, math.nan]))"),
    *same("reduce",
          "x.sum()", "x.sum(1)", "x.sum(dim=1)", "x.sum(dim=(0, 1))", "x.sum(1, keepdim=True)", "x.sum(0, True)",
          "ops.sum(x, 1)", "ops.sum(x, dim=1, keepdim=True)", "x.mean()", "x.mean(1)", "x.mean(dim=0, keepdim=True)",
          "images.mean((0, 2, 3))", "ops.mean(x, 1)", "x.max()", "x.amax(1)", "x.min()", "x.amin(dim=1)", "y.argmax()",
          "y.argmax(1)", "y.argmax(dim=1)", "y.argmin(1)", "ops.argmax(y, 1)", "x.var()", "x.var(1)",
          "x.var(dim=1, unbiased=False)", "x.std()", "x.std(1)", "x.norm()", "x.norm(dim=1)", "x.norm(2, dim=1)",
          "x.norm(2, 1, True)", "ops.norm(x, 2, dim=1)", "x.cumsum(0)",
          "x.prod()", "x.prod(1)", "x.prod(dim=0, keepdim=True)", "ops.prod(x, 1)",
          "x.cumsum(dim=1)", "ops.cumsum(x, 1)", "x.logsumexp(1)", "b.any()", "b.all()", "b.any(1)", "x.sort(1)",
          "x.sort(dim=1, descending=True)", "y.argsort(1)", "x.topk(2)", "x.topk(1, dim=0)"),
    *[Row("reduce", code, theirs) for code, theirs in (
        ("x.max(axis=1)", "x.max(1).values"), ("x.min(axis=1)", "x.min(dim=1).values"), ("np.mean(y)", "y.mean()"),
        ("np.sum(y, 1)", "y.sum(1)"), ("np.var(y)", "y.var(unbiased=False)"))],
    *names("reduce", ("y.median()", NUMPY), ("y.bincount()", NUMPY),
           ("y.count_nonzero()", r"in its place: \(t != 0\)\.sum\(\)")),
    *same("compare",
          "y > 0", "y >= v", "y < 0", "y <= 0", "y == v", "y != 0", "y.eq(v)", "y.ne(0)", "y.gt(0)", "y.lt(v)",
          "(y > 0) & (y < 1)", "(y > 0) | b", "~(y > 0)", "b ^ (y > 0)", "ops.eq(y, v)", "bool((y > -100).all())"),
    *names("compare", ("torch.allclose(y, y)", r"numpy\.allclose"), ("y.equal(y)", r"bool\(\(x == y\)\.all\(\)\)"),
           ("y.isnan()", NUMPY)),
    *same("index",
          "x[0]", "x[-1]", "x[0, 1]", "x[:, 1]", "x[..., 0]", "x[0:1]", "x[:, ::2]", "x[b]", "x[i]", "x[:, [0, 2]]",
          "x[i, i]", "x.gather(1, g)", "x.index_select(1, i)", "x.masked_fill(b, 0.0)", "x.masked_select(b)",
          "x.where(b, y)", "ops.where(b, x, y)", "ops.where(b, x, 0.0)", "y[0] = 1.0\ny", "y[:, 1] = 0\ny",
          "y[y > 0] = 0\ny", "y.fill_(2.0)", "y.zero_()", "y.add_(1)", "y.mul_(2)", "y.clamp_(0, 1)",
          "y.copy_(y * 2)"),
    *names("index", ("y.scatter_(1, g, 1.0)", r"t\[index\] = value, under minidl\.no_grad\(\)"),
           ("y.nonzero()", NUMPY), ("y.take(i)", r"in its place: t\.flatten\(\)\[index\]")),
    *same("functional",
          "F.relu(x)", "F.sigmoid(x)", "F.tanh(x)", "F.softmax(x, 1)", "F.softmax(x, dim=1)",
          "F.log_softmax(x, dim=-1)", "F.cross_entropy(x, i)", "F.cross_entropy(x, i, reduction='sum')",
          "F.cross_entropy(x, i, label_smoothing=0.1)", "F.mse_loss(x, y)", "F.linear(x, w.t())",
          "F.linear(x, w.t(), torch.ones(4))", "F.linear(images, torch.ones(2, 6))", "F.linear(v, w.t())",
          "F.scaled_dot_product_attention(x, y, x)", "F.scaled_dot_product_attention(x, y, x, is_causal=True)",
          "F.scaled_dot_product_attention(x, y, x, None, 0.0, True)",
          "F.scaled_dot_product_attention(x, y, x, x @ y.T)",
          "F.scaled_dot_product_attention(x, y, x, attn_mask=x @ y.T > 0, dropout_p=0.0, scale=0.5)",
          "F.conv2d(images, filters)", "F.conv2d(images, filters, v[:2])",
          "F.conv2d(images, filters, None, 2, 1)", "F.conv2d(images, filters, stride=2, padding=1)",
          "F.max_pool2d(images, 2)", "F.max_pool2d(images, 2, 1)", "F.max_pool2d(images, kernel_size=2, stride=2)",
          "F.avg_pool2d(images, 2)", "F.dropout(x).dtype", "F.dropout(x, p=0.5).shape", "F.pad(x, (1, 1))",
          "F.pad(images, (1, 1, 2, 2))", "F.pad(x, (0, 1), value=3.0)",
          "F.conv2d(images[:, :2], filters[:, :1], groups=2)", "F.local_response_norm(images, 2)",
          "F.layer_norm(x, (3,))", "F.layer_norm(x, (3,), v, v, eps=0.1)", "F.group_norm(images, 3).shape",
          "F.batch_norm(x, v, v * v, v, v)", "F.batch_norm(images, None, None, training=True, eps=1.0)",
          "F.batch_norm(x, running_mean=v, running_var=v * v)"),
    *same("functional", "F.gelu(x)", "F.gelu(x, approximate='tanh')", "F.silu(x)", "F.leaky_relu(x)",
          "F.leaky_relu(x, 0.2)", "F.leaky_relu(x, negative_slope=0.1)", "F.elu(x)", "F.elu(x, alpha=0.5)",
          "F.softplus(x)", "F.hardsigmoid(x)", "F.l1_loss(x, y)", "F.huber_loss(x, y)",
          "F.conv1d(images[:, :, 0], filters[:, :, 0])", "F.conv1d(images[:, :, 0], filters[:, :, 0], None, 2, 1)",
          "F.conv1d(images[:, :, 0], filters[:, :, 0], padding=2, dilation=2)", "F.conv2d(images, filters, dilation=2)",
          "F.conv_transpose2d(images[:, :2], filters)", "F.conv_transpose2d(images[:, :2], filters, v, 2, 0, 1)",
          "F.interpolate(images, scale_factor=2)", "F.interpolate(images, size=(12, 6))",
          "F.pixel_shuffle(images.reshape(2, 12, 3, 3), 2)", "F.adaptive_avg_pool2d(images, 1)",
          "F.adaptive_avg_pool2d(images, (4, 5))", "F.embedding(i, w)", "F.embedding(i, w, padding_idx=0)",
          "F.huber_loss(x, y, delta=0.5)", "F.nll_loss(F.log_softmax(x, 1), i)", "F.cross_entropy(x, i, v)",
          "F.cross_entropy(x, i, weight=v, label_smoothing=0.1)", "F.cross_entropy(x, i, ignore_index=0)",
          "F.binary_cross_entropy_with_logits(x, b.to(x.dtype))",
          "F.binary_cross_entropy_with_logits(x, b.to(x.dtype), pos_weight=v, reduction='sum')"),
    *same("functional", "F.cross_entropy(images, torch.tensor(LABELS))", "F.nll_loss(images, torch.tensor(LABELS), v)",
          "F.cross_entropy(images, torch.tensor(LABELS), v, reduction='none', ignore_index=1)",
          "nn.CrossEntropyLoss(label_smoothing=0.1)(images, torch.tensor(LABELS))", "F.one_hot(i)",
          "F.one_hot(i, 5)", "F.one_hot(g, num_classes=3)", "F.dropout2d(images).shape",
          "F.conv2d(images, filters, padding='same')",
          "F.conv2d(images, filters[:, :, :2], padding='same', dilation=2)",
          "F.conv2d(images, filters, None, 2, 'valid')",
          "F.conv1d(images[:, :, 0], filters[:, :, 0, :2], padding='same')",
          "nn.Conv2d(3, 4, 3, padding='same')(images).shape",
          "nn.Conv1d(3, 4, 4, padding='same')(images[:, :, 0]).shape",
          "F.conv3d(images[None], torch.ones(2, 2, 1, 3, 2), None, 1, (0, 1, 1))",
          "F.conv3d(images[None], torch.ones(2, 2, 2, 3, 3), padding='same')",
          "nn.Conv3d(2, 4, 3, padding=1, stride=(1, 2, 2))(images[None]).shape",
          "nn.Conv3d(2, 4, (1, 2, 3), bias=False).weight.shape"),
    *same("nn",
          "nn.Linear(3, 4)(x).shape", "net(x)", "nn.Conv2d(3, 4, 3)(images).shape", "nn.MaxPool2d(2)(images)",
          "nn.Conv2d(3, 4, kernel_size=3, stride=2, padding=1)(images).shape", "nn.AvgPool2d(2)(images)",
          "nn.LocalResponseNorm(3, k=2.0)(images)", "nn.BatchNorm2d(3)(images)", "nn.BatchNorm2d(3).eval()(images)",
          "nn.BatchNorm1d(3)(y[:, :3])", "nn.LayerNorm(images.shape[-1])(images).shape",
          "nn.GroupNorm(3, 3)(images).shape",
          "nn.AdaptiveAvgPool2d(1)(images)", "nn.AdaptiveAvgPool2d((2, None))(images)", "nn.Identity()(x)",
          "nn.Conv2d(4, 6, 3, groups=2).weight.shape",
          "nn.ReLU()(x)", "nn.Sigmoid()(x)", "nn.Tanh()(x)", "nn.Softmax(dim=1)(x)", "nn.Softmax(1)(x)",
          "nn.Embedding(3, 4)(i).shape", "nn.Embedding(3, 4, padding_idx=1).weight[1]", "nn.GELU()(x)",
          "nn.Conv1d(3, 4, 3, padding=1)(images[:, :, 0]).shape",
          "nn.Conv2d(3, 4, 3, dilation=2)(images).shape", "nn.ConvTranspose2d(3, 4, 2, stride=2)(images).shape",
          "nn.Upsample(scale_factor=2)(images)", "nn.PixelShuffle(1)(images)",
          "nn.AdaptiveAvgPool2d((2, 3))(images)",
          "nn.GELU(approximate='tanh')(x)", "nn.SiLU()(x)", "nn.LeakyReLU(0.2)(x)", "nn.ELU()(x)",
          "nn.Softplus()(x)", "nn.Hardsigmoid()(x)", "nn.CrossEntropyLoss()(x, i)",
          "nn.CrossEntropyLoss(weight=v, ignore_index=1, label_smoothing=0.1)(x, i)", "nn.MSELoss()(x, y)",
          "nn.MSELoss(reduction='sum')(x, y)", "nn.L1Loss()(x, y)", "nn.HuberLoss(delta=0.5)(x, y)",
          "nn.NLLLoss()(x, i)", "nn.BCEWithLogitsLoss()(x, b.to(x.dtype))", "nn.Identity(54, out=2)(x)",
          "nn.Flatten()(images)", "nn.Flatten(1)(images)", "nn.Dropout(0.5).eval()(x)", "len(net)",
          "net[0].weight.shape", "[name for name, _ in net.named_parameters()]", "len(list(net.parameters()))",
          "list(net.state_dict())", "len(list(net.children()))", "len(list(net.modules()))", "net.eval().training",
          "net.zero_grad()\n[p.grad for p in net.parameters()]", "net.apply(lambda m: None)(x)",
          "net.requires_grad_(False)\nnet(y).requires_grad", "sum(p.numel() for p in net.parameters())",
          "net.to('cpu')(x)", "net.double()[0].weight.dtype", "net.float()(x)", "copy.deepcopy(net)(x)",
          "net.load_state_dict(net.state_dict())\nnet(x)", "len(nn.ModuleList([nn.ReLU(), nn.Tanh()]))",
          "net[1] = nn.ReLU()\nnet(x)", "len(net.append(nn.Sigmoid()))", "net.append(nn.Sigmoid())\nnet(x)",
          "net.insert(1, nn.Sigmoid())\nnet(x)", "net.insert(1, nn.ReLU())\nlist(net.state_dict())",
          "del net[1]\nlist(net.state_dict())", "net.extend([nn.ReLU(), nn.Tanh()])\nnet(x)", "net[:2](x)",
          "list(net[1:].state_dict())", "type(net.pop(1)).__name__", "nn.Dropout2d(0.5).eval()(images)",
          "nn.LSTM(6, 4)(images[0])[0].shape", "list(nn.GRU(3, 4, 2, batch_first=True).state_dict())",
          "nn.MultiheadAttention(6, 2)(*[images[0]] * 3)[1].shape",
          "net.register_buffer('mean', torch.ones(2))\nlen(list(net.buffers()))", "pickle.loads(pickle.dumps(net))(x)"),
    *same("nn", "nn.functional.relu(x)", "nn.functional.dropout(x, 0.5, False)", "F.dropout(x, training=False)",
          "optim.SGD(net.parameters(), lr=0.1).zero_grad(set_to_none=True)"),
    *names("nn", ("nn.TransformerEncoderLayer(4, 2)", r"nn\.MultiheadAttention"),
           ("torch.logical_and(x > 0, y > 0)", "a & b, of masks"),
           ("torch.distributions.Normal", "minidl.randn and rand"),
           ("net.register_forward_hook(print)", r"call the layer in your own forward"),
           ("net.load_state_dict(net.state_dict(), strict=False)", r"load_state_dict: strict=False would leave names")),
    *same("optim",
          "optim.SGD(net.parameters(), 0.1)\n0", "optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)\n0",
          "sgd = optim.SGD(net.parameters(), lr=0.1)\nnet(y).sum().backward()\nsgd.step()\nnet[0].weight.detach()",
          "sgd = optim.SGD(net.parameters(), lr=0.1)\nsgd.zero_grad()\n[p.grad for p in net.parameters()]",
          "adam = optim.AdamW(net.parameters())\nnet(y).sum().backward()\nadam.step()\nnet[0].weight.detach()",
          "net(y).sum().backward()\nnn.utils.clip_grad_norm_(net.parameters(), 0.1)\nnet[0].weight.grad",
          "net(y).sum().backward()\nnn.utils.clip_grad_value_(net.parameters(), 0.1)\nnet[0].weight.grad",
          "rms = optim.RMSprop(net.parameters(), momentum=0.9)\nnet(y).sum().backward()\nrms.step()\n"
          "net[0].weight.detach()"),
    *names("optim", ("optim.Adagrad(net.parameters())", r"optim\.RMSprop\(params\), a moving average"),
           ("optim.clip_grad_norm_(net.parameters(), 1)", r"optim\.clip_grad_norm\(params, max_norm\)"),
           ("optim.SGD(net.parameters(), 0.1).param_groups", r"sgd\.groups, sgd\.group\(name\), or sgd\.lr"),
           ("optim.lr_scheduler.StepLR", r"fit\(schedule=optim\.cosine\(epochs \* len\(loader\)\)\)")),
    *same("autograd",
          "(x * x).sum().backward()\nx.grad", "x.grad is None", "x.requires_grad",
          "with torch.no_grad():\n    z = x * 2\nz.requires_grad", "x.detach().requires_grad", "x.is_leaf",
          "z = x * x\nz.retain_grad()\n(z * z).sum().backward()\nz.grad",
          "z = x * x\nz.retain_grad()\nz += 1\n(z * z).sum().backward()\nz.grad",
          "z = x * x\nz.retain_grad()\n(z.flatten() + z.flatten()).sum().backward()\n[z.grad, x.grad]",
          "y.requires_grad_().requires_grad", "with torch.no_grad():\n    x -= 0.1\nx.detach()",
          "(x * x).sum().backward()\nx.grad.zero_()", "z = (x * x).sum()\nz.backward(retain_graph=True)\n"
          "z.backward()\nx.grad", "(x * 2).backward(torch.ones_like(x))\nx.grad",
          "(x ** 3).sum().backward(create_graph=True)\nz, x.grad = x.grad, None\nz.sum().backward()\nx.grad"),
    *derivatives(PENALTY, "GRAD(net(x).sum(), net.parameters())",
                 "GRAD((x * x).sum(), [x, images], allow_unused=True)[1] is None",
                 "GRAD(GRAD((x ** 3).sum(), x, create_graph=True)[0].sum(), x, create_graph=True)",
                 "GRAD([x.sum(), (x * y).sum()], [x])", "GRAD(x * x, x, y)",
                 "JACOBIAN(lambda x: x @ w, x)", "JACOBIAN(lambda x, w: (x @ w).tanh(), (x, w), create_graph=True)[0]",
                 "HESSIAN(lambda x: net(x).sum(), x)", "HESSIAN(lambda x, w: (x @ w).tanh().sum(), (x, w))",
                 "HVP(lambda x: (x ** 3).sum(), x, y)", "HVP(lambda x, w: (x @ w).exp().sum(), (x, w), (y, w))"),
    *names("autograd", ("x.grad_fn", r"t\.node, the Node"), ("x.register_hook(print)", r"read t\.grad after backward"),
           ("torch.autograd.grad(x.sum(), x)", r"minidl\.grad, minidl\.jacobian"),
           ("torch.inference_mode()", r"minidl\.no_grad\(\)")),
    *same("dtype and device",
          "y.dtype", "y.float().dtype", "y.double().dtype", "y.long()", "y.int()", "b.float()", "y.type_as(m).dtype",
          "y.bool()", "y.to('cpu')", "y.cpu()", "y.is_cuda", "v.sum().item()", "y.tolist()", "float(v.sum())",
          "f'{v.sum():.3f}'", "y.element_size()", "torch.tensor(A8) / 255", "torch.tensor([1, 2]) + 1.5",
          "torch.tensor([1, 4]).sqrt()", "str(y.device)", "str(torch.device('cpu'))"),
    *names("dtype and device", ("torch.float32", r"numpy\.float32, or 'float32'"), ("y.half()", "set_precision"),
           ("torch.cuda.is_available()", r"device='cuda', or 'auto'")),
    *[Row("data", code, "") for code in (
        "len(loader)", "[len(labels) for _, labels in loader]", "len(loader.dataset)",
        "next(iter(loader))[0].shape", "[i for i, (images, labels) in enumerate(loader)]")],
    *names("data", ("data.TensorDataset(x, y)", r"data\.DataLoader\(\(x, y\), batch_size\)"),
           ("data.ConcatDataset([x, y])", r"numpy\.concatenate"), ("loader.num_workers", "prefetch=, batches made")),
]


def test_most_of_them_work() -> None:
    assert len({row.code for row in ROWS}) == len(ROWS) >= 261
    assert sum(not row.error for row in ROWS) >= 300


# ---------------------------------------------------------------- running one
A = np.arange(6.0).reshape(2, 3)
A8 = np.arange(4, dtype=np.uint8)
LABELS = np.arange(72).reshape(2, 6, 6) % 3
LOADER = data.DataLoader(data.load("synthetic-digits", "test").first(20), 8)
RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((2, 3, 6, 6), np.float32)
X, Y, W, V = (RNG.standard_normal(shape, np.float32) for shape in ((2, 3), (2, 3), (3, 4), (3,)))
ARRAYS = {"y": Y, "w": W, "v": V, "m": np.abs(X) + 1, "s": X.reshape(2, 1, 3, 1)[:, :, :1], "b": X > 0,
          "i": np.array([1, 0]), "g": np.array([[1], [0]]), "filters": RNG.standard_normal((2, 3, 3, 3), np.float32)}


def world(torch: Any, ops: Any, functional: Any, nn: Any, optim: Any, data: Any) -> dict[str, Any]:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape))
    leaves = {name: torch.tensor(array, requires_grad=True) for name, array in (("x", X), ("images", IMAGES))}
    return {"torch": torch, "ops": ops, "F": functional, "nn": nn, "optim": optim, "data": data, "net": net, "np": np,
            "math": math, "LABELS": LABELS, "A": A, "A8": A8, "copy": copy, "pickle": pickle, "loader": LOADER,
            **leaves, "leaves": [*leaves.values(), *net.parameters()],
            **{name: torch.tensor(array) for name, array in ARRAYS.items()}}


def ours() -> dict[str, Any]:
    return world(minidl, ops, ops, nn, optim, data)


def run(code: str, names: dict[str, Any]) -> Any:
    """The value of the last expression."""
    tree = ast.parse(code)
    last = tree.body.pop()
    assert isinstance(last, ast.Expr), code
    exec(compile(tree, code, "exec"), names)
    return eval(compile(ast.Expression(last.value), code, "eval"), names)


def plain(value: Any) -> Iterator[Any]:
    """What a result holds: arrays, and plain values."""
    if hasattr(value, "detach"):
        yield value.detach().numpy()
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from plain(each)
    else:
        yield str(value).removeprefix("torch.") if not isinstance(value, (bool, int, float, str)) else value


def backward(value: Any, names: dict[str, Any]) -> list[Any]:
    """The gradients of what a result was computed from."""
    for each in value if isinstance(value, (tuple, list)) else [value]:
        if getattr(each, "requires_grad", False) and not each.is_leaf:
            weights = np.arange(1, each.numel() + 1, dtype=np.float32).reshape(tuple(each.shape))
            (each * names["torch"].tensor(weights)).sum().backward()
    return [None if leaf.grad is None else leaf.grad.numpy() for leaf in names["leaves"]]


@pytest.mark.parametrize("row", [row for row in ROWS if not row.error], ids=lambda row: f"{row.area}: {row.code}")
def test_works(row: Row) -> None:
    mine = ours()
    backward(run(row.code, mine), mine)


@pytest.mark.torch
@pytest.mark.parametrize("row", [row for row in ROWS if not row.error and row.theirs != ""],
                         ids=lambda row: f"{row.area}: {row.code}")
def test_gives_what_pytorch_gives(row: Row) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    mine = ours()
    value = run(row.code, mine)
    grads = backward(value, mine)
    theirs = world(torch, torch, torch.nn.functional, torch.nn, torch.optim, SimpleNamespace())
    expected = run(row.theirs or row.code, theirs)
    for got, want in zip([*plain(value), *grads], [*plain(expected), *backward(expected, theirs)], strict=True):
        if isinstance(want, np.ndarray):
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            # What is left of a sum whose terms cancel is as exact as its terms are
            scale = np.abs(want).max(initial=1) if want.dtype.kind == "f" else 1
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * scale)
        elif isinstance(want, float):
            assert got == pytest.approx(want, rel=1e-6)
        else:
            assert got == want


@pytest.mark.parametrize("row", [row for row in ROWS if row.error], ids=lambda row: f"{row.area}: {row.code}")
def test_names_the_other_way(row: Row) -> None:
    with pytest.raises((AttributeError, TypeError, ValueError)) as caught:
        run(row.code, ours())
    assert re.search(row.error, str(caught.value)), str(caught.value)
