"""Compare with the published program: evaluate its layouts, and solve its runs in its own space.

The file is a CSV with the columns of frontier_reference.csv. It does not record the schedule; a layout is
taken as 1F1B or zero bubble, whichever the rules allow and is faster.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from formulations.base import Options
from planner import check
from planner.catalogue import load_accelerator
from planner.errors import InputError, Problem
from planner.layout import FrontierLayout, Schedule
from planner.outcome import Status
from planner.plan import plan_frontier
from planner.question import FrontierQuestion, Objective
from planner.spaces import Space
from planner.workload import FrontierRun

FILE = "frontier_reference.csv"
#: Relative agreement asked of an evaluated layout, and of a solved utilization.
EVALUATED, SOLVED = 1e-12, 1e-9
LARGEST_FILE = 1 << 24
_INTEGERS = ("d_model", "d_ff", "layers", "experts", "batch_tokens", "accelerators", "v", "m")
_SECONDS = ("train_seconds", "tp_seconds", "dp_seconds", "pp_ep_seconds", "latency_seconds")
_REALS = ("training_flop", "utilization", *_SECONDS)
_LEVELS = {"TPm": "tp_m", "TPff": "tp_ff", "PP": "pp", "DP": "dp", "EP": "ep"}


@dataclass(frozen=True)
class Reference:
    """One published result."""

    accelerator: str
    sparse: bool
    run: FrontierRun
    layouts: tuple[FrontierLayout, ...]  #: the layout under each schedule it may have
    accelerators: int
    figures: dict[str, float]  #: utilization and itemised seconds of the whole run


@dataclass(frozen=True)
class Row:
    """Agreement with one published result."""

    reference: Reference
    errors: dict[str, float]  #: relative difference by figure, of the evaluated layout
    accelerators: int | None = None  #: of the solved plan
    utilization: float | None = None  #: of the solved plan
    status: str | None = None

    @property
    def evaluated(self) -> bool:
        """Whether the given layout evaluates to the given figures."""
        return max(self.errors.values()) <= EVALUATED

    @property
    def solved(self) -> bool | None:
        """Whether solving gives the published accelerators and utilization; None if it was not tried."""
        if self.status is None:
            return None
        same = self.utilization is not None and math.isclose(
            self.utilization, self.reference.figures["utilization"], rel_tol=SOLVED
        )
        return same and self.status == Status.OPTIMAL and self.accelerators == self.reference.accelerators


@dataclass(frozen=True)
class Comparison:
    """Agreement with all published results of a file."""

    rows: tuple[Row, ...]

    @property
    def agrees(self) -> bool:
        """Whether everything that was tried agrees."""
        return all(r.evaluated and r.solved is not False for r in self.rows)

    def settings(self) -> list[dict[str, Any]]:
        """Agreement per accelerator and kind of model."""
        groups: dict[tuple[str, bool], list[Row]] = {}
        for row in self.rows:
            groups.setdefault((row.reference.accelerator, row.reference.sparse), []).append(row)
        return [
            {
                "accelerator": accelerator,
                "sparse": sparse,
                "rows": len(rows),
                "evaluated": sum(r.evaluated for r in rows),
                "largest_error": max(e for r in rows for e in r.errors.values()),
                "solved": None if rows[0].solved is None else sum(bool(r.solved) for r in rows),
            }
            for (accelerator, sparse), rows in groups.items()
        ]

    def disagreements(self) -> list[dict[str, Any]]:
        """The rows that disagree, with both sides."""
        return [
            {
                "accelerator": r.reference.accelerator,
                "sparse": r.reference.sparse,
                "flop": r.reference.run.flop,
                "errors": {k: e for k, e in r.errors.items() if e > EVALUATED},
                "published": [r.reference.accelerators, r.reference.figures["utilization"]],
                "solved": [r.accelerators, r.utilization],
                "status": r.status,
            }
            for r in self.rows
            if not r.evaluated or r.solved is False
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "schema_version": 1,
            "agrees": self.agrees,
            "rows": len(self.rows),
            "settings": self.settings(),
            "disagreements": self.disagreements(),
        }

    def to_table(self, *, terminal: bool = False) -> str:
        """Text form."""
        from planner.report.comparison import render

        return render(self, terminal=terminal)


def find_reference() -> Path:
    """The default file: in $SHARDPLAN_DATA, or in ../shared/data beside the project.

    Raises
    ------
    InputError
        It is not there.
    """
    folder = os.environ.get("SHARDPLAN_DATA")
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    path = (Path(folder) if folder else beside) / FILE
    if not path.is_file():
        rule = "there is no such file; give one, or set SHARDPLAN_DATA to the folder that has it"
        raise InputError.of("reference file", str(path), rule)
    return path


def read_reference(path: str | None = None) -> list[Reference]:
    """Read published results.

    Raises
    ------
    InputError
        The file is absent or wrong; names every wrong row.
    """
    place = find_reference() if path is None else Path(path)
    try:
        if not place.is_file():
            raise InputError.of("reference file", str(place), "there is no such file")
        if place.stat().st_size > LARGEST_FILE:
            raise InputError.of("reference file", str(place), f"is larger than {LARGEST_FILE} bytes")
        with place.open(encoding="utf-8-sig", newline="") as stream:
            table = list(csv.DictReader(stream))
    except InputError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        raise InputError.of("reference file", str(place), f"cannot be read: {error}") from None
    if not table:
        raise InputError.of("reference file", str(place), "has no rows")
    needed = {"accelerator", "sparse", *_INTEGERS, *_REALS, *(f"{a}_levels" for a in _LEVELS)}
    if missing := sorted(needed - set(table[0])):
        raise InputError.of("reference file", str(place), f"lacks the columns {', '.join(missing)}")
    found, problems = [], []
    for number, row in enumerate(table, start=2):
        try:
            found.append(_reference(row))
        except (ValueError, TypeError, AttributeError) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            problems.append(Problem(f"reference file line {number}", str(place), first))
    if problems:
        raise InputError(problems[:20])
    return found


def _reference(row: dict[str, str]) -> Reference:
    """One row; raises ValueError where it makes no sense."""
    number = {name: int(row[name]) for name in _INTEGERS}
    figures = {name: float(row[name]) for name in _REALS}
    if not all(math.isfinite(x) and x >= 0 for x in figures.values()):
        raise ValueError("figures must be finite and not negative")
    run = FrontierRun(
        **{name: number[name] for name in ("d_model", "d_ff", "layers", "experts", "batch_tokens")},
        tokens=1.0,
        flop=figures.pop("training_flop"),
    )
    run = run.model_copy(update={"tokens": run.flop / run.flop_per_token})
    levels = {name: tuple(int(x) for x in row[f"{axis}_levels"].split("x")) for axis, name in _LEVELS.items()}
    v, m = number["v"], number["m"]
    stages = math.prod(levels["pp"])
    schedules = [s for s in Schedule if s is Schedule.ONE_F_ONE_B or (v == 1 and m >= 2 * stages)]
    return Reference(
        accelerator=row["accelerator"],
        sparse=bool(int(row["sparse"])),
        run=run,
        layouts=tuple(FrontierLayout(**levels, microbatches=m, interleave=v, schedule=s) for s in schedules),
        accelerators=number["accelerators"],
        figures=figures,
    )


def reproduce(
    references: list[Reference],
    *,
    formulation: str | None,
    options: Options | None = None,
    progress: bool = False,
) -> Comparison:
    """Evaluate every published layout and, with a formulation, solve every run in the paper space.

    Parameters
    ----------
    references : list of Reference
        Published results.
    formulation : str, optional
        How to solve; None to evaluate only.
    options : Options, optional
        Limits of each solve.
    progress : bool
        Show a progress bar on standard error.
    """
    with _bar(len(references), show=progress) as step:
        rows = []
        for reference in references:
            rows.append(_compare(reference, formulation, options))
            step()
    return Comparison(tuple(rows))


def _compare(reference: Reference, formulation: str | None, options: Options | None) -> Row:
    question = FrontierQuestion(
        reference.run,
        load_accelerator(reference.accelerator),
        space=Space.PAPER,
        objective=Objective.ACCELERATORS,
    )
    if any(not check.is_well_formed(question, layout) for layout in reference.layouts):
        raise InputError.of(
            "reference file",
            reference.layouts[0].degrees,
            "other levels than the accelerator's network",
        )
    cost = min((check.cost_of(question, x) for x in reference.layouts), key=lambda c: float(c.batch[0]))
    steps = reference.run.batches
    latency = cost.tensor_latency + cost.point_to_point_latency + cost.data_latency
    found = {
        "utilization": cost.utilization[0],
        "train_seconds": cost.train[0],
        "tp_seconds": cost.tensor[0] * steps,
        "dp_seconds": cost.data[0] * steps,
        "pp_ep_seconds": cost.point_to_point[0] * steps,
        "latency_seconds": latency[0] * steps,
    }
    errors = {name: _difference(float(found[name]), figure) for name, figure in reference.figures.items()}
    if formulation is None:
        return Row(reference, errors)
    outcome = plan_frontier(question, formulation, options, advise=False, count=False)
    plan = outcome.plan
    if plan is None:
        return Row(reference, errors, status=outcome.status.value)
    return Row(reference, errors, plan.accelerators, plan.utilization, outcome.status.value)


def _difference(found: float, given: float) -> float:
    """Relative difference."""
    return 0.0 if found == given else abs(found - given) / max(abs(found), abs(given))


@contextmanager
def _bar(total: int, *, show: bool) -> Iterator[Any]:
    """A progress bar on standard error, or nothing; gives what advances it."""
    if not show:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reproducing", total=total)
        yield lambda: progress.advance(task)
