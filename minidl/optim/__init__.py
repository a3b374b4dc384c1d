"""Optimizers, and schedules of their learning rates."""

from .adaptive import Adam, AdamW, RMSprop
from .optimizer import Group, Optimizer
from .rates import Rates
from .schedules import SCHEDULES, Schedule, constant, cosine, linear, schedule, step, warmup
from .sgd import SGD

__all__ = [
    "SCHEDULES", "SGD", "Adam", "AdamW", "Group", "Optimizer", "RMSprop", "Rates", "Schedule", "constant", "cosine",
    "linear", "schedule", "step", "warmup",
]
