"""What can be wrong with a question, said once and in full."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

#: Longest rendering of an offending value in a message [characters].
VALUE_WIDTH = 60


@dataclass(frozen=True)
class Problem:
    """One thing wrong with the input: the field, its value, and the rule it breaks."""

    field: str
    value: Any
    rule: str

    def __str__(self) -> str:
        shown = repr(self.value)
        if len(shown) > VALUE_WIDTH:
            shown = shown[: VALUE_WIDTH - 3] + "..."
        return f"{self.field} = {shown}: {self.rule}"


class InputError(ValueError):
    """Bad input; carries every problem found, not only the first (exit code 2)."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems))

    @classmethod
    def of(cls, field: str, value: Any, rule: str) -> InputError:
        """One problem."""
        return cls([Problem(field, value, rule)])

    @classmethod
    def from_validation(cls, error: ValidationError, where: str = "") -> InputError:
        """Translate pydantic's errors; `where` (a file name, say) prefixes each field."""
        problems = []
        for item in error.errors(include_url=False):
            path = ".".join(str(part) for part in item["loc"]) or "(whole input)"
            problems.append(Problem(f"{where}: {path}" if where else path, item["input"], item["msg"]))
        return cls(problems)


class RefutedError(RuntimeError):
    """A solver's claim that the cost functions do not confirm (exit code 5)."""


class SolverError(RuntimeError):
    """A solver failed: crashed, returned garbage, or is not installed (exit code 5)."""
