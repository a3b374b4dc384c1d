"""What pytest does not collect: the CUDA backend without CuPy, which its doctests import; a script that only mypy reads."""

import importlib.util

collect_ignore = ["tests/house/users_script.py", *([] if importlib.util.find_spec("cupy") else ["minidl/ops/cuda"])]
