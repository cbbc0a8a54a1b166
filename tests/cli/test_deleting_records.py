"""Commands that grow topics and delete records permanently: `topics alter`, `topics
delete-records`, `dead-letters count` and `purge`."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kbroker.cli.exits import OK, REFUSED, USAGE
from kbroker.client import group_admin
from kbroker.client.group_admin import TopicPartition
from kbroker.formats.batches import Record
from kbroker.share.dead_letter import Origin, headers_of
from kbroker.testing.broker import RunningBroker
from tests.brokers import ENGINES
from tests.cli.conftest import Command
from tests.cli.consumer_groups import commit
from tests.cli.dead_letter_topics import EXHAUSTED, append, fill


def starts(command: Command, topic: str) -> list[int]:
    return [
        each["start_offset"] for each in command("topics", "describe", topic, "--json").json[0]["partitions"]
    ]


@pytest.fixture
def filled(command: Command, topic: str, tmp_path: Path) -> str:
    """Ten records in partition 0 of three, four in partition 1."""
    for partition, count in ((0, 10), (1, 4)):
        (tmp_path / "lines").write_text("".join(f"value-{n}\n" for n in range(count)))
        assert command("produce", topic, tmp_path / "lines", "-p", str(partition)).code == OK
    return topic


def at_a_terminal(broker: RunningBroker, answer: bytes, arguments: Sequence[str]) -> tuple[int, str, str]:
    """Exit code, stdout and the prompt; the user types `answer`."""
    person, terminal = pty.openpty()
    command = [sys.executable, "-m", "kbroker", *arguments, "-b", broker.bootstrap]
    process = subprocess.Popen(
        command, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    os.close(terminal)
    os.write(person, answer)
    out, err = process.communicate(timeout=60)
    os.close(person)
    return process.returncode, out, err


def test_partitions_are_added(command: Command, topic: str) -> None:
    grown = command("topics", "alter", topic, "--partitions", "5")
    assert grown == (OK, f"topic {topic} has 5 partitions now, 2 more than before\n", "")
    assert starts(command, topic) == [0] * 5


def test_partitions_are_never_taken_away(command: Command, topic: str) -> None:
    fewer = "and partitions are never removed; to have fewer, create a new topic"
    assert command("topics", "alter", topic, "-p", "2") == (
        REFUSED,
        "",
        f"kbroker: topic {topic} has 3 partitions, {fewer}\n",
    )
    same = "already; --partitions is the total number"
    assert command("topics", "alter", topic, "-p", "3") == (
        REFUSED,
        "",
        f"kbroker: topic {topic} has 3 partitions {same}\n",
    )
    assert command("topics", "alter", "nowhere", "-p", "3") == (
        REFUSED,
        "",
        "kbroker: there is no topic nowhere\n",
    )
    assert "10000" in command("topics", "alter", topic, "-p", "1000000").err
    assert starts(command, topic) == [0] * 3


def test_records_below_an_offset_are_deleted(command: Command, filled: str) -> None:
    dry = command("topics", "delete-records", filled, "-p", "0", "--to-offset", "6", "--dry-run")
    assert (dry.code, dry.err) == (OK, "kbroker: 6 records would be deleted; nothing was (--dry-run)\n")
    assert starts(command, filled) == [0, 0, 0]
    done = command("topics", "delete-records", filled, "-p", "0", "--to-offset", "6", "--yes")
    assert [line.split() for line in done.lines] == [
        ["TOPIC", "PARTITION", "START-OFFSET", "NEW-START-OFFSET", "RECORDS"],
        [filled, "0", "0", "6", "6"],
        ["deleted", "6", "records", "of", filled],
    ]
    assert starts(command, filled) == [6, 0, 0]
    assert command("consume", filled, "-p", "0", "-n", "1").out == "value-6\n"
    again = command("topics", "delete-records", filled, "-p", "0", "--to-offset", "2", "--yes")
    assert (again.code, again.err, starts(command, filled)) == (
        OK,
        "kbroker: there is nothing to delete\n",
        [6, 0, 0],
    )


def test_all_records_are_deleted(command: Command, filled: str) -> None:
    done = command("topics", "delete-records", filled, "--to-end", "--yes", "--json")
    row = {"topic": filled, "start_offset": 0, "error": None}
    assert done.json == [
        {**row, "partition": p, "new_start_offset": n, "records": n} for p, n in enumerate((10, 4, 0))
    ]
    assert starts(command, filled) == [10, 4, 0]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], USAGE, "exactly one of --to-offset and --to-end is needed"),
        (["--to-end", "--to-offset", "1"], USAGE, "exactly one of --to-offset and --to-end is needed"),
        (
            ["--to-offset", "3", "--yes"],
            USAGE,
            "--to-offset is an offset of one partition, and {topic} has 3: name one with --partition",
        ),
        (
            ["--to-offset", "11", "-p", "0", "--yes"],
            REFUSED,
            "{topic}-0 ends at offset 10, before --to-offset 11",
        ),
        (
            ["--to-end", "-p", "3", "--yes"],
            REFUSED,
            "topic {topic} has no partition 3: it has 3, numbered from 0",
        ),
        (["--to-end"], USAGE, "nothing was deleted: there is no terminal to confirm on, so --yes is needed"),
    ],
    ids=[
        "no-place",
        "two-places",
        "several-partitions",
        "beyond-the-end",
        "no-such-partition",
        "nobody-to-ask",
    ],
)
def test_nothing_is_deleted(
    command: Command, filled: str, arguments: list[str], code: int, text: str
) -> None:
    refused = command("topics", "delete-records", filled, *arguments)
    assert (refused.code, refused.err.count("\n")) == (code, 1)
    assert text.format(topic=filled) in refused.err
    assert starts(command, filled) == [0, 0, 0]


@pytest.mark.parametrize(
    ("answer", "code", "start"),
    [(b"y\n", OK, 4), (b"n\n", REFUSED, 0), (b"\n", REFUSED, 0), (b"\x04", REFUSED, 0)],
    ids=["yes", "no", "enter", "end-of-file"],
)
def test_a_person_is_asked(
    broker: RunningBroker, command: Command, filled: str, answer: bytes, code: int, start: int
) -> None:
    ended, _, asked = at_a_terminal(
        broker, answer, ["topics", "delete-records", filled, "-p", "1", "--to-end"]
    )
    assert f"Delete 4 records of {filled} permanently? [y/N]" in asked
    assert (ended, starts(command, filled)[1]) == (code, start)
    assert ("nothing was deleted" in asked) == (code == REFUSED)


def test_groups_that_are_not_done_are_named_first(
    broker: RunningBroker, command: Command, filled: str
) -> None:
    """Groups that are done, or read other partitions, are not."""
    commit(broker, f"{filled}-late", {(filled, 0): 3, (filled, 1): 4})
    commit(broker, f"{filled}-done", {(filled, 0): 8})
    for name, offset in (("share", "5"), ("finished", "9")):
        reset = (
            "share-groups",
            "reset-offsets",
            f"{filled}-{name}",
            "--topic",
            f"{filled}:0",
            "--to-offset",
            offset,
            "--execute",
        )
        assert command(*reset).code == OK
    dry = command("topics", "delete-records", filled, "-p", "0", "--to-offset", "8", "--dry-run")
    mine = [line for line in dry.err.splitlines() if filled in line]
    assert mine == [
        f"kbroker: warning: consumer group {filled}-late has not read 5 of these records",
        f"kbroker: warning: share group {filled}-share has not finished up to 3 of these records "
        "and will not receive them",
    ]


def test_a_group_that_starts_beyond_the_end_takes_nothing_from_a_warning(
    broker: RunningBroker, command: Command, filled: str
) -> None:
    """Its lag in partition 0 is negative, but it still has finished nothing of partition 1."""
    delete = ("topics", "delete-records", filled, "--to-end", "--dry-run")
    for offsets, warned in (({0: 1003}, []), ({0: 1003, 1: 1}, ["3"])):
        with broker.connect() as connection:
            places = {TopicPartition(filled, number): offset for number, offset in offsets.items()}
            assert group_admin.alter_share_group_offsets(connection, f"{filled}-far", places) == {}
        warnings = [line for line in command(*delete).err.splitlines() if f"{filled}-far" in line]
        assert [re.findall(r"has not finished up to (\S+) of", line) for line in warnings] == [
            [count] for count in warned
        ]


@pytest.mark.parametrize("broker", ENGINES, indirect=True)
def test_on_every_engine(broker: RunningBroker, command: Command, filled: str) -> None:
    assert command("topics", "alter", filled, "-p", "4").code == OK
    assert command("topics", "delete-records", filled, "--to-end", "--yes").code == OK
    assert starts(command, filled) == [10, 4, 0, 0]
    letters = fill(broker, filled, 2)
    assert command("dead-letters", "purge", letters, "--yes").out.endswith(
        f"deleted 6 dead letters of {letters}\n"
    )
    assert command("dead-letters", "list", letters, "--json").json == []


def test_counting_dead_letters(broker: RunningBroker, command: Command, topic: str) -> None:
    letters = fill(broker, topic, 4)
    append(broker, letters, 1, [Record(0, 1, b"k", b"no dead letter")])
    assert command("dead-letters", "redrive", letters, "--name", "once", "--cause", "rejected").code == OK
    counted = command("dead-letters", "count", letters)
    assert [line.split() for line in counted.lines] == [
        ["GROUP", "SOURCE-TOPIC", "CAUSE", "DEAD-LETTERS", "REDRIVEN"],
        ["workers", topic, "exhausted", "6", "0"],
        ["workers", topic, "rejected", "6", "6"],
    ]
    assert counted.err == f"kbroker: 12 dead letters in {letters}, of which 6 were redriven\n"
    rejected = {
        "group": "workers",
        "source_topic": topic,
        "cause": "rejected",
        "dead_letters": 6,
        "redriven": 6,
    }
    chosen = command("dead-letters", "count", letters, "--cause", "rejected", "--json").json
    assert chosen == {"topic": letters, "dead_letters": 6, "redriven": 6, "kinds": [rejected]}
    none = command("dead-letters", "count", letters, "--group", "others")
    assert none == (OK, "", f"kbroker: 0 dead letters in {letters}, of which 0 were redriven\n")
    assert command("dead-letters", "count", "nowhere").err == "kbroker: there is no topic nowhere\n"


def test_purging_all(broker: RunningBroker, command: Command, topic: str) -> None:
    letters = fill(broker, topic, 3)
    dry = command("dead-letters", "purge", letters, "--dry-run")
    assert [line.split() for line in dry.lines] == [
        ["PARTITION", "DEAD-LETTERS", "NOT-REDRIVEN", "STAYING"], ["0", "6", "6", "0"], ["1", "3", "3", "0"],
    ]  # fmt: skip
    assert dry.err == "kbroker: 9 dead letters would be deleted; nothing was (--dry-run)\n"
    unasked = command("dead-letters", "purge", letters)
    assert (unasked.code, "so --yes is needed" in unasked.err, starts(command, letters)) == (
        USAGE,
        True,
        [0, 0],
    )
    done = command("dead-letters", "purge", letters, "--yes", "--json")
    rows = [{"partition": 0, "below": 6, "letters": 6, "not_redriven": 6, "staying": 0, "error": None}]
    rows.append({"partition": 1, "below": 3, "letters": 3, "not_redriven": 3, "staying": 0, "error": None})
    assert done.json == {"topic": letters, "purged": 9, "staying": 0, "partitions": rows}
    assert starts(command, letters) == [6, 3]
    none = command("dead-letters", "purge", letters, "--yes")
    assert none == (
        OK,
        "",
        f"kbroker: there are no matching dead letters in {letters} that could be deleted\n",
    )


def test_what_is_not_chosen_is_never_deleted(broker: RunningBroker, command: Command, topic: str) -> None:
    """Two records of partition 0 are deleted; the third stays, since it follows one of another
    group."""
    letters = f"dlq.{topic}"
    broker.create_topic(letters)
    groups = ("mine", "mine", "others", "mine")
    origins = [Origin(topic, 0, n, each, 1, EXHAUSTED) for n, each in enumerate(groups)]
    append(broker, letters, 0, [Record(0, 1, None, None, headers_of(each)) for each in origins])
    done = command("dead-letters", "purge", letters, "--group", "mine", "--yes")
    assert (done.code, done.lines[-1]) == (OK, f"deleted 2 dead letters of {letters}")
    assert done.err.startswith(f"kbroker: 1 dead letter of {letters} cannot be deleted yet: other records")
    assert [row["group"] for row in command("dead-letters", "list", letters, "--json").json] == [
        "others",
        "mine",
    ]


def test_a_topic_that_holds_no_dead_letters_is_left_alone(command: Command, filled: str) -> None:
    ran = command("dead-letters", "purge", filled, "--yes")
    assert ran == (OK, "", f"kbroker: there are no matching dead letters in {filled} that could be deleted\n")
    assert starts(command, filled) == [0, 0, 0]


def test_only_what_was_redriven_is_purged(broker: RunningBroker, command: Command, topic: str) -> None:
    letters = fill(broker, topic, 2)
    assert (
        command("dead-letters", "redrive", letters, "--name", "some", "--at", "0:0", "--at", "0:1").code == OK
    )
    done = command("dead-letters", "purge", letters, "--redriven", "--yes", "--json").json
    assert [(row["letters"], row["not_redriven"]) for row in done["partitions"]] == [(2, 0), (0, 0)]
    assert starts(command, letters) == [2, 0]


def test_a_person_is_asked_before_a_purge(broker: RunningBroker, command: Command, topic: str) -> None:
    letters = fill(broker, topic, 1)
    refused = at_a_terminal(broker, b"n\n", ["dead-letters", "purge", letters])
    assert (refused[0], f"Delete 3 dead letters of {letters} permanently? [y/N]" in refused[2]) == (
        REFUSED,
        True,
    )
    assert at_a_terminal(broker, b"y\n", ["dead-letters", "purge", letters])[0] == OK
    assert command("dead-letters", "list", letters, "--json").json == []
