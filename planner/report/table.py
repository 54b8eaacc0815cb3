"""An outcome on one screen."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.losses import LOSS_NAMES
from planner.outcome import Outcome, Plan, Status
from planner.question import Objective

#: Width of a table that does not go to a terminal [columns].
WIDTH = 100
_STYLES = {
    Status.OPTIMAL: "green",
    Status.FEASIBLE: "yellow",
    Status.INFEASIBLE: "red",
    Status.NO_PLAN: "red",
}


def render(outcome: Outcome, *, terminal: bool = False, width: int | None = None) -> str:
    """The outcome as text: colours on a terminal, plain otherwise.

    Parameters
    ----------
    outcome : Outcome
        What to show.
    terminal : bool
        Whether the text goes to a terminal.
    width : int, optional
        Columns; those of the terminal, or 100.
    """
    console = Console(
        file=io.StringIO(),
        force_terminal=terminal,
        no_color=None if terminal else True,
        width=width if width is not None else (None if terminal else WIDTH),
        highlight=False,
        emoji=False,
        markup=False,
    )
    console.print(Group(*_sections(outcome)))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _sections(outcome: Outcome) -> Iterable[RenderableType]:
    yield _pairs(_run(outcome) + _cluster(outcome))
    if outcome.plan is not None:
        yield Text()
        yield _layout(outcome, outcome.plan)
        yield Text()
        yield _pairs(_result(outcome, outcome.plan))
        yield Text()
        yield _losses(outcome, outcome.plan)
    yield Text()
    yield _pairs(_certificate(outcome))


def _pairs(rows: Sequence[tuple[str, str | Text]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True, min_width=12)
    grid.add_column()
    for name, value in rows:
        grid.add_row(name, value)
    return grid


def _run(outcome: Outcome) -> list[tuple[str, str | Text]]:
    run = outcome.question.run
    kind = f"{run.experts:,} experts, one active per token" if run.experts > 1 else "dense"
    return [
        ("run", f"{run.flop:.4g} FLOP, {run.parameters:.4g} parameters ({kind})"),
        ("", f"{run.layers:,} layers, width {run.d_model:,}, hidden {run.d_ff:,}"),
        ("", f"{run.tokens:.4g} tokens in batches of {run.batch_tokens:.4g} ({run.batches:,.0f} steps)"),
    ]


def _cluster(outcome: Outcome) -> list[tuple[str, str | Text]]:
    a = outcome.question.accelerator
    levels = []
    for level in a.network:
        size = "" if level.size is None else f" of {level.size}"
        speed = "unlimited" if math.isinf(level.bandwidth) else f"{level.bandwidth / 1e9:.4g} GB/s"
        levels.append(f"{level.name}{size}: {speed}, {level.latency * 1e6:.4g} us")
    peak = f"{a.title}, {a.peak / 1e12:.4g} TFLOP/s peak, {a.memory_capacity / 1e9:.4g} GB"
    return [("cluster", peak), ("", "; ".join(levels) + " (one-way, per accelerator)")]


def _layout(outcome: Outcome, plan: Plan) -> Table:
    names = [level.name for level in outcome.question.accelerator.network]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("layout", style="bold", min_width=28)
    for name in ("degree", *names):
        table.add_column(name, justify="right", min_width=8)
    layout, total = plan.layout, plan.layout.totals
    inner = zip(layout.tp_m, layout.tp_ff, strict=True)
    tensor = total["TPm"] * total["TPff"]
    table.add_row("tensor parallel", f"{tensor:,}", *(f"{m * ff:,}" for m, ff in inner))
    for axis, label in (
        ("TPm", "  over the width (TPm)"),
        ("TPff", "  over the hidden width (TPff)"),
        ("PP", "pipeline parallel (PP)"),
        ("DP", "data parallel (DP)"),
        ("EP", "expert parallel (EP)"),
    ):
        table.add_row(label, f"{total[axis]:,}", *(f"{d:,}" for d in layout.degrees[axis]))
    table.add_row("accelerators", f"{plan.accelerators:,}", *(f"{n:,}" for n in layout.level_sizes))
    return table


def _result(outcome: Outcome, plan: Plan) -> list[tuple[str, str | Text]]:
    layout, deadline = plan.layout, outcome.question.deadline
    run = outcome.question.run
    columns = run.batch_tokens / (layout.totals["DP"] * layout.microbatches * run.experts)
    limit = "no deadline" if deadline is None else f"deadline {deadline / 86400:.4g}"
    return [
        (
            "schedule",
            f"{layout.schedule}, {layout.microbatches:,} microbatches of {columns:,.0f} tokens per expert, "
            f"{layout.interleave:,} virtual stage{'s' * (layout.interleave > 1)} per device",
        ),
        ("training", f"{plan.days:.4g} days ({limit}), {plan.seconds_per_batch['batch']:.4g} s per step"),
        (
            "memory",
            f"{plan.memory_needed / 1e9:.4g} of {plan.memory_available / 1e9:.4g} GB "
            "(weights and optimizer state)",
        ),
    ]


def _losses(outcome: Outcome, plan: Plan) -> Table:
    """Ceiling, losses and utilization in percent; what is printed adds up to the last digit."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold", min_width=28)
    table.add_column(justify="right", min_width=8)
    table.add_column()
    values = dict(zip(plan.losses, rounded(outcome.ceiling, list(plan.losses.values())), strict=True))
    table.add_row("ceiling (sustained share)", f"{outcome.ceiling:.2%}", "of datasheet peak")
    for cause, hundredths in values.items():
        mark = "  <- largest loss" if cause == plan.binding.loss else ""
        table.add_row(f"  {LOSS_NAMES[cause]}", f"{-hundredths / 100 or 0:.2f}%", mark)
    left = round(outcome.ceiling * 1e4) - sum(values.values())
    table.add_row("utilization", f"{left / 100:.2f}%", "of datasheet peak", style="bold")
    return table


