"""Shrink a program before a solver sees it: what every mixed-integer formulation shares.

A short walk of the search tree finds an incumbent; choices and table entries whose relaxed bound exceeds it
are removed; equations and forbidden entries propagate. What is left keeps every assignment at least as good
as the incumbent. The solver then proves the rest. Where the walk happens to be complete it is a proof of its
own, and the solver's is a second opinion that gets limited patience.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from formulations.base import Clock, Formulation, Options, Solution, Termination
from formulations.enumeration import Walk, walk
from formulations.tree import Relaxation, Tree
from planner.program import Bound, Expression, Max, Product, Program, Sum, Table

Assignment = tuple[int, ...]
Key = tuple[tuple[str, bytes], ...]

#: Relative room above the incumbent within which everything is kept: solvers have tolerances.
ROOM = 2e-6
#: Partial assignments that each walk for the incumbent expands; the program is reduced between walks [rows].
WALKS = (50_000, 300_000, 3_000_000)
#: Largest table whose entries are bounded one by one [entries].
LARGEST_TABLE = 1_000_000
#: Most passes over axes and tables; they end when nothing changes.
ROUNDS = 8
#: With a gap as loose as this a complete walk needs no second opinion.
ROUGH = 1e-6
#: Time for a second opinion after a complete walk [s], or this many times the time the walk took.
PATIENCE, PATIENCE_FACTOR = 2.0, 2.0


@dataclass(frozen=True, eq=False)
class Presolved:
    """A smaller program, and how its answers read in the original one."""

    program: Program | None  #: None when nothing is as good as the incumbent, or nothing is feasible
    keep: Mapping[str, NDArray[np.int64]]  #: original index of each choice left
    incumbent: Assignment | None  #: in the original program
    value: float  #: of the incumbent; inf if there is none
    bound: float  #: nothing is below this
    complete: bool  #: the incumbent is proven optimal (or the program infeasible) by a complete walk
    rows: int  #: partial assignments expanded
    interrupted: bool = False


def original(program: Program, keep: Mapping[str, NDArray[np.int64]], assignment: Assignment) -> Assignment:
    """An assignment of the smaller program, in the original one."""
    return tuple(int(keep[a.name][i]) for a, i in zip(program.axes, assignment, strict=True))


def _place(
    program: Program, keep: Mapping[str, NDArray[np.int64]], assignment: Assignment
) -> Assignment | None:
    """An assignment of the original program, in the smaller one; None if a choice is gone."""
    places = []
    for axis, i in zip(program.axes, assignment, strict=True):
        here = np.flatnonzero(keep[axis.name] == i)
        if not len(here):
            return None
        places.append(int(here[0]))
    return tuple(places)


def presolve(program: Program, clock: Clock, gap: float) -> Presolved:
    """Find an incumbent and remove what cannot be part of an assignment as good.

    Parameters
    ----------
    program : Program
        What is to be solved.
    clock : Clock
        Ends the walks.
    gap : float
        Relative gap of interest.
    """
    keep = {a.name: np.arange(a.size) for a in program.axes}
    current: Program | None = program
    incumbent: Assignment | None = None
    value, bound, rows, complete = math.inf, -math.inf, 0, False
    orders = [[a.name for a in program.axes], *program.other_orders]
    for budget, order in product(WALKS, orders):
        assert current is not None
        tree = Tree(current.reordered(order))
        found: Walk = walk(tree, clock, target=value, gap=gap, rows=budget)
        rows += found.rows
        bound = max(bound, min(found.bound, value))
        if found.assignment is not None:
            chosen = dict(zip(order, found.assignment, strict=True))
            incumbent = original(current, keep, tuple(chosen[a.name] for a in program.axes))
            value = found.value
        complete = found.termination is Termination.OPTIMAL
        if complete and incumbent is None:
            return Presolved(None, keep, None, math.inf, math.inf, True, rows)
        if found.assignment is not None or (budget, order) == (WALKS[0], orders[0]):
            current, keep = reduce(current, keep, value)
        if current is None or complete or clock.over or found.termination is Termination.INTERRUPTED:
            break
    interrupted = found.termination is Termination.INTERRUPTED
    return Presolved(current, keep, incumbent, value, bound, complete, rows, interrupted)


def reduce(
    program: Program, keep: dict[str, NDArray[np.int64]], value: float
) -> tuple[Program | None, dict[str, NDArray[np.int64]]]:
    """Remove choices and entries in turn until nothing changes.

    Parameters
    ----------
    program : Program
        What is to shrink.
    keep : dict
        Original index of each of its choices, by axis.
    value : float
        Assignments up to this objective stay.

    Returns
    -------
    program : Program or None
        What is left; None if nothing is.
    keep : dict
        Original index of each choice left.
    """
    for _ in range(ROUNDS):
        alive = _Reducer(program, value).alive_choices()
        if not all(mask.any() for mask in alive.values()):
            return None, keep
        removed = sum(int((~mask).sum()) for mask in alive.values())
        if removed:
            keep = {a: index[alive[a]] for a, index in keep.items()}
            program = program.restricted(alive)
        program, forbidden = _Reducer(program, value).forbid_entries()
        if not removed and not forbidden:
            break
    return program, keep


def _near_one(program: Program, value: float) -> tuple[Program, float]:
    """The program with its objective near 1, and what it was divided by: solvers have absolute tolerances."""
    if not (math.isfinite(value) and value > 0) or 0.1 <= value <= 1e3:
        return program, 1.0
    return replace(program, objective=_scaled(program.objective, 1 / value)), value


def _scaled(expression: Expression, by: float) -> Expression:
    match expression:
        case Table():
            return Table(expression.name, expression.views, expression.values * by)
        case Sum():
            return Sum(tuple(_scaled(t, by) for t in expression.terms))
        case Max():
            return Max(tuple(_scaled(t, by) for t in expression.terms))
        case Product():
            factor = expression.factor
            return Product(Table(factor.name, factor.views, factor.values * by), expression.term)
    raise TypeError(f"unknown expression {type(expression).__name__}")


def with_presolve(core: Formulation, program: Program, options: Options) -> Solution:
    """Presolve, let a formulation solve what is left, and read its answer in the original program."""
    clock = Clock(options.time_limit)
    pre = presolve(program, clock, options.gap)
    spent = clock.spent
    value = pre.value if pre.incumbent is not None else None
    note = f"presolve expanded {pre.rows:,} partial assignments"
    enough = pre.complete and options.gap >= ROUGH
    if pre.program is None or clock.over or enough or pre.interrupted:
        stopped = Termination.INTERRUPTED if pre.interrupted else Termination.TIME_LIMIT
        done = pre.program is None or pre.complete
        termination = Termination.OPTIMAL if pre.incumbent is not None else Termination.INFEASIBLE
        bound = pre.bound if pre.program is not None else (pre.value if value is None else pre.bound)
        return Solution(
            termination if done else stopped,
            pre.incumbent,
            value,
            bound,
            f"{note}, which is the whole proof" if done else note,
            solve_seconds=spent,
            nodes=pre.rows,
        )
    left = clock.left
    if pre.complete:
        left = min(left, max(PATIENCE, PATIENCE_FACTOR * spent))
    small, scale = _near_one(pre.program, pre.value)
    hint = None if pre.incumbent is None else _place(pre.program, pre.keep, pre.incumbent)
    answer = core(small, replace(options, time_limit=left, hint=hint, presolve=False))
    assignment, objective = pre.incumbent, value
    if answer.assignment is not None:
        found = original(pre.program, pre.keep, answer.assignment)
        at = program.choices(found)
        here = float(np.max(program.objective.evaluate(at)))
        if program.feasible(at)[0] and (objective is None or here < objective):
            assignment, objective = found, here
    known = objective if objective is not None else math.inf
    root = None if answer.root_bound is None else min(known, answer.root_bound * scale)
    proved = -math.inf if answer.bound is None else answer.bound * scale
    bound = max(pre.bound, min(known, proved))
    termination, detail = answer.termination, answer.detail
    if termination is Termination.INFEASIBLE and objective is not None:
        termination, detail = Termination.FAILED, "says infeasible where a solution is known"
    if termination is not Termination.OPTIMAL and pre.complete:
        detail = f"proved by presolve: {note}, all there are; the solver's own bound: {proved}; {detail}"
        termination = Termination.OPTIMAL
    return replace(
        answer,
        termination=termination,
        assignment=assignment,
        objective=objective,
        bound=bound if math.isfinite(bound) or termination is Termination.INFEASIBLE else None,
        root_bound=root,
        detail=detail or (f"{note}, all there are: two proofs" if pre.complete else note),
        build_seconds=answer.build_seconds,
        solve_seconds=answer.solve_seconds + spent,
    )


class _Reducer:
    """One pass over a program."""

    def __init__(self, program: Program, value: float) -> None:
        self.program = program
        self.cutoff = value + ROOM * max(abs(value), 1e-9) if math.isfinite(value) else math.inf
        self.alive = program.all_alive()
        self.relax = Relaxation(program, self.alive)

    def _survives(self, decided: list[str], at: dict[str, NDArray[np.int64]], n: int) -> NDArray[np.bool_]:
        """Which partial assignments of the decided axes may be part of something better, shape (n,)."""
        memo: dict[int, Expression] = {}
        names = set(decided)
        value = self.relax(self.program.objective, names, memo).evaluate(at)
        good = np.broadcast_to(value, (n,)) <= self.cutoff
        good = good & np.isfinite(value)
        for bound in self.program.bounds:
            part = self.relax(bound.expression, names, memo).evaluate(at)
            good = good & (np.broadcast_to(part, (n,)) <= bound.upper + bound.tolerance)
        return np.asarray(good)

    def alive_choices(self) -> dict[str, NDArray[np.bool_]]:
        """Choices of each axis that equations and bounds leave."""
        alive = {
            a.name: self._survives([a.name], {a.name: np.arange(a.size)}, a.size) for a in self.program.axes
        }
        for equation in self.program.equations:
            low = {a: t[alive[a]].min(axis=0, initial=1 << 40) for a, t in equation.terms.items()}
            high = {a: t[alive[a]].max(axis=0, initial=-(1 << 40)) for a, t in equation.terms.items()}
            for a, terms in equation.terms.items():
                least = sum(v for b, v in low.items() if b != a) + terms
                most = sum(v for b, v in high.items() if b != a) + terms
                alive[a] = alive[a] & np.all((least <= equation.rhs) & (most >= equation.rhs), axis=1)
        return alive

    def forbid_entries(self) -> tuple[Program, int]:
        """The program with entries forbidden that no better assignment touches, and how many are new."""
        bad: dict[Key, NDArray[np.bool_]] = {}
        sample: dict[Key, Table] = {}
        for table in self.program.tables():
            sample.setdefault(table.key, table)
            bad[table.key] = bad.get(table.key, False) | np.isinf(table.values)
        new = 0
        for key, table in sample.items():
            if len(table.views) < 2 or table.values.size > LARGEST_TABLE:
                continue
            if len({v.axis for v in table.views}) < len(table.views):
                continue
            good = self._entries(table, ~bad[key])
            new += int((~good & ~bad[key]).sum())
            bad[key] = ~good
        if not new:
            return self.program, 0
        memo: dict[int, Expression] = {}

        def mark(table: Table) -> Table:
            return Table(table.name, table.views, np.where(bad[table.key], np.inf, table.values))

        bounds = tuple(
            Bound(b.name, b.expression.map_tables(mark, memo), b.upper, b.tolerance)
            for b in self.program.bounds
        )
        objective = self.program.objective.map_tables(mark, memo)
        return replace(self.program, bounds=bounds, objective=objective), new

    def _entries(self, table: Table, allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which allowed entries have a combination of choices that may be part of something better."""
        axes = [v.axis for v in table.views]
        grids = np.meshgrid(*(np.arange(len(v.codes)) for v in table.views), indexing="ij")
        classes = tuple(v.codes[g] for v, g in zip(table.views, grids, strict=True))
        wanted = np.flatnonzero(allowed[classes].ravel())
        at = {a: g.ravel()[wanted] for a, g in zip(axes, grids, strict=True)}
        good = self._survives(axes, at, len(wanted))
        for equation in self.program.equations:
            inside = [a for a in axes if a in equation.terms]
            if len(inside) < 2:
                continue
            others = [t for a, t in equation.terms.items() if a not in inside]
            part = sum(equation.terms[a][at[a]] for a in inside)
            least = part + sum(t.min(axis=0) for t in others)
            most = part + sum(t.max(axis=0) for t in others)
            good = good & np.all((least <= equation.rhs) & (most >= equation.rhs), axis=1)
        out = np.zeros_like(allowed)
        index = tuple(c.ravel()[wanted[good]] for c in classes)
        out[index] = True
        return out
