"""Text options to a question, with every problem in them said at once.

Light to import: the command line needs it for its help.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from planner.errors import InputError, Problem

if TYPE_CHECKING:
    from formulations.base import Options
    from planner.question import FrontierQuestion
    from planner.workload import FrontierRun

#: Choices of the options that name something; tests hold them equal to the enums.
CHOICES = {
    "batch_law": ("default", "deepseek", "fixed"),
    "objective": ("utilization", "accelerators", "time"),
    "space": ("paper", "full"),
    "degrees": ("pow2", "smooth", "any"),
    "formulation": ("milp", "pyomo", "cpsat", "enumeration"),
    "format": ("table", "json"),
}
#: Largest number of accelerators; equal to planner.question.MAX_ACCELERATORS.
MAX_ACCELERATORS = 10**15
MIN_DAYS, MAX_DAYS = 1e-6, 1e9
MAX_THREADS = 1024
MAX_SECONDS = 1e9


@dataclass(frozen=True)
class Request:
    """A question with how to solve it."""

    question: FrontierQuestion
    options: Options
    formulation: str
    shape: Callable[[float], FrontierRun] | None  #: run of a training compute; None if the width is pinned


class Reader:
    """Reads options one by one and collects what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def refuse(self, field: str, value: Any, rule: str) -> None:
        """Note a problem."""
        self.problems.append(Problem(option(field), value, rule))

    def attempt(self, action: Callable[[], Any]) -> Any:
        """Result of an action; None if it raises InputError, whose problems are noted."""
        try:
            return action()
        except InputError as error:
            for problem in error.problems:
                field = option(problem.field) if problem.field in OPTION_FIELDS else problem.field
                self.problems.append(Problem(field, problem.value, problem.rule))
            return None

    def number(
        self,
        field: str,
        text: str | None,
        low: float,
        high: float,
        *,
        whole: bool = False,
        what: str = "a number",
    ) -> Decimal | None:
        """A finite number in [low, high]; None if not given or wrong."""
        if text is None:
            return None
        rule = f"must be {'a whole number' if whole else what} from {low:g} to {high:g}"
        try:
            value = Decimal(text.strip())
        except InvalidOperation:
            self.refuse(field, text, f"is not a number; {rule}")
            return None
        # Decimals take exponents of any size: comparing is cheap, converting is not.
        if not value.is_finite() or not Decimal(str(low)) <= value <= Decimal(str(high)):
            self.refuse(field, text, rule)
            return None
        if whole and value != value.to_integral_value():
            self.refuse(field, text, rule)
            return None
        return value

    def choice(self, field: str, text: str) -> str:
        """One of the option's choices, in any case."""
        if text.lower() not in CHOICES[field]:
            self.refuse(field, text, f"must be one of {', '.join(CHOICES[field])}")
            return CHOICES[field][0]
        return text.lower()

    def span(self, text: str | None) -> tuple[int, int]:
        """A number of accelerators N, or a range ..N, A.., A..B."""
        if text is None:
            return 1, MAX_ACCELERATORS
        ends = text.split("..")
        if len(ends) > 2 or not any(end.strip() for end in ends):
            self.refuse("accelerators", text, "must be a whole number N, or a range ..N, A.. or A..B")
            return 1, MAX_ACCELERATORS
        before = len(self.problems)
        found = [
            self.number("accelerators", end, 1, MAX_ACCELERATORS, whole=True) if end.strip() else None
            for end in ends
        ]
        if len(self.problems) > before:
            # One problem, about what was typed.
            rule = self.problems[before].rule
            del self.problems[before:]
            self.refuse("accelerators", text, rule)
            return 1, MAX_ACCELERATORS
        low = 1 if found[0] is None else int(found[0])
        high = MAX_ACCELERATORS if found[-1] is None else int(found[-1])
        if low > high:
            self.refuse("accelerators", text, "the range is empty: it must go from the smaller to the larger")
        return low, high

    def finish(self) -> None:
        """Raise what was noted."""
        if self.problems:
            raise InputError(self.problems)


