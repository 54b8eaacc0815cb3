"""The command `plan`: parse, ask the planner, print. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from planner.errors import InputError, Problem, RefutedError, SolverError
from planner.request import CHOICES, Reader, joined, read_request

if TYPE_CHECKING:
    from planner.outcome import Outcome

F = TypeVar("F", bound=Callable[..., Any])

EXIT_OK, EXIT_DISAGREE, EXIT_INPUT, EXIT_INFEASIBLE, EXIT_NO_PLAN, EXIT_FAILED, EXIT_INTERRUPTED = (
    0,
    1,
    2,
    3,
    4,
    5,
    130,
)
EPILOG = """\b
Exit codes: 0 a plan (or proven optimum); 1 reproduce or bench found a disagreement, or the pipe closed;
2 bad input; 3 infeasible; 4 time ran out without a plan; 5 solver failed or its claim was refuted;
130 interrupted. The result goes to standard output, everything else to standard error.
"""


def complain(message: str) -> None:
    """One message on standard error."""
    click.echo(f"error: {message}", err=True)


class Commands(click.Group):
    """Turns the planner's errors into messages and exit codes."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            for problem in error.problems:
                complain(str(problem))
            ctx.exit(EXIT_INPUT)
        except (RefutedError, SolverError) as error:
            trace(error)
            complain(str(error))
            ctx.exit(EXIT_FAILED)
        except KeyboardInterrupt:
            complain("interrupted")
            ctx.exit(EXIT_INTERRUPTED)
        except MemoryError as error:
            trace(error)
            complain("out of memory")
            ctx.exit(EXIT_FAILED)


def trace(error: BaseException) -> None:
    """Log where an error came from, for -v."""
    import logging

    logging.getLogger("plan").debug("traceback", exc_info=error)


RUN_OPTIONS = (
    click.option("--flop", metavar="NUMBER", help="Training compute [FLOP], like 1e28."),
    click.option(
        "--d-model", metavar="N", help="Width of the model; without --flop its compute-optimal run."
    ),
    click.option("--sparse/--dense", default=False, help="Mixture of experts, or dense (default)."),
    click.option(
        "--batch-law", metavar=joined(CHOICES["batch_law"]), default="default", help="Growth of the batch."
    ),
    click.option(
        "--accelerator", metavar="NAME|FILE", default="h100-sxm", help="See `plan accelerators` [h100-sxm]."
    ),
    click.option("--accelerators", metavar="N|..N|A..B", help="Number of accelerators, or a range."),
    click.option("--days", metavar="DAYS", help="Deadline, or none [91.26: a quarter; none if N is pinned]."),
    click.option("--overlap-data", is_flag=True, help="Hide the gradient all-reduce behind the pipeline."),
)
SEARCH_OPTIONS = (
    click.option(
        "--objective", metavar=joined(CHOICES["objective"]), default="utilization", help="What is best."
    ),
    click.option(
        "--space", metavar=joined(CHOICES["space"]), default="full", help="Published search, or all [full]."
    ),
    click.option(
        "--degrees",
        metavar=joined(CHOICES["degrees"]),
        default="any",
        help="2^a, 2^a 3^b 5^c, or any divisor.",
    ),
)
SOLVE_OPTIONS = (
    click.option(
        "--formulation", metavar=joined(CHOICES["formulation"]), default="milp", help="How to solve [milp]."
    ),
    click.option("--time-limit", metavar="SECONDS", help="Stop with the best plan so far."),
    click.option("--gap", metavar="SHARE", help="Relative gap that is good enough [1e-9]."),
    click.option("--threads", metavar="N", help="Solver threads [1]."),
    click.option("--seed", metavar="N", help="Solver seed [0]."),
)
OUTPUT_OPTIONS = (
    click.option(
        "--format", metavar=joined(CHOICES["format"]), default="table", help="Form of the result [table]."
    ),
    click.option("--output", metavar="FILE", help="Write the result to a file instead of standard output."),
    click.option("-v", "--verbose", is_flag=True, help="Progress on standard error."),
)
LAYOUT_OPTIONS = ("TPm", "TPff", "PP", "DP", "EP", "microbatches", "v", "schedule")


