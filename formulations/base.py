"""What every formulation takes and returns: options, and a claim with its bound.

Outcome vocabulary of MathOpt: why it stopped (`Termination`) is kept apart from what is known (objective,
bound). None means unknown, never 0 or inf.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from planner.program import Program


class Termination(StrEnum):
    """Why a formulation stopped."""

    OPTIMAL = "optimal"
    INFEASIBLE = "infeasible"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True)
class Options:
    """Common options; native ones go in `native`, by formulation."""

    time_limit: float = math.inf  #: [s]
    gap: float = 1e-9  #: relative gap at which a bound counts as a proof
    threads: int = 1
    seed: int = 0
    presolve: bool = True  #: shrink the program first (mixed-integer formulations only)
    ties: bool = True  #: choose among the optimal assignments by the program's tie-breakers
    relaxation: bool = False  #: also solve the first relaxation, to know its bound (table MILP)
    hint: tuple[int, ...] | None = None  #: an assignment to start from
    native: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Solution:
    """A formulation's claim about a program."""

    termination: Termination
    assignment: tuple[int, ...] | None  #: index on each axis, in the order of the program's axes
    objective: float | None  #: the program's own value of the assignment
    bound: float | None  #: no assignment is better than this; inf when infeasible
    detail: str = ""  #: in words, for people
    build_seconds: float = 0.0
    solve_seconds: float = 0.0
    nodes: int | None = None  #: tree nodes, or rows looked at by an enumeration
    root_bound: float | None = None  #: bound of the first relaxation
    solver: str = ""  #: name and version

    @property
    def gap(self) -> float | None:
        """Relative gap, (objective - bound) / |objective|."""
        if self.objective is None or self.bound is None:
            return None
        return max(0.0, self.objective - self.bound) / max(abs(self.objective), 1e-12)


class Formulation(Protocol):
    """A way to solve programs: one module with a function `solve`."""

    def __call__(self, program: Program, options: Options) -> Solution:
        """Solve `program` to optimality within the options' limits."""
        ...


class Clock:
    """Time left of a limit."""

    def __init__(self, limit: float) -> None:
        self.start = time.perf_counter()
        self.limit = limit

    @property
    def spent(self) -> float:
        """Since the start [s]."""
        return time.perf_counter() - self.start

    @property
    def left(self) -> float:
        """Until the limit [s], never negative."""
        return max(0.0, self.limit - self.spent)

    @property
    def over(self) -> bool:
        """Whether the limit has passed."""
        return self.spent >= self.limit
