"""Collectives and crossings against counts on an explicit placement."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost import collectives
from tests import scalar_model

degrees = st.lists(st.integers(1, 4), min_size=1, max_size=4)
quickly = settings(max_examples=150, deadline=None, derandomize=True, database=None)


def floats(*values):
    return np.array(values, dtype=np.float64)


def test_above():
    assert collectives.above(floats(2, 3, 5)).tolist() == [15, 5, 1]
    assert collectives.above(floats(7)).tolist() == [1]


def ring_words(chain):
    """Words a member receives at each level of a hierarchical reduce-scatter, over those of its final share.

    It starts at the innermost level with the whole; each level reduces over its ring and keeps a part.
    """
    have, out = math.prod(chain), []
    for p in chain:
        keep = have // p
        out.append((p - 1) * keep)
        have = keep
    return out


@quickly
@given(degrees)
def test_share_of_a_hierarchical_ring(chain):
    share = collectives.all_reduce_share(floats(*chain))
    assert share.tolist() == ring_words(chain)
    # All levels together move what one flat ring moves.
    assert share.sum() == math.prod(chain) - 1


def test_steps_count_levels_in_use():
    assert collectives.all_reduce_steps(floats(1, 2, 1, 9)).tolist() == [0, 1, 0, 1]


@quickly
@given(degrees, st.integers(1, 5), st.integers(0, 7))
def test_pipeline_crossings_are_those_of_the_placement(chain, v, spare):
    stages = math.prod(chain)
    v = v if stages > 1 else 1
    depth = stages * v * (1 + spare)
    if depth < 2:
        depth = 2
    found = collectives.pipeline_crossings(floats(*chain), floats(v)[0], depth) * (depth - 1)
    assert found == pytest.approx(scalar_model.pipeline_interfaces(chain, v, depth), abs=1e-9)


@quickly
@given(degrees)
def test_expert_crossings_are_those_of_uniform_routing(chain):
    assert collectives.expert_crossings(floats(*chain)) == pytest.approx(
        scalar_model.expert_pairs(chain), abs=1e-12
    )


@quickly
@given(degrees)
def test_the_slowest_token_crosses_the_highest_level_in_use(chain):
    expected = [0.0] * len(chain)
    if scalar_model.highest_used(chain) >= 0:
        expected[scalar_model.highest_used(chain)] = 1.0
    assert collectives.expert_crossings_worst(floats(*chain)).tolist() == expected


@quickly
@given(st.integers(1, 4), st.integers(0, 10**6))
def test_higher_of_two_levels(levels, seed):
    rng = np.random.default_rng(seed)
    first, second = (rng.dirichlet(np.ones(levels + 1))[1:] for _ in range(2))
    assert collectives.higher_of(first, second) == pytest.approx(
        scalar_model.higher_of(list(first), list(second)), abs=1e-12
    )
    # Nobody crosses: the other one's distribution is left.
    assert collectives.higher_of(first, np.zeros(levels)) == pytest.approx(first, abs=1e-12)


def test_layouts_are_independent_rows():
    chains = np.array(list(itertools.product((1, 2, 3), repeat=3)), dtype=np.float64)
    v = np.where(chains.prod(axis=-1) > 1, 2.0, 1.0)
    for function in (
        collectives.all_reduce_share,
        collectives.all_reduce_steps,
        collectives.expert_crossings,
        collectives.expert_crossings_worst,
        collectives.above,
    ):
        assert np.array_equal(function(chains), np.array([function(row) for row in chains]))
    together = collectives.pipeline_crossings(chains, v, 54)
    one_by_one = [collectives.pipeline_crossings(row, x, 54) for row, x in zip(chains, v, strict=True)]
    assert np.array_equal(together, np.array(one_by_one))


def test_a_single_layer_has_no_interfaces_to_cross():
    assert collectives.pipeline_crossings(floats(1, 1), floats(1)[0], 1).tolist() == [0, 0]
