"""The benchmark measures in processes of its own and appends what it finds; no time is asserted."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli import plan
from planner import bench
from planner.request import Reader


def run(*typed: Any) -> Result:
    return CliRunner().invoke(plan, ["bench", *map(str, typed)], prog_name="plan")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.json"
    questions = [
        {"name": "tiny", "flop": "1e22", "space": "paper"},
        {"name": "none", "flop": "1e22", "space": "paper", "days": "0.001", "sparse": True},
    ]
    path.write_text(json.dumps(questions))
    return path


def test_everything_is_measured_and_appended(tmp_path: Path, tiny: Path) -> None:
    names = "enumeration,milp"
    for target in (tmp_path / "rows.csv", tmp_path / "rows.jsonl"):
        result = run("--instances", tiny, "--formulations", names, "--format", "json", "--output", target)
        assert result.exit_code == 0, result.stderr
        report = json.loads(result.stdout)
        assert report["agrees"] is True
        rows = report["rows"]
        assert [r["what"] for r in rows] == ["help"] * bench.HELP_RUNS + ["cold"] + ["solve"] * 4
        assert all(r["peak_bytes"] > 1e6 and r["cpu_seconds"] > 0 and r["wall_seconds"] > 0 for r in rows)
        assert [r["formulation"] for r in rows[-4:]] == ["milp", "enumeration"] * 2
        for r in rows[-5:-2]:
            assert (r["status"], r["check"]) == ("optimal", "confirmed")
            assert r["space_size"] > 1
            assert r["gap"] <= 1e-8
            assert r["total_seconds"] >= r["solve_seconds"] >= 0
        assert rows[-4]["ratio"] == 1
        assert rows[-3]["ratio"] > 0
        assert {(r["status"], r["check"], r["ratio"]) for r in rows[-2:]} == {("infeasible", None, None)}
        assert "solve tiny enumeration, run 1: optimal" in result.stderr
    with (tmp_path / "rows.csv").open(newline="") as stream:
        table = list(csv.DictReader(stream))
    lines = [json.loads(x) for x in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert len(table) == len(lines) == len(rows)
    assert lines == rows
    assert list(table[0]) == list(lines[0])


def test_the_table_and_a_second_run_that_appends(tmp_path: Path, tiny: Path) -> None:
    target = tmp_path / "rows.csv"
    assert run("--instances", "none", "--output", target).exit_code == 0
    before = target.read_text()
    result = run("--instances", tiny, "--formulations", "milp", "--output", target)
    assert result.exit_code == 0
    assert target.read_text().startswith(before)
    assert target.read_text().count("what,run") == 1
    assert "plan --help: " in result.stdout
    assert "plan --flop 1e28, cold: " in result.stdout
    assert [line.split()[:2] for line in result.stdout.splitlines()[-2:]] == [
        ["tiny", "milp"],
        ["none", "milp"],
    ]


def test_the_default_instances_are_questions() -> None:
    instances = bench.read_instances(None)
    assert len({x["name"] for x in instances}) == len(instances) >= 12
    assert bench.read_instances("dense-1e28, sparse-1e29") == [
        next(x for x in instances if x["name"] == name) for name in ("dense-1e28", "sparse-1e29")
    ]
    assert bench.arguments({"name": "x", "flop": "1e22", "sparse": True, "days": "3"}) == [
        "--flop=1e22",
        "--sparse",
        "--days=3",
    ]


def test_a_wrong_claim_is_refuted() -> None:
    instance = {"name": "tiny", "flop": "1e22", "space": "paper"}
    child = bench.run_child([*bench.arguments(instance), "--format=json"], 60)
    answer = json.loads(child.stdout)
    assert bench.verdict(instance, answer, child.stdout) == "confirmed"
    said = bench.verdict(instance, answer | {"utilization": answer["utilization"] * 1.001}, child.stdout)
    assert said is not None
    assert "not the claimed" in said
    said = bench.verdict(instance | {"days": "0.001"}, answer, child.stdout)
    assert said is not None
    assert "deadline" in said


def test_failures_are_rows_that_disagree(tmp_path: Path) -> None:
    settings = bench.Settings(("milp",), ())
    row = bench.measure("solve", {"name": "bad", "flop": "nonsense"}, "milp", settings, 0)
    assert row.status == "failed"
    assert "--flop" in (row.check or "")
    assert not bench.Report(settings, [row]).agrees
    twice = [
        bench.Row("solve", 0, "x", name, status="optimal", check="confirmed", utilization=u)
        for name, u in (("milp", 0.5), ("cpsat", 0.4))
    ]
    assert list(bench.Report(settings, twice).disagreements()) == ["x"]
    assert bench.run_child(["--flop", "1e28"], 0.01).code < 0


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("--formulations", "simplex"), "--formulations = 'simplex'"),
        (("--instances", "nothing-like-it"), "no instance of this name"),
        (("--instances", "missing.json"), "cannot be read"),
        (("--repeat", "0"), "--repeat"),
        (("--time-limit", "nan"), "--time-limit"),
        (("--threads", "1.5"), "--threads"),
        (("--format", "xml"), "--format"),
        (("--output", "/proc/none/rows.csv"), "cannot be appended to"),
    ],
)
def test_bad_input(typed: tuple[str, ...], said: str) -> None:
    result = run(*typed)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "[1]", '[{"flop": "1e22"}]', '[{"name": "x", "flop": 1e22}]', '[{"name": "x", "flop": "0"}]',
     '[{"name": "x", "flop": "1e22", "output": "/etc/passwd"}]', '[{"name": "x"}]', "[" * 100_000],
)  # fmt: skip
def test_bad_instance_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    result = run("--instances", path)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr


def test_other_columns_are_not_appended_to(tmp_path: Path) -> None:
    target = tmp_path / "other.csv"
    target.write_text("a,b\n1,2\n")
    result = run("--instances", "none", "--output", target)
    assert result.exit_code == 2
    assert target.read_text() == "a,b\n1,2\n"


def test_settings_read_the_options() -> None:
    reader = Reader()
    given = {"formulations": "milp", "instances": "none", "repeat": "2", "time_limit": "5", "threads": "2"}
    assert bench.read_settings(given, reader) == bench.Settings(("milp",), (), 2, 5.0, 2)
    assert reader.problems == []
