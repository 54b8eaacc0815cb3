"""The table MILP, built as arrays and handed to HiGHS directly."""

from __future__ import annotations

import math

import highspy
import numpy as np

from formulations.base import Clock, Options, Solution, Termination
from formulations.linear import TableModel
from formulations.quiet import quiet
from planner.program import Program

#: HiGHS checks rows and integrality to this; its bound is lowered by as much before it is claimed.
FEASIBILITY = 1e-7


def solve(program: Program, options: Options, *, cutoff: float = math.inf, hint=None) -> Solution:
    clock = Clock(options.time_limit)
    table_model = TableModel(program, cutoff)
    model = table_model.model
    starts, columns, values = model.matrix()
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(model.lower), len(model.row_lower)
    cost = np.bincount(model.cost.columns, weights=model.cost.values, minlength=lp.num_col_)
    lp.col_cost_, lp.offset_ = cost, model.cost.constant
    lp.col_lower_, lp.col_upper_ = np.array(model.lower), np.array(model.upper)
    inf = highspy.kHighsInf
    lp.row_lower_ = np.where(np.isinf(model.row_lower), np.sign(model.row_lower)*inf, model.row_lower)
    lp.row_upper_ = np.where(np.isinf(model.row_upper), np.sign(model.row_upper)*inf, model.row_upper)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = starts, columns, values
    lp.integrality_ = [highspy.HighsVarType.kInteger if i else highspy.HighsVarType.kContinuous for i in model.integer]
    built = clock.spent
    with quiet():
        h = highspy.Highs()
        h.setOptionValue("output_flag", bool(options.native.get("log", False)))
        h.setOptionValue("presolve", options.native.get("presolve", "off"))
        h.setOptionValue("mip_rel_gap", options.gap); h.setOptionValue("mip_abs_gap", options.gap)
        h.setOptionValue("mip_feasibility_tolerance", FEASIBILITY)
        h.setOptionValue("primal_feasibility_tolerance", FEASIBILITY)
        h.setOptionValue("threads", options.threads)
        for k,v in options.native.get("highs", {}).items(): h.setOptionValue(k,v)
        if math.isfinite(clock.left): h.setOptionValue("time_limit", clock.left)
        h.passModel(lp)
    if options.native.get("log"): h.run()
    else:
        with quiet():
            h.run()
    info = h.getInfo(); status = h.getModelStatus()
    sol = np.array(h.getSolution().col_value)
    print(h.modelStatusToString(status), lp.num_col_, lp.num_row_, sum(model.integer), len(values), 'built',built,'solve',clock.spent-built,'nodes',info.mip_node_count,'bound',info.mip_dual_bound,'obj',info.objective_function_value)
    return table_model, sol
