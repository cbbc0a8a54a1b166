"""Parked records beside control records: after a kill between any two steps, or with one of the two
stores behind the other, no record is lost and none exists twice. See
plugins/kbroker-control-records/kbroker_control_records/parking.py for the steps.

A kill is a copy of the data directory, taken at that moment.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
import trio.testing

from kbroker import plugins
from kbroker.broker.broker import Broker
from kbroker.errors import ErrorCode, NoSpace
from kbroker.formats.parked_records import (
    BLOCKS_KEY,
    BlockedKey,
    ParkedCount,
    ParkedKey,
    ParkedRecord,
    read_parked_entries,
)
from kbroker.share.effects import StateBatch
from kbroker.share.parked import Lane, Parked, ParkingChange
from kbroker.share.persister import PARKED, ReadResult, WriteRequest
from kbroker.storage.data_dir import DataDirectory
from kbroker.storage.spi import LogId
from kbroker.testing.parking_model import Shelf, keep, park, unpark, waiting_rows
from kbroker.testing.parking_model import keyed as parked
from kbroker.testing.persister_model import GROUP, LEADER, Asked, R
from kbroker_control_records.parking import ControlParking
from kbroker_control_records.persister import ControlRecordsPersister
from tests.broker.persisters.test_parked_cleaner import opened

NAME = "control-records"
ENGINES = ("segment", "lmdb", "rocksdb")
OLD, NEW = 1000, 2000
MOVED, ACCEPTED, FRESH = 100, 101, 102
"""Offsets: of a record that the write parks at another place, of one that is done, and of one that
it parks newly."""


class Found(NamedTuple):
    """After a start. `in_window`: those of the three that can be delivered from the window."""

    parked: dict[int, int]
    in_window: set[int]


async def before(broker: Broker) -> Shelf:
    shelf = Shelf(Asked(broker))
    await shelf.asked.begin()
    assert await shelf.write(park(parked(MOVED, OLD)), park(parked(ACCEPTED, OLD))) is ErrorCode.none
    return shelf


async def the_write(shelf: Shelf) -> ErrorCode:
    return await shelf.write(
        park(parked(MOVED, NEW, count=2), parked(MOVED, OLD).place),
        unpark(parked(ACCEPTED, OLD)),
        park(parked(FRESH, NEW)),
    )


async def found_in(directory: Path, engine: str) -> Found:
    """What a broker finds in it. In each store there is one key by offset and one place for each
    parked record, and their number."""
    async with opened(directory, NAME, engine) as broker:
        asked = Asked(broker)
        state = await asked.read()
        assert state.code is ErrorCode.none
        shelf = Shelf(asked, there={each.offset: each for each in await all_parked(broker)})
        await shelf.check()
        await broker.state_commits.commit([])  # after the removal of old places
        check_store(broker)
        return Found({offset: each.due_ms for offset, each in shelf.there.items()}, in_window(state))


async def all_parked(broker: Broker) -> list[Parked]:
    rows = broker.persister.waiting_rows
    assert rows is not None
    return await rows.read_from(GROUP, Asked(broker).P, PARKED, 0, None, 1000)


def in_window(state: ReadResult) -> set[int]:
    archived = {
        offset
        for batch in state.batches
        if batch.state == R
        for offset in range(batch.first_offset, batch.last_offset + 1)
    }
    return {
        offset
        for offset in (MOVED, ACCEPTED, FRESH)
        if offset >= state.start_offset and offset not in archived
    }


def check_store(broker: Broker) -> None:
    places, by_offset, blocked, counts = set(), set(), set(), []
    for key, value in read_parked_entries(broker.state_store.scan(ParkedKey.namespace)):
        if isinstance(value, ParkedCount):
            counts.append(value.number)
        elif isinstance(value, BlockedKey):
            blocked.add(value)
        else:
            (by_offset if key.kind == 1 else places).add(value)
    assert places == by_offset
    waits = [each for each in by_offset if each.lane == BLOCKS_KEY and each.key_hash is not None]
    assert blocked == {BlockedKey(each.key_hash, each.offset) for each in waits}
    assert counts == [len(by_offset)]


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """Copies of the data directory, taken before and after step 1 and before step 3 of each
    write."""
    data = tmp_path / "data"

    def copy(name: str) -> None:
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        subprocess.run(["cp", "-a", "--sparse=always", data, tmp_path / name], check=True)

    put, submit_removals = ControlParking.put, ControlParking.submit_removals

    async def around_put(self: ControlParking, *arguments: Any) -> Any:
        copy("nothing done")
        steps = await put(self, *arguments)
        copy("parked")
        return steps

    def before_removals(self: ControlParking, *arguments: Any) -> bool:
        copy("decided")
        return submit_removals(self, *arguments)

    monkeypatch.setattr(ControlParking, "put", around_put)
    monkeypatch.setattr(ControlParking, "submit_removals", before_removals)
    yield lambda name: tmp_path / name
    monkeypatch.undo()


@pytest.mark.parametrize("engine", ENGINES)
def test_killed_between_any_two_steps(engine: str, tmp_path: Path, killed: Callable[[str], Path]) -> None:
    async def run() -> None:
        async with opened(tmp_path / "data", NAME, engine) as broker:
            assert await the_write(await before(broker)) is ErrorCode.none
        assert await found_in(killed("nothing done"), engine) == Found({MOVED: OLD, ACCEPTED: OLD}, {FRESH})
        assert await found_in(killed("parked"), engine) == Found({MOVED: NEW, ACCEPTED: OLD}, {FRESH})
        assert await found_in(killed("decided"), engine) == Found(
            {MOVED: NEW, ACCEPTED: OLD, FRESH: NEW}, set()
        )
        assert await found_in(killed("data"), engine) == Found({MOVED: NEW, FRESH: NEW}, set())

    trio.run(run)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("point", ["decided", "data"])
def test_the_log_alone_is_lost(
    engine: str, point: str, tmp_path: Path, killed: Callable[[str], Path]
) -> None:
    """A power cut with durability `os` loses the control record; the state store has everything."""

    async def run() -> None:
        async with opened(tmp_path / "data", NAME, engine) as broker:
            shelf = await before(broker)
            end = broker.topics.partition(*shelf.partition).high_watermark  # type: ignore[union-attr]
            assert await the_write(shelf) is ErrorCode.none
        with DataDirectory.open(killed(point), engine, engine) as directory:
            store = plugins.log_store_factory(engine).open(directory.log_path, {}, 0)
            store.truncate(LogId(*shelf.partition), end)
            store.close()
        accepted = {ACCEPTED: OLD} if point == "decided" else {}
        assert await found_in(killed(point), engine) == Found({MOVED: NEW} | accepted, {FRESH})

    trio.run(run)


def test_what_is_parked_is_synced_before_its_record_is_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With durability `os` as well; records that are no longer parked are removed afterwards."""
    seen: list[str] = []

    async def run() -> None:
        async with opened(tmp_path, NAME) as broker:
            broker.state_commits._sync_each = broker.log_commits._sync_each = False
            shelf = await before(broker)
            states, logs, flush = (
                broker.state_commits._write,
                broker.log_commits._write,
                broker.state_commits.flush,
            )

            async def noted() -> None:
                seen.append("sync")
                await flush()

            def write(changes: list[tuple[bytes, bytes | None]]) -> None:
                seen.append(
                    "put"
                    if any(key.startswith(b"parked/") and len(value or b"") > 10 for key, value in changes)
                    else "remove"
                )
                states(changes)

            def append(batches: list[Any]) -> None:
                seen.append("append")
                logs(batches)

            monkeypatch.setattr(broker.state_commits, "flush", noted)
            monkeypatch.setattr(broker.state_commits, "_write", write)
            monkeypatch.setattr(broker.log_commits, "_write", append)
            assert await the_write(shelf) is ErrorCode.none
            assert seen == ["put", "sync", "append", "remove"]

    trio.run(run)


