"""Closed forms for how far training scales (arXiv 2411.01137; frontier-model.md, f).

A MAC is half a FLOP. The anchors are b0 = 4e6 tokens and L0 = 100 layers at T0 = 3e23 FLOP; `alpha` is the
exponent with which B / L grows in T; t is a quarter of a year.
"""

from __future__ import annotations

ANCHOR_TOKENS = 4e6
ANCHOR_LAYERS = 100.0
ANCHOR_FLOP = 3e23
QUARTER = 7.889e6


def latency_wall(step_latency: float = 9e-6, seconds: float = QUARTER, alpha: float = 0.0) -> float:
    """Largest run whose serial steps fit the deadline, T_limit [FLOP].

    `step_latency` is the time of one serial step [s], `seconds` the deadline [s].
    """
    tokens_per_layer = ANCHOR_TOKENS / ANCHOR_LAYERS * ANCHOR_FLOP**-alpha
    base = 3 / 320 * (tokens_per_layer * seconds / step_latency) ** 2
    return float(2 * base ** (1 / (1 - 2 * alpha)))


def bandwidth_wall(
    flop_per_second: float,
    memory_bandwidth: float,
    network_bandwidth: float,
    *,
    word_bytes: float = 2,
    node_size: int = 8,
    seconds: float = QUARTER,
    alpha: float = 0.0,
) -> float:
    """Run above which data movement, not arithmetic, sets the time, T_crit [FLOP].

    Parameters
    ----------
    flop_per_second : float
        Datasheet peak of one accelerator [FLOP/s].
    memory_bandwidth : float
        HBM bandwidth of one accelerator [B/s]; halved here, for one way.
    network_bandwidth : float
        Outer-network bandwidth of one accelerator, one way [B/s].
    word_bytes, node_size, seconds, alpha
        Bytes per word, accelerators per node, deadline [s], exponent of B / L.
    """
    macs = node_size * flop_per_second / 2
    memory_words = node_size * memory_bandwidth / 2 / word_bytes
    network_words = node_size * network_bandwidth / word_bytes
    n = macs / memory_words
    a = 4 * macs / (3 * network_words)
    tokens_per_layer = ANCHOR_TOKENS / ANCHOR_LAYERS * ANCHOR_FLOP**-alpha
    base = 1 / 960 * (tokens_per_layer * macs * seconds / (a**2 * n)) ** 2
    return float(2 * base ** (1 / (1 - 2 * alpha)))
