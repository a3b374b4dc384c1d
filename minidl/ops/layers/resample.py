"""Convolution in one dimension and in three, transposed convolution, and images of other sizes: by ops and primitives
of conv2d."""

from __future__ import annotations

from ...core.tensor import Tensor
from ..arrays.arrange import own, pad, stack
from ..arrays.indexing import getitem
from ..arrays.shapes import reshape, transpose
from ..common.geometry import Padding, Pair, Triple, around, conv_geometry, edges, is_int, pair, several
from ..common.op import also, op
from .conv import conv2d
from .pool import avg_pool2d

__all__ = ["adaptive_avg_pool2d", "conv1d", "conv3d", "conv_transpose2d", "interpolate", "pixel_shuffle"]

VOLUME = "depth", "height", "width"
Size = int | None | tuple[int | None, int | None]


@also
def conv1d(x: Tensor, w: Tensor, b: Tensor | None = None, stride: int = 1, padding: int | tuple[int, int] | str = 0,
           dilation: int = 1, groups: int = 1, algorithm: str = "auto") -> Tensor:
    """Cross-correlate sequences with filters: x (n,c,l), w (m,c/groups,size), b (m,) -> (n,m,ol), by `conv2d`.

    padding: an int, (before, after), or "same" as in `conv2d`. Raises ValueError if shapes or options do not fit.

    >>> conv1d(Tensor([[[1.0, 2.0, 4.0]]]), Tensor([[[-1.0, 1.0]]])).tolist()
    [[[1.0, 2.0]]]
    """
    if x.ndim != 3 or w.ndim != 3:
        raise ValueError(f"conv1d: x has shape {x.shape} and w has shape {w.shape} but both must have 3 axes, x "
                         "(n,c,l) and w (m,c,size); see .reshape()")
    y = conv2d(reshape(x, shape=(*x.shape[:2], 1, x.shape[2])), reshape(w, shape=(*w.shape[:2], 1, w.shape[2])), b,
               stride=(1, stride), dilation=(1, dilation), groups=groups, algorithm=algorithm,
               padding=padding if isinstance(padding, str) else (
                   (0, 0), padding if isinstance(padding, tuple) else (padding, padding)))
    return reshape(y, shape=(*y.shape[:2], y.shape[3]))