def with_options(*groups: tuple[Callable[[F], F], ...]) -> Callable[[F], F]:
    """Several options at once, in the order given."""

    def decorate(command: F) -> F:
        for one in reversed([option for group in groups for option in group]):
            command = one(command)
        return command

    return decorate


@click.group(cls=Commands, invoke_without_command=True, epilog=EPILOG)
@with_options(RUN_OPTIONS, SEARCH_OPTIONS, SOLVE_OPTIONS, OUTPUT_OPTIONS)
@click.version_option(package_name="shardplan")
@click.pass_context
def plan(ctx: click.Context, /, **given: Any) -> None:
    """Provably optimal sharding plans for training large neural networks.

    `plan --flop 1e28` plans a run of 1e28 FLOP on H100s within a quarter of a year.
    """
    if ctx.invoked_subcommand is not None:
        typed = [
            p for p in ctx.params if ctx.get_parameter_source(p) is click.core.ParameterSource.COMMANDLINE
        ]
        if typed:
            names = ", ".join("--" + p.replace("_", "-") for p in typed)
            raise click.UsageError(f"{names}: options go after the command {ctx.invoked_subcommand}", ctx)
        return
    with prepared(given) as (reader, finish):
        request = read_request(given, reader)
        reader.finish()
        assert request is not None
        from planner.plan import plan_frontier

        with spinner("planning"):
            outcome = plan_frontier(
                request.question, request.formulation, request.options, shape=request.shape
            )
        finish(outcome)
        ctx.exit(exit_code(outcome))


@plan.command()
@click.argument("file", required=False)
@with_options(RUN_OPTIONS)
@click.option(
    "--tpm", "TPm", metavar="AxB..", help="TP over the width, per network level from the node up: 4x1."
)
@click.option("--tpff", "TPff", metavar="AxB..", help="TP over the hidden width.")
@click.option("--pp", "PP", metavar="AxB..", help="Pipeline parallelism.")
@click.option("--dp", "DP", metavar="AxB..", help="Data parallelism.")
@click.option("--ep", "EP", metavar="AxB..", help="Expert parallelism.")
@click.option("--microbatches", metavar="N", help="Microbatches per pipeline.")
@click.option("--v", "v", metavar="N", help="Virtual stages per device [1].")
@click.option("--schedule", metavar="[1F1B|zero-bubble]", help="Pipeline schedule [1F1B].")
@with_options(OUTPUT_OPTIONS)
@click.pass_context
def evaluate(ctx: click.Context, /, file: str | None, **given: Any) -> None:
    """Itemise the cost of a given layout.

    It comes from a JSON FILE (as `plan --format json` writes it), from options, or from both (options win).
    """
    given |= {"space": "full", "degrees": "any"}
    with prepared(given) as (reader, finish):
        from planner.given import read_layout

        request = read_request(given, reader, evaluate=True)
        layout = reader.attempt(lambda: read_layout(file, {k: given[k] for k in LAYOUT_OPTIONS}))
        reader.finish()
        assert request is not None
        from planner.plan import evaluate_frontier

        outcome = evaluate_frontier(request.question, layout)
        finish(outcome)
        ctx.exit(exit_code(outcome))


@plan.command()
@with_options(OUTPUT_OPTIONS)
def accelerators(**given: Any) -> None:
    """List the accelerators of the catalogue."""
    with prepared(given) as (reader, finish):
        reader.finish()
        from planner.report.catalogue import Catalogue

        finish(Catalogue())


