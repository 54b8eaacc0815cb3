"""The front door: a question in, a checked answer out."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import formulations
from formulations.base import Clock, Formulation, Options, Solution, Termination
from planner import advice, check, counting
from planner.compile import compile_frontier, decode
from planner.cost.frontier import FrontierCost
from planner.errors import InputError, SolverError
from planner.layout import FrontierLayout
from planner.outcome import DAY, Outcome, Plan, Seconds, Status
from planner.question import FrontierQuestion, Objective
from planner.workload import FrontierRun

log = logging.getLogger(__name__)

#: Relative gap up to which a bound proves optimality, whatever gap was asked for.
PROOF = 1e-6
#: Effort for counting the space [pairs of states]; beyond it the size is left unknown.
COUNT_PAIRS = 2e7
#: Time spent on advice for an infeasible question when no limit is given [s].
ADVICE_SECONDS = 30.0


@dataclass(frozen=True)
class _Answer:
    """What one solve gave: the claim, and the layout once it is confirmed."""

    question: FrontierQuestion
    solution: Solution
    space_size: int | None
    build_seconds: float
    layout: FrontierLayout | None = None
    cost: FrontierCost | None = None

    @property
    def bound(self) -> float | None:
        """The bound as the reader sees the objective; None if unknown."""
        bound = self.solution.bound
        if bound is None or not math.isfinite(bound):
            return None
        return _readable(self.question, bound, nearest=False)

    @property
    def root_bound(self) -> float | None:
        """The first relaxation's bound as the reader sees the objective; None if unknown."""
        bound = self.solution.root_bound
        if bound is None or not math.isfinite(bound):
            return None
        return _readable(self.question, bound, nearest=False)

    @property
    def gap(self) -> float | None:
        """Relative distance between the plan's value and the bound."""
        if self.layout is None or self.cost is None or self.bound is None:
            return None
        value = check.value_of(self.question.objective, self.layout, self.cost)
        small, large = sorted((value, self.bound))
        # Bounds may pass the value by rounding only, which is no gap.
        beyond = (
            self.bound < value if self.question.objective is Objective.UTILIZATION else self.bound > value
        )
        return 0.0 if beyond or large == 0 else 1 - small / large

    @property
    def plan(self) -> Plan | None:
        """The confirmed plan."""
        if self.layout is None or self.cost is None:
            return None
        return Plan.of(self.question, self.layout, self.cost)


def _readable(question: FrontierQuestion, value: float, *, nearest: bool) -> float | None:
    """A value of the program's objective as the reader sees it: utilization, accelerators, or days.

    For accelerators, the candidate `nearest` to the value, or the smallest that is not below it (a bound).
    """
    run, sizes = question.run, question.cluster_sizes
    match question.objective:
        case Objective.UTILIZATION:
            best = question.accelerator.sustained_share
            return best if value <= 1 / best else 1 / value
        case Objective.TIME:
            ideal = run.flop_per_token * run.batch_tokens / (question.accelerator.peak * sizes[0])
            return value * ideal * run.batches / DAY
        case Objective.ACCELERATORS:
            levels = [math.log2(n / sizes[0]) for n in sizes]
            if nearest:
                return float(min(zip(levels, sizes, strict=True), key=lambda x: abs(x[0] - value))[1])
            return next((float(n) for x, n in zip(levels, sizes, strict=True) if x >= value - 1e-9), None)


def _run(
    solve: Formulation, question: FrontierQuestion, options: Options, name: str, *, count: bool = False
) -> _Answer:
    """Compile, count, solve, decode, check."""
    clock = Clock(options.time_limit)
    program = compile_frontier(question)
    size = counting.count(program, COUNT_PAIRS) if count else None
    built = clock.spent
    log.info("compiled %s: %s layouts in %.2f s", program.name, size, built)
    try:
        solution = solve(program, replace(options, time_limit=clock.left))
    except InputError:
        raise
    except (
        ArithmeticError,
        ImportError,
        LookupError,
        MemoryError,
        OSError,
        RuntimeError,
        ValueError,
    ) as error:
        raise SolverError(f"the formulation {name} failed: {type(error).__name__}: {error}") from error
    log.info(
        "%s (%s): %s in %.2f s, objective %s, bound %s %s",
        name,
        solution.solver,
        solution.termination,
        solution.solve_seconds,
        solution.objective,
        solution.bound,
        solution.detail,
    )
    if solution.termination is Termination.FAILED:
        raise SolverError(f"the formulation {name} failed: {solution.detail or 'no reason given'}")
    answer = _Answer(question, solution, size, built + solution.build_seconds)
    if solution.assignment is None:
        if solution.termination is Termination.OPTIMAL:
            raise SolverError(f"the formulation {name} says optimal and gives no layout")
        return answer
    if solution.termination is Termination.INFEASIBLE:
        raise SolverError(f"the formulation {name} says infeasible and gives a layout")
    try:
        layout = decode(program.labels(solution.assignment))
    except (LookupError, ValueError) as error:
        raise SolverError(f"the formulation {name} gives no assignment of the program: {error}") from error
    claim = None if solution.objective is None else _readable(question, solution.objective, nearest=True)
    cost = check.check_frontier(question, layout, objective=claim)
    return replace(answer, layout=layout, cost=cost)


