"""Rows over TLS: the main rows of produce, fetch and share groups, with the same settings."""

from __future__ import annotations

from typing import Any

from perf.suite.rows import Dry, Group, Row, RowFunction, Run
from perf.suite.tls import TlsListener
from perf.suite.topics import Kept
from perf.workloads.fetch import fetch
from perf.workloads.produce import produce
from perf.workloads.share import share_consume

CANDIDATES = frozenset(("segment-os", "segment-disk", "kafka"))
_NOTE = "TLS 1.3 with AES-256-GCM, a server certificate on P-256, no client certificates."


def _tls(run: Run) -> TlsListener:
    tls = run.candidate.tls
    assert tls is not None, "a suite whose brokers have a listener with TLS"
    return tls


def _produce(**settings: Any) -> RowFunction:  # noqa: ANN401
    def measured(run: Run) -> dict[str, float]:
        tls, topic = _tls(run), run.new_topic(partitions=6)
        plan = run.plan()
        return run.readings(
            produce(plan, tls.bootstrap, topic, record_bytes=1000, settings=tls.client_settings(), **settings)
        )

    return measured


def _fetch(run: Run) -> dict[str, float]:
    tls, topic = _tls(run), Kept.KILOBYTE_6P.topic(run)
    return run.readings(fetch(run.plan(), tls.bootstrap, topic, settings=tls.client_settings()))


def _share(kept: Kept, consumers: int, **settings: Any) -> RowFunction:  # noqa: ANN401
    def measured(run: Run) -> dict[str, float]:
        tls, topic, group = _tls(run), kept.topic(run), run.new_group()
        outcome = share_consume(
            run.plan(), tls.bootstrap, topic, group, consumers=consumers, most=kept.records,
            settings=tls.client_settings(), **settings,
        )  # fmt: skip
        if outcome.ran_dry:
            raise Dry(f"{topic} was empty before there was a window")
        return run.readings(outcome)

    return measured


def _row(key: str, title: str, group: Group, run: RowFunction, kept: Kept | None = None) -> Row:
    prepare = kept.prepare if kept else None
    return Row(key, title, group, run, _NOTE, candidates=CANDIDATES, quick=True, prepare=prepare)


ROWS = (
    _row("tls-produce", "1 KB, 6 partitions, 1 MB batches, TLS", "produce", _produce()),
    _row(
        "tls-produce-16kb", "1 KB, 6 partitions, 16 KB batches, TLS", "produce",
        _produce(batch_bytes=16_384),
    ),
    _row("tls-fetch", "1 KB, 6 partitions, TLS", "fetch", _fetch, Kept.KILOBYTE_6P),
    _row(
        "tls-share-1", "1 consumer, implicit, 1 MB batches, TLS", "share", _share(Kept.LARGE_1P, 1),
        Kept.LARGE_1P,
    ),
    _row(
        "tls-one-8", "8 consumers, one record at a time, TLS", "queue",
        _share(Kept.TASKS, 8, mode="explicit", max_poll_records=1), Kept.TASKS,
    ),
)  # fmt: skip
