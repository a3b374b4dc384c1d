"""Convolutions of images in NHWC, in tf32 and bf16, beside cuDNN, channels last.

    python benchmarks/nhwc.py --json benchmarks/results/nhwc.json

Filters are 3x3, stride 1, padding 1: those of a net of six convolutions, and three others. In bf16 images and gradients
are bf16 too; filters and dw are float32 here, and packed in each call, and bf16 in cuDNN. A call is measured as in
conv.py, as a CUDA graph. What limits each kernel is counted by Nsight Compute:

    ncu -k regex:nhwc --section SpeedOfLight --section ComputeWorkloadAnalysis --section WarpStateStats \\
        --page raw --csv python benchmarks/nhwc.py --once
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))   # minidl as it lies here, installed or not

import machine
import results
from conv import Case, measure_ours, measure_torch
from conv_report import number
from results import Result

LAYERS = [Case(f"{c} -> {m}, {n} of {size}x{size}", n, c, size, size, m, 3, 1, 1) for c, m, n, size in (
    (128, 128, 512, 16), (256, 256, 2000, 7), (3, 64, 512, 32), (64, 64, 512, 32), (64, 128, 512, 16),
    (128, 256, 512, 8), (256, 256, 512, 8))]
PRECISIONS = ("tf32", "bf16")


def y(g: Any, precision: str, x: Any, w: Any, gy: Any) -> Any:
    from minidl.ops.cuda.nhwc.conv import conv

    return conv.y(x, w, None, g, precision=precision)


def dx(g: Any, precision: str, x: Any, w: Any, gy: Any) -> Any:
    from minidl.ops.cuda.nhwc.conv import conv

    return conv.grad_x(gy, w, g, precision=precision)


def dw(g: Any, precision: str, x: Any, w: Any, gy: Any) -> Any:
    from minidl.ops.cuda.nhwc.grad_w import conv_grad_w

    return conv_grad_w.grad_w(gy, x, g, precision=precision).transpose(0, 2, 3, 1)


# Name -> ours, and which of torch's gradients it is, or None
DIRECTIONS: dict[str, tuple[Callable[..., Any], int | None]] = {"y": (y, None), "dx": (dx, 0), "dw": (dw, 1)}


def calls(case: Case, precision: str, direction: str) -> dict[str, Callable[[int], Any]]:
    """Ours and cuDNN's, on the same random numbers."""
    import cupy
    import torch

    g, (own, gradient) = case.geometry(), DIRECTIONS[direction]
    x, w, gy = (torch.from_numpy(a).cuda() for a in case.random(0))
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, True
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    there = [a.to(dtype, memory_format=torch.channels_last) for a in (x, w, gy)]
    images = [a.permute(0, 2, 3, 1).contiguous() for a in (there[0], there[2])]
    ours = [cupy.asarray(a.view(torch.uint16) if precision == "bf16" else a) for a in images]
    filters = cupy.asarray(w)

    def cudnn(_: int) -> Any:
        image, weights, gradients = there
        if gradient is None:
            computed = torch.nn.functional.conv2d(image, weights, None, 1, 1)
        else:
            computed = torch.ops.aten.convolution_backward(
                gradients, image, weights, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1,
                [gradient == i for i in range(3)])[gradient]
        computed = computed.permute(0, 2, 3, 1)
        return computed.view(torch.uint16) if precision == "bf16" else computed            # CuPy knows no bf16

    return {"minidl": lambda _: own(g, precision, ours[0], filters, ours[1]), "torch": cudnn}


def measure(layers: Sequence[Case], directions: Sequence[str]) -> Result:
    from minidl.ops.common.geometry.nhwc import widened

    result = results.about("nhwc", ["minidl", "torch"], "cuda", 1)
    result["rows"] = []
    for case in layers:
        g = case.geometry()
        for precision in PRECISIONS:
            for direction in directions:
                of, us, found = calls(case, precision, direction), {}, {}
                for name, how in (("minidl", measure_ours), ("torch", measure_torch)):
                    timing, _, computed = how(of[name], 1)
                    us[name], found[name] = timing.us, widened(computed)
                error = float(abs(found["minidl"] - found["torch"]).max() / abs(found["torch"]).max())
                if not error < 1e-2:
                    raise ArithmeticError(f"{case.label} in {precision}: {direction} differs from cuDNN's by "
                                          f"{error:.1e}; correct the kernel before measuring")
                result["rows"].append({
                    "label": case.label, "shape": case[1:], "precision": precision, "direction": direction, "us": us,
                    "flop": 2 * g.n * g.oh * g.ow * g.m * g.c * g.kh * g.kw, "error": error})
                print(" ".join(line(result["rows"][-1])), flush=True)
    return result


def once(layers: Sequence[Case], directions: Sequence[str]) -> None:
    for case, precision, direction in itertools.product(layers, PRECISIONS, directions):
        calls(case, precision, direction)["minidl"](0)


def line(row: dict[str, Any]) -> list[str]:
    us = row["us"]
    return [row["label"], row["precision"], row["direction"], number(us["minidl"]), number(us["torch"]),
            f"{us['torch'] / us['minidl']:.2f}", f"{row['flop'] / us['minidl'] / 1e6:.0f}"]


def report(several: Sequence[Result]) -> list[str]:
    (result,) = several
    return [*results.table("layer, precision, direction, us, cuDNN us, speed against it, TFLOP/s",
                           [line(row) for row in result["rows"]], 1), *results.facts(several)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep what was measured, for render.py")
    parser.add_argument("--directions", nargs="+", choices=list(DIRECTIONS), default=list(DIRECTIONS))
    parser.add_argument("--once", action="store_true", help="only call each of ours once, for ncu")
    args = parser.parse_args(argv)
    machine.set_threads(1)
    machine.require(["torch"], "cuda")
    if args.once:
        return once(LAYERS, args.directions)
    result = measure(LAYERS, args.directions)
    if args.json:
        results.save(result, args.json)
    print("\n".join(report([result])))


if __name__ == "__main__":
    main()
