"""A wrong command or option is refused in one line, which suggests the likely one. No broker is
needed."""

from __future__ import annotations

import click
import pytest

from kbroker.cli import cli, run
from kbroker.cli.exits import USAGE
from kbroker.cli.suggesting import OTHER_NAMES, OTHER_OPTIONS, SuggestingGroup
from tests.cli.test_command_line import ALL_COMMANDS

DESCRIBE = (
    "one of 'kbroker queues describe', 'kbroker topics describe', 'kbroker share-groups describe', "
    "'kbroker groups describe', 'kbroker transactions describe', "
    "'kbroker configs describe'?"
)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("topic list", "'kbroker topics'?"),
        ("Topics list", "'kbroker topics'?"),
        ("group describe g", "'kbroker groups'?"),
        ("share list", "one of 'kbroker share-consume', 'kbroker share-groups'?"),
        ("dead list dlq", "'kbroker dead-letters'?"),
        ("deadletters list dlq", "'kbroker dead-letters'?"),
        ("create-topic t", "'kbroker topics'?"),
        ("describe t", DESCRIBE),
        ("serve", "'kbroker start'?"),
        ("help", "'kbroker --help'?"),
        ("version", "'kbroker --version'?"),
        ("queue create jobs", "'kbroker queues'?"),
        ("queues new jobs", "'kbroker queues create'?"),
        ("topics lst", "'kbroker topics list'?"),
        ("topics rm t", "'kbroker topics delete'?"),
        ("share-groups inflght g", "'kbroker share-groups inflight'?"),
        ("configs describ --topic t", "'kbroker configs describe'?"),
        ("storage inspct d", "'kbroker storage inspect'?"),
        ("topics list --jsn", "'--json'?"),
        ("start --lisen x", "'--listen'?"),
        ("start --port 9092", "'--listen'?"),
        ("topics list --port 9092", "'--bootstrap-server'?"),
        ("queues create jobs --max-retries 3", "'--deliveries'?"),
    ],
)
def test_what_was_meant(arguments: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments.split()) == USAGE
    output = capsys.readouterr()
    assert f"Did you mean {meant}" in output.err
    assert (output.out, output.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("arguments", ["frobnicate", "topics x"])
def test_what_resembles_nothing_is_refused_all_the_same(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments.split()) == USAGE
    error = capsys.readouterr().err
    assert "No such command" in error
    assert "Did you mean" not in error


def test_an_option_before_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-b", "localhost:9092", "topics", "list"]) == USAGE
    assert "No such option '-b'. Options of a command come after the command." in capsys.readouterr().err


def test_every_group_suggests() -> None:
    assert [
        path
        for path, command in ALL_COMMANDS
        if isinstance(command, click.Group) and not isinstance(command, SuggestingGroup)
    ] == []


def test_other_tools_words_lead_to_commands_that_there_are() -> None:
    known = {path[-1] for path, _ in ALL_COMMANDS if path} | {"--help", "--version"}
    assert {name for names in OTHER_NAMES.values() for name in names} <= known
    assert not OTHER_NAMES.keys() & set(cli.list_commands(click.Context(cli)))


def test_other_tools_words_lead_to_options_that_there_are() -> None:
    known = {name for _, command in ALL_COMMANDS for each in command.params for name in each.opts}
    assert {name for names in OTHER_OPTIONS.values() for name in names} <= known
