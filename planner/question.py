"""A frontier question: a run, a machine, what may be chosen and what is wanted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from planner import spaces
from planner.hardware import Accelerator
from planner.spaces import Degrees, Space
from planner.workload import FrontierRun

#: Largest cluster the planner considers [accelerators].
MAX_ACCELERATORS = 10**15
#: A quarter of a year of 3.154e7 s, the published deadline [s].
QUARTER = 7.885e6


class Objective(StrEnum):
    """What is optimised."""

    UTILIZATION = "utilization"
    ACCELERATORS = "accelerators"
    TIME = "time"


@dataclass(frozen=True)
class FrontierQuestion:
    """A run, a machine, and what to choose."""

    run: FrontierRun
    accelerator: Accelerator
    space: Space = Space.FULL
    degrees: Degrees = Degrees.ANY
    objective: Objective = Objective.UTILIZATION
    deadline: float | None = QUARTER  #: longest training time [s]; None for no limit
    accelerators: tuple[int, int] = (1, MAX_ACCELERATORS)  #: smallest and largest cluster
    overlap_data: bool = False  #: hide the gradient all-reduce behind the pipeline

    @property
    def axis_factors(self) -> dict[str, int]:
        """What each axis' degree must divide."""
        run = self.run
        return {
            "TPm": run.d_model,
            "TPff": run.d_ff,
            "PP": run.layers,
            "DP": run.batch_tokens // run.experts,
            "EP": run.experts,
        }

    @property
    def axis_totals(self) -> dict[str, list[int]]:
        """Allowed total degree of each axis."""
        degrees = Degrees.POW2 if self.space is Space.PAPER else self.degrees
        totals = {axis: spaces.divisors(n, degrees) for axis, n in self.axis_factors.items()}
        e = self.run.experts
        totals["EP"] = [e] if self.space is Space.PAPER else spaces.divisors(e)
        return totals

    @cached_property
    def cluster_sizes(self) -> list[int]:
        """Candidate N: products of allowed degrees that fill whole network levels."""
        low, high = self.accelerators
        if self.space is Space.PAPER:
            e = self.run.experts
            candidates = [e << i for i in range(MAX_ACCELERATORS.bit_length()) if e << i <= high]
        else:
            candidates = spaces.products((math.lcm(*t) for t in self.axis_totals.values()), high)
        fixed = self.accelerator.level_sizes
        return [n for n in candidates if n >= low and spaces.level_sizes(n, fixed) is not None]
