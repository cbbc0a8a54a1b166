"""Plugins written before the SPIs were base classes: an engine or a persister without a base class
works through an adapter, or is refused with the name of the missing method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kbroker import plugins
from kbroker.broker.broker import open_broker
from kbroker.broker.options import StartOptions
from kbroker.errors import ErrorCode, OperatorError
from kbroker.settings.altering import BrokerConfig
from kbroker.share.persister import Persister, Result, adapted_persister
from kbroker.storage.keyvalue.chunked_store import ChunkedLogStore
from kbroker.storage.memory_store import LOG_STORE, STATE_STORE, MemoryLogStore, MemoryStateStore
from kbroker.storage.spi import Change, LogId, LogStoreFactory, StateStore, StateStoreFactory
from kbroker.testing.log_store_contract import LogStoreContract
from kbroker.testing.state_store_contract import StateStoreContract


class Delegating:
    """Every method is its own, and no optional one exists."""

    def __init__(self, store: Any) -> None:
        self.inner = store

    def close(self) -> None:
        self.inner.close()


class OldLogStore(Delegating):
    may_block = False
    write_in_thread = False
    inner: MemoryLogStore

    def logs(self) -> Sequence[LogId]:
        return self.inner.logs()

    def bounds(self, log: LogId) -> Any:
        return self.inner.bounds(log)

    def segments(self, log: LogId) -> Any:
        return self.inner.segments(log)

    def read(self, log: LogId, offset: int, **limits: int) -> Sequence[memoryview]:
        return self.inner.read(log, offset, **limits)

    def find_by_timestamp(self, log: LogId, timestamp_ms: int) -> int | None:
        return self.inner.find_by_timestamp(log, timestamp_ms)

    def create(self, log: LogId, settings: Any) -> None:
        self.inner.create(log, settings)

    def drop(self, log: LogId) -> None:
        self.inner.drop(log)

    def trim(self, log: LogId, new_start: int) -> None:
        self.inner.trim(log, new_start)

    def truncate(self, log: LogId, new_end: int) -> None:
        self.inner.truncate(log, new_end)

    def write(self, batches: Any, *, now_ms: int) -> None:
        self.inner.write(batches, now_ms=now_ms)

    def sync(self) -> None:
        self.inner.sync()


class OldStateReader(Delegating):
    inner: MemoryStateStore

    def get(self, key: bytes) -> bytes | None:
        return self.inner.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self.inner.scan(prefix)

    @contextmanager
    def snapshot(self) -> Iterator[Any]:
        with self.inner.snapshot() as moment:
            yield type(self)(moment)


class OldStateStore(OldStateReader):
    write_in_thread = False

    def write(self, changes: Sequence[Change]) -> None:
        self.inner.write(changes)

    def sync(self) -> None:
        self.inner.sync()


class OldRangeStore(OldStateStore):
    def scan_range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self.inner.scan_range(first, end)


def opened_state(kind: type[OldStateStore]) -> StateStoreFactory:
    def opens(directory: Path, options: Mapping[str, str] | None = None, owner_epoch: int = 0) -> Any:
        return kind(STATE_STORE.open(directory, options or {}, owner_epoch))

    return StateStoreFactory(open=opens, open_reader=opens)


class TestOldLogStore(LogStoreContract):
    factory = LogStoreFactory(
        open=lambda *arguments: OldLogStore(LOG_STORE.open(*arguments)),  # type: ignore[arg-type,return-value]
        open_reader=lambda directory: OldLogStore(LOG_STORE.open_reader(directory)),  # type: ignore[arg-type,return-value]
    )


class TestOldStateStore(StateStoreContract):
    factory = opened_state(OldStateStore)


class TestOldStateStoreWithRanges(StateStoreContract):
    factory = opened_state(OldRangeStore)


def test_optional_verbs_are_there_if_the_old_class_has_them(tmp_path: Path) -> None:
    plain = opened_state(OldStateStore).open(tmp_path, {}, 1)
    ranges = opened_state(OldRangeStore).open(tmp_path, {}, 1)
    assert isinstance(plain, StateStore)
    assert (plain.keeps_keys_on_disk, ranges.keeps_keys_on_disk) == (False, True)
    with plain.snapshot() as without, ranges.snapshot() as moment:
        assert (without.keeps_keys_on_disk, moment.keeps_keys_on_disk) == (False, True)
    assert (ranges.may_block, ranges.write_in_thread, ranges.write_beside_sync) == (True, False, False)
    assert ranges.statistics() is None
    assert isinstance(ranges.inner, MemoryStateStore), "what else it has is within reach"  # type: ignore[attr-defined]


def test_what_is_no_engine_is_refused_by_the_name_of_what_it_lacks(tmp_path: Path) -> None:
    factory = StateStoreFactory(open=lambda *_: OldStateReader(None), open_reader=lambda _: Delegating(None))  # type: ignore[arg-type,return-value]
    with pytest.raises(
        OperatorError, match=r"^\S+OldStateReader has no sync\(\), which a StateStore must have"
    ):
        factory.open(tmp_path, {}, 1)
    with pytest.raises(OperatorError, match=r"^\S+Delegating has no get\(\), which a StateReader must have"):
        factory.open_reader(tmp_path)


def test_a_class_with_a_missing_method_is_refused_by_its_name(tmp_path: Path) -> None:
    class Incomplete(ChunkedLogStore):
        def sync(self) -> None: ...

    with pytest.raises(OperatorError, match=r"Incomplete.*_check"):
        LogStoreFactory(open=lambda *_: Incomplete({}), open_reader=lambda _: None).open(tmp_path, {}, 1)  # type: ignore[abstract,arg-type,return-value]


class OldPersister:
    """The five required methods only."""

    def __init__(self, persister: Persister) -> None:
        self.initialize, self.read, self.write = persister.initialize, persister.read, persister.write
        self.delete, self.read_summary = persister.delete, persister.read_summary
        self.aclose = persister.aclose


async def test_an_old_persister(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "persister_factory", lambda _: lambda context: OldPersister(context.local))
    options = StartOptions(
        data_dir=tmp_path,
        listen=("127.0.0.1", 0),
        storage="memory",
        state_storage="memory",
        config=BrokerConfig({}),
    )
    async with open_broker(options) as broker:
        (topic,) = [await broker.topics.create("orders", 1, {})]
        await broker.topics.move_log_start(topic.partitions[0], 0)
        (result,) = await broker.persister.delete("group", [topic.partitions[0].log])  # type: ignore[list-item]
        assert result == Result(topic.partitions[0].log, ErrorCode.none)  # type: ignore[arg-type]
        found = broker.persister
        assert (found.waiting_rows, found.own_records, found.writes_to_the_end) == (None, None, False)


def test_a_persister_without_one_of_the_five_is_refused() -> None:
    class Four:
        async def initialize(self) -> None: ...

    with pytest.raises(OperatorError, match=r"Four has no aclose\(\), which a Persister must have"):
        adapted_persister(Four())
