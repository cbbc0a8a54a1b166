"""`kbroker consume` prints every record of a batch whose payload is several compressed frames.

librdkafka reads the first gzip member, fetches the same batch for ever, and never gets to the
records behind it; it refuses consecutive snappy streams.
"""

from __future__ import annotations

from itertools import count

import pytest

from kbroker.cli.exits import OK, REFUSED
from kbroker.client import admin
from kbroker.client.topic_logs import append
from kbroker.formats.batches import Record, build_batch
from kbroker.testing.broker import RunningBroker
from tests.cli.conftest import Command
from tests.framings import READABLE, RECORDS, framed_batch
from tests.odd_batches import CLAIMED, odd_batch

_numbers = count()
END = ("--timeout-ms", "300", "--json")


def _topic(broker: RunningBroker, *batches: bytes) -> str:
    name = f"frames-{next(_numbers)}"
    broker.create_topic(name, partitions=1)
    with broker.connect() as connection:
        (topic,) = admin.topics(connection, [name])
        for batch in batches:
            append(connection, topic, 0, batch)
    return name


def _offsets(command: Command, *options: str) -> list[int]:
    ran = command("consume", *options)
    assert (ran.code, ran.err) == (OK, "")
    return [each["offset"] for each in ran.json_lines]


@pytest.mark.parametrize("framing", READABLE)
def test_all_frames_are_read_and_what_follows_them(
    command: Command, broker: RunningBroker, framing: str
) -> None:
    topic = _topic(broker, framed_batch(framing), build_batch([Record(0, 1, b"k", b"last", (("h", b"x"),))]))
    ran = command("consume", topic, *END)
    assert (ran.code, ran.err) == (OK, "")
    assert [each["offset"] for each in ran.json_lines] == list(range(RECORDS + 1))
    assert ran.json_lines[-1]["headers"] == [{"name": "h", "value": "x"}]
    assert _offsets(command, topic, *END, "-n", "50") == list(range(50))


@pytest.mark.parametrize("framing", ["gzip-3-members", "snappy-xerial-streams"])
def test_reading_begins_within_a_later_frame(command: Command, broker: RunningBroker, framing: str) -> None:
    topic = _topic(broker, framed_batch(framing), framed_batch(framing))
    assert _offsets(command, topic, *END, "--from", "30") == list(range(30, 2 * RECORDS))


def test_a_member_commits_them(command: Command, broker: RunningBroker) -> None:
    topic = _topic(broker, framed_batch("gzip-3-members"), framed_batch("gzip-3-members"))
    member = (topic, "--group", f"of-{topic}", "--from-beginning", *END)
    assert _offsets(command, *member, "-n", "30") == list(range(30))
    assert _offsets(command, *member) == list(range(30, 2 * RECORDS))
    assert _offsets(command, *member) == []


@pytest.mark.parametrize(
    ("kind", "readable"), [("a record that is cut off", [0, 1]), ("no structure", []), ("no gzip", [])]
)
def test_records_that_nobody_can_read_are_refused(
    command: Command, broker: RunningBroker, kind: str, readable: list[int]
) -> None:
    topic = _topic(broker, odd_batch(kind))
    ran = command("consume", topic, *END)
    assert ran.code == REFUSED
    assert [each["offset"] for each in ran.json_lines] == readable
    assert f"{topic}-0: records at offsets {len(readable)} to {CLAIMED - 1} cannot be read" in ran.err
