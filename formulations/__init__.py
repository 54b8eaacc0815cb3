"""Ways to solve a program. What each can do is data; modules (and solvers) are imported when they run."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import cast

from formulations.base import Clock, Formulation, Options, Solution
from planner.program import Program


@dataclass(frozen=True)
class Entry:
    """A formulation: where it lives, what it needs, what it is."""

    name: str
    module: str
    requires: str | None  #: package that must be installed
    summary: str
    mixed_integer: bool


CATALOGUE = {
    e.name: e
    for e in (
        Entry("milp", "formulations.milp", "highspy", "disaggregated-table MILP, HiGHS", True),
        Entry("pyomo", "formulations.pyomo_milp", "pyomo", "the table MILP written in Pyomo, HiGHS", True),
        Entry("cpsat", "formulations.cpsat", "ortools", "scaled integers and element tables, CP-SAT", True),
        Entry(
            "enumeration", "formulations.enumeration", None, "bounded enumeration, numpy; the oracle", False
        ),
    )
}
DEFAULT = "milp"


def available(name: str) -> bool:
    """Whether what the formulation needs is installed."""
    requires = CATALOGUE[name].requires
    return requires is None or find_spec(requires) is not None


def load(name: str) -> Formulation:
    """The solve function of a formulation."""
    return cast(Formulation, import_module(CATALOGUE[name].module).solve)


def solve(name: str, program: Program, options: Options) -> Solution:
    """Solve a program with a formulation, presolved first where that is asked for and makes sense."""
    core, clock = load(name), Clock(options.time_limit)
    if CATALOGUE[name].mixed_integer and options.presolve:
        from formulations.presolve import with_presolve

        solution = with_presolve(core, program, options)
    else:
        solution = core(program, options)
    if not options.ties:
        return solution
    from formulations.ties import break_ties

    return break_ties(program, solution, clock)
