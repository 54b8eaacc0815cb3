"""Runs from FLOP, from a width, or from both."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from planner import scaling
from planner.errors import InputError
from planner.scaling import BatchLaw
from planner.workload import MAX_FLOP, MAX_WIDTH, MIN_FLOP, MIN_WIDTH, FrontierRun, frontier_run


def test_the_compute_optimal_run_of_a_width():
    run = frontier_run(d_model=12288)
    assert (run.d_ff, run.layers, run.experts) == (49152, 192, 1)
    assert run.parameters == 231928233984
    assert run.tokens == 20 * run.parameters
    assert run.batch_tokens == 7340032
    assert run.flop == 6.454884686272446e24
    assert run.batches == run.tokens / 7340032


def test_sparse():
    run = frontier_run(d_model=12288, sparse=True)
    assert run.experts == 8
    assert run.parameters == 8 * 231928233984
    assert run.batch_tokens == 29360128
    assert run.flop == pytest.approx(6 * run.parameters * run.tokens / 8, rel=1e-15)
    assert run.flop_per_token == 6 * run.parameters / 8


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(
    st.floats(18.001, 37.999), st.booleans(), st.sampled_from(BatchLaw), st.sampled_from([None, 1000, 12288])
)
def test_flop_is_what_was_asked(exponent, sparse, law, width):
    flop = 10**exponent
    run = frontier_run(flop, d_model=width, sparse=sparse, batch_law=law)
    assert run.flop == flop
    assert run.flop_per_token * run.tokens == pytest.approx(flop, rel=1e-14)
    assert run.d_ff == 4 * run.d_model
    assert run.layers == scaling.layers(run.d_model, run.d_ff)
    assert run.d_model == (width or scaling.nearest_width(flop, sparse=sparse))
    assert run.batch_tokens == scaling.batch_tokens(flop, run.experts, law)
    assert run.batch_tokens % run.experts == 0


def test_limits_are_included():
    for flop in (MIN_FLOP, MAX_FLOP):
        assert frontier_run(flop).flop == flop
    for width in (MIN_WIDTH, MAX_WIDTH):
        assert frontier_run(1e24, d_model=width).d_model == width


@pytest.mark.parametrize("flop", [0, -1e28, 1, 9e17, 1.1e38, float("inf"), float("nan")])
def test_flop_out_of_range(flop):
    with pytest.raises(InputError, match="must be a number of FLOP from 1e\\+18 to 1e\\+38"):
        frontier_run(flop)


def test_every_problem_is_named():
    with pytest.raises(InputError) as caught:
        frontier_run(0.0, d_model=1)
    assert [p.field for p in caught.value.problems] == ["flop", "d_model"]


def test_something_must_be_given():
    with pytest.raises(InputError, match="--flop"):
        frontier_run()


def test_runs_are_validated_and_frozen():
    fields = {
        "d_model": 8,
        "d_ff": 32,
        "layers": 2,
        "experts": 1,
        "batch_tokens": 4,
        "tokens": 8.0,
        "flop": 1e5,
    }
    run = FrontierRun(**fields)
    assert run.parameters == 1024
    for wrong in ({"layers": 0}, {"tokens": 0.0}, {"unknown": 1}):
        with pytest.raises(ValidationError):
            FrontierRun(**fields | wrong)
    with pytest.raises(ValidationError):
        run.layers = 3
