"""Layouts: totals, sizes, and arrays of them."""

import numpy as np
import pytest
from pydantic import ValidationError

from planner.layout import AXES, FrontierLayout, FrontierLayouts, Schedule

LAYOUT = FrontierLayout(
    tp_m=(4, 1),
    tp_ff=(2, 4),
    pp=(1, 64),
    dp=(1, 3),
    ep=(1, 2),
    microbatches=128,
    interleave=3,
    schedule=Schedule.ONE_F_ONE_B,
)


def test_derived_numbers():
    assert LAYOUT.totals == {"TPm": 4, "TPff": 8, "PP": 64, "DP": 3, "EP": 2}
    assert LAYOUT.accelerators == 4 * 8 * 64 * 3 * 2
    assert LAYOUT.level_sizes == (8, 4 * 64 * 3 * 2)
    assert tuple(LAYOUT.degrees) == AXES
    assert LAYOUT.degrees["TPff"] == (2, 4)


def test_large_products_are_exact():
    huge = LAYOUT.model_copy(update={"dp": (2**40, 2**40), "pp": (3**20, 1)})
    assert huge.accelerators == 4 * 8 * 2**80 * 3**20 * 2


def test_stack():
    other = LAYOUT.model_copy(update={"dp": (1, 1), "interleave": 1, "schedule": Schedule.ZERO_BUBBLE})
    both = FrontierLayouts.stack(iter([LAYOUT, other]))
    assert both.tp_ff.tolist() == [[2, 4], [2, 4]]
    assert both.dp.tolist() == [[1, 3], [1, 1]]
    assert both.microbatches.tolist() == [128, 128]
    assert both.interleave.tolist() == [3, 1]
    assert both.zero_bubble.tolist() == [False, True]
    assert both.accelerators.tolist() == [LAYOUT.accelerators, other.accelerators]
    assert both.tp_m.dtype == np.float64


@pytest.mark.parametrize(
    "wrong", [{"microbatches": 0}, {"interleave": 0}, {"schedule": "GPipe"}, {"cp": (1, 1)}, {"dp": (1, "x")}]
)
def test_wrong_layouts_are_refused(wrong):
    with pytest.raises(ValidationError):
        FrontierLayout.model_validate(LAYOUT.model_dump() | wrong)


def test_layouts_are_frozen():
    with pytest.raises(ValidationError):
        LAYOUT.interleave = 1


def test_json_round_trip():
    assert FrontierLayout.model_validate_json(LAYOUT.model_dump_json()) == LAYOUT
