"""Cost of a frontier layout: the specification that the solvers' claims are checked against.

Source: arXiv 2411.01137 and its public program (frontier-model.md, c-d).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost import collectives, matmul, memory, pipeline
from planner.hardware import Accelerator
from planner.layout import FrontierLayouts
from planner.workload import FrontierRun

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FrontierCost:
    """Itemised cost per batch of n layouts; every array has shape (n,) unless it says otherwise."""

    matmul: Floats  #: arithmetic and on-chip data movement of the slowest stage [s]
    tensor: Floats  #: tensor-parallel bandwidth time, the busiest level [s]
    tensor_levels: Floats  #: the same per level, shape (n, K) [s]
    point_to_point: Floats  #: pipeline and expert bandwidth time [s]
    bubble: Floats  #: bubble factor, >= 1
    tensor_latency: Floats  #: [s]
    point_to_point_latency: Floats  #: [s]
    data: Floats  #: gradient all-reduce, the busiest level [s]
    data_levels: Floats  #: the same per level, shape (n, K) [s]
    data_latency: Floats  #: [s]
    flow: Floats  #: slower of arithmetic and network, before the bubble [s]
    pipe: Floats  #: flow with bubble and exposed latency [s]
    batch: Floats  #: one optimizer step [s]
    train: Floats  #: the whole run [s]
    ideal: Floats  #: the batch's FLOP at datasheet peak [s]
    utilization: Floats  #: of datasheet peak
    memory_needed: Floats  #: over all accelerators [B]
    memory_available: Floats  #: over all accelerators [B]


def frontier_cost(
    run: FrontierRun, accelerator: Accelerator, layouts: FrontierLayouts, *, overlap_data: bool = False
) -> FrontierCost:
    """Evaluate layouts; no feasibility rule is applied here (see `planner.check`).

    Parameters
    ----------
    run : FrontierRun
        What is trained.
    accelerator : Accelerator
        Constants of one accelerator and its network of K levels.
    layouts : FrontierLayouts
        n layouts with K levels each.
    overlap_data : bool
        Hide the gradient all-reduce behind the pipeline (max instead of sum).
    """
    bandwidth = np.array([level.bandwidth for level in accelerator.network])
    latency = np.array([level.latency for level in accelerator.network])
    w, depth, batch = accelerator.word_bytes, run.layers, run.batch_tokens
    n = layouts.accelerators
    per_link = w / (n[:, None] * bandwidth)
    tp_m, tp_ff, pp, dp, ep = (getattr(layouts, x) for x in ("tp_m", "tp_ff", "pp", "dp", "ep"))
    total = {
        name: x.prod(axis=-1) for name, x in (("m", tp_m), ("ff", tp_ff), ("p", pp), ("d", dp), ("e", ep))
    }

    nanobatch = batch / (total["d"] * layouts.microbatches * run.experts)
    block = matmul.block_seconds(accelerator, run.d_model / total["m"], run.d_ff / total["ff"], nanobatch)
    arithmetic = depth / total["p"] * (run.experts / total["e"]) * layouts.microbatches * block

    words = collectives.all_reduce_share(tp_m) * run.d_ff + collectives.all_reduce_share(tp_ff) * run.d_model
    tensor_levels = 4 * depth * batch * words * per_link
    tensor_steps = collectives.all_reduce_steps(tp_m) + collectives.all_reduce_steps(tp_ff)
    tensor_latency = (4 * depth * latency * tensor_steps).sum(axis=-1)

    data_levels = 2 * collectives.all_reduce_share(dp) * run.parameters * per_link
    data_latency = (2 * latency * collectives.all_reduce_steps(dp)).sum(axis=-1)

    interfaces = 2.0 * (depth - 1)
    pipe_share = collectives.pipeline_crossings(pp, layouts.interleave, depth)
    share = collectives.higher_of(pipe_share, collectives.expert_crossings(ep))
    worst = collectives.higher_of(pipe_share, collectives.expert_crossings_worst(ep))
    point_to_point = (share * interfaces * batch * run.d_model * per_link).sum(axis=-1)
    point_latency = (worst * interfaces * latency).sum(axis=-1)

    tensor, data = tensor_levels.max(axis=-1), data_levels.max(axis=-1)
    bubble = pipeline.bubble_factor(total["p"], layouts.interleave, layouts.microbatches, layouts.zero_bubble)
    flow = np.maximum(arithmetic, tensor + point_to_point)
    pipe = flow * bubble + np.where(layouts.zero_bubble, 0.0, tensor_latency + point_latency)
    step = (np.maximum(pipe, data) if overlap_data else pipe + data) + data_latency
    ideal = run.flop_per_token * batch / (n * accelerator.peak)
    return FrontierCost(
        matmul=arithmetic,
        tensor=tensor,
        tensor_levels=tensor_levels,
        point_to_point=point_to_point,
        bubble=bubble,
        tensor_latency=tensor_latency,
        point_to_point_latency=point_latency,
        data=data,
        data_levels=data_levels,
        data_latency=data_latency,
        flow=flow,
        pipe=pipe,
        batch=step,
        train=run.batches * step,
        ideal=ideal,
        utilization=ideal / step,
        memory_needed=memory.frontier_bytes(run.parameters, total["d"], w),
        memory_available=n * accelerator.memory_capacity,
    )
