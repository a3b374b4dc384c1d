"""The steps of lab 10: a convolution of any sizes, stride and padding; its counts; a training with it; and its row."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
from labkit import Lab, Launch, Wrong, step
from labkit.convs import by_kernels

from minidl.ops import cpu
from minidl.ops.common.geometry import conv_geometry

DIRECT = {"requests": 86400, "sectors": 271296}        # of conv2d_direct_y for the layer below, as lab.py prints them
LAYER = ((1, 6, 28, 28), (16, 6, 5, 5))
losses = runpy.run_path(str(Path(__file__).with_name("drive.py")))["losses"]


def convolve(lab: Lab, x_shape: tuple[int, ...], w_shape: tuple[int, ...], bias: bool = False, stride: Any = 1,
             padding: Any = 0, orders: int = 1) -> list[Launch]:
    """The launches of y for random arrays; Wrong where it is not right."""
    x, w, b = (lab.rng.standard_normal(shape).astype(np.float32) for shape in (x_shape, w_shape, w_shape[:1]))
    made = lab.call("convolve", x, w, b if bias else None, stride, padding, orders)
    launches = [lab.launched(each) for each in made["launches"]]
    g = conv_geometry(x_shape, w_shape, None, stride, padding, "direct")
    wide_x, wide_w, wide_b = (each.astype(np.float64) for each in (x, w, b))
    right, got = cpu.conv2d(wide_x, wide_w, wide_b if bias else None, g), made["y"]
    m = np.arange(len(w))[None, :, None, None]
    some = [np.where(m < len(w) // each * each, right, np.nan) for each in (2, 4, 8)]
    top, left = np.broadcast_to(padding, 2).tolist()
    moved = conv_geometry(x_shape, w_shape, None, stride, ((0, 2 * top), (0, 2 * left)), "direct")
    lab.known(got, right, [
        (cpu.conv2d(wide_x, wide_w, wide_b if bias else None, moved), "mine_y", r"inside\s*\(|\bx\s*\[", "the padding "
         "is left out; a pixel's row is i * g.sh - g.top + p, its column j * g.sw - g.left + q"),
        *((each, "mine_y", r"\by\s*\[", "the last maps are not written: M is not a multiple of what a thread computes; "
           "round the number of groups up, in the kernel and in the launcher") for each in some),
        (right - (b[None, :, None, None] if bias else 0), "mine_y", r"\by\s*\[", "the bias is left out; add b[m] where "
         "b is not null")])
    lab.same("mine_y", got, right, f"x {x_shape}, w {w_shape}, stride {stride}, padding {padding}: y", atol=1e-4,
             todo="compare each index with the formula above the kernel")
    by_kernels(lab, "y", launches, right)
    return launches


@step("registered as mine", points=5)
def registers(lab: Lab) -> None:
    lab.call("registered")


@step("a layer without padding", points=15)
def plain_layers(lab: Lab) -> None:
    for x, w in (((1, 1, 8, 8), (4, 1, 3, 3)), ((2, 3, 7, 9), (8, 3, 2, 2)), ((1, 2, 6, 6), (4, 2, 6, 6))):
        convolve(lab, x, w, orders=4)


@step("200 random layers: any number of maps, bias, stride, padding", points=30)
def any_layer(lab: Lab) -> None:
    for _ in range(200):
        n, c, m, kh, kw, sh, sw = (int(n) for n in lab.rng.integers(1, (4, 7, 7, 5, 5, 4, 4)))
        h, w = (int(k + lab.rng.integers(0, 9)) for k in (kh, kw))
        padding = int(lab.rng.integers(0, kh)), int(lab.rng.integers(0, kw))
        convolve(lab, (n, c, h, w), (m, c, kh, kw), bool(lab.rng.integers(2)), (sh, sw), padding)


def counted(lab: Lab) -> tuple[dict[str, int], str]:
    """Reads of global memory for one layer, and the line that has most."""
    made, line, most = {"requests": 0, "sectors": 0}, lab.name, -1
    for done in convolve(lab, *LAYER):
        for number, each in done.table.lines.items():
            made = {name: count + getattr(each.loads, name) for name, count in made.items()}
            if each.loads.sectors > most:
                line, most = f"{done.table.file}:{number}", each.loads.sectors
    return made, line


def costs(lab: Lab, what: str, share: float, todo: str) -> None:
    made, line = counted(lab)
    if made[what] > share * DIRECT[what]:
        raise Wrong(f"{line}: {made[what]:,} {what} to read global memory, most of them here, but at most "
                    f"{share * DIRECT[what]:,.0f} are asked for, {share:g} of those of direct; {todo}")


@step("0.7 of the requests of direct", points=10)
def requests(lab: Lab) -> None:
    costs(lab, "requests", 0.7, "let a thread compute several outputs, and use each number that it reads for "
          "all of them")


@step("half of the sectors of direct", points=15)
def sectors(lab: Lab) -> None:
    costs(lab, "sectors", 0.5, "let neighbouring threads read neighbouring pixels, and read each pixel once for "
          "several outputs: which outputs share a pixel?")


@step("a training with it", points=15)
def trains(lab: Lab) -> None:
    seed = int(lab.rng.integers(1 << 30))
    made, right = lab.call("trained", seed), losses("auto", seed)
    for each in made["launches"]:
        lab.launched(each)
    lab.same("mine_y", made["losses"], right, "the loss by step of a training with mine", atol=1e-3, rtol=1e-3,
             todo="the net has stride 2, 4 maps and a bias")
    if made["calls"] != len(right):
        raise lab.wrong("mine_y", f"it was called {made['calls']} times in {len(right)} steps")


@step("its row in the table", points=10)
def row(lab: Lab) -> None:
    said, made = lab.call("row"), counted(lab)[0]
    for name, count in made.items():
        if said.get(name) != count:
            raise Wrong(f"{lab.where('^ROW')}: ROW says {said.get(name)} {name}, but mine has {count}; python lab.py "
                        "prints them")