def rounded(start: float, parts: Sequence[float]) -> list[int]:
    """Parts in hundredths of a percent, rounded so that start minus their sum is the rounded rest."""
    out, reached, exact = [], round(start * 1e4), start
    for part in parts:
        exact -= part
        here = round(exact * 1e4)
        out.append(reached - here)
        reached = here
    return out


def _certificate(outcome: Outcome) -> list[tuple[str, str | Text]]:
    rows: list[tuple[str, str | Text]] = []
    if outcome.plan is not None:
        rows.append(("binding", outcome.plan.binding.text))
    status = Text(outcome.status.value.replace("_", " "), style=_STYLES[outcome.status])
    status.append(f" ({outcome.detail})" if outcome.detail else "", style="default")
    rows.append(("status", status))
    if outcome.advice is not None:
        rows += [
            ("why", part) if i == 0 else ("", part)
            for i, part in enumerate(outcome.advice.message.split("; "))
        ]
    if outcome.formulation is None:
        return rows
    bound = []
    if outcome.bound is not None:
        bound.append(_bound(outcome.question.objective, outcome.bound))
    if outcome.gap is not None:
        bound.append(f"gap {outcome.gap:.2g}")
    if bound:
        rows.append(("bound", ", ".join(bound)))
    by = outcome.formulation + (f" ({outcome.solver})" if outcome.solver else "")
    size = "" if outcome.space_size is None else f" over {_count(outcome.space_size)} layouts"
    rows.append(("solved by", f"{by}{size}, {outcome.question.space} space"))
    s = outcome.seconds
    rows.append(("seconds", f"{s.total:.2f} (build {s.build:.2f}, solve {s.solve:.2f})"))
    return rows


def _count(n: int) -> str:
    return f"{n:,}" if n < 10**6 else f"{n:.3g}"


def _bound(objective: Objective, bound: float) -> str:
    match objective:
        case Objective.UTILIZATION:
            return f"no layout is above {bound:.4%}"
        case Objective.ACCELERATORS:
            return f"no layout uses fewer than {bound:,.0f} accelerators"
        case Objective.TIME:
            return f"no layout takes less than {bound:.6g} days"
