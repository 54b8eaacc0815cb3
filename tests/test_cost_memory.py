"""Memory of weights and optimizer state."""

import numpy as np

from planner.cost.memory import frontier_bytes


def test_by_hand():
    # 10 parameters of 2 B: a replica is 20 B, the optimizer state 80 B in total.
    assert frontier_bytes(10, [1, 2, 16], 2).tolist() == [100, 120, 400]


def test_published_rule():
    p, w = 231928233984, 2
    for dp in (1, 3, 128):
        assert float(frontier_bytes(p, dp, w)) == p * w * dp + 4 * p * w


def test_large_counts_do_not_overflow():
    assert np.isclose(frontier_bytes(10**18, 10**12, 2), 2e30)
