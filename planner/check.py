"""Re-evaluate a claimed layout from scratch: exact rules in integers, costs by the plain cost functions.

Nothing here shares a table with the compilation, so that a fault there cannot confirm itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from planner import spaces
from planner.cost.frontier import FrontierCost, frontier_cost
from planner.errors import RefutedError
from planner.layout import FrontierLayout, FrontierLayouts, Schedule
from planner.question import FrontierQuestion, Objective
from planner.spaces import Degrees, Space
from planner.workload import FrontierRun

#: Relative difference at which a claimed objective still counts as confirmed.
CLAIM_TOLERANCE = 1e-9
#: Relative excess over a real-valued limit that is rounding.
ROUNDING = 1e-12
#: How many of the smallest numbers of microbatches the published search tries with 1F1B.
PUBLISHED_MICROBATCHES = 4


def check_frontier(
    question: FrontierQuestion,
    layout: FrontierLayout,
    *,
    objective: float | None = None,
    accelerators: int | None = None,
) -> FrontierCost:
    """Confirm a claimed layout.

    Parameters
    ----------
    question : FrontierQuestion
        What was asked.
    layout : FrontierLayout
        The claim.
    objective : float, optional
        Its claimed value as the reader sees it: utilization, number of accelerators, or days.
    accelerators : int, optional
        The claimed number of accelerators.

    Returns
    -------
    FrontierCost
        Cost of the layout, arrays of length 1.

    Raises
    ------
    RefutedError
        Names every rule the layout breaks.
    """
    broken = violations(question, layout)
    cost = None
    if is_well_formed(question, layout):
        cost = cost_of(question, layout)
        if accelerators is not None and accelerators != layout.accelerators:
            broken.append(f"the layout has {layout.accelerators:,} accelerators, the claim {accelerators:,}")
        if objective is not None:
            found = value_of(question.objective, layout, cost)
            if not math.isclose(found, objective, rel_tol=CLAIM_TOLERANCE):
                broken.append(f"the {question.objective} is {found!r}, not the claimed {objective!r}")
    if broken or cost is None:
        raise RefutedError("the claimed layout does not hold: " + "; ".join(broken))
    return cost


def cost_of(question: FrontierQuestion, layout: FrontierLayout) -> FrontierCost:
    """Cost of one layout, arrays of length 1."""
    layouts = FrontierLayouts.stack([layout])
    return frontier_cost(question.run, question.accelerator, layouts, overlap_data=question.overlap_data)


def value_of(objective: Objective, layout: FrontierLayout, cost: FrontierCost) -> float:
    """What the objective counts, as the reader sees it: utilization, accelerators, or days."""
    match objective:
        case Objective.UTILIZATION:
            return float(cost.utilization[0])
        case Objective.ACCELERATORS:
            return float(layout.accelerators)
        case Objective.TIME:
            return float(cost.train[0]) / 86400.0


def is_well_formed(question: FrontierQuestion, layout: FrontierLayout) -> bool:
    """Whether the layout has positive degrees at each of the network's levels, so that it has a cost."""
    levels = len(question.accelerator.network)
    return all(len(d) == levels and min(d) >= 1 for d in layout.degrees.values())


def violations(question: FrontierQuestion, layout: FrontierLayout) -> list[str]:
    """Every rule of the question's space and limits that the layout breaks, in words."""
    if not is_well_formed(question, layout):
        levels = len(question.accelerator.network)
        return [f"every axis needs {levels} degrees of at least 1, one per network level"]
    broken = [*_structure(question.run, layout), *_cluster(question, layout)]
    if question.space is Space.PAPER:
        broken += _published(question.run, layout)
    else:
        broken += _primes(question, layout)
    return broken + list(_limits(question, layout))


def _divides(part: int, whole: int, what: str) -> Iterator[str]:
    if whole % part:
        yield f"{what}: {part:,} does not divide {whole:,}"


