"""The primitives of `minidl.ops.cpu` as CUDA kernels, under the same names and signatures."""
