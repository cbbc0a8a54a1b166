"""One job is stuck at the head of a queue, and hundreds of thousands flow past it: every third is
released once, and all are acknowledged in random order, by unmodified workers.

The broker's resource use and the longest turn of its loop depend on the machine and are printed.
The stored state has a bound. (With control-records it is in the log, among the jobs, and is not
measured.)
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest

from kbroker import plugins
from kbroker.client import admin
from kbroker.client.group_admin import describe_share_group_offsets
from kbroker.formats.state import ShareStateKey
from kbroker.testing.broker import RunningBroker
from perf.workloads.fill import fill
from tests.clients.queue_world import SETUPS, World, open_world, stop
from tests.clients.shuffling_worker import rows_of
from tests.clients.timed_broker import turns_of

ACCEPT, RELEASE = 1, 2
JOBS, SHORT_JOBS = 500_000, 4_000
JOB_BYTES, BATCH_JOBS = 100, 2_000
WORKERS, SHORT_WORKERS = 4, 2
PREFETCH = 500
STATE_BYTES = 1 << 20
LOCK_MS = 1_000
PATIENCE_S = 1_800.0
TIMED_BROKER = str(Path(__file__).with_name("timed_broker.py"))
SMALL_SEGMENTS = {"segment.bytes": str(1 << 20)}


class Figures(NamedTuple):
    """Measured while the jobs flowed. `turn_ms`: the longest turn of the loop. `turn_cpu_ms`: the
    most processor time that a turn used."""

    seconds: float
    state_bytes: int
    turn_ms: float
    turn_cpu_ms: float
    cpu_s: float
    anonymous_mb: float

    def __str__(self) -> str:
        state = f"{self.state_bytes} bytes" if self.state_bytes else "not measured"
        return (
            f"{self.seconds:.1f} s, most stored state: {state}, longest turn of the loop "
            f"{self.turn_ms:.1f} ms (of processor time {self.turn_cpu_ms:.1f} ms), broker CPU "
            f"{self.cpu_s:.1f} s, "
            f"anonymous memory at most {self.anonymous_mb:.1f} MB"
        )


def state_bytes(broker: RunningBroker) -> int:
    """Keys and values of share state in the store, read beside the running broker."""
    engine = broker.state_storage
    reader = plugins.state_store_factory(engine).open_reader(broker.data_dir / f"state-{engine}")
    try:
        return sum(len(key) + len(value) for key, value in reader.scan(ShareStateKey.namespace))
    finally:
        reader.close()


def standing(world: World) -> tuple[int, int]:
    """The start offset of the queue, and its number of unfinished jobs."""
    with world.broker.connect() as connection:
        (row,) = describe_share_group_offsets(connection, "jobs")
    return row.start_offset or 0, row.lag or 0


def log_start(world: World) -> int:
    with world.broker.connect() as connection:
        found = admin.find_offsets(connection, {"jobs": [0]}, admin.EARLIEST)["jobs", 0]
    assert isinstance(found, int)
    return found


def begin(world: World, retention: str, jobs: int) -> None:
    """The queue with its head, held by a worker that fetches no more, and the jobs after it."""
    world.create_queue("jobs", "--retention", retention, "--delay", "10ms")
    with world.broker.connect() as connection:
        admin.alter_configs(connection, admin.ResourceType.TOPIC, "jobs", set_configs=SMALL_SEGMENTS)
    world.configure("jobs", share__record__lock__duration__ms=str(LOCK_MS))
    (holder,) = world.start(1, "jobs", hold="1")
    world.send("jobs", [{"job": 0}])
    world.until("it holds the head", lambda: len(holder.deliveries()) == 1)
    world.configure("jobs", kbroker__queue__prefetch=str(PREFETCH))
    fill(world.broker.bootstrap, "jobs", jobs, JOB_BYTES, batch_records=BATCH_JOBS)


def flow(world: World, home: Path, jobs: int, workers: int) -> Figures:
    """Wait until all jobs except the head are finished."""
    began_s, began_cpu_s = time.monotonic(), world.cpu_s()
    for number in range(workers):
        path = str(home / f"rows-{number}")
        program = [sys.executable, "-m", "tests.clients.shuffling_worker"]
        world.run([*program, world.broker.bootstrap, "jobs", str(number), path])
    most_state = most_memory = 0
    look_s = 0.2 if jobs == SHORT_JOBS else 2.0
    deadline = began_s + PATIENCE_S
    while (left := standing(world)[1]) > 1:
        assert time.monotonic() < deadline, f"{left} jobs are left of {jobs}"
        assert all(worker.process.poll() is None for worker in world.workers), world._state()
        most_state = max(most_state, state_bytes(world.broker))
        most_memory = max(most_memory, world.broker.anonymous_memory_bytes())
        time.sleep(look_s)
    ended_s = time.monotonic()
    turns = turns_of(home / "turns", began_s, ended_s)
    return Figures(
        ended_s - began_s,
        max(most_state, state_bytes(world.broker)),
        max((turn.took_ms for turn in turns), default=0),
        max((turn.cpu_ms for turn in turns), default=0),
        world.cpu_s() - began_cpu_s,
        max(most_memory, world.broker.anonymous_memory_bytes()) / 1e6,
    )


def check_rows(home: Path, jobs: int, head: int) -> None:
    """Each job was released as often as it should be, then accepted, with rising counts. The log
    has no other records, so that their number identifies them."""
    found: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for path in home.glob("rows-*"):
        for offset, *answer in rows_of(path):
            found[offset].append(tuple(answer))  # type: ignore[arg-type]
    assert head not in found
    assert len(found) == jobs
    once, twice = [(1, ACCEPT, 0)], [(1, RELEASE, 0), (2, ACCEPT, 0)]
    odd = {offset: rows for offset, rows in found.items() if sorted(rows) != (once if offset % 3 else twice)}
    assert not odd, f"{len(odd)} jobs: {dict(list(odd.items())[:5])}"


@pytest.mark.parametrize(
    ("setup", "retention", "jobs"),
    [
        (SETUPS[0], "time", SHORT_JOBS),
        *(
            pytest.param(setup, retention, JOBS, marks=pytest.mark.full)
            for setup in SETUPS
            for retention in ("time", "workqueue")
        ),
    ],
)
def test_jobs_flow_behind_a_stuck_one(
    setup: tuple[str, str, str], retention: str, jobs: int, tmp_path: Path
) -> None:
    """With retention by `time` the head stays in the window throughout; in a work queue it leaves
    the window, and the log is trimmed."""
    engine, persister, durability = setup
    command = [sys.executable, TIMED_BROKER, str(tmp_path / "turns")]
    with open_world(engine, persister=persister, durability=durability, command=command) as world:
        begin(world, retention, jobs)
        (holder,) = world.workers
        head = holder.deliveries()[0].offset
        figures = flow(world, tmp_path, jobs, SHORT_WORKERS if jobs == SHORT_JOBS else WORKERS)
        print(f"{'-'.join(setup)}, {retention}, {jobs} jobs: {figures}")
        if persister == "default":
            assert 0 < figures.state_bytes <= STATE_BYTES
        if retention == "time":
            assert standing(world) == (head, 1)
        else:
            world.until("the log goes", lambda: log_start(world) > 0)
        prolonged = "kbroker_share_partition_prolonged_locks_total{jobs}"
        world.until("its lock was prolonged", lambda: world.metrics()[prolonged] > 0)
        assert len(holder.deliveries()) == 1, "the holder was given more"
        check_rows(tmp_path, jobs, head)
        stop([holder])
        world.until("the head is done", lambda: standing(world)[1] == 0)
        stop(world.workers[1:])
        heads = [row for path in tmp_path.glob("rows-*") for row in rows_of(path) if row[0] == head]
        assert heads == [(head, 2, ACCEPT, 0)]
