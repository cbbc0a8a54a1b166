"""Redrives in trouble: lost logs and notes, foreign notes, concurrent redrives, odd timestamps and
many dead letters."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from kbroker.cli.exits import OK, REFUSED, USAGE
from kbroker.client import admin
from kbroker.client.rpc import Connection
from kbroker.client.topic_logs import Bounds, bounds, new_producer_id
from kbroker.formats.batches import Record
from kbroker.redrive import sending as redrive_sending
from kbroker.redrive.dead_letters import Choice
from kbroker.redrive.notes import NOTES_TOPIC, Notes, RedriveWish, Started
from kbroker.redrive.plan import redrive
from kbroker.redrive.sending import Summary
from kbroker.share.dead_letter import Origin, headers_of
from kbroker.testing.broker import RunningBroker
from tests.cli.conftest import Command
from tests.cli.dead_letter_topics import EXHAUSTED, PARTITIONS, append, fill, read, redriven


class Interrupted(Exception):
    pass


def _interrupt(broker: RunningBroker, letters: str, name: str) -> None:
    """A redrive that dies after its first batch."""

    def die(done: int, of: int) -> None:
        raise Interrupted

    with broker.connect() as connection, pytest.raises(Interrupted):
        redrive(connection, admin.topics(connection, [letters])[0], name, RedriveWish(Choice()), die)


def _delete_records(broker: RunningBroker, topic: str, partition: int) -> None:
    with broker.connect() as connection:
        row = {"partition_index": partition, "offset": -1}
        connection.call("delete_records", topics=[{"name": topic, "partitions": [row]}], timeout=10_000)


def _id_of(broker: RunningBroker, topic: str) -> UUID:
    with broker.connect() as connection:
        return admin.topics(connection, [topic])[0].topic_id


def test_sent_records_that_were_deleted(broker: RunningBroker, command: Command, topic: str) -> None:
    """The records sent by the dead process can no longer be identified: those dead letters are
    named, the others sent, and the redrive ends."""
    letters = fill(broker, topic, 300)
    _interrupt(broker, letters, "mine")
    (lost,) = (partition for partition, records in read(broker, topic).items() if len(records) > 300)
    _delete_records(broker, topic, lost)
    done = command("dead-letters", "redrive", letters, "--name", "mine", "--json")
    assert done.code == REFUSED
    first = 300 * (lost // 2)
    reason = f"records of {topic}-{lost} were deleted, so that nobody can tell whether it was sent"
    assert done.json["problems"] == [f"dead letters {lost % 2}:{first} to {lost % 2}:{first + 299}: {reason}"]
    assert done.json["not_sent"] == 300
    assert (done.json["sent"], done.json["finished"]) == (600, True)
    assert set(redriven(broker, topic, "mine").values()) == {1}


def test_what_was_sent_may_be_deleted_meanwhile(broker: RunningBroker, topic: str) -> None:
    """For instance by retention: records that the topic accepted from this process count as
    sent."""
    letters = fill(broker, topic, 300)

    def delete(done: int, of: int) -> None:
        for partition in range(PARTITIONS):
            _delete_records(broker, topic, partition)

    with broker.connect() as connection:
        done = redrive(
            connection,
            admin.topics(connection, [letters])[0],
            "mine",
            RedriveWish(Choice(group="workers")),
            delete,
        )
    assert (done.finished, done.chosen) == (True, 900)
    assert done.sent + done.not_sent == 900
    assert done.sent >= 300


def test_a_rival_sends_between_asking_for_the_end_and_reading(
    broker: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch after the queried end has a sequence number, but its records are not read: the
    redrive must ignore it entirely."""
    letters = fill(broker, topic, 400)
    _interrupt(broker, letters, "mine")
    rivals: list[Summary] = []

    def ends_before_a_rival_sends(connection: Connection, wanted: admin.Topic) -> dict[int, Bounds]:
        found = bounds(connection, wanted)
        if wanted.name == topic and not rivals:
            with monkeypatch.context() as undisturbed, broker.connect() as another:
                undisturbed.setattr(redrive_sending, "bounds", bounds)
                rivals.append(
                    redrive(another, admin.topics(another, [letters])[0], "mine", RedriveWish(Choice()))
                )
        return found

    monkeypatch.setattr(redrive_sending, "bounds", ends_before_a_rival_sends)
    with broker.connect() as connection:
        done = redrive(connection, admin.topics(connection, [letters])[0], "mine", RedriveWish(Choice()))
    assert [done.finished, *(each.finished for each in rivals)] == [True, True]
    assert redriven(broker, topic, "mine") == {
        (p, b"order %d of %d" % (n, p)): 1 for p in range(PARTITIONS) for n in range(400)
    }


