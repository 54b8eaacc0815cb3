"""Outcomes: losses that add up, the JSON form and its schema, the table."""

import json
import math
from dataclasses import replace

import jsonschema
import numpy as np
import pytest

from formulations.base import Options, Solution, Termination
from planner import counting
from planner.catalogue import load_accelerator
from planner.compile import compile_frontier
from planner.errors import InputError, RefutedError, SolverError
from planner.losses import LOSS_NAMES
from planner.outcome import Status
from planner.plan import evaluate_frontier, plan_frontier
from planner.question import FrontierQuestion, Objective
from planner.report import json as report_json
from planner.report import table
from planner.spaces import Degrees, Space
from planner.workload import frontier_run
from tests.test_check import DENSE, EXPERTS, GOOD, ONE_F_ONE_B, SPARSE

H100 = load_accelerator("h100-sxm")
VALIDATOR = jsonschema.Draft202012Validator(report_json.schema())
SMALL = FrontierQuestion(frontier_run(1e22), H100, degrees=Degrees.POW2)
LEVELS = {
    "superpod": load_accelerator("h100-sxm-superpod"),
    "one level": load_accelerator("h100-sxm-global-nvlink"),
}


def valid(outcome):
    data = json.loads(report_json.render(outcome))
    VALIDATOR.validate(data)
    return data


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(report_json.schema())


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("accelerator", ["h100-sxm", "v100-sxm2", "h100-sxm-low-latency", "gb200-nvl72"])
@pytest.mark.parametrize(
    ("question", "layout"),
    [
        (DENSE, GOOD),
        (DENSE, ONE_F_ONE_B),
        (SPARSE, EXPERTS),
        (DENSE, GOOD.model_copy(update={"tp_m": (1, 8), "tp_ff": (8, 32)})),
        (DENSE, GOOD.model_copy(update={"dp": (1, 2048), "microbatches": 128})),
    ],
)
def test_losses_add_up(question, layout, accelerator, overlap):
    question = replace(
        question,
        accelerator=load_accelerator(accelerator),
        overlap_data=overlap,
        deadline=None,
        degrees=Degrees.ANY,
    )
    outcome = evaluate_frontier(question, layout)
    found = outcome.plan
    assert set(found.losses) == set(LOSS_NAMES)
    assert min(found.losses.values()) >= 0
    lost = math.fsum(found.losses.values())
    assert outcome.ceiling - lost == pytest.approx(found.utilization, rel=1e-12)


def test_overlap_loses_only_what_sticks_out():
    layout = GOOD.model_copy(update={"dp": (1, 256), "pp": (1, 1), "microbatches": 2})
    apart = evaluate_frontier(replace(DENSE, deadline=None), layout).plan
    hidden = evaluate_frontier(replace(DENSE, deadline=None, overlap_data=True), layout).plan
    assert hidden.losses["data"] == 0 < apart.losses["data"]
    assert hidden.losses["latency"] > 0


def test_network_losses_are_split_in_proportion():
    layout = GOOD.model_copy(update={"tp_m": (1, 8), "tp_ff": (8, 32)})
    found = evaluate_frontier(replace(DENSE, deadline=None), layout).plan
    seconds = found.seconds_per_batch
    assert found.binding.flow == "network"
    ratio = seconds["tensor"] / seconds["point_to_point"]
    assert found.losses["tensor"] / found.losses["pipeline_expert"] == pytest.approx(ratio)
    assert "the network limits the flow" in found.binding.text


def test_nothing_sent_has_no_busiest_level():
    layout = GOOD.model_copy(update={"tp_m": (1, 1), "tp_ff": (1, 1), "pp": (1, 1), "microbatches": 2})
    found = evaluate_frontier(replace(DENSE, deadline=None), layout).plan
    assert found.binding.level is None
    assert found.losses["tensor"] == found.losses["data"] == 0


