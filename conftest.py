"""Not collected: the CUDA backend where CuPy is not installed, and a script that only mypy reads."""

import importlib.util

collect_ignore = ["tests/house/users_script.py", *([] if importlib.util.find_spec("cupy") else ["minidl/ops/cuda"])]