def test_foreign_and_broken_notes(broker: RunningBroker, command: Command, topic: str) -> None:
    letters = fill(broker, topic, 2)
    assert command("dead-letters", "redrive", letters, "--name", "first", "--cause", "rejected").code == OK
    topic_id = str(_id_of(broker, letters))
    progress = {"note": "progress", "redrive": "lost", "topic_id": topic_id}
    notes = [
        b"\xff", b"{", b"[]", b"null", b"7", b"{}", b'{"note": "started"}', b'{"note": "finished", '
                                                                            b'"redrive": "first"}',
        json.dumps(progress | {"sent": {"x": [[0, 1]]}}).encode(),
        json.dumps(progress | {"sent": {"0": [7]}}).encode(),
        json.dumps(progress | {"redrive": ["x"], "sent": {}}).encode(),
        json.dumps(progress | {"topic_id": 5, "sent": {}}).encode(),
        json.dumps({"note": "started", "redrive": "half", "topic_id": topic_id, "wish": {}}).encode(),
    ]  # fmt: skip
    append(broker, NOTES_TOPIC, 0, [Record(0, 0, None, each) for each in [*notes, None]])
    listed = command("dead-letters", "list", letters, "--json")
    assert [row["redriven_by"] for row in listed.json].count("first") == PARTITIONS
    assert command("dead-letters", "redrive", letters, "--name", "rest", "--json").json["sent"] == PARTITIONS
    assert set(redriven(broker, topic, "rest").values()) == {1}


def test_notes_outlive_a_topic_that_was_created_by_hand(
    broker: RunningBroker, command: Command, topic: str
) -> None:
    """With the retention of other topics the notes would be removed, and every record sent
    again."""
    letters = fill(broker, topic, 2)
    command("topics", "delete", NOTES_TOPIC)
    assert command("topics", "create", NOTES_TOPIC, "--config", "retention.ms=1").code == OK
    assert command("dead-letters", "redrive", letters, "--name", "one").code == OK
    with broker.connect() as connection:
        configs = {
            each.name: each.value
            for each in admin.describe_configs(connection, admin.ResourceType.TOPIC, NOTES_TOPIC)
        }
    assert (configs["retention.ms"], configs["retention.bytes"]) == ("-1", "-1")
    assert set(redriven(broker, topic, "one").values()) == {1}


def test_a_lost_start_note(broker: RunningBroker, command: Command, topic: str) -> None:
    """Records still noted as sent are not sent again, and the redrive cannot be resumed."""
    letters = fill(broker, topic, 2)
    note = {
        "note": "progress",
        "redrive": "old",
        "topic_id": str(_id_of(broker, letters)),
        "sent": {"0": [[0, 1]]},
    }
    command("dead-letters", "redrive", letters, "--name", "none", "--group", "nobody")
    append(broker, NOTES_TOPIC, 0, [Record(0, 0, None, json.dumps(note).encode())])
    refused = command("dead-letters", "redrive", letters, "--name", "old")
    assert refused == (
        REFUSED,
        "",
        "kbroker: the start note of redrive old is lost; choose another name\n",
    )
    rest = command("dead-letters", "redrive", letters, "--name", "rest", "--json").json
    assert (rest["sent"], rest["skipped"]) == (4, 2)


def test_an_unfinished_redrive_keeps_others_waiting(
    broker: RunningBroker, command: Command, topic: str
) -> None:
    letters = fill(broker, topic, 300)
    _interrupt(broker, letters, "first")
    refused = command("dead-letters", "redrive", letters, "--name", "second", "--cause", "rejected")
    assert refused.err == (
        f"kbroker: redrive first of {letters} is not finished; run it again first, as it was started: "
        "without options beside its name\n"
    )
    assert command("dead-letters", "redrive", letters, "--name", "first").code == OK
    again = command("dead-letters", "redrive", letters, "--name", "first")
    assert "nothing was left to send" in again.err


def test_of_two_started_at_the_same_moment_the_first_goes_on(
    broker: RunningBroker, command: Command, topic: str
) -> None:
    """Neither saw the other's note before it wrote its own."""
    letters = fill(broker, topic, 2)
    with broker.connect() as connection:
        (found,) = admin.topics(connection, [letters])
        (source,) = admin.topics(connection, [topic])
        targets = {topic: (source.topic_id, dict.fromkeys(source.partitions, 2))}
        for name in ("first", "second"):
            producer_id = new_producer_id(connection)
            Notes(connection).start(
                Started(
                    name,
                    letters,
                    found.topic_id,
                    {0: 4, 1: 2},
                    targets,
                    RedriveWish(Choice()),
                    producer_id,
                    0,
                )
            )
    assert "redrive first of" in command("dead-letters", "redrive", letters, "--name", "second").err
    assert command("dead-letters", "redrive", letters, "--name", "first", "--json").json["sent"] == 6
    second = command("dead-letters", "redrive", letters, "--name", "second", "--json").json
    assert (second["sent"], second["skipped"], second["finished"]) == (0, 6, True)


