"""Convolution algorithms of users, which tests register."""

from __future__ import annotations

import sys

from minidl.ops.common.conv.own import OWN
from minidl.ops.cpu import conv as on_the_cpu


def forget() -> None:
    """What was registered is not there any more."""
    there = sys.modules.get("minidl.ops.cuda.conv")
    for name in OWN:
        del on_the_cpu.ALGORITHMS[name]
        if there:
            there.ALGORITHMS.pop(name, None)
    OWN.clear()
    for module in [name for name in sys.modules if name.startswith("plugin_")]:
        del sys.modules[module]
