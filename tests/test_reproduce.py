"""The published program's results: all of them where the data is, its headline figures anywhere."""

import json

import pytest
from click.testing import CliRunner

from cli import plan
from planner import scaling
from planner.catalogue import load_accelerator
from planner.errors import InputError
from planner.outcome import Status
from planner.plan import plan_frontier
from planner.question import FrontierQuestion, Objective
from planner.reproduce import find_reference, read_reference, reproduce
from planner.scaling import BatchLaw
from planner.spaces import Space
from planner.workload import frontier_run

COLUMNS = (
    "accelerator,sparse,d_model,d_ff,layers,experts,params,batch_tokens,training_flop,accelerators,utilization,"
    "train_seconds,TPm,TPff,PP,DP,EP,v,m,TPm_levels,TPff_levels,PP_levels,DP_levels,EP_levels,tp_seconds,"
    "dp_seconds,pp_ep_seconds,latency_seconds"
)
# arXiv 2411.01137: the H100 dense run of 6.45e24 FLOP.
ROW = (
    "h100-sxm,0,12288,49152,192,1,231928233984,7340032,6.454884686272446e+24,2048,0.6989935821907877,"
    "4557224.029640298,4,8,64,1,1,1,128,4x1,2x4,1x64,1x1,1x1,2564940.7252758527,0.0,140270.1959135232,"
    "1727.6050285714282"
)


@pytest.fixture(scope="module")
def references():
    try:
        find_reference()
    except InputError as error:
        pytest.skip(f"the published results are not here: {error}")
    return read_reference()


def test_all_published_layouts_evaluate_alike(references):
    comparison = reproduce(references, formulation=None)
    assert len(comparison.rows) == 112
    assert comparison.agrees
    assert comparison.disagreements() == []
    assert [s["evaluated"] for s in comparison.settings()] == [s["rows"] for s in comparison.settings()]


def test_some_published_runs_solve_alike(references):
    by_setting = {}
    for reference in references:
        by_setting.setdefault((reference.accelerator, reference.sparse), []).append(reference)
    few = [r for rows in by_setting.values() for r in rows[:2]]
    assert reproduce(few, formulation="enumeration").agrees


@pytest.mark.slow
def test_all_published_runs_solve_alike(references):
    assert reproduce(references, formulation="milp").disagreements() == []


DENSE, SPARSE = False, True
LAW, FIXED = BatchLaw.DEFAULT, BatchLaw.FIXED
slow = pytest.mark.slow

# arXiv 2411.01137 (frontier-model.md, g): width, its compute-optimal FLOP, and the utilization of the plan.
HEADLINE = [
    ("h100-sxm", DENSE, LAW, 12288, 6.45e24, 0.699),
    ("h100-sxm", DENSE, LAW, 20480, 1.12e26, 0.687),
    ("h100-sxm", DENSE, LAW, 30720, 1.01e27, 0.685),
    ("h100-sxm", DENSE, LAW, 36864, 2.85e27, 0.640),
    ("h100-sxm", DENSE, LAW, 45056, 8.30e27, 0.670),
    ("h100-sxm", DENSE, LAW, 53248, 2.05e28, 0.553),
    pytest.param("h100-sxm", DENSE, LAW, 73728, 1.34e29, 0.432, marks=slow),
    pytest.param("h100-sxm", DENSE, LAW, 106496, 1.04e30, 0.294, marks=slow),
    pytest.param("h100-sxm", DENSE, LAW, 163840, 9.07e30, 0.158, marks=slow),
    pytest.param("h100-sxm", DENSE, LAW, 196608, 2.71e31, 0.052, marks=slow),
]


def published(accelerator, sparse, law, width):
    run = frontier_run(d_model=width, sparse=sparse, batch_law=law)
    machine = load_accelerator(accelerator)
    return FrontierQuestion(run, machine, space=Space.PAPER, objective=Objective.ACCELERATORS)


@pytest.mark.parametrize(("accelerator", "sparse", "law", "width", "flop", "utilization"), HEADLINE)
def test_headline_figures(accelerator, sparse, law, width, flop, utilization):
    outcome = plan_frontier(published(accelerator, sparse, law, width), "enumeration")
    assert outcome.status is Status.OPTIMAL
    assert outcome.question.run.flop == pytest.approx(flop, rel=1e-2)
    assert round(outcome.plan.utilization, 3) == utilization


