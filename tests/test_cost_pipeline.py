"""Bubble and microbatches of the schedules."""

import numpy as np

from planner.cost.pipeline import bubble_factor, min_microbatches


def simulated(stages, v, m):
    """1F1B with v chunks a device, forward part: slots until the last device ends, over its own work.

    Device s runs chunk c of microbatch i after the chunk before it; groups of `stages` microbatches go
    through all chunks before the next group (Narayanan et al. 2021). Needs m to be a multiple of `stages`.
    """
    done = {}
    for s in range(stages):
        free = 0
        for group in range(m // stages):
            for c in range(v):
                for i in range(group * stages, (group + 1) * stages):
                    before = (s - 1, c, i) if s > 0 else (stages - 1, c - 1, i)
                    done.setdefault((s, c, i), None)
                    done[s, c, i] = (free, before)
    # Relax to a fixed point: start = max(end of the device's previous slot, end of the chunk before).
    order = {s: [k for k in done if k[0] == s] for s in range(stages)}
    end = dict.fromkeys(done, 0)
    changed = True
    while changed:
        changed = False
        for s in range(stages):
            free = 0
            for key in order[s]:
                start = max(free, end.get(done[key][1], 0))
                free = start + 1
                if end[key] != free:
                    end[key], changed = free, True
    return max(end.values()) / (v * m)


def test_bubble_is_that_of_a_simulated_pipeline():
    for stages, v, m in [(1, 1, 1), (2, 1, 2), (4, 1, 4), (4, 1, 8), (4, 2, 8), (3, 4, 9), (8, 3, 16)]:
        assert float(bubble_factor(stages, v, m, False)) == simulated(stages, v, m)


def test_zero_bubble_has_none():
    assert bubble_factor([1, 64], [1, 1], [1, 128], True).tolist() == [1, 1]


def test_schedules_mix_in_one_array():
    zero = np.array([True, False, False])
    assert bubble_factor([5, 5, 1], [1, 2, 1], [10, 10, 3], zero).tolist() == [1, 1.2, 1]


def test_fewest_microbatches():
    assert min_microbatches([1, 8, 8], [False, False, True]).tolist() == [1, 8, 16]
