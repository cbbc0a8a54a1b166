"""The row of a million scheduled jobs: their cost, and whether other jobs can overtake them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kbroker.client.rpc import Connection
from kbroker.formats.schedule_headers import DELAY_MS
from perf.measuring.processes import memory
from perf.queues.one_at_a_time import RECORD_BYTES
from perf.queues.own import OURS, queue, standing
from perf.suite.candidates import Candidate
from perf.suite.rows import Row, Run
from perf.workloads.client_process import SLOT_S, Link, WorkloadFailed
from perf.workloads.fill import fill
from perf.workloads.outcome import Percentiles
from perf.workloads.payload import values
from perf.workloads.produce import Refusals, batching
from perf.workloads.settings import base
from perf.workloads.share import share_consume
from perf.workloads.window import Client, Window, measure

if TYPE_CHECKING:
    from confluent_kafka import ShareConsumer

JOBS, QUICK_JOBS, BATCH_JOBS = 1_000_000, 100_000, 1_000
_HOUR_MS = 3_600_000
_LONGEST_S = 200.0
_FEW = 1_000
_URGENT = b"urgent"
_PROBES = "writes"
_PROBE_EVERY_S = 0.01
_POLL_S, _LOOK_AGAIN_S = 0.5, 0.2
_FLUSH_S = 60.0
_OUTSTANDING = 100_000
_SEED = 20
_BEHIND = 2_000


def _parked(run: Run) -> dict[str, float]:
    """Uses a separate broker, whose memory holds nothing else, and which is killed at the end."""
    jobs = QUICK_JOBS if run.quick else JOBS
    with run.own_broker() as broker:
        broker.start()
        run.watch.pid = broker.pid
        broker.create_topic(_PROBES)
        with queue(broker) as name:
            fill(broker.bootstrap, name, _FEW, RECORD_BYTES, batch_records=BATCH_JOBS, compression="lz4")
            share_consume(
                run.plan(_LONGEST_S), broker.bootstrap, name, name, mode="explicit", most=_FEW, all_of_it=True
            )
            empty_mb = memory(broker.pid).anonymous_mb
            shared = {"bootstrap": broker.bootstrap, "queue": name, "jobs": jobs}
            window = measure(
                run.plan(_LONGEST_S), [Client(each, shared) for each in _CLIENTS], most=2, all_of_it=True
            )
            sent_s, urgent_ms, probes = _found(window)
            cost, took_s = run.watch.cost(), window.span.seconds
            run.say(
                f"{run.candidate.key}: {jobs} jobs sent within {sent_s:.1f} s, and parked within "
                f"{took_s:.1f} s"
            )
            return {
                "parked_per_s": jobs / took_s, "ms": urgent_ms, "p50_ms": probes.p50, "p99_ms": probes.p99,
                "idle_mb": empty_mb, "rss_anon_mb": cost.rss_anon_mb,
                "over_empty_mb": cost.rss_anon_mb - empty_mb,
                "cpu_s": cost.cpu_s, **_after_kill(broker, name),
            }  # fmt: skip


def _found(window: Window) -> tuple[float, float, Percentiles]:
    """The seconds that sending took, the milliseconds that the urgent job took, and the latencies
    of the concurrent single writes."""
    sending, working, probing, _ = window.reports
    probes = Percentiles.of(probing.latencies_ms)
    if probes is None or not working.latencies_ms:
        raise WorkloadFailed("the clients ended without a write, or without the urgent job")
    return sending.times[0] - window.span.first * SLOT_S, working.latencies_ms[0], probes


def _after_kill(broker: Candidate, name: str) -> dict[str, float]:
    """kill -9, start, and a new worker gets a new job. Both times are counted from the creation of
    the process."""
    broker.kill()
    began_s = time.monotonic()
    broker.start()
    ready_s = time.monotonic()
    _produce_urgent(broker.bootstrap, name)
    with _worker(broker.bootstrap, name) as consumer:
        _urgent_ms(consumer)
        back_s = time.monotonic()
    return {"ready_ms": (ready_s - began_s) * 1000, "back_ms": (back_s - began_s) * 1000}


def _send(link: Link, arguments: Mapping[str, Any]) -> None:
    """Sends all scheduled jobs, due in one to two hours, and, when they are confirmed, one job that
    is due at once."""
    from confluent_kafka import Producer

    queue, jobs, refusals = arguments["queue"], arguments["jobs"], Refusals()
    link.longest_end_s = _FLUSH_S
    own = batching(batch_bytes=1_000_000, linger_ms=50, compression="lz4", batch_records=BATCH_JOBS)
    producer = Producer({**base(arguments["bootstrap"], {}), **own, "acks": "all", "on_delivery": refusals})
    pool, source = values(RECORD_BYTES), random.Random(_SEED)
    _begin(link)
    for number in range(jobs):
        headers = [(DELAY_MS, str(source.randint(_HOUR_MS, 2 * _HOUR_MS)))]
        producer.produce(queue, pool[number % len(pool)], headers=headers)
        while number % BATCH_JOBS == 0 and len(producer) > _OUTSTANDING:
            producer.poll(_PROBE_EVERY_S)
            refusals.check()
    if left := producer.flush(_FLUSH_S):
        raise WorkloadFailed(f"{left} of {jobs} jobs were not confirmed within {_FLUSH_S:.0f} s")
    refusals.check()
    link.report.times.append(time.monotonic())
    _produce_urgent(arguments["bootstrap"], queue)
    _until_told(link)


def _work(link: Link, arguments: Mapping[str, Any]) -> None:
    """The only worker. It records the latency of the urgent job, and then keeps polling: without
    workers, a queue parks no jobs."""
    link.longest_end_s = _POLL_S
    with _worker(arguments["bootstrap"], arguments["queue"]) as consumer:
        _begin(link)
        link.report.latencies_ms.append(_urgent_ms(consumer))
        link.count(1)
        while link.running:
            if consumer.poll(_POLL_S):
                raise WorkloadFailed("a scheduled job was delivered at once")
        link.send_report()


def _probe(link: Link, arguments: Mapping[str, Any]) -> None:
    """Sends single writes to another topic, one after the other, each confirmed with acks=all."""
    from confluent_kafka import Producer

    own = batching(batch_bytes=1_000_000, linger_ms=0, compression="none")
    confirmed: list[object] = []
    producer = Producer({
        **base(arguments["bootstrap"], {}), **own, "delivery.report.only.error": False, "acks": "all",
        "on_delivery": lambda error, _: confirmed.append(error),
    })  # fmt: skip
    value = values(RECORD_BYTES)[0]
    producer.produce(_PROBES, value)  # finds the broker
    producer.flush(_FLUSH_S)
    _begin(link)
    while link.running:
        confirmed.clear()
        began_s = time.monotonic()
        producer.produce(_PROBES, value)
        producer.flush(_FLUSH_S)
        if confirmed != [None]:
            raise WorkloadFailed(f"a single write was not confirmed within {_FLUSH_S:.0f} s: {confirmed}")
        ended_s = time.monotonic()
        link.latency(ended_s, (ended_s - began_s) * 1000)
        time.sleep(_PROBE_EVERY_S)
    link.send_report()


def _look(link: Link, arguments: Mapping[str, Any]) -> None:
    """Waits until every scheduled job has left the in-flight window, except for a few that the
    stored start offset does not show yet."""
    host, _, port = arguments["bootstrap"].rpartition(":")
    _begin(link)
    with Connection(host, int(port), client_id="perf") as connection:
        while link.running:
            now = standing(connection, arguments["queue"])
            if now.start_offset >= _FEW + arguments["jobs"] - _BEHIND and now.unfinished == arguments["jobs"]:
                link.count(1)
                break
            time.sleep(_LOOK_AGAIN_S)
    _until_told(link)


_CLIENTS = (_send, _work, _probe, _look)


def _begin(link: Link) -> None:
    link.begin()
    link.first()


def _until_told(link: Link) -> None:
    while link.running:
        time.sleep(_LOOK_AGAIN_S)
    link.send_report()


def _produce_urgent(bootstrap: str, queue: str) -> None:
    """Sends a job that is due at once and contains its send time; confirmed on return."""
    from confluent_kafka import Producer

    refusals = Refusals()
    producer = Producer({**base(bootstrap, {}), "acks": "all", "linger.ms": 0, "on_delivery": refusals})
    producer.produce(queue, _URGENT + b"%d" % time.monotonic_ns())
    left = producer.flush(_FLUSH_S)
    refusals.check()
    if left:
        raise WorkloadFailed(f"the urgent job was not confirmed within {_FLUSH_S:.0f} s")


@contextmanager
def _worker(bootstrap: str, queue: str) -> Iterator[ShareConsumer]:
    from confluent_kafka import ShareConsumer

    consumer = ShareConsumer(
        {**base(bootstrap, {}), "group.id": queue, "share.acknowledgement.mode": "explicit"}
    )
    consumer.subscribe([queue])
    try:
        yield consumer
    finally:
        consumer.close()


def _urgent_ms(consumer: ShareConsumer) -> float:
    """Receives and accepts the urgent job. Returns the milliseconds since it was sent. Raises
    WorkloadFailed for any other job."""
    until_s = time.monotonic() + _LONGEST_S
    while not (messages := list(consumer.poll(_POLL_S))):
        if time.monotonic() > until_s:
            raise WorkloadFailed(f"the urgent job did not arrive within {_LONGEST_S:.0f} s")
    came_ns = time.monotonic_ns()
    (message,) = messages
    value = message.value() or b""
    if (error := message.error()) is not None or not value.startswith(_URGENT):
        raise WorkloadFailed(f"expected the urgent job, received {error or value!r}")
    consumer.acknowledge(message)
    consumer.commit_sync()
    return (came_ns - int(value.removeprefix(_URGENT))) / 1e6


_NOTE = (
    f"Sent in lz4 batches of {BATCH_JOBS // 1000} 000, due in an hour and more, while a worker waits. "
    "'Time' is that of the job that is due at once; "
    "p50 and p99 are of single writes (acks=all) into another topic until all are parked. Then kill -9, "
    "start, and a new worker gets a "
    "new job. On a separate broker. --quick: 100 000 jobs."
)
ROWS = (
    Row(
        "parked-million", "1 000 000 scheduled jobs, then one that is due at once", "waiting", _parked,
        _NOTE, candidates=OURS, quick=True, rounds=1, takes_s=90, warms=False,
    ),
)  # fmt: skip
