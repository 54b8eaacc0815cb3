"""A layout given by hand: from a JSON file, options, or both (options win)."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from typing import Any

from planner.errors import InputError, Problem
from planner.layout import FrontierLayout, Schedule

#: Axis of the JSON form, by the field of the layout and by the option.
AXIS_FIELDS = {"TPm": "tp_m", "TPff": "tp_ff", "PP": "pp", "DP": "dp", "EP": "ep"}
NUMBER_FIELDS = {"microbatches": "microbatches", "v": "interleave"}
#: Largest file and largest degree that are read.
LARGEST_FILE, LARGEST_DEGREE = 1 << 20, 10**15


def read_layout(path: str | None, options: Mapping[str, str | None]) -> FrontierLayout:
    """Put a layout together.

    Parameters
    ----------
    path : str, optional
        A JSON file: a layout as `plan --format json` writes it, or that whole output.
    options : mapping
        Text by JSON name (TPm, TPff, PP, DP, EP as 4x1, microbatches, v, schedule), None where not given.

    Raises
    ------
    InputError
        Names every problem.
    """
    data = {} if path is None else _from_file(path)
    data |= {name: text for name, text in options.items() if text is not None}
    problems: list[Problem] = []
    fields: dict[str, Any] = {}
    known = {*AXIS_FIELDS, *NUMBER_FIELDS, "schedule"}
    problems += [
        Problem(name[:60], data[name], "unknown field of a layout") for name in data if name not in known
    ]
    for name in (*AXIS_FIELDS, *NUMBER_FIELDS):
        value = data.get(name, "1" if name == "v" else None)
        rule = None
        if value is None:
            rule = "is missing: give it in the file or as an option"
        elif name in AXIS_FIELDS:
            fields[AXIS_FIELDS[name]] = levels = _levels(value)
            if not levels:
                rule = "must be whole degrees from 1, one per network level, like 4x1 (node first)"
            elif isinstance(value, dict) and "degree" in value and value["degree"] != _product(levels):
                rule = f"the degree is not the product of its levels, {_product(levels)}"
        else:
            fields[NUMBER_FIELDS[name]] = number = _whole(value)
            rule = None if number else "must be a whole number from 1"
        if rule:
            problems.append(Problem(name, value, rule))
    schedule = data.get("schedule", Schedule.ONE_F_ONE_B.value)
    if schedule not in list(Schedule):
        problems.append(Problem("schedule", schedule, f"must be one of {', '.join(Schedule)}"))
    lengths = {len(fields[f]) for f in AXIS_FIELDS.values() if fields.get(f)}
    if len(lengths) > 1:
        problems.append(
            Problem("layout", sorted(lengths), "the axes have different numbers of network levels")
        )
    if problems:
        raise InputError(problems)
    return FrontierLayout(**fields, schedule=Schedule(schedule))


def _product(levels: tuple[int, ...]) -> int:
    out = 1
    for degree in levels:
        out *= degree
    return out


def _levels(value: Any) -> tuple[int, ...]:
    """Degrees per level of 4x1, [4, 1] or {"levels": [4, 1]}; empty if it is none of them."""
    if isinstance(value, dict):
        value = value.get("levels")
    if isinstance(value, str):
        value = value.lower().split("x")
    if not isinstance(value, list) or not 1 <= len(value) <= 16:
        return ()
    found = tuple(_whole(x) for x in value)
    return found if all(found) else ()


def _whole(value: Any) -> int:
    """A whole number from 1; 0 if it is not one."""
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value) <= 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_DEGREE:
        return 0
    return value


def _from_file(path: str) -> dict[str, Any]:
    """The layout object in a JSON file."""

    def refuse(rule: str) -> InputError:
        return InputError.of("layout file", path, rule)

    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise refuse("is not a regular file")
        if status.st_size > LARGEST_FILE:
            raise refuse(f"is larger than {LARGEST_FILE} bytes")
        with open(path, encoding="utf-8-sig") as stream:
            data = json.loads(stream.read(LARGEST_FILE))
    except InputError:
        raise
    except RecursionError:
        raise refuse("is nested too deeply") from None
    except OSError as error:
        raise refuse(f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise refuse(f"is not a JSON text in UTF-8: {error}") from None
    if isinstance(data, dict) and "layout" in data:
        data = data["layout"]
    if not isinstance(data, dict):
        raise refuse("holds no layout: there is no object with the axes")
    return data
