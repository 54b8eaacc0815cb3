"""The command: exit codes, messages, and a standard output that holds the result only."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

import formulations
from cli import plan
from formulations.base import Solution, Termination
from planner import question as questions
from planner import request, scaling, spaces
from planner.layout import Schedule
from planner.report.json import schema

ROOT = Path(__file__).parents[1]
QUICK = ("--flop", "1e22", "--accelerators", "8", "--degrees", "pow2", "--formulation", "enumeration")
H100 = json.loads((ROOT / "instances/accelerators/h100-sxm.json").read_text())


def typed(text):
    return text.split()


def run(*arguments, **more):
    return CliRunner().invoke(plan, [str(a) for a in arguments], prog_name="plan", **more)


def command(*arguments, **more):
    code = "from cli import main; main()"
    more = {"capture_output": True, "text": True, "cwd": ROOT, "timeout": 120} | more
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], **more)


def refused(result, code=2):
    """One clear message, nothing else."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert not isinstance(result.exception, Exception) or isinstance(result.exception, SystemExit)
    lines = result.stderr.splitlines()
    assert lines
    assert all(line.startswith("error: ") for line in lines), result.stderr
    return lines


BAD_OPTIONS = {
    "flop 0": (["--flop", "0"], "--flop = '0': must be a number of FLOP from"),
    "flop negative": (["--flop", "-1e28"], "--flop = '-1e28': must be"),
    "flop nan": (["--flop", "nan"], "--flop = 'nan': must be"),
    "flop inf": (["--flop", "inf"], "--flop = 'inf': must be"),
    "flop 1e400": (["--flop", "1e400"], "--flop = '1e400': must be"),
    "flop 1e-400": (["--flop", "1e-400"], "--flop = '1e-400': must be"),
    "flop of endless exponent": (["--flop", "1e999999999999999999999"], "--flop = "),
    "flop abc": (["--flop", "abc"], "--flop = 'abc': is not a number"),
    "flop empty": (["--flop", ""], "--flop = '': is not a number"),
    "flop 1": (["--flop", "1"], "--flop = '1': must be"),
    "flop 1e40": (["--flop", "1e40"], "--flop = '1e40': must be"),
    "flop of two": (["--flop", "1e28 1e29"], "is not a number"),
    "flop long": (["--flop", "9" * 5000], "--flop = "),
    "no flop": ([], "give --flop (training compute) or --d-model (width), or both"),
    "width 0": (["--d-model", "0"], "--d-model = '0': must be a whole number from"),
    "width broken": (["--d-model", "12288.5"], "--d-model = '12288.5': must be a whole number"),
    "width huge": (["--d-model", "1e12"], "--d-model = '1e12': must be"),
    "width abc": (["--d-model", "wide"], "--d-model = 'wide': is not a number"),
    "accelerators 0": (["--flop", "1e25", "--accelerators", "0"], "--accelerators = '0': must be a whole"),
    "accelerators negative": (["--flop", "1e25", "--accelerators", "-8"], "--accelerators = '-8': must be"),
    "accelerators huge": (["--flop", "1e25", "--accelerators", "1e30"], "--accelerators = '1e30': must be"),
    "accelerators half": (
        ["--flop", "1e25", "--accelerators", "2.5"],
        "--accelerators = '2.5': must be a whole",
    ),
    "accelerators nan": (["--flop", "1e25", "--accelerators", "nan"], "--accelerators = 'nan': must be"),
    "accelerators empty": (["--flop", "1e25", "--accelerators", ".."], "or a range ..N, A.. or A..B"),
    "accelerators thrice": (["--flop", "1e25", "--accelerators", "1..2..3"], "or a range"),
    "accelerators reversed": (["--flop", "1e25", "--accelerators", "64..8"], "the range is empty"),
    "accelerators odd": (["--flop", "1e25", "--accelerators", "7919"], "no allowed layout uses"),
    "days 0": (["--flop", "1e25", "--days", "0"], "--days = '0': must be none, or a number of days"),
    "days negative": (["--flop", "1e25", "--days", "-1"], "--days = '-1': must be"),
    "days nan": (["--flop", "1e25", "--days", "nan"], "--days = 'nan': must be"),
    "days inf": (["--flop", "1e25", "--days", "inf"], "--days = 'inf': must be"),
    "days huge": (["--flop", "1e25", "--days", "1e300"], "--days = '1e300': must be"),
    "days abc": (["--flop", "1e25", "--days", "soon"], "--days = 'soon': is not a number"),
    "accelerator near": (["--flop", "1e25", "--accelerator", "h100-smx"], "did you mean h100-sxm"),
    "accelerator far": (["--flop", "1e25", "--accelerator", "zzz"], "known are a100-sxm-40gb"),
    "accelerator empty": (["--flop", "1e25", "--accelerator", ""], "no accelerator of this name"),
    "accelerator absent": (["--flop", "1e25", "--accelerator", "./none.json"], "there is no such file"),
    "accelerator folder": (["--flop", "1e25", "--accelerator", "/"], "is a directory"),
    "accelerator device": (["--flop", "1e25", "--accelerator", "/dev/zero"], "is not a regular file"),
    "batch law": (
        ["--flop", "1e25", "--batch-law", "x"],
        "--batch-law = 'x': must be one of default, deepseek",
    ),
    "objective": (["--flop", "1e25", "--objective", "x"], "--objective = 'x': must be one of utilization"),
    "space": (["--flop", "1e25", "--space", "x"], "--space = 'x': must be one of paper, full"),
    "degrees": (["--flop", "1e25", "--degrees", "x"], "--degrees = 'x': must be one of pow2, smooth, any"),
    "formulation": (["--flop", "1e25", "--formulation", "x"], "--formulation = 'x': must be one of milp"),
    "format": (["--flop", "1e25", "--format", "x"], "--format = 'x': must be one of table, json"),
    "time limit 0": (["--flop", "1e25", "--time-limit", "0"], "--time-limit = '0': must be"),
    "time limit nan": (["--flop", "1e25", "--time-limit", "nan"], "--time-limit = 'nan': must be"),
    "gap negative": (["--flop", "1e25", "--gap", "-1"], "--gap = '-1': must be"),
    "gap 2": (["--flop", "1e25", "--gap", "2"], "--gap = '2': must be"),
    "threads 0": (["--flop", "1e25", "--threads", "0"], "--threads = '0': must be a whole number"),
    "threads 1.5": (["--flop", "1e25", "--threads", "1.5"], "--threads = '1.5': must be a whole number"),
    "threads huge": (["--flop", "1e25", "--threads", "1e9"], "--threads = '1e9': must be a whole number"),
    "seed": (["--flop", "1e25", "--seed", "-1"], "--seed = '-1': must be a whole number"),
    "output folder": (["--flop", "1e25", "--output", "/"], "--output = '/': cannot be written"),
    "output nowhere": (["--flop", "1e25", "--output", "/nowhere/x"], "cannot be written: No such file"),
    "output below a file": (["--flop", "1e25", "--output", "/etc/passwd/x"], "cannot be written"),
    "output empty": (["--flop", "1e25", "--output", ""], "cannot be written"),
    "output NUL": (["--flop", "1e25", "--output", "a\0b"], "cannot be written"),
    "layout absent": (["evaluate", "--flop", "1e25"], "TPm = None: is missing"),
    "layout file": (["evaluate", "none.json", "--flop", "1e25"], "layout file = 'none.json': cannot be read"),
    "layout levels": (
        ["evaluate", *typed("--flop 1e25 --tpm 1 --tpff 1 --pp 1 --dp 1 --ep 1 --microbatches 1")],
        "every axis needs 2 degrees",
    ),
    "layout ragged": (
        ["evaluate", *typed("--flop 1e25 --tpm 1x1 --tpff 1 --pp 1 --dp 1 --ep 1 --microbatches 1")],
        "different numbers of network levels",
    ),
    "reference absent": (["reproduce", "none.csv"], "reference file = 'none.csv': there is no such file"),
    "list format": (["accelerators", "--format", "x"], "--format = 'x': must be one of table, json"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
def test_bad_options(arguments, message):
    lines = refused(run(*arguments))
    assert message in lines[0]
    if arguments[:1] != ["evaluate"]:
        assert len(lines) == 1


def network(**changes):
    node, cluster = (dict(level) for level in H100["network"])
    return {**H100, "network": [node | changes, cluster]}


BAD_FILES = {
    "empty": ("", "the file is empty"),
    "blank": ("\n \n", "the file is empty"),
    "truncated": (json.dumps(H100)[:300], "is not valid JSON"),
    "not JSON": ("units: 132", "is not valid JSON"),
    "a list": ("[]", "must be a JSON object"),
    "a number": ("1e400", "beyond the range"),
    "NUL": ("\0\0", "NUL"),
    "nested": ("[" * 100000, "nested too deeply"),
    "huge": (" " * (1 << 20) + "{}", "more than"),
    "no fields": ("{}", "Field required"),
    "word for a number": (json.dumps(H100 | {"units": "many"}), "units = 'many'"),
    "number for a word": (json.dumps(H100 | {"title": 5}), "title = 5"),
    "null": (json.dumps(H100 | {"memory_capacity": None}), "memory_capacity = None"),
    "nan": (json.dumps(H100 | {"memory_capacity": float("nan")}), "NaN"),
    "negative": (json.dumps(H100 | {"memory_bandwidth": -1.0}), "greater than 0"),
    "overflowing": (json.dumps(H100 | {"max_clock": 1e200}), "max_clock"),
    "share over 1": (json.dumps(H100 | {"sustained_share": 7.0}), "sustained_share = 7.0"),
    "unknown field": (json.dumps(H100 | {"memory_capcity": 1.0}), "did you mean memory_capacity"),
    "zero bandwidth": (json.dumps(network(bandwidth=0.0)), "greater than 0"),
    "negative latency": (json.dumps(network(latency=-1.0)), "greater than or equal to 0"),
    "node of 0": (json.dumps(network(size=0)), "greater than or equal to 2"),
    "no network": (json.dumps(H100 | {"network": []}), "1 to 6 levels"),
    "network without end": (json.dumps(H100 | {"network": H100["network"] * 9}), "1 to 6 levels"),
    "extends itself": ('{"extends": "bad.json"}', "the files extend each other"),
    "extends nothing": ('{"extends": "h100-smx"}', "did you mean"),
}


@pytest.mark.parametrize(("content", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_bad_accelerator_files(content, message, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(content)
    lines = refused(run("--flop", "1e25", "--accelerator", path))
    assert any(message in line for line in lines), lines
    assert all(len(line) < 400 for line in lines)


BAD_LAYOUTS = {
    "empty": ("", "is not a JSON text"),
    "a list": ("[1]", "holds no layout"),
    "nested": ("[" * 100000, "nested too deeply"),
    "no plan": ('{"layout": null}', "holds no layout"),
    "unknown": ('{"TP": 8}', "unknown field of a layout"),
    "degree 0": ('{"TPm": [0, 1]}', "must be whole degrees from 1"),
    "degree half": ('{"TPm": [1.5, 1]}', "must be whole degrees from 1"),
    "degree huge": ('{"TPm": [1e99, 1]}', "must be whole degrees from 1"),
    "degree true": ('{"TPm": [true, 1]}', "must be whole degrees from 1"),
    "degree wrong": ('{"TPm": {"degree": 9, "levels": [4, 1]}}', "not the product of its levels, 4"),
    "schedule": ('{"schedule": ["1F1B"]}', "must be one of 1F1B, zero-bubble"),
}


@pytest.mark.parametrize(("content", "message"), BAD_LAYOUTS.values(), ids=BAD_LAYOUTS.keys())
def test_bad_layout_files(content, message, tmp_path):
    path = tmp_path / "layout.json"
    path.write_text(content)
    lines = refused(run("evaluate", path, "--flop", "1e25"))
    assert any(message in line for line in lines), lines


def test_every_problem_at_once():
    arguments = (
        "--flop abc --d-model 0 --accelerators 0 --days nan --space x --gap 9 --format x --output /nowhere/x"
    )
    lines = refused(run(*arguments.split(), "--accelerator", "h100-smx"))
    for option in (
        "flop",
        "d-model",
        "accelerators",
        "days",
        "space",
        "gap",
        "format",
        "output",
        "accelerator",
    ):
        assert sum(f"--{option} = " in line for line in lines) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nonsense"], "No such option"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["--flop"], "requires an argument"),
        (["accelerators", "--flop", "1"], "No such option"),
        (["--flop", "1e28", "accelerators"], "options go after the command accelerators"),
        (["evaluate", "a", "b"], "unexpected extra argument"),
    ],
)
def test_usage_errors(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_choices_are_the_enums():
    assert request.CHOICES["batch_law"] == tuple(scaling.BatchLaw)
    assert request.CHOICES["objective"] == tuple(questions.Objective)
    assert request.CHOICES["space"] == tuple(spaces.Space)
    assert request.CHOICES["degrees"] == tuple(spaces.Degrees)
    assert request.CHOICES["formulation"] == tuple(formulations.CATALOGUE)
    assert request.MAX_ACCELERATORS == questions.MAX_ACCELERATORS
    assert [p.default for p in plan.params if p.name == "formulation"] == [formulations.DEFAULT]
    metavar = next(p.metavar for p in plan.commands["evaluate"].params if p.name == "schedule")
    assert metavar == request.joined(Schedule)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["evaluate", "--help"], ["reproduce", "--help"], ["--version"]]
)
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import sys\nfrom cli import main\ntry:\n    main()\nexcept SystemExit as e:\n    assert not e.code\n"
        "heavy = {'numpy', 'pydantic', 'rich', 'ortools', 'pyomo', 'highspy'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT
    )
    assert result.stderr.strip() == "[]"
    assert result.stdout


@pytest.mark.parametrize("name", [n for n in formulations.CATALOGUE if formulations.available(n)])
def test_standard_output_is_json_only(name):
    arguments = [*QUICK[:-1], name, "--format", "json", "-v"]
    result = command(*arguments)
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    jsonschema.validate(data, schema())
    assert data["status"] == "optimal"
    assert data["formulation"] == name
    assert "Traceback" not in result.stderr


def test_quiet_without_verbose():
    result = command(*QUICK)
    assert result.returncode == 0
    assert result.stderr == ""
    assert result.stdout.startswith("run ")


@pytest.mark.parametrize("typed", ["1e22", "1E22", "10_000_000_000_000_000_000_000", " 1e22 ", "0.01e24"])
def test_ways_to_write_a_number(typed):
    result = run("--flop", typed, *QUICK[2:], "--format", "JSON")
    assert json.loads(result.stdout)["flop"] == 1e22


@pytest.mark.parametrize(
    ("typed", "span", "limited"),
    [
        ("8", [8, 8], False),
        ("..1_024", [1, 1024], True),
        ("8..64", [8, 64], True),
        ("1e1..", [10, request.MAX_ACCELERATORS], True),
        (None, [1, request.MAX_ACCELERATORS], True),
    ],
)
def test_ranges_and_deadlines(typed, span, limited):
    given = {
        "flop": "1e22",
        "d_model": None,
        "sparse": False,
        "batch_law": "default",
        "accelerator": "h100-sxm",
    }
    given |= {"accelerators": typed, "days": None, "overlap_data": False, "space": "full", "degrees": "any"}
    given |= {"objective": "time", "formulation": "milp", "time_limit": None, "gap": None, "threads": None}
    reader = request.Reader()
    question = request.read_request(given | {"seed": None}, reader).question
    assert list(question.accelerators) == span
    assert question.deadline == (questions.QUARTER if limited else None)
    pinned = request.read_request(given | {"seed": None, "days": "90"}, reader).question
    assert pinned.deadline == 90 * 86400
    assert request.read_request(given | {"seed": None, "days": "none"}, reader).question.deadline is None


def test_infeasible_is_an_answer():
    result = run(*QUICK, "--days", "1", "--format", "json")
    assert result.exit_code == 3
    data = json.loads(result.stdout)
    jsonschema.validate(data, schema())
    assert data["status"] == "infeasible"
    assert data["advice"]["limits"][0] == "deadline"
    assert data["advice"]["nearest"]
    result = run(*QUICK, "--days", "1")
    assert result.exit_code == 3
    assert "the deadline of 1 days is too short" in result.stdout.replace("\n", " ")


@pytest.mark.parametrize(
    ("solution", "code"),
    [
        (Solution(Termination.TIME_LIMIT, None, None, 1.5), 4),
        (Solution(Termination.INTERRUPTED, None, None, None), 130),
        (Solution(Termination.FAILED, None, None, None, "numerical trouble"), 5),
        (Solution(Termination.OPTIMAL, (0,) * 9, 1.5, 1.5), 5),
        (KeyboardInterrupt(), 130),
        (MemoryError("all of it"), 5),
    ],
)
def test_exit_codes(monkeypatch, solution, code):
    def solve(program, options):
        if isinstance(solution, BaseException):
            raise solution
        return solution

    monkeypatch.setattr(formulations, "load", lambda name: solve)
    result = run(*QUICK, "--format", "json")
    assert result.exit_code == code
    assert "Traceback" not in result.stderr
    if code == 4 or (code == 130 and not isinstance(solution, BaseException)):
        assert json.loads(result.stdout)["status"] == "no_plan"
    else:
        refused(result, code)


def test_a_plan_in_time_is_success(monkeypatch):
    from dataclasses import replace

    from formulations.enumeration import solve

    def slow(program, options):
        found = solve(program, options)
        return replace(found, termination=Termination.TIME_LIMIT, bound=found.objective * 0.9999)

    monkeypatch.setattr(formulations, "load", lambda name: slow)
    result = run(*QUICK)
    assert result.exit_code == 0
    assert "feasible (the time limit was reached)" in result.stdout
    assert "gap 0.0001" in result.stdout


def test_output_file(tmp_path):
    target = tmp_path / "plan.json"
    result = run(*QUICK, "--format", "json", "--output", target)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    assert json.loads(target.read_text())["status"] == "optimal"
    assert os.listdir(tmp_path) == ["plan.json"]
    mode = target.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    assert mode == 0o666 & ~umask
    target.chmod(0o600)
    result = run("evaluate", target, "--flop", "1e22", "--output", target)
    assert result.exit_code == 0
    assert target.read_text().startswith("run ")
    assert target.stat().st_mode & 0o777 == 0o600


def test_output_through_a_link(tmp_path):
    target, link = tmp_path / "real", tmp_path / "link"
    link.symlink_to(target)
    assert run(*QUICK, "--output", link).exit_code == 0
    assert link.is_symlink()
    assert "utilization" in target.read_text()


def test_output_to_a_device():
    assert run(*QUICK, "--output", os.devnull).exit_code == 0
    assert not Path(os.devnull).is_file()


def test_bad_input_leaves_the_old_output(tmp_path):
    target = tmp_path / "plan.json"
    target.write_text("old")
    refused(run("--flop", "0", "--output", target))
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_a_late_failure_loses_nothing(monkeypatch, tmp_path):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    result = run(*QUICK, "--format", "json", "--output", tmp_path / "plan.json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["status"] == "optimal"
    assert "No space left on device" in result.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [QUICK, ["accelerators"], ["--help"]])
def test_full_standard_output(arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cli", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("descriptor", [1, 2])
def test_closed_streams(descriptor):
    command = f'exec "$0" -m cli {" ".join(map(str, QUICK))} {descriptor}>&-'
    done = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0
    assert done.stderr == ""
    assert ("utilization" in done.stdout) == (descriptor == 2)


@pytest.mark.parametrize("arguments", [QUICK, ["accelerators"], ["--help"]])
def test_closed_pipe(arguments):
    code = "import time; from cli import main; time.sleep(0.3); main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    ) as process:
        process.stdout.close()
        error = process.stderr.read().decode()
        process.wait(60)
    assert error == ""
    assert process.returncode == 1


def test_plain_encodings():
    result = command(*QUICK, env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"})
    assert result.returncode == 0
    assert "utilization" in result.stdout


INTERRUPTED = """
import os, signal
import {module}
def stop(*_):
    os.kill(os.getpid(), signal.SIGINT)
    return False
{module}.{name} = {stop}
from cli import main
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT")
@pytest.mark.parametrize(
    ("module", "name", "stop"),
    [
        ("formulations.base", "Clock.over", "property(stop)"),  # read in the search
        ("planner.compile", "_branching_orders", "stop"),  # before it
    ],
)
def test_interrupt(module, name, stop):
    code = INTERRUPTED.format(module=module, name=name, stop=stop)
    done = subprocess.run(
        [sys.executable, "-c", code, *QUICK, "--format", "json"],
        capture_output=True,
        cwd=ROOT,
        text=True,
        timeout=60,
    )
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    if name == "Clock.over":
        assert json.loads(done.stdout)["termination"] == "interrupted"
    else:
        assert done.stdout == ""
        assert done.stderr == "error: interrupted\n"


def test_evaluate(tmp_path):
    layout = typed(
        "--tpm 4x1 --tpff 2x4 --pp 1x64 --dp 1x1 --ep 1x1 --microbatches 128 --schedule zero-bubble"
    )
    result = run("evaluate", "--d-model", "12288", *layout, "--format", "json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    jsonschema.validate(data, schema())
    assert data["utilization"] == pytest.approx(0.6989935821907877, rel=1e-12)
    assert data["question"]["deadline_days"] is None
    path = tmp_path / "plan.json"
    path.write_text(result.stdout)
    again = run("evaluate", path, "--d-model", "12288", "--format", "json")
    assert json.loads(again.stdout)["losses"] == data["losses"]
    late = run("evaluate", path, "--d-model", "12288", "--days", "10")
    assert late.exit_code == 3
    assert "deadline: training takes" in late.stdout


def test_accelerators():
    text = run("accelerators").stdout
    assert "h100-sxm-superpod" in text
    data = json.loads(run("accelerators", "--format", "json").stdout)["accelerators"]
    assert {"name", "peak", "network", "sources"} <= set(data[0])
