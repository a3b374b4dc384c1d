"""Not collected: a script that only mypy reads, and where CuPy is not installed what imports it."""

import importlib.util

CUDA = ["minidl/ops/cuda", "tests/launch_all.py"]

collect_ignore = ["tests/house/users_script.py", *([] if importlib.util.find_spec("cupy") else CUDA)]
