"""Enumeration with bounding, vectorised: the oracle.

Depth first over blocks of partial assignments, best bound first; a block's children are made, bounded and
pruned at once. No solver is involved: every bound is a sum of table minima, every leaf value the program's
own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from formulations.base import Clock, Options, Solution, Termination
from formulations.tree import ROUNDING, Block, Tree, best
from planner.program import Program

#: Rows expanded between two looks at the clock.
BITE = 1 << 12


@dataclass(frozen=True)
class Walk:
    """What a walk of the tree found, and how far it came."""

    assignment: tuple[int, ...] | None
    value: float  #: of the assignment, or what was to be beaten
    bound: float  #: nothing is below this
    rows: int  #: partial assignments expanded
    root_bound: float
    termination: Termination  #: OPTIMAL when the walk is complete, whether or not it found something


def walk(
    tree: Tree, clock: Clock, *, target: float = math.inf, gap: float = 0.0, rows: float = math.inf
) -> Walk:
    """Look for assignments better than `target`.

    Parameters
    ----------
    tree : Tree
        The program's tree.
    clock : Clock
        Ends the walk.
    target : float
        Objective to beat.
    gap : float
        Relative gap below which a better assignment is of no interest.
    rows : float
        Most partial assignments to expand.
    """
    root = tree.root()
    root_bound = float(root.bounds[0]) if len(root.rows) else math.inf
    found: tuple[int, ...] | None = None
    stack: list[Block] = [root]
    looked, skipped = 0, math.inf
    termination = Termination.OPTIMAL
    try:
        while stack:
            if clock.over or looked >= rows:
                termination = Termination.TIME_LIMIT
                break
            block = stack.pop()
            wanted = target - gap * abs(target) if math.isfinite(target) else math.inf
            near = block.bounds >= wanted
            if near.any():
                skipped = min(skipped, float(block.bounds[near].min()))
                block = block.take(np.flatnonzero(~near))
            if len(block.rows) == 0:
                continue
            if len(block.rows) > BITE:
                stack.append(block.take(slice(BITE, None)))
                block = block.take(slice(0, BITE))
            # Back on the stack until its children are: an interrupt then loses nothing.
            stack.append(block)
            children = best(tree.expand(block, target))
            stack.pop()
            looked += len(block.rows)
            if len(children.rows) == 0:
                continue
            if children.depth < tree.depth:
                stack.append(children)
            elif children.bounds[0] < target:
                found, target = tuple(int(x) for x in children.rows[0]), float(children.bounds[0])
    except KeyboardInterrupt:
        termination = Termination.INTERRUPTED
    pruned = target - ROUNDING * abs(target) if math.isfinite(target) else math.inf
    bound = min(pruned, skipped, *(float(b.bounds.min()) for b in stack if len(b.rows)))
    return Walk(found, target, bound, looked, root_bound, termination)


def solve(program: Program, options: Options) -> Solution:
    """Prove the optimum by walking every partial assignment whose bound does not exclude it.

    Parameters
    ----------
    program : Program
        What to solve; its axes are decided in the order given.
    options : Options
        Time limit, gap and hint apply; everything else has no meaning here.
    """
    clock = Clock(options.time_limit)
    tree = Tree(program)
    built = clock.spent
    hint, value = options.hint, math.inf
    if hint is not None and program.feasible(program.choices(hint))[0]:
        value = float(np.max(program.objective.evaluate(program.choices(hint))))
    found = walk(tree, clock, target=value, gap=options.gap)
    if found.assignment is None and math.isfinite(value):
        found = replace(found, assignment=hint)
    termination = found.termination
    if found.assignment is None and termination is Termination.OPTIMAL:
        termination = Termination.INFEASIBLE
    return Solution(
        termination,
        found.assignment,
        found.value if found.assignment is not None else None,
        found.bound,
        build_seconds=built,
        solve_seconds=clock.spent - built,
        nodes=found.rows,
        root_bound=found.root_bound,
        solver=f"numpy {np.__version__}",
    )
