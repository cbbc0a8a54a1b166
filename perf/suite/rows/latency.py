"""Rows of latency: how long a client waits for an acknowledgement, for a record, and for its first
record."""

from __future__ import annotations

from perf.suite.candidates import MAIN, READING
from perf.suite.rows import Dry, Row, RowFunction, Run
from perf.suite.topics import Kept
from perf.workloads.latency import latency
from perf.workloads.share import share_consume

_TAIL_S = 5.0
"""Long enough for a 99.9th percentile: 5 000 records at the higher rate."""
_QUICK_TAIL_S = 2.0


def _ack_round_trip(run: Run) -> dict[str, float]:
    topic, group = Kept.TASKS.topic(run), run.new_group()
    outcome = share_consume(
        run.plan(),
        run.bootstrap,
        topic,
        group,
        mode="explicit",
        max_poll_records=1,
        sync=True,
        most=Kept.TASKS.records,
    )
    if outcome.ran_dry:
        raise Dry(f"{topic} was empty before there was a window")
    return run.readings(outcome)


def _end_to_end(rate_per_s: int) -> RowFunction:
    def measured(run: Run) -> dict[str, float]:
        topic = run.new_topic()
        plan = run.plan(_QUICK_TAIL_S if run.quick else _TAIL_S, warm_up_s=1.0)
        return run.readings(latency(plan, run.bootstrap, topic, rate_per_s=rate_per_s))

    return measured


def _first_record(run: Run) -> dict[str, float]:
    """There is no window: the broker's cost covers the life of the consumer's process."""
    topic, group = Kept.TASKS.topic(run), run.new_group()
    run.watch.opened()
    outcome = share_consume(run.plan(0.0), run.bootstrap, topic, group, most=Kept.TASKS.records)
    run.watch.closed()
    assert outcome.first_record_ms is not None, "the consumer ended without a record"
    return {"ms": outcome.first_record_ms, **run.watch.cost()._asdict()}


_E2E_NOTE = (
    "A producer on a fixed schedule and a consumer; measured from the time at which a record was due to be "
    "sent. linger 0, acks=all."
)
ROWS = (
    Row(
        "ack-round-trip",
        "acknowledgement round trip",
        "latency",
        _ack_round_trip,
        "commit_sync() for each poll of one batch, 1 consumer.",
        candidates=READING,
        quick=True,
        prepare=Kept.TASKS.prepare,
    ),
    Row(
        "e2e-1000",
        "end to end at 1 000 records/s",
        "latency",
        _end_to_end(1000),
        _E2E_NOTE,
        candidates=MAIN,
        quick=True,
        takes_s=_TAIL_S + 1,
    ),
    Row(
        "e2e-100",
        "end to end at 100 records/s",
        "latency",
        _end_to_end(100),
        _E2E_NOTE,
        candidates=MAIN,
        rounds=2,
        takes_s=_TAIL_S + 1,
    ),
    Row(
        "first-record",
        "subscribe to first record",
        "latency",
        _first_record,
        "A new share group on a topic with records, 1 consumer. CPU: from the start of its process to "
        "its end.",
        candidates=READING,
        quick=True,
        takes_s=0,
        prepare=Kept.TASKS.prepare,
    ),
)
