"""Vectorised expansion and bounding of partial assignments: what enumeration and presolve share.

A partial assignment decides the first t axes of the program. Its lower bound is the objective with every
table replaced by its minimum over the undecided axes; equations prune by the range that the undecided axes
can still add. Values of complete assignments are the program's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formulations.fuse import Evaluator, Seen
from planner.program import Alive, Expression, Program, Table, View

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Relative rounding by which a fused bound may differ from the program's own values.
ROUNDING = 1e-12
#: Partial assignments expanded at once [rows]: large enough for numpy, small enough for the cache.
CHUNK = 1 << 17


@dataclass(frozen=True, eq=False)
class Block:
    """Partial assignments of equal depth, best bound first."""

    rows: NDArray[np.int32]  #: choices so far, shape (n, depth)
    residual: NDArray[np.int32]  #: what the equations still need, shape (n, r)
    bounds: Floats  #: lower bounds on the objective, shape (n,)

    @property
    def depth(self) -> int:
        """Axes decided."""
        return int(self.rows.shape[1])

    def take(self, index: NDArray[np.intp] | slice) -> Block:
        """Some of the rows."""
        return Block(self.rows[index], self.residual[index], self.bounds[index])


class Relaxation:
    """Lower bounds of expressions given the decided axes.

    A table's minimum over an undecided axis is taken among the choices that go with the decided ones:
    forbidden pairs in tables over two axes, and their chains, tell which do.
    """

    def __init__(self, program: Program, alive: Alive) -> None:
        self.alive = alive
        self.sizes = {a.name: a.size for a in program.axes}
        self.pairs = compatible_pairs(program)
        self.cache: dict[tuple[object, ...], Table] = {}

    def __call__(
        self, expression: Expression, decided: set[str], memo: dict[int, Expression] | None = None
    ) -> Expression:
        """The expression with every table reduced to the decided axes."""
        return expression.map_tables(lambda table: self._reduced(table, decided), memo)

    def _reduced(self, table: Table, decided: set[str]) -> Table:
        """Minimum over the undecided axes, jointly for those tied to the same decided axis."""
        tied: dict[str | None, list[int]] = {}
        for i, view in enumerate(table.views):
            if view.axis not in decided:
                tied.setdefault(self._tie(view.axis, decided), []).append(i)
        key = (id(table), *sorted((x or "", tuple(i)) for x, i in tied.items()))
        if key not in self.cache:
            self.cache[key] = self._minimum(table, tied)
        return self.cache[key]

    def _tie(self, axis: str, decided: set[str]) -> str | None:
        """The decided axis that leaves this one the fewest choices."""
        partners = [x for x in decided if (x, axis) in self.pairs]
        return min(partners, key=lambda x: (float(self.pairs[x, axis].mean()), x), default=None)

    def _minimum(self, table: Table, tied: dict[str | None, list[int]]) -> Table:
        values = table.values
        # What each dimension of `values` stands for: a position in the table's views, or a partner's view.
        dims: list[int | View] = list(range(len(table.views)))
        for partner, positions in sorted(tied.items(), key=lambda item: item[0] or ""):
            rest = [d for d in dims if d not in positions]
            values = np.transpose(values, [dims.index(d) for d in (*rest, *positions)])
            masks = [self._classes(table.views[i], partner) for i in positions]
            columns = []
            for x in range(len(masks[0])):
                part = values
                for j, mask in enumerate(masks):
                    part = np.compress(mask[x], part, axis=len(rest) + j)
                columns.append(part.min(axis=tuple(range(len(rest), part.ndim)), initial=np.inf))
            if partner is None:
                values, dims = np.asarray(columns[0]), rest
            else:
                size = self.sizes[partner]
                values, dims = np.stack(columns, axis=-1), [*rest, View(partner, np.arange(size), size)]
        return Table(table.name, tuple(table.views[d] if isinstance(d, int) else d for d in dims), values)

    def _classes(self, view: View, partner: str | None) -> NDArray[np.bool_]:
        """Which classes a view can show, per choice of the partner, shape (choices or 1, classes)."""
        possible = self.alive[view.axis][None, :]
        if partner is not None:
            possible = possible & self.pairs[partner, view.axis]
        out = np.zeros((len(possible), view.classes), dtype=bool)
        for choice, code in enumerate(view.codes):
            out[:, code] |= possible[:, choice]
        return out


def compatible_pairs(program: Program) -> dict[tuple[str, str], NDArray[np.bool_]]:
    """Which choices of two axes go together: forbidden entries of tables over two axes, and their chains.

    Keys are pairs of axes in both orders, values have the shape (choices of the first, choices of the
    second).
    """
    pairs: dict[tuple[str, str], NDArray[np.bool_]] = {}

    def add(x: str, y: str, good: NDArray[np.bool_]) -> None:
        known = pairs.get((x, y))
        pairs[x, y] = good if known is None else known & good
        pairs[y, x] = pairs[x, y].T

    for table in program.tables():
        if len(table.views) == 2 and np.isinf(table.values).any():
            first, second = table.views
            if first.axis != second.axis:
                good = np.isfinite(table.values)[np.ix_(first.codes, second.codes)]
                add(first.axis, second.axis, good)
    for middle in sorted({x for x, _ in pairs}):
        linked = sorted(y for x, y in pairs if x == middle)
        for i, x in enumerate(linked):
            for y in linked[i + 1 :]:
                add(x, y, (pairs[x, middle].astype(np.int64) @ pairs[middle, y].astype(np.int64)) > 0)
    return pairs


class Tree:
    """The search tree of a program in the order of its axes."""

    def __init__(self, program: Program, alive: Alive | None = None) -> None:
        self.program = program
        alive = program.all_alive() if alive is None else alive
        names = [a.name for a in program.axes]
        parts = []
        for axis in program.axes:
            columns = [
                eq.terms.get(axis.name, np.zeros((axis.size, len(eq.rhs)), dtype=np.int64))
                for eq in program.equations
            ]
            parts.append(
                np.concatenate(columns, axis=1) if columns else np.zeros((axis.size, 0), dtype=np.int64)
            )
        self.choices = [np.flatnonzero(alive[a.name]) for a in program.axes]
        self.parts = [p[c].astype(np.int32) for p, c in zip(parts, self.choices, strict=True)]
        rhs = [eq.rhs for eq in program.equations]
        self.rhs = (np.concatenate(rhs) if rhs else np.zeros(0)).astype(np.int32)
        r = len(self.rhs)
        # Range of what the axes from depth t on can add, t = 0 .. number of axes.
        self.least = np.zeros((len(names) + 1, r), dtype=np.int32)
        self.most = np.zeros((len(names) + 1, r), dtype=np.int32)
        for t in range(len(names) - 1, -1, -1):
            if len(self.parts[t]):
                self.least[t] = self.least[t + 1] + self.parts[t].min(axis=0)
                self.most[t] = self.most[t + 1] + self.parts[t].max(axis=0)
        # Only equations an axis takes part in can fail when it is decided.
        self.active = [np.flatnonzero(np.any(p != 0, axis=0)) for p in self.parts]
        relax = Relaxation(program, alive)
        self.uppers = [b.upper + b.tolerance for b in program.bounds]
        self.levels: list[Evaluator] = []
        for t in range(len(names)):
            decided, memo = set(names[:t]), dict[int, Expression]()
            self.levels.append(
                Evaluator(
                    [
                        relax(e, decided, memo)
                        for e in (program.objective, *(b.expression for b in program.bounds))
                    ]
                )
            )

    @property
    def depth(self) -> int:
        """Number of axes."""
        return len(self.choices)

    def root(self) -> Block:
        """Nothing decided (no row if the root's bound already shows infeasibility)."""
        reachable = bool(np.all((self.least[0] <= self.rhs) & (self.rhs <= self.most[0])))
        reachable = reachable and all(len(c) for c in self.choices)
        n = int(reachable)
        block = Block(np.zeros((n, 0), dtype=np.int32), np.repeat(self.rhs[None, :], n, axis=0), np.zeros(n))
        return self._bounded(block, math.inf)

    def _bounded(self, block: Block, cutoff: float) -> Block:
        """The rows that may still lead to an assignment better than `cutoff`, bounds filled in."""
        t, n = block.depth, len(block.rows)
        if n == 0:
            return block
        at: dict[str, NDArray[Any]] = {a.name: block.rows[:, i] for i, a in enumerate(self.program.axes[:t])}
        if t == self.depth:
            bounds = np.broadcast_to(self.program.objective.evaluate(at), (n,))
            index = np.flatnonzero((bounds < cutoff) & self.program.feasible(at))
            return Block(block.rows[index], block.residual[index], np.array(bounds[index]))
        evaluator = self.levels[t]
        seen: Seen = {}
        bounds = np.broadcast_to(evaluator(0, at, seen), (n,))
        keep = bounds < cutoff - ROUNDING * abs(cutoff) if math.isfinite(cutoff) else np.isfinite(bounds)
        for j, upper in enumerate(self.uppers, start=1):
            value = evaluator(j, at, seen)
            keep = keep & (value <= upper + ROUNDING * max(1.0, abs(upper)))
        index = np.flatnonzero(keep)
        return Block(block.rows[index], block.residual[index], np.array(bounds[index]))

    def expand(self, block: Block, cutoff: float) -> Block:
        """Children of these rows that survive the equations, the bounds and the cutoff (not sorted)."""
        t = block.depth
        parts, choices = self.parts[t], self.choices[t]
        step = max(1, CHUNK // max(1, len(choices)))
        found = []
        for start in range(0, len(block.rows), step):
            some = block.residual[start : start + step]
            good = np.ones((len(some), len(choices)), dtype=bool)
            for j in self.active[t]:
                # Small numbers, compared twice at once: the distance above the least as an unsigned number.
                over = some[:, j, None] - (parts[None, :, j] + self.least[t + 1, j])
                good &= over.view(np.uint32) <= np.uint32(self.most[t + 1, j] - self.least[t + 1, j])
            parent, child = np.nonzero(good)
            rows = np.empty((len(parent), t + 1), dtype=np.int32)
            rows[:, :t] = block.rows[start : start + step][parent]
            rows[:, t] = choices[child]
            found.append(self._bounded(Block(rows, some[parent] - parts[child], np.zeros(len(rows))), cutoff))
        return join(found) if found else block


def join(blocks: list[Block]) -> Block:
    """Rows of all blocks (of equal depth)."""
    return Block(
        np.concatenate([b.rows for b in blocks]),
        np.concatenate([b.residual for b in blocks]),
        np.concatenate([b.bounds for b in blocks]),
    )


def best(block: Block, width: int | None = None) -> Block:
    """Rows sorted by bound, the first `width` of them."""
    order = np.argsort(block.bounds, kind="stable")
    return block.take(order if width is None else order[:width])
