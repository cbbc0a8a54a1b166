"""Consistent reads beside a running broker: state and logs are read one after the other, in an
order in which they agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from kbroker.formats.share_records import ShareSnapshot
from kbroker.formats.state import ShareStateKey
from kbroker.storage.spi import StateReader
from kbroker_spark import state_table, topics_table
from kbroker_spark.data import DataDir, reading
from kbroker_spark.lookup import look
from kbroker_spark.options import SubscribePattern
from spark.tests.share_work import table
from spark.tests.stored import batch, records, writing
from tests.brokers import DURABLE_ENGINES


class _Busy:
    """A state while a broker runs: something happens before each read of it."""

    def __init__(self, state: StateReader, happen: Callable[[], None]) -> None:
        self._state, self._happen = state, happen

    def get(self, key: bytes) -> bytes | None:
        return self._state.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._happen()
        return self._state.scan(prefix)

    def snapshot(self) -> AbstractContextManager[StateReader]:
        self._happen()
        return self._state.snapshot()

    def close(self) -> None:
        self._state.close()


@pytest.mark.parametrize("engine", DURABLE_ENGINES)
def test_topics_that_are_made_and_written_to_while_a_picture_is_taken(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs are created before the state names them, and written before share state refers to their
    records. A reader that reads the state first therefore finds no log that ends before it."""
    with writing(tmp_path, engine) as data:
        data.topic("t0")
        made: list[str] = []

        def make() -> None:
            made.append(f"t{len(made) + 1}")
            topic_id = data.topic(made[-1])
            data.append(topic_id, 0, batch(records(10), 0))
            times = {"create_timestamp": 5, "write_timestamp": 6}
            snapshot = ShareSnapshot(
                snapshot_epoch=0,
                state_epoch=1,
                leader_epoch=0,
                start_offset=10,
                delivery_complete_count=0,
                **times,
                state_batches=(),
            )
            data.state.write([(ShareStateKey(topic_id, 0, "g", 0).encode(), snapshot.encode())])

        real = DataDir.state
        monkeypatch.setattr(DataDir, "state", lambda directory: _Busy(real(directory), make))
        with reading(tmp_path) as directory:
            found = look(directory, SubscribePattern("t.*"))
        assert [each.bounds.end for each in found.values()] == [0, *[10] * (len(found) - 1)]
        assert len(found) > 1
        ends = {row["topic"]: row["end_offset"] for row in table(topics_table, tmp_path)}
        assert ends == {"t0": 0, **dict.fromkeys(made, 10)}
        assert {row["lag"] for row in table(state_table, tmp_path, view="share-partitions")} == {0}
