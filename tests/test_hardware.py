"""The accelerator model: derived quantities, limits, and that every problem is reported."""

import json
import math

import pytest
from pydantic import ValidationError

from planner.hardware import LARGEST, Accelerator, NetworkLevel, constant_fields


def h100(**changes):
    fields = {
        "name": "x",
        "title": "X",
        "vendor": "V",
        "year": 2022,
        "units": 132,
        "flop_per_clock_per_unit": 4096,
        "max_clock": 1.83e9,
        "sustained_share": 0.7,
        "memory_capacity": 8e10,
        "memory_bandwidth": 3352e9,
        "l2_capacity": 50 * 2**20,
        "l2_bandwidth": 6441e9,
        "register_blocks_per_unit": 4,
        "register_bytes_per_block": 65536,
        "shared_memory_bytes_per_clock_per_unit": 128,
        "unit_network": True,
        "matmul_overhead": 4.5e-6,
        "network": [level(), level(name="cluster", size=None, bandwidth=5e10)],
        "sources": {"*": "the paper"},
    }
    return fields | changes


def level(**changes):
    return {"name": "node", "size": 8, "bandwidth": 4.5e11, "latency": 1.125e-6} | changes


def test_derived_quantities_are_those_of_the_paper():
    chip = Accelerator(**h100())
    assert chip.peak == 32 * 128 * 132 * 1.83e9
    assert chip.sustained == 0.7 * chip.peak
    assert chip.shared_memory_bandwidth == 32 * 4 * 132 * (0.7 * 1.83e9)
    assert chip.level_sizes == (8,)
    assert (chip.usable_share, chip.matmul_padding, chip.word_bytes) == (0.75, 8, 2)


def test_one_level_has_no_fixed_sizes():
    assert Accelerator(**h100(network=[level(size=None)])).level_sizes == ()


def test_it_is_frozen_hashable_and_survives_json():
    network = [level(), level(name="cluster", size=None, bandwidth="inf")]
    chip = Accelerator(**h100(network=network))
    again = Accelerator.model_validate(json.loads(chip.model_dump_json()))
    assert again == chip == Accelerator.model_validate_json(chip.model_dump_json())
    assert hash(again) == hash(chip)
    assert chip.network[1].bandwidth == math.inf
    with pytest.raises(ValidationError):
        chip.units = 1


def test_every_field_says_what_it_is():
    for model in (Accelerator, NetworkLevel):
        assert all(field.description for field in model.model_fields.values())
    numbers = [n for n, f in Accelerator.model_fields.items() if f.annotation is float]
    assert numbers
    for name in numbers:
        text = Accelerator.model_fields[name].description
        assert "[" in text or "hare" in text, f"{name} has no unit"


NUMBERS = [name for name, field in Accelerator.model_fields.items() if field.annotation in (int, float)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1, "8", True, None, [1], 10**400, 1e31])
@pytest.mark.parametrize("field", NUMBERS)
def test_numbers_are_finite_and_in_range(field, value):
    with pytest.raises(ValidationError) as caught:
        Accelerator(**h100(**{field: value}))
    assert [error["loc"] for error in caught.value.errors()] == [(field,)]


@pytest.mark.parametrize("field", [name for name in NUMBERS if name != "matmul_overhead"])
def test_zero_is_refused(field):
    with pytest.raises(ValidationError, match=field):
        Accelerator(**h100(**{field: 0}))


@pytest.mark.parametrize("field", ["sustained_share", "usable_share"])
def test_shares_end_at_one(field):
    assert getattr(Accelerator(**h100(**{field: 1})), field) == 1
    with pytest.raises(ValidationError, match=field):
        Accelerator(**h100(**{field: 1.01}))


def test_the_largest_constants_do_not_overflow():
    chip = Accelerator(**h100(flop_per_clock_per_unit=LARGEST, max_clock=LARGEST, units=10**9))
    assert math.isfinite(chip.peak / 1e-30)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bandwidth": 0}, "bandwidth"),
        ({"bandwidth": -1.0}, "bandwidth"),
        ({"bandwidth": math.nan}, "bandwidth"),
        ({"bandwidth": 1e300}, "at most 1e\\+30"),
        ({"bandwidth": 1e-300}, "at least 1e-30"),
        ({"bandwidth": "Infinity"}, "bandwidth"),
        ({"bandwidth": "4.5e11"}, "bandwidth"),
        ({"latency": math.inf}, "latency"),
        ({"latency": -1e-9}, "latency"),
        ({"size": 1}, "size"),
        ({"size": 8.0}, "size"),
        ({"size": True}, "size"),
        ({"name": ""}, "name"),
        ({"name": "a\x1b[31m"}, "name"),
        ({"speed": 1}, "speed"),
    ],
)
def test_bad_levels(changes, said):
    with pytest.raises(ValidationError, match=said):
        NetworkLevel(**level(**changes))


@pytest.mark.parametrize(
    ("network", "said"),
    [
        ([], "1 to 6 levels, not 0"),
        ([level(name=f"l{i}") for i in range(6)] + [level(size=None)], "1 to 6 levels, not 7"),
        ([level()], "outermost level \\(node\\) must have size null"),
        ([level(size=None), level(name="cluster", size=None)], "level 0 \\(node\\) needs a size"),
        ([level(), level(size=None)], "same name"),
        ([level(size=10**9), level(name="b"), level(name="c", size=None)], "together"),
        ("node", "network"),
        (None, "network"),
    ],
)
def test_bad_networks(network, said):
    with pytest.raises(ValidationError, match=said):
        Accelerator(**h100(network=network))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sources": {}}, "sources"),
        ({"sources": {"unit": "x"}}, "did you mean units"),
        ({"sources": {"*": ""}}, "sources"),
        ({"estimates": {"*": "all"}}, "is not a field"),
        ({"estimates": {"network.latenci": "x"}}, "did you mean network.latency"),
        ({"estimates": {"units": 3}}, "estimates"),
    ],
)
def test_bad_notes(changes, said):
    with pytest.raises(ValidationError, match=said):
        Accelerator(**h100(**changes))


def test_notes_may_speak_of_part_of_the_network():
    assert "network.latency" in constant_fields()
    Accelerator(**h100(estimates={"network.latency": "a guess", "l2_bandwidth": "scaled"}))


def test_all_problems_are_reported_at_once():
    bad = h100(units=0, max_clock="fast", network=[level()], sources={}, colour="green")
    del bad["vendor"]
    with pytest.raises(ValidationError) as caught:
        Accelerator(**bad)
    assert {e["loc"][0] for e in caught.value.errors()} == {
        "units",
        "max_clock",
        "network",
        "sources",
        "colour",
        "vendor",
    }
