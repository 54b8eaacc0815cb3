"""Cost of a layout: published points, the published results where present, an independent scalar model."""

import csv
import math
from dataclasses import fields

import numpy as np
import pytest

from planner.catalogue import load_accelerator
from planner.cost.frontier import FrontierCost, frontier_cost
from planner.errors import InputError
from planner.layout import FrontierLayout, FrontierLayouts, Schedule
from planner.reproduce import find_reference
from planner.workload import FrontierRun, frontier_run
from tests import scalar_model
from tests.samples import random_accelerator, random_layouts, random_question

ITEMS = (
    "matmul",
    "tensor",
    "point_to_point",
    "bubble",
    "tensor_latency",
    "point_to_point_latency",
    "data",
    "data_latency",
    "flow",
    "pipe",
    "batch",
    "train",
    "utilization",
    "memory_needed",
    "memory_available",
)


def levels(text):
    return tuple(int(x) for x in text.split("x"))


def layout(tp_m, tp_ff, pp, dp, ep, v, m, schedule):
    degrees = dict(
        zip(("tp_m", "tp_ff", "pp", "dp", "ep"), map(levels, (tp_m, tp_ff, pp, dp, ep)), strict=True)
    )
    return FrontierLayout(**degrees, microbatches=m, interleave=v, schedule=schedule)


ZB, F1B = Schedule.ZERO_BUBBLE, Schedule.ONE_F_ONE_B
# arXiv 2411.01137: accelerator, sparse, width, its FLOP, accelerators, utilization, layout.
PUBLISHED = [
    ("h100-sxm", 0, 12288, "6.45e+24", 2048, "0.699", ("4x1", "2x4", "1x64", "1x1", "1x1", 1, 128, ZB)),
    ("h100-sxm", 0, 53248, "2.05e+28", 2**23, "0.553", ("2x4", "4x16", "1x64", "1x256", "1x1", 1, 128, ZB)),
    ("h100-sxm", 0, 73728, "1.34e+29", 2**26, "0.432", ("4x8", "2x16", "1x256", "1x256", "1x1", 1, 512, ZB)),
    (
        "h100-sxm",
        0,
        196608,
        "2.71e+31",
        2**36,
        "0.052",
        ("1x64", "1x512", "1x64", "8x4096", "1x1", 24, 64, F1B),
    ),
    ("h100-sxm", 1, 36864, "6.83e+28", 24 << 20, "0.533", ("4x4", "2x8", "1x64", "1x64", "1x24", 1, 128, ZB)),
    (
        "h100-sxm",
        1,
        114688,
        "1.00e+32",
        72 << 32,
        "0.043",
        ("1x64", "1x256", "1x64", "8x512", "1x72", 16, 64, F1B),
    ),
    ("v100-sxm2", 0, 36864, "2.85e+27", 2**23, "0.478", ("2x2", "4x8", "1x64", "1x1024", "1x1", 7, 64, F1B)),
    (
        "v100-sxm2",
        1,
        20480,
        "1.57e+27",
        14 << 18,
        "0.632",
        ("4x2", "2x4", "1x32", "1x128", "1x14", 1, 64, ZB),
    ),
]


@pytest.mark.parametrize(
    ("name", "sparse", "width", "flop", "accelerators", "utilization", "plan"), PUBLISHED
)
def test_published_points(name, sparse, width, flop, accelerators, utilization, plan):
    run, given = frontier_run(d_model=width, sparse=bool(sparse)), layout(*plan)
    assert f"{run.flop:.2e}" == flop
    assert given.accelerators == accelerators
    cost = frontier_cost(run, load_accelerator(name), FrontierLayouts.stack([given]))
    assert f"{cost.utilization[0]:.3f}" == utilization
    assert cost.train[0] <= 7.885e6
    assert cost.memory_needed[0] <= cost.memory_available[0]


def test_one_published_result_to_the_last_digit():
    # The H100 dense run of 6.45e24 FLOP; seconds of the whole run.
    run = frontier_run(d_model=12288)
    cost = frontier_cost(run, load_accelerator("h100-sxm"), FrontierLayouts.stack([layout(*PUBLISHED[0][6])]))
    assert cost.utilization[0] == pytest.approx(0.6989935821907877, rel=1e-14)
    assert cost.train[0] == pytest.approx(4557224.029640298, rel=1e-14)
    assert cost.tensor[0] * run.batches == pytest.approx(2564940.7252758527, rel=1e-14)
    assert cost.point_to_point[0] * run.batches == pytest.approx(140270.1959135232, rel=1e-14)
    assert cost.data[0] == 0


