"""Launch every CUDA kernel at least once, on small arrays: what compute-sanitizer is run over.

    compute-sanitizer --tool memcheck python tests/launch_all.py               (racecheck, initcheck, synccheck too)

A tool that takes long is shared out among processes: --part 2/8 runs every eighth, from the second on.

It runs the table of checks/launches.py, each with its check. It prints each as it ends, so that a run that is cut off
shows how far it came, then each kernel's name and how often it was launched, and ends with status 1 where one in any
.cu file was not, but for what is not made for this GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))   # minidl and zoo as they lie here, installed or not

import cupy
import pytest
from checks.launches import LAUNCHES
from checks.sources import FILES, counted, kernels

from minidl.core import device
from minidl.ops.cuda import launch
from minidl.ops.cuda.conv.resident import few_channels
from minidl.ops.cuda.conv.resident.tensor_cores import wgmma
from minidl.ops.cuda.nhwc.conv import conv_few, conv_images, conv_tma
from minidl.ops.cuda.nhwc.grad_w import conv_grad_w_tma, rows_grad_w

# For compute capability 9.0 alone
HOPPER = (wgmma.FILE, few_channels.FILE, conv_tma.FILE, conv_few.FILE, conv_images.FILE, conv_grad_w_tma.FILE,
          rows_grad_w.FILE)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"only these, of {', '.join(LAUNCHES)}")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="only the K-th of N parts of the launches")
    given = parser.parse_args(arguments)
    first, step = map(int, given.part.split("/"))
    device.resolve("cuda")
    chosen = [each for family in given.families or LAUNCHES for each in LAUNCHES[family]][first - 1::step]
    with counted() as launched:
        for each in chosen:
            try:
                each.run()
                print(f"{each}: {launched.total()} launches", flush=True)
            except pytest.skip.Exception as reason:
                print(f"left out: {each}: {reason}", flush=True)
        cupy.cuda.Device().synchronize()
    if given.families or step > 1:
        print(f"{launched.total()} launches of {len(launched)} kernels")
        return 0
    missing = 0
    for file in FILES:
        for name in kernels(file):
            print(f"{launched[name]:6} {file}: {name}")
            missing += not launched[name] and (file not in HOPPER or launch.compute_capability() == 90)
    print(f"{launched.total()} launches, {missing} kernels not launched")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
