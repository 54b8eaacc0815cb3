"""Fewer, larger tables: the same values with less work per evaluation.

Sums and products of tables become one table where one's views contain the other's; shared parts and lookups
are evaluated once. Results may differ from the program's own in the last digits, so they serve for bounds
only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.program import Choices, Expression, Max, Product, Sum, Table, View

Floats = NDArray[np.float64]
Memo = dict[int, tuple[Expression, Expression]]
#: Class codes and flat indices already looked up, by view or table key.
Seen = dict[object, NDArray[np.int64]]

#: Never merge into a table larger than this [entries].
LARGEST = 1 << 20


def fuse(expression: Expression, memo: Memo) -> Expression:
    """A simpler expression of the same value; `memo` keeps shared parts shared (and alive)."""
    if id(expression) not in memo:
        memo[id(expression)] = (expression, _fused(expression, memo))
    return memo[id(expression)][1]


def _fused(expression: Expression, memo: Memo) -> Expression:
    match expression:
        case Sum():
            terms: list[Expression] = []
            for term in (fuse(t, memo) for t in expression.terms):
                terms += term.terms if isinstance(term, Sum) else [term]
            merged = _merge(terms, np.add)
            return merged[0] if len(merged) == 1 else Sum(tuple(merged))
        case Max():
            merged = _merge([fuse(t, memo) for t in expression.terms], np.maximum)
            return merged[0] if len(merged) == 1 else Max(tuple(merged))
        case Product():
            factor, term = fuse(expression.factor, memo), fuse(expression.term, memo)
            if isinstance(factor, Table) and isinstance(term, Table):
                both = _combine(factor, term, _times)
                if both is not None:
                    return both
            assert isinstance(factor, Table)
            return Product(factor, term)
    return expression


def _times(x: Floats, y: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(x) | np.isinf(y), np.inf, x * y)


def _merge(terms: list[Expression], how: object) -> list[Expression]:
    """Combine the tables among the terms, larger ones first."""
    tables = sorted((t for t in terms if isinstance(t, Table)), key=lambda t: -t.values.size)
    out: list[Table] = []
    for table in tables:
        for i, host in enumerate(out):
            both = _combine(host, table, how)
            if both is not None:
                out[i] = both
                break
        else:
            out.append(table)
    return [*out, *(t for t in terms if not isinstance(t, Table))]


def _combine(host: Table, guest: Table, how: object) -> Table | None:
    """One table for both, over the host's views; None if they do not contain the guest's."""
    place = {v.key: i for i, v in enumerate(host.views)}
    if len(place) < len(host.views) or len({v.key for v in guest.views}) < len(guest.views):
        return None
    if any(v.key not in place for v in guest.views) or host.values.size > LARGEST:
        return None
    order = [int(i) for i in np.argsort([place[v.key] for v in guest.views])]
    shape = [1] * len(host.views)
    for v in guest.views:
        shape[place[v.key]] = v.classes
    aligned = np.transpose(guest.values, order).reshape(shape)
    assert callable(how)
    return Table(host.name, host.views, np.asarray(how(host.values, aligned)))


class Evaluator:
    """Evaluates several expressions at once, sharing their common parts and lookups."""

    def __init__(self, expressions: Sequence[Expression]) -> None:
        memo: Memo = {}
        self.expressions = [fuse(e, memo) for e in expressions]
        self.identity: dict[int, bool] = {}

    def _codes(self, view: View, at: Choices, seen: Seen) -> NDArray[np.int64]:
        if view.key not in seen:
            choice = at[view.axis]
            same = self.identity.get(id(view))
            if same is None:
                same = self.identity[id(view)] = bool(np.array_equal(view.codes, np.arange(view.classes)))
            seen[view.key] = choice if same else view.codes[choice]
        return seen[view.key]

    def __call__(self, index: int, at: Choices, seen: Seen) -> Floats:
        """Value of one of the expressions; `seen` is shared between calls for the same assignments."""
        return self._value(self.expressions[index], at, seen, {})

    def _value(
        self,
        expression: Expression,
        at: Choices,
        seen: Seen,
        done: dict[int, Floats],
    ) -> Floats:
        known = done.get(id(expression))
        if known is not None:
            return known
        match expression:
            case Table():
                value = self._lookup(expression, at, seen)
            case Sum():
                value = self._value(expression.terms[0], at, seen, done) if expression.terms else np.zeros(())
                for term in expression.terms[1:]:
                    value = value + self._value(term, at, seen, done)
            case Max():
                value = self._value(expression.terms[0], at, seen, done)
                for term in expression.terms[1:]:
                    value = np.maximum(value, self._value(term, at, seen, done))
            case Product():
                first = self._value(expression.factor, at, seen, done)
                second = self._value(expression.term, at, seen, done)
                with np.errstate(invalid="ignore"):
                    value = first * second
                if np.isnan(value).any():  # zero times a forbidden entry
                    value = np.where(np.isnan(value), math.inf, value)
            case _:
                raise TypeError(f"unknown expression {type(expression).__name__}")
        done[id(expression)] = value
        return value

    def _lookup(self, table: Table, at: Choices, seen: Seen) -> Floats:
        if not table.views:
            return table.values
        flat = seen.get(table.key)
        if flat is None:
            flat = self._codes(table.views[0], at, seen)
            for view in table.views[1:]:
                flat = flat * view.classes + self._codes(view, at, seen)
            seen[table.key] = flat
        return np.asarray(table.values.ravel()[flat])
