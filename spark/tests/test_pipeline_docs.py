"""docs/pipeline.md lists every command, option, check and column, and none that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from kbroker.cli import exits
from kbroker_pipeline.checks import CHECKS
from kbroker_pipeline.cli import job_options, load_commands
from kbroker_pipeline.exits import Exit
from kbroker_pipeline.health_rows import ShareRow

PAGE = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()
COMMANDS = load_commands().commands


def sections() -> dict[str, str]:
    """By heading of the second level."""
    parts = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def options_in(section: str) -> set[str]:
    cells = re.findall(r"^\| (`--.+?`) \|", section, re.MULTILINE)
    return set(re.findall(r"--[a-z-]+", " ".join(cells)))


def options_of(command: click.Command) -> set[str]:
    return {
        name
        for param in command.params
        if isinstance(param, click.Option)
        for name in (*param.opts, *param.secondary_opts)
    }


@pytest.fixture(scope="module")
def common() -> set[str]:
    @click.command()
    @job_options
    def nothing() -> None: ...

    return options_of(nothing)


def test_every_command_has_a_section() -> None:
    assert {
        name.removeprefix("kbroker-pipeline ") for name in sections() if name.startswith("kbroker-pipeline ")
    } == set(COMMANDS)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_option_is_told(command: str, common: set[str]) -> None:
    own = options_of(COMMANDS[command])
    assert options_in(sections()[f"kbroker-pipeline {command}"]) == own - common
    assert own >= common or command == "demo"


def test_common_options_are_told(common: set[str]) -> None:
    assert options_in(sections()["What all jobs have in common"]) == common


def test_checks_are_told() -> None:
    told = dict(
        re.findall(r"^\| `([a-z -]+)` \| (.+) \|$", sections()["kbroker-pipeline verify"], re.MULTILINE)
    )
    assert list(told) == [check.name for check in CHECKS]
    assert {name: text.partition(".")[0].partition(" (a note")[0] for name, text in told.items()} == {
        check.name: check.meaning.rstrip(".") for check in CHECKS
    }


def test_columns_of_queue_health_are_told() -> None:
    first_cells = re.findall(
        r"^\| ((?:`\w+`(?:, )?)+) \|", sections()["kbroker-pipeline queue-health"], re.MULTILINE
    )
    told = set(re.findall(r"`(\w+)`", " ".join(first_cells)))
    assert told == {*ShareRow._fields, "date", "taken", "topic_id"} - {"taken_ms"}


def test_exit_codes_are_those_of_kbroker() -> None:
    theirs = {name: value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)}
    assert {each.name: each.value for each in Exit} == theirs
