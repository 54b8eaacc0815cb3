"""The program type: values, limits, rules and restriction against a plain recursive evaluation."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.program import Axis, Bound, Equation, Max, Product, Program, Sum, Table, View
from tests.programs import random_program

seeds = st.integers(0, 10**6)
quickly = settings(max_examples=120, deadline=None, derandomize=True, database=None)


def plain(expression, at):
    """Value at one assignment (index by axis); None where a table forbids it."""
    match expression:
        case Table():
            index = tuple(int(v.codes[at[v.axis]]) for v in expression.views)
            value = float(expression.values[index])
            return None if math.isinf(value) else value
        case Sum():
            parts = [plain(t, at) for t in expression.terms]
            return None if None in parts else sum(parts)
        case Max():
            parts = [plain(t, at) for t in expression.terms]
            return None if None in parts else max(parts)
        case Product():
            parts = plain(expression.factor, at), plain(expression.term, at)
            return None if None in parts else parts[0] * parts[1]
    raise TypeError(expression)


def plain_feasible(program, at):
    """Whether one assignment keeps the equations, touches nothing forbidden, and is within the bounds."""
    for e in program.equations:
        for i, rhs in enumerate(e.rhs):
            if sum(int(t[at[axis]][i]) for axis, t in e.terms.items()) != rhs:
                return False, False
    values = [plain(b.expression, at) for b in program.bounds]
    if None in [plain(program.objective, at), *values]:
        return False, False
    return True, all(v <= b.upper + b.tolerance for v, b in zip(values, program.bounds, strict=True))


def assignments(program, rng, most=60):
    rows = list(itertools.product(*(range(a.size) for a in program.axes)))
    if len(rows) > most:
        rows = [rows[i] for i in sorted(rng.choice(len(rows), most, replace=False))]
    return rows


@quickly
@given(seeds)
def test_values_and_rules(seed):
    program = random_program(seed)
    rows = assignments(program, np.random.default_rng(seed))
    at = program.choices(rows)
    values = np.broadcast_to(program.objective.evaluate(at), len(rows))
    allowed, feasible = program.allowed(at), program.feasible(at)
    for i, row in enumerate(rows):
        one = dict(zip((a.name for a in program.axes), row, strict=True))
        assert (allowed[i], feasible[i]) == plain_feasible(program, one)
        wanted = plain(program.objective, one)
        assert values[i] == (math.inf if wanted is None else pytest.approx(wanted, rel=1e-14, abs=1e-14))


def some_alive(program, rng):
    alive = {}
    for axis in program.axes:
        mask = rng.random(axis.size) < 0.6
        mask[rng.integers(axis.size)] = True
        alive[axis.name] = mask
    return alive


@quickly
@given(seeds)
def test_limits_hold(seed):
    program = random_program(seed)
    rng = np.random.default_rng(seed + 1)
    for alive in (program.all_alive(), some_alive(program, rng)):
        limits = [e.limits(alive) for e in (program.objective, *(b.expression for b in program.bounds))]
        for row in assignments(program, rng):
            at = dict(zip((a.name for a in program.axes), row, strict=True))
            if not all(alive[axis][i] for axis, i in at.items()):
                continue
            for (low, high), e in zip(
                limits, (program.objective, *(b.expression for b in program.bounds)), strict=True
            ):
                value = plain(e, at)
                assert value is None or low - 1e-12 <= value <= high + 1e-12


@quickly
@given(seeds)
def test_restriction_keeps_values_and_rules(seed):
    program = random_program(seed)
    rng = np.random.default_rng(seed + 2)
    alive = some_alive(program, rng)
    small = program.restricted(alive)
    keep = [np.flatnonzero(alive[a.name]) for a in program.axes]
    assert [a.labels for a in small.axes] == [
        tuple(a.labels[i] for i in k) for a, k in zip(program.axes, keep, strict=True)
    ]
    rows = np.array(assignments(small, rng))
    original = np.stack([k[rows[:, i]] for i, k in enumerate(keep)], axis=1)
    inside, outside = small.choices(rows), program.choices(original)
    assert np.array_equal(small.allowed(inside), program.allowed(outside))
    assert np.array_equal(small.feasible(inside), program.feasible(outside))
    pairs = [(small.objective, program.objective)]
    pairs += [(x.expression, y.expression) for x, y in zip(small.bounds, program.bounds, strict=True)]
    for new, old in pairs:
        assert np.array_equal(new.evaluate(inside), old.evaluate(outside))
    for view in (v for t in small.tables() for v in t.views):
        # Every class of a restricted table still has a choice.
        assert set(view.codes) == set(range(view.classes))


def test_restriction_shares_what_was_shared():
    x = Axis("x", (1, 2, 3))
    shared = Sum((Table("t", (View("x", np.arange(3), 3),), np.array([1.0, 2.0, 3.0])),))
    program = Program("p", (x,), (), (Bound("b", shared, 2.5),), Max((shared, shared)))
    small = program.restricted({"x": np.array([True, False, True])})
    assert small.objective.terms[0] is small.objective.terms[1] is small.bounds[0].expression
    assert small.objective.evaluate({"x": np.array([0, 1])}).tolist() == [1, 3]


def test_views_group_choices():
    axis = Axis("x", (4, 6, 9, 25))
    view, kinds = View.of(axis, lambda n: n % 2)
    assert kinds == [0, 1]
    assert view.codes.tolist() == [0, 0, 1, 1]
    whole, labels = View.of(axis)
    assert labels == [4, 6, 9, 25]
    assert whole.classes == 4
    assert View.of(axis, lambda n: n % 2 + 5)[0].key == view.key != whole.key


def test_zero_times_forbidden_is_forbidden():
    view = View("x", np.arange(2), 2)
    zero = Table("zero", (view,), np.zeros(2))
    forbidden = Table("forbidden", (view,), np.array([1.0, math.inf]))
    at = {"x": np.array([0, 1])}
    assert Product(zero, forbidden).evaluate(at).tolist() == [0, math.inf]
    assert Product(forbidden, zero).evaluate(at).tolist() == [0, math.inf]
    assert Product(zero, forbidden).limits({"x": np.array([False, True])}) == (math.inf, -math.inf)


def test_constants_and_tolerance():
    x = Axis("x", ("a", "b"))
    one = Table.constant("one", 1.0)
    twice = Equation("e", {"x": np.array([[0], [1]])}, np.array([1]))
    program = Program("p", (x,), (twice,), (Bound("b", one, 1.0 - 1e-13),), one)
    at = program.choices([[0], [1]])
    assert program.feasible(at).tolist() == [False, True]
    assert one.limits(program.all_alive()) == (1.0, 1.0)
    assert program.labels((1,)) == {"x": "b"}
    assert program.axis("x") is x


def test_map_tables_replaces_and_product_factors_stay_tables():
    view = View("x", np.arange(2), 2)
    table = Table("t", (view,), np.array([1.0, 2.0]))
    doubled = Product(table, Sum((table,))).map_tables(lambda t: Table(t.name, t.views, 2 * t.values))
    assert doubled.evaluate({"x": np.array([0, 1])}).tolist() == [4, 16]
    with pytest.raises(TypeError, match="factor"):
        Product(table, table).map_tables(lambda t: Sum((t,)))
