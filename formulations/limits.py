"""What bounds and a cutoff imply for the parts of a program: shared by the mixed-integer formulations."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.program import Alive, Expression, Max, Product, Program, Sum, Table

#: Relative slack of upper limits that are derived from others.
SLACK = 1e-12
#: Finite values beyond this many times the least objective are lowered to it until an incumbent excludes
#: them: HiGHS proves wrong optima on coefficients of 1e9.
LARGE = 1e4


class ForbiddenError(Exception):
    """The program is infeasible on its face: an axis without choices, a table without entries."""


class Limits:
    """What bounds and a cutoff on the objective imply for the expressions and tables of a program.

    Attributes
    ----------
    alive : dict of str to array
        Choices that no table over one view forbids.
    allowed : dict
        By table key: entries finite and small enough in every table over these views.
    caps : dict
        By expression number: an upper limit for every assignment of interest.
    """

    def __init__(
        self,
        program: Program,
        objective: Expression,
        limited: list[tuple[Expression, float]],
        cutoff: float,
    ) -> None:
        self.program, self.objective, self.limited, self.cutoff = program, objective, limited, cutoff
        self.tables = [t for e in (objective, *(x for x, _ in limited)) for t in e.tables()]
        self.alive = program.all_alive()
        self.allowed: dict[Any, NDArray[np.bool_]] = {}
        self.caps: dict[int, float] = defaultdict(lambda: math.inf)
        self._numbers: dict[Any, int] = {}
        self._by_identity: dict[int, tuple[Expression, int]] = {}
        self._cap(objective, cutoff)
        for expression, upper in limited:
            self._cap(expression, upper)
        for table in self.tables:
            good = np.isfinite(table.values) & (table.values <= self.caps[self.number(table)])
            self.allowed[table.key] = good & self.allowed.get(table.key, np.bool_(True))
        for table in self.tables:
            if not np.any(self.allowed[table.key]):
                raise ForbiddenError(f"{table.name} has no allowed entry")
            if len(table.views) == 1:
                view = table.views[0]
                self.alive[view.axis] &= self.allowed[table.key][view.codes]
        for axis, alive in self.alive.items():
            if not alive.any():
                raise ForbiddenError(f"every choice of {axis} is forbidden")
        for table in self.tables:
            possible = np.zeros_like(self.allowed[table.key])
            if table.views:
                possible[np.ix_(*(np.unique(v.codes[self.alive[v.axis]]) for v in table.views))] = True
                self.allowed[table.key] &= possible

    def number(self, e: Expression) -> int:
        """A number equal for expressions that are written alike."""
        if id(e) in self._by_identity:
            return self._by_identity[id(e)][1]
        match e:
            case Table():
                key: tuple[Any, ...] = ("table", e.key, e.values.tobytes())
            case Sum() | Max():
                key = (type(e), *map(self.number, e.terms))
            case Product():
                key = (Product, self.number(e.factor), self.number(e.term))
            case _:
                raise TypeError(f"unknown expression {type(e).__name__}")
        number = self._numbers.setdefault(key, len(self._numbers))
        self._by_identity[id(e)] = e, number  # the reference keeps the identity from being used again
        return number

    def reach(self) -> float:
        """Largest value of an expression, or sum of a table's values, that a model has to hold."""

        def walk(e: Expression) -> float:
            if isinstance(e, Table):
                return float(np.abs(e.values[self.allowed[e.key]]).sum())
            low, high = e.limits(self.alive)
            here = max(-low, min(high, self.caps[self.number(e)]))
            parts = (e.factor, e.term) if isinstance(e, Product) else getattr(e, "terms", ())
            return max(here, *map(walk, parts))

        return max(1.0, *map(walk, (self.objective, *(x for x, _ in self.limited))))

    def _cap(self, e: Expression, upper: float) -> None:
        """Note that `e` is at most `upper`, and what follows for its parts."""
        upper += SLACK * max(1.0, abs(upper))  # for the rounding of what follows
        number = self.number(e)
        self.caps[number] = min(self.caps[number], upper)
        match e:
            case Sum():
                lows = [t.limits(self.alive)[0] for t in e.terms]
                if math.isfinite(sum(lows)):
                    for term, low in zip(e.terms, lows, strict=True):
                        self._cap(term, upper - (sum(lows) - low))
            case Max():
                for term in e.terms:
                    self._cap(term, upper)
            case Product():
                low = e.factor.limits(self.alive)[0]
                if 0 < low < math.inf:
                    self._cap(e.term, upper / low)


def clip(e: Expression, limit: float, memo: dict[int, Expression]) -> Expression:
    """`e` with finite values beyond the limit lowered to it (a relaxation); `memo` keeps shared parts
    shared."""

    def lowered(table: Table) -> Expression:
        large = np.isfinite(table.values) & (table.values > limit)
        return Table(table.name, table.views, np.where(large, limit, table.values)) if large.any() else table

    return e.map_tables(lowered, memo)


def finite_limits(e: Expression, alive: Alive) -> tuple[float, float]:
    """Interval of an expression that must have a value."""
    low, high = e.limits(alive)
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ForbiddenError("a table has no allowed entry")
    return low, high