# The end of linear scaling: the first run at or under 80 % of the ceiling, and the run before it on the grid.
LINEAR = [
    ("h100-sxm", DENSE, LAW, 53248, 2.05e28),
    ("v100-sxm2", DENSE, LAW, 36864, 2.85e27),
    ("h100-sxm", SPARSE, LAW, 36864, 6.83e28),
    ("v100-sxm2", SPARSE, LAW, 20480, 1.57e27),
    ("h100-sxm", DENSE, FIXED, 36864, 2.85e27),
]


@pytest.mark.parametrize(("accelerator", "sparse", "law", "width", "flop"), LINEAR)
def test_end_of_linear_scaling(accelerator, sparse, law, width, flop):
    grid = scaling.PUBLISHED_WIDTHS
    here = plan_frontier(published(accelerator, sparse, law, width), "enumeration")
    before = plan_frontier(published(accelerator, sparse, law, grid[grid.index(width) - 1]), "enumeration")
    assert here.question.run.flop == pytest.approx(flop, rel=1e-2)
    assert here.plan.utilization <= 0.8 * here.ceiling < before.plan.utilization


# The last feasible run, and that the next one on the grid is infeasible.
LAST = [
    ("h100-sxm", DENSE, LAW, 196608, 2.71e31),
    ("v100-sxm2", DENSE, LAW, 196608, 2.71e31),
    ("h100-sxm", SPARSE, LAW, 114688, 1.00e32),
    ("v100-sxm2", SPARSE, LAW, 114688, 1.00e32),
    ("h100-sxm", DENSE, FIXED, 81920, 2.04e29),
]


@pytest.mark.slow
@pytest.mark.parametrize(("accelerator", "sparse", "law", "width", "flop"), LAST)
def test_last_feasible_run(accelerator, sparse, law, width, flop):
    grid = scaling.PUBLISHED_WIDTHS
    last = plan_frontier(published(accelerator, sparse, law, width), "enumeration")
    assert last.question.run.flop == pytest.approx(flop, rel=1e-2)
    assert last.status is Status.OPTIMAL
    beyond = published(accelerator, sparse, law, grid[grid.index(width) + 1])
    assert plan_frontier(beyond, "enumeration", advise=False).status is Status.INFEASIBLE


def test_one_published_row(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text(f"{COLUMNS}\n{ROW}\n")
    comparison = reproduce(read_reference(str(path)), formulation="enumeration")
    assert comparison.agrees
    result = CliRunner().invoke(plan, ["reproduce", str(path), "--evaluate-only", "--format", "json"])
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert (data["rows"], data["agrees"]) == (1, True)
    assert data["settings"][0]["solved"] is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0.6989935821907877", "0.6989935821917877"),
        ("2564940.7252758527", "2564940.7252858527"),
        (",2048,", ",4096,"),
        (",128,4x1", ",256,4x1"),
    ],
)
def test_disagreement_is_exit_1(old, new, tmp_path):
    path = tmp_path / "wrong.csv"
    path.write_text(f"{COLUMNS}\n{ROW.replace(old, new)}\n")
    arguments = ["reproduce", str(path), "--formulation", "enumeration"]
    result = CliRunner().invoke(plan, arguments)
    assert result.exit_code == 1
    assert "1 rows disagree" in result.stdout
    result = CliRunner().invoke(plan, [*arguments, "--format", "json"])
    assert len(json.loads(result.stdout)["disagreements"]) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no rows"),
        (f"{COLUMNS}\n", "has no rows"),
        ("a,b\n1,2\n", "lacks the columns DP_levels"),
        (f"{COLUMNS}\n{ROW[:40]}\n", "line 2"),
        (f"{COLUMNS}\n{ROW.replace(',192,', ',many,')}\n", "invalid literal"),
        (f"{COLUMNS}\n{ROW.replace('1x64', '1y64')}\n", "invalid literal"),
        (f"{COLUMNS}\n{ROW.replace('4x1', '4x1x1')}\n", "other levels than"),
        (f"{COLUMNS}\n{ROW.replace('1x64', '0x64')}\n", "other levels than"),
        (f"{COLUMNS}\n{ROW.replace('h100-sxm', 'h100')}\n", "no accelerator of this name"),
        (f"{COLUMNS}\n{ROW.replace('0.69899', 'nan0.69899')}\n", "could not convert"),
        (f"{COLUMNS}\n{ROW.replace('4557224.029640298', 'inf')}\n", "must be finite"),
    ],
)
def test_bad_reference_files(content, message, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    result = CliRunner().invoke(plan, ["reproduce", str(path), "--formulation", "enumeration"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_absent_data_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("SHARDPLAN_DATA", str(tmp_path))
    result = CliRunner().invoke(plan, ["reproduce"])
    assert result.exit_code == 2
    assert "set SHARDPLAN_DATA" in result.stderr
