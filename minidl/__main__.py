"""`python -m minidl` is the command `minidl`."""

import sys

from .tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
