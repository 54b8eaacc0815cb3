"""The JSON form of an outcome and its published schema."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from planner.outcome import Outcome


def render(outcome: Outcome) -> str:
    """The outcome as a JSON text in ASCII: strict JSON, with null for what is unknown."""
    return dumps(outcome.to_dict())


def dumps(data: Any) -> str:
    """Data as JSON text with a final newline."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def schema() -> dict[str, Any]:
    """JSON schema (draft 2020-12) of `Outcome.to_dict`."""
    loaded: dict[str, Any] = json.loads((files("planner.report") / "plan.schema.json").read_text("utf-8"))
    return loaded
