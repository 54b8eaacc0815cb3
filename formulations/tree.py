"""Vectorised expansion and bounding of partial assignments: what enumeration and presolve share.

A partial assignment decides the first t axes of the program. Its lower bound is the objective with every table
replaced by its minimum over the undecided axes; equations prune by the range that the undecided axes can still
add. Rounding is monotone, so a bound in floating point never exceeds the value of any completion.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.program import Alive, Expression, Program

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

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
        self.objective: list[Expression] = []
        self.limits: list[list[tuple[Expression, float]]] = []
        for t in range(len(names) + 1):
            decided = set(names[:t])
            self.objective.append(program.objective.relax(decided, alive))
            self.limits.append(
                [(b.expression.relax(decided, alive), b.upper + b.tolerance) for b in program.bounds]
            )

    @property
    def depth(self) -> int:
        """Number of axes."""
        return len(self.choices)

    def root(self) -> Block:
        """Nothing decided (no row if the root's bound already shows infeasibility)."""
        block = Block(
            np.zeros((1, 0), dtype=np.int32), self.rhs[None, :].copy(), np.full(1, -math.inf, dtype=np.float64)
        )
        return self._bounded(block, math.inf)

    def _bounded(self, block: Block, cutoff: float) -> Block:
        """The rows that may still lead to an assignment better than `cutoff`, bounds filled in."""
        t, n = block.depth, len(block.rows)
        if n == 0:
            return block
        at = {a.name: block.rows[:, i] for i, a in enumerate(self.program.axes[:t])}
        bounds = np.broadcast_to(self.objective[t].evaluate(at), (n,))
        keep = bounds < cutoff
        for expression, upper in self.limits[t]:
            keep = keep & (np.broadcast_to(expression.evaluate(at), (n,)) <= upper)
        index = np.flatnonzero(keep)
        return Block(block.rows[index], block.residual[index], np.array(bounds[index]))

    def expand(self, block: Block, cutoff: float) -> Block:
        """Children of these rows that survive the equations, the bounds and the cutoff (not sorted)."""
        t = block.depth
        parts, choices = self.parts[t], self.choices[t]
        step = max(1, CHUNK // max(1, len(choices)))
        found = []
        for start in range(0, len(block.rows), step):
            residual = block.residual[start : start + step, None, :] - parts[None, :, :]
            good = np.all((residual >= self.least[t + 1]) & (residual <= self.most[t + 1]), axis=-1)
            parent, child = np.nonzero(good)
            rows = np.concatenate(
                [block.rows[start : start + step][parent], choices[child, None].astype(np.int32)], axis=1
            )
            found.append(
                self._bounded(Block(rows, residual[parent, child], np.zeros(len(rows))), cutoff)
            )
        return join(found) if found else block

    def beam(self, width: int, cutoff: float = math.inf) -> tuple[tuple[int, ...] | None, float]:
        """A good assignment by following the `width` best partial ones at each depth; (None, inf) if none."""
        block = self.root()
        for _ in range(self.depth):
            if len(block.rows) == 0:
                return None, math.inf
            block = best(self.expand(block, cutoff), width)
        if len(block.rows) == 0:
            return None, math.inf
        i = int(np.argmin(block.bounds))
        return tuple(int(x) for x in block.rows[i]), float(block.bounds[i])


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