def test_dead_letters_that_a_power_cut_took(broker: RunningBroker, command: Command, topic: str) -> None:
    """With durability `os` the dead letter topic may end before its end at the start of the
    redrive: the rest is redriven."""
    letters = fill(broker, topic, 2)
    with broker.connect() as connection:
        (found,) = admin.topics(connection, [letters])
        (source,) = admin.topics(connection, [topic])
        targets = {topic: (source.topic_id, dict.fromkeys(source.partitions, 2))}
        producer_id = new_producer_id(connection)
        Notes(connection).start(
            Started(
                "cut", letters, found.topic_id, {0: 9, 1: 2}, targets, RedriveWish(Choice()), producer_id, 0
            )
        )
    done = command("dead-letters", "redrive", letters, "--name", "cut", "--json").json
    assert (done["sent"], done["not_sent"], done["finished"]) == (6, 0, True)


def test_notes_of_scattered_dead_letters(broker: RunningBroker) -> None:
    """More than fit into one record of the notes."""
    with broker.connect() as connection:
        notes = Notes(connection)
        started = Started("scattered", "t", UUID(int=77), {}, {}, RedriveWish(Choice()), 0, 0)
        noted = notes.start(started)
        sent = {(partition, 10**15 + 2 * offset) for partition in (0, 1) for offset in range(40_000)}
        notes.finish(noted, sent, 5)
        found = Notes(connection).redrives[started.key]
    assert (found.sent, found.finished_ms) == (sent, 5)


def test_notes_of_earlier_versions(broker: RunningBroker) -> None:
    """They have nothing about schedules; and if schedules are not kept, the new notes have the same
    format."""
    with broker.connect() as connection:
        notes = Notes(connection)
        for name, keep_schedule in (("early", False), ("late", True)):
            started = Started(
                name, "t", UUID(int=78), {}, {}, RedriveWish(Choice(), keep_schedule=keep_schedule), 0, 0
            )
            assert ("keep_schedule" in json.loads(started.encode())["wish"]) == keep_schedule
            notes.start(started)
        found = {each.name: each.started for each in Notes(connection).of_topic(UUID(int=78))}
    assert {name: each and each.wish.keep_schedule for name, each in found.items()} == {
        "early": False,
        "late": True,
    }


def test_any_timestamp(broker: RunningBroker, command: Command, topic: str) -> None:
    for timestamp_ms in (-(1 << 62), -1, 0):
        append(
            broker,
            topic,
            0,
            [Record(0, timestamp_ms, None, b"v", headers_of(Origin("gone", 0, 0, "workers", 1, EXHAUSTED)))],
        )
    assert [line.split()[1] for line in command("dead-letters", "list", topic).lines[1:]] == [
        str(-(1 << 62)),
        "1969-12-31",
        "1970-01-01",
    ]
    assert str(-(1 << 62)) in command("dead-letters", "show", topic, "0:0").out


def test_header_names_that_are_no_utf_8(broker: RunningBroker, command: Command, topic: str) -> None:
    """No broker checks them: they are sent back unchanged."""
    headers = headers_of(Origin(topic, 0, 7, "workers", 1, EXHAUSTED))
    append(broker, topic, 0, [Record(0, 0, None, b"v", (*headers, ("\udcff", b"own")))])
    shown = command("dead-letters", "show", topic, "0:0", "--json").json
    assert shown["headers"][-1] == {"name": "?", "value": "own"}
    assert "?: own" in command("dead-letters", "show", topic, "0:0").out
    assert command("dead-letters", "redrive", topic, "--name", "r", "--json").json["sent"] == 1
    assert read(broker, topic)[0][1].headers[0] == ("\udcff", b"own")


def test_sources_with_a_record_in_each_batch(broker: RunningBroker, command: Command, topic: str) -> None:
    """They are read ahead; every other record is dead."""
    for offset in range(60):
        append(broker, topic, 0, [Record(0, 1, None, b"%d" % offset)])
    dead = [*range(30), *range(31, 60, 2)]
    letters = [
        Record(0, 1, None, None, headers_of(Origin(topic, 0, each, "workers", 1, EXHAUSTED))) for each in dead
    ]
    broker.create_topic(f"dlq.{topic}")
    append(broker, f"dlq.{topic}", 0, letters)
    assert command("dead-letters", "redrive", f"dlq.{topic}", "--name", "r", "--json").json["sent"] == 45
    assert [int(each.value or b"") for each in read(broker, topic)[0][60:]] == dead


def test_the_same_places_in_another_order(broker: RunningBroker, command: Command, topic: str) -> None:
    letters = fill(broker, topic, 2)
    assert command("dead-letters", "redrive", letters, "--name", "r", "--at", "0:1", "--at", "1:0").code == OK
    assert (
        command(
            "dead-letters", "redrive", letters, "--name", "r", "--at", "1:0", "--at", "0:1", "--at", "0:1"
        ).code
        == OK
    )


@pytest.mark.parametrize(
    "arguments",
    [("dead-letters", "list"), ("share-groups", "delete-offsets", "g", "--topic"), ("topics", "create")],
)
def test_names_that_are_no_utf_8(command: Command, arguments: tuple[str, ...]) -> None:
    assert command(*arguments, "\udcff") == (USAGE, "", "kbroker: '\\udcff' is not UTF-8\n")
