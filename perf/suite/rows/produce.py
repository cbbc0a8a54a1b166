"""Rows of produce and fetch: one client at full speed, in a separate process."""

from __future__ import annotations

from typing import Any

from perf.suite.candidates import ALL, MAIN, READING
from perf.suite.rows import Row, RowFunction, Run
from perf.suite.topics import Kept
from perf.workloads.fetch import fetch
from perf.workloads.produce import produce

_KB, _SMALL_BATCHES = 1000, 16_384


def _row(
    key: str, title: str, partitions: int, *, quick: bool = False, candidates: frozenset[str] = MAIN,
    **settings: Any,  # noqa: ANN401
) -> Row:  # fmt: skip
    return Row(key, title, "produce", _produce(partitions, **settings), candidates=candidates, quick=quick)


def _produce(partitions: int, **settings: Any) -> RowFunction:  # noqa: ANN401
    def measured(run: Run) -> dict[str, float]:
        topic = run.new_topic(partitions=partitions)
        return run.readings(produce(run.plan(), run.bootstrap, topic, **settings))

    return measured


def _fetch(kept: Kept, key: str, title: str, *, quick: bool = False) -> Row:
    def measured(run: Run) -> dict[str, float]:
        topic = kept.topic(run)
        return run.readings(fetch(run.plan(), run.bootstrap, topic))

    note = "From the page cache; at the end of the topic, the client starts over."
    return Row(key, title, "fetch", measured, note, candidates=READING, quick=quick, prepare=kept.prepare)


ROWS = (
    _row("produce-100b-1p", "100 B, 1 partition, 1 MB batches", 1, quick=True),
    _row("produce-1kb-1p", "1 KB, 1 partition, 1 MB batches", 1, record_bytes=_KB),
    _row("produce-1kb-6p", "1 KB, 6 partitions, 1 MB batches", 6, record_bytes=_KB, quick=True),
    _row(
        "produce-1kb-6p-lz4", "1 KB, 6 partitions, 1 MB batches, lz4", 6, record_bytes=_KB, compression="lz4"
    ),
    _row(
        "produce-1kb-6p-16kb",
        "1 KB, 6 partitions, 16 KB batches",
        6,
        record_bytes=_KB,
        batch_bytes=_SMALL_BATCHES,
        quick=True,
        candidates=ALL,
    ),
    _row("produce-100b-6p-lz4", "100 B, 6 partitions, 1 MB batches, lz4", 6, compression="lz4"),
    _fetch(Kept.LARGE_1P, "fetch-100b-1p", "100 B, 1 partition", quick=True),
    _fetch(Kept.KILOBYTE_6P, "fetch-1kb-6p", "1 KB, 6 partitions"),
)
