"""One multiplication under data-movement limits: by hand, by an independent scalar model, and its limits."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalogue import accelerator_names, load_accelerator
from planner.cost.matmul import block_seconds, matmul_seconds
from tests import scalar_model

H100 = load_accelerator("h100-sxm")

#: Everything fast, so that a test can slow down one part. Registers 2^12 B a block, 2^14 B a unit; L2 2^15 B.
FAST = H100.model_copy(
    update={
        "units": 2,
        "flop_per_clock_per_unit": 1.0,
        "max_clock": 1e29,
        "sustained_share": 1.0,
        "memory_bandwidth": 1e30,
        "l2_capacity": 2.0**15,
        "l2_bandwidth": 1e30,
        "register_blocks_per_unit": 4,
        "register_bytes_per_block": 2**12,
        "shared_memory_bytes_per_clock_per_unit": 1.0,
        "unit_network": False,
        "matmul_overhead": 0.0,
        "usable_share": 1.0,
    }
)


def seconds(machine, *shape, gradient=False, **changes):
    return float(matmul_seconds(machine.model_copy(update=changes), *shape, weight_gradient=gradient))


# 256 x 256 weights of 2 B: W = 2^17; with 8 columns A1 = A2 = 2^12.
# L2 tiles: 4 of 2^15 B, so r = c = 2; unit tiles: 8, so r = c = sqrt 8; block tiles: 32, so r = c = sqrt 32.
W, A = 2**17, 2**12
HBM = W + 2 * A + (2 * 2 - 1) * A
UNIT = W + math.sqrt(8) * A + (2 * math.sqrt(8) - 1) * A
BLOCK = W + math.sqrt(32) * A + (2 * math.sqrt(32) - 1) * A


def test_memory_bound_by_hand():
    assert seconds(FAST, 256, 256, 8, memory_bandwidth=1e3) == HBM / 1e3
    assert seconds(FAST, 256, 256, 8, memory_bandwidth=1e3, gradient=True) == (2 * W + 2 * A + 2 * A) / 1e3


def test_l2_bound_by_hand():
    assert seconds(FAST, 256, 256, 8, l2_bandwidth=1e3) == pytest.approx((HBM + UNIT) / 1e3, rel=1e-14)


def test_shared_memory_bound_by_hand():
    # 1 B per clock and unit, 2 units.
    slow = {"max_clock": 500.0, "flop_per_clock_per_unit": 1e20}
    assert seconds(FAST, 256, 256, 8, **slow) == pytest.approx((UNIT + BLOCK) / 1e3, rel=1e-14)


def test_mesh_by_hand():
    # With the mesh, both units hold tiles together: 4 of 2^15 B; the mesh carries r' = c' = sqrt 8.
    slow = {"max_clock": 500.0, "flop_per_clock_per_unit": 1e20, "unit_network": True}
    mesh = math.sqrt(8) * A + 2 * (math.sqrt(8) - 1) * A
    assert seconds(FAST, 256, 256, 8, **slow) == pytest.approx((HBM + mesh + BLOCK) / 1e3, rel=1e-14)
    backward = 2 * W + 2 * A + 2 * A + 2 * math.sqrt(8) * A + 2 * W + 2 * math.sqrt(32) * A
    assert seconds(FAST, 256, 256, 8, gradient=True, **slow) == pytest.approx(backward / 1e3, rel=1e-14)


def test_one_tile_needs_no_mesh():
    # 64 x 64: one unit holds it (2^13 B), two blocks do together, and no level moves weights; A1 = A2 = 2^10.
    slow = {"max_clock": 500.0, "flop_per_clock_per_unit": 1e20, "unit_network": True}
    a = 64 * 8 * 2
    forward = 2 * a + (math.sqrt(2) + 2 * math.sqrt(2) - 1) * a
    assert seconds(FAST, 64, 64, 8, **slow) == pytest.approx(forward / 1e3, rel=1e-14)
    backward = 2 * a + 2 * math.sqrt(2) * a
    assert seconds(FAST, 64, 64, 8, gradient=True, **slow) == pytest.approx(backward / 1e3, rel=1e-14)


def test_a_small_l2_counts_as_one_units_registers():
    # Unit tiles of 2^14 B at the memory boundary too: 8 of them.
    small = seconds(FAST, 256, 256, 8, memory_bandwidth=1e3, l2_capacity=1.0)
    assert small == pytest.approx(UNIT / 1e3, rel=1e-14)


def test_resident_weights_are_not_moved():
    # 2 W = 2^15 fits L2 exactly; one row more does not.
    fits = seconds(FAST, 128, 64, 8, memory_bandwidth=1e3)
    assert fits == (64 * 8 * 2 + 128 * 8 * 2) / 1e3
    more = seconds(FAST, 129, 64, 8, memory_bandwidth=1e3)
    assert more > fits + 129 * 64 * 2 / 1e3


def test_arithmetic_bound_is_padded():
    slow = {"flop_per_clock_per_unit": 1e3 / 2 / 1e29}
    assert seconds(FAST, 250, 255, 1, **slow) == pytest.approx(2 * 256 * 256 * 8 / 1e3, rel=1e-14)
    assert seconds(FAST, 256, 256, 8, **slow) == pytest.approx(2 * 256 * 256 * 8 / 1e3, rel=1e-14)


def test_overhead_and_ceiling():
    assert seconds(H100, 8, 8, 8) == pytest.approx(4.5e-6, rel=1e-2)
    # A large product runs at the sustained rate.
    n = 2**16
    assert seconds(H100, n, n, n) == pytest.approx(2 * n**3 / H100.sustained + 4.5e-6, rel=1e-12)


dimension = st.one_of(st.integers(1, 2**17), st.floats(1, 1e5))


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    dimension,
    dimension,
    st.one_of(st.integers(1, 2**22), st.floats(0.1, 1e6)),
    st.sampled_from(accelerator_names()),
)
def test_agrees_with_the_scalar_model(d1, d2, columns, name):
    machine = load_accelerator(name)
    for gradient in (False, True):
        found = matmul_seconds(machine, d1, d2, columns, weight_gradient=gradient)
        assert float(found) == pytest.approx(
            scalar_model.matmul(machine, d1, d2, columns, gradient=gradient), rel=1e-13
        )
    assert float(block_seconds(machine, d1, d2, columns)) == pytest.approx(
        scalar_model.block(machine, d1, d2, columns), rel=1e-13
    )


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(dimension, dimension, st.floats(1e3, 1e8))
def test_tiles_cover_the_matrix(d1, d2, capacity):
    r, c = scalar_model.tiles(d1, d2, 2, capacity)
    assert r * c == pytest.approx(math.ceil(d1 * d2 * 2 / capacity), rel=1e-12)
    assert min(r, c) >= 1 - 1e-12


def test_never_faster_than_each_limit():
    rng = np.random.default_rng(0)
    d1, d2, b = (10 ** rng.uniform(1, 5, 1000) for _ in range(3))
    for name in accelerator_names():
        a = load_accelerator(name)
        found = matmul_seconds(a, d1, d2, b)
        assert found.shape == (1000,)
        assert np.all(found >= 2 * d1 * d2 * b / a.sustained)
        assert np.all(found >= (d1 + d2) * b * a.word_bytes / a.memory_bandwidth)
        assert np.all(found >= a.matmul_overhead)


def test_more_columns_never_take_less_time():
    b = np.geomspace(1, 1e6, 500)
    assert np.all(np.diff(matmul_seconds(H100, 12288, 6144, b)) >= 0)


def test_arrays_broadcast_and_equal_scalars():
    d, b = np.array([[512.0], [4096.0]]), np.array([16.0, 100.0, 3e4])
    grid = block_seconds(H100, d, 4 * d, b)
    assert grid.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        assert grid[i, j] == float(block_seconds(H100, d[i, 0], 4 * d[i, 0], b[j]))
