"""docs/format.md and the heads that it links to are sufficient: a reader written from them alone
finds the same in every engine's directory as the engine."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker import plugins
from kbroker.formats.batches import iter_headers
from kbroker.formats.state import ShareStateKey, parse_key, share_partition_prefix
from kbroker.share_state import loading as share_state_load
from kbroker.storage.spi import LogId, LogReader, StateReader
from kbroker.testing.broker import open_test_broker
from tests.formats.filling import BROKER_CONFIG, fill
from tests.formats.page_reader import ShareState, read_directory, share_states
from tests.formats.test_stored_directories import ARCHIVES


def _engine_batches(reader: LogReader, log: LogId) -> list[bytes]:
    bounds = reader.bounds(log)
    offset, found = bounds.start_offset, []
    while offset < bounds.end_offset:
        for view in reader.read(log, offset, max_bytes=1 << 20, end_offset=bounds.end_offset):
            for position, header in iter_headers(view):
                found.append(bytes(view[position : position + header.size_bytes]))
                offset = header.last_offset + 1
    return found


def _engine_share_states(reader: StateReader) -> dict[object, ShareState]:
    found: dict[object, ShareState] = {}
    for stored, _ in reader.scan(ShareStateKey.namespace):
        key = parse_key(stored)
        assert isinstance(key, ShareStateKey)
        state = share_state_load.load(
            reader.scan(share_partition_prefix(key.group_id, key.topic_id, key.partition))
        )
        assert state is not None
        offsets = {
            offset: (batch.state, batch.delivery_count)
            for batch in state.merged_batches()
            for offset in range(batch.first_offset, batch.last_offset + 1)
        }
        found[key.group_id, key.topic_id, key.partition] = ShareState(
            state.start_offset, state.delivery_complete_count, offsets
        )
    return found


def _compare(data_dir: Path) -> None:
    # before the engines: opening a reader may change the directory of a killed broker
    page = read_directory(data_dir)
    engines = json.loads((data_dir / "kbroker.json").read_text())
    log_engine, state_engine = engines["log_engine"], engines["state_engine"]
    logs = plugins.log_store_factory(log_engine).open_reader(data_dir / f"log-{log_engine}")
    try:
        assert page.logs == {tuple(log): _engine_batches(logs, log) for log in logs.logs()}
        assert sum(map(len, page.logs.values())) > 20
    finally:
        logs.close()
    state = plugins.state_store_factory(state_engine).open_reader(data_dir / f"state-{state_engine}")
    try:
        assert page.state == dict(state.scan(b""))
        found = share_states(page.state)
        assert found == _engine_share_states(state)
        assert any(len(each.offsets) > 5 for each in found.values())
    finally:
        state.close()


@pytest.mark.parametrize(
    "archive",
    [pytest.param(each, id=f"{each.parent.name}-{each.name.removesuffix('.tar.xz')}") for each in ARCHIVES],
)
def test_the_page_describes_what_the_built_in_engines_write(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    _compare(tmp_path / "data")


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_page_describes_what_the_plugin_writes(end: str) -> None:
    with open_test_broker(storage="sqlite", state_storage="sqlite", config=BROKER_CONFIG) as broker:
        fill(broker)
        ending: Callable[[], None] = getattr(broker, end)
        ending()
        _compare(broker.data_dir)
