"""This version opens directories with queues that commit 633126e1 wrote, and delivers everything
in them once: with the right delivery count, in order, and with one dead letter for each rejected
job. queue_filling.py describes the queues; write_queues.py wrote them.

Nothing in the directories needs a later format than 1. By the clock of this machine their first
scheduled jobs must be due, since 30 November 2026, and the last ones not, until November 2036.
"""

from __future__ import annotations

import json
import tarfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kbroker import plugins
from kbroker.cli import run
from kbroker.formats.parked_records import BY_KEY, BY_OFFSET, COUNTER, KEPT_RECORD, REASON, ParkedKey
from kbroker.formats.state import DeadLetterCursor, DeadLetterKey, read_entries
from kbroker.share.parked import Lane
from kbroker.storage.spi import LogId
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.formats.queue_filling import DELAY, FAILING_PARTITIONS, LONGEST
from tests.formats.queue_member import (
    ACCEPT,
    REJECT,
    Member,
    letters,
    unfinished,
    until,
)

HERE = Path(__file__).parent / "v4-queue"
DEFAULT_RUN = ("segment-killed", "lmdb-killed", "control-records-killed")
ENGINES = ("segment", "lmdb", "segment+lmdb", "rocksdb", "sqlite", "control-records")
NAMES = [f"{engine}-{ending}" for engine in ENGINES for ending in ("killed", "stopped")]
ROWS = {
    "archiving": {BY_OFFSET: 3, Lane.ARCHIVING: 3, REASON: 2},
    "delayed": {BY_OFFSET: 4, Lane.REDELIVERY: 4},
    "expired": {BY_OFFSET: 4, Lane.ARCHIVING: 4},
    "failed": {BY_OFFSET: 8, Lane.REDELIVERY: 8, REASON: 1},
    "kept": {
        BY_OFFSET: 5, Lane.REDELIVERY: 2, Lane.SCHEDULE: 2, Lane.ARCHIVING: 1, KEPT_RECORD: 5, REASON: 1,
    },
    "later": {BY_OFFSET: 6, Lane.SCHEDULE: 6},
    "ordered": {BY_OFFSET: 5, Lane.REDELIVERY: 4, Lane.SCHEDULE: 1, BY_KEY: 2},
    "purged": {BY_OFFSET: 23, Lane.REDELIVERY: 5, Lane.SCHEDULE: 37},
    "settled": {BY_OFFSET: 3, Lane.ARCHIVING: 3, REASON: 2},
    "written": {BY_OFFSET: 3, Lane.ARCHIVING: 3, REASON: 2},
    "written-parked": {BY_OFFSET: 3, Lane.ARCHIVING: 3, REASON: 2},
}  # fmt: skip
"""Keys of parked records by kind (formats/parked_records.py), of all partitions and generations."""
LETTERS = {"archiving": 0, "expired": 0, "failed": 0, "kept": 0, "settled": 2, "written": 2}
"""Dead letters that are written, of the queues that have a cursor; `written-parked` is as
`written`."""
FREE = {"ordered": 4}
"""Jobs to take before the kill: no job of this queue waits for them."""
AT_ONCE = {DELAY: "1", LONGEST: "1"}
"""After a restart a delayed job waits no longer than the longest delay that is set."""


def extracted(name: str, target: Path) -> Any:
    """Returns what is expected."""
    with tarfile.open(HERE / f"{name}.tar.xz") as tar:
        tar.extractall(target, filter="data")
    return json.loads((target / "expected.json").read_text())