#: Fields of planner errors that are options of the same name.
OPTION_FIELDS = {"flop", "d_model", "accelerator", "accelerators", "formulation"}


def option(field: str) -> str:
    """The option that sets a field."""
    return "--" + field.replace("_", "-")


def read_request(given: Mapping[str, Any], reader: Reader, *, evaluate: bool = False) -> Request | None:
    """Read the options of a question; what is wrong is noted in `reader`, and None returned.

    Parameters
    ----------
    given : mapping
        Options as typed (text, or None where not given), by name with underscores.
    reader : Reader
        Collects problems; the caller raises them together with its own.
    evaluate : bool
        The layout is given: only limits that were asked for apply, and no solver option is read.
    """
    from planner.catalogue import load_accelerator
    from planner.question import QUARTER, FrontierQuestion, Objective
    from planner.scaling import BatchLaw
    from planner.spaces import Degrees, Space
    from planner.workload import MAX_FLOP, MAX_WIDTH, MIN_FLOP, MIN_WIDTH, frontier_run

    before = len(reader.problems)
    flop = reader.number("flop", given["flop"], MIN_FLOP, MAX_FLOP, what="a number of FLOP")
    width = reader.number("d_model", given["d_model"], MIN_WIDTH, MAX_WIDTH, whole=True)
    law = BatchLaw(reader.choice("batch_law", given["batch_law"]))
    sparse = bool(given["sparse"])
    accelerator = reader.attempt(lambda: load_accelerator(given["accelerator"]))
    span = reader.span(given["accelerators"])
    days = given["days"]
    deadline: float | None = QUARTER
    if days is not None and days.strip().lower() == "none":
        deadline = None
    elif days is not None:
        number = reader.number("days", days, MIN_DAYS, MAX_DAYS, what="none, or a number of days")
        deadline = None if number is None else float(number) * 86400
    elif evaluate or (given["accelerators"] is not None and span[0] == span[1]):
        deadline = None
    choices = {f: reader.choice(f, given[f]) for f in ("space", "degrees")}
    objective = "utilization" if evaluate else reader.choice("objective", given["objective"])
    formulation, options = "", None
    if not evaluate:
        formulation = reader.choice("formulation", given["formulation"])
        options = read_options(given, reader)

    def shaped(compute: float | None, d_model: int | None = None) -> FrontierRun:
        return frontier_run(compute, d_model=d_model, sparse=sparse, batch_law=law)

    run = None
    wrong = {p.field for p in reader.problems[before:]}
    if not wrong & {"--flop", "--d-model", "--batch-law"}:
        compute = None if flop is None else float(flop)
        run = reader.attempt(lambda: shaped(compute, None if width is None else int(width)))
    if len(reader.problems) > before or run is None or accelerator is None:
        return None
    if options is None:
        from formulations.base import Options

        options = Options()
    question = FrontierQuestion(
        run=run,
        accelerator=accelerator,
        space=Space(choices["space"]),
        degrees=Degrees(choices["degrees"]),
        objective=Objective(objective),
        deadline=deadline,
        accelerators=span,
        overlap_data=bool(given["overlap_data"]),
    )
    return Request(question, options, formulation, shaped if width is None else None)


def read_options(given: Mapping[str, Any], reader: Reader) -> Options:
    """Read the options of a solve."""
    from formulations.base import Options

    limit = reader.number("time_limit", given["time_limit"], 1e-3, MAX_SECONDS, what="a number of seconds")
    gap = reader.number("gap", given["gap"], 0, 1, what="a relative gap")
    threads = reader.number("threads", given["threads"], 1, MAX_THREADS, whole=True)
    seed = reader.number("seed", given["seed"], 0, 2**31 - 1, whole=True)
    return Options(
        time_limit=math.inf if limit is None else float(limit),
        gap=Options.gap if gap is None else float(gap),
        threads=Options.threads if threads is None else int(threads),
        seed=Options.seed if seed is None else int(seed),
    )


def joined(names: Iterable[str]) -> str:
    """Choices as click shows them."""
    return "[" + "|".join(names) + "]"
