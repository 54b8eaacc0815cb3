"""Compile a frontier question into a program: axes, cost tables, equations, bounds, objective.

Everything is divided by the accelerator-time that the batch's FLOP take at datasheet peak, so that the main
expression is N * batch / ideal = 1 / utilization (formulations.md, "Normalised form").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner import spaces
from planner.cost import collectives, matmul, memory, pipeline
from planner.errors import InputError
from planner.hardware import Accelerator
from planner.layout import AXES, FrontierLayout, Schedule
from planner.program import Axis, Bound, Equation, Expression, Max, Product, Program, Sum, Table, View
from planner.spaces import Degrees, Space
from planner.workload import FrontierRun

Floats = NDArray[np.float64]

#: Largest cluster the planner considers [accelerators].
MAX_ACCELERATORS = 10**15
#: A quarter of a year of 3.154e7 s, the published deadline [s].
QUARTER = 7.885e6


#: Label of the zero-bubble schedule on the schedule axis; any other label is the v of 1F1B.
ZERO_BUBBLE = 0


class Objective(StrEnum):
    """What is optimised."""

    UTILIZATION = "utilization"
    ACCELERATORS = "accelerators"
    TIME = "time"


@dataclass(frozen=True)
class FrontierQuestion:
    """A run, a machine, and what to choose."""

    run: FrontierRun
    accelerator: Accelerator
    space: Space = Space.FULL
    degrees: Degrees = Degrees.SMOOTH
    objective: Objective = Objective.UTILIZATION
    deadline: float | None = QUARTER  #: longest training time [s]; None for no limit
    accelerators: tuple[int, int] = (1, MAX_ACCELERATORS)  #: smallest and largest cluster
    overlap_data: bool = False  #: hide the gradient all-reduce behind the pipeline

    @property
    def axis_factors(self) -> dict[str, int]:
        """What each axis' degree must divide."""
        run = self.run
        return {
            "TPm": run.d_model,
            "TPff": run.d_ff,
            "PP": run.layers,
            "DP": run.batch_tokens // run.experts,
            "EP": run.experts,
        }

    @property
    def axis_totals(self) -> dict[str, list[int]]:
        """Allowed total degree of each axis."""
        degrees = Degrees.POW2 if self.space is Space.PAPER else self.degrees
        totals = {axis: spaces.divisors(n, degrees) for axis, n in self.axis_factors.items()}
        e = self.run.experts
        totals["EP"] = [e] if self.space is Space.PAPER else spaces.divisors(e)
        return totals

    @cached_property
    def cluster_sizes(self) -> list[int]:
        """Candidate N: products of allowed degrees that fill whole network levels."""
        low, high = self.accelerators
        if self.space is Space.PAPER:
            e = self.run.experts
            candidates = [e << i for i in range(MAX_ACCELERATORS.bit_length()) if e << i <= high]
        else:
            candidates = spaces.products((math.lcm(*t) for t in self.axis_totals.values()), high)
        fixed = self.accelerator.level_sizes
        return [n for n in candidates if n >= low and spaces.level_sizes(n, fixed) is not None]


def _exponents(numbers: Sequence[int], primes: Sequence[int]) -> NDArray[np.int64]:
    """Prime exponents, shape (numbers, primes)."""
    out = np.zeros((len(numbers), len(primes)), dtype=np.int64)
    for i, n in enumerate(numbers):
        for p, e in spaces.factorize(n).items():
            out[i, primes.index(p)] = e
    return out