@plan.command()
@click.argument("file", required=False)
@click.option("--evaluate-only", is_flag=True, help="Evaluate the given layouts; solve nothing.")
@with_options(SOLVE_OPTIONS, OUTPUT_OPTIONS)
@click.pass_context
def reproduce(ctx: click.Context, /, file: str | None, evaluate_only: bool, **given: Any) -> None:
    """Compare with the published program's results.

    FILE is a CSV like frontier_reference.csv; without it, the one in $SHARDPLAN_DATA or in ../shared/data.
    """
    with prepared(given) as (reader, finish):
        from planner import reproduce as published
        from planner.request import read_options

        formulation = reader.choice("formulation", given["formulation"])
        options = read_options(given, reader)
        rows = reader.attempt(lambda: published.read_reference(file))
        reader.finish()
        comparison = published.reproduce(
            rows,
            formulation=None if evaluate_only else formulation,
            options=options,
            progress=sys.stderr.isatty(),
        )
        finish(comparison)
        ctx.exit(EXIT_OK if comparison.agrees else EXIT_DISAGREE)


@plan.command("bench")
@click.option("--formulations", default=",".join(CHOICES["formulation"]), help="Comma-separated names.")
@click.option("--questions", default=None, help="Comma-separated names; all without it.")
@click.option("--repeat", type=click.IntRange(1, 100), default=1, help="Runs per measurement; least counts.")
@click.option("--time-limit", type=click.FloatRange(0.1, 1e6), default=120.0, help="Seconds per solve.")
def bench_command(formulations: str, questions: str | None, repeat: int, time_limit: float) -> None:
    """Measure start-up and every formulation, one process each; one JSON object per line on stdout."""
    import json

    from planner.bench import QUESTIONS, bench

    asked = list(QUESTIONS) if questions is None else questions.split(",")
    names = formulations.split(",")
    problems = [
        Problem("--questions", q, f"one of {', '.join(QUESTIONS)}") for q in asked if q not in QUESTIONS
    ]
    known = CHOICES["formulation"]
    problems += [Problem("--formulations", n, f"one of {', '.join(known)}") for n in names if n not in known]
    if problems:
        raise InputError(problems)
    for row in bench(names, asked, repeat, time_limit):
        click.echo(json.dumps(row))


def exit_code(outcome: Outcome) -> int:
    """Exit code of an outcome."""
    if outcome.termination == "interrupted":
        return EXIT_INTERRUPTED
    return {"infeasible": EXIT_INFEASIBLE, "no_plan": EXIT_NO_PLAN}.get(outcome.status.value, EXIT_OK)


@contextmanager
def prepared(given: dict[str, Any]) -> Iterator[tuple[Reader, Callable[[Any], None]]]:
    """Read the output options and try the output's place.

    Gives the reader of options and a printer of results.
    """
    if given["verbose"]:
        import logging

        logging.basicConfig(stream=sys.stderr, format="%(message)s", force=True)
        for name in ("plan", "planner", "formulations"):
            logging.getLogger(name).setLevel(logging.DEBUG)
    from planner.report.output import Output, to_stdout

    reader = Reader()
    form = reader.choice("format", given["format"])
    target = given["output"]
    output: Output | None = None if target is None else reader.attempt(lambda: Output(target))

    def finish(result: Any) -> None:
        text = result_text(result, form, terminal=output is None and sys.stdout.isatty())
        if output is None:
            to_stdout(text)
            return
        try:
            output.write(text)
        except InputError:
            to_stdout(text)
            raise

    try:
        yield reader, finish
    finally:
        if output is not None:
            output.close()


def result_text(result: Any, form: str, *, terminal: bool) -> str:
    """A result (an outcome, a comparison) as a table or as JSON."""
    if form == "json":
        from planner.report.json import dumps

        return dumps(result.to_dict())
    from planner.outcome import Outcome

    if isinstance(result, Outcome):
        from planner.report.table import render

        return render(result, terminal=terminal)
    return str(result.to_table(terminal=terminal))


@contextmanager
def spinner(text: str) -> Iterator[None]:
    """A spinner on standard error while something runs, if that is a terminal."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


def main() -> None:
    """Entry point of the console script."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: nobody wants it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    try:
        plan.main(prog_name="plan")
    except KeyboardInterrupt:
        complain("interrupted")
        sys.exit(EXIT_INTERRUPTED)
    except OSError as error:  # the help of click on a full disk, say
        complain(str(error))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer would fail once more
        sys.exit(EXIT_INPUT)


if __name__ == "__main__":
    main()
