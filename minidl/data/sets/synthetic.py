"""Labelled data that are computed instead of downloaded: images of handwritten-like digits and of coloured shapes,
and a table of measurements.

The images replace MNIST and CIFAR-10 when these are neither on disk nor reachable. Both sets have the real set's
shapes and types, ten classes, and enough variation of position, size, slant and colour that a linear classifier
stays far below a convolutional net.

Image i of a split is a function of (seed, split, i) alone: its random numbers are read from a Philox counter at a
place that i decides, so a longer request starts with the images of a shorter one. The bytes are the same on every
platform: the random bits are integers, and all arithmetic up to the one rounding at the end is addition,
multiplication, division, square root, minimum and maximum, which IEEE 754 defines to the last bit. So there are no
sines (a rotation is given by the tangent of half its angle), no normal deviates, and no sums whose order a library
chooses.
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

CLASSES = 10
CHUNK = 32  # images rendered at once: their arrays stay in the cache


def random_words(stream: str, start: int, count: int, size: int) -> Array:
    """Return rows start ... start+count of an endless table of random uint64, `size` in a row."""
    steps = -(-size // 4)  # Philox makes four words per step of its counter
    key = int.from_bytes(hashlib.sha256(stream.encode()).digest()[:16], "little")
    words = np.random.Philox(key=key).advance(start * steps).random_raw(count * steps * 4)
    return words.reshape(count, steps * 4)[:, :size]


def sample(ranges: dict[str, tuple[float, float, int]], stream: str, start: int, count: int) -> dict[str, Array]:
    """Draw for each image the values that `ranges` names: {name: (lowest, highest, values per image)}."""
    sizes = [size for _, _, size in ranges.values()]
    words = random_words(stream, start, count, sum(sizes))
    parts = np.split((words >> 11) * 2.0**-53, np.cumsum(sizes)[:-1], axis=1)  # uniform in [0, 1)
    return {name: low + (high - low) * part for (name, (low, high, _)), part in zip(ranges.items(), parts, strict=True)}


def pixel_noise(shape: tuple[int, int, int], stream: str, start: int, count: int) -> Array:
    """Return noise of triangular distribution in (-1, 1) for `count` images of `shape`."""
    size = 2 * shape[0] * shape[1] * shape[2]  # the difference of two random bytes for each pixel
    words = np.ascontiguousarray(random_words(stream, start, count, -(-size // 8)), dtype="<u8")
    pairs = words.view(np.uint8)[:, :size].reshape(count, 2, *shape)
    return np.subtract(pairs[:, 0], pairs[:, 1], dtype=np.float32) / np.float32(256)


def shuffled_labels(stream: str, count: int, classes: int = CLASSES) -> Array:
    """Return labels in which each run of `classes` images has every class once, in random order."""
    runs = -(-count // classes)
    order = np.argsort(random_words(stream, 0, runs, classes), axis=1, kind="stable")  # (runs, classes)
    return order.astype(np.uint8).reshape(-1)[:count]


def chunks(count: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of consecutive chunks of images."""
    for start in range(0, count, CHUNK):
        yield start, min(start + CHUNK, count)


def to_bytes(values: Array) -> Array:
    """Round grey values to the nearest of 0 ... 255: the only rounding to bytes."""
    return np.rint(np.clip(values, 0, 255)).astype(np.uint8)


def rotation(half_angle_tangent: Array) -> tuple[Array, Array]:
    """Return (cosine, sine) of the angle whose half has this tangent."""
    t2 = half_angle_tangent * half_angle_tangent
    return (1 - t2) / (1 + t2), 2 * half_angle_tangent / (1 + t2)


# Two ways to write each digit. A point is two figures, x then y, on a grid from 0 to 9 with y downwards; the pen
# follows the points as a smooth curve, turns sharply at a point that is written twice, and is lifted at a slash.
GLYPHS = (
    ("40 10 19 79 70 40", "50 20 29 69 70 50"),
    ("40 49", "23 40 40 49"),
    ("12 10 70 75 19 19 79", "21 30 70 74 39 19 16 48 79"),
    ("11 20 70 74 44 44 74 79 29 18", "10 70 70 44 44 84 89 39 18"),
    ("20 15 15 75 / 62 69", "50 16 16 76 / 50 59"),
    ("70 20 20 14 14 33 83 89 29 18", "20 14 14 73 79 29 18 / 20 70"),
    ("60 11 19 79 74 24 16", "50 15 19 69 79 75 35 17"),
    ("10 70 70 39", "10 70 70 39 / 25 65"),
    ("40 20 24 64 60 40 / 44 14 19 79 74 44", "61 50 10 14 75 79 19 15 74 70 61"),
    ("72 70 10 15 75 72 / 70 69", "72 70 10 15 75 72 79 39 18"),
)
PEN_POINTS = 64  # places at which the pen touches the paper
KNOTS = 4  # the paper is distorted by a KNOTS x KNOTS grid

