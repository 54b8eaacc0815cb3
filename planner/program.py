"""The program: the one thing that formulations see.

A program chooses one of finitely many *choices* on each *axis*. What a choice costs comes from *tables* over
few axes, composed by sums, maxima and products; *equations* over integer vectors tie the axes together
(products of degrees become sums of prime exponents); *bounds* limit expressions from above; one expression is
minimised.

Every expression is nondecreasing in each of its tables, so replacing tables by their minima over undecided
axes gives a lower bound. An infinite table entry forbids its combination, wherever it stands.
Values should be near 1: solvers work with absolute tolerances.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: Chosen index on each axis, arrays of one length.
Choices = Mapping[str, Ints]
#: Which choices of each axis are still possible.
Alive = Mapping[str, NDArray[np.bool_]]


@dataclass(frozen=True, eq=False)
class Axis:
    """A decision: one of `labels`, addressed by its index."""

    name: str
    labels: tuple[Any, ...]

    @property
    def size(self) -> int:
        """Number of choices."""
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class View:
    """An axis seen through a grouping of its choices into classes (its total degree, say)."""

    axis: str
    codes: Ints  #: class of each choice, shape (axis size,)
    classes: int  #: number of classes

    @classmethod
    def of(cls, axis: Axis, key: Callable[[Any], Any] | None = None) -> tuple[View, list[Any]]:
        """Group an axis' choices by `key` of their label (the label itself if None).

        Also gives each class' key, sorted.
        """
        keys = [key(x) if key else x for x in axis.labels]
        kinds = sorted(set(keys))
        place = {k: i for i, k in enumerate(kinds)}
        codes = np.array([place[k] for k in keys], dtype=np.int64)
        return cls(axis.name, codes, len(kinds)), kinds

    @property
    def key(self) -> tuple[str, bytes]:
        """Equal for views that group the same axis alike."""
        return self.axis, self.codes.tobytes()


class Expression(ABC):
    """Something with a value for every assignment, nondecreasing in its tables."""

    @abstractmethod
    def evaluate(self, at: Choices) -> Floats:
        """Values at n assignments, shape (n,) (or () where no axis matters)."""

    def map_tables(
        self, change: Callable[[Table], Expression], memo: dict[int, Expression] | None = None
    ) -> Expression:
        """The same expression with every table replaced; `memo` keeps shared parts shared."""
        memo = {} if memo is None else memo
        if id(self) not in memo:
            memo[id(self)] = self._rebuilt(change, memo)
        return memo[id(self)]

    @abstractmethod
    def _rebuilt(self, change: Callable[[Table], Expression], memo: dict[int, Expression]) -> Expression:
        """`map_tables` of this node."""

    @abstractmethod
    def tables(self) -> Iterator[Table]:
        """Every table, in order of appearance."""

    @abstractmethod
    def limits(self, alive: Alive) -> tuple[float, float]:
        """Lower and upper bound over the choices still possible, by interval arithmetic."""


def _alive_classes(view: View, alive: Alive) -> NDArray[np.bool_]:
    present = np.zeros(view.classes, dtype=bool)
    present[view.codes[alive[view.axis]]] = True
    return present


@dataclass(frozen=True, eq=False)
class Table(Expression):
    """Values over the classes of a few axes; inf forbids a combination."""

    name: str
    views: tuple[View, ...]
    values: Floats  #: shape (classes of each view)

    @classmethod
    def constant(cls, name: str, value: float) -> Table:
        """A table over no axis."""
        return cls(name, (), np.asarray(value, dtype=np.float64))

    @cached_property
    def key(self) -> tuple[tuple[str, bytes], ...]:
        """Equal for tables over the same views."""
        return tuple(v.key for v in self.views)

    def evaluate(self, at: Choices) -> Floats:
        """Values at n assignments."""
        return np.asarray(self.values[tuple(v.codes[at[v.axis]] for v in self.views)])

    def _rebuilt(self, change: Callable[[Table], Expression], memo: dict[int, Expression]) -> Expression:
        return change(self)

    def tables(self) -> Iterator[Table]:
        """This table."""
        yield self

    def alive_part(self, alive: Alive) -> Floats:
        """Values of the classes that still have a possible choice."""
        if not self.views:
            return self.values
        return self.values[np.ix_(*(_alive_classes(v, alive) for v in self.views))]

    def limits(self, alive: Alive) -> tuple[float, float]:
        """Smallest and largest finite value still possible (inf, -inf if there is none)."""
        part = self.alive_part(alive)
        part = part[np.isfinite(part)]
        return (float(part.min()), float(part.max())) if part.size else (math.inf, -math.inf)


@dataclass(frozen=True, eq=False)
class Sum(Expression):
    """Sum of terms."""

    terms: tuple[Expression, ...]

    def evaluate(self, at: Choices) -> Floats:
        """Values at n assignments."""
        total: Floats = np.zeros(())
        for term in self.terms:
            total = total + term.evaluate(at)
        return np.asarray(total)

    def _rebuilt(self, change: Callable[[Table], Expression], memo: dict[int, Expression]) -> Expression:
        return Sum(tuple(t.map_tables(change, memo) for t in self.terms))

    def tables(self) -> Iterator[Table]:
        """Tables of all terms."""
        for term in self.terms:
            yield from term.tables()

    def limits(self, alive: Alive) -> tuple[float, float]:
        """Sums of the terms' limits."""
        parts = [t.limits(alive) for t in self.terms]
        return sum(p[0] for p in parts), sum(p[1] for p in parts)


