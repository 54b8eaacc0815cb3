"""The disaggregated-table MILP as a readable Pyomo model, solved by HiGHS.

One binary `pick[axis, choice]` per choice. Tables over one view are linear in them; tables over several views
are linear in columns `entry[...]` whose marginals are the binaries. A maximum is a variable above its terms,
a product a copy of its term per distinct value of its factor. Once the binaries are whole, all else has
its true value or, where that is only bounded from below, may be lowered to it: the model is exact.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import highspy
import numpy as np
import pyomo.environ as pyo
import pyomo.version
from pyomo.contrib.solver.common.factory import SolverFactory
from pyomo.contrib.solver.common.results import TerminationCondition
from pyomo.core.expr.numeric_expr import LinearExpression

from formulations.base import Options, Solution, Termination
from formulations.limits import LARGE, ForbiddenError, Limits, clip, finite_limits
from formulations.proof import Run, highs_version, prove
from planner.program import Expression, Max, Product, Program, Sum, Table, View


class Model:
    """The Pyomo model of a program.

    Parts of `pyomo`: sets `axes` and `choices`; variable `pick`; constraints `one_choice`, `equations`,
    `bounds`, `excluded`; one block per group of tables in `columns`, per maximum in `maxima`, per product in
    `products`.
    """

    def __init__(self, program: Program, cutoff: float = math.inf) -> None:
        self.program, self.cutoff = program, cutoff
        large = LARGE * max(1.0, abs(program.objective.limits(program.all_alive())[0]))
        memo: dict[int, Expression] = {}
        limited = [(clip(b.expression, large, memo), b.upper + b.tolerance) for b in program.bounds]
        self.limits = Limits(program, clip(program.objective, large, memo), limited, cutoff)
        self.alive, self.allowed = self.limits.alive, self.limits.allowed
        used = [t.values[self.allowed[t.key]] for t in self.limits.tables]
        self.largest = max((float(np.abs(v).max(initial=0)) for v in used), default=0.0)
        self._done: dict[int, Any] = {}
        self.pyomo = m = pyo.ConcreteModel(name=program.name)
        self._choose()
        self._columns()
        m.maxima = pyo.Block(pyo.Any)
        m.products = pyo.Block(pyo.Any)
        m.bounds = pyo.ConstraintList()
        for expression, upper in limited:
            body = self.linear(expression)
            if not isinstance(body, float):
                m.bounds.add(pyo.inequality(body=body, upper=upper))
            elif body > upper:
                raise ForbiddenError("a limit is always exceeded")
        m.cost = pyo.Objective(expr=self.linear(self.limits.objective))
        m.excluded = pyo.ConstraintList()

    def _choose(self) -> None:
        """Exactly one choice on each axis, and the equations between them."""
        m, program = self.pyomo, self.program
        alive = {a.name: [int(i) for i in np.flatnonzero(self.alive[a.name])] for a in program.axes}
        m.axes = pyo.Set(initialize=list(alive))
        m.choices = pyo.Set(dimen=2, initialize=[(a, i) for a, choices in alive.items() for i in choices])
        m.pick = pyo.Var(m.choices, domain=pyo.Binary)

        m.one_choice = pyo.Constraint(
            m.axes, rule=lambda m, axis: sum(m.pick[axis, i] for i in alive[axis]) == 1
        )
        m.equations = pyo.ConstraintList()
        for equation in program.equations:
            for k, rhs in enumerate(equation.rhs):
                terms = [
                    (int(values[i, k]), m.pick[axis, i])
                    for axis, values in equation.terms.items()
                    for i in alive[axis]
                    if values[i, k]
                ]
                if terms:
                    m.equations.add(_linear(terms) == int(rhs))
                elif rhs:
                    raise ForbiddenError(f"{equation.name} cannot hold")

    def _columns(self) -> None:
        """One column per allowed entry of the tables over the same views; its marginals are the picks."""
        m = self.pyomo
        groups = {t.key: t.views for t in self.limits.tables if len(t.views) > 1}
        m.columns = pyo.Block(pyo.RangeSet(len(groups)))
        self.entry: dict[Any, Any] = {}
        for number, (key, views) in enumerate(groups.items(), start=1):
            picks = [self.members(v) for v in views]
            block = m.columns[number]
            block.entries = pyo.Set(
                dimen=len(views), initialize=[tuple(map(int, k)) for k in np.argwhere(self.allowed[key])]
            )
            block.entry = pyo.Var(block.entries, bounds=(0, 1))
            block.marginals = pyo.ConstraintList()
            by_class: dict[tuple[int, int], list[Any]] = defaultdict(list)
            for entry in block.entries:
                for position, kind in enumerate(entry):
                    by_class[position, kind].append(block.entry[entry])
            for position, view in enumerate(views):
                for kind in range(view.classes):
                    if picks[position][kind]:
                        block.marginals.add(
                            _linear(
                                [(1.0, x) for x in by_class[position, kind]]
                                + [(-1.0, x) for x in picks[position][kind]]
                            )
                            == 0
                        )
            self.entry[key] = block.entry

    def members(self, view: View) -> list[list[Any]]:
        """The binaries of each class of a view."""
        out: list[list[Any]] = [[] for _ in range(view.classes)]
        for i in np.flatnonzero(self.alive[view.axis]):
            out[view.codes[i]].append(self.pyomo.pick[view.axis, int(i)])
        return out

    def cells(self, table: Table) -> Iterator[tuple[float, list[Any]]]:
        """Values of a table of at least one view, and the variables of which one is 1 where they hold."""
        if len(table.views) == 1:
            for value, picks in zip(table.values, self.members(table.views[0]), strict=True):
                if picks:
                    yield float(value), picks
        else:
            entry = self.entry[table.key]
            for place in entry:
                yield float(table.values[place]), [entry[place]]

    def linear(self, e: Expression) -> Any:
        """A linear expression that can be lowered to the value of `e`, and no further."""
        number = self.limits.number(e)
        if number not in self._done:
            match e:
                case Table():
                    self._done[number] = self._table(e)
                case Sum():
                    self._done[number] = sum(self.linear(t) for t in e.terms)
                case Max():
                    self._done[number] = self._maximum(number, e)
                case Product():
                    self._done[number] = self._product(number, e)
        return self._done[number]

    def _table(self, e: Table) -> Any:
        if not e.views:
            return float(e.values)
        return _linear([(value, x) for value, columns in self.cells(e) for x in columns])

    def _maximum(self, number: int, e: Max) -> Any:
        if len(e.terms) == 1:
            return self.linear(e.terms[0])
        block = self.pyomo.maxima[number]
        low, high = finite_limits(e, self.alive)
        block.value = pyo.Var(bounds=(low, high))
        block.above = pyo.ConstraintList()
        for term in e.terms:
            if term.limits(self.alive)[1] > low:
                block.above.add(block.value >= self.linear(term))
        return block.value

    def _product(self, number: int, e: Product) -> Any:
        """sum_j b_j part_j, where part_j is the whole term if the factor is b_j, else 0."""
        low, high = finite_limits(e.term, self.alive)
        if not e.factor.views:
            return float(e.factor.values) * self.linear(e.term)
        if low == high:
            return low * self._table(e.factor)
        chosen: dict[float, list[Any]] = defaultdict(list)
        for factor, columns in self.cells(e.factor):
            chosen[factor] += columns
        if not chosen:
            raise ForbiddenError(f"{e.factor.name} has no allowed entry")
        high = min(high, self.limits.caps[self.limits.number(e.term)])
        cap = self.limits.caps[number]
        block = self.pyomo.products[number]
        block.factors = pyo.Set(initialize=sorted(chosen))
        block.part = pyo.Var(block.factors, bounds=(0, max(high, 0.0)))
        block.least = pyo.ConstraintList()
        block.most = pyo.ConstraintList()
        for b in block.factors:
            if low > 0:
                block.least.add(_linear([(1.0, block.part[b])] + [(-low, x) for x in chosen[b]]) >= 0)
            here = min(high, cap / b) if b > 0 else high
            block.most.add(_linear([(1.0, block.part[b])] + [(-here, x) for x in chosen[b]]) <= 0)
        block.whole = pyo.Constraint(expr=sum(block.part[b] for b in block.factors) == self.linear(e.term))
        return _linear([(b, block.part[b]) for b in block.factors])

    def exclude(self, assignment: tuple[int, ...]) -> None:
        """Forbid one assignment."""
        picks = [self.pyomo.pick[a.name, i] for a, i in zip(self.program.axes, assignment, strict=True)]
        self.pyomo.excluded.add(sum(picks) <= len(picks) - 1)


def _linear(terms: Sequence[tuple[float, Any]]) -> Any:
    return LinearExpression([pyo.expr.MonomialTermExpression((c, x)) for c, x in terms]) if terms else 0.0


def run_highs(model: Model, options: Options, gap: float, time_left: float, tolerance: float) -> Run:
    """Solve a model; everything that depends on Pyomo's solver interface (still a preview) is here."""
    # The thread pool is shared by the process and silently refuses a second size.
    highspy.Highs.resetGlobalScheduler(True)
    solver = SolverFactory("highs")
    native = {"presolve": "off", "random_seed": options.seed, "mip_feasibility_tolerance": tolerance}
    native.update(options.native.get("pyomo", {}))
    results = solver.solve(
        model.pyomo,
        threads=options.threads,
        time_limit=time_left if math.isfinite(time_left) else None,
        rel_gap=gap,
        abs_gap=gap,
        load_solutions=False,
        raise_exception_on_nonoptimal_result=False,
        solver_options=native,
    )
    assignment = None
    if results.incumbent_objective is not None:
        picks = model.pyomo.pick
        values = results.solution_loader.get_vars([picks[k] for k in model.pyomo.choices])
        best: dict[str, tuple[float, int]] = {}
        for a, i in model.pyomo.choices:
            best[a] = max(best.get(a, (-1.0, -1)), (values[picks[a, i]], i))
        assignment = tuple(best[a.name][1] for a in model.program.axes)
    why = {
        TerminationCondition.convergenceCriteriaSatisfied: Termination.OPTIMAL,
        TerminationCondition.provenInfeasible: Termination.INFEASIBLE,
        # Every expression is bounded below.
        TerminationCondition.infeasibleOrUnbounded: Termination.INFEASIBLE,
        TerminationCondition.maxTimeLimit: Termination.TIME_LIMIT,
        TerminationCondition.interrupted: Termination.INTERRUPTED,
    }
    bound = results.objective_bound
    return Run(
        why.get(results.termination_condition, Termination.FAILED),
        assignment,
        -math.inf if bound is None or math.isnan(bound) else float(bound),
        max(0, results.extra_info.value().get("mip_node_count", 0)),
        results.termination_condition.name,
    )


def solve(program: Program, options: Options) -> Solution:
    """Prove the optimum of a program with the table MILP; `native["pyomo"]` holds options of HiGHS.

    See `formulations.proof.prove` for how the solver's word is checked.
    """
    solver = f"{highs_version()} through Pyomo {pyomo.version.version}"
    return prove(program, options, Model, run_highs, solver)
