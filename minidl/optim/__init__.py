"""Optimizers, and schedules of their learning rates."""

from .schedules import SCHEDULES, Schedule, constant, cosine, linear, schedule, step, warmup
from .sgd import SGD, Group, Rates

__all__ = [
    "SCHEDULES", "SGD", "Group", "Rates", "Schedule", "constant", "cosine", "linear", "schedule", "step", "warmup",
]
