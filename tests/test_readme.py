"""The README's commands are those that exist, and CI runs its test command."""

import os
import re
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cli import plan

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = PAGES[0].read_text("utf-8")
SCRIPT = (ROOT / ".ci/run").read_text("utf-8")


def test_ci_takes_its_test_command_from_the_readme():
    pattern = re.search(r"grep -E '(.*)' \"\$here/README.md\"", SCRIPT)
    assert pattern is not None
    found = [line for line in README.splitlines() if re.search(pattern[1], line)]
    assert found == ["python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/pytest"]
    # ... and knows no other.
    assert "pytest" not in SCRIPT.replace(pattern[0], "").replace("(python3 -m venv ... pytest)", "")


def test_ci_is_executable_and_parses():
    assert os.access(ROOT / ".ci/run", os.X_OK)
    subprocess.run(["bash", "-n", str(ROOT / ".ci/run")], check=True)


def options(command):
    names = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
    return names | {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_options_exist(page):
    assert isinstance(plan, click.Group)
    for line in re.findall(
        r"(?:`|bin/|from \. )plan( +[a-z-].*?)(?:`|$)", page.read_text("utf-8"), re.MULTILINE
    ):
        first = line.split()[0]
        command = plan.commands.get(first, plan)
        assert first.startswith("-") or first in plan.commands, line
        for option in re.findall(r"(?<=\s)--?[a-z][a-z-]*", line):
            assert option in options(command), (option, line)


def test_options_of_the_table_exist():
    assert isinstance(plan, click.Group)
    known = set().union(*(options(c) for c in (plan, *plan.commands.values())))
    found = set(re.findall(r"`(--[a-z][a-z-]*)", README))
    assert len(found) > 15
    assert found <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_named_files_exist(page):
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target
    for target in re.findall(r"`((?:planner|formulations|instances|tests|docs|\.ci)/[\w./-]+)`", text):
        assert (ROOT / target).exists(), target


def test_the_output_shown_is_what_comes_out():
    shown = re.search(r"```text\n(.*?)```", README, re.DOTALL)
    assert shown is not None
    result = CliRunner().invoke(plan, ["--flop", "1e28"], prog_name="plan")
    assert result.exit_code == 0
    # Layouts may tie, and solver versions and seconds are of the day: run, cluster and losses are compared.
    ours, theirs = (_steady(text) for text in (shown[1], result.stdout))
    assert ours == theirs
    assert len(ours) == 13


def _steady(text):
    start, _, rest = text.partition("\nlayout")
    losses = rest[rest.index("ceiling") : rest.index("\n\nbinding")]
    return [line for line in (start + "\n" + losses).splitlines() if line]
