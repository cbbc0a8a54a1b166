"""An invented run of the suite: plausible figures in the format of its results, to try the reports
with.

`python -m tests.perf.made_up FILE` writes one.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from perf.suite.goals import all_goals, engine_ratios, judge
from perf.suite.results import ROUND, GoalResult, from_json, to_json

CANDIDATES = [
    *(
        {
            "key": f"{engine}-{durability}",
            "title": f"kbroker, {engine}, {durability}",
            "family": "kbroker",
            "engine": engine,
            "durability": durability,
            "version": "0.1.0",
            "missing": None,
        }
        for engine in ("segment", "lmdb", "rocksdb")
        for durability in ("os", "disk")
    ),
    *(
        {
            "key": key,
            "title": title,
            "family": family,
            "engine": "",
            "durability": durability,
            "version": version,
            "missing": missing,
        }
        for key, title, family, durability, version, missing in (
            ("kafka", "Apache Kafka, as it comes", "kafka", "os", "4.3.1", None),
            ("kafka-sync", "Apache Kafka, flush.messages=1", "kafka", "disk", "4.3.1", None),
            ("redis", "Redis Streams, appendfsync=always", "redis", "disk", "7.0", None),
            ("nats", "NATS JetStream, file store", "nats", "os", "2.9", None),
            ("rabbitmq-classic", "RabbitMQ, durable classic queue", "rabbitmq", "os", "3.10", None),
            (
                "rabbitmq-quorum",
                "RabbitMQ, quorum queue",
                "rabbitmq",
                "disk",
                "",
                "not installed: no <rabbitmq-server> & no Erlang",
            ),
        )
    ),
]
SPEED = {
    "segment-os": 1,
    "segment-disk": 0.8,
    "lmdb-os": 0.75,
    "lmdb-disk": 0.6,
    "rocksdb-os": 0.5,
    "rocksdb-disk": 0.4,
}
BOTH = (*SPEED, "kafka", "kafka-sync")
QUEUES = {"redis": 0.9, "nats": 0.75, "rabbitmq-classic": 0.8}

# key, title, group, Kafka's records/s, its records per CPU second, kbroker's throughput and
# efficiency as ratios to these
RATES = [
    ("produce-100b-1p", "100 B, 1 partition, 1 MB batches", "produce", 1.4e6, 3.7e6, 1.02, 2.9),
    (
        "produce-100b-1p-acks1",
        "100 B, 1 partition, 1 MB batches, acks=1",
        "produce",
        1.42e6,
        3.8e6,
        1.01,
        2.8,
    ),
    ("produce-1kb-1p", "1 KB, 1 partition, 1 MB batches", "produce", 210e3, 0.3e6, 1.6, 2.2),
    ("produce-1kb-6p", "1 KB, 6 partitions, 1 MB batches", "produce", 283e3, 0.34e6, 1.7, 2.4),
    ("produce-1kb-6p-lz4", "1 KB, 6 partitions, 1 MB batches, lz4", "produce", 885e3, 1.14e6, 1.1, 2.3),
    ("produce-1kb-6p-16kb", "1 KB, 6 partitions, 16 KB batches", "produce", 69e3, 75e3, 3.7, 5.6),
    (
        "produce-1kb-6p-16kb-acks1",
        "1 KB, 6 partitions, 16 KB batches, acks=1",
        "produce",
        72e3,
        77e3,
        3.8,
        5.7,
    ),
    ("produce-100b-6p-lz4", "100 B, 6 partitions, lz4", "produce", 1.3e6, 3.1e6, 1.04, 2.1),
    ("fetch-100b-1p", "100 B, 1 partition", "fetch", 1.1e6, 14e6, 1.05, 0.8),
    ("fetch-1kb-6p", "1 KB, 6 partitions", "fetch", 0.7e6, 2.8e6, 1.1, 1.3),
    ("share-implicit-1", "1 consumer, implicit, 1 MB batches", "share", 0.96e6, 1e6, 1.1, 3.2),
    ("share-implicit-8", "8 consumers, implicit, 1 MB batches", "share", 0.69e6, 1e6, 1.2, 3.1),
    ("share-implicit-32", "32 consumers, implicit, 1 MB batches", "share", 0.5e6, 0.7e6, 1.3, 3.4),
    (
        "share-implicit-8-6p",
        "8 consumers, 6 partitions, implicit, 1 MB batches",
        "share",
        0.9e6,
        0.8e6,
        1.05,
        3.3,
    ),
    ("share-mixed-8", "8 consumers, explicit, 1 % released, 0.1 % rejected", "share", 142e3, 159e3, 1.8, 2.2),
    ("share-small-implicit-1", "1 consumer, implicit, small batches", "share", 51e3, 35e3, 1.9, 2.4),
    ("share-small-explicit-8", "8 consumers, explicit, small batches", "share", 49e3, 35e3, 1.7, 2.1),
    (
        "share-small-explicit-32-6p",
        "32 consumers, 6 partitions, explicit, small batches",
        "share",
        50e3,
        34e3,
        1.6,
        2.1,
    ),
    ("one-1", "1 consumer, one record at a time", "queue", 543, 420, 7.1, 12),
    ("one-8", "8 consumers, one record at a time", "queue", 533, 430, 11, 13),
    ("one-work-8", "8 consumers, 5 ms of work for each record", "scale", 400, 300, 2.4, 9),
    ("share-partitions-10", "10 share-partitions", "scale", 60e3, 40e3, 2.2, 2.5),
    ("share-partitions-1000", "1 000 share-partitions", "scale", 31e3, 22e3, 3.2, 3.4),
    ("members-8", "8 members", "scale", 60e3, 40e3, 2.1, 2.4),
    ("members-500", "500 members, 492 of them idle", "scale", 42e3, 29e3, 2.6, 2.9),
]
LATENCIES = [
    ("ack-round-trip", "acknowledgement round trip", (0.55, 1.7, 6), (0.24, 0.6, 1.4), (0.55, 1.9, 7)),
    ("e2e-1000", "end to end at 1 000 records/s", (0.41, 2.5, 14), (0.38, 1.1, 4.1), (6, 62, 69)),
    ("e2e-100", "end to end at 100 records/s", (0.45, 0.73, 6.3), (0.4, 0.6, 2), (3, 9, 20)),
]
TIMES: list[tuple[str, str, str, dict[str, tuple[float, float]]]] = [
    ("first-record", "subscribe to first record", "latency", {"ms": (4_500, 21)}),
    (
        "start-to-produce",
        "start to first confirmed record",
        "footprint",
        {"ms": (2_200, 390), "ready_ms": (2_100, 350), "cpu_s": (5.1, 0.4)},
    ),
    (
        "memory",
        "memory",
        "footprint",
        {"rss_anon_mb": (1_200, 71), "idle_mb": (450, 43), "rss_mb": (1_400, 110)},
    ),
    (
        "memory-over-time",
        "memory over half a minute of all traffic",
        "footprint",
        {"rss_anon_mb": (1_250, 72), "grew_mb": (40, 1)},
    ),
    ("recovery-10000", "kill -9, start, 10 000 share-partitions", "scale", {"ms": (3_100, 900)}),
    (
        "cold-beside-live",
        "end to end beside a consumer of cold data",
        "scale",
        {"p50_ms": (1, 0.6), "p99_ms": (11, 3.5), "made_up_ms": (6, 2)},
    ),
]


def results(rounds: int = 3, seed: int = 7) -> dict[str, Any]:
    return Maker(rounds, seed).results()


class Maker:
    def __init__(self, rounds: int, seed: int) -> None:
        self._rounds = rounds
        self._random = random.Random(seed)

    def results(self) -> dict[str, Any]:
        rows = [*self._rates(), *self._latencies(), *self._times()]
        data = {
            "machine": {
                "processor": "Imagined CPU <2.00 GHz>",
                "cpus": 2,
                "memory_gb": 8.1,
                "system": "Linux 6.1.0",
                "file_system": "ext4",
                "sync_ms": 0.214,
                "python": "3.11.2",
                "client": "confluent-kafka 2.16.1",
                "java": "17.0.15",
            },
            "began": "2026-03-01T12:00:30+00:00",
            "took_s": 3301.4,
            "mode": "full",
            "candidates": CANDIDATES,
            "rows": rows,
            "notes": [
                "share-implicit-32, rocksdb-disk, round 2: <b>gave up</b> & continued",
                "the machine was busy: load average 2.1",
            ],
        }
        return judged(data)

    def _around(self, value: float) -> float:
        return value * self._random.uniform(0.93, 1.08)

    def _row(self, key: str, title: str, group: str, figures: dict[str, dict[str, float]]) -> dict[str, Any]:
        numbers = range(1, self._rounds + 1)
        readings = {
            who: [
                {ROUND: number, **{metric: self._around(value) for metric, value in each.items()}}
                for number in numbers
            ]
            for who, each in figures.items()
        }
        return {
            "key": key,
            "title": title,
            "group": group,
            "note": f"the note of {key}: a < b & c",
            "readings": readings,
        }

    def _rates(self) -> list[dict[str, Any]]:
        rows = []
        for key, title, group, rate, per_cpu, faster, leaner in RATES:
            figures = {
                who: _rated(rate * faster * speed, per_cpu * leaner * speed, 60)
                for who, speed in SPEED.items()
            }
            figures["kafka"] = _rated(rate, per_cpu, 900)
            figures["kafka-sync"] = _rated(rate * (0.3 if "16kb" in key else 0.9), per_cpu * 0.6, 950)
            if key in ("one-1", "one-8"):
                figures |= {
                    who: _rated(rate * faster * speed, per_cpu * leaner * speed, 50)
                    for who, speed in QUEUES.items()
                }
            rows.append(self._row(key, title, group, figures))
        ours = {who: _rated(4_600 * SPEED[who], 5_200 * SPEED[who], 64) for who in SPEED}
        return [
            *rows,
            self._row("one-limit", "exactly one record at a time, from batches of 8 000", "scale", ours),
        ]

    def _latencies(self) -> list[dict[str, Any]]:
        rows = []
        for key, title, theirs, ours, synced in LATENCIES:
            figures = {
                "kafka": _percentiles(theirs, 1) | {"cpu_s": 6.5},
                "kafka-sync": _percentiles(synced, 1) | {"cpu_s": 12.8},
            }
            for who, speed in SPEED.items():
                slower = (2.5 if "disk" in who else 1) / speed
                figures[who] = _percentiles(ours, slower) | {"cpu_s": 1.5 / speed}
            rows.append(self._row(key, title, "latency", figures))
        return rows

    def _times(self) -> list[dict[str, Any]]:
        rows = []
        for key, title, group, figures in TIMES:
            of = {who: {name: ours / SPEED[who] for name, (_, ours) in figures.items()} for who in SPEED}
            of |= {
                who: {name: theirs for name, (theirs, _) in figures.items()}
                for who in ("kafka", "kafka-sync")
            }
            rows.append(self._row(key, title, group, of))
        return rows


def _rated(rate: float, per_cpu: float, memory_mb: float) -> dict[str, float]:
    return {
        "rate": rate,
        "per_cpu_s": per_cpu,
        "cpu_s": 3 * rate / per_cpu,
        "rss_anon_mb": memory_mb,
        "rss_mb": memory_mb + 40,
    }


def _percentiles(values: tuple[float, float, float], slower: float) -> dict[str, float]:
    return {name: value * slower for name, value in zip(("p50_ms", "p99_ms", "p999_ms"), values, strict=True)}


def judged(data: dict[str, Any]) -> dict[str, Any]:
    """With the suite's own goals, one of which could not be measured."""
    results = from_json({**data, "goals": [], "engines": []})
    unmeasured = GoalResult(
        "one-8", "rate", "segment-disk", "rabbitmq-quorum", 1.0, None, title="one at a time <of all>"
    )
    results.goals = [*judge(results, all_goals()), unmeasured]
    results.engines = engine_ratios(results)
    return to_json(results)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(results(), indent=1) + "\n")
