#!/usr/bin/env python3
"""Train a zoo model: `python train.py --model lenet5`. It is `minidl train` by another name."""

import sys
from importlib.util import find_spec
from pathlib import Path

for name in ("h5py", "numpy", "tqdm"):     # some are imported when weights are saved: too late to learn of it
    try:
        there = find_spec(name) is not None
    except ValueError:                     # a module that a caller put in its place has no spec
        there = False
    if not there:
        print(f"train.py: error: {name} is not installed; run: pip install -e {Path(__file__).resolve().parent}",
              file=sys.stderr)
        sys.exit(2)

from minidl.tools.cli.train import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
