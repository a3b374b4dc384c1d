"""The gradient of the filters of convolutions in NHWC, in tf32 and bf16, beside cuDNN, channels last.

    python benchmarks/nhwc_grad_w.py --json benchmarks/results/nhwc_grad_w.json

Filters are 3x3, stride 1, padding 1. In bf16 images and gradients are bf16 too; dw is float32 here and bf16 in cuDNN. A
call is measured as in conv.py, as a CUDA graph.
"""

from __future__ import annotations

import argparse
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
    (128, 128, 512, 16), (256, 256, 2000, 7), (3, 64, 512, 32), (64, 64, 512, 32), (256, 256, 512, 8),
    (128, 128, 128, 16))]
PRECISIONS = ("tf32", "bf16")


def calls(case: Case, precision: str) -> dict[str, Callable[[int], Any]]:
    """Ours and cuDNN's, on the same random numbers."""
    import cupy
    import torch

    from minidl.ops.cuda.nhwc import conv_grad_w

    g = case.geometry()
    x, _, gy = (torch.from_numpy(a).cuda() for a in case.random(0))
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, True
    x, gy = (a.to(torch.bfloat16 if precision == "bf16" else torch.float32, memory_format=torch.channels_last)
             for a in (x, gy))
    w = torch.empty((g.m, g.c, g.kh, g.kw), device="cuda", dtype=x.dtype, memory_format=torch.channels_last)
    dy, images = (cupy.asarray(a.permute(0, 2, 3, 1).view(torch.uint16 if precision == "bf16" else torch.float32))
                  for a in (gy, x))

    def cudnn(_: int) -> Any:
        dw = torch.ops.aten.convolution_backward(gy, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1,
                                                 [False, True, False])[1]
        return dw.view(torch.uint16) if precision == "bf16" else dw

    return {"minidl": lambda _: conv_grad_w.grad_w(dy, images, g, precision=precision), "torch": cudnn}


def numbers(dw: Any) -> Any:
    """In float32, of cuDNN's bits of bf16 too."""
    return (dw.astype("uint32") << 16).view("float32") if dw.dtype == "uint16" else dw


def measure(layers: Sequence[Case]) -> Result:
    result = results.about("nhwc_grad_w", ["minidl", "torch"], "cuda", 1)
    result["rows"] = []
    for case in layers:
        g = case.geometry()
        for precision in PRECISIONS:
            of, found, us = calls(case, precision), {}, {}
            for name, how in (("minidl", measure_ours), ("torch", measure_torch)):
                timing, _, found[name] = how(of[name], 1)
                us[name] = timing.us
            peer = numbers(found["torch"])
            error = float(abs(found["minidl"] - peer).max() / abs(peer).max())
            if not error < 1e-2:
                raise ArithmeticError(f"{case.label} in {precision}: dw differs from cuDNN's by {error:.1e}; correct "
                                      "the kernel before measuring")
            result["rows"].append({"label": case.label, "shape": case[1:], "precision": precision,
                                   "flop": 2 * g.n * g.oh * g.ow * g.m * g.c * g.kh * g.kw, "us": us, "error": error})
            print(f"{case.label:28} {precision:5} {us['minidl']:8.1f} us, cuDNN {us['torch']:8.1f}", flush=True)
    return result


def report(several: Sequence[Result]) -> list[str]:
    (result,) = several
    body = [[row["label"], row["precision"], number(row["us"]["minidl"]), number(row["us"]["torch"]),
             f"{row['us']['torch'] / row['us']['minidl']:.2f}", f"{row['flop'] / row['us']['minidl'] / 1e6:.0f}"]
            for row in result["rows"]]
    return [*results.table("layer, precision, us, cuDNN us, speed against it, TFLOP/s", body, 2),
            *results.facts(several)]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep what was measured, for render.py")
    args = parser.parse_args(argv)
    machine.set_threads(1)
    machine.require(["torch"], "cuda")
    result = measure(LAYERS)
    if args.json:
        results.save(result, args.json)
    print("\n".join(report([result])))


if __name__ == "__main__":
    main()
