"""The checker: a sound claim passes, each broken rule is named."""

from dataclasses import replace

import pytest

from planner.catalogue import load_accelerator
from planner.check import check_frontier, violations
from planner.errors import RefutedError
from planner.layout import FrontierLayout, Schedule
from planner.question import FrontierQuestion, Objective
from planner.spaces import Degrees, Space
from planner.workload import frontier_run

H100 = load_accelerator("h100-sxm")
DENSE = FrontierQuestion(frontier_run(d_model=12288), H100, degrees=Degrees.SMOOTH)
SPARSE = FrontierQuestion(frontier_run(d_model=12288, sparse=True), H100, deadline=None)

# The published plan of the run: 192 layers, 3584 * 2048 tokens a batch, 2048 accelerators.
GOOD = FrontierLayout(
    tp_m=(4, 1),
    tp_ff=(2, 4),
    pp=(1, 64),
    dp=(1, 1),
    ep=(1, 1),
    microbatches=128,
    interleave=1,
    schedule=Schedule.ZERO_BUBBLE,
)
ONE_F_ONE_B = GOOD.model_copy(update={"schedule": Schedule.ONE_F_ONE_B, "interleave": 3})
EXPERTS = GOOD.model_copy(update={"ep": (1, 8), "microbatches": 128})


@pytest.mark.parametrize("space", list(Space))
@pytest.mark.parametrize("layout", [GOOD, ONE_F_ONE_B])
def test_sound_layouts_pass(layout, space):
    if space is Space.PAPER and layout is ONE_F_ONE_B:
        layout = layout.model_copy(update={"microbatches": 64})
    question = replace(DENSE, space=space)
    cost = check_frontier(question, layout, accelerators=2048)
    check_frontier(question, layout, objective=float(cost.utilization[0]))


def test_sound_sparse_layout_passes():
    check_frontier(SPARSE, EXPERTS)
    check_frontier(replace(SPARSE, space=Space.PAPER), EXPERTS)


def changed(base, **changes):
    return base.model_copy(update=changes)


