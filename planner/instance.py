"""Named questions as files: self-contained, so that they mean the same in ten years."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.errors import InputError
from planner.hardware import Accelerator, ShortText, nearest
from planner.question import MAX_ACCELERATORS, FrontierQuestion, Objective
from planner.spaces import Degrees, Space
from planner.workload import FrontierRun

#: Largest file that is read [B]; a self-contained question takes a few thousand.
LARGEST_FILE = 1 << 20


class Instance(BaseModel):
    """One question in full: run, every constant of the accelerator, what may be chosen, what is wanted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = Field(default=1, description="Version of this format.")
    name: ShortText = Field(description="Name of the instance, and of its file.")
    description: ShortText = Field(description="What is asked, in one line.")
    kind: Literal["frontier"] = Field(default="frontier", description="Which cost model.")
    run: FrontierRun = Field(description="The training run.")
    accelerator: Accelerator = Field(description="The accelerator and its network, every constant included.")
    space: Space = Field(description="What may be chosen.")
    degrees: Degrees = Field(description="Degrees of parallelism that are allowed.")
    objective: Objective = Field(description="What is optimised.")
    deadline: float | None = Field(
        gt=0, allow_inf_nan=False, description="Longest training time [s]; null for no limit."
    )
    accelerators: tuple[int, int] = Field(description="Smallest and largest cluster [accelerators].")
    overlap_data: bool = Field(default=False, description="Hide the gradient all-reduce behind the pipeline.")

    @property
    def question(self) -> FrontierQuestion:
        """The question itself."""
        return FrontierQuestion(
            run=self.run,
            accelerator=self.accelerator,
            space=self.space,
            degrees=self.degrees,
            objective=self.objective,
            deadline=self.deadline,
            accelerators=self.accelerators,
            overlap_data=self.overlap_data,
        )

    @classmethod
    def of(cls, name: str, description: str, question: FrontierQuestion) -> Instance:
        """An instance of a question."""
        fields = ("run", "accelerator", "space", "degrees", "objective", "deadline", "accelerators")
        given = {field: getattr(question, field) for field in (*fields, "overlap_data")}
        return cls(name=name, description=description, **given)

    def dumps(self) -> str:
        """The text of its file."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"


def instance_names() -> list[str]:
    """Names of the instances that come with the project, sorted."""
    folder = files("instances") / "questions"
    return sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json"))


def load_instance(name: str) -> Instance:
    """Read an instance by its name, or from a file by its path.

    Parameters
    ----------
    name : str
        A name of `instance_names`, or the path of a JSON file in the same format.

    Raises
    ------
    InputError
        Nothing of this name, or the file is wrong; says every field that is.
    """
    known = instance_names()
    if name in known:
        return _parsed((files("instances") / "questions" / f"{name}.json").read_bytes(), name)
    path = Path(name)
    if not name.endswith(".json") and "/" not in name:
        raise InputError.of("instance", name, f"no instance of this name, no file{nearest(name, known)}")
    try:
        if not path.is_file():
            raise InputError.of("instance", name, "there is no such file")
        with open(path, "rb") as stream:
            content = stream.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError.of("instance", name, f"cannot be read: {error}") from None
    if len(content) > LARGEST_FILE:
        raise InputError.of("instance", name, f"must be at most {LARGEST_FILE:,} bytes")
    return _parsed(content, name)


def _parsed(content: bytes, where: str) -> Instance:
    try:
        instance = Instance.model_validate_json(content)
    except ValidationError as error:
        raise InputError.from_validation(error, where) from None
    low, high = instance.accelerators
    if not 1 <= low <= high <= MAX_ACCELERATORS:
        raise InputError.of(
            f"{where}: accelerators", [low, high], f"must be 1 <= smallest <= largest <= {MAX_ACCELERATORS:g}"
        )
    run = instance.run
    flop = run.flop_per_token * run.tokens
    if not math.isclose(flop, run.flop, rel_tol=1e-9):
        raise InputError.of(f"{where}: run.flop", run.flop, f"must be 6 P D / E = {flop:g}")
    return instance
