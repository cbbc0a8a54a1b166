"""kill -9 at a random moment, on every engine: writes that were confirmed to the process are there
after reopening the store.

A child writes endlessly and reports each return of write() on a pipe. It is killed after a random
number of reports, three times on the same directory. Each log must then be a prefix of the child's
writes, whole batches only, at least as long as reported. Replaced segments have old or new batches.
State must be that after one write() call:
the last reported one or the next.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker import plugins
from kbroker.formats.batches import crc_is_valid, iter_headers
from kbroker.storage.spi import ON_DISK, Change, LogId, LogSettings, LogStore, StampedBatch, StateStore
from kbroker.testing.log_store_model import EVERYTHING, TOPIC, read_all, sized_batch
from tests.powercut.engine_script import Marks
from tests.powercut.replaced_script import LOG as REPLACED_LOG
from tests.powercut.replaced_script import check_replaced, replaced_script, work_on_replaced

ENGINES = ["segment", "lmdb", "rocksdb"]
LOGS = [LogId(TOPIC, partition) for partition in range(3)]
SETTINGS = LogSettings(segment_bytes=50_000)
KEYS = [b"key%d" % number for number in range(5)]
ONCE = [b"once", ON_DISK + b"once"]
OPTIONS = {"segment": {"overlay_changes": "10"}, "lmdb": {"redo_bytes": "2000"}}
"""So that keys of ON_DISK are moved while the child writes."""
ROUNDS = 3
REPLACED_SEED, REPLACED_STEPS = 1, 120
SYNC_EVERY = 5


def batches_at(step: int) -> list[StampedBatch]:
    """The batches of the write() call number `step`: one to three in each log, some of them
    large."""
    written = []
    for log in LOGS:
        rng = random.Random(step * 10 + log.partition)
        count = 1 + step % 3
        first = sum(1 + before % 3 for before in range(step))
        size = rng.choice([100, 1000, 20_000])
        written += [sized_batch(first + number, size, log=log, timestamp_ms=step) for number in range(count)]
    return written


def steps_in(offset: int) -> int:
    """How many whole calls fit into the first `offset` offsets."""
    step = 0
    while offset > 0:
        offset -= 1 + step % 3
        step += 1
    return step if offset == 0 else step - 1


def write_log(directory: Path, engine: str) -> None:
    store: LogStore = plugins.log_store_factory(engine).open(directory, {}, 1)
    for log in LOGS:
        store.create(log, SETTINGS)
    step = min(steps_in(store.bounds(log).end_offset) for log in LOGS)
    for log in LOGS:
        store.truncate(log, batches_at(step)[0].base_offset)
    while True:
        store.write(batches_at(step), now_ms=step)
        report(step)
        if step % SYNC_EVERY == 0:
            store.sync()
        step += 1


def write_state(directory: Path, engine: str) -> None:
    store: StateStore = plugins.state_store_factory(engine).open(directory, OPTIONS.get(engine, {}), 1)
    step = int(store.get(KEYS[0]) or b"-1") + 1
    while True:
        changes: list[Change] = [(key, b"%d" % step) for key in KEYS]
        for prefix in ONCE:
            changes += [(b"%s%d" % (prefix, step), b""), (b"%s%d" % (prefix, step - 3), None)]
        store.write(changes)
        report(step)
        if step % SYNC_EVERY == 0:
            store.sync()
        step += 1


def replace_in_log(directory: Path, engine: str) -> None:
    store: LogStore = plugins.log_store_factory(engine).open(directory, {}, 1)
    for step in replaced_script(REPLACED_SEED, REPLACED_STEPS):
        print(json.dumps(work_on_replaced(store, step).get("replaced")), flush=True)


def report(step: int) -> None:
    sys.stdout.write(f"{step}\n")
    sys.stdout.flush()


def run_and_kill(what: str, directory: Path, engine: str, reports: int) -> int:
    """The last step that was reported."""
    return int(reports_until_killed(what, directory, engine, reports)[-1])


def reports_until_killed(what: str, directory: Path, engine: str, reports: int) -> list[str]:
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import {Path(__file__).stem} as me;"
        "getattr(me, sys.argv[1])(me.Path(sys.argv[2]), sys.argv[3])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, what, str(directory), engine], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(reports)]
        child.kill()
        lines += child.stdout.readlines()
    return [line for line in lines if line.endswith("\n")]


@pytest.mark.parametrize("engine", ENGINES)
def test_killed_writer_of_logs(engine: str, tmp_path: Path) -> None:
    rng = random.Random()
    for _ in range(ROUNDS):
        last = run_and_kill("write_log", tmp_path, engine, rng.randrange(1, 60))
        store: LogStore = plugins.log_store_factory(engine).open(tmp_path, {}, 1)
        for log in LOGS:
            expected = [each.data for step in range(last + 2) for each in batches_at(step) if each.log == log]
            told = sum(1 + step % 3 for step in range(last + 1))
            data = read_all(store, log)
            headers = list(iter_headers(data))
            assert all(crc_is_valid(data, position, header) for position, header in headers)
            assert len(headers) >= told
            assert data == b"".join(expected[: len(headers)])
            assert store.bounds(log) == (0, len(headers))
            middle = len(headers) // 2
            assert read_all(store, log, offset=middle, end_offset=EVERYTHING) == b"".join(
                expected[middle : len(headers)]
            )
        store.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_killed_replacer_of_segments(engine: str, tmp_path: Path) -> None:
    """Each batch has its form of before or after the step that was killed."""
    rng = random.Random()
    script = replaced_script(REPLACED_SEED, REPLACED_STEPS)
    for turn in range(ROUNDS):
        directory = tmp_path / str(turn)
        lines = reports_until_killed("replace_in_log", directory, engine, rng.randrange(1, REPLACED_STEPS))
        done = len(lines)
        found = [json.loads(line) for line in lines]
        store: LogStore = plugins.log_store_factory(engine).open(directory, {}, 1)
        check_replaced(store, script, Marks(done + 1, done, {}), [each for each in found if each])
        written = sum(len(step.batches) for step in script[:done])
        assert store.bounds(REPLACED_LOG).end_offset >= written
        store.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_killed_writer_of_state(engine: str, tmp_path: Path) -> None:
    rng = random.Random()
    for _ in range(ROUNDS):
        last = run_and_kill("write_state", tmp_path, engine, rng.randrange(1, 100))
        store: StateStore = plugins.state_store_factory(engine).open(tmp_path, OPTIONS.get(engine, {}), 1)
        values = {store.get(key) for key in KEYS}
        assert len(values) == 1
        step = int(values.pop() or b"-1")
        assert step in (last, last + 1)
        for prefix in ONCE:
            expected = sorted(b"%s%d" % (prefix, each) for each in range(max(0, step - 2), step + 1))
            assert [key for key, _ in store.scan(prefix)] == expected
        store.close()
