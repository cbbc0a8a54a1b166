"""Redrive: sending dead letters back to the topics of their records. Each chosen dead letter is
sent exactly once, however often the redrive is interrupted.

A redrive has a name. Before it sends anything, it notes (redrive/notes.py) the chosen dead letters
and the ends of the topics that will receive records. Every record that it sends has a header with
the coordinates of its dead letter, as JSON:

    __kbroker.redrive   {"name": redrive, "topic": …, "topic_id": …, "partition": …, "offset": …}

Started again under its name, a redrive reads those topics from the noted ends on and leaves out the
dead letters that it finds. A record of a process that has died may still be under way then. Hence
all processes of one redrive use one producer id, and sequence numbers continue after the records
found. The broker accepts a batch with a sequence number once (KIP-98), from whichever process is
first; the other one reads the topic again.

This module decides; redrive/sending.py does the work. It prints nothing and reports progress to the
caller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from itertools import takewhile
from typing import NamedTuple
from uuid import UUID

from kbroker.client.admin import Topic, topics
from kbroker.client.rpc import Connection
from kbroker.client.topic_logs import Damage, bounds, new_producer_id
from kbroker.clock import wall_clock_ms
from kbroker.redrive.dead_letters import read_dead_letters
from kbroker.redrive.notes import Notes, Redrive, RedriveWish, Started
from kbroker.redrive.sending import RedriveRefused, Sending, Summary, Target, place_of, target_of


class RedrivePlan(NamedTuple):
    """The effect of a redrive: numbers of dead letters by target and of those that other redrives
    have sent, and lines that name unreadable parts of the topic."""

    targets: Counter[Target]
    skipped: int
    left_out: list[str]


def plan(connection: Connection, notes: Notes, topic: Topic, wish: RedriveWish) -> RedrivePlan:
    """Without sending or noting anything. Raises RedriveRefused, KafkaError."""
    width = _width(connection, wish)
    redriven = {} if wish.again else notes.redriven(topic.topic_id)
    targets: Counter[Target] = Counter()
    skipped = 0
    damaged: list[Damage] = []
    for letter in read_dead_letters(
        connection, topic, bounds(connection, topic), wish.choice, damaged.append
    ):
        if place_of(letter) in redriven:
            skipped += 1
        else:
            targets[target_of(letter, wish, width)] += 1
    return RedrivePlan(targets, skipped, list(map(str, damaged)))


def _width(connection: Connection, wish: RedriveWish) -> int:
    found = [each for each in topics(connection) if each.name == wish.to_topic]
    if wish.to_topic is not None and not found:
        raise RedriveRefused(f"there is no topic {wish.to_topic}")
    return len(found[0].partitions) if found else 0


def redrive(
    connection: Connection,
    topic: Topic,
    name: str,
    wish: RedriveWish,
    on_progress: Callable[[int, int], None] = lambda done, of: None,
) -> Summary:
    """Start or resume the redrive `name`. Everything that the summary counts as sent is
    durable on return.

    `on_progress(done, of)` is called from time to time, with numbers of offsets of the dead letter
    topic. Raises RedriveRefused and KafkaError; the next run finds what was sent so far.
    """
    notes = Notes(connection)
    known = notes.redrives.get((topic.topic_id, name))
    if known is None:
        _refuse_beside(notes.of_topic(topic.topic_id), topic)
        known = notes.start(_started(connection, topic, name, wish))
    if known.started is None:
        raise RedriveRefused(f"the start note of redrive {name} is lost; choose another name")
    if known.started.wish != wish:
        given = _options(known.started.wish)
        raise RedriveRefused(
            f"redrive {name} was started {given}; give the same options, or choose another name"
        )
    if known.finished_ms is not None:
        return Summary(name, chosen=len(known.sent), sent_before=len(known.sent), finished=True)
    # If two run at once, the first one continues.
    _refuse_beside(takewhile(lambda each: each is not known, notes.of_topic(topic.topic_id)), topic)
    return Sending(connection, notes, topic, known, known.started, on_progress).run()


def _refuse_beside(others: Iterable[Redrive], topic: Topic) -> None:
    for each in others:
        if each.finished_ms is None and each.started is not None:
            given = _options(each.started.wish)
            raise RedriveRefused(
                f"redrive {each.name} of {topic.name} is not finished; run it again first, as it was "
                f"started: {given}"
            )


def _options(wish: RedriveWish) -> str:
    """As options of the command line."""
    choice = wish.choice
    values: Mapping[str, str | None] = {
        "group": choice.group,
        "source-topic": choice.source_topic,
        "cause": choice.cause,
        "since": _time(choice.since_ms),
        "until": _time(choice.until_ms),
        "to": wish.to_topic,
    }
    given = [f"--{option} {value}" for option, value in values.items() if value is not None]
    given += [f"--at {partition}:{offset}" for partition, offset in choice.places] + ["--again"] * wish.again
    given += ["--keep-schedule"] * wish.keep_schedule
    return f"with {' '.join(given)}" if given else "without options beside its name"


def _time(since_1970_ms: int | None) -> str | None:
    if since_1970_ms is None:
        return None
    return (
        datetime.fromtimestamp(since_1970_ms / 1000, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def _started(connection: Connection, topic: Topic, name: str, wish: RedriveWish) -> Started:
    spans = bounds(connection, topic)
    width = _width(connection, wish)
    by_name = {each.name: each for each in topics(connection)}
    names = {
        target_of(letter, wish, width).topic
        for letter in read_dead_letters(connection, topic, spans, wish.choice)
    }
    targets: dict[str, tuple[UUID, Mapping[int, int]]] = {}
    for target in (by_name[each] for each in sorted(names) if each in by_name):
        ends = {partition: span.end_offset for partition, span in bounds(connection, target).items()}
        targets[target.name] = (target.topic_id, ends)
    return Started(
        redrive=name,
        topic=topic.name,
        topic_id=topic.topic_id,
        ends={partition: span.end_offset for partition, span in spans.items()},
        targets=targets,
        wish=wish,
        producer_id=new_producer_id(connection),
        started_ms=wall_clock_ms(),
    )
