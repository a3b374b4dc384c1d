"""Doctests of the CUDA backend are read only where CuPy is installed: its modules cannot be imported without."""

import importlib.util

collect_ignore = [] if importlib.util.find_spec("cupy") else ["minidl/ops/cuda"]
