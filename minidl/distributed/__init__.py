"""Data parallel training: several processes, the ranks, share out each step's images and average their gradients.

`mpiexec -n 4 python train.py` is all that a user of the command line or of `training.fit` changes. A loop of your own
gets the ranks from `start()`, gives each its part, and calls `average` between backward() and step().
docs/distributed.md says how.
"""

from .gradients import average
from .world import Launch, Launched, One, OtherRank, World, by_first, current, launched, start

__all__ = ["Launch", "Launched", "One", "OtherRank", "World", "average", "by_first", "current", "launched", "start"]
