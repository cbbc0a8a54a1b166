"""The first half of a pass: fill the offset map from the batches that no pass has seen yet."""

from __future__ import annotations

from kbroker.compaction.offset_map import OffsetMap
from kbroker.compaction.transactions import SeenTransactions
from kbroker.formats.batches import Buffer, read_header, records_payload
from kbroker.formats.compacted_batches import read_stored


def add_keys(latest: OffsetMap, seen: SeenTransactions, data: Buffer, position: int = 0) -> bool:
    """Note the keys of the batch at `position`, the next one of the log. False: the map has no room
    for them, and ends before the batch.

    Keys of aborted transactions are left out, else they would remove committed values. Raises
    CorruptPayload for a batch that cannot be read."""
    header = read_header(data, position)
    if not header.is_control and not seen.is_aborted(header):
        if not latest.has_room_for(header.record_count):
            return False
        records = read_stored(bytes(records_payload(data, header, position)), header)
        base, pairs = header.base_offset, zip(records.keys, records.offset_deltas, strict=True)
        latest.put_all({key: base + delta for key, delta in pairs if key is not None})
    latest.end_offset = header.last_offset + 1
    return True
