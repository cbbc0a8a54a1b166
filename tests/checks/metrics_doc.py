"""Generates docs/metrics.md from the table of metrics: `python -m tests.checks.metrics_doc` (or
`make docs`)."""

from __future__ import annotations

from pathlib import Path

from kbroker.metrics_export.definition import MetricDef
from kbroker.metrics_export.table import LEFT_OUT, SECTIONS

METRICS_DOC = Path(__file__).parents[2] / "docs" / "metrics.md"

HEAD = """# Metrics

Made from the tables in `kbroker/metrics_export/table.py` and `share_table.py` by `make docs`; do not edit.

`kbroker start --admin 9644` serves them at `/metrics` for Prometheus
([access](admin-http.md#who-may-do-what)):

```yaml
scrape_configs:
  - job_name: kbroker
    static_configs:
      - targets: ["127.0.0.1:9644"]
```

Names follow Prometheus' conventions; Kafka's name of the same metric is beside them. Kafka's rates are
counters here (`rate()` makes them rates again), and times are histograms in seconds. Counters begin at 0
when the broker starts, those of a topic or a group when it is created. The `process_*` metrics of the
Prometheus client library (CPU time, memory, open files) are included.
"""

NOTES = """## Lag and age

**Lag** is that of DescribeShareGroupOffsets (KIP-1226): high watermark - start offset - finished records
after the start offset. If retention or DeleteRecords has removed records after the start offset, the
lag begins at the log start. Acquired records and records that wait for their dead letter are not finished.
A group's lag is the sum over its share-partitions: `sum by (group) (kbroker_share_partition_lag)`.

Every share-partition with state of a group has a lag, even if nobody consumes. For share-partitions in
memory it is known; for the others the scrape queries the persister, 20 at a time. For these queries, and
for timestamps in cold logs, a scrape waits at most five seconds in all. It leaves out share-partitions
without an answer and counts them in `kbroker_scrape_unanswered_share_partitions`. A scrape never loads a
share-partition.

**Age** of the oldest unprocessed record is the time since the timestamp of the first unfinished record.
That timestamp is the producer's or, with message.timestamp.type=LogAppendTime, the broker's. It is taken
from the header of the record's batch: a record that is not the first of its batch may seem older by the
time that filling the batch took. For a share-partition that is not in memory the persister returns the
offset of that record; a persister plugin whose summaries lack `stands_from` returns the saved start
offset, whose record may be finished. Records removed by retention or DeleteRecords do not count.

## Share-partitions in memory, and others

Counters of a share-partition (`kbroker_share_partition_*_total`) continue when it leaves the memory and
is loaded again; they end with its group or topic. Records in flight are only reported for
share-partitions in memory: the others have none.

## What a scrape costs

Counting costs additions to integers; everything else happens during a scrape. A scrape works for 2 ms,
then yields the loop for as long, and so on: with many share-partitions it takes longer, not more.
Simultaneous scrapes take turns. A share-partition in memory has about 20 samples, another one 8. A
sample costs about 10 microseconds of CPU: 1 000 share-partitions in memory cost 0.2 s in a scrape, and
10 000 about 2 s. For the latter, a scrape interval of a minute is better than one of 15 s. The first
scrape after a start reads the saved state of all share-partitions from the state store into the memory
of the share coordinator (about 0.05 s and a megabyte for 1 000 of them).

Counters of a group or share-partition begin with 0 when it is created, and after a restart: their
first increase shows in `rate` and `increase`. Only errors of requests, by API and code, begin with
their first one.

## Alerts to begin with

```yaml
- alert: QueueIsNotWorkedOff
  expr: max by (group, topic) (kbroker_share_partition_oldest_unprocessed_seconds) > 600
- alert: RecordsAreGivenUp
  expr: sum by (group, topic) (rate(kbroker_share_partition_archived_total[15m])) > 0
- alert: ConsumersAreTooSlowForTheirLocks
  expr: sum by (group) (rate(kbroker_share_partition_lock_timeouts_total[15m])) > 0
- alert: DeadLettersAreLost
  expr: sum by (group) (increase(kbroker_share_group_dead_letters_refused_total[15m])) > 0
- alert: StoreHasFailed
  expr: max by (store) (kbroker_store_failed) == 1
```
"""

TABLE_HEAD = ["| metric | type | labels | in Kafka | meaning |", "| --- | --- | --- | --- | --- |"]
LEFT_OUT_HEAD = ["## Kafka's metrics that kbroker lacks", "", "| in Kafka | why not |", "| --- | --- |"]


def render() -> str:
    lines = [HEAD]
    for section in SECTIONS:
        lines += [f"## {section.title}", "", *TABLE_HEAD, *map(_row, section.metrics), ""]
    lines += [NOTES, *LEFT_OUT_HEAD, *(f"| {kafka} | {reason} |" for kafka, reason in LEFT_OUT.items()), ""]
    return "\n".join(lines)


def _row(metric: MetricDef) -> str:
    labels = ", ".join(metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.kafka} | {metric.meaning} |"


if __name__ == "__main__":
    METRICS_DOC.write_text(render())
