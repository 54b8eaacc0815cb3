"""A comparison with published results as a table."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from planner.reproduce import Comparison

#: Most disagreements that are listed.
LISTED = 20


def render(comparison: Comparison, *, terminal: bool) -> str:
    """Agreement per setting, and the rows that disagree."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("setting", no_wrap=True)
    for name in ("rows", "layouts evaluated alike", "largest relative error", "solved alike"):
        table.add_column(name, justify="right")
    for s in comparison.settings():
        table.add_row(
            f"{s['accelerator']} {'sparse' if s['sparse'] else 'dense'}",
            str(s["rows"]),
            str(s["evaluated"]),
            f"{s['largest_error']:.1e}",
            "not tried" if s["solved"] is None else str(s["solved"]),
        )
    console = Console(
        file=io.StringIO(),
        force_terminal=terminal,
        width=None if terminal else 100,
        highlight=False,
        markup=False,
    )
    console.print(table)
    wrong = comparison.disagreements()
    for d in wrong[:LISTED]:
        kind = "sparse" if d["sparse"] else "dense"
        console.print(
            f"{d['accelerator']} {kind} {d['flop']:.4g} FLOP: published {d['published']}, "
            f"solved {d['solved']} ({d['status']}), evaluation off by {d['errors'] or 'nothing'}"
        )
    if len(wrong) > LISTED:
        console.print(f"and {len(wrong) - LISTED} more")
    console.print("everything agrees" if comparison.agrees else f"{len(wrong)} rows disagree")
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"
