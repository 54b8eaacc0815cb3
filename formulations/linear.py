"""The table MILP of a program, as arrays: disaggregated tables with local marginals (formulations.md).

Every choice of an axis is a binary. A table over several views becomes one column in [0, 1] per entry that is
not forbidden; for each class of each view the columns that contain it sum to the class' binaries, so that
binary choices leave exactly one column at 1. Chains of two-view tables are network flows: their part of the
relaxation is integral. A product of a table and an expression is disaggregated over the table's distinct
values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from formulations.limits import LARGE, ForbiddenError, Limits, clip, finite_limits
from planner.program import Expression, Max, Product, Program, Sum, Table

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Affine:
    """sum of values * columns + constant."""

    columns: Indices
    values: Floats
    constant: float = 0.0

    def scaled(self, by: float) -> Affine:
        """This times a number."""
        return Affine(self.columns, self.values * by, self.constant * by)

    @classmethod
    def total(cls, parts: list[Affine]) -> Affine:
        """Sum of parts."""
        return cls(
            np.concatenate([p.columns for p in parts]) if parts else np.zeros(0, dtype=np.int64),
            np.concatenate([p.values for p in parts]) if parts else np.zeros(0),
            sum(p.constant for p in parts),
        )


@dataclass(eq=False)
class LinearModel:
    """Columns and rows of a mixed-integer linear program, growing."""

    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    row_names: list[str] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)
    row_parts: list[tuple[Indices, Floats]] = field(default_factory=list)
    cost: Affine = field(default_factory=lambda: Affine.total([]))

    def add_columns(self, names: list[str], lower: float, upper: float, *, integer: bool = False) -> Indices:
        """New columns with common bounds; their indices."""
        start = len(self.lower)
        self.names += names
        self.lower += [lower] * len(names)
        self.upper += [upper] * len(names)
        self.integer += [integer] * len(names)
        return np.arange(start, len(self.lower))

    def add_row(self, name: str, part: Affine, lower: float, upper: float) -> None:
        """lower <= part <= upper; the part's constant moves to the sides."""
        self.row_names.append(name)
        self.row_lower.append(lower - part.constant)
        self.row_upper.append(upper - part.constant)
        self.row_parts.append((part.columns, part.values))

    def matrix(self) -> tuple[Indices, Indices, Floats]:
        """Rows in compressed form (starts, columns, values), repeated columns summed."""
        starts, columns, values = [0], [], []
        for index, value in self.row_parts:
            unique, inverse = np.unique(index, return_inverse=True)
            summed = np.bincount(inverse, weights=value, minlength=len(unique))
            keep = summed != 0
            columns.append(unique[keep])
            values.append(summed[keep])
            starts.append(starts[-1] + int(keep.sum()))
        empty = np.zeros(0)
        return (
            np.array(starts),
            np.concatenate(columns) if columns else empty.astype(np.int64),
            np.concatenate(values) if values else empty,
        )


