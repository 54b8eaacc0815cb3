"""Who imports whom, by the source: what import-linter holds, and what it cannot see (cli is a module)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OWN = ("cli", "planner", "formulations", "instances")
SOLVERS = {"highspy", "ortools", "pyomo"}
SOURCES = sorted([ROOT / "cli.py", *(p for x in OWN[1:] for p in (ROOT / x).rglob("*.py"))])
#: May take the record of common options from formulations.base, and nothing else.
OPTIONS_ONLY = {"planner/request.py": {"formulations.base"}, "planner/reproduce.py": {"formulations.base"}}


def imports(path):
    """Modules a file imports, at any depth of the source; `from x import y` counts as x and as x.y."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            found |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
    return found


def name(path):
    return path.relative_to(ROOT).as_posix()


def roots(modules):
    return {m.partition(".")[0] for m in modules}


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_directions(path):
    here, found = name(path), imports(path)
    if here == "cli.py":
        assert roots(found) & {*OWN, *SOLVERS} == {"planner"}
        return
    assert "cli" not in roots(found)
    if here.startswith("planner/"):
        assert not roots(found) & SOLVERS
        if here != "planner/plan.py":
            of_formulations = {m for m in found if m.partition(".")[0] == "formulations"}
            allowed = OPTIONS_ONLY.get(here, set())
            assert {m for m in of_formulations if not m.startswith("formulations.base.")} <= allowed
            assert {m.rpartition(".")[2] for m in of_formulations - allowed} <= {"Options"}
    if here.startswith("formulations/"):
        of_planner = {m for m in found if m.startswith("planner.")}
        assert all(m.startswith(("planner.program", "planner.errors")) for m in of_planner)
        assert "instances" not in roots(found)
    if here.startswith("planner/cost/"):
        below = {"cost", "hardware", "layout", "workload"}
        assert {m.split(".")[1] for m in found if m.startswith("planner.")} <= below


def test_every_contract_of_import_linter_names_what_exists():
    import tomllib

    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    outside = {"cli", *SOLVERS}
    for contract in config["contracts"]:
        for module in contract["source_modules"] + contract["forbidden_modules"]:
            path = ROOT / module.replace(".", "/")
            assert module in outside or path.is_dir() or path.with_suffix(".py").is_file(), module


def test_the_door_contract_covers_every_module_of_planner():
    import tomllib

    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    door = next(c for c in config["contracts"] if "only door" in c["name"])
    modules = {f"planner.{p.stem}" for p in (ROOT / "planner").glob("*") if not p.name.startswith("_")}
    assert modules - set(door["source_modules"]) == {"planner.plan"}


@pytest.mark.parametrize("module", ["cli", "planner", "planner.request"])
def test_help_needs_nothing_heavy(module):
    heavy = ("numpy", "pydantic", "rich", "highspy", "ortools", "pyomo")
    code = f"import sys, {module}; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
