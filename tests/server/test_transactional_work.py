"""What a committed transaction costs: syncs, writes of the state store, appended batches, and turns
of the loop.

docs/decisions/0020-the-end-of-a-transaction.md explains the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from kbroker.broker.options import Durability
from kbroker.client.rpc import Connection
from tests.brokers import require_engine
from tests.server.counted_work import Calls, Counted, counted, counted_broker
from tests.server.transactional_requests import transactions

_TOPIC = "written"
_OF_STATE = "StateStore.write"
_TRIES = 5
"""On a slow machine the end of a transaction waits no longer for the next begin, and periodic syncs
come in between."""
_MOST_TURNS = 13
"""10 to 11.5 were counted. With a task of its own for each end, and answers that waited for every
sync, a transaction took 16 to 19."""
_LMDB_COMMITS = "LmdbEnvironment.write"
"""A generator, which is entered and left: two calls for each synced commit."""


class Commit(NamedTuple):
    """Of one transaction with one batch in one log."""

    syncs: float
    state_writes: float
    batches: float


DISK, OS = Commit(4, 2, 2), Commit(4, 2, 2)
"""State: begun, decided, complete. Log: the batch and the marker. With `disk` each of these five is
synced. With `os` the begin is, the log before the decision, the decision, and the marker."""
EXPECTED: dict[tuple[str, Durability], Commit] = {
    ("segment", "disk"): DISK,
    ("segment", "os"): OS,
    ("rocksdb", "disk"): DISK,
    ("rocksdb", "os"): OS,
    ("lmdb", "disk"): DISK,
    # Its log syncs each of the two batches, and state is synced when it begins and is decided.
    ("lmdb", "os"): OS,
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("engine", "durability"), EXPECTED)
def test_a_transaction_costs_no_more_than_its_order_needs(
    engine: str, durability: Durability, version: int, tmp_path: Path
) -> None:
    require_engine(engine)
    expected = pytest.approx(EXPECTED[engine, durability], abs=0.06)
    with (
        counted_broker(tmp_path / "data", engine, durability) as (address, counts),
        Connection(*address) as one,
    ):
        _create_topic(one)
        for _ in range(_TRIES):
            found = counted(counts, transactions(one, _TOPIC, version))
            if _of(found) == expected:
                return
    assert tuple(_of(found)) == tuple(EXPECTED[engine, durability]), found.most(60)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("durability", ["disk", "os"])
def test_a_transaction_takes_few_turns_of_the_loop(
    durability: Durability, version: int, tmp_path: Path
) -> None:
    with (
        counted_broker(tmp_path / "data", "segment", durability) as (address, counts),
        Connection(*address) as one,
    ):
        _create_topic(one)
        for _ in range(_TRIES):
            found = counted(counts, transactions(one, _TOPIC, version))
            if (turns := found.calls["C epoll.poll"] / found.requests) <= _MOST_TURNS:
                return
    pytest.fail(f"{turns:g} turns of the loop:\n{found.most(60)}")


def _create_topic(connection: Connection) -> None:
    from kbroker.client import admin

    admin.create_topic(connection, _TOPIC, partitions=1)


def _of(found: Counted) -> Commit:
    def each(is_meant: Callable[[str], bool]) -> float:
        calls: Calls = found.calls
        return sum(count for name, count in calls.items() if is_meant(name)) / found.requests

    return Commit(
        found.work.syncs + each(lambda name: name.endswith(_LMDB_COMMITS)) / 2,
        each(lambda name: name.endswith(_OF_STATE)),
        each(lambda name: name.endswith(":Partition._stamped")),
    )
