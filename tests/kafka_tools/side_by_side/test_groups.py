"""kafka-groups, kafka-consumer-groups and kafka-share-groups at both brokers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.kafka_tools.java import (
    CONFIGS,
    CONSOLE_CONSUMER,
    CONSOLE_PRODUCER,
    CONSOLE_SHARE_CONSUMER,
    CONSUMER_GROUPS,
    GROUPS,
    MISSING,
    SHARE_GROUPS,
    TOPICS,
    VERIFIABLE_CONSUMER,
    VERIFIABLE_SHARE_CONSUMER,
)
from tests.kafka_tools.side_by_side.pair import Pair, Same

pytestmark = [pytest.mark.full, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]
PATIENCE_S = 60.0
LINES = "".join(f"value-{number}\n" for number in range(20))
VIEWS = ("--offsets", "--members", "--state")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consumer_groups(pair: Pair, tmp_path: Path, protocol: str) -> None:
    name = f"{protocol}-group"
    with pair.chapter(f"{protocol} groups") as same:
        same("create", TOPICS, f"--create --topic {name}")
        same("produce", CONSOLE_PRODUCER, f"--topic {name}", given=LINES)
        same(
            "consume",
            CONSOLE_CONSUMER,
            f"--topic {name} --group {name} --from-beginning --max-messages 12 --timeout-ms 30000 "
            f"--command-property group.protocol={protocol}",
        )
        _views(same, "left", CONSUMER_GROUPS, name)
        member = f"--topic {name} --group-id {name} --group-protocol {protocol} --max-messages -1"
        with pair.running(VERIFIABLE_CONSUMER, member):
            _wait_for_a_member(pair, CONSUMER_GROUPS, name)
            _views(same, "joined", CONSUMER_GROUPS, name)
            group = f"--group {name}"
            same(
                "reset a group in use",
                CONSUMER_GROUPS,
                f"--reset-offsets {group} --topic {name} --to-earliest --execute",
            )
            same("delete a group in use", CONSUMER_GROUPS, f"--delete {group}")
            same("delete offsets in use", CONSUMER_GROUPS, f"--delete-offsets {group} --topic {name}")
        _resets(same, CONSUMER_GROUPS, name, tmp_path)
        same(
            "reset by time",
            CONSUMER_GROUPS,
            f"--reset-offsets --group {name} --all-topics --by-duration PT1H --dry-run",
        )
        same(
            "reset by shift",
            CONSUMER_GROUPS,
            f"--reset-offsets --group {name} --topic {name}:0 --shift-by -2 --execute",
        )
        _end(same, CONSUMER_GROUPS, name)


def test_share_groups(pair: Pair, tmp_path: Path) -> None:
    name = "share-group"
    with pair.chapter("share groups") as same:
        same("create", TOPICS, f"--create --topic {name}")
        same("configure", CONFIGS, f"--group {name} --alter --add-config share.auto.offset.reset=earliest")
        same("produce", CONSOLE_PRODUCER, f"--topic {name}", given=LINES)
        same(
            "consume",
            CONSOLE_SHARE_CONSUMER,
            f"--topic {name} --group {name} --max-messages 12 --timeout-ms 30000",
        )
        _views(same, "left", SHARE_GROUPS, name)
        with pair.running(VERIFIABLE_SHARE_CONSUMER, f"--topic {name} --group-id {name}"):
            _wait_for_a_member(pair, SHARE_GROUPS, name)
            _views(same, "joined", SHARE_GROUPS, name)
            same("delete a group in use", SHARE_GROUPS, f"--delete --group {name}")
            same(
                "reset a group in use",
                SHARE_GROUPS,
                f"--reset-offsets --group {name} --topic {name} --to-earliest --execute",
            )
            same("delete offsets in use", SHARE_GROUPS, f"--delete-offsets --group {name} --topic {name}")
        _resets(same, SHARE_GROUPS, name, tmp_path)
        _end(same, SHARE_GROUPS, name)


def _views(same: Same, when: str, main: str, group: str) -> None:
    named = f"--describe --group {group}"
    for view in VIEWS:
        same(f"{when}: {view}", main, f"{named} {view}")
        same(f"{when}: {view} verbose", main, f"{named} {view} --verbose")
    same(f"{when}: list", main, "--list --state", only=f"GROUP|{group}")
    same(f"{when}: groups", GROUPS, "--list", only=f"GROUP|{group}")


def _resets(same: Same, main: str, group: str, folder: Path) -> None:
    begin = f"--reset-offsets --group {group} --topic"
    reset = f"{begin} {group}"
    for target in ("--to-earliest", "--to-latest", "--to-offset 7", "--to-offset 99", "--to-current"):
        same(f"reset {target}, planned", main, f"{reset} {target} --dry-run")
        same(f"reset {target}", main, f"{reset} {target} --execute")
    same("reset to a time", main, f"{reset} --to-datetime 2001-01-01T00:00:00.000 --execute")
    same("reset, exported", main, f"{reset} --to-latest --dry-run --export")
    (file := folder / "plan.csv").write_text(f"{group},0,5\n")
    same("reset from a file", main, f"--reset-offsets --group {group} --from-file {file} --execute")
    same("reset a missing topic", main, f"{begin} missing --to-earliest --execute")
    same("described after", main, f"--describe --group {group} --offsets")


def _end(same: Same, main: str, group: str) -> None:
    same("delete offsets", main, f"--delete-offsets --group {group} --topic {group}")
    same("delete offsets of a missing topic", main, f"--delete-offsets --group {group} --topic missing")
    same("described without offsets", main, f"--describe --group {group}")
    same("delete", main, f"--delete --group {group}")
    same("delete again", main, f"--delete --group {group}")
    same("describe a missing one", main, f"--describe --group {group}")
    same("state of a missing one", main, f"--describe --group {group} --state")
    same("list after", main, "--list", only=group)


def _wait_for_a_member(pair: Pair, main: str, group: str) -> None:
    """And for its assignment."""
    deadline = time.monotonic() + PATIENCE_S
    asked = f"--describe --group {group} --members --verbose"
    while time.monotonic() < deadline:
        outputs = [" ".join(ended.lines) for _, ended in pair.both(main, asked)]
        if all(f"{group}:0" in each or f"{group}(0" in each for each in outputs):
            return
    raise AssertionError(f"no member with an assignment within {PATIENCE_S} s: {outputs}")
