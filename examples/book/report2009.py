"""The convolutions of the 2009 report, sections 6.2, 6.6 and 6.7, as an algorithm of minidl for the report's net alone.

    minidl train --model krizhevsky2009 --plugin examples/book/report2009.py --conv-algorithm report2009 --device cuda

`minidl check-conv` draws other layers; check.py compares each kernel of this one with the formula.
"""

from pathlib import Path

import minidl


def refuses(direction, g, dtype):
    if (g.c, g.h, g.w, g.kh, g.kw, g.sh, g.sw, g.oh, g.ow, g.top, g.left) != (3, 32, 32, 8, 8, 1, 1, 32, 32, 4, 4):
        return "the report's layer has 8x8 filters on 3x32x32 images with padding ((4, 3), (4, 3))"
    return f"a block takes 16 filters but there are {g.m}" if direction == "dw" and g.m % 16 else None


def y(launch, x, w, b, y, g):
    launch("convolve", (g.m, g.n), (32, 8), x, w, y)
    if b is not None:
        launch("add_bias", -(-y.size // 256), 256, b, y, g.m, g.oh * g.ow, y.size)


def dw(launch, gy, x, dw, g):
    parts = launch.empty((g.n, *dw.shape))
    launch("weight_derivatives", (g.m // 16, g.n), (8, 8, 8), x, gy, parts)
    launch("sum_images", -(-dw.size // 256), 256, parts, dw, g.n, dw.size)


FILES = [Path(__file__).with_name(name) for name in ("report2009_fig5.cu", "report2009_fig12.cu", "helpers.cu")]
minidl.register_conv("report2009", "".join(file.read_text(encoding="utf-8") for file in FILES), y=y, dw=dw,
                     refuses=refuses)