@also
def conv3d(x: Tensor, w: Tensor, b: Tensor | None = None, stride: Triple = 1, padding: Triple | str = 0,
           dilation: Triple = 1, groups: int = 1, algorithm: str = "auto") -> Tensor:
    """Cross-correlate volumes with filters: x (n,c,d,h,w), w (m,c/groups,kd,kh,kw), b (m,) -> (n,m,od,oh,ow).

    By one `conv2d`. The channels of its images are all planes that an output plane reads: kd times x's memory.
    padding: an int, (pd, ph, pw), or "same" as in `conv2d`. Raises ValueError if shapes or options do not fit.

    >>> conv3d(Tensor([[[[[1.0]], [[2.0]], [[4.0]]]]]), Tensor([[[[[-1.0]], [[1.0]]]]])).tolist()
    [[[[[1.0]], [[2.0]]]]]
    """
    if x.ndim != 5 or w.ndim != 5 or not is_int(groups, 1) or x.shape[1] != w.shape[1] * groups:
        raise ValueError(f"conv3d: x has shape {x.shape}, w {w.shape} and groups is {groups!r} but they must be x "
                         "(n,c,d,h,w) and w (m,c/groups,kd,kh,kw)")
    sd, sh, sw = strides = several("conv3d", "stride", stride, 1, VOLUME)
    dd, dh, dw = dilations = several("conv3d", "dilation", dilation, 1, VOLUME)
    given = around("conv3d", padding, w.shape[2:], strides, dilations)
    ends, *sides = given if given and isinstance(padding, str) else several("conv3d", "padding", given, 0, VOLUME)
    if ends not in (0, (0, 0)):
        x = pad(x, widths=(0, 0, 0, 0, *edges("conv3d", (ends, 0))[:2]))
    (n, c, depth, *plane), (m, _, kd, *window) = x.shape, w.shape
    od = (depth - dd * (kd - 1) - 1) // sd + 1
    if od < 1:
        raise ValueError(f"conv3d: the window is {dd * (kd - 1) + 1} deep, more than the {depth} planes of the padded "
                         "input; use a smaller window or more padding")
    planes = [getitem(x, (slice(None), slice(None), slice(p * dd, p * dd + (od - 1) * sd + 1, sd))) for p in range(kd)]
    images = transpose(stack(planes, 2), axes=(0, 3, 1, 2, 4, 5))                      # (n,od,c,kd,h,w)
    y = conv2d(reshape(images, shape=(n * od, c * kd, *plane)), reshape(w, shape=(m, c // groups * kd, *window)), b,
               stride=(sh, sw), padding=(sides[0], sides[1]), dilation=(dh, dw), groups=groups, algorithm=algorithm)
    return transpose(reshape(y, shape=(n, od, *y.shape[1:])), axes=(0, 2, 1, 3, 4))


@op(floating=True)
def conv_transpose2d(k, x: Tensor, w: Tensor, b: Tensor | None = None, *, stride: Pair = 1, padding: Padding = 0,
                     output_padding: Pair = 0, algorithm: str = "auto"):
    """What takes gradients back through `conv2d`, as an op: x (n,c,h,w), w (c,m,kh,kw), b (m,) -> (n,m,oh,ow).

    y[n,m,i sh + p - top,j sw + q - left] sums x[n,c,i,j] w[c,m,p,q]: oh = (h - 1) sh - top - bottom + kh +
    output_padding. stride, padding and algorithm are those of the convolution that it goes back through.
    output_padding: an int or a pair, less than the stride: it selects one of the sizes that a convolution maps to h.

    Raises ValueError if shapes, stride or paddings do not fit.

    >>> conv_transpose2d(Tensor([[[[1.0, 2.0]]]]), Tensor([[[[1.0, 10.0]]]]), stride=2).tolist()
    [[[[1.0, 10.0, 2.0, 20.0]]]]
    """
    xs, ws = x.shape, w.shape
    name = "conv_transpose2d"
    if len(xs) != 4 or len(ws) != 4 or xs[1] != ws[0]:
        raise ValueError(f"{name}: x has shape {xs} and w has shape {ws} but they must be x (n,c,h,w) and w "
                         "(c,m,kh,kw)")
    if b is not None and b.shape != ws[1:2]:
        raise ValueError(f"{name}: b has shape {b.shape} but w has {ws[1]} maps; b must have shape ({ws[1]},)")
    strides, edge = pair(name, "stride", stride, 1), edges(name, padding)
    more = pair(name, "output_padding", output_padding, 0)
    if more[0] >= strides[0] or more[1] >= strides[1]:
        raise ValueError(f"{name}: output_padding {output_padding!r} is not less than the stride {stride!r}; use less")
    size = tuple((n - 1) * s - before - after + window + extra for n, s, before, after, window, extra in zip(
        xs[2:], strides, edge[::2], edge[1::2], ws[2:], more, strict=True))
    if min(size) < 1:
        raise ValueError(f"{name}: padding {padding!r} leaves {size[0]}x{size[1]} of x {xs} by w {ws}; "
                         "use less")
    g = conv_geometry((xs[0], ws[1], *size), ws, None, strides, (edge[:2], edge[2:]), algorithm)

    def backward(gy, need):
        return (k.conv2d(gy, w, None, g) if need[0] else None,
                k.conv2d_grad_w(x, gy, g) if need[1] else None,
                k.conv2d_grad_b(gy) if need[2] else None)
    y = k.conv2d_grad_x(x, w, g)
    return y if b is None else k.add(y, k.reshape(b, (1, ws[1], 1, 1))), backward


def _images(name: str, x: Tensor) -> tuple[int, ...]:
    if x.ndim != 4:
        raise ValueError(f"{name}: x has shape {x.shape} but must have 4 axes (n,c,h,w); see .reshape()")
    return x.shape


def interpolate(x: Tensor, size: Pair | None = None, scale_factor: Pair | None = None, mode: str = "nearest") -> Tensor:
    """Each pixel several times: x (n,c,h,w) -> (n,c,h fh,w fw). scale_factor: an int or (fh, fw); or give the size.

    Raises ValueError for another mode than "nearest", for both or neither of size and scale_factor, and for a size that
    is not a multiple of x's.

    >>> interpolate(Tensor([[[[1.0, 2.0]]]]), scale_factor=2).tolist()
    [[[[1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 2.0, 2.0]]]]
    """
    h, w = _images("interpolate", x)[2:]
    if mode != "nearest":
        raise ValueError(f"interpolate: mode {mode!r} is not 'nearest', the only one")
    if (size is None) == (scale_factor is None):
        raise ValueError(f"interpolate: size is {size!r} and scale_factor is {scale_factor!r}; give one of them")
    if scale_factor is not None:
        fh, fw = pair("interpolate", "scale_factor", scale_factor, 1)
    else:
        oh, ow = pair("interpolate", "size", size, 1)                # type: ignore[arg-type]
        fh, fw = oh // max(1, h), ow // max(1, w)
        if (h * fh, w * fw) != (oh, ow):
            raise ValueError(f"interpolate: size {oh}x{ow} is not a multiple of {h}x{w}; name rows and columns by "
                             "x[:, :, i][:, :, :, j]")
    return _interpolate(x, factors=(fh, fw))


@op
def _interpolate(k, x: Tensor, *, factors: tuple[int, int]):
    return k.interpolate(x, factors), lambda gy, need: (k.interpolate_grad_x(gy, factors),)


def pixel_shuffle(x: Tensor, upscale_factor: int) -> Tensor:
    """Channels become pixels: x (n,c r r,h,w) -> (n,c,h r,w r) for an upscale_factor r (Shi et al. 2016).

    Raises ValueError if r r does not divide the channels.

    >>> pixel_shuffle(Tensor([[[[1.0]], [[2.0]], [[3.0]], [[4.0]]]]), 2).tolist()
    [[[[1.0, 2.0], [3.0, 4.0]]]]
    """
    n, c, h, w = _images("pixel_shuffle", x)
    r = upscale_factor
    if not is_int(r, 1) or c % (r * r):
        raise ValueError(f"pixel_shuffle: upscale_factor is {r!r} but must be an int of at least 1 whose square "
                         f"divides the {c} channels of x {x.shape}")
    apart = reshape(x, shape=(n, c // (r * r), r, r, h, w))
    return own(reshape(transpose(apart, axes=(0, 1, 4, 2, 5, 3)), shape=(n, c // (r * r), h * r, w * r)), x)


@also
def adaptive_avg_pool2d(x: Tensor, output_size: Size) -> Tensor:
    """Means over a grid of windows: x (n,c,h,w) -> (n,c,oh,ow). output_size: an int or (oh, ow).

    Window i of oh has the rows from i*h/oh, rounded down, to (i+1)*h/oh, rounded up. So output_size 1 is the mean of
    each map. None keeps the size of x. Raises ValueError for an x of other than 4 axes, and sizes below 1.

    >>> x = Tensor([[[[1.0, 2.0, 6.0], [3.0, 4.0, 8.0]]]])
    >>> adaptive_avg_pool2d(x, 1).item(), adaptive_avg_pool2d(x, (1, 2)).tolist()
    (4.0, [[[[2.5, 5.0]]]])
    """
    if x.ndim != 4 or 0 in x.shape[1:]:
        raise ValueError(f"adaptive_avg_pool2d: x has shape {x.shape} but must be (n,c,h,w), with at least one "
                         "channel, row and column; see .reshape()")
    asked = output_size if isinstance(output_size, (tuple, list)) else (output_size, output_size)
    if len(asked) != 2 or not all(n is None or is_int(n, 1) for n in asked):
        raise ValueError(f"adaptive_avg_pool2d: output_size is {output_size!r} but must be an int or a pair (oh, ow), "
                         "each at least 1, or None to keep a size")
    sizes = [m if n is None else n for n, m in zip(asked, x.shape[2:], strict=True)]
    if not any(m % n for n, m in zip(sizes, x.shape[2:], strict=True)):                # all windows are alike
        return avg_pool2d(x, size=(x.shape[2] // sizes[0], x.shape[3] // sizes[1]))
    return _adaptive_avg_pool2d(x, size=(sizes[0], sizes[1]))


@op
def _adaptive_avg_pool2d(k, x: Tensor, *, size: tuple[int, int]):
    before = x.shape[2:]
    y = k.adaptive_avg_pool2d(x if x.dtype.kind == "f" else k.cast(x, "float64"), size)
    return y, lambda gy, need: (k.adaptive_avg_pool2d_grad_x(gy, before),)
