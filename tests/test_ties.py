"""Among optimal assignments the tie-breakers decide, the same way for every formulation."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import formulations
from formulations.base import Options, Termination
from planner.catalogue import load_accelerator
from planner.compile import compile_frontier, decode
from planner.cost.frontier import frontier_cost
from planner.program import Expression, Max, Program, Sum, Table, View
from planner.question import QUARTER, FrontierQuestion
from planner.spaces import Space
from planner.workload import frontier_run
from tests.plain import ROUNDING, blocks
from tests.programs import random_program

NAMES = list(formulations.CATALOGUE)


def with_ties(seed: int) -> Program:
    """A random program whose objective and tie-breakers have few values."""
    program, rng = random_program(seed), np.random.default_rng(seed)

    def coarse() -> Expression:
        tables = []
        for axis in program.axes:
            view = View(axis.name, np.arange(axis.size), axis.size)
            tables.append(Table(axis.name, (view,), rng.integers(0, 3, axis.size).astype(np.float64)))
        return Max((Sum(tuple(tables)), *tables))

    return replace(program, bounds=(), objective=Max((coarse(), coarse())), tie_breakers=(coarse(), coarse()))


def lexicographic(program: Program) -> tuple[float, ...] | None:
    """The least objective, then the least of each tie-breaker, by looking at everything."""
    rows = np.array(list(itertools.product(*(range(a.size) for a in program.axes))), dtype=np.int64)
    at = program.choices(rows)
    left = program.feasible(at)
    out: list[float] = []
    for expression in (program.objective, *program.tie_breakers):
        if not left.any():
            return None
        values = np.broadcast_to(expression.evaluate(at), (len(rows),))
        out.append(float(values[left].min()))
        left = left & (values <= out[-1])
    return tuple(out)


@pytest.mark.parametrize("name", NAMES)
def test_random_programs(name: str) -> None:
    decided = 0
    for seed in range(60):
        program = with_ties(seed)
        expected = lexicographic(program)
        solution = formulations.solve(name, program, Options())
        if expected is None:
            assert solution.termination is Termination.INFEASIBLE
            continue
        assert solution.assignment is not None
        at = program.choices(solution.assignment)
        assert program.feasible(at)[0]
        found = [float(np.max(e.evaluate(at))) for e in (program.objective, *program.tie_breakers)]
        assert found == list(expected), seed
        without = formulations.solve(name, program, Options(ties=False)).assignment
        decided += solution.assignment != without
    assert decided > 5


QUESTIONS = [
    FrontierQuestion(
        frontier_run(1e24),
        load_accelerator("h100-sxm"),
        space=Space.PAPER,
        deadline=QUARTER,
        accelerators=(1024, 4096),
    ),
    FrontierQuestion(
        frontier_run(1e24, sparse=True), load_accelerator("h100-sxm"), deadline=None, accelerators=(64, 64)
    ),
    FrontierQuestion(
        frontier_run(1e25), load_accelerator("h100-sxm-superpod"), deadline=None, accelerators=(256, 256)
    ),
]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.accelerator.name)
def test_least_communication(question: FrontierQuestion) -> None:
    best, least = np.inf, np.inf
    for n in question.cluster_sizes:
        for layouts in blocks(question, n):
            cost = frontier_cost(question.run, question.accelerator, layouts)
            good = cost.memory_needed <= cost.memory_available * (1 + ROUNDING)
            if question.deadline is not None:
                good &= cost.train <= question.deadline * (1 + ROUNDING)
            value = np.where(good, cost.batch / cost.ideal, np.inf)
            traffic = cost.tensor_levels.sum(-1) + cost.point_to_point + cost.data_levels.sum(-1)
            traffic = traffic * layouts.accelerators
            if value.min() < best * (1 - 1e-12):
                best, least = float(value.min()), np.inf
            least = min(least, float(traffic[value <= best * (1 + 1e-12)].min(initial=np.inf)))
    program = compile_frontier(question)
    layouts = set()
    for name in NAMES:
        solution = formulations.solve(name, program, Options())
        assert solution.assignment is not None
        layouts.add(decode(program.labels(solution.assignment)))
    assert len(layouts) == 1
    (layout,) = layouts
    from planner.check import cost_of

    cost = cost_of(question, layout)
    traffic = cost.tensor_levels.sum() + cost.point_to_point[0] + cost.data_levels.sum()
    assert traffic * layout.accelerators == pytest.approx(least, rel=1e-9)
    assert cost.utilization[0] == pytest.approx(1 / best, rel=1e-12)
