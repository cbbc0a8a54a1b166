"""Rows about time: how long a start takes with much share state, and what memory does while hours of traffic go through."""

from __future__ import annotations

import multiprocessing
import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import trio

from kbroker.share.persister import TopicPartition
from perf import state_load
from perf.memory_over_time import TOPIC_CONFIG, growth_mb, samples
from perf.rows import Row, Run

SHARE_PARTITIONS, QUICK_SHARE_PARTITIONS = 10_000, 2_000
_ENGINES = frozenset(("segment-disk", "lmdb-disk", "rocksdb-disk"))
_UPDATES = 5
_TIMEOUT_S = 120.0
_MEMORY_S = 30.0


def _recovery(run: Run) -> dict[str, float]:
    """In a process of its own, whose memory and imports are nobody else's."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    share_partitions = QUICK_SHARE_PARTITIONS if run.quick else SHARE_PARTITIONS
    process = context.Process(target=_load, args=(run.home, run.candidate.engine, share_partitions, there), daemon=True)
    process.start()
    there.close()
    try:
        if not here.poll(_TIMEOUT_S):
            raise TimeoutError(f"the state was not loaded within {_TIMEOUT_S:.0f} s")
        open_ms, load_ms, cpu_ms = here.recv()
    finally:
        process.kill()
        process.join()
    return {"ms": open_ms + load_ms, "ready_ms": open_ms, "cpu_s": cpu_ms / 1000}


def _load(home: Path, engine: str, share_partitions: int, parent: Any) -> None:  # noqa: ANN401 - a Connection of multiprocessing
    partitions = [TopicPartition(UUID(int=7), number) for number in range(share_partitions)]
    state_load.fill(home / "filled", engine, partitions, _UPDATES)
    shutil.copytree(home / "filled", home / "copy")  # as it lies there for a process that begins
    parent.send(trio.run(state_load.load, home / "copy", engine, partitions, 1))


def _memory_over_time(run: Run) -> dict[str, float]:
    topic, group = run.new_topic(config=TOPIC_CONFIG), run.new_group()
    found = samples(run.bootstrap, run.candidate.pid, topic, group, _MEMORY_S)
    records = found[-1].records
    run.say(f"{run.candidate.key}: {records / 1e6:.1f} M records, {' '.join(f'{sample.rss_anon_mb:.0f}' for sample in found)} MB")
    return {"rss_anon_mb": found[-1].rss_anon_mb, "grew_mb": growth_mb(found)}


ROWS = (
    Row(
        "recovery-10000", "share state of 10 000 share-partitions", "scale", _recovery,
        "The store is opened and all are read through the default persister, each storing its new leader epoch, with 5 updates behind each "
        "snapshot; without the start of the process.", candidates=_ENGINES, rounds=2, takes_s=8,
    ),
    Row(
        "memory-over-time", "memory over half a minute of all traffic", "footprint", _memory_over_time,
        "Producers and eight share consumers in turns as fast as they can, new clients every time, one group; the growth is that of the "
        "last third beside the second. Kafka has fewer turns, since joining takes 5 s. "
        "python -m perf.memory_over_time does it for longer.",
        candidates=frozenset(("segment-os", "lmdb-disk", "rocksdb-disk", "kafka")), rounds=1, takes_s=_MEMORY_S, warms=False,
    ),
)  # fmt: skip
