"""Find and read accelerators: from the catalogue in `instances`, or from a user's JSON file."""

from __future__ import annotations

import json
import math
import os
import stat
from collections import Counter
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from planner.errors import VALUE_WIDTH, InputError, Problem

if TYPE_CHECKING:
    from pydantic import ValidationError

    from planner.hardware import Accelerator

#: Largest accelerator file [B].
LARGEST_FILE = 1 << 20
#: Deepest chain of files through "extends".
DEEPEST_CHAIN = 8
#: Deepest nesting of a file's JSON; the format itself needs 3.
DEEPEST_NESTING = 16
#: Longest number in a file [characters]; Python refuses integers beyond 4300 digits with a bare ValueError.
LONGEST_NUMBER = 100
#: Problems of one file that are reported one by one.
PROBLEMS_SHOWN = 50

_NOTES = ("sources", "estimates")
_LABELS = {"name", "title", "vendor", "year"}


def accelerator_names() -> tuple[str, ...]:
    """Names of the catalogue's accelerators, sorted."""
    folder = files("instances") / "accelerators"
    return tuple(sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json")))


def load_accelerator(name_or_path: str) -> Accelerator:
    """Read an accelerator by catalogue name, or from a JSON file in the catalogue's format.

    Parameters
    ----------
    name_or_path
        A catalogue name in any case, or the path of a file: something with a path separator, ending in
        ``.json``, or existing. A file with ``"extends": NAME_OR_PATH`` (a path relative to that file) gives
        only what differs from another accelerator.

    Raises
    ------
    InputError
        If there is no such accelerator, or its file cannot be read or is wrong; names every problem.
    """
    from pydantic import ValidationError

    from planner.hardware import Accelerator

    place = _find(name_or_path, None, "accelerator")
    data = _gather(place)
    try:
        return Accelerator.model_validate(data)
    except ValidationError as error:
        raise _explain(error, place.label) from None


@dataclass(frozen=True)
class _Place:
    """Where an accelerator is described: a catalogue name, or the path of a file."""

    name: str
    path: Path | None

    @property
    def label(self) -> str:
        """The place for messages: the end of a long path, where the file's name is."""
        text = self.name if self.path is None else str(self.path)
        text = text if text.isprintable() else ascii(text)
        room = VALUE_WIDTH - 2
        return text if len(text) <= room else "..." + text[3 - room :]


def _find(wanted: str, beside: Path | None, field: str) -> _Place:
    """Resolve a catalogue name, or a path relative to the folder `beside`."""
    names = accelerator_names()
    if wanted.lower() in names:
        return _Place(wanted.lower(), None)
    if wanted and _possible(wanted):
        path = (beside or Path()) / wanted
        separated = any(s in wanted for s in {os.sep, os.altsep or os.sep, "/"})
        if separated or wanted.lower().endswith(".json") or os.path.lexists(path):
            return _Place(path.stem, path)
    near = get_close_matches(wanted[:100].lower(), names, n=3)
    known = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(names)}"
    raise InputError.of(field, wanted, f"no accelerator of this name and no such file; {known}")


