"""Table columns over scaled integers, solved by CP-SAT.

The model is that of the table MILP, in integers: a literal per choice, a literal per allowed table entry, a
copy of the term per distinct value of a factor. Every number is rounded down and every limit up, so the
integer optimum is a true lower bound; what the rounding lets in is judged by the program itself.

All constraints are linear, clauses or exactly-one, and all are in the linear relaxation from the start: that
is what proves optima here (measured against element and table constraints, and against lazy relaxations).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from formulations.base import Clock, Options, Solution, Termination
from formulations.limits import ForbiddenError, Limits
from formulations.quiet import quiet
from planner.program import Expression, Max, Product, Program, Sum, Table, View

#: Binary digits after the point, if everything fits.
BITS = 36
#: Below this precision a first run only has to find a good incumbent: without it, numbers are too large.
COARSE = 30
#: Gap of such a run.
ROUGH = 0.02
#: Factors are split into this many digits of this many bits (the first is the whole part), so that digit
#: times scaled value fits.
DIGITS, RADIX = 4, 12
#: Sums of absolute values that CP-SAT can hold.
ROOM = 1 << 61


class Model:
    """The CP-SAT model of a program; expressions are (linear expression, lower, upper), all scaled.

    Invariant: where the choices are feasible in the program, the integers can take values of which each is at
    most its expression's value times 2 ** bits.
    """

    def __init__(self, limits: Limits, bits: int) -> None:
        from ortools.sat.python import cp_model

        self.limits, self.bits, self.peak = limits, bits, 1
        self.weighted = cp_model.LinearExpr.weighted_sum
        self.cp = cp = cp_model.CpModel()
        self.pick = {
            a.name: {int(i): cp.new_bool_var(f"{a.name}[{i}]") for i in np.flatnonzero(limits.alive[a.name])}
            for a in limits.program.axes
        }
        for literals in self.pick.values():
            cp.add_exactly_one(literals.values())
        self._equations()
        self._classes: dict[Any, list[Any]] = {}
        self._entries: dict[Any, dict[tuple[int, ...], Any]] = {}
        self._done: dict[int, tuple[Any, int, int]] = {}
        for table in limits.tables:
            if len(table.views) > 1 and table.key not in self._entries:
                self._entries[table.key] = self._columns(table)
        for expression, upper in limits.limited:
            value, _, high = self.linear(expression)
            if high > (most := self.down(upper) + 1):
                self._at_most(value, most)
        self.objective, self.least, _ = self.linear(limits.objective)
        if math.isfinite(limits.cutoff):
            self._at_most(self.objective, self.down(limits.cutoff))
        cp.minimize(self.objective)

    def down(self, value: float) -> int:
        """The scaled value, rounded down (a power of two is an exact scale)."""
        return math.floor(math.ldexp(value, self.bits))

    def _at_most(self, value: Any, most: int) -> None:
        if isinstance(value, int):
            if value > most:
                raise ForbiddenError("a limit is always exceeded")
        else:
            self.cp.add(value <= most)

    def _integer(self, low: int, high: int) -> Any:
        if high < low:
            raise ForbiddenError("a limit is always exceeded")
        return self.cp.new_int_var(low, high, "")

    def _equations(self) -> None:
        for equation in self.limits.program.equations:
            for k, rhs in enumerate(equation.rhs):
                terms = [
                    (x, int(values[i, k]))
                    for axis, values in equation.terms.items()
                    for i, x in self.pick[axis].items()
                    if values[i, k]
                ]
                if terms:
                    self.cp.add(self.weighted(*zip(*terms, strict=True)) == int(rhs))
                elif rhs:
                    raise ForbiddenError(f"{equation.name} cannot hold")

    def classes(self, view: View) -> list[Any]:
        """The literal of each class of a view, None where no choice is left."""
        if view.key not in self._classes:
            members: list[list[Any]] = [[] for _ in range(view.classes)]
            for i, x in self.pick[view.axis].items():
                members[view.codes[i]].append(x)
            literals = [m[0] if len(m) == 1 else self.cp.new_bool_var("") if m else None for m in members]
            for literal, group in zip(literals, members, strict=True):
                if literal is not None and len(group) > 1:
                    self.cp.add_exactly_one([*group, literal.negated()])
            self._classes[view.key] = literals
        return self._classes[view.key]

    def _columns(self, table: Table) -> dict[tuple[int, ...], Any]:
        """A literal per allowed entry; each class that is chosen has exactly one of its entries."""
        places = [tuple(map(int, k)) for k in np.argwhere(self.limits.allowed[table.key])]
        entries = {place: self.cp.new_bool_var("") for place in places}
        of_class: dict[tuple[int, int], list[Any]] = defaultdict(list)
        for place, x in entries.items():
            for position, kind in enumerate(place):
                of_class[position, kind].append(x)
        for position, view in enumerate(table.views):
            for kind, literal in enumerate(self.classes(view)):
                if literal is not None:
                    self.cp.add_exactly_one([*of_class[position, kind], literal.negated()])
        return entries

    def cells(self, table: Table) -> Iterator[tuple[float, Any]]:
        """Values of a table of at least one view, and the literal under which each is taken."""
        if len(table.views) == 1:
            for value, x in zip(table.values, self.classes(table.views[0]), strict=True):
                if x is not None:
                    yield float(value), x
        else:
            for place, x in self._entries[table.key].items():
                yield float(table.values[place]), x

    def linear(self, e: Expression) -> tuple[Any, int, int]:
        """A linear expression that can be as low as the rounded-down value of `e`, and its range."""
        number = self.limits.number(e)
        if number not in self._done:
            cap = self.limits.caps[number]
            most = self.down(cap) if math.isfinite(cap) else None
            match e:
                case Table():
                    value, low, high = self._table(e)
                case Sum():
                    parts = [self.linear(t) for t in e.terms]
                    value, low, high = (sum(p[i] for p in parts) for i in range(3))
                    self.peak = max(self.peak, sum(max(abs(p[1]), abs(p[2])) for p in parts))
                case Max():
                    value, low, high = self._maximum([self.linear(t) for t in e.terms], most)
                case Product():
                    value, low, high = self._product(e, most)
            self._done[number] = value, low, high if most is None else min(high, most)
        return self._done[number]

    def _table(self, e: Table) -> tuple[Any, int, int]:
        if not e.views:
            value = self.down(float(e.values))
            return value, value, value
        cells = [(self.down(value), x) for value, x in self.cells(e)]
        if not cells:
            raise ForbiddenError(f"{e.name} has no allowed entry")
        low, high = min(c for c, _ in cells), max(c for c, _ in cells)
        above = [(x, c - low) for c, x in cells if c > low]
        self.peak = max(self.peak, abs(low) + sum(c for _, c in above))
        return (self.weighted(*zip(*above, strict=True)) + low if above else low), low, high

    def _maximum(self, parts: list[tuple[Any, int, int]], most: int | None) -> tuple[Any, int, int]:
        if len(parts) == 1:
            return parts[0]
        low, high = max(p[1] for p in parts), max(p[2] for p in parts)
        value = self._integer(low, high if most is None else min(high, most))
        for part, _, least in parts:
            if least > low:
                self.cp.add(value >= part)
        return value, low, high

    def _product(self, e: Product, most: int | None) -> tuple[Any, int, int]:
        """The term once per value of the factor, 0 unless that value is chosen, times the value."""
        value, low, high = self.linear(e.term)
        if not e.factor.views:
            return self._times([(float(e.factor.values), value, high)], low)
        chosen: dict[float, list[Any]] = defaultdict(list)
        for factor, x in self.cells(e.factor):
            chosen[factor].append(x)
        if len(chosen) == 1:
            return self._times([(b, value, high) for b in chosen], low)
        parts = []
        for b, literals in sorted(chosen.items()):
            here = high if most is None or b == 0 else min(high, math.floor(most / b) + 2)
            if here < low:
                self.cp.add_bool_and([x.negated() for x in literals])
                continue
            part = self._integer(0, here)
            self.cp.add(part <= here * sum(literals))
            if low > 0:
                self.cp.add(part >= low * sum(literals))
            parts.append((b, part, here))
        if not parts:
            raise ForbiddenError(f"{e.factor.name} has no allowed entry")
        self.cp.add(sum(part for _, part, _ in parts) == value)
        return self._times(parts, low)

    def _times(self, parts: list[tuple[float, Any, int]], low: int) -> tuple[Any, int, int]:
        """sum of factor times part, of which one is not 0, by Horner's rule on the factors' digits."""
        if len(parts) == 1 and parts[0][0] == 1:
            return parts[0][1], low, parts[0][2]
        base = 1 << RADIX
        digits = [_digits(b) for b, _, _ in parts]
        carry: Any = 0
        carry_low, carry_high = 0, 0
        for i in reversed(range(DIGITS)):
            if i and isinstance(carry, int) and not any(d[i] for d in digits):
                continue
            total = sum(d[i] * part for d, (_, part, _) in zip(digits, parts, strict=True)) + carry
            least = digits[0][i] * low + carry_low
            most = max(d[i] * high for d, (_, _, high) in zip(digits, parts, strict=True)) + carry_high
            self.peak = max(
                self.peak,
                base * carry_high + sum(max(base, d[i]) * p[2] for d, p in zip(digits, parts, strict=True)),
            )
            if i == 0:
                # Among factors that differ in the last digits only, rounding may turn the order around.
                return total, max(0, least - DIGITS), most
            carry_low, carry_high = max(0, -((base - 1 - least) // base)), most // base
            carry = self._integer(0, carry_high)
            self.cp.add(base * carry >= total - (base - 1))
        raise AssertionError("a factor has digits")


def _digits(factor: float) -> list[int]:
    """Whole part and further digits, rounded down; exact otherwise."""
    digits = []
    for _ in range(DIGITS):
        digits.append(math.floor(factor))
        factor = (factor - digits[-1]) * 2.0**RADIX
    return digits


def build(program: Program, cutoff: float) -> Model:
    """The model of what may be better than the cutoff, at the finest scale that fits."""
    limited = [(b.expression, b.upper + b.tolerance) for b in program.bounds]
    limits = Limits(program, program.objective, limited, cutoff)
    model = Model(limits, min(BITS, ROOM.bit_length() - 1 - math.frexp(limits.reach())[1]))
    while model.peak > ROOM:
        model = Model(limits, model.bits - (model.peak // ROOM).bit_length())
    return model


def run_cpsat(
    model: Model, options: Options, gap: float, time_left: float
) -> tuple[str, list[tuple[int, ...]], float, int]:
    """Solve a model: CP-SAT's status, the assignments it met, the best one last, its bound, its branches."""
    from ortools.sat.python import cp_model

    found: list[tuple[int, ...]] = []
    bounds = [float(model.least)]

    class Watch(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            found.append(
                tuple(next(i for i, x in p.items() if self.boolean_value(x)) for p in model.pick.values())
            )

    solver = cp_model.CpSolver()
    solver.best_bound_callback = bounds.append  # the response has no bound if there is no solution
    parameters = solver.parameters
    parameters.num_workers = options.threads
    parameters.random_seed = options.seed
    if math.isfinite(time_left):
        parameters.max_time_in_seconds = time_left
    parameters.relative_gap_limit = gap
    parameters.linearization_level = 2
    parameters.add_lp_constraints_lazily = False
    parameters.cp_model_probing_level = 0
    if options.threads > 1:
        # The default portfolio has hardly a worker with the full relaxation.
        parameters.subsolvers.extend(["max_lp", "reduced_costs", "max_lp_sym", "core_max_lp"])
    # OR-Tools 9.15 proves wrong optima where a coefficient exceeds 2 ** 31 (or-tools issue 5293).
    parameters.presolve_inclusion_work_limit = 0
    for name, value in options.native.get("cpsat", {}).items():
        setattr(parameters, name, value)
    with quiet():
        status = solver.status_name(solver.solve(model.cp, Watch()))
    if status in ("OPTIMAL", "FEASIBLE"):
        bounds.append(solver.best_objective_bound)
    # Callbacks deliver bounds as floating point numbers.
    bound = math.ldexp(math.nextafter(max(bounds), -math.inf), -model.bits)
    return status, found, bound, solver.num_branches


def solve(program: Program, options: Options) -> Solution:
    """Prove the optimum of a program with CP-SAT.

    The first run minimises the rounded-down objective. Unless its bound is within the gap of the program's
    own value of what it found, further runs look for assignments better than the incumbent only, which makes
    numbers smaller and the scale finer; assignments that only rounding let in are excluded one by one.

    Parameters
    ----------
    program : Program
        What to solve.
    options : Options
        `native["cpsat"]` holds parameters of CP-SAT.
    """
    import ortools

    clock = Clock(options.time_limit)
    best: tuple[int, ...] | None = None
    value, nodes, built, detail = math.inf, 0, 0.0, ""
    bound = program.objective.limits(program.all_alive())[0]
    excluded: set[tuple[int, ...]] = set()
    found: list[tuple[int, ...]]
    while True:
        cutoff = value - 0.5 * options.gap * abs(value) if best else math.inf
        start = clock.spent
        try:
            model = build(program, cutoff)
            for assignment in excluded:
                literals = [p[i] for p, i in zip(model.pick.values(), assignment, strict=True) if i in p]
                if len(literals) == len(assignment):
                    model.cp.add_bool_or([x.negated() for x in literals])
        except ForbiddenError as reason:
            status, found, rest, detail = "INFEASIBLE", [], math.inf, str(reason)
        else:
            built += clock.spent - start
            gap = ROUGH if best is None and model.bits < COARSE else 0.25 * options.gap
            status, found, rest, branches = run_cpsat(model, options, gap, clock.left)
            nodes += branches
        for assignment in found:
            at = program.choices(assignment)
            here = float(np.max(program.objective.evaluate(at))) if program.feasible(at)[0] else math.inf
            if here < value:
                best, value = assignment, here
            else:
                excluded.add(assignment)
        bound = max(bound, min(value, cutoff, math.inf if status == "INFEASIBLE" else rest))
        if bound == math.inf or (best and value - bound <= options.gap * abs(value)):
            termination = Termination.OPTIMAL if best else Termination.INFEASIBLE
            break
        if clock.over or status != "OPTIMAL":
            # CP-SAT takes Ctrl-C for itself: stopped early with time left means that.
            early = Termination.INTERRUPTED if status in ("FEASIBLE", "UNKNOWN") else Termination.FAILED
            termination = Termination.TIME_LIMIT if clock.over else early
            detail = f"CP-SAT says {status}"
            break
    bound = min(bound, value)
    return Solution(
        termination,
        best,
        value if best else None,
        bound if best or termination is Termination.INFEASIBLE or math.isfinite(bound) else None,
        detail,
        build_seconds=built,
        solve_seconds=clock.spent - built,
        nodes=nodes,
        solver=f"CP-SAT {ortools.__version__}",
    )
