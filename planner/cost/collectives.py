"""Communication over a hierarchical network: ring collectives and point-to-point crossings.

Source: arXiv 2411.01137, section 2 and its public program (frontier-model.md, c2). A degree of parallelism p
is split over the network levels, innermost first; the last axis of every degree array is the level.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def above(degrees: Floats) -> Floats:
    """Product of the degrees of the levels strictly above each level, shape (..., K)."""
    suffix = np.cumprod(degrees[..., ::-1], axis=-1)[..., ::-1]
    return np.concatenate([suffix[..., 1:], np.ones_like(suffix[..., :1])], axis=-1)


def all_reduce_share(degrees: Floats) -> Floats:
    """(p_k - 1) p_{>k} per level: words a rank's share moves in one half of an all-reduce, shape (..., K).

    Half means a reduce-scatter or an all-gather; each lower level repeats what the upper ones leave.
    """
    return (degrees - 1) * above(degrees)


def all_reduce_steps(degrees: Floats) -> Floats:
    """1 where a level takes part in a collective (one latency per level and half), shape (..., K)."""
    return np.asarray(degrees > 1, dtype=np.float64)


def _highest(degrees: Floats) -> Floats:
    """One-hot of the highest level with a degree over 1 (all zero if there is none)."""
    used = degrees > 1
    return np.asarray(used & (above(degrees) == 1), dtype=np.float64)


def pipeline_crossings(degrees: Floats, interleave: Floats, layers: int) -> Floats:
    """Share of the L - 1 layer interfaces that cross each level because of pipelining, shape (..., K).

    `interleave` = v, shape (...).
    """
    v = interleave[..., None]
    crossings = v * above(degrees) * (degrees - 1) + (v - 1) * _highest(degrees)
    return np.asarray(crossings / max(layers - 1, 1))


def expert_crossings(degrees: Floats) -> Floats:
    """Probability that a token's next expert lies across each level, uniform routing, shape (..., K)."""
    outer = above(degrees)
    return np.asarray(1 / outer - 1 / (outer * degrees))


def expert_crossings_worst(degrees: Floats) -> Floats:
    """The same for latency: the slowest token always crosses the highest level in use, shape (..., K)."""
    return _highest(degrees)


def none_above(crossings: Floats) -> Floats:
    """Probability of crossing nothing above level k = -1, 0 .. K-1, shape (..., K + 1)."""
    none = 1 - crossings.sum(axis=-1, keepdims=True)
    return np.cumsum(np.concatenate([none, crossings], axis=-1), axis=-1)


def higher_of(first: Floats, second: Floats) -> Floats:
    """Distribution of the higher level of two independent crossings, shape (..., K).

    Each argument gives a probability per level; what is missing to 1 crosses no level.
    """
    return np.diff(none_above(first) * none_above(second), axis=-1)