@dataclass(frozen=True, eq=False)
class Max(Expression):
    """Largest of at least one term."""

    terms: tuple[Expression, ...]

    def evaluate(self, at: Choices) -> Floats:
        """Values at n assignments."""
        values = self.terms[0].evaluate(at)
        for term in self.terms[1:]:
            values = np.maximum(values, term.evaluate(at))
        return values

    def _rebuilt(self, change: Callable[[Table], Expression], memo: dict[int, Expression]) -> Expression:
        return Max(tuple(t.map_tables(change, memo) for t in self.terms))

    def tables(self) -> Iterator[Table]:
        """Tables of all terms."""
        for term in self.terms:
            yield from term.tables()

    def limits(self, alive: Alive) -> tuple[float, float]:
        """Largest of the lower limits, largest of the upper ones."""
        parts = [t.limits(alive) for t in self.terms]
        return max(p[0] for p in parts), max(p[1] for p in parts)


@dataclass(frozen=True, eq=False)
class Product(Expression):
    """A table of nonnegative values times a nonnegative expression."""

    factor: Table
    term: Expression

    def evaluate(self, at: Choices) -> Floats:
        """Values at n assignments; forbidden where either side is, zero times inf included."""
        first, second = self.factor.evaluate(at), self.term.evaluate(at)
        forbidden = np.isinf(first) | np.isinf(second)
        with np.errstate(invalid="ignore"):
            return np.where(forbidden, np.inf, first * second)

    def _rebuilt(self, change: Callable[[Table], Expression], memo: dict[int, Expression]) -> Expression:
        factor = self.factor.map_tables(change, memo)
        if not isinstance(factor, Table):
            raise TypeError("the factor of a product must stay a table")
        return Product(factor, self.term.map_tables(change, memo))

    def tables(self) -> Iterator[Table]:
        """The factor, then the term's tables."""
        yield self.factor
        yield from self.term.tables()

    def limits(self, alive: Alive) -> tuple[float, float]:
        """Products of the limits (both sides are nonnegative)."""
        (low, high), (low_term, high_term) = self.factor.limits(alive), self.term.limits(alive)
        if math.inf in (low, low_term):
            return math.inf, -math.inf
        return low * low_term, high * high_term


@dataclass(frozen=True, eq=False)
class Equation:
    """sum over axes of `terms[axis][choice]` equals `rhs`: r integer equations at once."""

    name: str
    terms: Mapping[str, Ints]  #: axis -> shape (axis size, r)
    rhs: Ints  #: shape (r,)


@dataclass(frozen=True, eq=False)
class Bound:
    """`expression` <= `upper`, up to `tolerance` (rounding of the two sides, never a relaxation)."""

    name: str
    expression: Expression
    upper: float
    tolerance: float = 1e-12


