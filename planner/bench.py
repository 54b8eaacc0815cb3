"""What the command costs to start, and each formulation per question: measured, not asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

#: Questions of the benchmark, as options of `plan`.
QUESTIONS: dict[str, tuple[str, ...]] = {
    "dense-1e25": ("--flop", "1e25"),
    "dense-1e26": ("--flop", "1e26"),
    "dense-1e28": ("--flop", "1e28"),
    "dense-1e29": ("--flop", "1e29"),
    "dense-1e30": ("--flop", "1e30"),
    "dense-1e31": ("--flop", "1e31"),
    "sparse-1e28": ("--flop", "1e28", "--sparse"),
    "sparse-1e31": ("--flop", "1e31", "--sparse"),
    "paper-1e28": ("--flop", "1e28", "--space", "paper", "--objective", "accelerators"),
    "superpod-1e28": ("--flop", "1e28", "--accelerator", "h100-sxm-superpod"),
    "superpod-sparse-1e30": ("--flop", "1e30", "--sparse", "--accelerator", "h100-sxm-superpod"),
}
_COMMAND = "import sys, cli; sys.argv[0] = 'plan'; cli.main()"


def _run(arguments: Sequence[str]) -> tuple[dict[str, float], str, int]:
    """One cold process: wall and CPU seconds, peak memory [B], its output, its exit code."""
    start = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-c", _COMMAND, *arguments], stdout=subprocess.PIPE)
    assert child.stdout is not None
    out = child.stdout.read().decode()
    child.stdout.close()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    scale = 1 if sys.platform == "darwin" else 1024
    figures = {
        "wall_seconds": time.perf_counter() - start,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_bytes": float(used.ru_maxrss * scale),
    }
    return figures, out, child.returncode


def bench(
    formulations: Sequence[str], questions: Sequence[str], repeat: int, time_limit: float
) -> Iterator[dict[str, Any]]:
    """Rows of measurements, one process each.

    First `plan --help` (least of `repeat` runs), then every question with every formulation; `ratio` is the
    wall time over that of the first formulation in the same run.

    Parameters
    ----------
    formulations, questions : sequence of str
        Names; the first formulation is what the others are compared with.
    repeat : int
        Runs of each measurement; the fastest counts.
    time_limit : float
        Per solve [s].
    """
    help_runs = [_run(["--help"])[0] for _ in range(repeat)]
    yield {"question": "--help", "formulation": None, **min(help_runs, key=lambda r: r["cpu_seconds"])}
    for question in questions:
        reference: float | None = None
        for name in formulations:
            arguments = [*QUESTIONS[question], "--formulation", name, "--format", "json"]
            arguments += ["--time-limit", str(time_limit)]
            runs = [_run(arguments) for _ in range(repeat)]
            figures, out, code = min(runs, key=lambda r: r[0]["wall_seconds"])
            answer = json.loads(out) if out else {}
            seconds = answer.get("seconds") or {}
            reference = figures["wall_seconds"] if reference is None else reference
            yield {
                "question": question,
                "formulation": name,
                "exit": code,
                **{key: answer.get(key) for key in ("status", "utilization", "gap", "space_size", "detail")},
                "build_seconds": seconds.get("build"),
                "solve_seconds": seconds.get("solve"),
                **figures,
                "ratio": figures["wall_seconds"] / reference,
            }
