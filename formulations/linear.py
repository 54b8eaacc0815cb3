"""The table MILP of a program, as arrays: disaggregated tables with local marginals (formulations.md).

Every choice of an axis is a binary. A table over several views becomes one column in [0, 1] per entry that is
not forbidden; for each class of each view the columns that contain it sum to the class' binaries, so that binary
choices leave exactly one column at 1. Chains of two-view tables are network flows: their part of the relaxation
is integral. A product of a table and an expression is disaggregated over the table's distinct values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.program import Alive, Expression, Max, Product, Program, Sum, Table

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

    def add_columns(
        self, names: list[str], lower: float, upper: float, *, integer: bool = False
    ) -> Indices:
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
    """Builds the linear model of a program.

    Parameters
    ----------
    program : Program
        What to model.
    cutoff : float
        Objective value that an assignment must not exceed to be of interest; tightens the disaggregation.
    """

    def __init__(self, program: Program, cutoff: float = math.inf) -> None:
        self.program = program
        self.model = LinearModel()
        self.alive: Alive = program.all_alive()
        self.one_hot: dict[str, Indices] = {}
        self._built: dict[int, Affine] = {}
        self._entries: dict[tuple[tuple[str, bytes], ...], Indices] = {}
        self._forbidden = self._collect_forbidden()
        for axis in program.axes:
            names = [f"{axis.name}={label}" for label in axis.labels]
            columns = self.model.add_columns(names, 0.0, 1.0, integer=axis.size > 1)
            self.one_hot[axis.name] = columns
            self.model.add_row(f"choose {axis.name}", Affine(columns, np.ones(axis.size)), 1.0, 1.0)
        for equation in program.equations:
            for j, rhs in enumerate(equation.rhs):
                terms = [
                    Affine(self.one_hot[a], t[:, j].astype(np.float64)) for a, t in equation.terms.items()
                ]
                self.model.add_row(f"{equation.name}.{j}", Affine.total(terms), float(rhs), float(rhs))
        # The objective first: parts it shares with bounds then have its cutoff.
        self.model.cost = self.affine(program.objective, cutoff, "objective")
        for bound in program.bounds:
            limit = bound.upper + bound.tolerance
            part = self.affine(bound.expression, limit, bound.name)
            if len(part.columns) or part.constant > limit:
                self.model.add_row(bound.name, part, -math.inf, limit)

    def _collect_forbidden(self) -> dict[tuple[tuple[str, bytes], ...], NDArray[np.bool_]]:
        """Entries of each tuple of views that some table over it forbids."""
        forbidden: dict[tuple[tuple[str, bytes], ...], NDArray[np.bool_]] = {}
        for table in self.program.tables():
            bad = np.isinf(table.values)
            forbidden[table.key] = forbidden.get(table.key, False) | bad
        return forbidden

    def _selectors(self, table: Table) -> Indices:
        """Column of each entry of a table over several views (-1 where forbidden), flattened."""
        key = table.key
        if key not in self._entries:
            good = ~self._forbidden[key]
            where = np.flatnonzero(good)
            columns = np.full(good.size, -1, dtype=np.int64)
            label = "*".join(v.axis for v in table.views)
            columns[where] = self.model.add_columns([f"{label}#{i}" for i in where], 0.0, 1.0)
            self._entries[key] = columns
            grid = columns.reshape(good.shape)
            for position, view in enumerate(table.views):
                for c in range(view.classes):
                    inside = np.take(grid, c, axis=position).ravel()
                    inside = inside[inside >= 0]
                    members = self.one_hot[view.axis][view.codes == c]
                    part = Affine(
                        np.concatenate([inside, members]),
                        np.concatenate([np.ones(len(inside)), -np.ones(len(members))]),
                    )
                    self.model.add_row(f"{label}#{position}.{c}", part, 0.0, 0.0)
        return self._entries[key]

    def _cells(self, table: Table) -> tuple[list[Indices], Floats]:
        """Columns that select each entry not forbidden, and the entries' values."""
        if len(table.views) == 1:
            view = table.views[0]
            bad = self._forbidden[table.key]
            groups = [self.one_hot[view.axis][view.codes == c] for c in range(view.classes)]
            for c in np.flatnonzero(bad):
                for column in groups[c]:
                    self.model.upper[column] = 0.0
            keep = np.flatnonzero(~bad)
            return [groups[c] for c in keep], table.values[keep]
        columns = self._selectors(table)
        keep = np.flatnonzero(columns >= 0)
        return [columns[keep]], table.values.ravel()[keep]

    def affine(self, expression: Expression, upper: float, name: str) -> Affine:
        """An affine form that is at least the expression, and can equal it; it need not exceed `upper`."""
        if id(expression) not in self._built:
            self._built[id(expression)] = self._affine(expression, upper, name)
        return self._built[id(expression)]

    def _affine(self, expression: Expression, upper: float, name: str) -> Affine:
        match expression:
            case Table():
                return self._table(expression)
            case Sum():
                return self._sum(expression, upper, name)
            case Max():
                parts = [self.affine(t, upper, f"{name}.{i}") for i, t in enumerate(expression.terms)]
                if len(parts) == 1:
                    return parts[0]
                low, high = expression.limits(self.alive)
                (column,) = self.model.add_columns([f"max {name}"], low, max(low, min(high, upper)))
                for i, part in enumerate(parts):
                    over = Affine(np.append(part.columns, column), np.append(part.values, -1.0), part.constant)
                    self.model.add_row(f"max {name} >= {i}", over, -math.inf, 0.0)
                return Affine(np.array([column]), np.ones(1))
            case Product():
                return self._product(expression, upper, name)
        raise TypeError(f"unknown expression {type(expression).__name__}")

    def _table(self, table: Table) -> Affine:
        if not table.views:
            if math.isinf(table.values):  # forbids everything
                self.model.add_row(f"never {table.name}", Affine.total([]), 1.0, 1.0)
                return Affine.total([])
            return Affine(np.zeros(0, dtype=np.int64), np.zeros(0), float(table.values))
        cells, values = self._cells(table)
        if len(table.views) == 1:
            values = np.repeat(values, [len(c) for c in cells])
        columns = np.concatenate(cells) if cells else np.zeros(0, dtype=np.int64)
        return Affine(columns, values)

    def _sum(self, expression: Sum, upper: float, name: str) -> Affine:
        lows = [t.limits(self.alive)[0] for t in expression.terms]
        total = sum(lows)
        parts = []
        for i, (term, low) in enumerate(zip(expression.terms, lows, strict=True)):
            rest = upper - (total - low) if math.isfinite(total) else upper
            parts.append(self.affine(term, rest, f"{name}.{i}"))
        return Affine.total(parts)

    def _product(self, expression: Product, upper: float, name: str) -> Affine:
        factor, term = expression.factor, expression.term
        low, high = term.limits(self.alive)
        if not factor.views:
            value = float(factor.values)
            if math.isinf(value):
                return self._table(factor)
            inner = upper / value if value > 0 else math.inf
            return self.affine(term, inner, name).scaled(value)
        cells, values = self._cells(factor)
        if len(factor.views) == 1:
            values = np.repeat(values, [len(c) for c in cells])
        columns = np.concatenate(cells) if cells else np.zeros(0, dtype=np.int64)
        kinds, which = np.unique(values, return_inverse=True)
        most = upper / kinds[0] if len(kinds) and kinds[0] > 0 else math.inf
        inner = self.affine(term, most, name)
        if not len(kinds) or not math.isfinite(low):
            return inner  # infeasible: some row already says so
        parts = self.model.add_columns([f"{name} at {k:.6g}" for k in kinds], 0.0, max(high, 0.0))
        for j, value in enumerate(kinds):
            selectors = columns[which == j]
            ceiling = min(high, upper / value) if value > 0 else high
            floor = Affine(np.append(selectors, parts[j]), np.append(np.full(len(selectors), low), -1.0))
            self.model.add_row(f"{name} at {value:.6g} low", floor, -math.inf, 0.0)
            roof = Affine(np.append(selectors, parts[j]), np.append(np.full(len(selectors), -max(ceiling, low)), 1.0))
            self.model.add_row(f"{name} at {value:.6g} high", roof, -math.inf, 0.0)
        together = Affine.total([inner, Affine(parts, -np.ones(len(parts)))])
        self.model.add_row(f"{name} split", together, -math.inf, 0.0)
        return Affine(parts, kinds)


