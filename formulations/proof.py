"""From a solver's word to a claim: the loop around a linear mixed-integer solver.

Solutions are judged by the program itself, not by the solver's tolerances; one that is infeasible or worse
than claimed is excluded, and the solver runs again. A program with large coefficients is solved roughly
first, then again without all that costs more than the incumbent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from formulations.base import Clock, Options, Solution, Termination
from formulations.limits import ForbiddenError
from formulations.quiet import quiet
from planner.program import Program

#: HiGHS' feasibility tolerance: bounds come out low by about as much. At 1e-10, its smallest, version 1.16
#: proves wrong optima.
TOLERANCE = 1e-9
#: With larger coefficients than this (relative to the incumbent) a proof is not believed.
TRUSTED = 1e3
#: Shares of the gap that the solver may leave open, and by which its bound is lowered for its rounding.
OPEN, SAFETY = 0.5, 0.25
#: Gap of the rough first run on a program with large coefficients.
ROUGH = 1e-2
#: Relative room above the incumbent within which a model keeps everything: its solver must not have to find
#: the incumbent on the edge of the feasible set.
ROOM = 1e-6


@dataclass(frozen=True)
class Run:
    """What one call of the solver returned."""

    termination: Termination
    assignment: tuple[int, ...] | None
    bound: float
    nodes: int
    detail: str
    root_bound: float | None = None


class LinearModel(Protocol):
    """What the loop needs to know of a model."""

    largest: float  #: largest coefficient that comes from a table

    def exclude(self, assignment: tuple[int, ...]) -> None:
        """Forbid one assignment."""
        ...


M = TypeVar("M", bound=LinearModel)
Attempt = Callable[[M, Options, float, float, float], Run]


def highs_version() -> str:
    """Name and version of HiGHS."""
    import highspy

    return "HiGHS " + ".".join(
        str(getattr(highspy, f"HIGHS_VERSION_{x}")) for x in ("MAJOR", "MINOR", "PATCH")
    )


def _attempt(attempt: Attempt[M], model: M, options: Options, gap: float, clock: Clock, known: bool) -> Run:
    """Run the solver, once more and laxer if it rejects its own solution, or the incumbent, by a hair."""
    try:
        with quiet():
            run = attempt(model, options, gap, clock.left, TOLERANCE)
            wrong = run.termination is Termination.INFEASIBLE and known
            if (wrong or run.termination is Termination.FAILED) and not clock.over:
                run = attempt(model, options, gap, clock.left, 10 * TOLERANCE)
    except KeyboardInterrupt:
        run = Run(Termination.INTERRUPTED, None, -math.inf, 0, "interrupted")
    return run


def prove(
    program: Program,
    options: Options,
    build: Callable[[Program, float], M],
    attempt: Attempt[M],
    solver: str,
) -> Solution:
    """Prove the optimum of a program.

    Parameters
    ----------
    program : Program
        What to solve.
    options : Options
        Limits, gap (absolute below an objective of 1), and the hint to start from.
    build : callable
        Makes the model of all assignments of at most a given objective.
    attempt : callable
        Runs the solver on a model, with options, gap, time left [s] and feasibility tolerance.
    solver : str
        Name and version.
    """
    clock = Clock(options.time_limit)
    best: tuple[int, ...] | None = None
    value, cutoff, nodes, built = math.inf, math.inf, 0, 0.0
    root: float | None = None
    bound = program.objective.limits(program.all_alive())[0]

    def judge(assignment: tuple[int, ...]) -> None:
        nonlocal best, value
        at = program.choices(assignment)
        if program.feasible(at)[0] and (found := float(np.max(program.objective.evaluate(at)))) < value:
            best, value = assignment, found

    if options.hint is not None:
        judge(options.hint)
    excluded: list[tuple[int, ...]] = []
    model: M | None = None
    detail = ""
    while True:
        if model is None:
            start = clock.spent
            cutoff = value + ROOM * max(1.0, abs(value)) if best else math.inf
            try:
                model = build(program, cutoff)
            except ForbiddenError as reason:
                detail, bound = str(reason), value
                termination = Termination.OPTIMAL if best else Termination.INFEASIBLE
                break
            for assignment in excluded:
                model.exclude(assignment)
            built += clock.spent - start
        size = max(1.0, abs(value) if best else abs(bound))
        trusted = model.largest <= TRUSTED * size or math.isfinite(cutoff)
        known = best is not None and best not in excluded
        run = _attempt(attempt, model, options, OPEN * options.gap if trusted else ROUGH, clock, known)
        nodes += run.nodes
        root = run.root_bound if root is None else root
        before = value
        if run.assignment is not None:
            judge(run.assignment)
        if run.termination is Termination.INFEASIBLE and not known:
            bound = value
        elif trusted and run.termination is not Termination.INFEASIBLE:
            bound = max(bound, min(value, run.bound - SAFETY * options.gap * max(1.0, abs(run.bound))))
        if bound == math.inf or (best and value - bound <= options.gap * max(abs(value), 1.0)):
            termination = Termination.OPTIMAL if best else Termination.INFEASIBLE
            break
        if run.termination is not Termination.OPTIMAL or run.assignment is None or clock.over:
            wrong = run.termination in (Termination.INFEASIBLE, Termination.OPTIMAL)
            termination = Termination.FAILED if wrong else run.termination
            termination = Termination.TIME_LIMIT if clock.over else termination
            detail = f"{solver}: {run.detail}"
            break
        if value < before and not trusted:
            model = None
        else:
            excluded.append(run.assignment)
            model.exclude(run.assignment)
    return Solution(
        termination,
        best,
        value if best else None,
        bound if best or termination is Termination.INFEASIBLE or math.isfinite(bound) else None,
        detail,
        build_seconds=built,
        solve_seconds=clock.spent - built,
        nodes=nodes,
        root_bound=root,
        solver=solver,
    )
