"""The benchmark measures what it says; how long things take is not tested."""

from __future__ import annotations

import json

from click.testing import CliRunner

from cli import plan
from planner.bench import bench


def test_rows() -> None:
    rows = list(bench(["enumeration"], ["paper-1e28"], repeat=1, time_limit=60))
    assert [r["question"] for r in rows] == ["--help", "paper-1e28"]
    assert rows[0]["cpu_seconds"] > 0
    assert rows[1]["status"] == "optimal"
    assert rows[1]["exit"] == 0
    assert rows[1]["ratio"] == 1
    assert rows[1]["peak_bytes"] > 1e6
    json.dumps(rows)


def test_unknown_names_are_named_together() -> None:
    done = CliRunner().invoke(plan, ["bench", "--questions", "nope", "--formulations", "what"])
    assert done.exit_code == 2
    assert "nope" in done.stderr
    assert "what" in done.stderr
    assert done.stdout == ""
