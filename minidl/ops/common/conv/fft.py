"""Convolution by the fast Fourier transform (PMPP ch. 16, exercise 3; Vasilache et al. 2014, "fbfft"), for any backend.

A convolution is a product in the frequency domain. Images are cut into tiles of th x tw pixels that overlap by the
filter's size less one (overlap-save); the last axes of tiles and of filters, padded with zeros to the same size, are
transformed; at each frequency the channels are summed, which is a product of two complex matrices; and of what is
transformed back, the outputs that do not wrap around the tile's end are kept. Transforms are of real numbers, so half
of the frequencies are enough.

    y    for each frequency   conj(W) (m,c) @ X (c,tiles)       tiles of x, at their first outputs
    dx   for each frequency   W^T     (c,m) @ GY (m,tiles)      tiles of gy; not conjugated, since filters are mirrored
    dw   for each frequency   conj(GY) (m,tiles) @ X^T (tiles,c), summed over the images; gy is the filter here

Other algorithms save work by a stride, this one does not: outputs of a stride of 1 are computed, and those between are
left out; in the gradients gy has zeros there. One text serves NumPy and CuPy: `Backend` holds what they do in different
ways.

Rounding: errors are spread over a tile. An output is a few eps of S away from the exact one, even if that is small or
zero; S is the root of the sum, over channels, of |tile|^2 |filter|^2 (spread_bound is what tests allow). NaN
and infinity are spread, too: in an image they make every output of their tiles NaN, in all maps; in a filter, its whole
map.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple

from ..geometry import ConvGeometry
from ..primitives import Array

TILES = 16, 32                             # sizes that are tried in addition to the whole image
MAX_FREQUENCIES = 65535                    # of a tile: as many matrices are in one product on a GPU
WORKING = 4                                # copies of a spectrum, at most, while it is made and used

Work = Callable[[int, int], Any]


class Backend(NamedTuple):
    """How arrays of a backend are transformed and multiplied, and how many bytes may be used for that.

    `forward` pads the last two axes to a size and transforms them, `inverse` goes back, each up to a factor: after
    both, a convolution must be multiplied by `gain` of the number of pixels of a tile.
    """

    xp: ModuleType                         # numpy or cupy
    empty: Callable[[tuple[int, ...], Any], Array]
    forward: Callable[[Array, tuple[int, int]], Array]         # (...,h,w) -> (...,th,tw//2+1)
    inverse: Callable[[Array, tuple[int, int]], Array]         # (...,th,tw//2+1) -> (...,th,tw)
    gain: Callable[[int], float]
    product: Callable[[Array, Array], Array]                   # (f,o,a) @ (f,a,l) -> (f,o,l)
    correlation: Callable[[Array, Array], Array]               # conj (f,m,l) @ (f,c,l)^T -> (f,m,c)
    each: Callable[[int, int, Work], Iterable[Any]]            # work(begin, end) for chunks of a count, in order
    filter_bytes: Callable[[], int]        # for the spectra of filters
    image_bytes: Callable[[], int]         # for those of the images of a chunk


class Tiling(NamedTuple):
    """Tiles of th x tw, each `down` or `right` pixels after the one before; each gives down x right outputs."""

    th: int
    tw: int
    down: int
    right: int
    rows: int
    columns: int

    @property
    def size(self) -> tuple[int, int]:
        return self.th, self.tw

    @property
    def per_image(self) -> int:
        return self.rows * self.columns

    @property
    def frequencies(self) -> int:
        return self.th * (self.tw // 2 + 1)


# ---------------------------------------------------------------- which tiles
def _outputs(direction: str, g: ConvGeometry) -> tuple[int, int]:
    """What tiles cover: of y the outputs of a stride of 1, of dx the pixels."""
    return (g.h, g.w) if direction == "dx" else ((g.oh - 1) * g.sh + 1, (g.ow - 1) * g.sw + 1)


def _smooth(least: int) -> int:
    """The least number from 2 on that is at least `least` and has no factors but 2, 3 and 5: transforms are fast."""
    size = max(2, least)
    while True:
        rest = size
        for factor in (2, 3, 5):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return size
        size += 1


def tilings(direction: str, g: ConvGeometry) -> list[Tiling]:
    """Those that are possible: 16, 32 or the whole image along each axis."""
    (oh, ow), found = _outputs(direction, g), []
    sizes = [[tile for tile in TILES if k <= tile < least] + [_smooth(least)]
             for k, least in ((g.kh, oh + g.kh - 1), (g.kw, ow + g.kw - 1))]
    for th in sizes[0]:
        for tw in sizes[1]:
            down, right = th - g.kh + 1, tw - g.kw + 1
            found.append(Tiling(th, tw, down, right, -(-oh // down), -(-ow // right)))
    return found


def multiplications(g: ConvGeometry, t: Tiling) -> int:
    """Of real numbers, in one direction: N log2 N in a transform of N points, 4 for a product of complex ones."""
    points = t.th * t.tw
    transforms = (g.c + g.m) * g.n * t.per_image + g.m * g.c
    return int(transforms * points * math.log2(points)) + 4 * t.frequencies * g.m * g.c * g.n * t.per_image


@functools.lru_cache(maxsize=4096)
def tiling(direction: str, g: ConvGeometry) -> Tiling:
    """The one with the fewest multiplications."""
    possible = tilings(direction, g)
    few = [t for t in possible if t.frequencies <= MAX_FREQUENCIES]
    return min(few or possible, key=lambda t: multiplications(g, t))


# ---------------------------------------------------------------- the pieces
def _placed(xp: ModuleType, x: Array, first: tuple[int, int], step: tuple[int, int], size: tuple[int, int]) -> Array:
    """(a,n,*size) from images (n,a,h,w): pixel (i,j) at first + (i,j) * step, else zeros; those outside are cut."""
    placed = xp.zeros((x.shape[1], x.shape[0], *size), x.dtype)
    to, of = [], []
    for start, by, length, room in zip(first, step, x.shape[2:], size):
        begin = max(0, -(start // by))
        end = max(begin, min(length, (room - 1 - start) // by + 1))
        of.append(slice(begin, end))
        to.append(slice(start + begin * by, max(start + begin * by, start + (end - 1) * by + 1), by))
    placed[:, :, to[0], to[1]] = x.swapaxes(0, 1)[:, :, of[0], of[1]]
    return placed


def _spectrum(k: Backend, tiles: Array, size: tuple[int, int]) -> Array:
    """(f,a,l) of tiles (a,...,h,w): l joins all axes between."""
    spectrum = k.forward(tiles, size)
    return k.xp.ascontiguousarray(spectrum.reshape(len(tiles), -1, size[0] * (size[1] // 2 + 1)).transpose(2, 0, 1))


def _spectrum_of_images(k: Backend, x: Array, first: tuple[int, int], step: tuple[int, int], t: Tiling,
                        kept: tuple[int, int]) -> Array:
    """(f,a,n*tiles) of images (n,a,h,w), which are placed as in _placed; of each tile the first pixels are kept."""
    placed = _placed(k.xp, x, first, step, ((t.rows - 1) * t.down + kept[0], (t.columns - 1) * t.right + kept[1]))
    a, n, h, w = placed.strides
    tiles = k.xp.lib.stride_tricks.as_strided(
        placed, (*placed.shape[:2], t.rows, t.columns, *kept), (a, n, h * t.down, w * t.right, h, w))
    return _spectrum(k, tiles, t.size)


def _pixels(k: Backend, spectrum: Array, shape: tuple[int, ...], t: Tiling) -> Array:
    """(*shape,th,tw) of a spectrum (f,a,l)."""
    spectrum = k.xp.ascontiguousarray(spectrum.transpose(1, 2, 0))
    return k.inverse(spectrum.reshape(*shape, t.th, t.tw // 2 + 1), t.size)


def _chunks(k: Backend, t: Tiling, inputs: int, outputs: int, itemsize: int) -> tuple[int, int]:
    """How many outputs' filters, and how many images, go through at a time; at least one."""
    bytes_per_spectrum = WORKING * t.frequencies * 2 * itemsize
    filters = max(1, min(outputs, k.filter_bytes() // (bytes_per_spectrum * inputs)))
    return filters, max(1, k.image_bytes() // (bytes_per_spectrum * t.per_image * (inputs + filters)))


class Way(NamedTuple):
    """Pixels of images are placed from `first` on, in steps of `spread`; the first `skip` results of a tile are wrong;
    outputs are taken in steps of `stride`."""

    first: tuple[int, int]
    spread: tuple[int, int]
    skip: tuple[int, int]
    stride: tuple[int, int]


def _maps(k: Backend, x: Array, w: Array, b: Array | None, out: Array, t: Tiling, way: Way,
          conjugated: bool) -> Array:
    """out (n,o,h,w) of images (n,a,...) and filters (o,a,kh,kw)"""
    filters, images = _chunks(k, t, w.shape[1], len(w), x.dtype.itemsize)
    for o in range(0, len(w), filters):
        spectrum = _spectrum(k, w[o:o + filters], t.size) * w.dtype.type(k.gain(t.th * t.tw))      # (f,o,a)
        for _ in k.each(len(out), images, functools.partial(
                _chunk_of_maps, k, x, spectrum.conj() if conjugated else spectrum,
                None if b is None else b[o:o + filters], out[:, o:o + filters], t, way)):
            pass
    return out


def _chunk_of_maps(k: Backend, x: Array, spectrum: Array, b: Array | None, out: Array, t: Tiling, way: Way, i: int,
                   j: int) -> None:
    some, (sh, sw) = out[i:j], way.stride
    sums = k.product(spectrum, _spectrum_of_images(k, x[i:j], way.first, way.spread, t, t.size))   # (f,o,(j-i)*tiles)
    tiles = _pixels(k, sums, (some.shape[1], j - i, t.rows, t.columns), t)
    tiles = tiles[..., way.skip[0]:way.skip[0] + t.down, way.skip[1]:way.skip[1] + t.right]
    maps = tiles.transpose(1, 0, 2, 4, 3, 5).reshape(*some.shape[:2], t.rows * t.down, t.columns * t.right)
    maps = maps[:, :, :(some.shape[2] - 1) * sh + 1:sh, :(some.shape[3] - 1) * sw + 1:sw]
    some[...] = maps if b is None else maps + b[:, None, None]


def _chunk_of_taps(k: Backend, gy: Array, x: Array, g: ConvGeometry, t: Tiling, i: int, j: int) -> Array:
    """(f,m,c), a sum over images i to j"""
    gradients = _spectrum_of_images(k, gy[i:j], (0, 0), (g.sh, g.sw), t, (t.down, t.right))
    return k.correlation(gradients, _spectrum_of_images(k, x[i:j], (g.top, g.left), (1, 1), t, t.size))


# ---------------------------------------------------------------- the three directions
def y(k: Backend, x: Array, w: Array, b: Array | None, g: ConvGeometry) -> Array:
    """A tile of x gives the outputs of windows that begin in it, but for those that reach beyond its end."""
    out = k.empty((g.n, g.m, g.oh, g.ow), x.dtype)
    return _maps(k, x, w, b, out, tiling("y", g), Way((g.top, g.left), (1, 1), (0, 0), (g.sh, g.sw)), True)


def dx(k: Backend, gy: Array, w: Array, g: ConvGeometry) -> Array:
    """A tile of gy gives the pixels of windows that end in it, but for those that begin before it."""
    out, before = k.empty((g.n, g.c, g.h, g.w), gy.dtype), (g.kh - 1, g.kw - 1)
    way = Way((before[0] - g.top, before[1] - g.left), (g.sh, g.sw), before, (1, 1))
    return _maps(k, gy, w.swapaxes(0, 1), None, out, tiling("dx", g), way, False)


def dw(k: Backend, gy: Array, x: Array, g: ConvGeometry) -> Array:
    """A tile of x is multiplied by the gradients of the outputs whose taps are all in it. The sum of all is transformed
    back once."""
    out, t = k.empty((g.m, g.c, g.kh, g.kw), gy.dtype), tiling("dw", g)
    filters, images = _chunks(k, t, g.c, g.m, gy.dtype.itemsize)
    for m in range(0, g.m, filters):
        some = out[m:m + filters]
        parts = iter(k.each(g.n, images, functools.partial(_chunk_of_taps, k, gy[:, m:m + filters], x, g, t)))
        total = next(parts, None)
        if total is None:
            some[...] = 0                  # of no images
            continue
        for part in parts:
            total += part
        taps = _pixels(k, total, some.shape[:2], t)[..., :g.kh, :g.kw]
        some[...] = taps * taps.dtype.type(k.gain(t.th * t.tw))
    return out
