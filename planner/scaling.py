"""Scaling laws of the frontier model: depth, sparsity, batch and tokens from width and compute.

Source: arXiv 2411.01137, sections 3-4 and its public program (frontier-model.md, a).
"""

from __future__ import annotations

import bisect
import math
from enum import StrEnum

#: Sequence length the batch laws count in [tokens].
SEQUENCE_TOKENS = 2048
#: Compute-optimal tokens per parameter (Hoffmann et al. 2022).
TOKENS_PER_PARAMETER = 20
#: Width of GPT-3, the anchor of the sparsity law and of the published width grid.
ANCHOR_WIDTH = 12288
#: Ratio of d_ff to d_model.
FF_RATIO = 4

_ROUND_GRID = sorted(g << i for g in (1, 3, 5, 7, 9) for i in range(60))
#: Widths the planner considers: g * 2^i. The published grid is the part from 12288 to 12288 * 128.
WIDTH_GRID = sorted({g << i for g in range(1, 16, 2) for i in range(5, 28)})
PUBLISHED_WIDTHS = [
    d
    for d in sorted(g << i for g in range(1, 16, 2) for i in range(11, 22))
    if ANCHOR_WIDTH <= d <= 128 * ANCHOR_WIDTH
]


class BatchLaw(StrEnum):
    """How the batch grows with training compute."""

    DEFAULT = "default"
    DEEPSEEK = "deepseek"
    FIXED = "fixed"


def round_to_grid(x: float) -> int:
    """Nearest g * 2^i with g in {1, 3, 5, 7, 9}; ties go to the smaller.

    Parameters
    ----------
    x : float
        A finite number; anything below 1 gives 1.
    """
    i = bisect.bisect_left(_ROUND_GRID, x)
    if i == 0:
        return _ROUND_GRID[0]
    if i == len(_ROUND_GRID):
        return _ROUND_GRID[-1]
    low, high = _ROUND_GRID[i - 1], _ROUND_GRID[i]
    return low if x - low <= high - x else high


def layers(d_model: int, d_ff: int) -> int:
    """Depth of the compute-optimal stack of this width [blocks]."""
    return round_to_grid(0.10056 * (d_model * d_ff) ** 0.3751)


def experts(d_model: int, d_ff: int, *, sparse: bool) -> int:
    """Sparsity factor E: experts per block, one active per token."""
    if not sparse:
        return 1
    return round_to_grid(8 * math.sqrt(d_model * d_ff / (FF_RATIO * ANCHOR_WIDTH**2)))


def batch_tokens(flop: float, n_experts: int, law: BatchLaw) -> int:
    """Batch size B [tokens] for a training compute [FLOP].

    Sources: default, arXiv 2411.01137 (B grows as T^(1/6), times sqrt(E)); deepseek, Bi et al. 2024
    (arXiv 2401.02954); fixed, 2^22 tokens.
    """
    match law:
        case BatchLaw.DEFAULT:
            sequences = math.sqrt(n_experts) * (flop / 3e23) ** (1 / 6) * 2048
        case BatchLaw.DEEPSEEK:
            sequences = math.sqrt(n_experts) * 0.2920 * flop**0.3271 / SEQUENCE_TOKENS
        case BatchLaw.FIXED:
            sequences = 2048.0
    return SEQUENCE_TOKENS * n_experts * round_to_grid(sequences / n_experts)


def optimal_flop(d_model: int, *, sparse: bool) -> float:
    """Training compute of the compute-optimal run of this width: T = 6 P (20 P) / E [FLOP]."""
    d_ff = FF_RATIO * d_model
    n_experts = experts(d_model, d_ff, sparse=sparse)
    parameters = 2 * d_model * d_ff * layers(d_model, d_ff) * n_experts
    return 6 * parameters * (TOKENS_PER_PARAMETER * parameters) / n_experts


def nearest_width(flop: float, *, sparse: bool) -> int:
    """Width of the grid whose compute-optimal run is nearest in log FLOP; ties to the smaller."""
    target = math.log(flop)
    return min(WIDTH_GRID, key=lambda d: abs(math.log(optimal_flop(d, sparse=sparse)) - target))
