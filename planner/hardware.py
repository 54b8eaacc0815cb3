"""Accelerators and the network levels that join them: validated constants in SI units."""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    field_validator,
)

#: Largest magnitude of a constant: products of a few of them stay far below the largest double.
LARGEST = 1e30
#: Smallest positive rate, for the same reason in quotients.
SMALLEST = 1e-30
#: Most members of one network level, and of all fixed levels together.
LARGEST_LEVEL = 10**9
#: Most network levels.
LEVELS = 6


def _one_line(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("must be one line of printable text")
    return text


def _read_infinity(value: Any) -> Any:
    return math.inf if isinstance(value, str) and value == "inf" else value


def _finite_or_infinity(value: float) -> float:
    if value > LARGEST and value != math.inf:
        raise ValueError(f'must be at most {LARGEST:g}, or "inf"')
    return value


def _not_tiny(value: float) -> float:
    if value < SMALLEST:
        raise ValueError(f"must be at least {SMALLEST:g}")
    return value


def _write_infinity(value: float) -> float | str:
    return "inf" if value == math.inf else value


ShortText = Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_one_line)]
Citation = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(_one_line)]
Rate = Annotated[float, Field(gt=0, le=LARGEST, allow_inf_nan=False), AfterValidator(_not_tiny)]
Capacity = Annotated[float, Field(ge=1, le=LARGEST, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=1e-6, le=1, allow_inf_nan=False)]
Bandwidth = Annotated[
    float,
    BeforeValidator(_read_infinity),
    Field(gt=0),
    AfterValidator(_not_tiny),
    AfterValidator(_finite_or_infinity),
    PlainSerializer(_write_infinity, when_used="json"),
]


