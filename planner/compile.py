"""Compile a frontier question into a program: axes, cost tables, equations, bounds, objective.

Everything is divided by the accelerator-time that the batch's FLOP take at datasheet peak, so that the main
expression is N * batch / ideal = 1 / utilization (formulations.md, "Normalised form").

An axis of parallelism is a chain of axes of the program: its total degree, the product of its degrees from
level 1 up, from level 2 up, and so on (`suffix`). Every cost at a level is a table over two links of the
chain, so tables grow with the number of levels, not with the number of ways to split a degree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner import spaces
from planner.cost import collectives, matmul, memory, pipeline
from planner.errors import InputError
from planner.layout import AXES, FrontierLayout, Schedule
from planner.program import Axis, Bound, Equation, Expression, Max, Product, Program, Sum, Table, View
from planner.question import FrontierQuestion, Objective
from planner.spaces import Space

Floats = NDArray[np.float64]

#: Label of the zero-bubble schedule on the schedule axis; any other label is the v of 1F1B.
ZERO_BUBBLE = 0


def suffix(axis: str, k: int) -> str:
    """Name of the program's axis for the product of an axis' degrees at levels k and up."""
    return axis if k == 0 else f"{axis}[{k}:]"


class _Compiler:
    """Shared axes and constants of one compilation."""

    def __init__(self, question: FrontierQuestion) -> None:
        run, accelerator = question.run, question.accelerator
        self.question, self.run = question, run
        fixed = accelerator.level_sizes
        self.level_sizes = [spaces.level_sizes(n, fixed) or () for n in question.cluster_sizes]
        self.levels = range(len(fixed) + 1)
        self.shards = run.batch_tokens // run.experts
        axes = [Axis("N", tuple(question.cluster_sizes))]
        for name, totals in question.axis_totals.items():
            outer: Sequence[int] = totals
            for k in self.levels:
                if k > 0:
                    outer = sorted({t // p for t in outer for p in self.inner(k - 1) if t % p == 0})
                axes.append(Axis(suffix(name, k), tuple(outer)))
        axes.append(Axis("microbatches", tuple(spaces.divisors(self.shards))))
        axes.append(Axis("nanobatch", tuple(spaces.divisors(self.shards))))
        axes.append(Axis("schedule", (ZERO_BUBBLE, *spaces.divisors(run.layers))))
        self.axes = {a.name: a for a in axes}
        self.bandwidth = [level.bandwidth for level in accelerator.network]
        self.latency = [level.latency for level in accelerator.network]
        #: Accelerator-seconds of one batch at datasheet peak: what everything is divided by.
        self.ideal = run.flop_per_token * run.batch_tokens / accelerator.peak
        self.words = accelerator.word_bytes * run.batch_tokens / self.ideal

    def inner(self, k: int) -> list[int]:
        """Degrees an axis may have at level k, which has a fixed size."""
        return sorted({d for n in {sizes[k] for sizes in self.level_sizes} for d in spaces.divisors(n)})

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
        keep = tuple(v for v in views if v.classes > 1)
        return Table(name, keep, full.reshape([v.classes for v in keep]))

    def per_size(self, name: str, values: Floats) -> Table:
        """Table with one value per cluster size."""
        return self.table(name, {"N": None}, lambda n: values.reshape(n.shape))

    def per_level(self, name: str, axis: str, k: int, values: Callable[[Floats], Floats]) -> Table:
        """Table of what an axis costs at level k.

        `values` gets the degree at level k and the product above it, shape (..., 2): the cost functions need
        no more to tell what happens at a level.
        """
        if k == self.levels[-1]:
            return self.table(
                name, {suffix(axis, k): None}, lambda x: values(np.stack([x, np.ones_like(x)], axis=-1))
            )

        def pairs(here: Floats, above: Floats) -> Floats:
            here, above = np.broadcast_arrays(here, above)
            whole = np.isin(here / above, self.inner(k))
            return np.where(whole, values(np.stack([here / above, above], axis=-1)), np.inf)

        return self.table(name, {suffix(axis, k): None, suffix(axis, k + 1): None}, pairs)

    # Costs, each the compiled form of one function of planner.cost.

    def arithmetic(self) -> Table:
        """Matmul time over ideal; N, PP, EP and DP cancel but for the nanobatch."""
        run = self.run

        def values(m: Floats, ff: Floats, nanobatch: Floats) -> Floats:
            block = matmul.block_seconds(self.question.accelerator, run.d_model / m, run.d_ff / ff, nanobatch)
            return run.layers * (run.batch_tokens / nanobatch) * m * ff * block / self.ideal

        return self.table("matmul", {"TPm": None, "TPff": None, "nanobatch": None}, values)

    def tensor_levels(self) -> tuple[Expression, ...]:
        """Tensor-parallel traffic at each level."""
        levels = []
        for k in self.levels:
            terms = []
            for axis, words in (("TPm", self.run.d_ff), ("TPff", self.run.d_model)):
                scale = 4 * self.run.layers * self.words / self.bandwidth[k] * words
                terms.append(self.per_level(f"{axis} traffic, level {k}", axis, k, _shares(scale)))
            levels.append(Sum(tuple(terms)))
        return tuple(levels)

    def _crossings(self, name: str, cost: Floats, *, worst: bool) -> list[Table]:
        """Tables of sum_k Pr_k cost_k, by Abel summation over what happens above each level."""
        depth = self.run.layers
        crossings = collectives.expert_crossings_worst if worst else collectives.expert_crossings
        steps = np.diff(np.concatenate([[0.0], cost]))
        terms = []
        for k in self.levels:
            if steps[k] == 0:
                continue

            def values(pp: Floats, schedule: Floats, ep: Floats, step: float = float(steps[k])) -> Floats:
                v = np.maximum(schedule, 1)
                pipe = collectives.pipeline_crossings(pp[..., None], v, depth).sum(axis=-1)
                expert = crossings(ep[..., None]).sum(axis=-1)
                here = step * (1 - (1 - pipe) * (1 - expert))
                if worst:
                    here = np.where(schedule == ZERO_BUBBLE, 0.0, here)
                return np.where(pp * v > depth, np.inf, here)

            expert_key = (lambda degree: min(degree, 2)) if worst else None
            keys = {suffix("PP", k): None, "schedule": None, suffix("EP", k): expert_key}
            terms.append(self.table(f"{name} above level {k - 1}", keys, values))
        return terms

    def point_to_point(self) -> list[Table]:
        """Pipeline and expert traffic."""
        interfaces = 2 * (self.run.layers - 1) * self.run.d_model
        cost = np.array([interfaces * self.words / b for b in self.bandwidth])
        return self._crossings("point-to-point", cost, worst=False)

    def hop(self) -> list[Table]:
        """Latencies that zero bubble hides, over the ideal time of one accelerator."""
        terms = []
        for axis in ("TPm", "TPff"):
            for k in self.levels:
                each = 4 * self.run.layers * self.latency[k] / self.ideal
                table = self.per_level(f"{axis} latency, level {k}", axis, k, _steps(each))
                terms.append(self._unless_hidden(table))
        cost = 2 * (self.run.layers - 1) * np.array(self.latency) / self.ideal
        return terms + self._crossings("point-to-point latency", cost, worst=True)

    def _unless_hidden(self, table: Table) -> Table:
        """The table where latency is exposed, zero under zero bubble."""
        view, kinds = View.of(self.axes["schedule"], lambda s: int(s != ZERO_BUBBLE))
        exposed = np.array(kinds, dtype=np.float64)
        values = np.where(np.isinf(table.values)[..., None], np.inf, 0.0)
        finite = np.where(np.isinf(table.values), 0.0, table.values)
        return Table(table.name, (*table.views, view), values + finite[..., None] * exposed)

    def data_levels(self) -> tuple[Table, ...]:
        """Gradient all-reduce at each level."""
        scale = 2 * self.run.parameters * self.words / self.run.batch_tokens
        return tuple(
            self.per_level(f"DP traffic, level {k}", "DP", k, _shares(scale / self.bandwidth[k]))
            for k in self.levels
        )

    def data_latency(self) -> list[Table]:
        """Latency of the gradient all-reduce, over the ideal time of one accelerator."""
        return [
            self.per_level(f"DP latency, level {k}", "DP", k, _steps(2 * self.latency[k] / self.ideal))
            for k in self.levels
        ]

    def bubble(self) -> Table:
        """Bubble factor; forbids schedules that the pipeline cannot run."""
        depth = self.run.layers

        def values(pp: Floats, m: Floats, schedule: Floats) -> Floats:
            v, zero = np.maximum(schedule, 1), schedule == ZERO_BUBBLE
            good = (depth % (pp * v) == 0) & (m >= pipeline.min_microbatches(pp, zero))
            good &= zero | (pp > 1) | (v == 1)
            return np.where(good, pipeline.bubble_factor(pp, v, m, zero), np.inf)

        return self.table("bubble", {"PP": None, "microbatches": None, "schedule": None}, values)

    def complexity(self) -> Expression:
        """Axes in use, and below that the smaller degrees, the fewer microbatches, stages and outer links."""
        names = [a for a in self.axes if a not in ("N", "nanobatch")]
        small = 1 / (1 + sum(math.log2(max(self.axes[a].labels[-1], 1)) for a in names))

        def values(first: bool) -> Callable[[Floats], Floats]:
            return lambda x: (x > 1) * float(first) + small * np.log2(np.maximum(x, 1))

        return Sum(
            tuple(self.table(f"size of {a}", {a: None}, values(a in (*AXES, "schedule"))) for a in names)
        )

    # Rules.

    def equations(self) -> tuple[Equation, ...]:
        """Products of degrees, as sums of prime exponents: network levels from k up, and the batch."""
        numbers = {x for name in ("N", *AXES, "nanobatch") for x in self.axes[name].labels} | {self.shards}
        primes = sorted({p for n in numbers for p in spaces.factorize(n)})

        def exponents(of: Sequence[int]) -> NDArray[np.int64]:
            found = [spaces.factorize(n) for n in of]
            return np.array([[f.get(p, 0) for p in primes] for f in found], dtype=np.int64)

        def level(k: int) -> dict[str, NDArray[np.int64]]:
            """Exponents of the products over levels k and up."""
            terms = {suffix(axis, k): exponents(self.axes[suffix(axis, k)].labels) for axis in AXES}
            return terms | {"N": -exponents([math.prod(sizes[k:]) for sizes in self.level_sizes])}

        zero = np.zeros(len(primes), dtype=np.int64)
        equations = [Equation(f"accelerators, levels {k} and up", level(k), zero) for k in self.levels]
        for k in self.levels[:-1]:
            # Implied by the others, but each level's own product rules out partial assignments early.
            inner, outer = level(k), level(k + 1)
            terms = inner | {a: -t for a, t in outer.items() if a != "N"} | {"N": inner["N"] - outer["N"]}
            equations.append(Equation(f"accelerators, level {k}", terms, zero))
        batch = {axis: exponents(self.axes[axis].labels) for axis in ("DP", "microbatches", "nanobatch")}
        equations.append(Equation("batch", batch, exponents([self.shards])[0]))
        return tuple(_drop_trivial(e) for e in equations)

    def links(self) -> list[Bound]:
        """Each product divides the one a level further in, by a degree that the level can hold."""
        return [
            Bound(
                f"{axis} at level {k}",
                self.per_level(f"{axis} at level {k}", axis, k, lambda x: np.zeros(x.shape[:-1])),
                0.0,
            )
            for axis in AXES
            for k in self.levels[:-1]
        ]

    def schedules(self) -> Bound:
        """The schedules that a pipeline can run, for programs in which the bubble costs nothing."""
        bubble = self.bubble()
        rule = np.where(np.isinf(bubble.values), np.inf, 0.0)
        return Bound("schedule", Table("schedule", bubble.views, rule), 0.0)

    def memory(self) -> Bound:
        """Weights on every replica fit: rank of DP among its values <= the last rank that N can hold.

        Ranks instead of bytes keep the comparison exact in every solver.
        """
        a = self.question.accelerator
        needed = memory.frontier_bytes(self.run.parameters, self.axes["DP"].labels, a.word_bytes)
        available = np.array(self.axes["N"].labels, dtype=np.float64) * a.memory_capacity
        last = np.searchsorted(needed, available, side="right") - 1
        rank = self.table("DP rank", {"DP": None}, lambda d: np.arange(d.size, dtype=np.float64))
        return Bound("memory", Sum((rank, self.per_size("DP rank that fits", -last.astype(np.float64)))), 0.0)

    def published_window(self) -> list[Bound]:
        """The published search's restrictions (frontier-model.md, e)."""

        def tensor(m: Floats, ff: Floats) -> Floats:
            root = np.floor(np.sqrt(m * ff))
            return np.where((root <= ff) & (ff <= 4 * root), 0.0, np.inf)

        def interleave(pp: Floats, schedule: Floats) -> Floats:
            whole = np.where(pp > 1, self.run.layers / pp, 1.0)
            return np.where((schedule == ZERO_BUBBLE) | (schedule == whole), 0.0, np.inf)

        def microbatches(pp: Floats, dp: Floats, m: Floats, is_zero: Floats) -> Floats:
            allowed = np.full(np.broadcast_shapes(pp.shape, dp.shape, m.shape, is_zero.shape), np.inf)
            for i, j, z in np.ndindex(pp.size, dp.size, is_zero.size):
                zero = bool(is_zero.flat[z])
                runs = (self.shards // dp.flat[j] % m.ravel() == 0) & (
                    m.ravel() >= pipeline.min_microbatches(pp.flat[i], zero)
                )
                allowed[i, j, np.flatnonzero(runs)[: 1 if zero else 4], z] = 0.0
            return allowed

        def zero(schedule: int) -> int:
            return int(schedule == ZERO_BUBBLE)

        rules = (
            self.table("TPff window", {"TPm": None, "TPff": None}, tensor),
            self.table("v = L / PP", {"PP": None, "schedule": None}, interleave),
            self.table(
                "smallest m", {"PP": None, "DP": None, "microbatches": None, "schedule": zero}, microbatches
            ),
        )
        return [Bound(f"published {rule.name}", rule, 0.0) for rule in rules]


