"""Pipeline schedules: the bubble (frontier-model.md, c4).

Sources: 1F1B interleaved, Narayanan et al. 2021 (arXiv 2104.04473); zero bubble, Qi et al. 2023 (2401.10241).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def bubble_factor(
    stages: ArrayLike, interleave: ArrayLike, microbatches: ArrayLike, zero_bubble: ArrayLike
) -> NDArray[np.float64]:
    """Time of a batch over its bubble-free time: 1 + (PP - 1) / (v m), or 1 with zero bubble."""
    p, v, m = (np.asarray(x, dtype=np.float64) for x in (stages, interleave, microbatches))
    return np.where(zero_bubble, 1.0, 1 + (p - 1) / (v * m))


def min_microbatches(stages: ArrayLike, zero_bubble: ArrayLike) -> NDArray[np.int64]:
    """Fewest microbatches the schedule runs with: PP, or 2 PP with zero bubble."""
    return np.asarray(stages, dtype=np.int64) * np.where(zero_bubble, 2, 1)
