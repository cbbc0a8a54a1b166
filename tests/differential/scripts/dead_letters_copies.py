"""Keys and values of dead letters: null, or those of the record; and what is too large."""

from __future__ import annotations

from kbroker.formats.compression import Codec
from tests.differential.dead_letters import Queue, letter_topic, queue
from tests.differential.script import REJECT, Session, script
from tests.differential.scripts.log_start import delete_before
from tests.differential.transactions import transactional

KINDS = [
    ("key", "value"),
    (None, "no key"),
    ("no value", None),
    ("", "empty key"),
    ("empty value", ""),
    (None, None),
    ("", ""),
]


def rejecting(q: Queue, *ranges: tuple[int, int]) -> None:
    for first, last in ranges:
        q.acknowledge((first, last, [REJECT]))
        q.settle()
    q.outcome()


@script("DLQ-25")
def no_copies(s: Session) -> None:
    rejecting(queue(s, *KINDS), (0, 6))


@script("DLQ-26", "DLQ-23")
def copies(s: Session) -> None:
    rejecting(queue(s, *KINDS, copies=True), (0, 6))


@script("DLQ-26")
def copies_are_switched_on_and_off(s: Session) -> None:
    q = queue(s, *"abc")
    for offset, value in enumerate(("false", "true", "false")):
        q.configure(errors_deadletterqueue_copy_record_enable=value)
        rejecting(q, (offset, offset))


@script("DLQ-26")
def copies_of_compressed_batches(s: Session) -> None:
    q = queue(s, copies=True)
    for codec in Codec:
        q.put(f"{codec.name} one", f"{codec.name} two", f"{codec.name} three", codec=codec)
    q.take(3 * len(Codec))
    rejecting(q, (0, 3 * len(Codec) - 1))


@script("DLQ-26")
def copies_of_parts_of_batches(s: Session) -> None:
    q = queue(s, copies=True)
    for codec in (Codec.NONE, Codec.GZIP):
        q.put(*"abcd", codec=codec)
    q.take(8)
    rejecting(q, (1, 2), (5, 5), (7, 7))


@script("DLQ-26")
def copies_of_a_transaction(s: Session) -> None:
    q = queue(s, copies=True, share_isolation_level="read_committed")
    t = transactional(s)
    t.send(q.topic, "a", "b")
    t.ended(True)
    q.take(2)
    rejecting(q, (0, 1))


@script("DLQ-26", "DLQ-27")
def copies_of_more_than_a_read(s: Session) -> None:
    """3 MiB in batches of 64 KiB."""
    q = queue(s, copies=True)
    q.put(*("x" * 65_000 for _ in range(48)), per_batch=1)
    q.take(48, max_bytes=1 << 23)
    rejecting(q, (0, 47))


@script("DLQ-26")
def a_copy_of_a_large_record(s: Session) -> None:
    q = queue(s, copies=True)
    q.put("x" * 900_000, "small")
    q.take(2, max_bytes=1 << 22)
    rejecting(q, (0, 1))


def small_letters(s: Session, max_bytes: int) -> Queue:
    letters = letter_topic(s, max_message_bytes=str(max_bytes))
    return queue(s, letters=letters.name, copies=True)


@script("DLQ-27", "DLQ-34")
def a_copy_that_is_too_large(s: Session) -> None:
    """The record alone is larger than the dead letter topic allows; the next one is not."""
    q = small_letters(s, 1000)
    q.put("x" * 2000)
    q.put("small")
    q.take(2)
    rejecting(q, (0, 0), (1, 1))


@script("DLQ-27", "DLQ-34")
def one_of_the_copies_is_too_large(s: Session) -> None:
    q = small_letters(s, 2000)
    q.put("small", "x" * 2500, "also small")
    q.take(3)
    rejecting(q, (0, 2))


@script("DLQ-27", "DLQ-34")
def a_batch_that_decompresses_to_more_than_the_topic_allows(s: Session) -> None:
    q = small_letters(s, 2000)
    q.put(*("x" * 100 for _ in range(50)), codec=Codec.ZSTD)
    q.put("small", codec=Codec.ZSTD)
    q.take(51)
    rejecting(q, (0, 1), (50, 50))


@script("DLQ-28", "DLQ-34")
def a_letter_that_is_too_large(s: Session) -> None:
    """The record is not, but with its headers."""
    q = small_letters(s, 1000)
    q.put("x" * 850)
    q.put("small")
    q.take(2)
    rejecting(q, (0, 0), (1, 1))


@script("DLQ-28", "DLQ-34")
def a_letter_that_is_too_large_among_others(s: Session) -> None:
    q = small_letters(s, 1000)
    q.put("small", "x" * 850, "also small")
    q.take(3)
    rejecting(q, (0, 2))


@script("DLQ-28", "DLQ-34")
def headers_that_are_too_large(s: Session) -> None:
    letters = letter_topic(s, max_message_bytes="200")
    rejecting(queue(s, "a", letters=letters.name), (0, 0))


@script("DLQ-27")
def a_range_that_begins_below_the_log_start(s: Session) -> None:
    q = queue(s, copies=True)
    q.put(*"abcdef", per_batch=2)
    q.take(6)
    delete_before(s, q.topic, 3)
    rejecting(q, (0, 5))


@script("DLQ-27")
def a_batch_that_begins_below_the_log_start(s: Session) -> None:
    q = queue(s, *"abcdef", copies=True)
    delete_before(s, q.topic, 3)
    rejecting(q, (3, 5))
