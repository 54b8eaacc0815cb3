"""Scaling laws of the frontier model, against plain re-computations and published shapes."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import scaling
from planner.scaling import BatchLaw


def nearest(x):
    """round*, by looking at every member."""
    best = None
    for g in sorted(g * 2**i for g in (1, 3, 5, 7, 9) for i in range(60)):
        if best is None or abs(g - x) < abs(best - x):
            best = g
    return best


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.one_of(st.floats(0, 1e18), st.integers(0, 10**6), st.floats(0, 100)))
def test_round_to_grid(x):
    assert scaling.round_to_grid(x) == nearest(x)


@pytest.mark.parametrize(
    ("x", "rounded"),
    [
        (11, 10),
        (13, 12),
        (15, 14),
        (17, 16),
        (19, 18),
        (22, 20),
        (26, 24),
        (1.5, 1),
        (2.5, 2),
        (0, 1),
        (0.2, 1),
    ],
)
def test_ties_go_to_the_smaller(x, rounded):
    assert scaling.round_to_grid(x) == rounded
    assert scaling.round_to_grid(math.nextafter(x, math.inf)) >= rounded


def test_rounding_ends_with_the_grid():
    assert scaling.round_to_grid(1e30) == 9 << 59


@pytest.mark.parametrize(
    ("width", "layers", "experts"),
    [(12288, 192, 8), (14336, 224, 9), (20480, 288, 14), (53248, 576, 36), (122880, 1152, 80)],
)
def test_shapes(width, layers, experts):
    assert scaling.layers(width, 4 * width) == layers == nearest(0.10056 * (4 * width**2) ** 0.3751)
    assert scaling.experts(width, 4 * width, sparse=True) == experts == nearest(8 * width / 12288)
    assert scaling.experts(width, 4 * width, sparse=False) == 1


@pytest.mark.parametrize(
    ("width", "flop"),
    [
        (12288, "6.45e+24"),
        (20480, "1.12e+26"),
        (30720, "1.01e+27"),
        (36864, "2.85e+27"),
        (45056, "8.30e+27"),
        (53248, "2.05e+28"),
        (73728, "1.34e+29"),
        (106496, "1.04e+30"),
        (163840, "9.07e+30"),
        (196608, "2.71e+31"),
        (212992, "5.08e+31"),
    ],
)
def test_published_curve(width, flop):
    found = scaling.optimal_flop(width, sparse=False)
    p = 2 * width * 4 * width * scaling.layers(width, 4 * width)
    assert found == pytest.approx(120 * p**2, rel=1e-15)
    assert f"{found:.2e}" == flop


def test_sparse_flop_counts_active_parameters():
    p = 2 * 12288 * 49152 * 192 * 8
    assert scaling.optimal_flop(12288, sparse=True) == pytest.approx(120 * p**2 / 8, rel=1e-15)


@pytest.mark.parametrize(("flop", "experts"), [(6.45e24, 1), (1e22, 1), (5.16e25, 8), (3e29, 24), (1e32, 72)])
def test_batch_laws(flop, experts):
    default = math.sqrt(experts) * (flop / 3e23) ** (1 / 6) * 2048
    deepseek = math.sqrt(experts) * 0.2920 * flop**0.3271 / 2048
    for law, x in (("default", default), ("deepseek", deepseek), ("fixed", 2048)):
        found = scaling.batch_tokens(flop, experts, BatchLaw(law))
        assert found == 2048 * experts * nearest(x / experts)
        assert found % (2048 * experts) == 0


def test_batch_by_hand():
    assert scaling.batch_tokens(3e23, 1, BatchLaw.DEFAULT) == 2**22
    assert scaling.batch_tokens(1e30, 1, BatchLaw.FIXED) == 2**22
    # 64 times the compute, twice the batch.
    assert scaling.batch_tokens(64 * 3e23, 1, BatchLaw.DEFAULT) == 2**23


def test_published_widths():
    wanted = {g * 2**i for g in range(1, 16, 2) for i in range(11, 22) if 12288 <= g * 2**i <= 12288 * 128}
    assert sorted(wanted) == scaling.PUBLISHED_WIDTHS
    assert scaling.PUBLISHED_WIDTHS[0] == 12288
    assert scaling.PUBLISHED_WIDTHS[-1] == 12288 * 128
    assert wanted <= set(scaling.WIDTH_GRID)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.floats(18, 38), st.booleans())
def test_nearest_width(exponent, sparse):
    flop = 10**exponent
    found = scaling.nearest_width(flop, sparse=sparse)
    distance = {d: abs(math.log(scaling.optimal_flop(d, sparse=sparse) / flop)) for d in scaling.WIDTH_GRID}
    assert distance[found] == pytest.approx(min(distance.values()), abs=1e-12)


def test_nearest_width_of_its_own_run():
    for width in scaling.PUBLISHED_WIDTHS:
        for sparse in (False, True):
            assert scaling.nearest_width(scaling.optimal_flop(width, sparse=sparse), sparse=sparse) == width
