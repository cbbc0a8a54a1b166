"""A replacement of much is stored in pieces that hold up other writes for as little as possible."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kbroker.storage.keyvalue.chunked_log import LogChange
from kbroker.storage.keyvalue.chunks import CHUNK_BYTES, HEAD_SIZE
from kbroker.storage.lmdb import log_store
from kbroker.storage.spi import LogSettings, StampedBatch
from kbroker.testing.log_store_model import LOG, batch, joined, sized_batch

_BATCH_BYTES = 60_000
_BATCHES = 64


@pytest.mark.parametrize("at_once", [1, 16])
def test_a_piece_is_about_a_chunk_and_stores_no_batch_twice(tmp_path: Path, at_once: int) -> None:
    store = log_store.open_store(tmp_path, {}, 1)
    written = [sized_batch(offset, _BATCH_BYTES, timestamp_ms=offset) for offset in range(_BATCHES)]
    store.create(LOG, LogSettings(segment_bytes=len(joined(written))))
    for first in range(0, _BATCHES, at_once):
        store.write(written[first : first + at_once], now_ms=0)
    store.write([batch(_BATCHES, timestamp_ms=0)], now_ms=0)
    stored: list[int] = []
    commit = store._commit

    def counted(changes: Sequence[LogChange], *, durable: bool) -> None:
        stored.append(sum(len(each.value) - HEAD_SIZE for change in changes for each in change.chunks))
        commit(changes, durable=durable)

    store._commit = counted  # type: ignore[method-assign]
    replacement, kept = store.replacing(LOG, 0), [each for each in written if each.base_offset % 4]
    pieces: Sequence[tuple[int, Sequence[StampedBatch]]] = replacement.pieces(_BATCHES, kept)
    for end, batches in pieces:
        replacement.add(end, batches)
    replacement.finish()
    store.close()
    assert len(pieces) == len(stored) == _BATCHES * _BATCH_BYTES // (4 * _BATCH_BYTES)
    assert max(stored) <= CHUNK_BYTES
    assert sum(stored) == len(joined(kept))
