"""Shrink a program before a solver sees it: what every mixed-integer formulation shares.

A beam search finds an incumbent; choices and table entries whose relaxed bound exceeds it are removed; equations
and forbidden entries propagate. What is left has the same optimum, and every assignment better than the
incumbent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from formulations.tree import Relaxation, Tree
from planner.program import Bound, Expression, Program, Table

Assignment = tuple[int, ...]
Key = tuple[tuple[str, bytes], ...]

#: Entries above the incumbent by less than this are kept: the proof must not rest on the last digit.
SLACK = 1e-9
#: Width of the beam that looks for the incumbent [rows].
BEAM = 1000
#: Largest table whose entries are bounded one by one [entries].
LARGEST_TABLE = 2_000_000


@dataclass(frozen=True, eq=False)
class Presolved:
    """A smaller program, and how its answers read in the original one."""

    program: Program | None  #: None when nothing can be better than the incumbent (or nothing is feasible)
    keep: dict[str, NDArray[np.int64]]  #: original index of each choice left
    incumbent: Assignment | None  #: in the original program
    value: float  #: of the incumbent; inf if there is none

    @property
    def cutoff(self) -> float:
        """Objective above which nothing was kept."""
        return self.value + SLACK * abs(self.value) if math.isfinite(self.value) else math.inf

    def original(self, assignment: Assignment) -> Assignment:
        """An assignment of the smaller program, in the original one."""
        assert self.program is not None
        return tuple(
            int(self.keep[a.name][i]) for a, i in zip(self.program.axes, assignment, strict=True)
        )

    def reduced(self, assignment: Assignment) -> Assignment | None:
        """An assignment of the original program, in the smaller one; None if a choice is gone."""
        assert self.program is not None
        out = []
        for axis, i in zip(self.program.axes, assignment, strict=True):
            place = int(np.searchsorted(self.keep[axis.name], i))
            if place == len(self.keep[axis.name]) or self.keep[axis.name][place] != i:
                return None
            out.append(place)
        return tuple(out)


def presolve(program: Program, *, beam: int = BEAM, rounds: int = 6, value=None) -> Presolved:
    """Remove what cannot be part of an assignment better than the incumbent.

    Parameters
    ----------
    program : Program
        What is to be solved.
    beam : int
        Width of the search for the incumbent [rows]; 0 for none.
    rounds : int
        Most passes over axes and tables; they end when nothing changes.
    """
    keep = {a.name: np.arange(a.size) for a in program.axes}
    if value is None: incumbent, value = Tree(program).beam(beam) if beam else (None, math.inf)
    else: incumbent=None
    reducer = _Reducer(program, value)
    current: Program | None = program
    for _ in range(rounds):
        assert current is not None
        reducer = _Reducer(current, value)
        alive = reducer.alive_choices()
        if not all(mask.any() for mask in alive.values()):
            return Presolved(None, keep, incumbent, value)
        removed = sum(int((~mask).sum()) for mask in alive.values())
        if removed:
            keep = {a: index[alive[a]] for a, index in keep.items()}
            current = current.restricted(alive)
        forbidden = _Reducer(current, value).forbid_entries()
        current = forbidden[0]
        if not removed and not forbidden[1]:
            break
    return Presolved(current, keep, incumbent, value)


class _Reducer:
    """One pass over a program."""

    def __init__(self, program: Program, value: float) -> None:
        self.program = program
        self.cutoff = value + SLACK * abs(value) if math.isfinite(value) else math.inf
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
        return (
            Program(self.program.name, self.program.axes, self.program.equations, bounds, objective),
            new,
        )

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
