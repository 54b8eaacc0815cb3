"""Where the utilization went: losses that lead from the sustained share down to it, and what binds.

With t_i the parts of a batch beyond the time of its FLOP at the sustained rate, utilization = s ideal / batch
gives ceiling - utilization = sum of s * t_i / batch: each part of the time is a loss, and the losses add up.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.frontier import FrontierCost
from planner.hardware import Accelerator

#: What each loss is called, in the order of the table.
LOSS_NAMES = {
    "kernel": "kernel and memory inefficiency",
    "tensor": "tensor traffic",
    "pipeline_expert": "pipeline and expert traffic",
    "bubble": "pipeline bubble",
    "data": "data parallel",
    "latency": "latency",
}


@dataclass(frozen=True)
class Binding:
    """What limits a plan."""

    flow: str  #: "matmul" or "network": the slower of the two before the bubble
    level: str | None  #: name of the busiest network level; None if nothing is sent
    level_traffic: str | None  #: "tensor" or "data": what keeps that level busy
    loss: str  #: largest loss, a key of LOSS_NAMES

    @property
    def text(self) -> str:
        """The same in words."""
        parts = [f"{'matrix multiplication' if self.flow == 'matmul' else 'the network'} limits the flow"]
        if self.level is not None:
            parts.append(f"the busiest network level is {self.level} ({self.level_traffic} parallel)")
        parts.append(f"the largest loss is {LOSS_NAMES[self.loss]}")
        return "; ".join(parts)


def lost_seconds(cost: FrontierCost, sustained_share: float, *, overlap_data: bool) -> dict[str, float]:
    """Time per batch beyond the sustained ideal, by cause [s]; with that ideal it adds up to the batch.

    Parameters
    ----------
    cost : FrontierCost
        Cost of one layout (arrays of length 1).
    sustained_share : float
        Share s of the peak that large multiplications sustain.
    overlap_data : bool
        Whether the gradient all-reduce hides behind the pipeline: then only what sticks out is lost.
    """
    arithmetic, flow, pipe = float(cost.matmul[0]), float(cost.flow[0]), float(cost.pipe[0])
    tensor, point = float(cost.tensor[0]), float(cost.point_to_point[0])
    network = flow - arithmetic
    share = tensor / (tensor + point) if network > 0 else 0.0
    bubble = flow * (float(cost.bubble[0]) - 1)
    hop = max(0.0, pipe - flow * float(cost.bubble[0]))
    data = float(cost.data[0])
    return {
        "kernel": max(0.0, arithmetic - float(cost.ideal[0]) / sustained_share),
        "tensor": network * share,
        "pipeline_expert": network * (1 - share),
        "bubble": bubble,
        "data": max(0.0, data - pipe) if overlap_data else data,
        "latency": hop + float(cost.data_latency[0]),
    }


def losses(cost: FrontierCost, sustained_share: float, *, overlap_data: bool) -> dict[str, float]:
    """Losses of utilization by cause: they add up to sustained share - utilization."""
    seconds = lost_seconds(cost, sustained_share, overlap_data=overlap_data)
    return {cause: sustained_share * t / float(cost.batch[0]) for cause, t in seconds.items()}


def binding(cost: FrontierCost, accelerator: Accelerator, lost: dict[str, float]) -> Binding:
    """What limits a plan with this cost and these losses."""
    busiest, level, traffic = 0.0, None, None
    for kind, levels in (("tensor", cost.tensor_levels[0]), ("data", cost.data_levels[0])):
        for k, seconds in enumerate(levels):
            if seconds > busiest:
                busiest, level, traffic = float(seconds), accelerator.network[k].name, kind
    return Binding(
        flow="matmul" if cost.matmul[0] >= cost.flow[0] else "network",
        level=level,
        level_traffic=traffic,
        loss=max(lost, key=lambda cause: lost[cause]),
    )
