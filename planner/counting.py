"""How many assignments a program allows, counted exactly.

Forbidden table entries link axes into groups. In each group the axes are eliminated one at a time; what is
left is how many of its assignments add up to which vector in the equations. Groups are then convolved,
smallest first, and joined where an equation closes. Bounds on sums (memory, deadline) are not rules of the
space.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.program import Program, Table

Ints = NDArray[np.int64]
#: Whole numbers as doubles while all stay below 2^53, Python integers otherwise.
Counts = NDArray[Any]
EXACT = 2.0**53
#: Pairs of states looked at together [rows].
CHUNK = 1 << 20


@dataclass(frozen=True, eq=False)
class _Mask:
    """Forbidden combinations of a table, on the axes they depend on."""

    axes: tuple[str, ...]
    codes: tuple[Ints, ...]  #: class of each choice, per axis
    allowed: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class _States:
    """Distinct vectors, and how many assignments lead to each."""

    keys: Ints  #: shape (n, columns)
    counts: Counts  #: shape (n,)


@dataclass(frozen=True, eq=False)
class _Merge:
    """A way to combine groups, and what it is expected to cost."""

    cost: float  #: pairs of states to look at
    size: float  #: states that result
    span: NDArray[Any]  #: range of each equation's sums
    axes: set[str]
    left: _Merge | int  #: an earlier merge, or the number of a group
    right: _Merge | None


def _mask(table: Table) -> _Mask | None:
    """The table's forbidden entries without the views they do not depend on; None if there are none."""
    allowed = np.isfinite(table.values)
    if allowed.all():
        return None
    codes = []
    for position, view in enumerate(table.views):
        slices = np.moveaxis(allowed, position, 0)
        kinds, merged = np.unique(slices.reshape(len(slices), -1), axis=0, return_inverse=True)
        allowed = np.moveaxis(kinds.reshape(len(kinds), *slices.shape[1:]), 0, position)
        codes.append(merged.ravel()[view.codes])
    keep = [i for i, n in enumerate(allowed.shape) if n > 1]
    return _Mask(
        tuple(table.views[i].axis for i in keep),
        tuple(codes[i] for i in keep),
        allowed.reshape([n for n in allowed.shape if n > 1]),
    )


def _packed(keys: Ints) -> Ints:
    """One number per distinct row."""
    out: Ints = np.zeros(len(keys), dtype=np.int64)
    room = 1
    lows, highs = keys.min(axis=0), keys.max(axis=0)
    for j in np.flatnonzero(highs > lows):
        column, low, span = keys[:, j], int(lows[j]), int(highs[j]) - int(lows[j]) + 1
        room *= span
        if room >= 1 << 62:
            return np.asarray(np.unique(keys, axis=0, return_inverse=True)[1].ravel(), dtype=np.int64)
        out = out * span + (column - low)
    return out


def _merged(keys: Ints, counts: Counts) -> _States:
    """One state per distinct row, counts added."""
    if not len(keys):
        return _States(keys, counts)
    packed = _packed(keys)
    order = np.argsort(packed, kind="stable")
    starts = np.flatnonzero(np.diff(packed[order], prepend=packed[order[0]] - 1))
    added = np.add.reduceat(counts[order], starts)
    if added.dtype != object and float(added.max()) >= EXACT:
        raise OverflowError("counts need Python integers")
    return _States(keys[order[starts]], added)