def _possible(path: str) -> bool:
    """Whether the system can name a file so: no NUL, no half of a surrogate pair."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def _gather(place: _Place) -> dict[str, Any]:
    """Read `place` and whatever it extends, and merge."""
    chain: list[tuple[_Place, dict[str, Any]]] = []
    seen: set[object] = set()
    while True:
        key = place.name if place.path is None else Path(os.path.realpath(place.path))
        if key in seen or len(chain) > DEEPEST_CHAIN:
            rule = "the files extend each other" if key in seen else f"more than {DEEPEST_CHAIN} in a row"
            raise InputError.of(f"{chain[-1][0].label}: extends", place.label, rule)
        seen.add(key)
        data = _parse(_read(place), place)
        chain.append((place, data))
        if "extends" not in data:
            break
        base, field = data.pop("extends"), f"{place.label}: extends"
        if not isinstance(base, str):
            raise InputError.of(field, base, "must be a catalogue name or the path of a file")
        place = _find(base, place.path.parent if place.path else None, field)
    merged = chain[-1][1]
    for where, data in reversed(chain[:-1]):
        merged = _extend(merged, data, where)
    return merged


def _extend(base: dict[str, Any], data: dict[str, Any], place: _Place) -> dict[str, Any]:
    """`base` changed by `data`; notes on a field that `data` gives anew do not outlive its old value."""
    from planner.hardware import constant_fields

    merged = base | data
    if "name" not in data:
        merged["name"] = place.name
        if "title" not in data and isinstance(base.get("title"), str):
            merged["title"] = f"{base['title'].removesuffix(' (changed)')[:90]} (changed)"
    new = set(data) - {"sources", "estimates"}
    sides = ((False, base), (True, data))
    notes = {(kind, own): side.get(kind, {}) for kind in _NOTES for own, side in sides}
    if not all(isinstance(note, dict) for note in notes.values()):
        return merged
    for kind in _NOTES:
        kept = {key: note for key, note in notes[kind, False].items() if _field(key) not in new}
        merged[kind] = kept | {key: note for key, note in notes[kind, True].items() if key != "*"}
    # "*" speaks of its own file only, so each value that is new here gets its source by name.
    sources = merged["sources"]
    source = notes["sources", True].get("*", f"stated in {place.label}")
    noted = {_field(key) for kind in _NOTES for key in notes[kind, True]}
    sources |= dict.fromkeys(sorted(new & set(constant_fields()) - noted - _LABELS), source)
    return merged


def _field(key: str) -> str:
    """The field a note speaks of: `network` for ``network.latency``."""
    return key.split(".")[0]


def _read(place: _Place) -> bytes:
    """The bytes of a regular file of bounded size."""
    if place.path is None:
        return (files("instances") / "accelerators" / f"{place.name}.json").read_bytes()

    def refuse(rule: str) -> NoReturn:
        raise InputError.of("accelerator", place.label, rule)

    try:
        # Before opening, since opening a pipe waits for a writer and opening a device can act on it.
        kind = os.stat(place.path).st_mode
        if stat.S_ISDIR(kind):
            refuse("is a directory, not a file")
        if not stat.S_ISREG(kind):
            refuse("is not a regular file")
        handle = os.open(place.path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                refuse("is not a regular file")
            if status.st_size > LARGEST_FILE:
                refuse(f"has {status.st_size} bytes, more than the {LARGEST_FILE} accepted")
            content = b""
            # Some files of /proc say they have no size.
            while block := os.read(handle, LARGEST_FILE + 1 - len(content)):
                content += block
        finally:
            os.close(handle)
    except FileNotFoundError:
        refuse("there is no such file")
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        refuse(f"cannot be read: {getattr(error, 'strerror', None) or error}")
    if len(content) > LARGEST_FILE:
        refuse(f"has more than the {LARGEST_FILE} bytes accepted")
    return content


def _parse(content: bytes, place: _Place) -> dict[str, Any]:
    """The JSON object in `content`."""
    problems: list[Problem] = []

    def refuse(value: Any, rule: str) -> NoReturn:
        raise InputError([*problems, Problem(place.label, value, rule)])

    def number(text: str) -> int | float:
        shown = text if len(text) <= 20 else f"{text[:17]}..."
        if len(text) > LONGEST_NUMBER:
            problems.append(Problem(place.label, shown, f"a number of {len(text)} characters is too long"))
            return 1
        if text.lstrip("-").isdigit():
            return int(text)
        if math.isinf(value := float(text)):
            problems.append(Problem(place.label, shown, "is beyond the range of numbers"))
        return value

    def constant(text: str) -> float:
        problems.append(Problem(place.label, text, 'is not JSON; an unlimited bandwidth is the string "inf"'))
        return 1.0

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            for key, count in Counter(key for key, _ in pairs).items():
                if count > 1 and len(problems) < PROBLEMS_SHOWN:
                    problems.append(Problem(place.label, key, f"this field is given {count} times"))
        return found

    if b"\0" in content:
        refuse(content[:20], "contains NUL bytes: not a JSON text in UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        refuse(content[error.start : error.start + 4], f"is not UTF-8 at byte {error.start}")
    if not text.strip():
        refuse(text[:20], "the file is empty")
    try:
        data = json.loads(
            text, parse_int=number, parse_float=number, parse_constant=constant, object_pairs_hook=unique
        )
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - 10) : error.pos + 10]
        refuse(near, f"is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})")
    except RecursionError:
        refuse(text[:20], "is nested too deeply")
    if _too_deep(data):
        refuse(text[:20], "is nested too deeply")
    if problems:
        raise InputError(problems)
    if not isinstance(data, dict):
        refuse(data, "must be a JSON object")
    return data


def _too_deep(data: Any) -> bool:
    layer = [data]
    for _ in range(DEEPEST_NESTING):
        inner: list[Any] = []
        for item in layer:
            if isinstance(item, (dict, list)):
                inner.extend(item.values() if isinstance(item, dict) else item)
        layer = inner
    return bool(layer)


def _explain(error: ValidationError, label: str) -> InputError:
    """pydantic's problems, an unknown field with the known ones nearest to it."""
    from planner.hardware import Accelerator, NetworkLevel, nearest

    items = error.errors(include_url=False)
    problems: list[Problem] = []
    for item, problem in zip(items, InputError.from_validation(error, label).problems, strict=True):
        if len(problems) == PROBLEMS_SHOWN:
            problems.append(Problem(label, len(items), f"problems; the first {PROBLEMS_SHOWN} are listed"))
            break
        rule = problem.rule
        if item["type"] == "extra_forbidden":
            *outer, key = item["loc"]
            known = NetworkLevel.model_fields if outer else (*Accelerator.model_fields, "extends")
            rule = f"unknown field{nearest(str(key), known)}"
        field = problem.field[:200]
        problems.append(Problem(field if field.isprintable() else ascii(field), problem.value, rule))
    return InputError(problems)
