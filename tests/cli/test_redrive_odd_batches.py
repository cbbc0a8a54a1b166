"""Dead letters and redrives beside batches whose payload contradicts their header: in no topic that
they read do these stop them."""

from __future__ import annotations

import pytest

from kbroker.cli.exits import OK, REFUSED
from kbroker.client import admin
from kbroker.client.topic_logs import read_batches
from kbroker.formats.batches import ProducerInfo, Record
from kbroker.redrive.dead_letters import Choice
from kbroker.redrive.notes import NOTES_TOPIC, Notes, RedriveWish
from kbroker.redrive.plan import redrive
from kbroker.share.dead_letter import Origin, headers_of
from kbroker.testing.broker import RunningBroker
from tests.cli.conftest import Command
from tests.cli.dead_letter_topics import EXHAUSTED, PARTITIONS, append, append_raw, fill, read, redriven
from tests.odd_batches import CLAIMED, ODD_BATCHES, odd_batch


def _letter(topic: str, offset: int) -> Record:
    return Record(0, 9_000, None, None, headers_of(Origin(topic, 0, offset, "workers", 5, EXHAUSTED)))


@pytest.mark.parametrize("kind", ODD_BATCHES)
def test_in_the_dead_letter_topic(broker: RunningBroker, command: Command, topic: str, kind: str) -> None:
    letters = fill(broker, topic, 2)
    first = append_raw(broker, letters, 0, odd_batch(kind))
    append(broker, letters, 0, [_letter(topic, 0)])
    listed = command("dead-letters", "list", letters, "--json")
    assert len(listed.json) == 2 * PARTITIONS + 1
    planned = command("dead-letters", "redrive", letters, "--name", "r", "--dry-run", "--json").json
    assert planned["chosen"] == 2 * PARTITIONS + 1
    done = command("dead-letters", "redrive", letters, "--name", "r", "--json")
    assert (done.code, done.json["sent"], done.json["finished"]) == (OK, 2 * PARTITIONS + 1, True)
    assert done.json["left_out"] == planned["left_out"]
    if kind not in ("too many records", "bytes behind the records", "lz4 with too many records"):
        told = f"left out unreadable records of {letters}-0, offsets {first} to {first + CLAIMED - 1}: "
        assert [line[: len(told)] for line in planned["left_out"]] == [told]
        assert f"kbroker: {told}" in listed.err
    missing = command("dead-letters", "show", letters, f"0:{first + 1}")
    assert missing.code == REFUSED
    assert f"there is no dead letter at 0:{first + 1} of {letters}" in missing.err


def test_a_redrive_tells_once_what_it_left_out(broker: RunningBroker, command: Command, topic: str) -> None:
    letters = fill(broker, topic, 2)
    append_raw(broker, letters, 0, odd_batch("no gzip"))
    done = command("dead-letters", "redrive", letters, "--name", "r")
    assert done.code == OK
    assert done.err.count(f"unreadable records of {letters}-0, offsets ") == 1
    assert done.err.count("gzip payload cannot be decompressed") == 1


@pytest.mark.parametrize("kind", ODD_BATCHES)
def test_in_the_topic_that_records_go_back_to(
    broker: RunningBroker, command: Command, topic: str, kind: str
) -> None:
    """Batches that another producer has sent there since the redrive was started, and since it was
    interrupted."""
    letters = fill(broker, topic, 300)
    with broker.connect() as connection:
        (found,) = admin.topics(connection, [letters])

        def interfere(done: int, of: int) -> None:
            for partition in range(PARTITIONS):
                append_raw(broker, topic, partition, odd_batch(kind))
            raise InterruptedError

        with pytest.raises(InterruptedError):
            redrive(connection, found, "mine", RedriveWish(Choice()), interfere)
    done = command("dead-letters", "redrive", letters, "--name", "mine", "--json")
    assert (done.code, done.json["finished"], done.json["sent_before"] > 0) == (OK, True, True)
    again = redriven(broker, topic, "mine")
    assert again == {(p, b"order %d of %d" % (n, p)): 1 for p in range(PARTITIONS) for n in range(300)}


def test_a_damaged_batch_of_its_own(broker: RunningBroker, command: Command, topic: str) -> None:
    """Its records are unknown: the rest of that partition is named, and not sent twice."""
    letters = fill(broker, topic, 300)
    with broker.connect() as connection:
        (found, source) = (admin.topics(connection, [each])[0] for each in (letters, topic))

        def interfere(done: int, of: int) -> None:
            raise InterruptedError

        with pytest.raises(InterruptedError):
            redrive(connection, found, "mine", RedriveWish(Choice()), interfere)
        started = Notes(connection).redrives[found.topic_id, "mine"].started
        assert started is not None
        sent = {
            p: list(read_batches(connection, source, p, 300, len(each)))
            for p, each in read(broker, topic).items()
        }
        ((partition, (own,)),) = ((p, each) for p, each in sent.items() if each)
        producer = ProducerInfo(started.producer_id, 0, own.header.record_count)
        append_raw(broker, topic, partition, odd_batch("no gzip", producer=producer))
    done = command("dead-letters", "redrive", letters, "--name", "mine", "--json")
    reason = f"a batch of {topic}-{partition} cannot be read, so that nobody can tell whether it was sent"
    assert (done.code, done.json["finished"], done.json["not_sent"]) == (
        REFUSED,
        True,
        300 - own.header.record_count,
    )
    assert all(line.endswith(reason) for line in done.json["problems"])
    assert set(redriven(broker, topic, "mine").values()) == {1}


@pytest.mark.parametrize("kind", ["no gzip", "no structure", "too few records"])
def test_in_the_notes(broker: RunningBroker, command: Command, topic: str, kind: str) -> None:
    letters = fill(broker, topic, 2)
    assert command("dead-letters", "redrive", letters, "--name", "first", "--cause", "rejected").code == OK
    append_raw(broker, NOTES_TOPIC, 0, odd_batch(kind))
    assert (
        command("dead-letters", "redrive", letters, "--name", "second", "--json").json["skipped"]
        == PARTITIONS
    )
    assert command("dead-letters", "list", letters).code == OK


@pytest.mark.parametrize("kind", ODD_BATCHES)
def test_what_a_dead_letter_without_a_copy_stands_for(
    broker: RunningBroker, command: Command, topic: str, kind: str
) -> None:
    letters = fill(broker, topic, 2, copy=False)
    first = append_raw(broker, topic, 0, odd_batch(kind))
    append(broker, topic, 0, [Record(0, 1, None, b"behind")])
    append(broker, letters, 0, [_letter(topic, offset) for offset in (first, first + CLAIMED)])
    place = f"0:{2 * 2}"
    assert command("dead-letters", "show", letters, place).code == OK
    done = command("dead-letters", "redrive", letters, "--name", "r", "--json")
    assert done.json["finished"]
    assert done.json["sent"] + done.json["not_sent"] == 2 * PARTITIONS + 2
    reason = f"its record cannot be read in {topic} any more, nor was it copied"
    assert done.json["problems"] in ([], [f"dead letter {place}: {reason}"])
    assert read(broker, topic)[0][-1].value == b"behind"