@pytest.fixture(scope="module")
def rows():
    try:
        path = find_reference()
    except InputError as error:
        pytest.skip(f"the published results are not here: {error}")
    with open(path, encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_published_results(rows):
    assert len(rows) == 112
    for row in rows:
        run = frontier_run(d_model=int(row["d_model"]), sparse=row["sparse"] == "1")
        assert run.flop == float(row["training_flop"])
        for name in ("d_ff", "layers", "experts", "batch_tokens"):
            assert getattr(run, name) == int(row[name]), name
        given = [
            layout(
                *(row[f"{axis}_levels"] for axis in ("TPm", "TPff", "PP", "DP", "EP")),
                int(row["v"]),
                int(row["m"]),
                schedule,
            )
            for schedule in (F1B, ZB)
        ]
        assert given[0].accelerators == int(row["accelerators"])
        cost = frontier_cost(run, load_accelerator(row["accelerator"]), FrontierLayouts.stack(given))
        # The file does not say which schedule it was.
        i = int(np.argmin(np.abs(cost.utilization - float(row["utilization"]))))
        assert cost.utilization[i] == pytest.approx(float(row["utilization"]), rel=1e-12)
        latency = cost.tensor_latency[i] + cost.point_to_point_latency[i] + cost.data_latency[i]
        for seconds, column in (
            (cost.batch[i], "train_seconds"),
            (cost.tensor[i], "tp_seconds"),
            (cost.data[i], "dp_seconds"),
            (cost.point_to_point[i], "pp_ep_seconds"),
            (latency, "latency_seconds"),
        ):
            assert seconds * run.batches == pytest.approx(float(row[column]), rel=1e-12), column


def test_agrees_with_the_scalar_model():
    compared = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        question = random_question(rng)
        run, machine = question.run, question.accelerator
        given = random_layouts(rng, question, 20)
        if not given:
            continue
        cost = frontier_cost(run, machine, FrontierLayouts.stack(given), overlap_data=question.overlap_data)
        for i, one in enumerate(given):
            if run.layers % (one.totals["PP"] * one.interleave):
                continue
            wanted = scalar_model.cost(run, machine, one, overlap_data=question.overlap_data)
            for item in ITEMS:
                assert getattr(cost, item)[i] == pytest.approx(getattr(wanted, item), rel=1e-12, abs=1e-18), (
                    item
                )
            compared += 1
    assert compared > 500


def test_parts_add_up():
    rng = np.random.default_rng(5)
    question = random_question(rng)
    given = FrontierLayouts.stack(random_layouts(rng, question, 200))
    for overlap in (False, True):
        cost = frontier_cost(question.run, question.accelerator, given, overlap_data=overlap)
        n = len(given.microbatches)
        for item in fields(FrontierCost):
            shape = (n, len(question.accelerator.network)) if item.name.endswith("_levels") else (n,)
            assert getattr(cost, item.name).shape == shape, item.name
            assert np.all(np.isfinite(getattr(cost, item.name)))
        assert np.array_equal(cost.tensor, cost.tensor_levels.max(axis=-1))
        assert np.array_equal(cost.flow, np.maximum(cost.matmul, cost.tensor + cost.point_to_point))
        hop = np.where(given.zero_bubble, 0, cost.tensor_latency + cost.point_to_point_latency)
        assert np.array_equal(cost.pipe, cost.flow * cost.bubble + hop)
        bulk = np.maximum(cost.pipe, cost.data) if overlap else cost.pipe + cost.data
        assert np.array_equal(cost.batch, bulk + cost.data_latency)
        assert np.all(cost.utilization <= question.accelerator.sustained_share)


def test_one_accelerator_sends_nothing():
    run = FrontierRun(d_model=64, d_ff=256, layers=3, experts=1, batch_tokens=128, tokens=1e4, flop=1.0)
    machine = random_accelerator(np.random.default_rng(1))
    ones = "x".join("1" for _ in machine.network)
    alone = FrontierLayouts.stack([layout(ones, ones, ones, ones, ones, 1, 1, F1B)])
    cost = frontier_cost(run, machine, alone)
    assert cost.bubble[0] == 1
    for item in (
        "tensor",
        "point_to_point",
        "data",
        "tensor_latency",
        "point_to_point_latency",
        "data_latency",
    ):
        assert getattr(cost, item)[0] == 0
    assert cost.batch[0] == cost.matmul[0]


def test_an_unlimited_network_costs_latency_only():
    machine = load_accelerator("h100-sxm-infinite-network-low-latency")
    assert math.isinf(machine.network[0].bandwidth)
    cost = frontier_cost(
        frontier_run(d_model=12288),
        machine,
        FrontierLayouts.stack([layout("4", "4", "8", "8", "1", 2, 8, F1B)]),
    )
    assert cost.tensor[0] == cost.data[0] == cost.point_to_point[0] == 0
    assert cost.tensor_latency[0] == pytest.approx(2 * 4 * 192 * 1.125e-7)
    assert cost.data_latency[0] == pytest.approx(2 * 1.125e-7)
    # 15 of the 191 interfaces cross from one stage to the next, forward and backward.
    assert cost.point_to_point_latency[0] == pytest.approx(2 * 15 * 1.125e-7)