def _shares(scale: float) -> Callable[[Floats], Floats]:
    """Bandwidth cost of an all-reduce at a level, by `scale` per word share."""
    return lambda x: np.asarray(scale * collectives.all_reduce_share(x)[..., 0])


def _steps(each: float) -> Callable[[Floats], Floats]:
    """Latency cost of an all-reduce at a level, `each` per level that takes part."""
    return lambda x: np.asarray(each * collectives.all_reduce_steps(x)[..., 0])


def _drop_trivial(equation: Equation) -> Equation:
    """Without the components that no axis takes part in."""
    live = np.any([np.any(t != 0, axis=0) for t in equation.terms.values()], axis=0) | (equation.rhs != 0)
    return Equation(equation.name, {a: t[:, live] for a, t in equation.terms.items()}, equation.rhs[live])


def _scaled(terms: Sequence[Table], by: float) -> Sum:
    return Sum(tuple(Table(t.name, t.views, t.values * by) for t in terms))


def compile_frontier(question: FrontierQuestion) -> Program:
    """The program of a frontier question.

    Its objective is 1 / utilization, log2(N) above the smallest candidate, or training time over the time
    that the smallest candidate would take at peak, as the question's objective says.

    Raises
    ------
    InputError
        No cluster size in the asked range is a product of allowed degrees.
    """
    sizes = question.cluster_sizes
    if not sizes:
        low, high = question.accelerators
        raise InputError.of(
            "accelerators",
            low if low == high else f"{low}..{high}",
            "no allowed layout uses a number of accelerators in this range (a product of degrees that divide "
            f"the model's dimensions, in whole network levels of {question.accelerator.level_sizes}); "
            f"nearest: {_nearest_sizes(question)}",
        )
    c = _Compiler(question)
    n = np.array(sizes, dtype=np.float64)
    # Latency terms are tiny and cluster sizes huge: both are scaled by a size in the range.
    enough, reference = 0.0, float(n[0])
    if question.deadline is not None:
        enough = question.deadline / (question.run.batches * c.ideal)
        reference = float(np.clip(1 / enough, n[0], n[-1]))
    hop, tail = _scaled(c.hop(), reference), _scaled(c.data_latency(), reference)
    tensor, point, gradients = c.tensor_levels(), c.point_to_point(), c.data_levels()
    data = Max(gradients)
    flow = Max((c.arithmetic(), Sum((Max(tensor), *point))))
    core: Expression = Product(c.bubble(), flow)

    def total(work: Floats | None, latency: Floats) -> Expression:
        """Batch time, with work terms and latency terms scaled per cluster size."""
        bulk: Expression = core
        gradient: Expression = data
        if work is not None:
            scale = c.per_size("1 / N", work)
            bulk, gradient = Product(scale, core), Product(scale, data)
        exposed = Product(c.per_size("N for latency", latency / reference), hop)
        last = Product(c.per_size("N for DP latency", latency / reference), tail)
        if question.overlap_data:
            return Sum((Max((Sum((bulk, exposed)), gradient)), last))
        return Sum((bulk, exposed, gradient, last))

    inverse_utilization = total(None, n)
    match question.objective:
        case Objective.UTILIZATION:
            objective = inverse_utilization
        case Objective.TIME:
            objective = total(n[0] / n, np.full_like(n, n[0]))
        case Objective.ACCELERATORS:
            objective = c.per_size("log2 N", np.log2(n / n[0]))
    bounds = [*c.links(), c.memory()]
    if question.space is Space.PAPER:
        bounds += c.published_window()
    if question.deadline is not None:
        allowed = c.per_size("deadline", -enough * n)
        bounds.append(Bound("deadline", Sum((inverse_utilization, allowed)), 0.0))
    elif question.objective is Objective.ACCELERATORS:
        bounds.append(c.schedules())
    order, other = _branching_orders(c.levels)
    return Program(
        f"frontier {question.run.flop:.3g} FLOP on {question.accelerator.name}",
        tuple(c.axes[name] for name in order),
        c.equations(),
        tuple(bounds),
        objective,
        (other,),
        (Sum((*tensor, *point, *gradients)), c.complexity()),
    )