def test_evaluation_names_what_is_broken():
    outcome = evaluate_frontier(replace(DENSE, deadline=1.0), GOOD)
    assert outcome.status is Status.INFEASIBLE
    assert "deadline" in outcome.detail
    data = valid(outcome)
    assert data["layout"]["PP"] == {"degree": 64, "levels": [1, 64]}
    assert data["termination"] == "evaluated"
    with pytest.raises(InputError):
        evaluate_frontier(replace(DENSE, accelerator=LEVELS["superpod"]), GOOD)


@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize("space", list(Space))
def test_plans(objective, space):
    question = replace(SMALL, objective=objective, space=space, accelerators=(1, 64))
    outcome = plan_frontier(question, "enumeration")
    assert outcome.status is Status.OPTIMAL
    assert outcome.gap <= 1e-6
    data = valid(outcome)
    value = {"utilization": outcome.plan.utilization, "accelerators": outcome.plan.accelerators}
    assert data["bound"] == pytest.approx(value.get(objective.value, outcome.plan.days), rel=1e-6)
    assert data["space_size"] == counting.count(compile_frontier(question))
    assert data["seconds"]["total"] >= data["seconds"]["solve"] >= 0


def test_fewest_accelerators_then_fastest():
    fewest = plan_frontier(replace(SMALL, objective=Objective.ACCELERATORS), "enumeration").plan
    pinned = replace(SMALL, accelerators=(fewest.accelerators, fewest.accelerators))
    assert plan_frontier(pinned, "enumeration").plan.utilization == pytest.approx(
        fewest.utilization, rel=1e-12
    )
    fewer = replace(SMALL, accelerators=(1, fewest.accelerators - 1))
    assert plan_frontier(fewer, "enumeration", advise=False).status is Status.INFEASIBLE


@pytest.mark.parametrize("accelerator", LEVELS.values(), ids=LEVELS.keys())
def test_other_networks(accelerator):
    outcome = plan_frontier(replace(SMALL, accelerator=accelerator, accelerators=(1, 64)), "enumeration")
    assert len(valid(outcome)["layout"]["DP"]["levels"]) == len(accelerator.network)
    assert "utilization" in table.render(outcome)


def test_too_short_a_deadline():
    question = replace(SMALL, deadline=86400.0, accelerators=(1, 8))
    outcome = plan_frontier(question, "enumeration", Options(time_limit=60), shape=frontier_run)
    assert outcome.status is Status.INFEASIBLE
    assert outcome.plan is None
    data = valid(outcome)
    assert "deadline" in data["advice"]["limits"]
    assert "accelerators" in data["advice"]["limits"]
    by = {n.what: n for n in outcome.advice.nearest}
    assert by["days"].days > 1
    assert by["flop_same_model"].flop == pytest.approx(1e22 / by["days"].days)
    assert by["accelerators"].accelerators > 8
    assert by["flop"].flop < 1e22
    assert by["flop"].days <= 1
    assert "deadline" in table.render(outcome)


def test_too_little_memory():
    small = H100.model_copy(update={"memory_capacity": 1e6})
    question = replace(SMALL, accelerator=small, deadline=None, accelerators=(1, 8))
    outcome = plan_frontier(question, "enumeration", Options(time_limit=30))
    assert outcome.status is Status.INFEASIBLE
    assert "memory" in outcome.advice.limits
    assert "weights and optimizer state" in outcome.advice.message


def fake(monkeypatch, change):
    """Replace the formulation by one that changes what the oracle says."""
    import formulations
    from formulations.enumeration import solve

    def lying(program, options):
        return change(program, solve(program, options))

    monkeypatch.setattr(formulations, "load", lambda name: lying)


QUICK = replace(SMALL, accelerators=(8, 8))


def test_a_wrong_objective_is_refuted(monkeypatch):
    fake(monkeypatch, lambda program, s: replace(s, objective=s.objective * 1.001))
    with pytest.raises(RefutedError, match="not the claimed"):
        plan_frontier(QUICK, "enumeration")


