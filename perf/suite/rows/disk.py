"""Rows of a slow disk: a client served from memory should not wait for one that reads cold data.

A separate broker is started on a directory with a topic that has not been read since the start
(perf/measuring/slow_disk.py: 5 ms for each 64 KiB of it, and for every sync). A producer and a
consumer work on another topic at a fixed rate: in one row alone, in the other beside a consumer
that reads the cold topic from its beginning.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from kbroker.client.broker_process import RunningBroker
from perf.measuring.slow_disk import PAUSE_MS, REPORT
from perf.suite.rows import Row, RowFunction, Run
from perf.workloads.fill import fill
from perf.workloads.latency import latency

RATE_PER_S = 200
COLD_RECORDS, RECORD_BYTES = 240_000, 1_000
_ENGINES = frozenset(("segment-disk", "lmdb-disk", "rocksdb-disk"))
_SLOW_MS = 5
_LAUNCHER = Path(__file__).parents[2] / "measuring" / "slow_disk.py"
_FIRST_TIMEOUT_S = 30.0
_CONSUME_RECORDS, _CONSUME_S = 1_000, 0.1
_TAIL_S, _QUICK_TAIL_S = 4.0, 1.5
_TAKES_S = 9.0


def _live(*, lagging: bool) -> RowFunction:
    def measured(run: Run) -> dict[str, float]:
        report = run.home / "pauses.json"
        command = [sys.executable, str(_LAUNCHER)]
        broker = RunningBroker(
            run.home, storage=run.candidate.engine, durability=run.candidate.durability, command=command,
            env={PAUSE_MS: str(_SLOW_MS), REPORT: str(report)},
        )  # fmt: skip
        try:
            broker.start()
            broker.create_topic("cold")
            fill(broker.bootstrap, "cold", COLD_RECORDS, RECORD_BYTES)
            broker.restart()
            broker.create_topic("live")
            run.watch.pid = broker.pid
            plan = run.plan(_QUICK_TAIL_S if run.quick else _TAIL_S)
            if lagging:
                with _reader(broker.bootstrap, "cold"):
                    outcome = latency(plan, broker.bootstrap, "live", rate_per_s=RATE_PER_S)
            else:
                outcome = latency(plan, broker.bootstrap, "live", rate_per_s=RATE_PER_S)
            broker.stop()
        finally:
            broker.kill()
        if lagging:
            run.say(f"{run.candidate.key}: {_pauses(report)}")
        return run.readings(outcome)

    return measured


def _pauses(report: Path) -> str:
    found = json.loads(report.read_text())
    return "; ".join(
        f"waits for the disk {where}: {found[key]}"
        for key, where in (("loop", "on the loop"), ("threads", "in threads"))
    )


@contextmanager
def _reader(bootstrap: str, topic: str) -> Iterator[None]:
    """A consumer in a separate process that reads a topic's only partition from its beginning.
    Raises RuntimeError if it reached the end, since the measured clients were then alone for a
    while."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    stop = context.Event()
    process = context.Process(target=_read, args=(bootstrap, topic, stop, there), daemon=True)
    process.start()
    there.close()
    try:
        if not here.poll(_FIRST_TIMEOUT_S):
            raise RuntimeError("the lagging consumer had no record")
        here.recv()
        yield
        stop.set()
        records = here.recv()
    finally:
        process.kill()
        process.join()
    if records >= COLD_RECORDS:
        raise RuntimeError(f"the lagging consumer had read all {records} records before the window was over")


def _read(bootstrap: str, topic: str, stop: Event, parent: Any) -> None:  # noqa: ANN401 - a Connection of multiprocessing
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "lagging", "enable.auto.commit": False, "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    records, has_told = 0, False
    while not stop.is_set():
        records += len(consumer.consume(_CONSUME_RECORDS, _CONSUME_S))
        if records and not has_told:
            parent.send(records)
            has_told = True
    parent.send(records)
    consumer.close()


_NOTE = (
    "5 ms for each sync, and for each 64 KiB that is not in the page cache. A producer and a "
    "consumer at 200 records/s."
)
ROWS = (
    Row(
        "live-alone", "end to end on a slow disk", "scale", _live(lagging=False), _NOTE, candidates=_ENGINES,
        rounds=2, takes_s=_TAKES_S,
    ),
    Row(
        "cold-beside-live", "the same beside a consumer of cold data", "scale", _live(lagging=True),
        f"{_NOTE} Another consumer reads 240 MB from before the broker's start.", candidates=_ENGINES,
        rounds=2, takes_s=_TAKES_S,
    ),
)  # fmt: skip
