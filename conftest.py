"""Not collected: a script that only mypy reads, and, if CuPy is not installed, what imports it."""

import importlib.util
import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:          # a shell sets this for what it runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["pytester"]             # tests/house/test_tiers.py runs pytest

CUDA = ["minidl/ops/cuda", "tests/launch_all.py", "tests/kernels.py"]

collect_ignore = ["tests/house/users_script.py", *([] if importlib.util.find_spec("cupy") else CUDA)]
