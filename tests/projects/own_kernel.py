"""A CUDA kernel of one's own: run without a GPU, where a wrong index is found by its line, or on one.
Figure: the share of the results that are right; 0 where the fault is not found."""

import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import minidl

KERNEL = """extern "C" __global__ void mish(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = x[i] * tanhf(log1pf(expf(x[i])));
    }
}
"""


def emulated(folder, text):
    (folder / "mish.cu").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "minidl", "emulate", "mish.cu", "--grid", "2", "--block", "4", "--args",
               "x=[-2,-1,0,1,2,3]", "y=6", "n=6"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def main(device="cpu", compiled=False):
    x = np.array([-2, -1, 0, 1, 2, 3], np.float32)
    right = [value * math.tanh(math.log1p(math.exp(value))) for value in x.tolist()]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if device == "cuda":
            import cupy

            (folder / "mish.cu").write_text(KERNEL, encoding="utf-8")
            y = cupy.empty(6, cupy.float32)
            minidl.kernel(folder / "mish.cu", "mish")((2,), (4,), cupy.asarray(x), y, 6)
            return float(np.isclose(y.get(), right, rtol=1e-5).mean())
        if "mish.cu:4: thread" not in emulated(folder, KERNEL.replace("i < n", "i <= n")):
            return 0.0
        y = emulated(folder, KERNEL).partition("[")[2].partition("]")[0].split()
        return float(np.isclose(np.array(y, float), right, atol=1e-5).mean())
