"""The plan itself: degrees per axis and network level, microbatches, interleaving, schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

#: The axes of parallelism of the frontier model, in the order everything uses. TP = TPm * TPff.
AXES = ("TPm", "TPff", "PP", "DP", "EP")


class Schedule(StrEnum):
    """Pipeline schedule."""

    ONE_F_ONE_B = "1F1B"
    ZERO_BUBBLE = "zero-bubble"


Degrees = tuple[int, ...]


class FrontierLayout(BaseModel):
    """One layout of a frontier run: each axis' degree at each network level, innermost first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tp_m: Degrees = Field(description="2-D tensor parallelism over d_model, per level")
    tp_ff: Degrees = Field(description="2-D tensor parallelism over d_ff, per level")
    pp: Degrees = Field(description="pipeline parallelism, per level")
    dp: Degrees = Field(description="data parallelism, per level")
    ep: Degrees = Field(description="expert parallelism, per level")
    microbatches: int = Field(ge=1, description="microbatches m per pipeline and batch")
    interleave: int = Field(ge=1, description="virtual stages v per device")
    schedule: Schedule = Field(description="pipeline schedule")

    @property
    def degrees(self) -> dict[str, Degrees]:
        """Degrees per level by the name of the axis."""
        return dict(zip(AXES, (self.tp_m, self.tp_ff, self.pp, self.dp, self.ep), strict=True))

    @property
    def totals(self) -> dict[str, int]:
        """Degree of each axis over all levels."""
        return {axis: math.prod(per_level) for axis, per_level in self.degrees.items()}

    @property
    def accelerators(self) -> int:
        """N, the product of all degrees."""
        return math.prod(self.totals.values())

    @property
    def level_sizes(self) -> Degrees:
        """Members of each network level in use."""
        return tuple(math.prod(column) for column in zip(*self.degrees.values(), strict=True))


@dataclass(frozen=True)
class FrontierLayouts:
    """Many layouts as arrays: what the cost functions take.

    Degrees are floating point: their products pass 2^63 long before they lose a digit (odd parts are small).
    """

    tp_m: NDArray[np.float64]  #: shape (n, K)
    tp_ff: NDArray[np.float64]  #: shape (n, K)
    pp: NDArray[np.float64]  #: shape (n, K)
    dp: NDArray[np.float64]  #: shape (n, K)
    ep: NDArray[np.float64]  #: shape (n, K)
    microbatches: NDArray[np.float64]  #: shape (n,)
    interleave: NDArray[np.float64]  #: shape (n,)
    zero_bubble: NDArray[np.bool_]  #: shape (n,)

    @classmethod
    def stack(cls, layouts: Iterable[FrontierLayout]) -> FrontierLayouts:
        """Arrays of these layouts, which must have the same number of levels."""
        rows = list(layouts)

        def floats(field: str) -> NDArray[np.float64]:
            return np.array([getattr(x, field) for x in rows], dtype=np.float64)

        return cls(
            tp_m=floats("tp_m"),
            tp_ff=floats("tp_ff"),
            pp=floats("pp"),
            dp=floats("dp"),
            ep=floats("ep"),
            microbatches=floats("microbatches"),
            interleave=floats("interleave"),
            zero_bubble=np.array([x.schedule is Schedule.ZERO_BUBBLE for x in rows]),
        )

    @property
    def accelerators(self) -> NDArray[np.float64]:
        """N of each layout, shape (n,)."""
        every = self.tp_m * self.tp_ff * self.pp * self.dp * self.ep
        return np.asarray(every.prod(axis=-1))