def _branching_orders(levels: Sequence[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Orders for tree searches; which is better depends on what binds (docs/formulations.md).

    Products over the outer levels first: the slow network decides most. Or total degrees first: they decide
    arithmetic, bubble and memory. With up to two levels the former is better more often.
    """

    def layer(k: int) -> list[str]:
        return [suffix(axis, k) for axis in ("DP", "PP", "TPm", "TPff", "EP")]

    rest = ["nanobatch", "microbatches", "schedule"]
    outer = [name for k in reversed(levels[1:]) for name in layer(k)]
    outer_first, totals_first = ("N", *outer, *layer(0), *rest), ("N", *layer(0), *rest, *outer)
    return (outer_first, totals_first) if len(levels) <= 2 else (totals_first, outer_first)


def _nearest_sizes(question: FrontierQuestion) -> str:
    """Cluster sizes just outside the asked range, for a message."""
    low, high = question.accelerators
    wide = FrontierQuestion(question.run, question.accelerator, question.space, question.degrees)
    below = [n for n in wide.cluster_sizes if n < low][-1:]
    beyond = [n for n in wide.cluster_sizes if n > high][:1]
    return ", ".join(f"{n:,}" for n in below + beyond) or "none"


def decode(labels: Mapping[str, Any]) -> FrontierLayout:
    """The layout that a program's choices (labels by axis) stand for."""
    count = sum(1 for name in labels if name.startswith("PP"))

    def degrees(axis: str) -> tuple[int, ...]:
        chain = [labels[suffix(axis, k)] for k in range(count)] + [1]
        return tuple(chain[k] // chain[k + 1] for k in range(count))

    zero_bubble = labels["schedule"] == ZERO_BUBBLE
    return FrontierLayout(
        tp_m=degrees("TPm"),
        tp_ff=degrees("TPff"),
        pp=degrees("PP"),
        dp=degrees("DP"),
        ep=degrees("EP"),
        microbatches=labels["microbatches"],
        interleave=1 if zero_bubble else labels["schedule"],
        schedule=Schedule.ZERO_BUBBLE if zero_bubble else Schedule.ONE_F_ONE_B,
    )
