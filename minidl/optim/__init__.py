"""Optimizers, and schedules of their learning rates."""

from .optimizer import Group, Optimizer
from .rates import Rates
from .schedules import SCHEDULES, Schedule, constant, cosine, linear, schedule, step, warmup
from .sgd import SGD

__all__ = [
    "SCHEDULES", "SGD", "Group", "Optimizer", "Rates", "Schedule", "constant", "cosine", "linear", "schedule", "step",
    "warmup",
]