DIGIT_IMAGE = (1, 28, 28)
DIGIT_RANGES = {
    "variant": (0, 2, 1),
    "turn": (-0.18, 0.18, 1),  # tangent of half the angle: up to 20 degrees
    "slant": (-0.3, 0.3, 1),  # pixels to the side a pixel of height
    "height": (13, 20, 1),  # pixels
    "width": (10, 18, 1),  # pixels
    "shift": (-3, 3, 2),  # pixels
    "wobble": (-0.08, 0.08, 2 * KNOTS * KNOTS),  # of the digit's size
    "radius": (0.6, 1.6, 1),  # of the pen, pixels
    "ink": (150, 255, 1),
}
DIGIT_NOISE = 40  # grey values


def smooth_curve(points: Array, rounds: int = 4) -> Array:
    """Round off the corners of a line of points (p,2) by cutting each edge at 1/4 and 3/4 (Chaikin's algorithm)."""
    for _ in range(rounds):
        first, last = points[:-1], points[1:]
        cut = np.stack([0.75 * first + 0.25 * last, 0.25 * first + 0.75 * last], axis=1).reshape(-1, 2)
        points = np.concatenate([points[:1], cut, points[-1:]])
    return points


def pen_path(glyph: str) -> Array:
    """Return the PEN_POINTS places, evenly spaced along the strokes of `glyph`, in a box from 0 to 1."""
    strokes = [smooth_curve(np.array([[*map(int, point)] for point in stroke.split()], dtype=float))
               for stroke in glyph.split("/")]
    steps = [np.sqrt(np.square(np.diff(stroke, axis=0)).sum(axis=1)) for stroke in strokes]
    # Lifting the pen costs no length, so that no point falls between two strokes.
    travelled = np.cumsum(np.concatenate([np.concatenate([[0.0], step]) for step in steps]))
    places = (np.arange(PEN_POINTS) + 0.5) * travelled[-1] / PEN_POINTS
    x, y = np.concatenate(strokes).T
    path = np.stack([np.interp(places, travelled, x), np.interp(places, travelled, y)], axis=-1)
    return np.round(path / 9, 6)  # far above rounding errors: the table is the same everywhere


def knot_weights(paths: Array) -> Array:
    """Return how much each knot of the grid moves each point (..., 2): bilinear weights (..., KNOTS*KNOTS)."""
    hats = np.maximum(0, 1 - np.abs(paths[..., None] * (KNOTS - 1) - np.arange(KNOTS)))  # (..., 2, KNOTS)
    return (hats[..., 0, :, None] * hats[..., 1, None, :]).reshape(*paths.shape[:-1], KNOTS * KNOTS)


PATHS = np.array([[pen_path(glyph) for glyph in glyphs] for glyphs in GLYPHS])  # (digit, variant, point, 2)
WEIGHTS = knot_weights(PATHS)  # (digit, variant, point, knot)


def pen_points(labels: Array, draw: dict[str, Array]) -> tuple[Array, Array]:
    """Place the pen for each image: x and y in pixels, each (n, PEN_POINTS)."""
    variant = draw["variant"][:, 0].astype(int)
    x, y = np.moveaxis(PATHS[labels, variant], -1, 0)
    weights = WEIGHTS[labels, variant]
    for knot in range(KNOTS * KNOTS):
        x = x + weights[..., knot] * draw["wobble"][:, 2 * knot, None]
        y = y + weights[..., knot] * draw["wobble"][:, 2 * knot + 1, None]
    x, y = (x - 0.5) * draw["width"], (y - 0.5) * draw["height"]
    x = x - draw["slant"] * y
    (cosine, sine), (_, h, w) = rotation(draw["turn"]), DIGIT_IMAGE
    return (cosine * x - sine * y + draw["shift"][:, :1] + (w - 1) / 2,
            sine * x + cosine * y + draw["shift"][:, 1:] + (h - 1) / 2)


