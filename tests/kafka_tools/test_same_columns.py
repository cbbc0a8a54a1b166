"""`kbroker groups` shows the same columns and values as Kafka's own tool does for the same
groups."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.cli.consumer_groups import commit, consuming, member, until
from tests.kafka_tools.java import CONSUMER_GROUPS, MISSING, Ended, run

pytestmark = [pytest.mark.full, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]
TOPIC = "orders"
GROUPS = ("resting", "classic", "modern", "mixed")
Rows = list[list[str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    """With a group of each kind: without members, classic, of KIP-848, and of KIP-848 with members
    of both protocols."""
    with open_test_broker(config={"group.initial.rebalance.delay.ms": "0"}) as running, ExitStack() as stack:
        running.create_topic(TOPIC, partitions=3)
        produced = _ours(
            running, "produce", TOPIC, given="".join(f"value-{number}\n" for number in range(30))
        )
        assert produced.code == 0, produced
        for group in GROUPS:
            commit(running, group, {(TOPIC, 0): 2, (TOPIC, 1): 1})
        stack.enter_context(member(running, "classic", TOPIC))
        stack.enter_context(member(running, "modern", TOPIC, "consumer"))
        stack.enter_context(consuming(running, TOPIC, "--group", "mixed", "--group-protocol", "consumer"))
        until(
            "the group of both protocols has its first member",
            lambda: _members(running, "mixed") == 1 or None,
        )
        stack.enter_context(
            member(running, "mixed", TOPIC, partition_assignment_strategy="cooperative-sticky")
        )
        until(
            "the group of both protocols is stable",
            lambda: "Stable" in _ours(running, "describe", "mixed", "--state").lines[1] or None,
        )
        yield running


def _ours(broker: RunningBroker, command: str, *arguments: str, given: str = "") -> Ended:
    line = [
        sys.executable,
        "-m",
        "kbroker",
        *(("produce",) if command == "produce" else ("groups", command)),
        *arguments,
    ]
    done = subprocess.run(
        [*line, "-b", broker.bootstrap], input=given, capture_output=True, text=True, timeout=60, check=False
    )
    return Ended(done.returncode, done.stdout.splitlines(), done.stderr)


def _members(broker: RunningBroker, group: str) -> int:
    return len(_ours(broker, "describe", group, "--members").lines[1:])


def _rows(lines: list[str]) -> Rows:
    """The head, then sorted rows; without unknown values at the end of a line, which Kafka's tool
    leaves out."""
    rows = [line.rstrip("- ").split() for line in lines]
    return [*rows[:1], *sorted(rows[1:])]


@pytest.fixture
def both(broker: RunningBroker) -> Callable[..., tuple[Rows, Rows]]:
    """The output of both tools: kbroker's command, and the options for both."""

    def call(command: str, *options: str) -> tuple[Rows, Rows]:
        ours = _ours(broker, command, *options)
        theirs = run(CONSUMER_GROUPS, "--bootstrap-server", broker.bootstrap, f"--{command}", *options)
        assert ours.lines, ours
        return _rows(ours.lines), _rows(theirs.lines)

    return call


VIEWS = [(group, view) for group in GROUPS for view in ("--offsets", "--members", "--state")]
VIEWS.remove(("resting", "--members"))  # Kafka's tool prints only the head of an empty table


@pytest.mark.parametrize(("group", "view"), VIEWS)
def test_describe(both: Callable[..., tuple[Rows, Rows]], group: str, view: str) -> None:
    for options in ((), ("--verbose",)):
        ours, theirs = both("describe", "--group", group, view, *options)
        assert ours == theirs


@pytest.mark.parametrize(
    "target",
    ["--to-earliest", "--to-latest", "--to-offset=4", "--shift-by=-2", "--to-current", "--by-duration=PT1H"],
)
def test_plans_of_resets(both: Callable[..., tuple[Rows, Rows]], target: str) -> None:
    ours, theirs = both(
        "reset-offsets", "--group", "resting", "--topic", f"{TOPIC}:0,1", *target.split("="), "--dry-run"
    )
    assert ours == theirs
    ours, theirs = both(
        "reset-offsets", "--group", "resting", "--all-topics", *target.split("="), "--dry-run", "--export"
    )
    assert sorted(ours) == sorted(theirs)
