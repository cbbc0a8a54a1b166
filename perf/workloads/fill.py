"""Fill topics with records."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import cycle, pairwise
from typing import TYPE_CHECKING

from perf.workloads.client_process import WorkloadFailed
from perf.workloads.fetch import partitions_of
from perf.workloads.payload import chunks
from perf.workloads.produce import Refusals, batching, outstanding_records
from perf.workloads.settings import NO_SETTINGS, Settings, base

if TYPE_CHECKING:
    from confluent_kafka import Producer

_CHUNK_RECORDS = 1_000
_SMALL_CHUNK_RECORDS = 60
_SMALL_OUTSTANDING = 300
_SMALL_LINGER_MS = 1_000
_STALLED_S = 60.0
_PROGRESS_S = 0.2
_METADATA_S = 10.0


def fill(
    bootstrap: str,
    topic: str,
    records: int,
    record_bytes: int,
    *,
    batch_records: int | None = None,
    compression: str = "none",
    partitions: int = 1,
    settings: Settings = NO_SETTINGS,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write records, about the same number to each of the first `partitions`, in batches of about 1
    MB or of at most `batch_records`. Returns when the broker has confirmed all (acks=all).
    `progress` is called from time to time with the number of records written. Raises
    WorkloadFailed."""
    own = {
        **base(bootstrap, settings),
        **batching(
            batch_bytes=1_000_000,
            linger_ms=50,
            compression=compression,
            batch_records=batch_records or 1_000_000,
        ),
        "acks": "all",
    }
    _Filling([own], [1], topic, record_bytes, _CHUNK_RECORDS, outstanding_records(record_bytes)).write(
        records, partitions, progress
    )


def fill_small(
    bootstrap: str,
    topic: str,
    records: int,
    record_bytes: int = 100,
    *,
    partitions: int = 1,
    settings: Settings = NO_SETTINGS,
    progress: Callable[[int], None] | None = None,
) -> None:
    """The same, in a mix of equally many batches of 1, 2 and 3 records: two records a batch on
    average.

    The client library builds batches of one size, so there are three producers. They stay within a
    few hundred batches of each other.
    """
    common = {**base(bootstrap, settings), "acks": "all"}
    sizes = [
        batching(batch_bytes=1_000_000, linger_ms=_SMALL_LINGER_MS, compression="none", batch_records=size)
        for size in (1, 2, 3)
    ]
    producers = [{**common, **size} for size in sizes]
    _Filling(producers, [1, 2, 3], topic, record_bytes, _SMALL_CHUNK_RECORDS, _SMALL_OUTSTANDING).write(
        records, partitions, progress
    )


def record_count(bootstrap: str, topic: str, *, settings: Settings = NO_SETTINGS) -> int:
    """Number of offsets in a topic from its earliest onward. That is its number of records, unless
    some offsets have been compacted away or are control records. Raises WorkloadFailed."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({**base(bootstrap, settings), "group.id": "kbroker-perf"})
    try:
        ends = [
            consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_METADATA_S)
            for partition in partitions_of(consumer, topic)
        ]
    finally:
        consumer.close()
    return sum(end - begin for begin, end in ends)


class _Filling:
    """`weights`: the producers' shares of the records. A producer has at most its weight times
    `outstanding` unconfirmed records."""

    def __init__(
        self,
        producers: Sequence[Settings],
        weights: Sequence[int],
        topic: str,
        record_bytes: int,
        chunk_records: int,
        outstanding: int,
    ) -> None:
        from confluent_kafka import Producer

        self._refusals = Refusals()
        self._producers: list[Producer] = [
            Producer({**each, "on_delivery": self._refusals}) for each in producers
        ]
        self._weights, self._topic, self._record_bytes = weights, topic, record_bytes
        self._chunk_records, self._outstanding = chunk_records, outstanding

    def write(self, records: int, partitions: int, progress: Callable[[int], None] | None) -> None:
        told_s = time.monotonic()
        size = min(self._chunk_records, -(-records // partitions))
        pool = cycle(chunks(self._record_bytes, size))
        for number, first in enumerate(range(0, records, size)):
            messages = next(pool)[: records - first]
            bounds = [
                len(messages) * sum(self._weights[:each]) // sum(self._weights)
                for each in range(len(self._weights) + 1)
            ]
            for producer, weight, (begin, end) in zip(
                self._producers, self._weights, pairwise(bounds), strict=True
            ):
                self._hand_over(producer, messages[begin:end], number % partitions)
                self._wait(producer, self._outstanding * weight)
            if progress is not None and time.monotonic() - told_s >= _PROGRESS_S:
                told_s = time.monotonic()
                progress(first + len(messages))
        for producer in self._producers:
            self._wait(producer, 0)
        self._refusals.check()
        if progress is not None:
            progress(records)

    def _hand_over(self, producer: Producer, messages: list[dict[str, bytes]], partition: int) -> None:
        """Raises WorkloadFailed if the client library refuses some of them: it calls no callback
        for those."""
        if not messages:
            return
        taken = producer.produce_batch(self._topic, messages, partition=partition)
        producer.poll(0)
        if taken < len(messages):
            reason = next((str(each["_error"]) for each in messages if "_error" in each), "no reason given")
            raise WorkloadFailed(
                f"the client library took {taken} of {len(messages)} records for {self._topic}: {reason}"
            )

    def _wait(self, producer: Producer, outstanding: int) -> None:
        """Wait until at most `outstanding` records are unconfirmed. Raises WorkloadFailed if there
        is no progress.

        It does not flush: that would end the linger, and send batches that are not full.
        """
        left, moved_s = len(producer), time.monotonic()
        while left > outstanding:
            self._refusals.check()
            producer.poll(0.001)
            if (now_left := len(producer)) < left:
                left, moved_s = now_left, time.monotonic()
            elif time.monotonic() - moved_s > _STALLED_S:
                raise WorkloadFailed(
                    f"{left} records for {self._topic} were not confirmed within {_STALLED_S:.0f} s"
                )