def test_nothing_is_appended_where_the_state_stays_as_it_is(tmp_path: Path) -> None:
    """Accepting or releasing a parked record changes no place in the window."""

    async def run() -> None:
        async with opened(tmp_path, NAME) as broker:
            shelf = await before(broker)
            partition = broker.topics.partition(*shelf.partition)
            assert partition is not None
            end = partition.high_watermark
            assert (
                await shelf.write(park(parked(MOVED, NEW, count=2), parked(MOVED, OLD).place))
                is ErrorCode.none
            )
            assert await shelf.write(unpark(parked(ACCEPTED, OLD))) is ErrorCode.none
            assert partition.high_watermark == end
            await shelf.check()
            check_store(broker)

    trio.run(run)


class Full:
    """A store that refuses writes of one kind."""

    def __init__(
        self, commits: Any, monkeypatch: pytest.MonkeyPatch, is_refused: Callable[[Any], bool] = bool
    ) -> None:
        write = commits._write

        def refuse(items: Any) -> None:
            if self.is_full and is_refused(items):
                raise NoSpace("no space left")
            write(items)

        self.is_full = True
        monkeypatch.setattr(commits, "_write", refuse)


def _removes(changes: Any) -> bool:
    return any(key.startswith(ParkedKey.namespace) and value is None for key, value in changes)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_step_that_fails_is_a_failure_that_the_next_write_makes_good(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the share engine does: it sends the removals of records that it may have parked, and their
    number."""

    async def run() -> None:
        async with opened(tmp_path, NAME) as broker:
            shelf = await before(broker)
            full = Full(
                broker.log_commits if step == 2 else broker.state_commits,
                monkeypatch,
                _removes if step == 3 else bool,
            )
            assert await the_write(shelf) is ErrorCode.coordinator_not_available
            full.is_full = False
            again = ParkingChange(
                MOVED, (parked(MOVED, OLD).place, parked(MOVED, NEW).place), parked(MOVED, 3000, count=3)
            )
            undo = ParkingChange(FRESH, (parked(FRESH, NEW).place,), None)
            assert await shelf.write(again, undo) is ErrorCode.none
            await shelf.check()
            check_store(broker)
            await shelf.write(*map(unpark, shelf.there.values()))
            await shelf.check()
            check_store(broker)

    trio.run(run)


def test_what_waits_behind_a_write_that_fails_to_park_fails_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start offset may have passed records that were to be parked."""
    codes: dict[str, ErrorCode] = {}

    async def run() -> None:
        async with opened(tmp_path, NAME) as broker:
            shelf = await before(broker)
            full = Full(broker.state_commits, monkeypatch)

            async def write(name: str, request: WriteRequest) -> None:
                (result,) = await shelf.asked.persister.write(GROUP, [request])
                codes[name] = result.code

            plain = WriteRequest(shelf.partition, 5, LEADER, 103, 0, ())
            async with trio.open_nursery() as nursery:
                parking = plain._replace(start_offset=100, parking=[park(parked(FRESH, NEW))], waiting=3)
                nursery.start_soon(write, "parks", parking)
                await trio.lowlevel.checkpoint()
                nursery.start_soon(write, "behind", plain)
                nursery.start_soon(write, "elsewhere", plain._replace(partition=shelf.asked.Q))
            assert codes.pop("elsewhere") is ErrorCode.invalid_request, (
                "not its turn: it was never initialised"
            )
            assert set(codes.values()) == {ErrorCode.coordinator_not_available}
            assert (await shelf.asked.summary()).start_offset == 100
            full.is_full = False
            await write("later", plain)
            assert codes["later"] is ErrorCode.none
            persister = broker.persister
            assert isinstance(persister, ControlRecordsPersister)
            assert not persister._parking.is_busy

    trio.run(run)


def test_a_state_that_begins_anew_while_it_parks_shows_nothing_of_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path, NAME) as broker:
            shelf = await before(broker)
            codes: list[ErrorCode] = []

            async def write() -> None:
                codes.append(await the_write(shelf))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                await trio.lowlevel.checkpoint()
                assert await shelf.asked.initialize(6, 100) is ErrorCode.none
            assert codes != [ErrorCode.none]
            shelf.there, shelf.state_epoch = {}, 6
            assert (await shelf.asked.read()).code is ErrorCode.none
            await shelf.check()

    trio.run(run)


