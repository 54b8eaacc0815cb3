"""Every layout of a frontier question, written down plainly: loops, divisibility, no bounding, no program.

Rules are those of frontier-model.md (c3, c4, e); costs come from the cost functions. Nothing here knows
`planner.compile`, the functions of `planner.spaces` or a formulation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost.frontier import frontier_cost
from planner.layout import FrontierLayouts
from planner.question import FrontierQuestion, Objective
from planner.spaces import Degrees, Space
from tests.samples import divisors, prime_factors

#: Layouts evaluated at once.
CHUNK = 1 << 17
#: Relative excess over a limit that is rounding.
ROUNDING = 1e-12
PRIMES = {Degrees.POW2: {2}, Degrees.SMOOTH: {2, 3, 5}}


@dataclass(frozen=True)
class Plain:
    """What enumeration found."""

    layouts: int  #: that keep the rules of the space
    feasible: int  #: of them, that fit memory and deadline
    best: float  #: 1 / utilization, seconds of training, or accelerators; inf if nothing is feasible


def levels_of(n: int, fixed: tuple[int, ...]) -> list[int] | None:
    """Members of each network level, from the node up; None if a level would be filled in part."""
    sizes = []
    for size in fixed:
        here = min(size, n)
        if n % here:
            return None
        sizes.append(here)
        n //= here
    return [*sizes, n]


def factorizations(n: int, limits: list[int]) -> Iterator[tuple[int, ...]]:
    """Ways to write n as an ordered product, each factor a divisor of its limit."""
    if len(limits) == 1:
        if limits[0] % n == 0:
            yield (n,)
        return
    for x in divisors(n):
        if limits[0] % x == 0:
            yield from ((x, *rest) for rest in factorizations(n // x, limits[1:]))


def schedules(question: FrontierQuestion, pp: int, dp: int) -> list[tuple[int, int, bool]]:
    """Microbatches, interleaving and zero bubble that go with these totals."""
    run = question.run
    counts = divisors(run.batch_tokens // run.experts // dp)
    interleaved, zero = [m for m in counts if m >= pp], [m for m in counts if m >= 2 * pp]
    chunks = divisors(run.layers // pp) if pp > 1 else [1]
    if question.space is Space.PAPER:
        interleaved, zero, chunks = interleaved[:4], zero[:1], chunks[-1:]
    return [(m, v, False) for m in interleaved for v in chunks] + [(m, 1, True) for m in zero]


def keeps_rules(question: FrontierQuestion, totals: tuple[int, ...]) -> bool:
    """Whether the degrees (TPm, TPff, PP, DP, EP) may be used together."""
    run = question.run
    m, ff, pp, dp, ep = totals
    if run.d_model % m or run.d_ff % ff or run.layers % pp or run.experts % ep:
        return False
    if run.batch_tokens // run.experts % dp:
        return False
    if question.space is Space.PAPER:
        root = math.isqrt(m * ff)
        return root <= ff <= 4 * root and ep == math.gcd(math.prod(totals), run.experts)
    allowed = PRIMES.get(question.degrees)
    return allowed is None or all(set(prime_factors(x)) <= allowed for x in (m, ff, pp, dp))


def blocks(question: FrontierQuestion, n: int) -> Iterator[FrontierLayouts]:
    """All layouts on n accelerators, in blocks."""
    run = question.run
    sizes = levels_of(n, question.accelerator.level_sizes)
    if sizes is None:
        return
    limits = [run.d_model, run.d_ff, run.layers, run.batch_tokens // run.experts, run.experts]
    per_level = [list(factorizations(size, limits)) for size in sizes]
    #: Degrees per level by totals: the rules look at totals only.
    found: dict[tuple[int, ...], list[tuple[tuple[int, ...], ...]]] = {}
    for degrees in itertools.product(*per_level):
        totals = tuple(math.prod(x) for x in zip(*degrees, strict=True))
        found.setdefault(totals, []).append(degrees)
    waiting: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
    rows = 0
    for totals, ways in found.items():
        if not keeps_rules(question, totals):
            continue
        rest = schedules(question, totals[2], totals[3])
        if not rest:
            continue
        each, every = np.array(ways, dtype=np.float64), np.array(rest, dtype=np.float64)
        waiting.append((np.repeat(each, len(every), axis=0), np.tile(every, (len(each), 1))))
        rows += len(ways) * len(rest)
        if rows >= CHUNK:
            yield _block(waiting)
            waiting, rows = [], 0
    if waiting:
        yield _block(waiting)


def _block(parts: list[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> FrontierLayouts:
    degrees, rest = (np.concatenate(x) for x in zip(*parts, strict=True))
    return FrontierLayouts(
        *(degrees[:, :, axis] for axis in range(5)),
        microbatches=rest[:, 0],
        interleave=rest[:, 1],
        zero_bubble=rest[:, 2] > 0,
    )


def enumerate_all(question: FrontierQuestion, sizes: list[int]) -> Plain:
    """Evaluate every layout on clusters of these sizes."""
    total = feasible = 0
    best = math.inf
    for n in sizes:
        for layouts in blocks(question, n):
            cost = frontier_cost(
                question.run, question.accelerator, layouts, overlap_data=question.overlap_data
            )
            good = cost.memory_needed <= cost.memory_available * (1 + ROUNDING)
            if question.deadline is not None:
                good &= cost.train <= question.deadline * (1 + ROUNDING)
            total += len(good)
            feasible += int(good.sum())
            if good.any():
                value = {
                    Objective.UTILIZATION: cost.batch / cost.ideal,
                    Objective.TIME: cost.train,
                    Objective.ACCELERATORS: layouts.accelerators,
                }[question.objective]
                best = min(best, float(value[good].min()))
    return Plain(total, feasible, best)
