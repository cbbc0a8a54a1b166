"""docs/format.md and the heads that it links to also describe segments whose contents were
replaced: a reader written from them alone finds the same in them as the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker import plugins
from kbroker.formats.batches import iter_headers
from kbroker.storage.spi import LogSettings
from kbroker.testing.log_store_model import LOG, batch, read_all, replace
from tests.formats.page_reader import LOGS

WRITTEN = [batch(offset, 10, value=b"%05d" % offset) for offset in range(0, 180, 10)]


@pytest.mark.parametrize("engine", LOGS)
def test_the_page_describes_replaced_segments(engine: str, tmp_path: Path) -> None:
    store = plugins.log_store_factory(engine).open(tmp_path, {}, 1)
    store.create(LOG, LogSettings(segment_bytes=3 * len(WRITTEN[0].data)))
    store.write(WRITTEN, now_ms=0)
    for number, kept in enumerate([[], WRITTEN[4:5], WRITTEN[6:7], WRITTEN[11:12]]):
        replace(store, LOG, number * 30, kept, in_steps=True)
    partly = store.replacing(LOG, 120)
    partly.add(130, [])
    partly.abandon()
    store.sync()
    data = read_all(store)
    expected = [data[at : at + each.size_bytes] for at, each in iter_headers(data)]
    assert len(expected) in (8, 9)
    store.close()
    assert LOGS[engine](tmp_path) == {tuple(LOG): expected}