def plan_frontier(
    question: FrontierQuestion,
    formulation: str = formulations.DEFAULT,
    options: Options | None = None,
    *,
    shape: Callable[[float], FrontierRun] | None = None,
    advise: bool = True,
    count: bool = True,
) -> Outcome:
    """Answer a frontier question with a plan, its bound, and a check of both.

    Parameters
    ----------
    question : FrontierQuestion
        What to plan. With objective `accelerators` the answer is the fastest layout on the fewest
        accelerators that meet the deadline (the published rule).
    formulation : str
        Name of a formulation of `formulations.CATALOGUE`.
    options : Options, optional
        Limits; the time limit covers everything.
    shape : callable, optional
        The run that a training compute [FLOP] would have, for advice on smaller runs.
    advise : bool
        Look for the reason and the nearest feasible answer if there is no plan.
    count : bool
        Count the layouts of the space.

    Raises
    ------
    InputError, SolverError, RefutedError
        The question is wrong; the solver failed; its claim does not hold.
    """
    options = options or Options()
    clock = Clock(options.time_limit)
    if formulation not in formulations.CATALOGUE:
        known = ", ".join(formulations.CATALOGUE)
        raise InputError.of("formulation", formulation, f"no formulation of this name; known are {known}")
    if not formulations.available(formulation):
        package = formulations.CATALOGUE[formulation].requires
        raise InputError.of(
            "formulation", formulation, f"needs the package {package}, which is not installed"
        )
    try:
        formulations.load(formulation)
    except ImportError as error:
        raise SolverError(f"the formulation {formulation} cannot be loaded: {error}") from error
    solve = partial(formulations.solve, formulation)
    fewest = question.objective is Objective.ACCELERATORS  # which layout comes second
    first = _run(
        solve, question, replace(options, ties=options.ties and not fewest), formulation, count=count
    )
    second: _Answer | None = None
    stopped = first.solution.termination is not Termination.OPTIMAL
    if fewest and first.layout is not None and not stopped:
        n = first.layout.accelerators
        pinned = replace(question, objective=Objective.UTILIZATION, accelerators=(n, n))
        second = _run(solve, pinned, replace(options, time_limit=clock.left), formulation)
        if second.solution.termination is Termination.INFEASIBLE:
            raise SolverError(f"the formulation {formulation} found a plan on {n:,} accelerators, then none")
    outcome = _outcome(formulation, first, second)
    if outcome.status is Status.INFEASIBLE and advise:
        left = ADVICE_SECONDS if math.isinf(options.time_limit) else clock.left

        def ask(other: FrontierQuestion, gap: float, seconds: float) -> Outcome:
            limits = replace(options, gap=max(gap, options.gap), time_limit=seconds, ties=False)
            return _outcome(formulation, _run(solve, other, limits, formulation), None)

        outcome = replace(outcome, advice=advice.infeasible(question, ask, shape, left))
    return replace(outcome, seconds=replace(outcome.seconds, total=clock.spent))


_STOPPED = {
    Termination.OPTIMAL: "proven",
    Termination.INFEASIBLE: "no layout satisfies every rule and limit",
    Termination.TIME_LIMIT: "the time limit was reached",
    Termination.MEMORY_LIMIT: "the memory limit was reached",
    Termination.INTERRUPTED: "interrupted",
}


def _outcome(formulation: str, first: _Answer, second: _Answer | None) -> Outcome:
    """The outcome of one solve, or of two in lexicographic order."""
    answers = [first] if second is None else [first, second]
    last = answers[-1]
    plan = first.plan if last.plan is None else last.plan
    gaps = [a.gap for a in answers]
    gap = None if None in gaps else max(g for g in gaps if g is not None)
    termination = last.solution.termination
    detail = last.solution.detail or _STOPPED[termination]
    if plan is None:
        status = Status.INFEASIBLE if termination is Termination.INFEASIBLE else Status.NO_PLAN
    elif termination is Termination.OPTIMAL and (gap is None or gap > PROOF):
        status, detail = Status.FEASIBLE, "stopped within the asked gap"
    else:
        status = Status.OPTIMAL if termination is Termination.OPTIMAL else Status.FEASIBLE
    if second is not None and termination is not Termination.OPTIMAL:
        detail += "; the number of accelerators is proven fewest, its layout not proven fastest"
    counts = [a.solution.nodes for a in answers if a.solution.nodes is not None]
    return Outcome(
        question=first.question,
        status=status,
        termination=termination.value,
        detail=detail,
        formulation=formulation,
        solver=first.solution.solver or None,
        plan=plan,
        bound=None if status is Status.INFEASIBLE else first.bound,
        gap=gap,
        root_bound=first.root_bound,
        space_size=first.space_size,
        nodes=sum(counts) if counts else None,
        seconds=Seconds(
            build=sum(a.build_seconds for a in answers),
            solve=sum(a.solution.solve_seconds for a in answers),
        ),
    )


def evaluate_frontier(question: FrontierQuestion, layout: FrontierLayout) -> Outcome:
    """Evaluate a given layout; its status is infeasible, with every reason, where it breaks a rule.

    Raises
    ------
    InputError
        The layout has no cost: not one positive degree per network level on each axis.
    """
    start = time.perf_counter()
    broken = check.violations(question, layout)
    if not check.is_well_formed(question, layout):
        raise InputError.of("layout", layout.degrees, "; ".join(broken))
    plan = Plan.of(question, layout, check.cost_of(question, layout))
    return Outcome(
        question=question,
        status=Status.INFEASIBLE if broken else Status.FEASIBLE,
        termination="evaluated",
        detail="; ".join(broken) or "the layout keeps every rule",
        plan=plan,
        seconds=Seconds(total=time.perf_counter() - start),
    )