def test_a_load_waits_for_what_is_on_its_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would include a record that is about to be removed."""
    may_write = threading.Event()

    async def run() -> None:
        async with opened(tmp_path, NAME, "lmdb") as broker:
            shelf = await before(broker)
            write = broker.log_commits._write

            def held(batches: Any) -> None:
                assert may_write.wait(30)
                write(batches)

            monkeypatch.setattr(broker.log_commits, "_write", held)
            found: list[ReadResult] = []

            async def read() -> None:
                found.append(await shelf.asked.read())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(shelf.asked.write, StateBatch(110, 110, 2, 9))
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(shelf.write, unpark(parked(ACCEPTED, OLD)))
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(read)
                await trio.testing.wait_all_tasks_blocked(0.05)
                may_write.set()
            assert [each.waiting for each in found] == [1]
            await shelf.check()

    trio.run(run)


def test_a_load_drops_what_the_window_has_not_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever left it there; more records than are checked in one piece."""

    async def run() -> None:
        async with opened(tmp_path, NAME, "segment") as broker:
            shelf = await before(broker)
            assert (
                await shelf.write(*(park(parked(each, each)) for each in range(103, 2600)), start=102)
                is ErrorCode.none
            )
            persister = broker.persister
            assert isinstance(persister, ControlRecordsPersister)
            prefix = persister._parked.prefix(GROUP, shelf.partition)
            assert prefix is not None
            strays = [ParkedRecord(each, Lane.SCHEDULE, 5, 1, LEADER, False) for each in (102, 2600, 9000)]
            for stray in strays:
                keys = [
                    ParkedKey(
                        *shelf.partition, GROUP, int.from_bytes(prefix[-8:], "big"), kind, stray.offset, 5
                    )
                    for kind in (1, 3)
                ]
                await broker.state_commits.commit(
                    [(keys[0].encode(), stray.encode()), (keys[1].encode(), stray.encode_place())]
                )
            await broker.state_commits.commit([(prefix + b"\0", ParkedCount(len(shelf.there) + 3).encode())])
        async with opened(tmp_path, NAME, "segment") as broker:
            shelf.asked = Asked(broker)
            await shelf.asked.read()
            await shelf.check(piece=3000)
            check_store(broker)
            persister = broker.persister
            assert isinstance(persister, ControlRecordsPersister)
            assert persister._parking.dropped == 3

    trio.run(run)
    assert "3 parked records were still in the window" in caplog.text


