"""The answer to a question: what is known, why it stopped, and the plan itself. None means unknown."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from planner.cost.frontier import FrontierCost
from planner.layout import FrontierLayout
from planner.losses import Binding, binding, losses
from planner.question import FrontierQuestion

#: Version of the JSON form; raised when a field changes its meaning or goes away.
SCHEMA_VERSION = 1
DAY = 86400.0
#: Parts of a batch's time that are reported.
ITEMS = (
    "matmul",
    "tensor",
    "point_to_point",
    "tensor_latency",
    "point_to_point_latency",
    "data",
    "data_latency",
    "flow",
    "pipe",
    "batch",
    "ideal",
)


class Status(StrEnum):
    """What is known."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    NO_PLAN = "no_plan"


@dataclass(frozen=True)
class Plan:
    """A layout with everything the cost functions say about it."""

    layout: FrontierLayout
    accelerators: int
    utilization: float  #: of datasheet peak
    days: float
    losses: dict[str, float]  #: by cause; they add up to ceiling - utilization
    binding: Binding
    seconds_per_batch: dict[str, float]
    memory_needed: float  #: per accelerator [B]
    memory_available: float  #: per accelerator [B]

    @classmethod
    def of(cls, question: FrontierQuestion, layout: FrontierLayout, cost: FrontierCost) -> Plan:
        """Gather a checked layout and its cost (arrays of length 1)."""
        share = question.accelerator.sustained_share
        lost = losses(cost, share, overlap_data=question.overlap_data)
        return cls(
            layout=layout,
            accelerators=layout.accelerators,
            utilization=float(cost.utilization[0]),
            days=float(cost.train[0]) / DAY,
            losses=lost,
            binding=binding(cost, question.accelerator, lost),
            seconds_per_batch={item: float(getattr(cost, item)[0]) for item in ITEMS},
            memory_needed=float(cost.memory_needed[0]) / layout.accelerators,
            memory_available=float(cost.memory_available[0]) / layout.accelerators,
        )


@dataclass(frozen=True)
class Seconds:
    """Wall time of an answer [s]."""

    build: float = 0.0
    solve: float = 0.0
    total: float = 0.0


@dataclass(frozen=True)
class Nearest:
    """A feasible answer close to a question that has none."""

    what: str  #: "days", "flop", "flop_same_model" or "accelerators": what was changed
    flop: float
    days: float
    accelerators: int
    utilization: float
    proven: bool  #: whether nothing nearer exists (of what was changed)


@dataclass(frozen=True)
class Advice:
    """Why a question has no answer, and what would have one."""

    limits: tuple[str, ...]  #: "deadline", "accelerators", "memory", "layout": dropping one of them helps
    message: str
    nearest: tuple[Nearest, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """The answer to a frontier question."""

    question: FrontierQuestion
    status: Status
    termination: str  #: why the formulation stopped
    detail: str  #: the same in words
    formulation: str | None = None  #: None if a given layout was evaluated
    solver: str | None = None
    plan: Plan | None = None
    bound: float | None = None  #: best possible utilization, accelerators or days, as the objective says
    gap: float | None = None  #: relative distance between the plan and the bound
    root_bound: float | None = None  #: bound of the first relaxation, where it was asked for
    space_size: int | None = None  #: layouts the question ranges over
    nodes: int | None = None
    seconds: Seconds = field(default_factory=Seconds)
    advice: Advice | None = None

    @property
    def ceiling(self) -> float:
        """Utilization of a plan without any loss: the sustained share of the peak."""
        return self.question.accelerator.sustained_share

    def to_dict(self) -> dict[str, Any]:
        """JSON form, described by `planner/report/plan.schema.json`."""
        plan = self.plan
        bind = plan.binding if plan else None
        return {
            "schema_version": SCHEMA_VERSION,
            "status": self.status.value,
            "termination": self.termination,
            "detail": self.detail,
            "objective": self.question.objective.value,
            "flop": self.question.run.flop,
            "accelerators": plan.accelerators if plan else None,
            "days": plan.days if plan else None,
            "utilization": plan.utilization if plan else None,
            "ceiling": self.ceiling,
            "bound": self.bound,
            "gap": self.gap,
            "root_bound": self.root_bound,
            "layout": layout_to_dict(plan.layout) if plan else None,
            "losses": dict(plan.losses) if plan else None,
            "binding": {
                "flow": bind.flow,
                "level": bind.level,
                "level_traffic": bind.level_traffic,
                "loss": bind.loss,
                "text": bind.text,
            }
            if bind
            else None,
            "seconds_per_batch": dict(plan.seconds_per_batch) if plan else None,
            "memory": {"needed": plan.memory_needed, "available": plan.memory_available} if plan else None,
            "formulation": self.formulation,
            "solver": self.solver,
            "space_size": self.space_size,
            "nodes": self.nodes,
            "seconds": {
                "build": self.seconds.build,
                "solve": self.seconds.solve,
                "total": self.seconds.total,
            },
            "advice": _advice_to_dict(self.advice),
            "question": question_to_dict(self.question),
        }


def layout_to_dict(layout: FrontierLayout) -> dict[str, Any]:
    """One entry per axis with its degree and its degree at each network level, innermost first."""
    axes = {a: {"degree": math.prod(d), "levels": list(d)} for a, d in layout.degrees.items()}
    return axes | {
        "v": layout.interleave,
        "microbatches": layout.microbatches,
        "schedule": layout.schedule.value,
    }


def question_to_dict(question: FrontierQuestion) -> dict[str, Any]:
    """What was asked."""
    run, accelerator = question.run, question.accelerator
    low, high = question.accelerators
    return {
        "d_model": run.d_model,
        "d_ff": run.d_ff,
        "layers": run.layers,
        "experts": run.experts,
        "parameters": run.parameters,
        "tokens": run.tokens,
        "batch_tokens": run.batch_tokens,
        "accelerator": accelerator.name,
        "peak": accelerator.peak,
        "network": [
            {
                "name": level.name,
                "size": level.size,
                "bandwidth": None if math.isinf(level.bandwidth) else level.bandwidth,
                "latency": level.latency,
            }
            for level in accelerator.network
        ],
        "space": question.space.value,
        "degrees": question.degrees.value,
        "deadline_days": None if question.deadline is None else question.deadline / DAY,
        "accelerators": [low, high],
        "overlap_data": question.overlap_data,
    }


def _advice_to_dict(advice: Advice | None) -> dict[str, Any] | None:
    if advice is None:
        return None
    return {
        "limits": list(advice.limits),
        "message": advice.message,
        "nearest": [dict(vars(n)) for n in advice.nearest],
    }
