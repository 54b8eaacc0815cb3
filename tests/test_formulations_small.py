"""Every formulation against plain enumeration of small programs, and the silence around solvers."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from formulations import CATALOGUE, available, load
from formulations.base import Formulation, Options, Solution, Termination
from planner.program import Axis, Bound, Equation, Expression, Max, Product, Program, Sum, Table, View
from tests.programs import exhaustive, random_program

NAMES = ("milp", "pyomo", "cpsat", "enumeration")


def formulation(name: str) -> Formulation:
    if not available(name):
        pytest.skip(f"{CATALOGUE[name].requires} is not installed")
    if find_spec(CATALOGUE[name].module) is None:
        pytest.skip(f"{CATALOGUE[name].module} does not exist yet")
    return load(name)


def check(program: Program, solution: Solution) -> None:
    """A claim is right: termination, value, feasibility, bound."""
    optimum, _ = exhaustive(program)
    if math.isinf(optimum):
        assert solution.termination is Termination.INFEASIBLE
        assert solution.assignment is None
        assert solution.objective is None
        assert solution.bound == math.inf
        return
    assert solution.termination is Termination.OPTIMAL
    assert solution.assignment is not None
    assert solution.objective is not None
    assert solution.bound is not None
    at = program.choices(solution.assignment)
    assert program.feasible(at)[0]
    assert solution.objective == np.max(program.objective.evaluate(at))
    assert solution.objective == pytest.approx(optimum, rel=1e-9, abs=1e-9)
    assert solution.bound <= optimum + 1e-12
    assert solution.bound <= solution.objective
    assert solution.bound >= optimum - 1e-8


@pytest.mark.parametrize("name", NAMES)
def test_random_programs(name: str) -> None:
    solve = formulation(name)

    @settings(
        max_examples=200,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 10**6))
    def agrees(seed: int) -> None:
        program = random_program(seed)
        check(program, solve(program, Options()))

    agrees()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [1039, 11953])
def test_programs_that_broke_highs(name: str, seed: int) -> None:
    # Tolerances of 1e-10 without presolve: a rejected solution of its own, and a wrong optimum.
    check(random_program(seed), formulation(name)(random_program(seed), Options()))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_many_random_programs(name: str) -> None:
    solve = formulation(name)
    for seed in range(2_000_000, 2_003_000):
        program = random_program(seed)
        check(program, solve(program, Options()))


A, B, C = Axis("a", (0, 1, 2)), Axis("b", (0, 1, 2)), Axis("c", (0, 1))
ALL = {axis.name: View.of(axis)[0] for axis in (A, B, C)}


def table(axes: str, values: object, name: str = "t") -> Table:
    return Table(name, tuple(ALL[a] for a in axes), np.array(values, dtype=float))


def program(
    objective: Expression,
    *,
    equations: tuple[Equation, ...] = (),
    bounds: tuple[Bound, ...] = (),
    axes: tuple[Axis, ...] = (A, B, C),
) -> Program:
    return Program("tiny", axes, equations, bounds, objective)


INF = math.inf
ONE_A, ONE_B, ONE_C = table("a", [1, 2, 3]), table("b", [3, 1, 2]), table("c", [0.5, 0.25])
PAIR = table("ab", [[1, 5, 3], [2, 0.5, 4], [6, 1.5, 2.5]])
HOLES = table("ab", [[INF, INF, 3], [2, INF, 4], [INF, 1.5, INF]])
BASE = Sum((ONE_A, ONE_B, ONE_C))
EVEN = Equation("sum", {"a": np.array([[0], [1], [2]]), "b": np.array([[0], [1], [2]])}, np.array([3]))
GROUPED = Table(
    "grouped", (View("a", np.array([0, 1, 0]), 2), ALL["b"]), np.array([[3.0, 1, 2], [0.5, 4, 4]])
)
SINGLE = Axis("s", ("only",))
SINGLE_VIEW = View.of(SINGLE)[0]

#: name -> (program, least objective)
TINY: dict[str, tuple[Callable[[], Program], float]] = {
    "single views": (lambda: program(BASE), 2.25),
    "constant objective": (lambda: program(Table.constant("k", 7.0)), 7.0),
    "constant term": (lambda: program(Sum((ONE_A, Table.constant("k", 0.5)))), 1.5),
    "forbidden constant": (lambda: program(Sum((ONE_A, Table.constant("k", INF)))), INF),
    "forbidden choices": (lambda: program(Sum((table("a", [INF, INF, 1]), ONE_B))), 2.0),
    "axis all forbidden": (lambda: program(Sum((table("a", [INF, INF, INF]), ONE_B))), INF),
    "pair table": (lambda: program(PAIR), 0.5),
    "forbidden entries": (lambda: program(Sum((PAIR, HOLES))), 3.0),
    "all entries forbidden": (lambda: program(Sum((ONE_A, table("ab", np.full((3, 3), INF))))), INF),
    "grouped view": (lambda: program(Sum((GROUPED, ONE_A))), 2.0),
    "maximum": (lambda: program(Max((ONE_A, ONE_B))), 1.0),
    "maximum of one": (lambda: program(Max((ONE_A,))), 1.0),
    "product": (lambda: program(Product(table("c", [1, 2]), Sum((ONE_A, ONE_C)))), 1.5),
    "product by pair": (lambda: program(Product(PAIR, Sum((ONE_A, ONE_B)))), 1.5),
    "product by zero": (lambda: program(Product(table("a", [2, 0, 1]), ONE_B)), 0.0),
    "zero times forbidden": (
        lambda: program(
            Product(table("a", [1, 0, 1]), Sum((ONE_B, table("ac", [[1, 1], [INF, INF], [1, 1]]))))
        ),
        2.0,
    ),
    "nested products": (lambda: program(Product(ONE_A, Product(table("b", [2, 1, 3]), ONE_C))), 0.25),
    "constant factor": (lambda: program(Product(Table.constant("k", 1.5), Max((ONE_A, ONE_B)))), 1.5),
    "constant times constant": (
        lambda: program(Product(Table.constant("k", 1.5), Table.constant("l", 2.0))),
        3.0,
    ),
    "large values": (lambda: program(Sum((table("a", [1e9, 1, 1e8]), Max((PAIR, ONE_B))))), 2.0),
    "negative values": (lambda: program(Sum((table("a", [-5, 1, 2]), PAIR))), -4.0),
    "close calls": (lambda: program(Sum((table("a", [1 + 1e-7, 1, 1 + 2e-7]), PAIR))), 1.5),
    "single choice": (
        lambda: program(Sum((ONE_A, Table("s", (SINGLE_VIEW,), np.array([4.0])))), axes=(A, B, SINGLE)),
        5.0,
    ),
    "single choice in a pair": (
        lambda: program(Table("s", (ALL["a"], SINGLE_VIEW), np.array([[4.0], [3], [INF]])), axes=(A, SINGLE)),
        3.0,
    ),
    "equation": (lambda: program(Sum((ONE_A, ONE_B)), equations=(EVEN,)), 4.0),
    "equation impossible": (
        lambda: program(BASE, equations=(Equation("e", EVEN.terms, np.array([9])),)),
        INF,
    ),
    "equation over nothing": (
        lambda: program(BASE, equations=(Equation("e", {"a": np.zeros((3, 1), dtype=int)}, np.array([1])),)),
        INF,
    ),
    "bound slack": (lambda: program(BASE, bounds=(Bound("b", PAIR, 100.0),)), 2.25),
    "bound active": (lambda: program(BASE, bounds=(Bound("b", PAIR, 0.6),)), 3.25),
    "bound tight": (lambda: program(BASE, bounds=(Bound("b", PAIR, 0.5),)), 3.25),
    "bound just missed": (lambda: program(BASE, bounds=(Bound("b", PAIR, 0.5 - 1e-6),)), INF),
    "bound on a constant": (lambda: program(BASE, bounds=(Bound("b", Table.constant("k", 2.0), 1.0),)), INF),
    "bound forbids entries": (lambda: program(Sum((PAIR, ONE_A)), bounds=(Bound("b", HOLES, 2.0),)), 4.0),
    "bound on the objective": (lambda: program(BASE, bounds=(Bound("b", BASE, 2.25),)), 2.25),
    "bound on the objective missed": (lambda: program(BASE, bounds=(Bound("b", BASE, 2.2),)), INF),
    "bound on a maximum": (
        lambda: program(ONE_A, bounds=(Bound("b", Max((table("a", [9, 1, 1]), ONE_B)), 1.0),)),
        2.0,
    ),
    "bound on a product": (
        lambda: program(ONE_A, bounds=(Bound("b", Product(table("a", [9, 3, 1]), ONE_B), 3.0),)),
        2.0,
    ),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", TINY)
def test_tiny(name: str, case: str) -> None:
    solve = formulation(name)
    make, optimum = TINY[case]
    assert exhaustive(make())[0] == pytest.approx(optimum, abs=1e-12)
    check(make(), solve(make(), Options()))


@pytest.mark.parametrize("name", ["pyomo", "cpsat"])
def test_no_time(name: str) -> None:
    solution = formulation(name)(program(Product(PAIR, BASE)), Options(time_limit=0.0))
    assert solution.termination in (Termination.TIME_LIMIT, Termination.OPTIMAL)
    assert solution.bound is None or solution.bound <= 0.5 * 3.25


@pytest.mark.parametrize("name", ["pyomo", "cpsat"])
def test_threads_may_change_within_a_process(name: str) -> None:
    solve = formulation(name)
    for threads in (1, 2, 1):
        check(program(Product(PAIR, BASE)), solve(program(Product(PAIR, BASE)), Options(threads=threads)))


def test_cpsat_bound_is_rounded_down() -> None:
    formulation("cpsat")
    from formulations.cpsat import BITS, build, run_cpsat

    goal = program(Product(table("ab", PAIR.values / 3), Sum((table("a", [1 / 3, 1 / 7, 1 / 9]), ONE_B))))
    model = build(goal, math.inf)
    assert model.bits <= BITS
    status, _, bound, _ = run_cpsat(model, Options(), 0.0, math.inf)
    optimum, _ = exhaustive(goal)
    assert status == "OPTIMAL"
    assert optimum - 1e-9 < bound <= optimum


def test_cpsat_scale_fits_large_values() -> None:
    formulation("cpsat")
    from formulations.cpsat import ROOM, build

    model = build(program(Product(table("a", [1, 2, 1e5]), table("b", [1, 1e9, 1e9]))), math.inf)
    assert model.peak <= ROOM
    assert model.cp.validate() == ""


# quiet


def run_python(code: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment, **kwargs
    )


def test_quiet_drops_c_and_python_output_and_restores() -> None:
    done = run_python(
        "import ctypes, os\n"
        "from formulations.quiet import quiet\n"
        "c = ctypes.CDLL(None)\n"
        "print('before')\n"
        "c.printf(b'c before\\n')\n"
        "with quiet():\n"
        "    c.printf(b'buffered in C\\n'); os.write(1, b'raw\\n'); print('python')\n"
        "    os.write(2, b'error\\n')\n"
        "print('after')\n"
    )
    assert sorted(done.stdout.split("\n")) == ["", "after", "before", "c before"]
    assert done.stderr == "error\n"


def test_quiet_restores_after_an_exception_and_nests() -> None:
    done = run_python(
        "import os\n"
        "from formulations.quiet import quiet\n"
        "try:\n"
        "    with quiet(), quiet():\n"
        "        os.write(1, b'hidden')\n"
        "        raise ValueError\n"
        "except ValueError:\n"
        "    print('caught')\n"
        "free = os.dup(1)\n"
        "for _ in range(50):\n"
        "    with quiet(): pass\n"
        "assert os.dup(1) == free + 1  # no descriptor leaks\n"
    )
    assert (done.stdout, done.stderr) == ("caught\n", "")


@pytest.mark.parametrize("closing", ["os.close(1)", "sys.stdout.close()", "sys.stdout = None; os.close(1)"])
def test_quiet_with_stdout_closed(closing: str) -> None:
    done = run_python(
        f"import os, sys\n"
        f"from formulations.quiet import quiet\n"
        f"{closing}\n"
        "def closed():\n"
        "    try: os.fstat(1)\n"
        "    except OSError: return True\n"
        "    return False\n"
        "was = closed()\n"
        "with quiet():\n"
        "    os.write(1, b'hidden')\n"
        "assert closed() == was\n"
        "sys.stderr.write('done')\n"
        "sys.stderr.flush(); os._exit(0)\n"
    )
    assert (done.stdout, done.stderr) == ("", "done")


@pytest.mark.parametrize("name", ["milp", "pyomo", "cpsat"])
def test_solvers_leave_stdout_clean(name: str) -> None:
    formulation(name)
    done = run_python(
        "from formulations import load\n"
        "from formulations.base import Options\n"
        "from tests.programs import random_program\n"
        f"print(load({name!r})(random_program(1), Options()).termination)\n"
    )
    assert done.stdout in ("optimal\n", "infeasible\n"), done.stderr
