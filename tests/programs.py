"""Random small programs, and the plain exhaustive answer to them."""

from __future__ import annotations

import itertools

import numpy as np

from planner.program import Axis, Bound, Equation, Expression, Max, Product, Program, Sum, Table, View


def random_program(seed: int) -> Program:
    """A small program with every feature: grouped views, forbidden entries, equations, bounds, products."""
    rng = np.random.default_rng(seed)
    axes = tuple(Axis(f"x{i}", tuple(range(rng.integers(1, 6)))) for i in range(rng.integers(2, 6)))

    def view(axis: Axis) -> View:
        if rng.random() < 0.5:
            return View(axis.name, np.arange(axis.size), axis.size)
        classes = int(rng.integers(1, axis.size + 1))
        codes = np.concatenate([np.arange(classes), rng.integers(0, classes, axis.size - classes)])
        return View(axis.name, codes.astype(np.int64), classes)

    def table(low: float, high: float, width: int = 3) -> Table:
        chosen = rng.choice(len(axes), size=min(len(axes), int(rng.integers(1, width + 1))), replace=False)
        views = tuple(view(axes[i]) for i in chosen)
        values = rng.uniform(low, high, [v.classes for v in views])
        if rng.random() < 0.3:
            values = np.round(values, 1)  # ties, and few distinct values
        if rng.random() < 0.3:
            values[rng.random(values.shape) < 0.15] = np.inf
        return Table(f"t{rng.integers(1000)}", views, values)

    def expression(depth: int) -> Expression:
        kind = rng.integers(4) if depth > 0 else 0
        if kind == 0:
            return table(0.0, 3.0)
        if kind == 1:
            return Sum(tuple(expression(depth - 1) for _ in range(rng.integers(1, 4))))
        if kind == 2:
            return Max(tuple(expression(depth - 1) for _ in range(rng.integers(1, 4))))
        return Product(table(0.0, 2.0, 2), expression(depth - 1))

    equations = []
    for j in range(rng.integers(0, 3)):
        r = int(rng.integers(1, 3))
        parts = {a.name: rng.integers(-2, 4, (a.size, r)) for a in axes if rng.random() < 0.7}
        if parts:
            hit = {a: t[rng.integers(len(t))] for a, t in parts.items()}
            equations.append(Equation(f"e{j}", parts, np.sum(list(hit.values()), axis=0)))
    bounds = []
    for j in range(rng.integers(0, 3)):
        inner = Sum((expression(1), table(-3.0, 0.0)))
        bounds.append(Bound(f"b{j}", inner, float(rng.uniform(-1, 3))))
    return Program(f"random {seed}", axes, tuple(equations), tuple(bounds), expression(3))


def exhaustive(program: Program) -> tuple[float, int]:
    """Least objective over all feasible assignments (inf if there is none), and how many are allowed.

    No bounding, no ordering: every combination of choices is evaluated.
    """
    rows = np.array(list(itertools.product(*(range(a.size) for a in program.axes))), dtype=np.int64)
    at = program.choices(rows)
    allowed = program.allowed(at)
    feasible = program.feasible(at)
    values = np.broadcast_to(program.objective.evaluate(at), (len(rows),))
    best = float(values[feasible].min()) if feasible.any() else float("inf")
    return best, int(allowed.sum())