@dataclass(frozen=True, eq=False)
class Program:
    """Axes, equations, bounds and the expression to minimise.

    The order of the axes is the order in which tree searches should branch; `other_orders` are worth a try.
    Among the best assignments those count that minimise the first of `tie_breakers`, among these the second,
    and so on. Their forbidden entries are forbidden by the bounds or the objective too.
    """

    name: str
    axes: tuple[Axis, ...]
    equations: tuple[Equation, ...]
    bounds: tuple[Bound, ...]
    objective: Expression
    other_orders: tuple[tuple[str, ...], ...] = ()
    tie_breakers: tuple[Expression, ...] = ()

    def axis(self, name: str) -> Axis:
        """The axis of this name."""
        return next(a for a in self.axes if a.name == name)

    def tables(self) -> Iterator[Table]:
        """Tables of the objective and of every bound."""
        yield from self.objective.tables()
        for bound in self.bounds:
            yield from bound.expression.tables()

    def all_alive(self) -> dict[str, NDArray[np.bool_]]:
        """Every choice of every axis possible."""
        return {a.name: np.ones(a.size, dtype=bool) for a in self.axes}

    def choices(self, assignments: ArrayLike) -> dict[str, Ints]:
        """Choices by axis from rows of indices, shape (n, axes) in the order of `axes`."""
        rows = np.atleast_2d(np.asarray(assignments, dtype=np.int64))
        return {a.name: rows[:, i] for i, a in enumerate(self.axes)}

    def allowed(self, at: Choices) -> NDArray[np.bool_]:
        """Whether assignments satisfy the equations and touch no forbidden table entry, shape (n,)."""
        good = np.ones(len(next(iter(at.values()))), dtype=bool)
        for eq in self.equations:
            total = sum(eq.terms[axis][at[axis]] for axis in eq.terms)
            good &= np.all(total == eq.rhs, axis=-1)
        for table in self.tables():
            good &= np.isfinite(table.evaluate(at))
        return good

    def feasible(self, at: Choices) -> NDArray[np.bool_]:
        """Whether assignments are allowed and within every bound, shape (n,)."""
        good = self.allowed(at)
        for bound in self.bounds:
            good &= bound.expression.evaluate(at) <= bound.upper + bound.tolerance
        return good

    def labels(self, assignment: Sequence[int]) -> dict[str, Any]:
        """Labels of one assignment by axis."""
        return {a.name: a.labels[i] for a, i in zip(self.axes, assignment, strict=True)}

    def restricted(self, alive: Alive) -> Program:
        """The same program with only the choices that are still possible (labels keep their meaning)."""
        keep = {a.name: np.flatnonzero(alive[a.name]) for a in self.axes}
        cache: dict[tuple[tuple[str, bytes], ...], tuple[View, ...]] = {}

        def shrink(table: Table) -> Table:
            present = [np.unique(v.codes[keep[v.axis]]) for v in table.views]
            if table.key not in cache:
                cache[table.key] = tuple(
                    View(v.axis, np.searchsorted(p, v.codes[keep[v.axis]]), len(p))
                    for v, p in zip(table.views, present, strict=True)
                )
            values = table.values[np.ix_(*present)] if present else table.values
            return Table(table.name, cache[table.key], values)

        memo: dict[int, Expression] = {}
        return Program(
            self.name,
            tuple(Axis(a.name, tuple(a.labels[i] for i in keep[a.name])) for a in self.axes),
            tuple(
                Equation(e.name, {a: t[keep[a]] for a, t in e.terms.items()}, e.rhs) for e in self.equations
            ),
            tuple(
                Bound(b.name, b.expression.map_tables(shrink, memo), b.upper, b.tolerance)
                for b in self.bounds
            ),
            self.objective.map_tables(shrink, memo),
            self.other_orders,
            tuple(e.map_tables(shrink, memo) for e in self.tie_breakers),
        )

    def reordered(self, names: Sequence[str]) -> Program:
        """The same program with its axes in another order."""
        return replace(self, axes=tuple(self.axis(name) for name in names), other_orders=())