BROKEN = {
    "levels missing": (DENSE, changed(GOOD, dp=(1,)), "every axis needs 2 degrees"),
    "degree zero": (DENSE, changed(GOOD, dp=(0, 1)), "degrees of at least 1"),
    "TPm": (DENSE, changed(GOOD, tp_m=(4, 5)), "TPm must divide d_model"),
    "TPff": (DENSE, changed(GOOD, tp_ff=(2, 5)), "TPff must divide d_ff"),
    "PP": (DENSE, changed(GOOD, pp=(1, 128)), "PP must divide the layers"),
    "DP": (DENSE, changed(GOOD, dp=(1, 9)), "DP times the microbatches must divide"),
    "DP m": (DENSE, changed(GOOD, dp=(1, 1 << 14)), "DP times the microbatches must divide"),
    "EP of a dense run": (DENSE, changed(GOOD, ep=(1, 2)), "EP must divide gcd(N, E)"),
    "EP": (SPARSE, changed(EXPERTS, ep=(1, 16)), "EP must divide gcd(N, E)"),
    "zero bubble and v": (DENSE, changed(GOOD, interleave=3), "zero bubble has no interleaving"),
    "zero bubble and m": (DENSE, changed(GOOD, microbatches=64), "zero bubble needs 2 PP microbatches"),
    "1F1B and m": (DENSE, changed(ONE_F_ONE_B, microbatches=32), "1F1B needs PP microbatches"),
    "1F1B and v": (DENSE, changed(ONE_F_ONE_B, interleave=2), "v must divide the layers per stage"),
    "v without pipeline": (DENSE, changed(ONE_F_ONE_B, pp=(1, 1)), "without a pipeline"),
    "level sizes": (DENSE, changed(GOOD, tp_m=(2, 2)), "multiply to (4, 512) per network level"),
    "partial node": (
        DENSE,
        changed(GOOD, tp_m=(1, 1), tp_ff=(12, 1), pp=(1, 1)),
        "do not fill whole network",
    ),
    "too few": (replace(DENSE, accelerators=(4096, 8192)), GOOD, "is outside 4,096..8,192"),
    "too many": (replace(DENSE, accelerators=(1, 1024)), GOOD, "is outside 1..1,024"),
    "power of two": (
        replace(DENSE, degrees=Degrees.POW2),
        changed(GOOD, tp_ff=(2, 12)),
        "TPff = 24 has a prime factor",
    ),
    "smooth": (DENSE, changed(GOOD, dp=(1, 7)), "DP = 7 has a prime factor"),
    "deadline": (replace(DENSE, deadline=4e6), GOOD, "deadline: training takes"),
    "memory": (
        replace(DENSE, accelerator=H100.model_copy(update={"memory_capacity": 1e9})),
        GOOD,
        "memory:",
    ),
    "published N": (
        replace(DENSE, space=Space.PAPER),
        changed(GOOD, tp_ff=(2, 12)),
        "N must be E times a power of two",
    ),
    "published EP": (
        replace(SPARSE, space=Space.PAPER),
        changed(EXPERTS, ep=(1, 4), dp=(1, 2)),
        "EP must be gcd(N, E) = 8",
    ),
    "published window, low": (
        replace(DENSE, space=Space.PAPER),
        changed(GOOD, tp_m=(8, 4), tp_ff=(1, 1)),
        "TPff must be from 5 to 20",
    ),
    "published window, high": (
        replace(DENSE, space=Space.PAPER),
        changed(GOOD, tp_m=(1, 1), tp_ff=(8, 4)),
        "TPff must be from 5 to 20",
    ),
    "published v": (
        replace(DENSE, space=Space.PAPER),
        changed(ONE_F_ONE_B, interleave=1, microbatches=64),
        "v must be L / PP = 3",
    ),
    "published m, 1F1B": (
        replace(DENSE, space=Space.PAPER),
        changed(ONE_F_ONE_B, microbatches=256),
        "the microbatches must be one of [64, 112, 128, 224], not 256",
    ),
    "published m, zero bubble": (
        replace(DENSE, space=Space.PAPER),
        changed(GOOD, microbatches=256),
        "the microbatches must be one of [128], not 256",
    ),
}


@pytest.mark.parametrize(("question", "layout", "rule"), BROKEN.values(), ids=BROKEN.keys())
def test_each_rule_is_named(question, layout, rule):
    with pytest.raises(RefutedError) as caught:
        check_frontier(question, layout)
    assert rule in str(caught.value)


def test_every_broken_rule_is_named_at_once():
    layout = changed(GOOD, tp_m=(4, 5), pp=(1, 128))
    with pytest.raises(RefutedError) as caught:
        check_frontier(replace(DENSE, deadline=1.0), layout)
    for rule in ("TPm must divide", "PP must divide", "zero bubble needs", "deadline"):
        assert rule in str(caught.value)


@pytest.mark.parametrize(
    ("objective", "value"),
    [
        (Objective.UTILIZATION, 0.6989935821907877),
        (Objective.ACCELERATORS, 2048),
        (Objective.TIME, 4557224.02964 / 86400),
    ],
)
def test_claims_are_compared(objective, value):
    question = replace(DENSE, objective=objective)
    check_frontier(question, GOOD, objective=value)
    with pytest.raises(RefutedError, match="not the claimed"):
        check_frontier(question, GOOD, objective=value * (1 + 1e-8))


def test_claimed_accelerators_are_compared():
    with pytest.raises(RefutedError, match=r"has 2,048 accelerators, the claim 4,096"):
        check_frontier(DENSE, GOOD, accelerators=4096)


def test_rounding_of_the_deadline_is_no_violation():
    days = check_frontier(DENSE, GOOD).train[0]
    assert violations(replace(DENSE, deadline=float(days) * (1 - 1e-14)), GOOD) == []
    assert violations(replace(DENSE, deadline=float(days) * (1 - 1e-10)), GOOD) != []


def test_allowed_primes():
    layout = changed(GOOD, dp=(1, 7))
    assert violations(replace(DENSE, degrees=Degrees.ANY), layout) == []
