"""How long a launch will take, in cycles. The convolutions that hold whole images choose their tiles by these
estimates.

Constants were fitted to the times of 700 tiles on an H200, so that the chosen one is within 9 % of the fastest on the
zoo's layers. What all candidates share is left out. Cycles are those in which a warp issues, for float32.
"""

from __future__ import annotations

from .. import launch

# A multiprocessor
REGISTERS, MAX_REGISTERS = 65536, 255      # for all threads, and of one
MAX_THREADS, MAX_BLOCKS = 2048, 16         # resident at a time
LANES = 128                                # that issue at a time: four schedulers, a warp each

# A scheduler with w warps is as slow as w + this: they hide each other's waiting
HIDDEN_WARPS = 0.75
# A thread without work costs this share of one that works
IDLE = 0.25

# All below are cycles. To find and start one copy into shared memory
COPY = 45
# The cycles of a piece of work that runs alone: those of its products and copies, times these factors, plus ALONE
ALONE_PRODUCTS, ALONE_COPIES, ALONE = 1.6, 2.6, 340

# y of whole_image: four products by one weight; the load of a pixel; the start of a filter's row
FOUR_PRODUCTS, PIXEL, FILTER_ROW = 3.7, 0.8, 53
# dw of whole_image: a step of four pixels; the start of a line; of a chunk; the sum of a tap; of a block
FOUR_PIXELS, LINE, CHUNK, TAP_SUM, BLOCK_SUM = 8, 80, 300, 8, 8
# y of winograd, per kind: a product; the load of a weight; a row of taps; a channel; the end of a sum
KIND_PRODUCT, KIND_WEIGHT, KIND_ROW, KIND_CHANNEL, KIND_SUM = 0.93, 0.4, 6, 30, 4
# ... and of a position of a filter, its four outputs
FOUR_OUTPUTS = 60
# dw of winograd: an item's kinds; the barrier after a step; the start and end of an image
ITEM, STEP, IMAGE = 250, 150, 3000


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def fits_registers(numbers: int, threads: int) -> bool:
    """Whether threads can keep this many numbers, in addition to some 40 registers for all else."""
    return numbers <= min(190, REGISTERS // threads - 40)


def resident_blocks(threads: int, numbers: int, shared: int) -> int:
    """Blocks that share a multiprocessor, by their registers and bytes of shared memory."""
    registers = min(round_up(numbers, 8), REGISTERS // threads)
    return max(1, min(launch.most_shared() // (shared + launch.RESERVED), REGISTERS // (registers * threads),
                      MAX_THREADS // threads, MAX_BLOCKS))


def used(items: int, threads: int) -> float:
    """The cost of a pass in which only `items` threads have an item, as a share of a full pass."""
    return IDLE + (1 - IDLE) * items / threads


def work_time(multiply: float, used: float, copies: float, threads: int, resident: int, packs: int) -> float:
    """Cycles of a launch whose blocks do `packs` equal pieces of work.

    multiply, copies: cycles that a warp issues for a piece; used: the share of its threads that multiply.
    """
    turns = -(-packs // launch.multiprocessors())
    together = min(resident, turns)
    busy = (multiply * used + copies) * (together * threads / LANES + HIDDEN_WARPS)
    alone = ALONE_PRODUCTS * multiply + ALONE_COPIES * copies + ALONE
    return -(-turns // together) * max(busy, alone)