def test_a_record_that_is_kept_while_its_lane_is_read_keeps_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The piece shows the record as not kept; its key by offset, read later, shows it as kept. Its
    place is the same."""

    async def run() -> None:
        async with opened(tmp_path, NAME, "lmdb") as broker:
            shelf = await before(broker)
            persister = broker.persister
            assert isinstance(persister, ControlRecordsPersister)
            read = persister._parked.read_due

            async def read_before(*arguments: Any) -> list[Parked]:
                monkeypatch.setattr(persister._parked, "read_due", read)
                found = await read(*arguments)
                assert await shelf.write(keep(shelf.there[MOVED], b"the record")) is ErrorCode.none
                return found

            monkeypatch.setattr(persister._parked, "read_due", read_before)
            rows = waiting_rows(persister)
            found = await rows.read_due(GROUP, shelf.partition, Lane.REDELIVERY, (-1, -1), 10)
            await broker.state_commits.commit([])  # after the removal of old places
            assert [(each.offset, each.kept) for each in found] == [(MOVED, True), (ACCEPTED, False)]
            await shelf.check()

    trio.run(run)


def test_a_record_that_the_window_says_is_acknowledged_is_not_parked(tmp_path: Path) -> None:
    """A failed write had parked it. A later one acknowledged it, and the broker was killed before
    the removal here."""

    async def run() -> None:
        async with opened(tmp_path, NAME) as broker:
            shelf = await before(broker)
            request = WriteRequest(shelf.partition, 5, LEADER, 100, 0, (), (park(parked(FRESH, NEW)),), 3)
            persister = broker.persister
            assert isinstance(persister, ControlRecordsPersister)
            await persister._parking.put(GROUP, [request])
            assert await shelf.asked.write(StateBatch(FRESH, FRESH, 2, 9)) is ErrorCode.none
            await shelf.asked.read()
            await shelf.check()
            check_store(broker)

    trio.run(run)


def test_two_requests_for_a_share_partition_in_one_write_count_once(tmp_path: Path) -> None:
    """As where an acknowledgement takes along what no client waits for. A number that is too low
    would in the end be 0, and the next life would not look for the records."""

    async def run() -> None:
        async with opened(tmp_path, NAME, "segment") as broker:
            shelf = await before(broker)
            assert await shelf.write(park(parked(FRESH, NEW))) is ErrorCode.none
            again = park(parked(MOVED, NEW, count=2), parked(MOVED, OLD).place)
            requests = [
                WriteRequest(shelf.partition, 5, LEADER, 100, 0, (), (unpark(parked(ACCEPTED, OLD)),), 2),
                WriteRequest(shelf.partition, 5, LEADER, 100, 0, (), (again,), 2),
                WriteRequest(shelf.partition, 5, LEADER, 100, 0, (StateBatch(103, 103, 2, 1),)),
            ]
            results = await shelf.asked.persister.write(GROUP, requests)
            assert [each.code for each in results] == [ErrorCode.none] * 3
            check_store(broker)
        assert (await found_in(tmp_path, "segment")).parked == {MOVED: NEW, FRESH: NEW}

    trio.run(run)


def test_a_removal_does_not_take_what_a_later_write_parks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write removes what a failed one may have parked. Before it is done, the record is parked
    again."""

    async def run() -> None:
        async with opened(tmp_path, NAME, "segment") as broker:
            shelf = await before(broker)
            appended, sync = threading.Event(), broker.log_commits._sync

            def slow() -> None:
                appended.wait(10)
                sync()

            monkeypatch.setattr(broker.log_commits, "_sync", slow)
            write, request = shelf.asked.persister.write, WriteRequest(shelf.partition, 5, LEADER, 100, 0, ())
            undo = request._replace(
                batches=(StateBatch(110, 110, 2, 1),), parking=(unpark(parked(ACCEPTED, OLD)),), waiting=1
            )
            again = request._replace(parking=(park(parked(ACCEPTED, NEW)),), waiting=2)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write, GROUP, [undo])
                await trio.testing.wait_all_tasks_blocked(0.05)
                nursery.start_soon(write, GROUP, [again])
                await trio.testing.wait_all_tasks_blocked(0.05)
                appended.set()
            assert {each.offset: each.due_ms for each in await all_parked(broker)} == {
                MOVED: OLD,
                ACCEPTED: NEW,
            }
            check_store(broker)
        assert (await found_in(tmp_path, "segment")).parked == {MOVED: OLD, ACCEPTED: NEW}

    trio.run(run)
