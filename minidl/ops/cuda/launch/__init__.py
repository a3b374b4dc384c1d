"""How kernels run: the text of a .cu file (common/sources.py), what is compiled from it (compiling.py) and its run
(kernels.py), launches that are chosen before that (plan.py), how work is shared among blocks and threads (grid.py),
memory for results (memory.py), and facts about the device (device.py).

`kernel("layers/pool/pool.cu", "avg_pool2d", real(x.dtype))` gives the function compiled with those constants, the same
object each time; others are compiled meanwhile, and its first launch waits for it. What it takes is read from its
parameter list in the source, so that a call with an array of another dtype or on another device, a result that has
gaps, or a number of the wrong kind, is refused instead of misread.
CuPy keeps what was compiled on disk; a file's own includes are pasted into it, because they are not in CuPy's key.
"""

from ...common.sources import (
    C_NAME,
    FOLDER,
    GENERATED,
    HOPPER,
    TYPES,
    Constant,
    options,
    parameters,
    pasted,
    real,
    source,
    struct,
)
from .compiling import alone, dry, is_captured, is_dry
from .device import RESERVED, cache_bytes, compiler_version, compute_capability, most_shared, multiprocessors
from .grid import THREADS, blocks, lanes_per_row, spread
from .kernels import MAX_ELEMENTS, Arguments, Kernel, by_value, generated, kernel
from .memory import empty, flat, for_all_streams, fresh, memory_of, one_order, ones_like, owns
from .misfits import dense, refuse
from .plan import Plan, best, prepare
from .poison import CONSTANTS as POISON

__all__ = [
    "C_NAME", "FOLDER", "GENERATED", "HOPPER", "MAX_ELEMENTS", "POISON", "RESERVED", "THREADS", "TYPES",
    "Arguments", "Constant", "Kernel", "Plan", "alone", "best", "blocks", "by_value", "cache_bytes",
    "compiler_version", "compute_capability", "dense", "dry", "empty", "flat", "for_all_streams", "fresh", "generated",
    "is_captured", "is_dry", "kernel", "lanes_per_row", "memory_of", "most_shared", "multiprocessors", "one_order",
    "ones_like", "options", "owns", "parameters", "pasted", "prepare", "real", "refuse", "source", "spread",
    "struct",
]