class _Counter:
    """Masks and equation parts of one program."""

    def __init__(self, program: Program, dtype: type) -> None:
        self.dtype = dtype
        self.sizes = {a.name: a.size for a in program.axes}
        unique = {}
        for table in program.tables():
            mask = _mask(table)
            if mask is not None:
                unique[mask.axes, tuple(c.tobytes() for c in mask.codes), mask.allowed.tobytes()] = mask
        self.masks = list(unique.values())
        #: Axes of each group, and least and most that it adds to the equations.
        self.ranges: list[tuple[set[str], tuple[Ints, Ints]]] = []
        rhs = [e.rhs for e in program.equations]
        self.rhs: Ints = np.concatenate([np.zeros(0, np.int64), *rhs])
        self.parts: dict[str, Ints] = {}
        for axis in program.axes:
            columns = [
                e.terms.get(axis.name, np.zeros((axis.size, len(e.rhs)), np.int64)) for e in program.equations
            ]
            self.parts[axis.name] = np.concatenate([np.zeros((axis.size, 0), np.int64), *columns], axis=1)

    def groups(self) -> list[list[str]]:
        """Axes linked by masks."""
        group = {a: {a} for a in self.sizes}
        for mask in self.masks:
            joined = set().union(*(group[a] for a in mask.axes))
            for axis in joined:
                group[axis] = joined
        return [sorted(g) for g in {id(g): g for g in group.values()}.values()]

    def group_states(self, axes: list[str]) -> _States:
        """Vectors in the equations that a group's assignments add up to.

        While a mask is incomplete, states also carry the classes of its axes behind; closed ones are 0.
        """
        r = len(self.rhs)
        masks = [m for m in self.masks if m.axes[0] in axes]
        # A column per distinct grouping of an axis; masks often share one.
        groupings: dict[tuple[str, bytes], Ints] = {}
        for mask in masks:
            for axis, codes in zip(mask.axes, mask.codes, strict=True):
                groupings[axis, codes.tobytes()] = codes
        place = {key: r + n for n, key in enumerate(groupings)}
        columns = [[place[a, c.tobytes()] for a, c in zip(m.axes, m.codes, strict=True)] for m in masks]
        states = _States(np.zeros((1, r + len(place) + 1), dtype=np.int64), np.ones(1, dtype=self.dtype))
        done: set[str] = set()
        while len(done) < len(axes):

            def burden(axis: str) -> tuple[int, int]:
                ready = done | {axis}
                waiting = {c for m, cs in zip(masks, columns, strict=True) if not set(m.axes) <= ready
                           for a, c in zip(m.axes, cs, strict=True) if a in ready}  # fmt: skip
                return len(waiting), self.sizes[axis]

            axis = min((a for a in axes if a not in done), key=burden)
            done.add(axis)
            choices = np.zeros((self.sizes[axis], states.keys.shape[1]), dtype=np.int64)
            choices[:, :r] = self.parts[axis]
            for (name, _), codes in groupings.items():
                if name == axis:
                    choices[:, place[name, codes.tobytes()]] = codes
            kinds = _merged(choices, np.ones(len(choices), dtype=self.dtype))
            keys = (states.keys[:, None, :] + kinds.keys[None, :, :]).reshape(-1, choices.shape[1])
            counts = (states.counts[:, None] * kinds.counts[None, :]).ravel()
            still: set[int] = set()
            for mask, cs in zip(masks, columns, strict=True):
                if not set(mask.axes) <= done:
                    still.update(cs)
                elif axis in mask.axes:
                    good = mask.allowed[tuple(keys[:, c] for c in cs)]
                    keys, counts = keys[good], counts[good]
            keys[:, [c for c in place.values() if c not in still]] = 0
            states = _merged(keys, counts)
        return _States(states.keys[:, :r], states.counts)

    def closed(self, axes: set[str]) -> NDArray[np.bool_]:
        """Equations in which no other axis takes part, shape (r,)."""
        rest = [self.parts[a] for a in self.sizes if a not in axes]
        return np.asarray(~np.any([np.zeros(len(self.rhs), bool), *(p.any(axis=0) for p in rest)], axis=0))

    def rest(self, axes: set[str]) -> tuple[Ints, Ints]:
        """Least and most that the groups without these axes add to the equations."""
        zero = np.zeros(len(self.rhs), dtype=np.int64)
        outside = [r for group, r in self.ranges if not group & axes]
        return sum((r[0] for r in outside), zero), sum((r[1] for r in outside), zero)

    def combined(self, one: _States, other: _States, closing: NDArray[np.bool_], axes: set[str]) -> _States:
        """Sums of both sides' vectors, where the closing equations hold; those columns become 0.

        `axes` are those of both sides; sums that the rest cannot complete are left out.
        """
        if not (len(one.keys) and len(other.keys)):
            return _States(one.keys[:0], one.counts[:0])
        if len(one.keys) < len(other.keys):
            one, other = other, one
        columns = np.flatnonzero(closing)
        wanted = self.rhs[columns] - one.keys[:, columns]
        both = _packed(
            np.concatenate(
                [
                    np.zeros((len(one.keys) + len(other.keys), 1), np.int64),
                    np.concatenate([wanted, other.keys[:, columns]]),
                ],
                axis=1,
            )
        )
        needs, has = both[: len(one.keys)], both[len(one.keys) :]
        order = np.argsort(has, kind="stable")
        first = np.searchsorted(has[order], needs, side="left")
        number = np.searchsorted(has[order], needs, side="right") - first
        keep = ~closing
        least, most = self.rest(axes)
        open_columns = np.flatnonzero(~self.closed(axes))
        low, high = (self.rhs - most)[open_columns], (self.rhs - least)[open_columns]
        found: list[_States] = []
        start = 0
        while start < len(needs):
            stop = start + max(1, int(np.searchsorted(np.cumsum(number[start:]), CHUNK)))
            left = np.repeat(np.arange(start, min(stop, len(needs))), number[start:stop])
            offset = np.arange(len(left)) - np.repeat(
                np.cumsum(number[start:stop]) - number[start:stop], number[start:stop]
            )
            right = order[first[left] + offset]
            keys = (one.keys[left] + other.keys[right]) * keep
            good = np.all((keys[:, open_columns] >= low) & (keys[:, open_columns] <= high), axis=1)
            counts = one.counts[left[good]] * other.counts[right[good]]
            found.append(_merged(keys[good], counts))
            start = stop
        return _merged(np.concatenate([f.keys for f in found]), np.concatenate([f.counts for f in found]))

    def plan(self, parts: list[tuple[set[str], _States]]) -> _Merge:
        """The cheapest order of combining the groups, estimated from the ranges of their vectors."""
        best: dict[frozenset[int], _Merge] = {}
        for i, (axes, states) in enumerate(parts):
            span = np.ptp(states.keys, axis=0) if len(states.keys) else np.zeros(len(self.rhs))
            best[frozenset([i])] = _Merge(0.0, float(len(states.keys)), span, axes, i, None)
        for size in range(2, len(parts) + 1):
            for whole in map(frozenset, combinations(range(len(parts)), size)):
                inner = sorted(whole)[1:]
                for n in range(len(inner)):
                    for chosen in map(frozenset, combinations(inner, n + 1)):
                        merge = self._merge(best[whole - chosen], best[chosen])
                        if whole not in best or merge.cost < best[whole].cost:
                            best[whole] = merge
        return best[frozenset(range(len(parts)))]

    def closing(self, one: set[str], other: set[str]) -> NDArray[np.bool_]:
        """Equations that close when two groups come together."""
        return self.closed(one | other) & ~self.closed(one) & ~self.closed(other)

    def _merge(self, one: _Merge, other: _Merge) -> _Merge:
        closing = self.closing(one.axes, other.axes)
        matches = float(np.prod(np.maximum(one.span, other.span)[closing] + 1.0))
        pairs = one.size * other.size / matches
        least, most = self.rest(one.axes | other.axes)
        span = np.where(closing, 0, np.minimum(one.span + other.span, most - least))
        size = min(pairs, float(np.prod(span + 1.0)))
        return _Merge(one.cost + other.cost + pairs, size, span, one.axes | other.axes, one, other)

    def count(self, pairs: float) -> int | None:
        """Number of allowed assignments; None if it takes more pairs of states than that."""
        if any(not mask.axes for mask in self.masks):  # forbidden whatever is chosen
            return 0
        parts = [(set(axes), self.group_states(axes)) for axes in self.groups()]
        nothing = np.zeros((1, len(self.rhs)), dtype=np.int64)
        for axes, states in parts:
            keys = states.keys if len(states.keys) else nothing
            self.ranges.append((axes, (keys.min(axis=0), keys.max(axis=0))))
        # A group that closes equations on its own is filtered against the neutral element.
        neutral = _States(np.zeros((1, len(self.rhs)), np.int64), np.ones(1, dtype=self.dtype))
        parts = [(axes, self.combined(states, neutral, self.closed(axes), axes)) for axes, states in parts]

        def carry_out(merge: _Merge) -> _States:
            if merge.right is None:
                return parts[merge.left][1] if isinstance(merge.left, int) else carry_out(merge.left)
            assert isinstance(merge.left, _Merge)
            closing = self.closing(merge.left.axes, merge.right.axes)
            return self.combined(carry_out(merge.left), carry_out(merge.right), closing, merge.axes)

        best = self.plan(parts)
        if best.cost > pairs:
            return None
        total = carry_out(best)
        return int(total.counts.sum()) if len(total.keys) else 0


def count(program: Program, pairs: float = math.inf) -> int | None:
    """Number of assignments that satisfy the equations and touch no forbidden table entry.

    Parameters
    ----------
    program : Program
        Whose space is counted.
    pairs : float
        Give up (None) if more pairs of states than this would have to be looked at; a million take about
        a third of a second.
    """
    try:
        return _Counter(program, float).count(pairs)
    except OverflowError:
        return _Counter(program, object).count(pairs)
