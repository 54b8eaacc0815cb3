"""The table MILP, built as arrays and handed to HiGHS directly."""

from __future__ import annotations

import math

import highspy
import numpy as np

from formulations.base import Options, Solution, Termination
from formulations.linear import TableModel
from formulations.proof import Run, highs_version, prove
from planner.program import Program

_TERMINATIONS = {
    highspy.HighsModelStatus.kOptimal: Termination.OPTIMAL,
    highspy.HighsModelStatus.kInfeasible: Termination.INFEASIBLE,
    # Every expression is bounded below.
    highspy.HighsModelStatus.kUnboundedOrInfeasible: Termination.INFEASIBLE,
    highspy.HighsModelStatus.kTimeLimit: Termination.TIME_LIMIT,
    highspy.HighsModelStatus.kInterrupt: Termination.INTERRUPTED,
    highspy.HighsModelStatus.kMemoryLimit: Termination.MEMORY_LIMIT,
}


def highs_model(table_model: TableModel) -> highspy.HighsLp:
    """The model in HiGHS' form."""
    model = table_model.model
    starts, columns, values = model.matrix()
    lp = highspy.HighsLp()
    lp.model_name_ = "shardplan"
    lp.num_col_, lp.num_row_ = len(model.lower), len(model.row_lower)
    cost = np.bincount(model.cost.columns, weights=model.cost.values, minlength=lp.num_col_)
    lp.col_cost_ = cost.astype(np.float64)
    lp.offset_ = model.cost.constant
    lp.col_lower_, lp.col_upper_ = np.array(model.lower), np.array(model.upper)
    lp.row_lower_, lp.row_upper_ = np.array(model.row_lower), np.array(model.row_upper)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = starts, columns, values
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    lp.integrality_ = [kinds[whole] for whole in model.integer]
    return lp


def _run(model: TableModel, options: Options, gap: float, time_left: float, tolerance: float) -> Run:
    """One run of HiGHS."""
    # The thread pool is shared by the process and silently refuses a second size.
    highspy.Highs.resetGlobalScheduler(True)
    solver = highspy.Highs()
    solver.HandleKeyboardInterrupt = True  # else Ctrl-C waits for the end of the run
    native = {
        "output_flag": False,
        "presolve": "off",  # 3 to 6 times faster than on (formulations.md)
        "threads": options.threads,
        "random_seed": options.seed,
        "mip_rel_gap": gap,
        "mip_abs_gap": gap,
        "mip_feasibility_tolerance": tolerance,
        **({"time_limit": time_left} if math.isfinite(time_left) else {}),
        **options.native.get("milp", {}),
    }
    for name, value in native.items():
        if solver.setOptionValue(name, value) != highspy.HighsStatus.kOk:
            raise ValueError(f"HiGHS option {name} = {value!r} is refused")
    lp = highs_model(model)
    root = _relaxed(solver, lp) if options.relaxation else None
    solver.passModel(lp)
    if options.hint is not None:
        columns = np.concatenate(list(model.one_hot.values())).astype(np.int32)
        values = np.zeros(len(columns))
        chosen = [model.one_hot[a.name][i] for a, i in zip(model.program.axes, options.hint, strict=True)]
        values[np.isin(columns, chosen)] = 1.0
        solver.setSolution(len(columns), columns, values)
    solver.run()
    info, status = solver.getInfo(), solver.getModelStatus()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    bound = info.mip_dual_bound
    return Run(
        _TERMINATIONS.get(status, Termination.FAILED),
        model.assignment(np.array(solver.getSolution().col_value)) if found else None,
        -math.inf if math.isnan(bound) or bound <= -highspy.kHighsInf else float(bound),
        max(0, int(info.mip_node_count)),
        solver.modelStatusToString(status),
        root,
    )


def _relaxed(solver: highspy.Highs, lp: highspy.HighsLp) -> float | None:
    """Bound of the relaxation without integrality; None if it is not solved, inf if it is infeasible."""
    kinds = lp.integrality_
    lp.integrality_ = []
    solver.passModel(lp)
    lp.integrality_ = kinds
    solver.run()
    match solver.getModelStatus():
        case highspy.HighsModelStatus.kOptimal:
            return float(solver.getInfo().objective_function_value)
        case highspy.HighsModelStatus.kInfeasible:
            return math.inf
    return None


def solve(program: Program, options: Options) -> Solution:
    """Prove the optimum of a program with the table MILP; `native["milp"]` holds options of HiGHS.

    See `formulations.proof.prove` for how the solver's word is checked.
    """
    return prove(program, options, TableModel, _run, highs_version())
