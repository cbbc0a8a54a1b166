"""Rows of share groups, and of work queues: each consumer is a process that takes records,
acknowledges them and takes the next.

The client library returns whole batches, regardless of max.poll.records. A topic in large batches
therefore shows the cost of bulk work. The rows "one record at a time" read a topic in batches of
one to three records, which shows the cost of a queue of single tasks.
"""

from __future__ import annotations

from typing import Any

from perf.suite.candidates import NOT_SYNCED_TWICE, READING, SEGMENT
from perf.suite.rows import Dry, Group, Row, RowFunction, Run, readings_of
from perf.suite.topics import Kept
from perf.workloads.outcome import WorkloadOutcome
from perf.workloads.share import Mix, share_consume

_MOST_GROUPS, _LONGEST_S, _WHOLE_TAKES_S = 8, 60.0, 5.0
_MIX = Mix(release=0.01, reject=0.001)
_IN_TURNS = (
    "A consumer holds a batch until it has acknowledged it, so eight consumers of one partition take turns."
)
_SMALL = "The topic was written in batches of 1 to 3 records."
_WHOLE = f"{_SMALL} Each reading covers several groups in a row, each from the first record to the last."
_ONE = f"max.poll.records=1, explicit; the acknowledgement is sent with the next poll. {_SMALL}"


def _row(
    key: str, title: str, kept: Kept, consumers: int, *, group: Group = "share", note: str = "",
    quick: bool = False,
    candidates: frozenset[str] = READING, rounds: int | None = None, whole: bool = False, **settings: Any,  # noqa: ANN401
) -> Row:  # fmt: skip
    function = (_consume_whole if whole else _consume)(kept, consumers, **settings)
    takes_s = _WHOLE_TAKES_S if whole else None
    return Row(
        key,
        title,
        group,
        function,
        note,
        candidates=candidates,
        quick=quick,
        rounds=rounds,
        takes_s=takes_s,
        prepare=kept.prepare,
    )


def _consume(kept: Kept, consumers: int, **settings: Any) -> RowFunction:  # noqa: ANN401
    def measured(run: Run) -> dict[str, float]:
        topic, group = kept.topic(run), run.new_group()
        outcome = share_consume(
            run.plan(), run.bootstrap, topic, group, consumers=consumers, most=kept.records, **settings
        )
        if outcome.ran_dry:
            raise Dry(f"{topic} was empty before there was a window")
        return run.readings(outcome)

    return measured


def _consume_whole(kept: Kept, consumers: int, **settings: Any) -> RowFunction:  # noqa: ANN401
    """For a topic that a fast broker delivers in a tenth of a second: reads it from the first
    record to the last, repeatedly, each time with a new group and new clients. Their starting and
    joining is in no window. The first records of each consumer are left out, as in other rows."""

    def measured(run: Run) -> dict[str, float]:
        topic = kept.topic(run)
        records, seconds, cpu_s = 0, 0.0, 0.0
        for _ in range(_MOST_GROUPS):
            plan = run.plan(_LONGEST_S)
            outcome = share_consume(
                plan,
                run.bootstrap,
                topic,
                run.new_group(),
                consumers=consumers,
                most=kept.records,
                all_of_it=True,
                **settings,
            )
            records += outcome.records
            seconds += outcome.seconds
            cpu_s += run.watch.cost().cpu_s
            if seconds >= run.seconds / 2:
                break
        return readings_of(WorkloadOutcome(records, 0, seconds), run.watch.cost()._replace(cpu_s=cpu_s))

    return measured


ROWS = (
    _row("share-implicit-1", "1 consumer, implicit, 1 MB batches", Kept.LARGE_1P, 1, quick=True),
    _row(
        "share-implicit-8",
        "8 consumers, implicit, 1 MB batches",
        Kept.LARGE_1P,
        8,
        note=_IN_TURNS,
        quick=True,
        candidates=NOT_SYNCED_TWICE,
    ),
    _row(
        "share-implicit-32",
        "32 consumers, implicit, 1 MB batches",
        Kept.LARGE_1P,
        32,
        note=_IN_TURNS,
        rounds=2,
    ),
    _row(
        "share-implicit-8-6p", "8 consumers, 6 partitions, implicit, 1 MB batches", Kept.LARGE_6P, 8, rounds=2
    ),
    _row(
        "share-mixed-8",
        "8 consumers, explicit, 1 % released, 0.1 % rejected",
        Kept.LARGE_1P,
        8,
        note="1 MB batches. A record is counted when it is finished: a released one when it is done later.",
        mode="explicit",
        verdicts=_MIX,
    ),
    _row(
        "share-small-implicit-1",
        "1 consumer, implicit, small batches",
        Kept.SMALL_1P,
        1,
        note=_WHOLE,
        rounds=2,
        whole=True,
    ),
    _row(
        "share-small-explicit-8",
        "8 consumers, explicit, small batches",
        Kept.SMALL_1P,
        8,
        note=_WHOLE,
        quick=True,
        whole=True,
        mode="explicit",
    ),
    _row(
        "share-small-explicit-32-6p",
        "32 consumers, 6 partitions, explicit, small batches",
        Kept.SMALL_6P,
        32,
        note=_WHOLE,
        rounds=2,
        whole=True,
        mode="explicit",
    ),
    _row(
        "one-1",
        "1 consumer, one record at a time",
        Kept.TASKS,
        1,
        group="queue",
        note=_ONE,
        quick=True,
        mode="explicit",
        max_poll_records=1,
    ),
    _row(
        "one-8",
        "8 consumers, one record at a time",
        Kept.TASKS,
        8,
        group="queue",
        note=_ONE,
        quick=True,
        candidates=NOT_SYNCED_TWICE,
        mode="explicit",
        max_poll_records=1,
    ),
    _row(
        "one-8-backlog",
        "8 consumers, one record at a time, 200 000 records waiting",
        Kept.BACKLOG,
        8,
        group="queue",
        note=_ONE,
        candidates=SEGMENT | {"kafka"},
        mode="explicit",
        max_poll_records=1,
    ),
)
