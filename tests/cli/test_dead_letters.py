"""`kbroker dead-letters` against a real broker; the dead letters are written here, as KIP-1191
describes them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from kbroker.cli.dead_letters.choice import CAUSES as cli_causes
from kbroker.cli.exits import OK, REFUSED, USAGE
from kbroker.client import admin
from kbroker.client.topic_logs import bounds, read_batches
from kbroker.formats.batches import Record
from kbroker.formats.compression import Codec
from kbroker.redrive.dead_letters import CAUSES as client_causes
from kbroker.share.dead_letter import Origin, headers_of, reason_headers
from kbroker.share.reasons import Reason
from kbroker.testing.broker import RunningBroker
from tests.cli.conftest import PATIENCE_S, Command
from tests.cli.dead_letter_topics import EXHAUSTED, PARTITIONS, REJECTED, append, fill, mark, read, redriven


def test_list(broker: RunningBroker, command: Command, topic: str) -> None:
    letters = fill(broker, topic, 4)
    listed = command("dead-letters", "list", letters)
    assert listed.lines[0].split() == [
        "AT",
        "TIME",
        "SOURCE",
        "GROUP",
        "DELIVERIES",
        "CAUSE",
        "REDRIVEN",
        "VALUE",
    ]
    assert listed.lines[1].split() == [
        "0:0",
        "1970-01-01",
        "00:00:05.000",
        f"{topic}-0:0",
        "workers",
        "1",
        "rejected",
        "-",
        "order",
        "0",
        "of",
        "0",
    ]
    assert len(listed.lines) == 1 + 12
    rejected = command("dead-letters", "list", letters, "--cause", "rejected", "--json").json
    assert [row["source"]["offset"] for row in rejected] == [0, 3] * PARTITIONS
    assert rejected[0]["value"] == "order 0 of 0"
    assert rejected[0]["message"] == REJECTED
    assert len(command("dead-letters", "list", letters, "--max", "5", "--json").json) == 5
    late = command(
        "dead-letters",
        "list",
        letters,
        "--since",
        "1970-01-01T00:00:05.002",
        "--until",
        "1970-01-01T00:00:05.003",
        "--json",
    ).json
    assert {row["timestamp_ms"] for row in late} == {5_002}
    assert command("dead-letters", "list", letters, "--group", "others") == (
        OK,
        "",
        f"kbroker: there are no matching dead letters in {letters}\n",
    )
    assert command("dead-letters", "list", "nowhere") == (REFUSED, "", "kbroker: there is no topic nowhere\n")
    assert command("dead-letters", "list", letters, "--at", "0-1").code == USAGE


REASON = Reason("ValueError", "no such size\x1b", "Traceback\n  line 1\nValueError: no such size")


def test_reasons_of_rejections(broker: RunningBroker, command: Command, topic: str) -> None:
    """They are shown, and a redrive leaves them out like the other headers of the dead letter."""
    letters = fill(broker, topic, 1)
    origin, own = Origin(topic, 0, 0, "workers", 1, REJECTED), (("own", b"header"),)
    headers = headers_of(origin) + reason_headers(REASON)
    append(broker, letters, 0, [Record(0, 5_000, None, b"job", headers + own)])
    append(broker, letters, 0, [Record(0, 5_000, None, b"again", headers_of(origin) + headers + own)])
    listed = command("dead-letters", "list", letters, "--at", "0:2", "--at", "0:3")
    assert "REASON" in listed.lines[0]
    assert "ValueError: no such size\\x1b" in listed.lines[1]
    assert "ValueError" not in listed.lines[2]
    rows = command("dead-letters", "list", letters, "--json").json
    assert [row["reason"] for row in rows if row["partition"] == 0] == [None, None, REASON._asdict(), None]
    shown = command("dead-letters", "show", letters, "0:2").lines
    at = shown.index("reason          ValueError: no such size\\x1b")
    assert shown[at + 1 : at + 4] == [
        "traceback       Traceback",
        "                  line 1",
        "                ValueError: no such size",
    ]
    places = ["--at", "0:2", "--at", "0:3"]
    assert command("dead-letters", "redrive", letters, "--name", "r", *places).code == OK
    sent = read(broker, topic)[0][-2:]
    assert [each.value for each in sent] == [b"job", b"again"]
    assert [name for name, _ in sent[0].headers[:-1]] == ["own"]
    assert sent[1].headers[:-1] == headers + own


def test_records_that_are_no_dead_letters_are_left_out(
    broker: RunningBroker, command: Command, topic: str
) -> None:
    append(
        broker,
        topic,
        0,
        [Record(0, 1, b"k", b"v", (("__dlq.errors.topic", b"t"),)), Record(0, 1, None, None)],
    )
    assert command("dead-letters", "list", topic, "--json").json == []


def test_show(broker: RunningBroker, command: Command, topic: str) -> None:
    letters = fill(broker, topic, 2, copy=False)
    shown = command("dead-letters", "show", letters, "1:1", "--json").json
    assert shown["source"] == {"topic": topic, "partition": 1, "offset": 1}
    assert (shown["key"], shown["value"]) == (None, None)
    assert [each["name"] for each in shown["headers"]][-1] == "__dlq.errors.message"
    assert shown["original"]["value"] == "order 1 of 1"
    assert shown["original"]["headers"] == [{"name": "own", "value": "header"}]
    text = command("dead-letters", "show", letters, "1:1").out
    assert "original value  order 1 of 1" in text
    missing = command("dead-letters", "show", letters, "1:99")
    assert missing == (REFUSED, "", f"kbroker: there is no dead letter at 1:99 of {letters}\n")
    with broker.connect() as connection:
        row = {"partition_index": 1, "offset": 2}
        connection.call("delete_records", topics=[{"name": topic, "partitions": [row]}], timeout=10_000)
    assert command("dead-letters", "show", letters, "1:1", "--json").json["original"] is None


@pytest.mark.parametrize("copy", [True, False], ids=["with copies", "from the source"])
def test_redrive_sends_each_record_back_once(
    broker: RunningBroker, command: Command, topic: str, copy: bool
) -> None:
    letters = fill(broker, topic, 5, copy=copy)
    planned = command("dead-letters", "redrive", letters, "--name", "first", "--dry-run", "--json").json
    targets = [{"topic": topic, "partition": p, "dead_letters": 5} for p in range(3)]
    assert planned == {"chosen": 15, "skipped": 0, "left_out": [], "targets": targets}
    done = command("dead-letters", "redrive", letters, "--name", "first", "--json")
    assert done.code == OK, done.err
    assert done.json == {
        "redrive": "first", "chosen": 15, "sent": 15, "sent_before": 0, "skipped": 0, "not_sent": 0,
        "problems": [], "left_out": [],
        "finished": True,
    }  # fmt: skip
    for partition, records in read(broker, topic).items():
        originals, returned = records[:5], records[5:]
        assert [(each.key, each.value) for each in returned] == [(each.key, each.value) for each in originals]
        assert [each.headers[0] for each in returned] == [("own", b"header")] * 5
        assert {mark(each)["partition"] for each in returned} == {partition % 2}
        assert all(len(each.headers) == 2 for each in returned)
    assert {row["redriven_by"] for row in command("dead-letters", "list", letters, "--json").json} == {
        "first"
    }
    again = command("dead-letters", "redrive", letters, "--name", "first", "--json").json
    assert (again["sent"], again["sent_before"], again["finished"]) == (0, 15, True)
    assert sum(redriven(broker, topic, "first").values()) == 15


def test_a_second_redrive_leaves_out_what_was_redriven(
    broker: RunningBroker, command: Command, topic: str
) -> None:
    letters = fill(broker, topic, 6)
    assert (
        command("dead-letters", "redrive", letters, "--name", "rejected-ones", "--cause", "rejected").code
        == OK
    )
    second = command("dead-letters", "redrive", letters, "--name", "rest", "--json").json
    assert (second["chosen"], second["sent"], second["skipped"]) == (12, 12, 6)
    third = command("dead-letters", "redrive", letters, "--name", "everything", "--again", "--json").json
    assert (third["chosen"], third["skipped"]) == (18, 0)
    assert set(redriven(broker, topic, "everything").values()) == {1}
    assert not redriven(broker, topic, "rest").keys() & redriven(broker, topic, "rejected-ones").keys()


def test_what_was_scheduled_does_not_wait_again(broker: RunningBroker, command: Command, topic: str) -> None:
    """Unless an option of the redrive says so."""
    letters = f"dlq.{topic}"
    broker.create_topic(letters, partitions=1)
    own = (("kbroker-deliver-at", b"4102444800000"), ("own", b"header"), ("kbroker-delay-ms", b"3600000"))
    origin = Origin(topic, 0, 0, "workers", 1, REJECTED)
    append(broker, letters, 0, [Record(0, 5_000, None, b"job", headers_of(origin) + own)])
    assert command("dead-letters", "redrive", letters, "--name", "now").code == OK
    again = ("dead-letters", "redrive", letters, "--again", "--name", "later")
    assert command(*again, "--keep-schedule").code == OK
    refused = command(*again)
    assert refused.err == (
        "kbroker: redrive later was started with --again --keep-schedule; give the same options, or choose "
        "another name\n"
    )
    now, later = read(broker, topic)[0]
    assert now.headers[:-1] == own[1:2]
    assert later.headers[:-1] == own


def test_redrive_elsewhere(broker: RunningBroker, command: Command, topic: str) -> None:
    """To a topic with fewer partitions."""
    letters = fill(broker, topic, 2)
    refused = command("dead-letters", "redrive", letters, "--name", "r", "--to", f"{topic}.repaired")
    assert refused == (REFUSED, "", f"kbroker: there is no topic {topic}.repaired\n")
    broker.create_topic(f"{topic}.repaired", partitions=2)
    assert (
        command(
            "dead-letters", "redrive", letters, "--name", "r", "--to", f"{topic}.repaired", "--json"
        ).json["sent"]
        == 6
    )
    values = {
        partition: {each.value for each in records}
        for partition, records in read(broker, f"{topic}.repaired").items()
    }
    assert values[1] == {b"order 0 of 1", b"order 1 of 1"}
    assert len(values[0]) == 4


def test_dead_letters_without_a_record_are_named(broker: RunningBroker, command: Command, topic: str) -> None:
    letters = fill(broker, topic, 2, copy=False)
    with broker.connect() as connection:
        row = {"partition_index": 0, "offset": 1}
        connection.call("delete_records", topics=[{"name": topic, "partitions": [row]}], timeout=10_000)
    done = command("dead-letters", "redrive", letters, "--name", "r")
    assert done.code == REFUSED
    assert (
        done.out
        == "r: 6 dead letters, 5 sent now, 0 before, 1 could not be sent; 0 skipped, which other redrives "
        "had sent\n"
    )
    assert (
        done.err
        == f"kbroker: dead letter 0:0: its record cannot be read in {topic} any more, nor was it copied\n"
    )


def test_refusals(broker: RunningBroker, command: Command, topic: str) -> None:
    letters = fill(broker, topic, 1)
    assert command("dead-letters", "redrive", letters, "--name", "mine", "--cause", "rejected").code == OK
    other = command("dead-letters", "redrive", letters, "--name", "mine")
    assert (
        other.err
        == "kbroker: redrive mine was started with --cause rejected; give the same options, or choose "
        "another name\n"
    )
    assert other.code == REFUSED


def test_too_large_for_the_topic(broker: RunningBroker, command: Command, topic: str) -> None:
    """A record that is refused because of a smaller max.message.bytes is named; the others of its
    batch are sent."""
    letters = fill(broker, topic, 3)
    origin = Origin(topic, 0, 7, "workers", 5, EXHAUSTED)
    append(broker, letters, 0, [Record(0, 1, None, os.urandom(5_000), headers_of(origin))])
    command("configs", "set", "--topic", topic, "max.message.bytes=1000")
    done = command("dead-letters", "redrive", letters, "--name", "r", "--json")
    assert done.code == REFUSED
    assert done.json["problems"] == [f"dead letter 0:6: it is too large for topic {topic}"]
    assert set(redriven(broker, topic, "r").values()) == {1}
    assert sum(redriven(broker, topic, "r").values()) == 9


@pytest.mark.parametrize("limits", [(), ("max.message.bytes=4000000", "segment.bytes=1048576")])
def test_a_record_that_came_compressed_goes_back_compressed(
    broker: RunningBroker, command: Command, topic: str, limits: Sequence[str]
) -> None:
    """max.message.bytes and segment.bytes limit compressed bytes, both for the producer and for the
    redrive."""
    letters = fill(broker, topic, 3)
    if limits:
        command("configs", "set", "--topic", topic, *limits)
    origin = Origin(topic, 0, 7, "workers", 5, EXHAUSTED)
    command("configs", "set", "--topic", letters, "max.message.bytes=4000000")
    append(broker, letters, 0, [Record(0, 1, None, bytes(3_000_000), headers_of(origin))])
    done = command("dead-letters", "redrive", letters, "--name", "r", "--json")
    assert (done.code, done.json["problems"]) == (OK, [])
    assert sum(redriven(broker, topic, "r").values()) == 10


@pytest.mark.parametrize("name", ["uncompressed", "gzip", "lz4"])
def test_records_go_back_in_the_codec_of_their_topic(
    broker: RunningBroker, command: Command, topic: str, name: str
) -> None:
    letters = fill(broker, topic, 3)
    command("configs", "set", "--topic", topic, f"compression.type={name}")
    done = command("dead-letters", "redrive", letters, "--name", "r", "--json")
    assert (done.code, done.json["sent"]) == (OK, 9)
    codec = Codec.NONE if name == "uncompressed" else Codec[name.upper()]
    with broker.connect() as connection:
        (found,) = admin.topics(connection, [topic])
        for partition, span in bounds(connection, found).items():
            batches = list(read_batches(connection, found, partition, 3, span.end_offset))
            assert {header.codec_id for header, _, _ in batches} == {codec}
    assert sum(redriven(broker, topic, "r").values()) == 9


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.full)])
def test_an_interrupted_redrive_goes_on(
    broker: RunningBroker, command: Command, topic: str, kills: int
) -> None:
    """Killed at random moments, including before its first note and after its last record; every
    chosen record is sent back once."""
    random_ = random.Random(kills)
    count = 60 * kills
    letters = fill(broker, topic, count, copy=False)
    arguments = [
        sys.executable,
        "-m",
        "kbroker",
        "dead-letters",
        "redrive",
        letters,
        "--name",
        "again-and-again",
        "--json",
    ]
    environment = {**os.environ, "KBROKER_BOOTSTRAP": broker.bootstrap}
    sent = killed = 0
    with broker.connect() as connection:
        (found,) = admin.topics(connection, [topic])

        def returned() -> int:
            return sum(span.end_offset - count for span in bounds(connection, found).values())

        while killed < kills:
            until = sent + random_.randrange(0, 3 * count // kills)
            process = subprocess.Popen(
                arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            _wait_until(
                lambda until=until, process=process: returned() >= until or process.poll() is not None
            )
            process.kill()
            process.wait()
            killed += 1
            sent = returned()
    assert sent > 0
    done = command("dead-letters", "redrive", letters, "--name", "again-and-again", "--json")
    assert done.code == OK, done
    assert done.json["chosen"] == PARTITIONS * count
    expected = {(p, b"order %d of %d" % (n, p)): 1 for p in range(PARTITIONS) for n in range(count)}
    assert redriven(broker, topic, "again-and-again") == expected


def _wait_until(condition) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "nothing came back"
        time.sleep(0.002)


def test_two_at_the_same_time_send_nothing_twice(broker: RunningBroker, topic: str) -> None:
    letters = fill(broker, topic, 400, copy=False)
    arguments = [
        sys.executable,
        "-m",
        "kbroker",
        "dead-letters",
        "redrive",
        letters,
        "--name",
        "both",
        "--json",
    ]
    environment = {**os.environ, "KBROKER_BOOTSTRAP": broker.bootstrap}
    both = [
        subprocess.Popen(
            arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    ends = [(each.communicate(timeout=4 * PATIENCE_S), each.returncode) for each in both]
    assert any(code == OK for _, code in ends), ends
    assert redriven(broker, topic, "both") == {
        (p, b"order %d of %d" % (n, p)): 1 for p in range(PARTITIONS) for n in range(400)
    }


def test_the_causes_that_can_be_chosen_are_those_there_are() -> None:
    assert cli_causes == tuple(client_causes)
