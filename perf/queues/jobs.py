"""Clients of a work queue: a sender with a fixed rate, and workers that release every job once."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from perf.workloads.client_process import SLOT_S, ClientReport, Link, WorkloadFailed
from perf.workloads.payload import chunks, values
from perf.workloads.produce import Refusals, batching
from perf.workloads.settings import base
from perf.workloads.window import Client, Window

if TYPE_CHECKING:
    from confluent_kafka import Message

Counted: TypeAlias = Literal["done", "released"]
_POLL_S = 0.1
_LONGEST_WAIT_S = 0.02
_FLUSH_S = 20.0
_BEHIND_S = 1.0


@dataclass
class JobReport(ClientReport):
    """A worker's report: the times at which it released jobs, and at which jobs were redelivered to
    it, in seconds of the monotonic clock."""

    released: array[int] = field(default_factory=lambda: array("q"))
    released_s: array[float] = field(default_factory=lambda: array("d"))
    back: array[int] = field(default_factory=lambda: array("q"))
    back_s: array[float] = field(default_factory=lambda: array("d"))


def sender(bootstrap: str, queue: str, rate_per_s: float, record_bytes: int) -> Client:
    """Sends jobs at fixed times, each immediately (linger 0). Its report's `others` are the jobs
    sent; it counts no units."""
    own = {
        **base(bootstrap, {}),
        **batching(batch_bytes=1_000_000, linger_ms=0, compression="none"),
        "acks": "all",
    }
    return Client(
        _send, {"settings": own, "queue": queue, "rate_per_s": rate_per_s, "record_bytes": record_bytes}
    )


def worker(
    bootstrap: str, queue: str, *, counted: Counted = "done", waits_for_others: bool = False
) -> Client:
    """Releases a job at its first delivery and accepts it when it is redelivered. Acknowledgements
    are sent with the next poll.

    A unit is a finished job, or with "released" a released one. `waits_for_others`: after it has
    acknowledged its first jobs, it waits for `go`, so that it takes no more jobs before the others
    are ready.
    """
    own = {**base(bootstrap, {}), "group.id": queue, "share.acknowledgement.mode": "explicit"}
    return Client(
        _work, {"settings": own, "queue": queue, "counted": counted, "waits_for_others": waits_for_others}
    )


def lateness_ms(window: Window, delay_s: float) -> list[float]:
    """For jobs redelivered within the window, the time between the end of their delay and the
    redelivery.

    The delay is counted from just before the request that released the job, so the lateness
    includes the request's way to the broker and the commit.
    """
    reports = [report for report in window.reports if isinstance(report, JobReport)]
    released_s = {
        offset: at_s
        for report in reports
        for offset, at_s in zip(report.released, report.released_s, strict=True)
    }
    first_s, last_s = window.span.first * SLOT_S, window.span.last * SLOT_S
    return [
        (at_s - released_s[offset] - delay_s) * 1000
        for report in reports
        for offset, at_s in zip(report.back, report.back_s, strict=True)
        if first_s <= at_s < last_s and offset in released_s
    ]


def jobs_sent(reports: Iterable[ClientReport], window: Window) -> int:
    """The number of jobs sent within the window."""
    return window.sum([report.others for report in reports])


def fill_with_keys(bootstrap: str, queue: str, keys: Sequence[bytes], record_bytes: int) -> None:
    """Sends a job for each of `keys`, in this order, in batches of 1 MB. All are confirmed on
    return. Raises WorkloadFailed."""
    from confluent_kafka import Producer

    refusals = Refusals()
    own = {
        **base(bootstrap, {}),
        **batching(batch_bytes=1_000_000, linger_ms=50, compression="none"),
        "acks": "all",
    }
    producer = Producer({**own, "on_delivery": refusals})
    pool = cycle(each["value"] for chunk in chunks(record_bytes, 1_000) for each in chunk)
    producer.produce_batch(queue, [{"key": key, "value": next(pool)} for key in keys], partition=0)
    left = producer.flush(_FLUSH_S)
    refusals.check()
    if left:
        raise WorkloadFailed(f"{left} of {len(keys)} jobs were not confirmed within {_FLUSH_S:.0f} s")


def _send(link: Link, arguments: Mapping[str, Any]) -> None:
    from confluent_kafka import Producer

    queue, gap_s, refusals = arguments["queue"], 1 / arguments["rate_per_s"], Refusals()
    link.longest_end_s = _FLUSH_S
    producer = Producer({**arguments["settings"], "on_delivery": refusals})
    value = values(arguments["record_bytes"])[0]
    link.begin()
    began_s, number = time.monotonic(), 0
    while link.running:
        due_s, now_s = began_s + number * gap_s, time.monotonic()
        if due_s > now_s:
            time.sleep(min(due_s - now_s, _LONGEST_WAIT_S))
            continue
        if now_s - due_s > _BEHIND_S:
            raise WorkloadFailed(f"the sender did not keep to {arguments['rate_per_s']:.0f} jobs/s")
        producer.produce(queue, value)
        producer.poll(0)
        refusals.check()
        link.count(0, others=1)
        number += 1
        if number == 1:
            link.first(wait=False)
    if left := producer.flush(_FLUSH_S):
        raise WorkloadFailed(f"{left} jobs were not confirmed within {_FLUSH_S:.0f} s")
    refusals.check()
    link.send_report()


def _work(link: Link, arguments: Mapping[str, Any]) -> None:
    from confluent_kafka import ShareConsumer

    report = link.report = JobReport()
    counts_done = arguments["counted"] == "done"
    consumer = ShareConsumer(arguments["settings"])
    link.begin()
    consumer.subscribe([arguments["queue"]])
    while link.running:
        messages = list(consumer.poll(_POLL_S))
        done, released = _answer(consumer, messages, report)
        if messages:
            link.count(done if counts_done else released, others=released if counts_done else done)
            if report.first_ms is None:
                if arguments["waits_for_others"]:
                    # The other workers still need jobs, so this one must hold none.
                    consumer.commit_sync()
                link.first(wait=arguments["waits_for_others"])
        else:
            link.check_patience()
    consumer.commit_sync()  # The last acknowledgements, since no further poll sends them.
    link.send_report()
    consumer.close()


def _answer(consumer: Any, messages: Sequence[Message], report: JobReport) -> tuple[int, int]:  # noqa: ANN401 (a ShareConsumer)
    """The numbers of finished and of released jobs."""
    from confluent_kafka import AcknowledgeType

    came_s = time.monotonic()
    released = 0
    for message in messages:
        if (error := message.error()) is not None:
            raise WorkloadFailed(error.str())
        offset = message.offset()
        assert offset is not None
        if message.delivery_count() == 1:
            consumer.acknowledge(message, AcknowledgeType.RELEASE)
            report.released.append(offset)
            released += 1
        else:
            consumer.acknowledge(message, AcknowledgeType.ACCEPT)
            report.back.append(offset)
            report.back_s.append(came_s)
    now_s = time.monotonic()
    report.released_s.extend([now_s] * released)
    return len(messages) - released, released
