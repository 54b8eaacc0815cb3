"""Real frontier questions: every formulation against plain enumeration of all layouts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import pytest

import formulations
from formulations.base import Options, Termination
from planner import check, counting
from planner.catalogue import load_accelerator
from planner.compile import compile_frontier, decode
from planner.program import Program
from planner.question import QUARTER, FrontierQuestion, Objective
from planner.spaces import Degrees, Space
from planner.workload import frontier_run
from tests.plain import Plain, enumerate_all

H100, V100, SUPERPOD = "h100-sxm", "v100-sxm2", "h100-sxm-superpod"
PAPER, FULL = Space.PAPER, Space.FULL


@dataclass(frozen=True)
class Instance:
    """A question in few words."""

    flop: float
    accelerator: str
    accelerators: int | tuple[int, int]
    sparse: bool = False
    space: Space = FULL
    degrees: Degrees = Degrees.POW2
    objective: Objective = Objective.UTILIZATION
    deadline: float | None = None
    overlap: bool = False

    def __str__(self) -> str:
        n = self.accelerators
        size = f"{n[0]}..{n[1]}" if isinstance(n, tuple) else str(n)
        kind = "sparse" if self.sparse else "dense"
        extra = "" if self.degrees is Degrees.POW2 else f"-{self.degrees}"
        return f"{self.flop:.0e}-{self.accelerator}-{kind}-{size}-{self.space}{extra}-{self.objective}"

    @property
    def question(self) -> FrontierQuestion:
        n = self.accelerators
        return FrontierQuestion(
            frontier_run(self.flop, sparse=self.sparse),
            load_accelerator(self.accelerator),
            space=self.space,
            degrees=self.degrees,
            objective=self.objective,
            deadline=self.deadline,
            accelerators=n if isinstance(n, tuple) else (n, n),
            overlap_data=self.overlap,
        )

    @property
    def sizes(self) -> list[int]:
        """Cluster sizes to try: N itself, or the published E * 2^i in the range."""
        n = self.accelerators
        if isinstance(n, int):
            return [n]
        e = frontier_run(self.flop, sparse=self.sparse).experts
        return [e << i for i in range(60) if n[0] <= e << i <= n[1]]


SMALL = [
    Instance(1e24, H100, 256),
    Instance(1e24, H100, 96, degrees=Degrees.SMOOTH),
    Instance(1e24, V100, 1024, space=PAPER),
    Instance(1e24, SUPERPOD, 256),
    Instance(1e24, H100, 64, sparse=True),
    Instance(1e24, SUPERPOD, 512, sparse=True, space=PAPER),
    Instance(1e25, V100, (1, 2**20), space=PAPER, objective=Objective.ACCELERATORS, deadline=QUARTER),
    Instance(1e26, H100, (1, 2**22), space=PAPER, deadline=QUARTER),
    Instance(1e27, H100, 2**18, space=PAPER, deadline=QUARTER),
    Instance(1e28, H100, 2**21, space=PAPER, deadline=QUARTER),
    Instance(1e30, H100, 2**30, space=PAPER, objective=Objective.TIME),
    Instance(1e31, H100, 2**30, space=PAPER),
    Instance(3e31, H100, 2**36, space=PAPER),
    Instance(1e28, V100, 2**20, space=PAPER, overlap=True),
]
LARGE = [
    Instance(1e25, SUPERPOD, 512),
    Instance(1e26, H100, 9 * 2**6, sparse=True),
    Instance(1e26, SUPERPOD, 9 * 2**12, sparse=True, space=PAPER, deadline=QUARTER),
    Instance(1e26, H100, (1, 2**20), sparse=True, space=PAPER, deadline=QUARTER),
    Instance(1e27, H100, 2**11),
    Instance(1e28, H100, 2**13),
    Instance(1e28, V100, 2**13, objective=Objective.TIME),
    Instance(1e31, H100, 56 * 2**24, sparse=True, space=PAPER),
    Instance(3e31, V100, 64 * 2**24, sparse=True, space=PAPER),
]
#: Layouts by the million: the plain enumeration takes longest.
SLOW = [
    Instance(1e29, H100, 2**15),
    Instance(1e28, SUPERPOD, (1, 2**23), sparse=True, space=PAPER, deadline=QUARTER),
    Instance(1e29, SUPERPOD, 2**26, space=PAPER, deadline=QUARTER),
    Instance(1e30, V100, 2**20, overlap=True),
    Instance(1e31, SUPERPOD, 2**30, space=PAPER),
    Instance(3e31, H100, 2**18),
]
EVERY = [*SMALL, *LARGE, *(pytest.param(x, marks=pytest.mark.slow) for x in SLOW)]
#: Unshrunk programs that are large, or at high FLOP, or with overlap, take the solvers several seconds each.
UNSHRUNK = [
    pytest.param(x, marks=pytest.mark.slow) if x.flop >= 1e30 or x.overlap or x in LARGE else x
    for x in SMALL + LARGE
]
NAMES = list(formulations.CATALOGUE)
MIXED = [name for name in NAMES if formulations.CATALOGUE[name].mixed_integer]


@lru_cache
def answer(instance: Instance) -> Plain:
    return enumerate_all(instance.question, instance.sizes)


@lru_cache
def program(instance: Instance) -> Program:
    return compile_frontier(instance.question)


def confirm(instance: Instance, name: str, *, presolve: bool) -> None:
    """Solve and compare; every value is recomputed from the layout by the cost functions."""
    question, exact = instance.question, answer(instance)
    assert math.isfinite(exact.best)
    solution = formulations.solve(name, program(instance), Options(presolve=presolve))
    assert solution.termination is Termination.OPTIMAL
    assert solution.assignment is not None
    assert solution.objective is not None
    assert solution.bound is not None
    layout = decode(program(instance).labels(solution.assignment))
    assert check.violations(question, layout) == []
    cost = check.cost_of(question, layout)
    found = {
        Objective.UTILIZATION: float(cost.batch[0] / cost.ideal[0]),
        Objective.TIME: float(cost.train[0]),
        Objective.ACCELERATORS: float(layout.accelerators),
    }[question.objective]
    assert found == pytest.approx(exact.best, rel=1e-9)
    # The program's own objective: the same up to a factor, or the logarithm of the cluster's size.
    bound, objective = solution.bound, solution.objective
    if question.objective is Objective.ACCELERATORS:
        assert 2 ** (objective - bound) == pytest.approx(1, abs=1e-8)
    else:
        assert bound == pytest.approx(objective, rel=1e-8)
        if question.objective is Objective.UTILIZATION:
            assert objective == pytest.approx(found, rel=1e-9)
    assert bound <= objective + 1e-12 * max(1.0, abs(objective))


def test_instances_cover_what_they_should() -> None:
    every = SMALL + LARGE  # what runs by default
    assert len(set(every)) == len(every) >= 20
    assert min(x.flop for x in every) == 1e24
    assert max(x.flop for x in every) == 3e31
    assert {x.sparse for x in every} == {False, True}
    assert {len(x.question.accelerator.network) for x in every} == {2, 3}
    assert {x.space for x in every} == {PAPER, FULL}
    assert {x.objective for x in every} == set(Objective)


@pytest.mark.parametrize("instance", EVERY, ids=str)
def test_count(instance: Instance) -> None:
    assert counting.count(program(instance)) == answer(instance).layouts


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("instance", EVERY, ids=str)
def test_optimum(instance: Instance, name: str) -> None:
    confirm(instance, name, presolve=True)


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("instance", UNSHRUNK, ids=str)
def test_optimum_without_presolve(instance: Instance, name: str) -> None:
    confirm(instance, name, presolve=False)