class TableModel:
    """The linear model of a program.

    Parameters
    ----------
    program : Program
        What to model.
    cutoff : float
        Assignments with a larger objective need not be in the model.

    Raises
    ------
    ForbiddenError
        The program is infeasible on its face.
    """

    def __init__(self, program: Program, cutoff: float = math.inf) -> None:
        self.program = program
        self.model = LinearModel()
        large = LARGE * max(1.0, abs(program.objective.limits(program.all_alive())[0]))
        memo: dict[int, Expression] = {}
        limited = [(clip(b.expression, large, memo), b.upper + b.tolerance) for b in program.bounds]
        self.limits = Limits(program, clip(program.objective, large, memo), limited, cutoff)
        self.alive, self.allowed = self.limits.alive, self.limits.allowed
        self.one_hot: dict[str, Indices] = {}
        self._columns: dict[tuple[tuple[str, bytes], ...], Indices] = {}
        self._done: dict[int, Affine] = {}
        used = [t.values[self.allowed[t.key]] for t in self.limits.tables]
        self.largest = max((float(np.abs(v).max(initial=0)) for v in used), default=0.0)
        self._choose()
        self.model.cost = self.affine(self.limits.objective)
        for bound, (expression, upper) in zip(program.bounds, limited, strict=True):
            part = self.affine(expression)
            if len(part.columns):
                self.model.add_row(bound.name, part, -math.inf, upper)
            elif part.constant > upper:
                raise ForbiddenError(f"{bound.name} is always exceeded")

    def exclude(self, assignment: tuple[int, ...]) -> None:
        """Forbid one assignment."""
        columns = [self.one_hot[a.name][i] for a, i in zip(self.program.axes, assignment, strict=True)]
        part = Affine(np.array(columns), np.ones(len(columns)))
        self.model.add_row("excluded", part, -math.inf, len(columns) - 1.0)

    def assignment(self, values: Floats) -> tuple[int, ...]:
        """The choices that column values stand for."""
        return tuple(int(np.argmax(values[self.one_hot[a.name]])) for a in self.program.axes)

    def _choose(self) -> None:
        """Exactly one choice on each axis, and the equations between them."""
        for axis in self.program.axes:
            columns = self.model.add_columns(
                [f"{axis.name}={label}" for label in axis.labels], 0.0, 1.0, integer=True
            )
            for i in np.flatnonzero(~self.alive[axis.name]):
                self.model.upper[columns[i]] = 0.0
            self.one_hot[axis.name] = columns
            self.model.add_row(f"choose {axis.name}", Affine(columns, np.ones(axis.size)), 1.0, 1.0)
        for equation in self.program.equations:
            for j, rhs in enumerate(equation.rhs):
                terms = [
                    Affine(self.one_hot[a], t[:, j].astype(np.float64)) for a, t in equation.terms.items()
                ]
                self.model.add_row(f"{equation.name}.{j}", Affine.total(terms), float(rhs), float(rhs))

    def _selectors(self, table: Table) -> Indices:
        """Column of each entry of a table over several views (-1 where forbidden)."""
        key = table.key
        if key not in self._columns:
            good = self.allowed[key]
            label = "*".join(v.axis for v in table.views)
            columns = np.full(good.shape, -1, dtype=np.int64)
            columns[good] = self.model.add_columns([f"{label}#{i}" for i in np.flatnonzero(good)], 0.0, 1.0)
            self._columns[key] = columns
            for position, view in enumerate(table.views):
                by_class = np.moveaxis(columns, position, 0).reshape(view.classes, -1)
                for c in range(view.classes):
                    inside = by_class[c][by_class[c] >= 0]
                    members = self.one_hot[view.axis][view.codes == c]
                    part = Affine(
                        np.concatenate([inside, members]),
                        np.concatenate([np.ones(len(inside)), -np.ones(len(members))]),
                    )
                    self.model.add_row(f"{label}#{position}.{c}", part, 0.0, 0.0)
        return self._columns[key]

    def _cells(self, table: Table) -> Affine:
        """The table: its values, on the columns of which one is 1 where they hold."""
        if len(table.views) == 1:
            view = table.views[0]
            here = np.flatnonzero(self.alive[view.axis])
            return Affine(self.one_hot[view.axis][here], table.values[view.codes[here]])
        columns = self._selectors(table)
        return Affine(columns[columns >= 0], table.values[columns >= 0])

    def affine(self, expression: Expression) -> Affine:
        """An affine form that can be lowered to the value of the expression, and no further."""
        number = self.limits.number(expression)
        if number not in self._done:
            match expression:
                case Table():
                    constant = Affine(np.zeros(0, np.int64), np.zeros(0), float(expression.values.flat[0]))
                    self._done[number] = self._cells(expression) if expression.views else constant
                case Sum():
                    self._done[number] = Affine.total([self.affine(t) for t in expression.terms])
                case Max():
                    self._done[number] = self._maximum(expression, f"max{number}")
                case Product():
                    self._done[number] = self._product(expression, number)
                case _:
                    raise TypeError(f"unknown expression {type(expression).__name__}")
        return self._done[number]

    def _maximum(self, expression: Max, name: str) -> Affine:
        if len(expression.terms) == 1:
            return self.affine(expression.terms[0])
        low, high = finite_limits(expression, self.alive)
        columns = self.model.add_columns([name], low, high)
        for i, term in enumerate(expression.terms):
            if term.limits(self.alive)[1] > low:
                over = Affine.total([self.affine(term), Affine(columns, -np.ones(1))])
                self.model.add_row(f"{name}.{i}", over, -math.inf, 0.0)
        return Affine(columns, np.ones(1))

    def _product(self, expression: Product, number: int) -> Affine:
        """sum_j b_j part_j, where part_j is the whole term if the factor is b_j, else 0."""
        factor, term, name = expression.factor, expression.term, f"product{number}"
        low, high = finite_limits(term, self.alive)
        if not factor.views:
            return self.affine(term).scaled(float(factor.values.flat[0]))
        cells = self._cells(factor)
        if low == high:
            return cells.scaled(low)
        if not len(cells.columns):
            raise ForbiddenError(f"{factor.name} has no allowed entry")
        high = max(0.0, min(high, self.limits.caps[self.limits.number(term)]))
        cap = self.limits.caps[number]
        kinds, which = np.unique(cells.values, return_inverse=True)
        parts = self.model.add_columns([f"{name} at {b:.9g}" for b in kinds], 0.0, high)
        for j, b in enumerate(kinds):
            chosen = cells.columns[which == j]
            here = min(high, cap / b) if b > 0 else high
            for side, limit, sign in (("least", low, -1.0), ("most", here, 1.0)):
                if sign < 0 and low <= 0:
                    continue
                part = Affine(
                    np.append(chosen, parts[j]), np.append(np.full(len(chosen), -sign * limit), sign)
                )
                self.model.add_row(f"{name} {side} at {b:.9g}", part, -math.inf, 0.0)
        whole = Affine.total([self.affine(term), Affine(parts, -np.ones(len(parts)))])
        self.model.add_row(f"{name} whole", whole, 0.0, 0.0)
        return Affine(parts, kinds)