def test_a_wrong_layout_is_refuted(monkeypatch):
    def change(program, solution):
        rows = np.array([solution.assignment] * program.axis("DP").size)
        rows[:, [a.name for a in program.axes].index("DP")] = np.arange(len(rows))
        bad = rows[~program.allowed(program.choices(rows))]
        return replace(solution, assignment=tuple(int(x) for x in bad[0]))

    fake(monkeypatch, change)
    with pytest.raises(RefutedError):
        plan_frontier(QUICK, "enumeration")


@pytest.mark.parametrize("deadline", [None, SMALL.deadline])
def test_a_wrong_claim_of_infeasibility_is_refuted(monkeypatch, deadline):
    def change(program, solution):
        whole = program.axis("N").size > 1
        return Solution(Termination.INFEASIBLE, None, None, 0.0) if whole else solution

    fake(monkeypatch, change)
    with pytest.raises(RefutedError, match="the claim that there is no plan does not hold"):
        plan_frontier(replace(SMALL, deadline=deadline, objective=Objective.TIME), "enumeration")


@pytest.mark.parametrize("termination", [Termination.OPTIMAL, Termination.FAILED])
def test_failed_solvers(monkeypatch, termination):
    fake(monkeypatch, lambda program, s: Solution(termination, None, None, None, "no luck"))
    with pytest.raises(SolverError):
        plan_frontier(QUICK, "enumeration")


def test_crashed_solvers(monkeypatch):
    def crash(program, solution):
        raise RuntimeError("segmentation something")

    fake(monkeypatch, crash)
    with pytest.raises(SolverError, match="segmentation something"):
        plan_frontier(QUICK, "enumeration")


@pytest.mark.parametrize(
    "termination", [Termination.TIME_LIMIT, Termination.INTERRUPTED, Termination.MEMORY_LIMIT]
)
def test_stopped_early(monkeypatch, termination):
    fake(monkeypatch, lambda program, s: replace(s, termination=termination, bound=s.objective * 0.9))
    outcome = plan_frontier(QUICK, "enumeration")
    assert outcome.status is Status.FEASIBLE
    assert 1e-6 < outcome.gap <= 0.1
    assert valid(outcome)["termination"] == termination.value
    assert "feasible" in table.render(outcome)
    fake(monkeypatch, lambda program, s: Solution(termination, None, None, s.bound))
    outcome = plan_frontier(QUICK, "enumeration")
    assert outcome.status is Status.NO_PLAN
    assert valid(outcome)["utilization"] is None
    assert "no plan" in table.render(outcome)


def test_a_loose_gap_is_no_proof(monkeypatch):
    fake(monkeypatch, lambda program, s: replace(s, bound=s.objective * 0.99))
    outcome = plan_frontier(QUICK, "enumeration", Options(gap=0.05))
    assert outcome.status is Status.FEASIBLE
    assert outcome.detail == "stopped within the asked gap"


@pytest.mark.parametrize("accelerator", ["h100-sxm", *LEVELS])
def test_the_table_is_one_screen_and_adds_up(accelerator):
    machine = LEVELS.get(accelerator, H100)
    question = replace(SMALL, accelerator=machine, accelerators=(1, 64))
    text = table.render(plan_frontier(question, "enumeration"))
    lines = text.splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in text
    start = next(i for i, line in enumerate(lines) if line.startswith("ceiling"))
    figures = []
    for line in lines[start : start + 2 + len(LOSS_NAMES)]:
        figures.append(round(100 * float(next(w for w in line.split() if w.endswith("%")).rstrip("%"))))
    assert sum(figures[:-1]) == figures[-1]


def test_rounded_parts_add_up():
    rng = np.random.default_rng(1)
    for _ in range(200):
        parts = rng.uniform(0, 0.1, 6) * rng.integers(0, 2, 6)
        start = parts.sum() + rng.uniform(0, 0.5)
        assert round(start * 1e4) - sum(table.rounded(start, list(parts))) == round(
            (start - parts.sum()) * 1e4
        )


def test_unknown_formulation():
    with pytest.raises(InputError, match="known are milp"):
        plan_frontier(QUICK, "oracle")
