"""Optimizers, schedules of their learning rates, clipped gradients and averaged weights."""

from .adaptive import Adam, AdamW, RMSprop
from .averages import EMA
from .clip import clip_grad_norm, clip_grad_value
from .muon import Muon
from .optimizer import Group, Optimizer
from .rates import SCHEDULES, Plateau, Rates, Schedule, constant, cosine, linear, one_cycle, schedule, step, warmup
from .sgd import SGD
from .together import OPTIMIZERS, Together

__all__ = [
    "EMA", "OPTIMIZERS", "SCHEDULES", "SGD", "Adam", "AdamW", "Group", "Muon", "Optimizer", "Plateau", "RMSprop",
    "Rates", "Schedule", "Together", "clip_grad_norm", "clip_grad_value", "constant", "cosine", "linear", "one_cycle",
    "schedule", "step", "warmup",
]
