"""What tests in several folders check, and compute-sanitizer runs: of the CUDA backend, and of compiled steps."""

from __future__ import annotations

from typing import Any

import numpy as np


def normal(*shape: int, dtype: Any = np.float64, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