@dataclass
class _Compiler:
    """Shared views and constants of one compilation."""

    question: FrontierQuestion
    axes: dict[str, Axis] = field(init=False)

    def __post_init__(self) -> None:
        question, run = self.question, self.question.run
        sizes = question.cluster_sizes
        per_level = [spaces.level_sizes(n, question.accelerator.level_sizes) for n in sizes]
        inner = [
            sorted({d for s in per_level if s is not None for d in spaces.divisors(s[k])})
            for k in range(len(question.accelerator.level_sizes))
        ]
        shards = run.batch_tokens // run.experts
        axes = [Axis("N", tuple(sizes))]
        for name, totals in question.axis_totals.items():
            axes.append(Axis(name, tuple(c for t in totals for c in spaces.splits(t, inner))))
        axes.append(Axis("microbatches", tuple(spaces.divisors(shards))))
        axes.append(Axis("nanobatch", tuple(spaces.divisors(shards))))
        axes.append(Axis("schedule", (ZERO_BUBBLE, *spaces.divisors(run.layers))))
        self.axes = {a.name: a for a in axes}
        self.level_sizes = per_level
        accelerator = question.accelerator
        self.bandwidth = np.array([level.bandwidth for level in accelerator.network])
        self.latency = np.array([level.latency for level in accelerator.network])
        #: Accelerator-seconds of one batch at datasheet peak: what everything is divided by.
        self.ideal = run.flop_per_token * run.batch_tokens / accelerator.peak

    def configs(self, axis: str) -> Floats:
        """Degrees per level of each choice, shape (choices, K)."""
        return np.array(self.axes[axis].labels, dtype=np.float64)

    def table(
        self, name: str, keys: Mapping[str, Callable[[Any], Any] | None], values: Callable[..., Any]
    ) -> Table:
        """Table over views of axes; `values` gets one broadcastable array of class keys (numbers) per view.

        Views with a single class are evaluated but carry no dimension.
        """
        views, grids = [], []
        for position, (axis, key) in enumerate(keys.items()):
            view, kinds = View.of(self.axes[axis], key)
            views.append(view)
            shape = [1] * len(keys)
            shape[position] = len(kinds)
            grids.append(np.array(kinds, dtype=np.float64).reshape(shape))
        full = np.broadcast_to(values(*grids), tuple(v.classes for v in views)).astype(np.float64)
        keep = [i for i, v in enumerate(views) if v.classes > 1]
        return Table(name, tuple(views[i] for i in keep), np.array(full.reshape([views[i].classes for i in keep])))

    # Costs, each the compiled form of one function of planner.cost.

    def arithmetic(self) -> Table:
        run = self.question.run

        def values(m: Floats, ff: Floats, nanobatch: Floats) -> Floats:
            block = matmul.block_seconds(
                self.question.accelerator, run.d_model / m, run.d_ff / ff, nanobatch
            )
            return run.layers * (run.batch_tokens / nanobatch) * m * ff * block / self.ideal

        return self.table(
            "matmul", {"TPm": math.prod, "TPff": math.prod, "nanobatch": None}, values
        )

    def per_config(self, name: str, axis: str, values: Floats) -> Table:
        """Table with one value per choice of an axis."""
        size = self.axes[axis].size
        return Table(name, (View(axis, np.arange(size), size),), values)

    def tensor(self) -> Expression:
        run, a = self.question.run, self.question.accelerator
        scale = 4 * run.layers * run.batch_tokens * a.word_bytes / self.bandwidth / self.ideal
        levels = []
        for k in range(len(scale)):
            terms = []
            for axis, words in (("TPm", run.d_ff), ("TPff", run.d_model)):
                share = collectives.all_reduce_share(self.configs(axis))[:, k]
                if share.any() and scale[k] > 0:
                    terms.append(self.per_config(f"{axis} level {k}", axis, scale[k] * words * share))
            if terms:
                levels.append(Sum(tuple(terms)))
        return Max(tuple(levels)) if levels else Table.constant("no tensor traffic", 0.0)

    def _crossing_terms(self, name: str, cost: Floats, *, worst: bool) -> list[Table]:
        """Tables of sum_k Pr_k cost_k, by Abel summation over what happens above each level.

        Terms of the sum differ in which classes of PP and EP they need, which keeps each table small.
        """
        depth = self.question.run.layers
        crossings = collectives.expert_crossings_worst if worst else collectives.expert_crossings
        steps = np.diff(np.concatenate([[0.0], cost]))
        terms = []
        for k in range(len(cost)):
            if steps[k] == 0:
                continue

            def outer(label: Sequence[int], k: int = k) -> int:
                return math.prod(label[k:])

            def is_split(label: Sequence[int], k: int = k) -> int:
                return 2 if math.prod(label[k:]) > 1 else 1

            def values(pp: Floats, schedule: Floats, ep: Floats, step: float = float(steps[k])) -> Floats:
                v = np.maximum(schedule, 1)
                pipe = collectives.pipeline_crossings(pp[..., None], v, depth).sum(axis=-1)
                expert = crossings(ep[..., None]).sum(axis=-1)
                here = step * (1 - (1 - pipe) * (1 - expert))
                if worst:
                    here = np.where(schedule == ZERO_BUBBLE, 0.0, here)
                return np.where(pp * v > depth, np.inf, here)

            keys = {"PP": outer, "schedule": None, "EP": is_split if worst else outer}
            terms.append(self.table(f"{name} above level {k - 1}", keys, values))
        return terms

    def point_to_point(self) -> list[Table]:
        run, a = self.question.run, self.question.accelerator
        cost = 2 * (run.layers - 1) * run.batch_tokens * run.d_model * a.word_bytes / self.bandwidth / self.ideal
        return self._crossing_terms("point-to-point", cost, worst=False)

    def pipeline_latency(self) -> list[Expression]:
        """Latencies hidden by zero bubble, in units of the ideal time of one accelerator."""
        run = self.question.run
        terms: list[Expression] = []
        for axis in ("TPm", "TPff"):
            steps = 4 * run.layers * collectives.all_reduce_steps(self.configs(axis)) @ self.latency
            if steps.any():
                by_label = dict(zip(self.axes[axis].labels, steps, strict=True))

                def used(label: tuple[int, ...], by_label: dict[Any, float] = by_label) -> float:
                    return float(by_label[label])

                def values(seconds: Floats, exposed: Floats) -> Floats:
                    return seconds * exposed / self.ideal

                terms.append(
                    self.table(
                        f"{axis} latency",
                        {axis: used, "schedule": lambda s: int(s != ZERO_BUBBLE)},
                        values,
                    )
                )
        cost = 2 * (run.layers - 1) * self.latency / self.ideal
        return terms + list(self._crossing_terms("point-to-point latency", cost, worst=True))

    def data(self) -> tuple[Table, Table]:
        """Gradient all-reduce: bandwidth, and latency in units of the ideal time of one accelerator."""
        run, a = self.question.run, self.question.accelerator
        configs = self.configs("DP")
        share = collectives.all_reduce_share(configs)
        levels = 2 * share * run.parameters * a.word_bytes / self.bandwidth / self.ideal
        latency = 2 * collectives.all_reduce_steps(configs) @ self.latency / self.ideal
        return (
            self.per_config("data parallel", "DP", levels.max(axis=-1)),
            self.per_config("data parallel latency", "DP", latency),
        )

    def bubble(self) -> Table:
        depth = self.question.run.layers

        def values(pp: Floats, m: Floats, schedule: Floats) -> Floats:
            v, zero = np.maximum(schedule, 1), schedule == ZERO_BUBBLE
            good = (depth % (pp * v) == 0) & (m >= pipeline.min_microbatches(pp, zero))
            good &= zero | (pp > 1) | (v == 1)
            return np.where(good, pipeline.bubble_factor(pp, v, m, zero), np.inf)

        return self.table("bubble", {"PP": math.prod, "microbatches": None, "schedule": None}, values)

    # Rules.

    def equations(self) -> tuple[Equation, ...]:
        run = self.question.run
        shards = run.batch_tokens // run.experts
        primes = sorted(
            {p for n in (*self.question.axis_factors.values(), shards) for p in spaces.factorize(n)}
            | {p for n in self.axes["N"].labels for p in spaces.factorize(n)}
        )
        levels: dict[str, NDArray[np.int64]] = {}
        for axis in AXES:
            columns = list(zip(*self.axes[axis].labels, strict=True))
            levels[axis] = np.concatenate([_exponents(c, primes) for c in columns], axis=1)
        columns = list(zip(*self.level_sizes, strict=True))
        levels["N"] = -np.concatenate([_exponents(c, primes) for c in columns], axis=1)
        batch = {
            "DP": _exponents([math.prod(x) for x in self.axes["DP"].labels], primes),
            "microbatches": _exponents(self.axes["microbatches"].labels, primes),
            "nanobatch": _exponents(self.axes["nanobatch"].labels, primes),
        }
        rhs = _exponents([shards], primes)[0]
        return tuple(
            _drop_trivial(e)
            for e in (
                Equation("level products", levels, np.zeros(levels["N"].shape[1], dtype=np.int64)),
                Equation("batch", batch, rhs),
            )
        )

    def memory(self) -> Bound:
        """Weights on every replica fit: rank of DP among its values <= the last rank that N can hold.

        Ranks instead of bytes keep the comparison exact in every solver.
        """
        run, a = self.question.run, self.question.accelerator
        view, degrees = View.of(self.axes["DP"], math.prod)
        needed = memory.frontier_bytes(run.parameters, degrees, a.word_bytes)
        available = np.array(self.axes["N"].labels, dtype=np.float64) * a.memory_capacity
        last = np.searchsorted(needed, available, side="right") - 1
        rank = Table("DP rank", (view,), np.arange(len(degrees), dtype=np.float64))
        room = self.per_config("rank that fits", "N", -last.astype(np.float64))
        return Bound("memory", Sum((rank, room)), 0.0)

    def published_window(self) -> list[Bound]:
        """The published search's restrictions (frontier-model.md, e)."""
        run = self.question.run
        shards = run.batch_tokens // run.experts

        def tensor(m: Floats, ff: Floats) -> Floats:
            root = np.floor(np.sqrt(m * ff))
            return np.where((root <= ff) & (ff <= 4 * root), 0.0, np.inf)

        def microbatches(pp: Floats, dp: Floats, m: Floats, zero: Floats) -> Floats:
            shape = np.broadcast_shapes(pp.shape, dp.shape, m.shape, zero.shape)
            allowed = np.full(shape, np.inf)
            for i, p in enumerate(pp.ravel()):
                for j, d in enumerate(dp.ravel()):
                    runs = (shards // d) % m.ravel() == 0
                    for z, is_zero in enumerate(zero.ravel()):
                        least = pipeline.min_microbatches(int(p), bool(is_zero))
                        here = np.flatnonzero(runs & (m.ravel() >= least))[: 1 if is_zero else 4]
                        allowed[i, j, here, z] = 0.0
            return allowed

        def interleave(pp: Floats, schedule: Floats) -> Floats:
            whole = np.where(pp > 1, run.layers / pp, 1.0)
            return np.where((schedule == ZERO_BUBBLE) | (schedule == whole), 0.0, np.inf)

        def is_zero(schedule: int) -> int:
            return int(schedule == ZERO_BUBBLE)

        return [
            Bound("published TP window", self.table("TP window", {"TPm": math.prod, "TPff": math.prod}, tensor), 0.0),
            Bound(
                "published interleaving",
                self.table("v = L / PP", {"PP": math.prod, "schedule": None}, interleave),
                0.0,
            ),
            Bound(
                "published microbatches",
                self.table(
                    "smallest m",
                    {"PP": math.prod, "DP": math.prod, "microbatches": None, "schedule": is_zero},
                    microbatches,
                ),
                0.0,
            ),
        ]


def _drop_trivial(equation: Equation) -> Equation:
    """Without the components that no axis takes part in."""
    live = np.any([np.any(t != 0, axis=0) for t in equation.terms.values()], axis=0) | (equation.rhs != 0)
    return Equation(equation.name, {a: t[:, live] for a, t in equation.terms.items()}, equation.rhs[live])


def compile_frontier(question: FrontierQuestion) -> Program:
    """The program of a frontier question.

    Its objective is 1 / utilization, log2(N) above the smallest candidate, or training time over the time that
    the smallest candidate would take at peak, as the question's objective says.

    Raises
    ------
    InputError
        No cluster size in the asked range is a product of allowed degrees.
    """
    sizes = question.cluster_sizes
    if not sizes:
        low, high = question.accelerators
        asked = low if low == high else f"{low}..{high}"
        near = _nearest_sizes(question)
        raise InputError.of(
            "accelerators",
            asked,
            "no allowed layout uses a number of accelerators in this range (a product of degrees that divide the "
            f"model's dimensions, in whole network levels of {question.accelerator.level_sizes}); nearest: {near}",
        )
    c = _Compiler(question)
    n = np.array(sizes, dtype=np.float64)
    if question.deadline is None:
        enough, reference = 0.0, float(n[0])
    else:
        enough = question.deadline / (question.run.batches * c.ideal)
        reference = float(np.clip(1 / enough, n[0], n[-1]))
    data, data_latency = c.data()
    hop = c.pipeline_latency()
    flow = Max((c.arithmetic(), Sum((c.tensor(), *c.point_to_point()))))
    core: Expression = Product(c.bubble(), flow)

    def times(name: str, values: Floats, terms: Sequence[Expression]) -> list[Expression]:
        """The terms, times a value per cluster size; nothing if they are all zero.

        Latency terms are tiny and cluster sizes huge: both are scaled by a size in the range.
        """
        if not any(np.any(t.values[np.isfinite(t.values)]) for e in terms for t in e.tables()):
            return []
        scaled = Sum(tuple(e.map_tables(lambda t: Table(t.name, t.views, t.values * reference)) for e in terms))
        return [Product(c.per_config(name, "N", values / reference), scaled)]

    def total(work: Floats, latency: Floats) -> Expression:
        """Batch time with work terms and latency terms scaled per cluster size."""
        exposed = times("N for latency", latency, hop)
        tail = times("N for data-parallel latency", latency, [data_latency])
        if np.all(work == 1):
            bulk, gradient = core, data
        else:
            scale = c.per_config("1 / N", "N", work)
            bulk, gradient = Product(scale, core), Product(scale, data)
        if question.overlap_data:
            return Sum((Max((Sum((bulk, *exposed)), gradient)), *tail))
        return Sum((bulk, *exposed, gradient, *tail))

    inverse_utilization = total(np.ones_like(n), n)
    match question.objective:
        case Objective.UTILIZATION:
            objective = inverse_utilization
        case Objective.TIME:
            objective = total(n[0] / n, np.full_like(n, n[0]))
        case Objective.ACCELERATORS:
            objective = c.per_config("log2 N", "N", np.log2(n / n[0]))
    bounds = [c.memory()]
    if question.space is Space.PAPER:
        bounds += c.published_window()
    if question.deadline is not None:
        allowed = c.per_config("deadline", "N", -enough * n)
        bounds.append(Bound("deadline", Sum((inverse_utilization, allowed)), 0.0))
    order = ("N", "TPm", "TPff", "nanobatch", "PP", "EP", "DP", "microbatches", "schedule")
    return Program(
        f"frontier {question.run.flop:.3g} FLOP on {question.accelerator.name}",
        tuple(c.axes[name] for name in order),
        c.equations(),
        tuple(bounds),
        objective,
    )


def _nearest_sizes(question: FrontierQuestion) -> str:
    """Cluster sizes just outside the asked range, for a message."""
    low, high = question.accelerators
    wide = FrontierQuestion(question.run, question.accelerator, question.space, question.degrees)
    below = [n for n in wide.cluster_sizes if n < low][-1:]
    beyond = [n for n in wide.cluster_sizes if n > high][:1]
    return ", ".join(f"{n:,}" for n in below + beyond) or "none"


def decode(labels: Mapping[str, Any]) -> FrontierLayout:
    """The layout that a program's choices (labels by axis) stand for."""
    zero_bubble = labels["schedule"] == ZERO_BUBBLE
    return FrontierLayout(
        tp_m=labels["TPm"],
        tp_ff=labels["TPff"],
        pp=labels["PP"],
        dp=labels["DP"],
        ep=labels["EP"],
        microbatches=labels["microbatches"],
        interleave=1 if zero_bubble else labels["schedule"],
        schedule=Schedule.ZERO_BUBBLE if zero_bubble else Schedule.ONE_F_ONE_B,
    )
