"""Dead letter topics: their settings, partitions and groups, and topics that are deleted."""

from __future__ import annotations

from tests.differential.dead_letters import (
    ENABLED,
    Queue,
    batches,
    letter_name,
    letter_topic,
    queue,
    remove,
    show,
)
from tests.differential.script import REJECT, Session, Topic, script

APPEND_TIME = {"message_timestamp_type": "LogAppendTime"}


def rejecting(q: Queue, *ranges: tuple[int, int]) -> None:
    for first, last in ranges:
        q.acknowledge((first, last, [REJECT]))
        q.settle()
    q.outcome()


def compacted(s: Session) -> Topic:
    return letter_topic(s, cleanup_policy="compact", min_cleanable_dirty_ratio="1")


@script("DLQ-35")
def a_compacted_topic_and_letters_without_key(s: Session) -> None:
    rejecting(queue(s, ("k", "a"), "b", letters=compacted(s).name), (0, 1))


@script("DLQ-35")
def a_compacted_topic_and_letters_with_a_key(s: Session) -> None:
    rejecting(queue(s, ("k", "a"), ("l", "b"), letters=compacted(s).name, copies=True), (0, 1))


@script("DLQ-35")
def a_compacted_topic_and_one_letter_without_key(s: Session) -> None:
    rows = (("k", "a"), (None, "b"), ("l", "c"))
    rejecting(queue(s, *rows, letters=compacted(s).name, copies=True), (0, 2))


@script("DLQ-28")
def every_compression_type(s: Session) -> None:
    q = queue(s, *"abcdef", copies=True)
    for offset, codec in enumerate(("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")):
        letters = letter_topic(s, name=letter_name(s, codec), compression_type=codec)
        q.letters = letters.name
        q.configure(errors_deadletterqueue_topic_name=letters.name)
        q.acknowledge((offset, offset, [REJECT]))
        q.settle()
        show(s, letters.name)
        batches(s, letters.name)


@script("DLQ-23")
def a_topic_with_append_time(s: Session) -> None:
    rejecting(queue(s, "a", letters=letter_topic(s, **APPEND_TIME).name, copies=True), (0, 0))


@script("DLQ-23")
def a_source_with_append_time(s: Session) -> None:
    rejecting(queue(s, "a", source=s.topic(**APPEND_TIME), copies=True), (0, 0))


def spread(s: Session, source: int, letters: int) -> None:
    q = queue(s, letters=letter_topic(s, letters).name, copies=True, partitions=source)
    for partition in range(source):
        q.put(f"a{partition}", f"b{partition}", partition=partition)
    q.take(2 * source)
    for partition in range(source):
        q.acknowledge((0, 1, [REJECT]), partition=partition)
    q.outcome()


@script("DLQ-22")
def fewer_partitions(s: Session) -> None:
    spread(s, 5, 2)


@script("DLQ-22")
def more_partitions(s: Session) -> None:
    spread(s, 2, 3)


@script("DLQ-36")
def a_topic_that_is_deleted(s: Session) -> None:
    letters = letter_topic(s)
    q = queue(s, "a", "b", "c", letters=letters.name)
    rejecting(q, (0, 0))
    remove(s, letters)
    rejecting(q, (1, 1))


@script("DLQ-36")
def a_topic_that_is_deleted_and_made_again(s: Session) -> None:
    letters = letter_topic(s)
    q = queue(s, "a", "b", "c", letters=letters.name)
    rejecting(q, (0, 1))
    remove(s, letters)
    letter_topic(s)
    rejecting(q, (2, 2))


@script("DLQ-37", seconds=3)
def the_source_is_deleted(s: Session) -> None:
    """While its records are held for the last time."""
    limits = {"share_delivery_count_limit": "2", "share_record_lock_duration_ms": "2000"}
    q = queue(s, "a", "b", "c", copies=True, **limits)
    q.release(0, 2)
    q.take(3)
    remove(s, q.topic)
    s.wait(3.5)
    show(s, q.letters)


@script("DLQ-31")
def the_source_is_its_own_dead_letter_topic(s: Session) -> None:
    source = s.topic(name=letter_name(s), **ENABLED)
    q = queue(s, "a", "b", letters=source.name, source=source)
    q.acknowledge((0, 1, [REJECT]))
    q.settle()
    show(s, source.name)


@script("DLQ-38")
def two_groups_with_one_topic(s: Session) -> None:
    q = queue(s, "a", "b", copies=True)
    other = _second(s, q)
    rejecting(q, (0, 1))
    rejecting(other, (0, 0))
    show(s, q.letters)


def _second(s: Session, q: Queue) -> Queue:
    """Another group over the same topic."""
    group = s.group("other", errors_deadletterqueue_topic_name=q.letters)
    s.join(group, "n", q.topic)
    other = Queue(s, q.topic, s.member(group, "n", on="n"), q.letters)
    other.take(2)
    return other


@script("DLQ-38")
def letters_of_letters(s: Session) -> None:
    """A group that reads the dead letter topic, and has another one."""
    q = queue(s, ("key", "a"), "b", copies=True)
    rejecting(q, (0, 1))
    last = letter_topic(s, name=letter_name(s, "-last"))
    group = s.group(
        "other", errors_deadletterqueue_topic_name=last.name, errors_deadletterqueue_copy_record_enable="true"
    )
    letters = s.learn(q.letters)
    s.join(group, "n", letters)
    again = Queue(s, letters, s.member(group, "n", on="n"), last.name)
    again.take(2)
    rejecting(again, (0, 1))
    show(s, q.letters)


@script("DLQ-38")
def letters_behind_other_records(s: Session) -> None:
    letters = letter_topic(s)
    s.produce(letters, "other", "records")
    rejecting(queue(s, "a", "b", letters=letters.name), (0, 0), (1, 1))
