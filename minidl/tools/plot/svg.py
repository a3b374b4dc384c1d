"""Charts as inline SVG, whose colours are classes of the page, so that one drawing serves light, dark and paper; and
PNG, of what is made of pixels."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

WIDTH, HEIGHT = 400, 230
LEFT, RIGHT, TOP, BOTTOM = 68, 388, 14, 190            # of the plane in which the values are
MAX_DRAWN = 300                            # points of a line: of more, the least and the largest of neighbours
MAX_MARKED = 40                            # points that have a marker
MAX_COLUMNS = 50                           # places at which the pointer finds values
LARGEST = 1e300
MAX_SERIES = 8                             # that the palette can distinguish


class Series(NamedTuple):
    """A line: its name, the class of its colour, its values y at x, and a class of its look: "raw" is faint, "dots" has
    no line."""

    name: str
    colour: str
    x: np.ndarray
    y: np.ndarray
    look: str = ""


def series(name: str, colour: str, x: Sequence[float] | np.ndarray, y: Sequence[Any] | np.ndarray,
           look: str = "") -> Series:
    """A Series of numbers. None is not a number, and large ones are clipped, so that differences are numbers."""
    values = np.array([math.nan if each is None else each for each in y], np.float64)
    values[~np.isfinite(values)] = math.nan
    return Series(name, colour, np.asarray(x, np.float64), values.clip(-LARGEST, LARGEST), look)


def chart(lines: Sequence[Series], x_label: str, y_label: str, log: bool = False, zero: bool = False,
          mark: tuple[float, str] | None = None, names: Sequence[str] = ()) -> str:
    """A figure of lines over a common x, with a legend, and with the values at the pointer.

    log: the y axis is logarithmic, if any value is above 0. zero: it begins at 0. mark: an x with a word. names: those
    of x = 0, 1, ..., if it is not a number.
    """
    lines = [line for line in lines if np.isfinite(line.y).any()]
    if not lines:
        return ""
    every = np.concatenate([line.y[np.isfinite(line.y)] for line in lines])
    log = log and bool((every > 0).any())
    drawn = every[every > 0] if log else np.append(every, 0) if zero else every
    wide = [float(f(line.x[np.isfinite(line.x)] if line.x.size else [0])) for line in lines for f in (np.min, np.max)]
    across = Axis(min(wide), max(wide), LEFT, RIGHT, whole=True, names=names, room=0.04 if names else 0.0)
    up = Axis(drawn.min(), drawn.max(), BOTTOM, TOP, log, room=0.05)
    parts = [*_axes(across, up, x_label, y_label)]
    if mark is not None:
        x = across.place(mark[0])
        parts += [f'<path class="mark" d="M{x:.1f} {TOP}V{BOTTOM}"/>',
                  text_at(x, TOP - 2, mark[1], "end" if x > (LEFT + RIGHT) / 2 else "start", "mark")]
    parts += [part for line in lines for part in _line(line, across, up)]
    parts += _columns(lines, across, x_label)
    key = [(line.name + _left_out(line, log), f"{line.colour} {line.look}") for line in lines]
    return _figure("".join(parts), key if len(key) > 1 or "(" in key[0][0] else [], y_label)


def _left_out(line: Series, log: bool) -> str:
    wrong = int(np.sum(~np.isfinite(line.y)))
    low = int(np.sum(line.y <= 0)) if log else 0
    told = [f"{wrong} not finite"] * (wrong > 0) + [f"{low} not above 0"] * (low > 0)
    return f" ({', '.join(told)})" if told else ""


def scatter(x: np.ndarray, y: np.ndarray, x_label: str, y_label: str) -> str:
    """A figure of points, with the diagonal on which both are equal."""
    low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
    across, up = Axis(low, high, LEFT, RIGHT, room=0.03), Axis(low, high, BOTTOM, TOP, room=0.03)
    dots = "".join(f"M{across.place(a):.1f} {up.place(b):.1f}h0" for a, b in zip(x, y))
    diagonal = (f'<path class="mark" d="M{across.place(low):.1f} {up.place(low):.1f}L{across.place(high):.1f} '
                f'{up.place(high):.1f}"/>')
    return _figure("".join([*_axes(across, up, x_label, y_label), diagonal, f'<path class="line cloud train" '
                           f'd="{dots}"/>']), [], y_label)


def bars(counts: Sequence[int], low: float, high: float, x_label: str, y_label: str) -> str:
    """A figure of a histogram."""
    across, up = Axis(low, high, LEFT, RIGHT), Axis(0, max([*counts, 1]), BOTTOM, TOP)
    return _figure("".join([*_axes(across, up, x_label, y_label), _bars(counts, low, high, across, up, "train")]),
                   [], y_label)


def _bars(counts: Sequence[int], low: float, high: float, across: Axis, up: Axis, colour: str) -> str:
    width, edges = (high - low) / len(counts), []
    for i, count in enumerate(counts):
        edges.append(f"{across.place(low + i * width):.1f} {up.place(count):.1f}H"
                     f"{across.place(low + (i + 1) * width):.1f}")
    return (f'<path class="area {colour}" d="M{across.place(low):.1f} {up.place(0):.1f}L{"L".join(edges)}'
            f'V{up.place(0):.1f}Z"/>')


def ridges(rows: Sequence[tuple[str, Sequence[int], float, float]], x_label: str, y_label: str) -> str:
    """A figure of histograms (name, counts, low, high) one above the other, the first at the top, each as high as it
    has room for, on a common x axis."""
    across = Axis(min(row[2] for row in rows), max(row[3] for row in rows), LEFT, RIGHT)
    step = (BOTTOM - TOP) / len(rows)
    parts = [*_axes(across, None, x_label, y_label)]
    for i, (name, counts, low, high) in enumerate(rows):
        foot = TOP + step * (i + 1)
        up = Axis(0, max([*counts, 1]) / ((high - low) or 1), foot, foot - step * 0.95)
        density = [count / ((high - low) or 1) for count in counts]
        parts.append(text_at(LEFT - 6, foot, name, "end"))
        if high > low:
            parts.append(_bars(density, low, high, across, up, f"s{i % MAX_SERIES}"))   # type: ignore[arg-type]
        else:
            parts.append(f'<path class="line" d="M{across.place(low):.1f} {foot:.1f}v{-step * 0.95:.1f}"/>')
    return _figure("".join(parts), [], y_label)


def roofline(flop: float, moved: float, points: Sequence[tuple[str, float, float]]) -> str:
    """A figure of a machine's limits, FLOP/s and bytes/s; and points: name, FLOP per byte, FLOP/s."""
    across = Axis(min([0.1, *(x / 2 for _, x, _ in points)]), max([100, *(4 * x for _, x, _ in points)]), LEFT, RIGHT,
                  log=True)
    low = 10 ** across.low
    up = Axis(min([low * moved, *(y / 2 for *_, y in points)]) / 1e12, 1.5 * flop / 1e12, BOTTOM, TOP, log=True)
    ridge, start, roof = across.place(flop / moved), up.place(low * moved / 1e12), up.place(flop / 1e12)
    parts = [*_axes(across, up, "FLOP per byte", "TFLOP/s"),
             f'<path class="line own" d="M{LEFT} {start:.1f}L{ridge:.1f} {roof:.1f}H{RIGHT}"/>'
             f'<path class="mark" d="M{ridge:.1f} {BOTTOM}V{roof:.1f}"/>',
             text_at(RIGHT, roof - 5, f"{flop / 1e12:.3g} TFLOP/s", "end", "mark"),
             text_at((LEFT + ridge) / 2 - 8, (start + roof) / 2, f"{moved / 1e9:,.0f} GB/s", "end", "mark")]
    for i, (name, x, y) in enumerate(points):                  # names on both sides in turn
        at, high = across.place(x), up.place(y / 1e12)
        anchor, beside = ("end", -7) if i % 2 or at > (LEFT + 2 * RIGHT) / 3 else ("start", 7)
        parts += [f'<path class="line dots test" d="M{at:.1f} {high:.1f}h0"/>',
                  text_at(at + beside, high + 4, name, anchor)]
    return _figure("".join(parts), [], "roofline")


