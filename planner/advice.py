"""Why a question has no plan, and the nearest one that has: limits are dropped one at a time, with bounded effort."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

from planner import scaling
from planner.compile import MAX_ACCELERATORS, FrontierQuestion, Objective
from planner.cost import memory
from planner.hardware import LARGEST
from planner.outcome import DAY, Advice, Nearest, Outcome, Plan
from planner.workload import FrontierRun

#: Solve a question to a relative gap within some seconds.
Ask = Callable[[FrontierQuestion, float, float], Outcome]

#: Gap at which the fewest days are near enough.
DAYS_GAP = 1e-3
#: Gap at which any plan will do: only whether there is one matters.
ANY_GAP = 0.9
#: Most runs of other sizes that are tried.
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
        for name, step in (("memory", self.memory), ("accelerators", self.accelerators), ("deadline", self.deadline)):
            found = step()
            if found is not None:
                sentence, answers = found
                limits.append(name)
                sentences.append(sentence)
                nearest += answers
        if not limits:
            text = "no single limit explains it: dropping the deadline, the memory or the range of accelerators "
            return Advice(("layout",), f"{text}does not help, or could not be decided in time")
        return Advice(tuple(limits), "; ".join(sentences), tuple(nearest))

    def plan(self, question: FrontierQuestion, gap: float, share: float) -> tuple[Plan | None, bool]:
        """A plan for another question, and whether nothing better exists."""
        if self.left() < 0.05 or not question.cluster_sizes:
            return None, False
        outcome = self.ask(question, gap, self.left(share))
        return outcome.plan, outcome.gap is not None and outcome.gap <= gap

    def nearest(self, what: str, question: FrontierQuestion, plan: Plan, *, proven: bool) -> Nearest:
        return Nearest(what, question.run.flop, plan.days, plan.accelerators, plan.utilization, proven)

    def memory(self) -> tuple[str, list[Nearest]] | None:
        """Whether the weights and optimizer state are what does not fit."""
        question, run, a = self.question, self.question.run, self.question.accelerator
        needed = float(memory.frontier_bytes(run.parameters, 1, a.word_bytes))
        largest = question.cluster_sizes[-1]
        if needed > largest * a.memory_capacity:
            enough = -(-needed // a.memory_capacity)
            return (
                f"memory is too small: weights and optimizer state take {needed:.3g} B, at least {enough:,.0f} "
                f"accelerators of {a.memory_capacity:.3g} B, and at most {largest:,} are allowed",
                [],
            )
        roomy = replace(question, accelerator=a.model_copy(update={"memory_capacity": LARGEST}))
        plan, _ = self.plan(replace(roomy, objective=Objective.UTILIZATION), ANY_GAP, 0.3)
        if plan is None:
            return None
        return f"memory is too small: with {plan.memory_needed:.3g} B per accelerator there would be a plan", []

    def accelerators(self) -> tuple[str, list[Nearest]] | None:
        """Whether the range of accelerators is too narrow."""
        if self.question.accelerators == (1, MAX_ACCELERATORS):
            return None
        wide = replace(
            self.question, accelerators=(1, MAX_ACCELERATORS), objective=Objective.ACCELERATORS
        )
        plan, proven = self.plan(wide, 0.0, 0.4)
        if plan is None:
            return None
        least = "at least " if proven else ""
        return (
            f"the number of accelerators is outside what works: {least}{plan.accelerators:,} would do",
            [self.nearest("accelerators", wide, plan, proven=proven)],
        )

    def deadline(self) -> tuple[str, list[Nearest]] | None:
        """Whether the deadline is too short; then the fewest days, and the most FLOP in the deadline."""
        limit = self.question.deadline
        if limit is None:
            return None
        patient = replace(self.question, deadline=None, objective=Objective.TIME)
        plan, proven = self.plan(patient, DAYS_GAP, 0.6)
        if plan is None:
            return None
        answers = [self.nearest("days", patient, plan, proven=proven)]
        fastest = "takes at least" if proven else "was found to take"
        sentence = (
            f"the deadline of {limit / DAY:.4g} days is too short: this run {fastest} {plan.days:.4g} days "
            f"(on {plan.accelerators:,} accelerators)"
        )
        # With model and batch held, time is proportional to tokens.
        share = limit / DAY / plan.days
        if share < 1:
            flop = self.question.run.flop * share
            same = Nearest("flop_same_model", flop, limit / DAY, plan.accelerators, plan.utilization, proven)
            answers.append(same)
            sentence += f"; the same model and batch fit in it with fewer tokens, up to {flop:.3g} FLOP"
        smaller = self.smaller_run()
        if smaller is not None:
            answers.append(smaller)
            sentence += f"; a smaller model fits, {smaller.flop:.3g} FLOP is the largest found"
        return sentence, answers

    def smaller_run(self) -> Nearest | None:
        """The largest compute-optimal run of the width grid found to meet the deadline.

        Gallops down the grid, then bisects; the space is nearly but not exactly monotone, so no proof is claimed.
        """
        if self.shape is None:
            return None
        run = self.question.run
        sparse = run.experts > 1
        flops = [scaling.optimal_flop(d, sparse=sparse) for d in scaling.WIDTH_GRID]
        flops = [f for f in flops if f < run.flop]
        best: Nearest | None = None
        fits, fails, step = -1, len(flops), 1
        for _ in range(TRIALS):
            if fails - fits <= 1:
                break
            here = max(0, fails - step) if best is None else (fits + fails) // 2
            step *= 2
            other = replace(self.question, run=self.shape(flops[here]), objective=Objective.UTILIZATION)
            plan, _ = self.plan(other, ANY_GAP, 0.5)
            if plan is not None:
                fits, best = here, self.nearest("flop", other, plan, proven=False)
            elif self.left() < 0.05:
                break
            else:
                fails = here
        return best