class Drain:
    """Takes all jobs of all queues, over several lives of the broker."""

    def __init__(self, broker: RunningBroker, queues: Mapping[str, Any]) -> None:
        self.broker = broker
        self.queues = queues
        self.taken: dict[str, list[tuple[str, int]]] = {name: [] for name in queues}

    def member(self, name: str) -> Member:
        return Member(self.broker, name, FAILING_PARTITIONS if name == "failed" else 1)

    def take(self, name: str, number: int, *, patience_s: float) -> None:
        """Finish so many jobs of a queue; fewer if they do not come."""
        member, deadline = self.member(name), time.monotonic() + patience_s
        while number and time.monotonic() < deadline:
            jobs = member.fetch(number, wait_ms=50)
            number -= len(jobs)
            for order in self.queues[name]["order"]:
                assert len([job for job in jobs if job.value in order]) <= 1, jobs
            for job in jobs:
                self.taken[name].append((job.value, job.count))
                member.do(REJECT if job.value in self.queues[name]["rejected"] else ACCEPT, job)
        member.leave()

    def take_rest(self, name: str) -> None:
        self.take(name, len(self.queues[name]["deliver"]) - len(self.taken[name]), patience_s=10)

    def check_nothing_more(self) -> None:
        for name in self.queues:
            member = self.member(name)
            assert member.fetch(wait_ms=20) == [], name
            member.leave()

    def check(self, name: str) -> None:
        expected, taken = self.queues[name], self.taken[name]
        assert sorted(taken) == sorted(expected["deliver"].items()), name
        values = [value for value, _ in taken]
        for order in expected["order"]:
            assert [value for value in values if value in order] == order
        wanted = sorted(expected["letters"].items(), key=str)
        if wanted:
            until(lambda: len(letters(self.broker, name)) >= len(wanted), f"{name}: dead letters are missing")
            assert letters(self.broker, name) == wanted
        until(lambda: unfinished(self.broker, name) == len(expected["later"]), f"{name} has another lag")


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[] if each in DEFAULT_RUN else [pytest.mark.full]) for each in NAMES]
)
def test_stored_queues_are_drained(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = extracted(name, tmp_path)
    storage, state_storage = expected["engines"]
    queues = expected["queues"]
    with open_test_broker(
        storage=storage, state_storage=state_storage, data_dir=tmp_path / "data", config=expected["config"]
    ) as broker:
        for queue, each in queues.items():
            if not each["letters"]:
                assert unfinished(broker, queue) == len(each["deliver"]) + len(each["later"]), queue
        assert peeked(broker, capsys)[-3:] == queues["later"]["later"], "in the order of their due times"
        drain = Drain(broker, queues)
        for queue, each in queues.items():
            drain.take(queue, min(FREE.get(queue, 1), len(each["deliver"])), patience_s=0.2)
            if queue != "plain":
                broker.set_group_config(queue, AT_ONCE)
        broker.kill()
        broker.start()
        for queue in queues:
            drain.take_rest(queue)
        for queue in queues:
            drain.check(queue)
        assert peeked(broker, capsys)[-3:] == queues["later"]["later"]
        broker.kill()
        broker.start()
        drain.check_nothing_more()
        for queue in queues:
            drain.check(queue)


def peeked(broker: RunningBroker, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert run(["queues", "peek", "later", "--json", "-b", broker.bootstrap]) == 0
    return [job["value"] for job in json.loads(capsys.readouterr().out)]


@pytest.mark.parametrize("name", NAMES)
def test_the_states_are_stored(name: str, tmp_path: Path) -> None:
    """What each directory is about, before anything opens it."""
    log_engine, state_engine = extracted(name, tmp_path)["engines"]
    version = json.loads((tmp_path / "data" / "kbroker.json").read_text())
    assert (version["log_engine"], version["state_engine"]) == (log_engine, state_engine)
    assert version["format_version"] == 1
    state = plugins.state_store_factory(state_engine).open_reader(tmp_path / "data" / f"state-{state_engine}")
    rows: dict[str, Counter[int]] = defaultdict(Counter)
    generations = defaultdict(set)
    for key, _ in read_entries(state.scan(ParkedKey.namespace)):
        assert isinstance(key, ParkedKey)
        generations[key.group_id, key.partition].add(key.generation)
        rows[key.group_id][key.kind] += key.kind != COUNTER
    wanted = {
        queue: Counter({int(kind): number for kind, number in each.items()}) for queue, each in ROWS.items()
    }
    wanted["failed"][Lane.REDELIVERY] += name.startswith("control-records")  # An old place.
    assert rows == wanted
    assert [place for place, each in generations.items() if len(each) == 2] == [("purged", 0)]
    cursors = list(read_entries(state.scan(DeadLetterKey.namespace)))
    state.close()
    logs = plugins.log_store_factory(log_engine).open_reader(tmp_path / "data" / f"log-{log_engine}")
    written = {}
    for key, cursor in cursors:
        assert isinstance(key, DeadLetterKey)
        assert isinstance(cursor, DeadLetterCursor)
        assert cursor.topic_id is not None
        written[key.group_id] = logs.bounds(LogId(cursor.topic_id, cursor.partition)).end_offset
    logs.close()
    assert written == {**LETTERS, "written-parked": LETTERS["written"]}


def test_every_engine_is_kept() -> None:
    assert {each.name.removesuffix(".tar.xz") for each in HERE.iterdir()} == {*NAMES}
