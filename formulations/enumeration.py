"""Enumeration with bounding, vectorised: the oracle.

Depth first over blocks of partial assignments, best bound first; a block's children are made, bounded and pruned
at once. No solver is involved: every bound is a table minimum, every leaf value the program's own.
"""

from __future__ import annotations

import math

import numpy as np

from formulations.base import Clock, Options, Solution, Termination
from formulations.tree import Block, Tree, best
from planner.program import Program

#: Width of the dive that finds the first incumbent [rows].
BEAM = 2000
#: Rows expanded between two looks at the clock.
BITE = 1 << 12


def solve(program: Program, options: Options, *, cutoff: float = math.inf) -> Solution:
    """Prove the optimum by walking every partial assignment whose bound does not exclude it.

    Parameters
    ----------
    program : Program
        What to solve; its axes are decided in the order given.
    options : Options
        Time limit and gap apply; everything else has no meaning here.
    cutoff : float
        Only assignments strictly better are of interest.
    """
    clock = Clock(options.time_limit)
    tree = Tree(program)
    built = clock.spent
    root = tree.root()
    root_bound = float(root.bounds[0]) if len(root.rows) else math.inf
    incumbent, value = tree.beam(BEAM, cutoff)
    target = min(cutoff, value)
    stack: list[Block] = [root]
    looked, skipped = 0, math.inf
    termination = Termination.OPTIMAL
    try:
        while stack:
            if clock.over:
                termination = Termination.TIME_LIMIT
                break
            block = stack.pop()
            wanted = target - options.gap * abs(target) if math.isfinite(target) else math.inf
            near = block.bounds >= wanted
            if near.any():
                skipped = min(skipped, float(block.bounds[near].min()))
                block = block.take(np.flatnonzero(~near))
            if len(block.rows) == 0:
                continue
            if len(block.rows) > BITE:
                stack.append(block.take(slice(BITE, None)))
                block = block.take(slice(0, BITE))
            children = best(tree.expand(block, target))
            looked += len(block.rows)
            if len(children.rows) == 0:
                continue
            if children.depth < tree.depth:
                stack.append(children)
            elif children.bounds[0] < target:
                incumbent, value = tuple(int(x) for x in children.rows[0]), float(children.bounds[0])
                target = value
    except KeyboardInterrupt:
        termination = Termination.INTERRUPTED
        stack.append(root)
    bound = min(target, skipped, *(float(b.bounds.min()) for b in stack if len(b.rows)))
    if incumbent is None and termination is Termination.OPTIMAL:
        termination = Termination.INFEASIBLE
    return Solution(
        termination,
        incumbent,
        value if incumbent is not None else None,
        bound,
        build_seconds=built,
        solve_seconds=clock.spent - built,
        nodes=looked,
        root_bound=root_bound,
        solver=f"numpy {np.__version__}",
    )
