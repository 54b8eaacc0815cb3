"""What the free space is worth: figures that prototypes reached, met here with a proof."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.catalogue import load_accelerator
from planner.outcome import Outcome, Status
from planner.plan import plan_frontier
from planner.question import FrontierQuestion, Objective
from planner.spaces import Space
from planner.workload import frontier_run


def proven(question: FrontierQuestion) -> Outcome:
    outcome = plan_frontier(question, count=False)
    assert outcome.status is Status.OPTIMAL
    assert outcome.plan is not None
    return outcome


# Accelerator, width on the published grid, sparse; utilization and accelerators as printed (the published
# program's own: .687 on 32,768, .648 on 2.10e6, .445 on 6.71e7, .279 on 1.07e9, .158 on 8.59e9, .315, .571).
TARGETS = [
    ("h100-sxm", 20480, False, 0.697, 23040),  # 1.1e26 FLOP
    ("h100-sxm", 40960, False, 0.676, 1.31e6),  # 5.7e27
    ("h100-sxm", 81920, False, 0.533, 5.03e7),  # 2.0e29
    ("h100-sxm", 114688, False, 0.321, 6.17e8),  # 1.4e30
    ("h100-sxm", 163840, False, 0.219, 5.37e9),  # 9.1e30
    ("h100-sxm", 65536, True, 0.331, 9.44e8),  # 2.3e30
    ("h100-sxm", 40960, True, 0.602, 5.14e7),  # 1.6e29
    ("h100-sxm-superpod", 40960, True, 0.648, 3.21e7),  # 1.6e29
]


@pytest.mark.parametrize(("accelerator", "width", "sparse", "utilization", "accelerators"), TARGETS)
def test_free_cluster_size(
    accelerator: str, width: int, sparse: bool, utilization: float, accelerators: float
) -> None:
    run = frontier_run(d_model=width, sparse=sparse)
    plan = proven(FrontierQuestion(run, load_accelerator(accelerator))).plan
    assert plan is not None
    assert plan.utilization == pytest.approx(utilization, abs=5.01e-4)
    assert plan.accelerators == pytest.approx(accelerators, rel=5e-3)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("exponent", [25, 26, 27, 28, 29, 30, pytest.param(31, marks=pytest.mark.slow)])
def test_never_worse_than_the_published_search(exponent: int, sparse: bool) -> None:
    run = frontier_run(10.0**exponent, sparse=sparse)
    question = FrontierQuestion(run, load_accelerator("h100-sxm"))
    published = replace(question, space=Space.PAPER, objective=Objective.ACCELERATORS)
    ours, theirs = proven(question).plan, proven(published).plan
    assert ours is not None
    assert theirs is not None
    assert ours.utilization >= theirs.utilization * (1 - 1e-12)
