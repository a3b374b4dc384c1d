"""The kernel engineer's wing: kernels of one's own, and CUDA kernels without a GPU. Nothing else needs it.

own.py takes primitives, activations and kernels of one's own, and algorithms of kernels, which check.py compares with
the formula. layouts.py has convolutions of images in NHWC and CHWN. emulator/ runs kernels on the CPU, finds their
faults, and counts what they cost; gpus.py says what they take of a GPU.

A program gets all of it from `minidl`: `minidl.primitive`, `activation`, `kernel`, `register_conv`, `check_conv`,
`layouts`, `emulator`. docs/own-op.md and docs/your-own-kernel.md lead through them, docs/memory.md through the counts.
"""
