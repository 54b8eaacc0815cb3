"""Why a question has no plan, and the nearest one that has.

Limits are dropped one at a time, with bounded effort.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

from planner import check, scaling
from planner.cost import memory
from planner.errors import RefutedError
from planner.hardware import LARGEST
from planner.outcome import DAY, Advice, Nearest, Outcome, Plan, Status
from planner.question import MAX_ACCELERATORS, QUARTER, FrontierQuestion, Objective
from planner.workload import FrontierRun

#: Solve a question to a relative gap within some seconds.
Ask = Callable[[FrontierQuestion, float, float], Outcome]

#: Gap at which the days on a given cluster are near enough.
DAYS_GAP = 1e-3
#: What a larger cluster must bring: this share of the days, or less.
WORTH = 0.98
#: Longest solve on one cluster [s].
EACH = 4.0
#: Gap at which any plan will do: only whether there is one matters.
ANY_GAP = 0.9
#: Most clusters, and most runs of other sizes, that are tried.
TRIALS = 8


def infeasible(
    question: FrontierQuestion, ask: Ask, shape: Callable[[float], FrontierRun] | None, seconds: float
) -> Advice:
    """Which limits rule every layout out, and what could be asked instead.

    Parameters
    ----------
    question : FrontierQuestion
        A question without a plan.
    ask : callable
        Solves another question.
    shape : callable, optional
        The run that a training compute would have; without it no smaller run is tried.
    seconds : float
        Time for all of this.

    Raises
    ------
    RefutedError
        There is a plan after all.
    """
    return _Search(question, ask, shape, seconds).advice()


class _Search:
    """One search for advice."""

    def __init__(
        self,
        question: FrontierQuestion,
        ask: Ask,
        shape: Callable[[float], FrontierRun] | None,
        seconds: float,
    ) -> None:
        self.question, self.ask, self.shape = question, ask, shape
        self.until = perf_counter() + seconds

    def left(self, share: float = 1.0) -> float:
        return max(0.0, self.until - perf_counter()) * share

    def advice(self) -> Advice:
        """Drop each limit in turn; a limit whose absence gives a plan is one that rules plans out."""
        limits: list[str] = []
        sentences: list[str] = []
        nearest: list[Nearest] = []
        for name, step in (
            ("memory", self.weights),
            ("deadline", self.deadline),
            ("accelerators", self.accelerators),
            ("memory", self.memory),
        ):
            if name == "memory" and limits:
                continue
            found = step()
            if found is not None:
                sentence, answers = found
                limits.append(name)
                sentences.append(sentence)
                nearest += answers
        if not limits:
            return Advice((), "which limit rules every layout out could not be decided in time")
        return Advice(tuple(limits), "; ".join(sentences), tuple(nearest))

    def ask_on(self, question: FrontierQuestion, n: int) -> tuple[Plan | None, bool]:
        """The fastest plan on n accelerators, deadline or not, and whether it is proven (to DAYS_GAP)."""
        if self.left() < 0.05:
            return None, False
        pinned = replace(question, deadline=None, objective=Objective.UTILIZATION, accelerators=(n, n))
        outcome = self.ask(pinned, DAYS_GAP, min(self.left(), EACH))
        if question is self.question and outcome.plan is not None:
            self.refute(outcome.plan)
        return outcome.plan, outcome.gap is not None and outcome.gap <= DAYS_GAP

    def refute(self, plan: Plan) -> None:
        """Raise if a plan answers the question that was said to have none."""
        if not check.violations(self.question, plan.layout):
            raise RefutedError(
                f"the claim that there is no plan does not hold: "
                f"{plan.accelerators:,} accelerators can do it "
                f"in {plan.days:.6g} days, by {plan.layout!r}"
            )

    def weights(self) -> tuple[str, list[Nearest]] | None:
        """Whether even one copy of the weights and the optimizer state fits on the largest cluster."""
        run, a, largest = self.question.run, self.question.accelerator, self.question.cluster_sizes[-1]
        needed = float(memory.frontier_bytes(run.parameters, 1, a.word_bytes))
        if needed <= largest * a.memory_capacity:
            return None
        enough = -(-needed // a.memory_capacity)
        return (
            f"memory is too small: weights and optimizer state take {needed:.3g} B, at least {enough:,.0f} "
            f"accelerators of {a.memory_capacity:.3g} B, and the largest cluster allowed has {largest:,}",
            [],
        )

    def memory(self) -> tuple[str, list[Nearest]] | None:
        """Whether any memory would help."""
        a = self.question.accelerator
        roomy = replace(
            self.question,
            accelerator=a.model_copy(update={"memory_capacity": LARGEST}),
            objective=Objective.UTILIZATION,
        )
        if self.left() < 0.05:
            return None
        plan = self.ask(roomy, ANY_GAP, self.left()).plan
        if plan is None:
            return None
        return f"memory is too small: with {plan.memory_needed:.3g} B per accelerator there is a plan", []

    def accelerators(self) -> tuple[str, list[Nearest]] | None:
        """Whether the range of accelerators is too narrow."""
        if self.question.accelerators == (1, MAX_ACCELERATORS) or self.left() < 0.05:
            return None
        wide = replace(self.question, accelerators=(1, MAX_ACCELERATORS), objective=Objective.ACCELERATORS)
        outcome = self.ask(wide, 0.0, self.left())
        plan, proven = outcome.plan, outcome.status is Status.OPTIMAL
        if plan is None:
            return None
        least = "at least " if proven else ""
        return (
            f"the range of accelerators leaves out what works: {least}{plan.accelerators:,} meet every limit",
            [_nearest("accelerators", wide, plan, proven=proven)],
        )

    def deadline(self) -> tuple[str, list[Nearest]] | None:
        """Whether the deadline is too short; then the fewest days, and the most FLOP in the deadline."""
        limit = self.question.deadline
        plan, proven = self.fastest(QUARTER if limit is None else limit)
        if plan is None or limit is None:
            return None
        answers = [_nearest("days", self.question, plan, proven=proven)]
        sentence = (
            f"the deadline of {limit / DAY:.4g} days is too short: this run takes "
            f"{'at least' if proven else 'about'} {plan.days:.4g} days on {plan.accelerators:,} accelerators"
        )
        # With model and batch held, time is proportional to tokens.
        flop = self.question.run.flop * min(1.0, limit / DAY / plan.days)
        same = Nearest("flop_same_model", flop, limit / DAY, plan.accelerators, plan.utilization, proven)
        answers.append(same)
        sentence += (
            f"; in {limit / DAY:.4g} days the same model and batch take {flop:.3g} FLOP (fewer tokens)"
        )
        smaller = self.smaller_run(flop, limit, plan.accelerators)
        if smaller is not None:
            answers.append(smaller)
            sentence += f"; the largest compute-optimal run found to fit has {smaller.flop:.3g} FLOP"
        return sentence, answers

    def fastest(self, limit: float) -> tuple[Plan | None, bool]:
        """A plan about as fast as any, on a cluster that is worth its size, and whether it is proven fastest.

        Time falls with the size until latency takes over: walk up in factors of four, then halve the steps.
        """
        question = self.question
        sizes = question.cluster_sizes
        enough = question.run.flop / (question.accelerator.sustained * limit)
        tried: dict[int, Plan | None] = {}
        best: Plan | None = None
        proven = False

        def attempt(target: float) -> bool:
            """Try the size nearest to a target; whether it is the best so far."""
            nonlocal best, proven
            n = min(sizes, key=lambda x: abs(math.log(x / target)))
            if n in tried:
                return False
            tried[n], sure = self.ask_on(question, n)
            here = tried[n]
            if here is None or (best is not None and here.days > best.days * WORTH):
                return False
            best, proven = here, sure and len(sizes) == 1
            return True

        target = min(max(enough, sizes[0]), sizes[-1])
        while len(tried) < TRIALS and self.left() > 0:
            better = attempt(target)
            if (not better and best is not None) or target > sizes[-1]:
                break
            target *= 4
        for factor in (2.0, math.sqrt(2)):
            for side in (factor, 1 / factor):
                if best is not None and len(tried) < 2 * TRIALS:
                    attempt(best.accelerators * side)
        return best, proven

    def smaller_run(self, flop: float, limit: float, n: int) -> Nearest | None:
        """The largest compute-optimal run of the width grid found to meet the deadline.

        Walks down the grid from somewhat above `flop`, on as many accelerators as the question's own run.
        """
        if self.shape is None:
            return None
        run = self.question.run
        sparse = run.experts > 1
        grid = (scaling.optimal_flop(d, sparse=sparse) for d in scaling.WIDTH_GRID)
        best: Nearest | None = None
        for candidate in sorted((f for f in grid if f < min(run.flop, 2 * flop)), reverse=True)[:TRIALS]:
            other = replace(self.question, run=self.shape(candidate), accelerators=(1, MAX_ACCELERATORS))
            size = min(other.cluster_sizes, key=lambda x: abs(math.log(x / n)))
            low, high = self.question.accelerators
            if not low <= size <= high:
                continue
            plan, _ = self.ask_on(other, size)
            if plan is not None and plan.days * DAY <= limit:
                best = _nearest("flop", other, plan, proven=False)
                break
        return best


def _nearest(what: str, question: FrontierQuestion, plan: Plan, *, proven: bool) -> Nearest:
    return Nearest(what, question.run.flop, plan.days, plan.accelerators, plan.utilization, proven)
