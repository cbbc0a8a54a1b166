"""Rows of the cost of starting and running a broker: time to the first produced record, and memory,
also over much traffic."""

from __future__ import annotations

import time

from perf.measuring.processes import cost_so_far, memory
from perf.studies.memory_over_time import TOPIC_CONFIG, growth_mb, samples
from perf.suite.candidates import READING
from perf.suite.rows import Row, Run

_TIMEOUT_S = 60.0
_MEMORY_S = 30.0


def _start_to_produce(run: Run) -> dict[str, float]:
    """From the creation of the process, on an empty directory, until the first record is confirmed,
    including the creation of its topic."""
    from confluent_kafka import Producer

    with run.own_broker() as broker:
        began = time.perf_counter()
        broker.start()
        ready_ms = (time.perf_counter() - began) * 1000
        broker.create_topic("first")
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0}
        )
        confirmed: list[object] = []
        producer.produce("first", b"x", on_delivery=lambda error, _: confirmed.append(error))
        producer.flush(_TIMEOUT_S)
        took_ms = (time.perf_counter() - began) * 1000
        if confirmed != [None]:
            raise TimeoutError(f"the first record was not confirmed: {confirmed}")
        return {"ms": took_ms, "ready_ms": ready_ms, **cost_so_far(broker.pid)._asdict()}


def _memory_over_time(run: Run) -> dict[str, float]:
    topic, group = run.new_topic(config=TOPIC_CONFIG), run.new_group()
    found = samples(run.bootstrap, run.candidate.pid, topic, group, _MEMORY_S)
    records = found[-1].records
    run.say(
        f"{run.candidate.key}: {records / 1e6:.1f} M records, "
        f"{' '.join(f'{sample.rss_anon_mb:.0f}' for sample in found)} MB"
    )
    return {"rss_anon_mb": found[-1].rss_anon_mb, "grew_mb": growth_mb(found)}


def _memory(run: Run) -> dict[str, float]:
    """The current memory, after all earlier rows of this and earlier rounds, and that after the
    start, before any work."""
    now = memory(run.candidate.pid)
    return {"idle_mb": run.candidate.idle_mb, "rss_anon_mb": now.anonymous_mb, "rss_mb": now.resident_mb}


ROWS = (
    Row(
        "memory-over-time", "memory over half a minute of all traffic", "footprint", _memory_over_time,
        "Producers and eight share consumers in turns at full speed, new clients every time, one "
        "group; growth is the difference between the "
        "last third and the second. Kafka has fewer turns, since joining takes 5 s. "
        "python -m perf.studies.memory_over_time runs longer.",
        candidates=frozenset(("segment-os", "lmdb-disk", "rocksdb-disk", "kafka")), rounds=1,
        takes_s=_MEMORY_S, warms=False,
    ),
    Row(
        "start-to-produce", "start to first confirmed record", "footprint", _start_to_produce,
        "On an empty directory, program files in the page cache; the topic is created by a request.",
        candidates=READING, quick=True, takes_s=2,
    ),
    Row(
        "memory", "memory", "footprint", _memory,
        "idle: two seconds after the start; the others: after all work of this run, from the second round "
        "on after all rows.",
        candidates=READING, quick=True, takes_s=0, warms=False,
    ),
)  # fmt: skip
