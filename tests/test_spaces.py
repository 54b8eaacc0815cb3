"""Divisors, products, level sizes, and the sizes a question ranges over."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import spaces
from planner.catalogue import load_accelerator
from planner.question import FrontierQuestion
from planner.spaces import Degrees, Space
from planner.workload import frontier_run
from tests import scalar_model

quickly = settings(max_examples=200, deadline=None, derandomize=True, database=None)


def smooth(n, primes):
    for p in primes:
        while n % p == 0:
            n //= p
    return n == 1


@quickly
@given(st.integers(1, 5000))
def test_factors_and_divisors(n):
    factors = spaces.factorize(n)
    assert math.prod(p**e for p, e in factors.items()) == n
    assert all(p > 1 and all(p % q for q in range(2, p)) for p in factors)
    every = [x for x in range(1, n + 1) if n % x == 0]
    assert spaces.divisors(n) == every
    assert spaces.divisors(n, Degrees.POW2) == [x for x in every if smooth(x, (2,))]
    assert spaces.divisors(n, Degrees.SMOOTH) == [x for x in every if smooth(x, (2, 3, 5))]


def test_divisors_of_large_numbers():
    n = 2**40 * 3**2 * 7
    assert len(spaces.divisors(n)) == 41 * 3 * 2
    assert spaces.divisors(n, Degrees.POW2) == [2**i for i in range(41)]


@pytest.mark.parametrize(
    ("accelerators", "fixed", "sizes"),
    [
        (1, (8,), (1, 1)),
        (5, (8,), (5, 1)),
        (8, (8,), (8, 1)),
        (12, (8,), None),
        (24, (8,), (8, 3)),
        (2048, (), (2048,)),
        (3, (8, 32), (3, 1, 1)),
        (8, (8, 32), (8, 1, 1)),
        (24, (8, 32), (8, 3, 1)),
        (256, (8, 32), (8, 32, 1)),
        (512, (8, 32), (8, 32, 2)),
        (320, (8, 32), None),
        (10, (8, 32), None),
    ],
)
def test_level_sizes(accelerators, fixed, sizes):
    assert spaces.level_sizes(accelerators, fixed) == sizes


@quickly
@given(st.integers(1, 3000), st.lists(st.integers(2, 9), max_size=3))
def test_level_sizes_are_whole_up_to_one_part(n, fixed):
    sizes = spaces.level_sizes(n, fixed)
    if sizes is None:
        # A level is neither filled nor the last one in use.
        possible = [
            s
            for s in itertools.product(*(range(1, f + 1) for f in fixed), [1])
            if all(x == f for x, f in zip(s[: scalar_model.highest_used(s)], fixed, strict=False))
            and math.prod(s) == n
        ]
        assert not possible
        assert n % math.prod(fixed)
        return
    assert math.prod(sizes) == n
    assert len(sizes) == len(fixed) + 1
    assert scalar_model.fills_levels(sizes, fixed)
    top = scalar_model.highest_used(sizes)
    assert list(sizes[:top]) == fixed[:top] if top > 0 else True


@quickly
@given(st.lists(st.integers(1, 60), max_size=3), st.integers(1, 500))
def test_products(factors, limit):
    every = {math.prod(x) for x in itertools.product(*(spaces.divisors(f) for f in factors))}
    assert spaces.products(factors, limit) == sorted(x for x in every if x <= limit)


def test_splits():
    assert spaces.splits(12, [(1, 2, 4, 8)]) == [(1, 12), (2, 6), (4, 3)]
    assert spaces.splits(6, [(1, 2), (1, 3)]) == [(1, 1, 6), (1, 3, 2), (2, 1, 3), (2, 3, 1)]
    assert spaces.splits(5, []) == [(5,)]


H100 = load_accelerator("h100-sxm")


@pytest.mark.parametrize("degrees", list(Degrees))
def test_degrees_and_sizes_of_the_full_space(degrees):
    run = frontier_run(d_model=3072, sparse=True)
    question = FrontierQuestion(run, H100, degrees=degrees, accelerators=(8, 300))
    primes = {Degrees.POW2: (2,), Degrees.SMOOTH: (2, 3, 5), Degrees.ANY: (2, 3, 5, 7, 11, 13)}[degrees]
    whole = {
        "TPm": run.d_model,
        "TPff": run.d_ff,
        "PP": run.layers,
        "DP": run.batch_tokens // run.experts,
    }
    for axis, n in whole.items():
        assert question.axis_totals[axis] == [x for x in range(1, n + 1) if n % x == 0 and smooth(x, primes)]
    assert question.axis_totals["EP"] == [x for x in range(1, run.experts + 1) if run.experts % x == 0]
    products = {1}
    for totals in question.axis_totals.values():
        products = {x * y for x in products for y in totals if x * y <= 300}
    assert question.cluster_sizes == sorted(n for n in products if n >= 8 and n % 8 == 0)


def test_the_published_space():
    run = frontier_run(d_model=14336, sparse=True)
    question = FrontierQuestion(run, H100, space=Space.PAPER, accelerators=(1, 10**4))
    assert run.experts == 9
    assert question.cluster_sizes == [9 << i for i in range(3, 11)]
    assert question.axis_totals["EP"] == [9]
    assert question.axis_totals["PP"] == [1, 2, 4, 8, 16, 32]
    # Degrees are powers of two whatever was asked for.
    assert replace(question, degrees=Degrees.ANY).axis_totals == question.axis_totals
