"""Choose among optimal assignments, so that equal problems get equal answers whoever solves them.

Everything worse than the proven optimum is cut off, and the tree walk minimises each tie-breaker in turn
among what is left.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np

from formulations.base import Clock, Solution, Termination
from formulations.enumeration import Walk, walk
from formulations.presolve import original, reduce
from formulations.tree import Tree
from planner.program import Bound, Expression, Program

#: Relative difference up to which assignments are equally good: rounding, and less than a proof's gap.
TIE = 1e-10
#: Relative gap of a solution up to which there is a point in choosing among its equals.
PROVEN = 1e-6
#: Partial assignments that a walk may expand; its length does not depend on the machine [rows].
WALKS = (50_000, 300_000, 3_000_000)


def _tied(name: str, expression: Expression, value: float) -> Bound:
    """Only what is as good as a value."""
    return Bound(name, expression, value + TIE * abs(value), TIE * 1e-3)


def _least(
    program: Program, expression: Expression, known: float, clock: Clock
) -> tuple[tuple[int, ...], float] | None:
    """The first assignment with the least value, at most a known one; None if the walk stops before."""
    asked = replace(program, objective=expression)
    names = [a.name for a in program.axes]
    target = known + TIE * max(abs(known), 1.0)
    for rows, order in product(WALKS, [names, *program.other_orders]):
        found: Walk = walk(Tree(asked.reordered(order)), clock, target=target, rows=rows)
        if found.termination is Termination.INTERRUPTED:
            return None
        if found.termination is Termination.OPTIMAL:
            if found.assignment is None:
                return None
            chosen = dict(zip(order, found.assignment, strict=True))
            return tuple(chosen[name] for name in names), found.value
        if clock.over:
            return None
    return None


def _holds(program: Program, solution: Solution) -> bool:
    """Whether the assignment is one, with the objective claimed: a false claim must not be mended here."""
    rows, sizes = solution.assignment, [a.size for a in program.axes]
    if rows is None or solution.objective is None or len(rows) != len(sizes):
        return False
    if not all(0 <= i < size for i, size in zip(rows, sizes, strict=True)):
        return False
    at = program.choices(rows)
    value = float(np.max(program.objective.evaluate(at)))
    return bool(program.feasible(at)[0]) and math.isclose(value, solution.objective, rel_tol=TIE)


def break_ties(program: Program, solution: Solution, clock: Clock) -> Solution:
    """The solution with the assignment that the program's tie-breakers prefer among its equals.

    Parameters
    ----------
    program : Program
        What was solved.
    solution : Solution
        Its solution; one that is not proven, or does not hold, is returned as it is.
    clock : Clock
        Ends the search; the solution then stays as it is and says so.
    """
    gap = solution.gap
    proven = solution.termination is Termination.OPTIMAL and gap is not None and gap <= PROVEN
    if not program.tie_breakers or not proven or not _holds(program, solution):
        return solution
    assert solution.objective is not None
    start = clock.spent
    current = replace(
        program, bounds=(*program.bounds, _tied("optimal", program.objective, solution.objective))
    )
    keep = {a.name: np.arange(a.size) for a in program.axes}
    reduced, keep = reduce(current, keep, math.inf)
    found = solution.assignment
    assert found is not None
    for i, tie_breaker in enumerate(program.tie_breakers):
        known = float(np.max(tie_breaker.evaluate(program.choices(found))))
        best = None if reduced is None else _least(reduced, reduced.tie_breakers[i], known, clock)
        if reduced is None or best is None:
            found = None
            break
        assignment, value = best
        found = original(program, keep, assignment)
        bound = _tied(f"tie-breaker {i + 1}", reduced.tie_breakers[i], value)
        reduced = replace(reduced, bounds=(*reduced.bounds, bound))
    spent = solution.solve_seconds + clock.spent - start
    if found is None:
        note = "equally good layouts were not all compared"
        detail = f"{solution.detail}; {note}" if solution.detail else note
        return replace(solution, solve_seconds=spent, detail=detail)
    objective = float(np.max(program.objective.evaluate(program.choices(found))))
    return replace(solution, assignment=found, objective=objective, solve_seconds=spent)
