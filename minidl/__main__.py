"""`python -m minidl` is the command `minidl`."""

import sys

from .frontend.cli import main

if __name__ == "__main__":
    sys.exit(main())
