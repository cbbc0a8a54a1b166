"""Rows of compaction: a pass alone, and a share consumer before and during one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perf.suite.rows import Row, Run
from perf.transactions.table import PassReading, Place, clean, make_due, prepare
from perf.workloads.client_process import ClientReport, Link, WorkloadFailed
from perf.workloads.latency import latency_clients
from perf.workloads.outcome import Percentiles
from perf.workloads.window import Client, measure

RATE_PER_S = 500
_ENGINES = frozenset(("segment-disk", "lmdb-disk", "rocksdb-disk"))
_ALONE_S, _QUICK_ALONE_S = 6.0, 2.0
_SETTLE_S = 0.5
_LONGEST_S = 440.0
_ENOUGH = 10**12
"""More units than the clients count: the operator counts so many when the pass has ended."""
_TAKES_S = 28.0
"""A pass and the records before it: about 50 s on the segment engine, 18 s on the others."""


@dataclass
class OperatorReport(ClientReport):
    """`alone_from_s`: the consumer is alone from then on, until the pass begins."""

    alone_from_s: float = 0.0
    reading: PassReading | None = None


def _pass_alone(run: Run) -> dict[str, float]:
    run.watch.opened()
    found = clean(make_due(run))
    run.watch.closed()
    return {**_of_pass(found), "cpu_s": run.watch.cost().cpu_s}


def _beside_pass(run: Run) -> dict[str, float]:
    place, topic = make_due(run), run.new_topic()
    clients = latency_clients(run.bootstrap, topic, rate_per_s=RATE_PER_S, via="share")
    alone_s = _QUICK_ALONE_S if run.quick else _ALONE_S
    operator = Client(_operate, {"place": place, "alone_s": alone_s})
    window = measure(run.plan(_LONGEST_S), [*clients, operator], most=_ENOUGH, all_of_it=True)
    _, consumer, report = window.reports
    assert isinstance(report, OperatorReport)
    assert report.reading is not None
    found = report.reading
    alone = _percentiles(consumer, report.alone_from_s, found.began_s)
    beside = _percentiles(consumer, found.began_s, found.ended_s)
    return {
        "p50_ms": beside.p50, "p99_ms": beside.p99, "p999_ms": beside.p999,
        "alone_p50_ms": alone.p50, "alone_p99_ms": alone.p99, **_of_pass(found),
    }  # fmt: skip


def _of_pass(found: PassReading) -> dict[str, float]:
    return {
        "pass_s": found.ended_s - found.began_s, "pass_mb_per_s": found.mb_per_s,
        "grew_mb": found.peak_mb - found.before_mb, "rss_anon_mb": found.peak_mb,
    }  # fmt: skip


def _percentiles(consumer: ClientReport, first_s: float, last_s: float) -> Percentiles:
    """Of the records that were due between these moments."""
    pairs = zip(consumer.times, consumer.latencies_ms, strict=True)
    found = Percentiles.of(latency for due_s, latency in pairs if first_s <= due_s < last_s)
    if found is None:
        raise WorkloadFailed(f"no record was due within {last_s - first_s:.1f} s")
    return found


def _operate(link: Link, arguments: Mapping[str, Any]) -> None:
    """Lets the consumer be alone for a while, then has a pass done, and ends the window with it."""
    report = link.report = OperatorReport()
    place: Place = arguments["place"]
    link.begin()
    link.first()
    time.sleep(_SETTLE_S)
    report.alone_from_s = time.monotonic()
    time.sleep(arguments["alone_s"])
    report.reading = clean(place)
    link.count(_ENOUGH)
    while link.running:
        time.sleep(_SETTLE_S / 10)
    link.send_report()


_NOTE = (
    "A log of 2 GiB (LMDB and RocksDB: 256 MiB; --quick: 128 MiB) in records of 1 KB, of which each "
    "segment is rewritten."
)
ROWS = (
    Row(
        "pass-alone", "a pass of compaction", "compaction", _pass_alone,
        f"{_NOTE} The first pass, which takes all keys as new. Memory: the most during the pass.",
        candidates=_ENGINES, quick=True, rounds=1, takes_s=_TAKES_S, warms=False, prepare=prepare,
    ),
    Row(
        "share-beside-pass", "a share consumer beside a pass", "compaction", _beside_pass,
        f"{_NOTE} {RATE_PER_S} records/s, from due to received, first without a pass for "
        f"{_ALONE_S:.0f} s, then until the end of one.",
        candidates=_ENGINES, quick=True, takes_s=_TAKES_S + _ALONE_S, warms=False, prepare=prepare,
    ),
)  # fmt: skip