def _structure(run: FrontierRun, layout: FrontierLayout) -> Iterator[str]:
    """What any layout must keep: divisibility, microbatches, interleaving."""
    total = layout.totals
    pp, m, v = total["PP"], layout.microbatches, layout.interleave
    shards, rest = divmod(run.batch_tokens, run.experts)
    if rest:
        yield f"E must divide the batch: {run.experts:,} does not divide {run.batch_tokens:,}"
    yield from _divides(total["TPm"], run.d_model, "TPm must divide d_model")
    yield from _divides(total["TPff"], run.d_ff, "TPff must divide d_ff")
    yield from _divides(total["EP"], math.gcd(layout.accelerators, run.experts), "EP must divide gcd(N, E)")
    yield from _divides(pp, run.layers, "PP must divide the layers")
    yield from _divides(total["DP"] * m, shards, "DP times the microbatches must divide the batch over E")
    if layout.schedule is Schedule.ZERO_BUBBLE:
        if v != 1:
            yield f"zero bubble has no interleaving: v is {v}, not 1"
        if m < 2 * pp:
            yield f"zero bubble needs 2 PP microbatches: {m:,} < {2 * pp:,}"
    else:
        if run.layers % (pp * v):
            yield f"v must divide the layers per stage: {v:,} does not divide {run.layers:,} / {pp:,}"
        if pp == 1 and v != 1:
            yield f"without a pipeline there is no interleaving: v is {v}, not 1"
        if m < pp:
            yield f"1F1B needs PP microbatches: {m:,} < {pp:,}"


def _cluster(question: FrontierQuestion, layout: FrontierLayout) -> Iterator[str]:
    """The layout fills whole network levels of a cluster in the asked range."""
    n, (low, high) = layout.accelerators, question.accelerators
    if not low <= n <= high:
        yield f"the number of accelerators, {n:,}, is outside {low:,}..{high:,}"
    sizes = spaces.level_sizes(n, question.accelerator.level_sizes)
    if sizes is None:
        yield f"{n:,} accelerators do not fill whole network levels of {question.accelerator.level_sizes}"
    elif layout.level_sizes != sizes:
        yield f"the degrees multiply to {layout.level_sizes} per network level, which has {sizes} members"


def _primes(question: FrontierQuestion, layout: FrontierLayout) -> Iterator[str]:
    """Degrees have allowed primes only (EP divides E in any case)."""
    if question.degrees is Degrees.ANY:
        return
    for axis, degree in layout.totals.items():
        rest = degree
        for p in (2, 3, 5) if question.degrees is Degrees.SMOOTH else (2,):
            while rest % p == 0:
                rest //= p
        if axis != "EP" and rest > 1:
            yield f"{axis} = {degree:,} has a prime factor that --degrees {question.degrees} does not allow"


def _published(run: FrontierRun, layout: FrontierLayout) -> Iterator[str]:
    """The published search's restrictions (frontier-model.md, e)."""
    total, n = layout.totals, layout.accelerators
    pp, m, v = total["PP"], layout.microbatches, layout.interleave
    ratio, rest = divmod(n, run.experts)
    if rest or ratio & (ratio - 1):
        yield f"published: N must be E times a power of two, not {n:,} with E = {run.experts:,}"
    if total["EP"] != math.gcd(n, run.experts):
        yield f"published: EP must be gcd(N, E) = {math.gcd(n, run.experts):,}, not {total['EP']:,}"
    root = math.isqrt(total["TPm"] * total["TPff"])
    if not root <= total["TPff"] <= 4 * root:
        yield f"published: TPff must be from {root:,} to {4 * root:,} at this TP, not {total['TPff']:,}"
    zero = layout.schedule is Schedule.ZERO_BUBBLE
    whole = run.layers // pp if pp > 1 else 1
    if not zero and v != whole:
        yield f"published: v must be L / PP = {whole:,}, not {v:,}"
    shards = run.batch_tokens // (run.experts * total["DP"])
    tried = [x for x in spaces.divisors(shards) if x >= (2 * pp if zero else pp)] if shards else []
    tried = tried[: 1 if zero else PUBLISHED_MICROBATCHES]
    if m not in tried:
        yield f"published: the microbatches must be one of {tried}, not {m:,}"


def _limits(question: FrontierQuestion, layout: FrontierLayout) -> Iterator[str]:
    """Memory and deadline, by the cost functions."""
    cost = cost_of(question, layout)
    needed, available = float(cost.memory_needed[0]), float(cost.memory_available[0])
    if needed > available * (1 + ROUNDING):
        n = layout.accelerators
        yield f"memory: {needed / n:.4g} B needed per accelerator, {available / n:.4g} B available"
    if question.deadline is not None and float(cost.train[0]) > question.deadline * (1 + ROUNDING):
        days, limit = float(cost.train[0]) / 86400, question.deadline / 86400
        yield f"deadline: training takes {days:.6g} days, more than {limit:.6g}"