class _Constants(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class NetworkLevel(_Constants):
    """One level of the network hierarchy, seen from one accelerator.

    Notes
    -----
    A collective spends ``(p - 1) / p * bytes / bandwidth`` and some multiple of ``latency`` at a level
    (Erdil & Schneider-Joseph 2024, arXiv:2411.01137; ``docs`` has the formulas).
    """

    name: ShortText = Field(description="Name of the level, such as node or cluster.")
    size: int | None = Field(
        ge=2,
        le=LARGEST_LEVEL,
        description="Members of one group of this level [count]: accelerators at the innermost level, groups "
        "of the level inside otherwise. null on the outermost level, and only there: it has no fixed size.",
    )
    bandwidth: Bandwidth = Field(
        description='One-way bandwidth per accelerator [B/s], > 0; the string "inf" for an unlimited '
        "network. Half of a bidirectional data-sheet figure."
    )
    latency: Seconds = Field(description="Latency per step of a collective or a transfer [s], >= 0.")


class Accelerator(_Constants):
    """The constants of one accelerator and of the network it sits in.

    Notes
    -----
    The fields are those of the matmul and communication model of Erdil & Schneider-Joseph,
    "Data movement limits to frontier model training" (arXiv:2411.01137). A *unit* is what the paper calls an
    SM: a compute unit of an AMD accelerator, a matrix unit (MXU) of a TPU. Every constant has a citation in
    ``sources`` or, where nothing is published, a reason in ``estimates``.
    """

    name: ShortText = Field(description="Catalogue name.")
    title: ShortText = Field(description="Name for tables and reports.")
    vendor: ShortText = Field(description="Manufacturer.")
    year: int = Field(ge=1950, le=2200, description="Year of first availability.")
    units: int = Field(
        ge=1, le=10**9, description="Units (SMs; CUs on AMD, MXUs on a TPU) of one accelerator [count]."
    )
    flop_per_clock_per_unit: Rate = Field(
        description="Dense FLOP per clock and unit in the working precision [FLOP/clock]; a multiply-add is "
        "2. H100: 32 per thread * 128 threads = 4096."
    )
    max_clock: Rate = Field(description="Clock at which the data-sheet peak holds [Hz].")
    sustained_share: Share = Field(
        description="Share of the peak that large matmuls sustain under the power limit, in (0, 1]; it "
        "scales the clock."
    )
    memory_capacity: Capacity = Field(description="Off-chip memory (HBM) [B].")
    memory_bandwidth: Rate = Field(description="Off-chip memory (HBM) bandwidth [B/s].")
    l2_capacity: Capacity = Field(description="Last on-chip level shared by all units (L2) [B].")
    l2_bandwidth: Rate = Field(description="Bandwidth between that level and the units [B/s].")
    register_blocks_per_unit: int = Field(
        ge=1, le=10**6, description="Processing blocks per unit, each with its own registers [count]."
    )
    register_bytes_per_block: int = Field(
        ge=1, le=10**12, description="Registers of one processing block [B]; 65536 on NVIDIA SMs."
    )
    shared_memory_bytes_per_clock_per_unit: Rate = Field(
        description="Shared-memory bytes per clock and unit [B/clock]; 32 banks * 4 B = 128 on NVIDIA SMs."
    )
    unit_network: bool = Field(
        description="Whether units read each other's shared memory (DSMEM of Hopper and Blackwell)."
    )
    matmul_overhead: Seconds = Field(description="Fixed time of one matmul, launch included [s].")
    usable_share: Share = Field(
        default=0.75, description="Share of L2 and of the registers that tiles may fill, in (0, 1]."
    )
    matmul_padding: int = Field(
        default=8,
        ge=1,
        le=10**6,
        description="Matmul dimensions are rounded up to multiples of this [elements].",
    )
    word_bytes: int = Field(
        default=2, ge=1, le=64, description="Bytes per word in the working precision [B]."
    )
    network: Annotated[tuple[NetworkLevel, ...], Field(strict=False)] = Field(
        description="Network levels, innermost first, 1 to 6; the last one has size null."
    )
    sources: dict[str, Citation] = Field(
        min_length=1, description='Citation per field; "*" for all fields not named here or in estimates.'
    )
    estimates: dict[str, Citation] = Field(
        default_factory=dict, description="For each field without a published value: why, and how it was got."
    )

    @field_validator("network")
    @classmethod
    def _check_network(cls, levels: tuple[NetworkLevel, ...]) -> tuple[NetworkLevel, ...]:
        # Checked here because pydantic's own limits would count only the levels that are valid.
        if not 1 <= len(levels) <= LEVELS:
            raise ValueError(f"must have 1 to {LEVELS} levels, not {len(levels)}")
        wrong = [
            f"level {i} ({level.name}) needs a size: only the outermost level has none"
            for i, level in enumerate(levels[:-1])
            if level.size is None
        ]
        if levels[-1].size is not None:
            wrong.append(f"the outermost level ({levels[-1].name}) must have size null")
        if math.prod(level.size or 1 for level in levels[:-1]) > LARGEST_LEVEL:
            wrong.append(f"the fixed levels together have more than {LARGEST_LEVEL:g} members")
        if len({level.name for level in levels}) < len(levels):
            wrong.append("two levels have the same name")
        if wrong:
            raise ValueError("; ".join(wrong))
        return levels

    @field_validator("sources", "estimates")
    @classmethod
    def _check_keys(cls, notes: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        known = constant_fields() if info.field_name == "estimates" else ("*", *constant_fields())
        wrong = [key for key in notes if key not in known]
        if wrong:
            said = [f"{key[:60]!r} is not a field{nearest(key, known)}" for key in wrong[:10]]
            raise ValueError("; ".join(said + ["and more"] * (len(wrong) > 10)))
        return notes

    @property
    def peak(self) -> float:
        """Data-sheet peak in the working precision [FLOP/s]."""
        return self.units * self.flop_per_clock_per_unit * self.max_clock

    @property
    def sustained(self) -> float:
        """Throughput that large matmuls sustain [FLOP/s]: ``sustained_share * peak``."""
        return self.sustained_share * self.peak

    @property
    def shared_memory_bandwidth(self) -> float:
        """Shared-memory bandwidth of all units at the sustained clock [B/s]."""
        per_clock = self.shared_memory_bytes_per_clock_per_unit * self.units
        return per_clock * (self.sustained_share * self.max_clock)

    @property
    def level_sizes(self) -> tuple[int, ...]:
        """Sizes of the network levels inside the outermost one, innermost first [count]."""
        return tuple(level.size for level in self.network if level.size is not None)

    def __hash__(self) -> int:
        # The generated hash would fail on the two dictionaries of notes.
        return hash((self.name, self.peak, self.memory_capacity, self.network))


def constant_fields() -> tuple[str, ...]:
    """Names that ``sources`` and ``estimates`` may use: the fields, and ``network.`` with a level's field."""
    own = tuple(name for name in Accelerator.model_fields if name not in ("sources", "estimates"))
    return own + tuple(f"network.{name}" for name in NetworkLevel.model_fields)


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint naming the known words nearest to `word`, or an empty string."""
    found = get_close_matches(word[:100], list(known), n=3)
    return f" (did you mean {' or '.join(found)}?)" if found else ""
