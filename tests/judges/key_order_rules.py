"""The promises of `kbroker.queue.ordering=key`, as rules for queue_history.py.

    key order      an unscheduled record is delivered only when all older unscheduled records of its
                   key and partition are finished: accepted, rejected, or archived at the limit
    two of a key   members never hold two records of a key at a time, including scheduled records

A record cannot be finished before its accept or reject was sent. If it became a dead letter at the
limit, it cannot be finished before its last delivery was requested. The rules report only certain
violations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from tests.judges.history import Hold
from tests.judges.history_events import AckKind, DeadLetterRead, Record, Sent
from tests.judges.log_rules import Violation

_NEVER_NS = 1 << 63
Holds: TypeAlias = Mapping[Record, list[Hold]]
Letters: TypeAlias = Mapping[Record, list[DeadLetterRead]]
Keyed: TypeAlias = dict[tuple[str, int, str], list[tuple[Record, Sent]]]
"""Records in offset order, by topic, partition and key."""


def by_key(values: Iterable[tuple[Record, str]], sent: Mapping[str, Sent]) -> Keyed:
    """`values`: records and their values, without records that an operator passed over."""
    found: Keyed = defaultdict(list)
    for record, value in sorted(values):
        if (message := sent.get(value)) is not None and message.key:
            found[record.topic, record.partition, message.key].append((record, message))
    return found


def key_order(keyed: Keyed, holds: Holds, letters: Letters) -> Iterator[Violation]:
    for records in keyed.values():
        latest_end_ns, latest = 0, None
        for record, sent in records:
            if sent.due_ns:
                continue
            for hold in holds.get(record, ()):
                if hold.delivered.at_ns < latest_end_ns and latest is not None:
                    ends = [event for other in holds.get(latest, ()) for event in other.events()]
                    yield Violation(
                        "key order",
                        f"delivered although {latest}, of the same key, was not finished",
                        record,
                        (*hold.events(), *ends),
                    )
            end_ns = _earliest_end_ns(holds.get(record, ()), letters.get(record, ()))
            if end_ns > latest_end_ns:
                latest_end_ns, latest = end_ns, record


def _earliest_end_ns(holds: Iterable[Hold], letters: Iterable[DeadLetterRead]) -> int:
    ends = [
        hold.sent.at_ns
        for hold in holds
        if hold.sent is not None and hold.may_have(AckKind.ACCEPT, AckKind.REJECT)
    ]
    if any(not letter.is_rejected for letter in letters):
        ends.append(max((hold.delivered.asked_ns for hold in holds), default=0))
    return min(ends, default=_NEVER_NS)


def two_of_a_key(keyed: Keyed, holds: Holds) -> Iterator[Violation]:
    for records in keyed.values():
        spans = [
            (hold.delivered.at_ns, record, hold) for record, _ in records for hold in holds.get(record, ())
        ]
        spans.sort(key=lambda each: each[0])
        longest: dict[int, Hold] = {}
        for at_ns, record, hold in spans:
            if hold.life is None:
                continue
            other = longest.get(hold.life)
            if (
                other is not None
                and other.delivered.record != record
                and at_ns < min(other.earliest_end_ns, hold.earliest_end_ns)
            ):
                detail = f"delivered while a member holds {other.delivered.record}"
                yield Violation("two of a key", detail, record, hold.events() + other.events())
            if other is None or hold.earliest_end_ns > other.earliest_end_ns:
                longest[hold.life] = hold
