"""Checks the bytes that a store has read before they are sent: a client must not get bytes that
cannot be a batch.

A client that gets such bytes repeats the fetch forever, or stops without a word. Only headers are
checked, and only as many as it takes to be sure of the first batch, from which the client
continues: damage after it is then the first batch of a later read. As in Kafka, consumers check the
contents by CRC. It must not know how damage is handled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import HEADER_SIZE, LENGTH_END, MAGIC, BatchHeader, crc_is_valid, read_header


def checked(views: Sequence[memoryview], offset: int, end_offset: int) -> Sequence[memoryview]:
    """`views` as LogReader.read returns them for [offset, end_offset), or only the first batch if
    no possible batch follows.

    Raises CORRUPT_MESSAGE if the first batch cannot hold `offset` or begin after it. Java consumers
    and librdkafka report that code to the application, while they silently retry after
    KAFKA_STORAGE_ERROR.
    """
    if not views:
        return views
    view = views[0]
    first = _possible(view, 0, 0, end_offset)
    if first is None or (last_offset := first.base_offset + first.last_offset_delta) < offset:
        raise KafkaError(
            ErrorCode.corrupt_message, f"what is stored at offset {offset} is not a record batch"
        )
    size_bytes = first.batch_length + LENGTH_END
    if size_bytes == len(view) or _possible(view, size_bytes, last_offset + 1, end_offset) is not None:
        return views
    if not crc_is_valid(view, 0, first):  # Otherwise the next one is damaged.
        raise KafkaError(
            ErrorCode.corrupt_message, f"the record batch stored at offset {first.base_offset} is damaged"
        )
    return (view[:size_bytes],)


def iter_possible(
    views: Sequence[memoryview], end_offset: int
) -> Iterator[tuple[memoryview, int, BatchHeader]]:
    """(view, position, header) of each batch, up to the first that cannot be one or that is not
    followed by another."""
    least_offset = 0
    for view in views:
        position, size = 0, len(view)
        header = _possible(view, position, least_offset, end_offset)
        while header is not None:
            end = position + header.batch_length + LENGTH_END
            least_offset = header.base_offset + header.last_offset_delta + 1
            following = _possible(view, end, least_offset, end_offset)
            if following is None and end < size and not crc_is_valid(view, position, header):
                return
            yield view, position, header
            position, header = end, following
        if position < size:
            return


def _possible(view: memoryview, position: int, least_offset: int, end_offset: int) -> BatchHeader | None:
    """The header at `position`, if it may be a batch with a base offset in [least_offset,
    end_offset)."""
    left = len(view) - position
    if left < HEADER_SIZE:
        return None
    header = read_header(view, position)
    is_possible = (
        header.magic == MAGIC
        and HEADER_SIZE <= header.batch_length + LENGTH_END <= left
        and least_offset <= header.base_offset < end_offset
        and header.last_offset_delta >= 0
    )
    return header if is_possible else None