# ---------------------------------------------------------------- axes
class Axis:
    """Maps values to places on the page. room: what is left free at both ends, as a share. whole: values are integers.
    names: the labels of 0, 1, ..."""

    def __init__(self, low: float, high: float, begin: float, end: float, log: bool = False, room: float = 0.0,
                 whole: bool = False, names: Sequence[str] = ()):
        self.log, self.begin, self.end, self.whole, self.names = log, begin, end, whole, names
        low, high = (math.log10(low), math.log10(high)) if log else (float(low), float(high))
        if not high > low:
            low, high = (low - 0.5, high + 0.5) if log or not low else (low - abs(low) / 2, low + abs(low) / 2)
        self.low, self.high = low - (high - low) * room, high + (high - low) * room

    def place(self, value: float) -> float:
        value = math.log10(value) if self.log else value
        return self.begin + (self.end - self.begin) * (value - self.low) / (self.high - self.low)

    def label(self, value: float) -> str:
        """What is written at a tick."""
        return self.names[round(value)] if self.names else _label(value)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values, about `most` of them: one more if both ends are among them."""
        if self.log and self.high - self.low > 1:
            first, last = math.ceil(self.low), math.floor(self.high)
            every = -(-(last - first + 1) // most) or 1
            found = [10.0 ** i for i in range(first, last + 1, every)]
            return found if len(found) > 2 else [f * 10.0 ** i for i in range(first - 1, last + 1) for f in (1, 2, 5)
                                                 if self.low <= i + math.log10(f) <= self.high]
        low, high = (10 ** self.low, 10 ** self.high) if self.log else (self.low, self.high)
        raw = (high - low) / most
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(f for f in (1, 2, 5, 10) if f * power >= raw) * power
        step = max(step, 1.0) if self.whole else step
        return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _axes(across: Axis, up: Axis | None, x_label: str, y_label: str) -> list[str]:
    parts = []
    if up is not None:
        for value in up.ticks():
            y = up.place(value)
            parts += [f'<path class="grid" d="M{LEFT} {y:.1f}H{RIGHT}"/>',
                      text_at(LEFT - 6, y + 4, _label(value), "end")]
    for value in across.ticks(5):
        x = across.place(value)
        parts += [f'<path class="grid" d="M{x:.1f} {BOTTOM}v5"/>',
                  text_at(x, BOTTOM + 18, across.label(value), "end" if x > RIGHT - 12 else "middle")]
    return [*parts, f'<path class="axis" d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}"/>',
            text_at((LEFT + RIGHT) // 2, HEIGHT - 6, x_label, kind="name"),
            text_at(13, (TOP + BOTTOM) // 2, y_label, kind="name", upward=True)]


def text_at(x: float, y: float, text: object, anchor: str = "middle", kind: str = "", upward: bool = False) -> str:
    """A text at a place. kind: its class. upward: it is read from below."""
    x_, y_ = (each if isinstance(each, int) else f"{each:.1f}" for each in (x, y))
    look = f'class="{kind}" ' if kind else ""
    place = f'transform="translate({x_} {y_}) rotate(-90)"' if upward else f'x="{x_}" y="{y_}"'
    return f'<text {look}{place} text-anchor="{anchor}">{escape(str(text))}</text>'


def _label(value: float) -> str:
    """A number in few letters.

    >>> _label(0.25), _label(12000.0), _label(0.0002), _label(2e+21)
    ('0.25', '12k', '2e-4', '2e21')
    """
    if 10_000 <= abs(value) < 1_000_000:
        return f"{value / 1000:.4g}k"
    if value and abs(value) < 0.001:
        power = math.floor(math.log10(abs(value)) + 1e-9)
        return f"{value / 10.0 ** power:.3g}e{power}"
    head, e, tail = f"{value:.4g}".partition("e")
    return f"{head}e{int(tail)}" if e else head


# ---------------------------------------------------------------- lines and values
def _line(line: Series, across: Axis, up: Axis) -> list[str]:
    """Its path, broken where a value cannot be drawn; of many points the least and largest of each run of neighbours.
    A second path marks the points if they are few and the line is not raw."""
    drawn = np.isfinite(line.y) & np.isfinite(line.x) & ((line.y > 0) | (not up.log))
    at = np.flatnonzero(drawn)
    if len(at) > MAX_DRAWN:                # the least and the largest of each run of neighbours
        runs = np.array_split(at, MAX_DRAWN // 2)
        at = np.array([i for run in runs for i in sorted({run[line.y[run].argmin()], run[line.y[run].argmax()]})])
    holes = np.cumsum(~drawn)
    commands = "".join(f"{'M' if k == 0 or holes[i] != holes[at[k - 1]] else 'L'}{across.place(line.x[i]):.1f} "
                       f"{up.place(line.y[i]):.1f}" for k, i in enumerate(at))
    parts = [f'<path class="line {line.colour} {line.look}" d="{commands}"/>']
    if len(at) <= MAX_MARKED and line.look != "raw":
        dots = "".join(f"M{across.place(line.x[i]):.1f} {up.place(line.y[i]):.1f}h0" for i in at)
        parts.append(f'<path class="line dots {line.colour}" d="{dots}"/>')
    return parts


def _columns(lines: Sequence[Series], across: Axis, x_label: str) -> list[str]:
    """An invisible column at each of some places, which shows the values there while the pointer is on it."""
    longest = max(lines, key=lambda line: len(line.x))
    at = longest.x[np.unique(np.linspace(0, len(longest.x) - 1, MAX_COLUMNS).round().astype(int))]
    at = np.unique(at[np.isfinite(at)])
    places = [across.place(x) for x in at]
    edges = [LEFT, *((a + b) / 2 for a, b in pairwise(places)), RIGHT]
    parts = []
    for x, place, left, right in zip(at, places, edges, edges[1:]):
        told = [f"{x_label.partition(' (')[0]} {across.label(x) if across.names else f'{x:,.0f}'}"]
        for line in lines:
            nearest = int(np.nanargmin(np.abs(line.x - x)))
            if abs(across.place(line.x[nearest]) - place) <= max(right - left, 1) and math.isfinite(line.y[nearest]):
                told.append(f"{line.name}: {line.y[nearest]:.4g}")
        width = 10 + 6.4 * max(map(len, told))
        box = min(place + 6, RIGHT - width) if place < (LEFT + RIGHT) / 2 else max(place - 6 - width, 2)
        text = "".join(f'<tspan x="{box + 5:.0f}" dy="14">{escape(each)}</tspan>' for each in told)
        parts.append(f'<g class="at"><path class="hit" d="M{left:.1f} {TOP}H{right:.1f}V{BOTTOM}H{left:.1f}Z"/>'
                     f'<g class="seen"><path class="mark" d="M{place:.1f} {TOP}V{BOTTOM}"/><rect x="{box:.0f}" '
                     f'y="{TOP + 2}" width="{width:.0f}" height="{8 + 14 * len(told)}" rx="3"/>'
                     f'<text y="{TOP + 4}">{text}</text></g></g>')
    return parts


def _figure(drawn: str, legend: Sequence[tuple[str, str]], label: str) -> str:
    key = "".join(f'<span class="{colour}"><i></i>{escape(name)}</span>' for name, colour in legend)
    return (f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{drawn}</svg>'
            + (f"<figcaption>{key}</figcaption>" if key else "") + "</figure>")


# ---------------------------------------------------------------- pixels
def png(image: np.ndarray) -> str:
    """An image (h,w,3) or (h,w,4) of bytes, as the URL of a PNG."""
    height, width, channels = image.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1).tobytes()

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (struct.pack(">I", len(content)) + kind + content
                + struct.pack(">I", zlib.crc32(kind + content)))
    head = struct.pack(">IIBBBBB", width, height, 8, {3: 2, 4: 6}[channels], 0, 0, 0)
    file = (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"
