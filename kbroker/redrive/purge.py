"""Finds the dead letters that can be deleted. A log is only cut from its beginning, so these are
the ones before the first record that must stay.

It must not know the commands; it deletes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kbroker.client.admin import Topic
from kbroker.client.rpc import Connection
from kbroker.client.topic_logs import Bounds, read_batches
from kbroker.redrive.dead_letters import StoredDeadLetter
from kbroker.share.dead_letter import origin_of


class PartitionPurge(NamedTuple):
    """Records below `below` can be deleted: `letters` dead letters, `not_redriven` of them never
    sent back.

    `staying`: selected dead letters that stay, as a record that is not selected lies before them.
    """

    partition: int
    below: int
    letters: int
    not_redriven: int
    staying: int


def purges(
    connection: Connection,
    topic: Topic,
    spans: Mapping[int, Bounds],
    is_meant: Callable[[StoredDeadLetter], bool],
    is_redriven: Callable[[StoredDeadLetter], bool],
) -> list[PartitionPurge]:
    """By partition. Records that are no dead letters, and batches that cannot be read to their end,
    are never selected. Reads the topic from its start to the ends in `spans`."""
    return [
        _purge(connection, topic, partition, span, is_meant, is_redriven)
        for partition, span in sorted(spans.items())
    ]


def _purge(
    connection: Connection,
    topic: Topic,
    partition: int,
    span: Bounds,
    is_meant: Callable[[StoredDeadLetter], bool],
    is_redriven: Callable[[StoredDeadLetter], bool],
) -> PartitionPurge:
    kept_from: int | None = None
    letters = not_redriven = staying = 0
    for header, records, damage in read_batches(connection, topic, partition, *span):
        if damage is not None and kept_from is None:
            kept_from = header.base_offset
        for record in records:
            origin = origin_of(record.headers)
            letter = None if origin is None else StoredDeadLetter(partition, record, origin)
            if letter is None or not is_meant(letter):
                kept_from = record.offset if kept_from is None else kept_from
            elif kept_from is not None:
                staying += 1
            else:
                letters += 1
                not_redriven += not is_redriven(letter)
    below = span.end_offset if kept_from is None else kept_from
    return PartitionPurge(partition, below if letters else span.start_offset, letters, not_redriven, staying)
