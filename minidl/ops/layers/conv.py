"""Convolution: PMPP chapter 16 (forward Fig. 16.4, gradients Figs. 16.8 and 16.9 with their corrections)."""

from __future__ import annotations

from ...core.tensor import Tensor
from ..common.conv.parts import as_one, in_parts
from ..common.geometry import Pair, Windows, conv_geometry
from ..common.op import op

__all__ = ["conv2d"]


@op(floating=True)
def conv2d(k, x: Tensor, w: Tensor, b: Tensor | None = None, *, stride: Pair = 1, padding: Windows = 0,
           dilation: Pair = 1, groups: int = 1, algorithm: str = "auto"):
    """Cross-correlate images with filters: x (n,c,h,w), w (m,c,kh,kw), b (m,) -> (n,m,oh,ow).

    y[n,m,i,j] = b[m] + sum over c,p,q of x[n, c, i*sh + p, j*sw + q] * w[m,c,p,q], zeros outside x
    (PMPP ch. 16, Fig. 16.4; Krizhevsky 2009, section 6.2).

    stride: an int or (sh, sw). padding: p, (ph, pw), ((top, bottom), (left, right)), or "same": at stride 1, as much
    as makes the output as large as the images.
    algorithm: "auto", or one of the backend's: "direct", "unroll", "gemm", "fft" or, for groups and dilation, "grouped"
    on the CPU. groups: the number of parts into which channels and filters are split, each convolved by itself: w is
    then (m,c/groups,kh,kw) (KSH 2012, section 3.2). dilation: an int or (dh, dw), the distance of the pixels that a
    filter reads.

    NaN and infinity reach every output whose window holds them. Where an infinite or NaN filter element meets the zeros
    of padding (or, for the gradient by x, those around gy), some algorithms multiply, which gives NaN (0 * inf), and
    others leave the zeros out, in minidl as in PyTorch (there it depends on the sizes). On CUDA, and on the CPU with
    one channel and one filter per group, the same holds where an infinite or NaN pixel meets the zeros around gy, in
    the gradient by w. "fft" spreads them further: docs/fft.md.

    Raises ValueError if shapes, stride, padding, algorithm, groups or dilation do not fit; it names both sizes.

    >>> from minidl import Tensor
    >>> x, w = Tensor([[[[1.0, 2.0, 3.0]]]]), Tensor([[[[1.0, -1.0]]]])
    >>> conv2d(x, w).tolist()
    [[[[-1.0, -1.0]]]]
    """
    g = conv_geometry(x.shape, w.shape, None if b is None else b.shape, stride, padding, algorithm, groups, dilation)

    def backward(gy, need):
        return (k.conv2d_grad_x(gy, w, g) if need[0] else None,
                k.conv2d_grad_w(gy, x, g) if need[1] else None,
                k.conv2d_grad_b(gy) if need[2] else None)
    if not (g.dense or as_one(g)):
        y, of_parts = in_parts(k, x, w, b, g=g)
        of_parts.__wrapped__ = backward    # the same, in whole convolutions: a second derivative reads it
        return y, of_parts
    return k.conv2d(x, w, b, g), backward
