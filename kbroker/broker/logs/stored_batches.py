"""Looks at what a store has read before it is sent: a batch whose header cannot be must not go to a
client.

A client that gets bytes which are no batch asks for them again for ever, or stops without a word.
Only headers are looked at, and only as many as it takes to be sure of the first batch, since
reading goes from there: what is damaged behind it is the first batch of a later read. Contents are
the consumers' to check, by the CRC, as in Kafka. It must not know what is done about damage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.batches import HEADER_SIZE, LENGTH_END, MAGIC, BatchHeader, crc_is_valid, read_header


def checked(views: Sequence[memoryview], offset: int, end_offset: int) -> Sequence[memoryview]:
    """`views` as LogReader.read gives them for [offset, end_offset), or only the first batch where
    none follows that could be.

    Raises CORRUPT_MESSAGE when the first batch cannot be one that holds `offset` or begins behind
    it. Java consumers and librdkafka tell the application of that code, while they retry after
    KAFKA_STORAGE_ERROR without a word.
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
    if not crc_is_valid(view, 0, first):  # Otherwise it is the next one that is damaged.
        raise KafkaError(
            ErrorCode.corrupt_message, f"the record batch stored at offset {first.base_offset} is damaged"
        )
    return (view[:size_bytes],)


def iter_possible(
    views: Sequence[memoryview], end_offset: int
) -> Iterator[tuple[memoryview, int, BatchHeader]]:
    """(view, position, header) of each batch, up to the first that cannot be one or does not end
    where another one begins."""
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
    """The header at `position`, if a batch may lie there whose base offset is in [least_offset,
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
