"""The catalogue of accelerators as a list."""

from __future__ import annotations

import io
import math
from typing import Any

from planner.catalogue import accelerator_names, load_accelerator
from planner.hardware import Accelerator


class Catalogue:
    """All accelerators of the catalogue."""

    def __init__(self) -> None:
        self.accelerators = [load_accelerator(name) for name in accelerator_names()]

    def to_dict(self) -> dict[str, Any]:
        """JSON form: what the files say, with the derived rates."""
        return {"schema_version": 1, "accelerators": [_entry(a) for a in self.accelerators]}

    def to_table(self, *, terminal: bool = False) -> str:
        """Text form."""
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("name", no_wrap=True)
        for name in ("peak TFLOP/s", "sustained", "memory GB"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("network (size x GB/s one-way)")
        for a in self.accelerators:
            table.add_row(
                a.name,
                f"{a.peak / 1e12:,.0f}",
                f"{a.sustained_share:.0%}",
                f"{a.memory_capacity / 1e9:,.0f}",
                ", ".join(f"{level.size or 'rest'} x {_speed(level.bandwidth)}" for level in a.network),
            )
        console = Console(
            file=io.StringIO(), force_terminal=terminal, width=None if terminal else 120, highlight=False
        )
        console.print(table)
        assert isinstance(console.file, io.StringIO)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def _speed(bandwidth: float) -> str:
    return "unlimited" if math.isinf(bandwidth) else f"{bandwidth / 1e9:,.4g}"


def _entry(accelerator: Accelerator) -> dict[str, Any]:
    return accelerator.model_dump(mode="json") | {
        "peak": accelerator.peak,
        "sustained": accelerator.sustained,
    }