def squared_distance(x: Array, y: Array, h: int, w: int) -> Array:
    """Return for each pixel the squared distance to the nearest of the points (n,p): (n,h,w)."""
    dx2 = np.square(x[..., None] - np.arange(w)).astype(np.float32)  # (n, p, w)
    dy2 = np.square(y[..., None] - np.arange(h)).astype(np.float32)  # (n, p, h)
    nearest = np.full((len(x), h, w), np.inf, np.float32)
    distance = np.empty_like(nearest)
    for point in range(x.shape[1]):
        np.add(dy2[:, point, :, None], dx2[:, point, None, :], out=distance)
        np.minimum(nearest, distance, out=nearest)
    return nearest


def synthetic_digits(split: str, count: int, seed: int = 0) -> tuple[Array, Array]:
    """Draw handwritten-like digits in the format of MNIST, light strokes on black.

    Returns images, uint8 (count,1,28,28) with paper near 0 and ink up to 255, and labels, uint8 (count,).
    Each ten consecutive images hold each digit once. The first k images of a longer request are those of a request
    for k. `data.load` checks split and count.

    >>> images, labels = synthetic_digits("train", 20)
    >>> images.shape, images.dtype.name, sorted(labels[:10].tolist())
    ((20, 1, 28, 28), 'uint8', [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    stream = f"synthetic_digits/{split}/{seed}"
    labels = shuffled_labels(f"{stream}/labels", count)
    images = np.empty((count, *DIGIT_IMAGE), np.uint8)
    for start, stop in chunks(count):
        draw = sample(DIGIT_RANGES, f"{stream}/strokes", start, stop - start)
        x, y = pen_points(labels[start:stop], draw)
        distance = np.sqrt(squared_distance(x, y, *DIGIT_IMAGE[1:]))[:, None]  # (n, 1, h, w)
        radius, ink = (draw[name].astype(np.float32)[:, :, None, None] for name in ("radius", "ink"))
        noise = pixel_noise(DIGIT_IMAGE, f"{stream}/noise", start, stop - start)
        # A pixel is covered as far as the pen's edge, blurred over one pixel, reaches into it.
        images[start:stop] = to_bytes(ink * np.clip(radius + 0.5 - distance, 0, 1) + DIGIT_NOISE * noise)
    return images, labels


def disc(u: Array, v: Array, radius: float | Array) -> Array:
    """Return the signed distance of points from a disc around the origin: below 0 inside."""
    return np.sqrt(u * u + v * v) - radius


def box(u: Array, v: Array, width: float, height: float) -> Array:
    """Return how far points are outside a box of half sizes around the origin: below 0 inside."""
    return np.maximum(np.abs(u) - width, np.abs(v) - height)


def half_planes(u: Array, v: Array, normals: tuple[tuple[float, float], ...], offset: float) -> Array:
    """Return the signed distance from each of the lines whose normals are given, sorted: the last is the largest."""
    return np.sort(np.stack([a * u + b * v - offset for a, b in normals]), axis=0)


def comb(t: Array, period: float) -> Array:
    """Return the distance from the nearest multiple of `period`."""
    return np.abs(t - period * np.rint(t / period))


def equal_signs(s: Array, t: Array) -> Array:
    """Return a value that is negative where both values have the same sign."""
    return np.minimum(np.maximum(s, t), -np.minimum(s, t))


TRIANGLE = ((0.0, 1.0), (0.8660254, -0.5), (-0.8660254, -0.5))
PENTAGON = ((0.0, 1.0), (0.9510565, 0.309017), (-0.9510565, 0.309017), (0.5877853, -0.809017), (-0.5877853, -0.809017))

# Each class as the region where a function of the position is negative: roughly the distance from the outline, in
# units of the shape's size. The order is that of the labels.
SHAPES: dict[str, Callable[[Array, Array], Array]] = {
    "circle": lambda u, v: disc(u, v, 0.85),
    "square": lambda u, v: box(u, v, 0.75, 0.75),
    "triangle": lambda u, v: half_planes(u, v, TRIANGLE, 0.5)[-1],
    # Inside the five-pointed star at most one of the five lines is crossed.
    "star": lambda u, v: half_planes(u, v, PENTAGON, 0.36)[-2],
    "cross": lambda u, v: np.minimum(box(u, v, 0.95, 0.28), box(u, v, 0.28, 0.95)),
    "ring": lambda u, v: np.abs(disc(u, v, 0.7)) - 0.2,
    "crescent": lambda u, v: np.maximum(disc(u, v, 0.95), -disc(u - 0.5, v, 0.75)),
    "stripes": lambda u, v: np.maximum(box(u, v, 0.9, 0.9), comb(u, 0.6) - 0.15),
    "checker": lambda u, v: np.maximum(box(u, v, 0.9, 0.9), equal_signs(comb(u, 0.72) - 0.18, comb(v, 0.72) - 0.18)),
    "dots": lambda u, v: np.maximum(box(u, v, 0.9, 0.9), disc(comb(u, 0.65), comb(v, 0.65), 0.2)),
}
SHAPE_CLASSES = tuple(SHAPES)

SHAPE_SIZE = 32  # pixels per side; all below is given for this size
BLOBS = 3
SHAPE_RANGES = {
    "turn": (-0.15, 0.15, 1),  # tangent of half the angle: up to 17 degrees
    "size": (8, 13, 1),  # pixels
    "centre": (-4, 4, 2),  # pixels from the middle
    "paper": (0, 128, 3),
    "contrast": (70, 127, 3),  # how much lighter the shape is in each channel
    "negative": (-2, 1, 1),  # if positive, in a third of the images, light and dark change places
    "gradient": (-2, 2, 6),  # grey values per pixel, for each channel along x and y
    "blob_centre": (-16, 16, 2 * BLOBS),
    "blob_radius": (1, 3, BLOBS),
    "blob_colour": (0, 256, 3 * BLOBS),
}
SHAPE_NOISE = 40  # grey values


def paint(canvas: Array, distance: Array, colour: Array) -> Array:
    """Cover `canvas` (n,3,h,w) with `colour` (n,3) where `distance` (n,h,w), in pixels, is negative."""
    cover = np.clip(0.5 - distance, 0, 1)[:, None]
    return canvas + cover * (colour[:, :, None, None] - canvas)


def shape_distance(labels: Array, draw: dict[str, Array], x: Array, y: Array) -> Array:
    """Return each pixel's distance in pixels, negative inside, from the outline of its image's shape: (n,h,w)."""
    cosine, sine = (value[:, :, None] for value in rotation(draw["turn"]))
    size = draw["size"][:, :, None]
    dx = x - draw["centre"][:, :1, None]
    dy = y - draw["centre"][:, 1:, None]
    u = (cosine * dx + sine * dy) / size
    v = (cosine * dy - sine * dx) / size
    distance = np.empty(u.shape, np.float32)
    for label in np.unique(labels):
        own = labels == label
        distance[own] = SHAPES[SHAPE_CLASSES[label]](u[own], v[own]) * size[own]
    return distance


def synthetic_shapes(split: str, count: int, seed: int = 0, size: int = SHAPE_SIZE) -> tuple[Array, Array]:
    """Draw one of ten shapes and patterns in random colours on a cluttered ground, in the format of CIFAR-10.

    Returns images, uint8 (count,3,size,size), and labels, uint8 (count,), that index SHAPE_CLASSES. Colours are drawn
    without regard to the class; in a third of the images the shape is darker than its ground. Another size shows the
    same scenes in more pixels, or fewer. Order and prefixes are those of `synthetic_digits`.

    >>> images, labels = synthetic_shapes("test", 10)
    >>> images.shape, images.dtype.name, SHAPE_CLASSES[3]
    ((10, 3, 32, 32), 'uint8', 'star')
    """
    stream = f"synthetic_shapes/{split}/{seed}"
    labels = shuffled_labels(f"{stream}/labels", count)
    image = (3, size, size)
    images = np.empty((count, *image), np.uint8)
    pixel = np.float32(SHAPE_SIZE / size)  # in pixels of the small images, as places and sizes are
    x = (np.arange(size, dtype=np.float32) - np.float32((size - 1) / 2)) * pixel
    y = x[:, None]
    for start, stop in chunks(count):
        n = stop - start
        wide = sample(SHAPE_RANGES, f"{stream}/scene", start, n)
        draw = {name: values.astype(np.float32) for name, values in wide.items()}
        ramp = draw["gradient"].reshape(n, 2, 3, 1, 1)
        canvas = draw["paper"][:, :, None, None] + ramp[:, 0] * x + ramp[:, 1] * y
        for blob in range(BLOBS):
            bx, by = (draw["blob_centre"][:, 2 * blob + axis, None, None] for axis in (0, 1))
            blob_distance = disc(x - bx, y - by, draw["blob_radius"][:, blob, None, None])
            canvas = paint(canvas, blob_distance / pixel, draw["blob_colour"][:, 3 * blob : 3 * blob + 3])
        colour = draw["paper"] + draw["contrast"]
        canvas = paint(canvas, shape_distance(labels[start:stop], draw, x, y) / pixel, colour)
        canvas = np.where(draw["negative"][:, :, None, None] > 0, 255 - canvas, canvas)
        noise = pixel_noise(image, f"{stream}/noise", start, n)
        images[start:stop] = to_bytes(canvas + SHAPE_NOISE * noise)
    return images, labels


TABLE_CLASSES = ("same near", "same far", "other near", "other far")
TABLE_COLUMNS = ("left", "right", "x", "y", "trend", "echo", "large", "small", "whole", "idle")
TABLE_RANGES = {
    "side": (-1, 1, 1),  # the sign of left
    "size": (0.2, 1.2, 2),  # of left and right
    "turn": (-1, 1, 1),  # tangent of half the angle: up to a right angle
    "half": (-1, 1, 1),  # the sign of the place, so that angles go round
    "near": (0, 1, 1),  # distance from the middle
    "far": (0.9, 1.6, 1),
    "noise": (-1, 1, 2 * len(TABLE_COLUMNS)),
    "whole": (0, 6, 1),
}
TABLE_NOISE = 0.25  # of left, right, x and y


def synthetic_table(split: str, count: int, seed: int = 0) -> tuple[Array, Array]:
    """Draw rows of ten measurements with one of four classes, which no plane separates.

    Returns rows, float64 (count,10) in the order of TABLE_COLUMNS, and labels, uint8 (count,), that index
    TABLE_CLASSES. Two facts make the class: whether left and right have the same sign (right is counted in hundreds),
    and whether the place (x, y) is near the middle or far from it; both are blurred by noise. "trend" grows a little
    with the class, and "echo" is left with more noise. "large", "small", "whole" and "idle" each have a scale of their
    own and say nothing. Order and prefixes are those of `synthetic_digits`, with runs of four.

    >>> rows, labels = synthetic_table("train", 8)
    >>> rows.shape, rows.dtype.name, sorted(labels[:4].tolist())
    ((8, 10), 'float64', [0, 1, 2, 3])
    """
    stream = f"synthetic_table/{split}/{seed}"
    labels = shuffled_labels(f"{stream}/labels", count, len(TABLE_CLASSES))
    draw = sample(TABLE_RANGES, f"{stream}/rows", 0, count)
    other, distant = labels // 2, labels % 2
    noise = (draw["noise"][:, ::2] + draw["noise"][:, 1::2]) / 2  # triangular in (-1, 1)
    side = np.where(draw["side"][:, 0] > 0, 1.0, -1.0)
    left = side * draw["size"][:, 0]
    right = np.where(other == 1, -side, side) * draw["size"][:, 1]
    radius = np.where(distant == 1, draw["far"][:, 0], draw["near"][:, 0]) * np.where(draw["half"][:, 0] > 0, 1.0, -1.0)
    cosine, sine = rotation(draw["turn"][:, 0])
    columns = (
        left + TABLE_NOISE * noise[:, 0], 100 * (right + TABLE_NOISE * noise[:, 1]),
        radius * cosine + TABLE_NOISE * noise[:, 2], radius * sine + TABLE_NOISE * noise[:, 3],
        20 + 0.25 * labels + noise[:, 4], left + 2 * noise[:, 5],
        5000 + 2000 * noise[:, 6], 0.001 * noise[:, 7], np.floor(draw["whole"][:, 0]), noise[:, 9])
    return np.stack(columns, axis=1), labels
