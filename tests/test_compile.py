"""The compiled program says what the plain cost functions and the plain rules say."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from planner import check
from planner.catalogue import accelerator_names, load_accelerator
from planner.compile import ZERO_BUBBLE, compile_frontier, decode, suffix
from planner.cost.frontier import frontier_cost
from planner.errors import InputError
from planner.hardware import Accelerator
from planner.layout import FrontierLayout, FrontierLayouts, Schedule
from planner.question import FrontierQuestion, Objective
from planner.spaces import Degrees, Space
from planner.workload import FrontierRun, frontier_run
from tests import scalar_model
from tests.samples import random_layouts, random_question

FIELDS = {"TPm": "tp_m", "TPff": "tp_ff", "PP": "pp", "DP": "dp", "EP": "ep"}


def encode(program, question, layout):
    """Choice on each axis of the program; None if it has no such choice."""
    run = question.run
    shards, rest = divmod(run.batch_tokens, run.experts * layout.totals["DP"] * layout.microbatches)
    if rest:
        return None
    zero = layout.schedule is Schedule.ZERO_BUBBLE
    wanted = {
        "N": layout.accelerators,
        "microbatches": layout.microbatches,
        "nanobatch": shards,
        "schedule": ZERO_BUBBLE if zero else layout.interleave,
    }
    for axis, field in FIELDS.items():
        degrees = getattr(layout, field)
        wanted |= {suffix(axis, k): math.prod(degrees[k:]) for k in range(len(degrees))}
    try:
        return [a.labels.index(wanted[a.name]) for a in program.axes]
    except ValueError:
        return None


def expected_objective(question, layouts, cost):
    """What the objective should be at each layout."""
    smallest = float(question.cluster_sizes[0])
    match question.objective:
        case Objective.UTILIZATION:
            return 1 / cost.utilization
        case Objective.ACCELERATORS:
            return np.log2(layouts.accelerators / smallest)
        case Objective.TIME:
            ideal = question.run.flop_per_token * question.run.batch_tokens
            return cost.batch / (ideal / (smallest * question.accelerator.peak))


def compare(question, layouts):
    """Objective, rules and limits of the program against the plain ones; gives how many keep each."""
    if not question.cluster_sizes:
        assert not any(scalar_model.keeps_rules(question, layout) for layout in layouts)
        return 0, 0
    program = compile_frontier(question)
    rows, known = [], []
    for layout in layouts:
        row = encode(program, question, layout)
        keeps = scalar_model.keeps_rules(question, layout)
        if row is None:
            assert not keeps, layout
            continue
        assert decode(program.labels(row)) == layout
        rows.append(row)
        known.append((layout, keeps))
    if not rows:
        return 0, 0
    at = program.choices(rows)
    stacked = FrontierLayouts.stack(x for x, _ in known)
    cost = frontier_cost(question.run, question.accelerator, stacked, overlap_data=question.overlap_data)
    keeps = np.array([k for _, k in known])
    limits = cost.memory_needed <= cost.memory_available
    if question.deadline is not None:
        limits &= cost.train <= question.deadline
    assert program.feasible(at).tolist() == (keeps & limits).tolist()
    for (layout, _), good in zip(known, keeps & limits, strict=True):
        assert (check.violations(question, layout) == []) == good
    rows = np.array(rows)[keeps]
    if len(rows):
        values = program.objective.evaluate(program.choices(rows))
        wanted = expected_objective(question, stacked, cost)[keeps]
        np.testing.assert_allclose(values, wanted, rtol=1e-12, atol=0)
    return int(keeps.sum()), int((keeps & limits).sum())


def limited(rng, question, layouts):
    """The question with a memory and a deadline that about half of the layouts keep."""
    cost = frontier_cost(
        question.run,
        question.accelerator,
        FrontierLayouts.stack(layouts),
        overlap_data=question.overlap_data,
    )
    capacity = float(np.quantile(cost.memory_needed / cost.memory_available, rng.uniform(0.3, 1)))
    capacity *= question.accelerator.memory_capacity * 1.0001
    deadline = float(np.quantile(cost.train, rng.uniform(0.3, 1))) * 1.0001
    return replace(
        question,
        accelerator=question.accelerator.model_copy(update={"memory_capacity": capacity}),
        deadline=deadline if rng.random() < 0.7 else None,
    )


@pytest.mark.parametrize("block", range(8))
def test_random_questions(block):
    kept = within = outside = 0
    for seed in range(12):
        rng = np.random.default_rng([block, seed])
        question = random_question(rng)
        layouts = random_layouts(rng, question, 120)
        if not layouts:
            continue
        question = limited(rng, question, layouts)
        good, best = compare(question, layouts)
        kept, within, outside = kept + good, within + best, outside + len(layouts) - good
    # The sample says something about all three kinds.
    assert kept > 100
    assert 30 < within < kept
    assert outside > 30


def test_the_sample_covers_every_feature():
    seen = set()
    for block, seed in itertools.product(range(8), range(12)):
        q = random_question(np.random.default_rng([block, seed]))
        network = q.accelerator.network
        seen |= {
            ("levels", len(network)),
            ("zero latency", any(x.latency == 0 for x in network)),
            ("unlimited", any(math.isinf(x.bandwidth) for x in network)),
            ("sparse", q.run.experts > 1),
            ("overlap", q.overlap_data),
            ("mesh", q.accelerator.unit_network),
            (q.space, q.objective),
            q.degrees,
        }
    for wanted in (
        *(("levels", k) for k in (1, 2, 3, 4)),
        *((x, y) for x in ("zero latency", "unlimited", "sparse", "overlap", "mesh") for y in (False, True)),
        *itertools.product(Space, Objective),
        *Degrees,
    ):
        assert wanted in seen


@pytest.mark.parametrize("name", accelerator_names())
def test_every_preset(name):
    machine = load_accelerator(name)
    rng = np.random.default_rng(sum(map(ord, name)))
    kept = 0
    for sparse, space in itertools.product((False, True), Space):
        run = frontier_run(d_model=12288 if space is Space.PAPER else 2560, sparse=sparse)
        question = FrontierQuestion(
            run, machine, space=space, deadline=None, accelerators=(1, 1 << 16), overlap_data=sparse
        )
        layouts = random_layouts(rng, question, 150)
        kept += compare(question, layouts)[0]
    assert kept > 50


@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize(
    ("name", "flop", "sparse", "space"),
    [
        ("h100-sxm", 1e25, False, Space.FULL),
        ("h100-sxm", 1e28, True, Space.PAPER),
        ("v100-sxm2", 1e31, False, Space.PAPER),
        ("h100-sxm-superpod", 1e29, True, Space.FULL),
    ],
)
def test_real_questions(name, flop, sparse, space, objective):
    run = frontier_run(flop, sparse=sparse)
    question = FrontierQuestion(run, load_accelerator(name), space=space, objective=objective)
    layouts = random_layouts(np.random.default_rng(3), replace(question, degrees=Degrees.SMOOTH), 300)
    assert compare(question, layouts)[0] > 20


def tiny(*, experts, space, depth=4):
    run = FrontierRun(
        d_model=4, d_ff=12, layers=depth, experts=experts, batch_tokens=4 * experts, tokens=1e3, flop=1e3
    )
    base = load_accelerator("h100-sxm")
    network = [base.network[0].model_dump() | {"size": 2}, base.network[1].model_dump()]
    machine = Accelerator.model_validate(base.model_dump() | {"network": network})
    return FrontierQuestion(run, machine, space=space, deadline=None, accelerators=(1, 12))


@pytest.mark.parametrize(
    ("experts", "space"), [(1, Space.FULL), (1, Space.PAPER), (2, Space.FULL), (2, Space.PAPER)]
)
def test_a_tiny_space_holds_exactly_the_layouts_that_keep_the_rules(experts, space):
    question = tiny(experts=experts, space=space)
    pairs = [(x, y) for x in (1, 2) for y in range(1, 13) if x * y <= 12]
    whole = set()
    for degrees in itertools.product(pairs, repeat=5):
        n = math.prod(x * y for x, y in degrees)
        inner = math.prod(x for x, _ in degrees)
        if n > 12 or inner != (2 if n % 2 == 0 else 1):
            continue
        for m, v, schedule in itertools.product((1, 2, 4), (1, 2, 4), Schedule):
            layout = FrontierLayout(
                **dict(zip(FIELDS.values(), degrees, strict=True)),
                microbatches=m,
                interleave=v,
                schedule=schedule,
            )
            if scalar_model.keeps_rules(question, layout):
                whole.add(layout.model_dump_json())
    program = compile_frontier(question)
    rows = assignments(program)
    rows = rows[program.feasible(program.choices(rows))]
    assert {decode(program.labels(row)).model_dump_json() for row in rows} == whole
    assert len(rows) == len(whole) > 10


def assignments(program):
    """All assignments that keep the equations, axis by axis; a part goes when no rest can keep them."""
    rows = np.zeros((1, 0), dtype=np.int64)
    sums = {e.name: np.zeros((1, e.rhs.size), dtype=np.int64) for e in program.equations}
    for i, axis in enumerate(program.axes):
        rows = np.hstack(
            [np.repeat(rows, axis.size, axis=0), np.tile(np.arange(axis.size), len(rows))[:, None]]
        )
        later = {x.name for x in program.axes[i + 1 :]}
        good = np.ones(len(rows), dtype=bool)
        for e in program.equations:
            here = e.terms.get(axis.name, np.zeros((axis.size, e.rhs.size), dtype=np.int64))
            sums[e.name] = np.repeat(sums[e.name], axis.size, axis=0) + here[rows[:, i]]
            rest = [t for name, t in e.terms.items() if name in later]
            low, high = (sum((f(t, axis=0) for t in rest), np.zeros_like(e.rhs)) for f in (np.min, np.max))
            good &= np.all((sums[e.name] + low <= e.rhs) & (sums[e.name] + high >= e.rhs), axis=1)
        rows = rows[good]
        sums = {name: x[good] for name, x in sums.items()}
    return rows


def test_a_range_without_cluster_sizes_is_refused():
    question = replace(tiny(experts=1, space=Space.FULL), accelerators=(11, 11))
    with pytest.raises(InputError, match="nearest: 8, 12"):
        compile_frontier(question)
