"""The closed forms of the paper (frontier-model.md, f)."""

import math

import pytest

from planner.catalogue import load_accelerator
from planner.cost.walls import bandwidth_wall, latency_wall


def test_latency_wall():
    assert f"{latency_wall():.2e}" == "2.31e+31"


def test_latency_wall_by_hand():
    # 2 * 3/320 * (4e4 t / t_L)^2 in MAC times 2.
    assert latency_wall(step_latency=1e-5, seconds=1e7) == pytest.approx(2 * 3 / 320 * (4e4 * 1e12) ** 2)
    assert latency_wall() / latency_wall(step_latency=9e-5) == pytest.approx(100)
    assert latency_wall(seconds=2 * 7.889e6) / latency_wall() == pytest.approx(4)


@pytest.mark.parametrize(
    ("name", "wall"), [("v100-sxm2", "1.30e+27"), ("a100-sxm-40gb", "2.62e+28"), ("h100-sxm", "1.92e+28")]
)
def test_bandwidth_wall(name, wall):
    a = load_accelerator(name)
    found = bandwidth_wall(a.peak, a.memory_bandwidth, a.network[-1].bandwidth)
    assert f"{found:.2e}" == wall


def test_bandwidth_wall_in_words_per_node():
    # The same from the definitions of the specification: a node of 8, words of 2 B, MAC = FLOP / 2.
    a = load_accelerator("h100-sxm")
    c, m, q = 8 * a.peak / 2, 8 * a.memory_bandwidth / 2 / 2, 8 * a.network[-1].bandwidth / 2
    n, x = c / m, 4 * c / (3 * q)
    expected = 2 * (1 / 960) * ((4e6 / 100) * c * 7.889e6 / (x**2 * n)) ** 2
    assert bandwidth_wall(a.peak, a.memory_bandwidth, a.network[-1].bandwidth) == pytest.approx(expected)


def test_walls_move_out_when_the_batch_grows_with_compute():
    # With B / L growing as T^alpha, T solves T = 2 base(T): the closed form is its fixed point.
    alpha = 1 / 6
    wall = latency_wall(alpha=alpha)
    assert wall > latency_wall()
    tokens_per_layer = 4e6 / 100 * (wall / 2 / 3e23) ** alpha
    assert wall / 2 == pytest.approx(3 / 320 * (tokens_per_layer * 7.889e6 / 9e-6) ** 2)
    a = load_accelerator("h100-sxm")
    arguments = (a.peak, a.memory_bandwidth, a.network[-1].bandwidth)
    assert math.isfinite(bandwidth_wall(*arguments, alpha=alpha))
    assert bandwidth_wall(*arguments, alpha=alpha) > bandwidth_wall(*arguments)
