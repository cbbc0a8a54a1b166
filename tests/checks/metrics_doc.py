"""docs/metrics.md from the table of metrics. `python -m tests.checks.metrics_doc` (or `make docs`)
writes it anew."""

from __future__ import annotations

from pathlib import Path

from kbroker.metrics_export.table import LEFT_OUT, SECTIONS, MetricDef

METRICS_DOC = Path(__file__).parents[2] / "docs" / "metrics.md"

HEAD = """# Metrics

Made from the table in `kbroker/metrics_export/table.py` by `make docs`; do not edit.

`kbroker start --admin 9644` serves them at `/metrics` for Prometheus ([who can read that](admin-http.md#who-can-read-it)):

```yaml
scrape_configs:
  - job_name: kbroker
    static_configs:
      - targets: ["127.0.0.1:9644"]
```

Names are in Prometheus' way, with Kafka's name of the same thing beside them: rates are counters here (`rate()` makes them rates again),
times are seconds in histograms. Counters begin at 0 when the broker starts, those of a topic or a group when that is made. The
`process_*` metrics of the Prometheus client library (CPU time, memory, open files) come with them.
"""

NOTES = """## Lag and age

**Lag** is what DescribeShareGroupOffsets says (KIP-1226): high watermark - start offset - records behind the start offset that are done.
Where the log begins behind the start offset, after retention or DeleteRecords, it counts from there on.
What is acquired or waits for its dead letter counts as not done. A group's lag is the sum over its share-partitions:
`sum by (group) (kbroker_share_partition_lag)`.

It is there for every share-partition that a group has state for, also when nobody consumes. Those in memory are asked themselves; for the
others the persister is asked where they stand, 20 at a time. For that, and for reading timestamps where a log is cold, a scrape waits five
seconds at most, all in all; what was not answered is left out and counted in `kbroker_scrape_unanswered_share_partitions`. A scrape
never loads a share-partition.

**Age** of the oldest unprocessed record is the time since the timestamp of the first record that is not finished, which is the
producer's or, with message.timestamp.type=LogAppendTime, the broker's. It is taken from the header of the record's batch: where the
record is not the first of its batch, it may be said to be older than it is by the time that filling the batch took. For a
share-partition that is not in memory the persister says which record that is; where a plugin's cannot (it lacks `stands_from`), it is the
one at the saved start offset, which may be finished. Nothing that retention or DeleteRecords has removed counts.

## Share-partitions in memory, and others

Counters of a share-partition (`kbroker_share_partition_*_total`) go on when it leaves the memory and comes back, and go away with its group
or topic. What is in flight is told only of share-partitions in memory: the others have nothing in flight.

## What a scrape costs

Counting costs additions to integers; everything else happens when somebody asks. A scrape works for 2 ms, then leaves the loop to
others for as long, and so on: with many share-partitions it takes longer, not more. Scrapes at the same time take turns. About 20
samples for a share-partition in memory and 3 for one that is not; a sample costs about 10 microseconds of CPU, so that 1 000
share-partitions in memory cost 0.2 s in a scrape and 10 000 about 2 s. Then a scrape interval of a minute is better than one of
15 s. The first scrape after a start reads the saved state of
all share-partitions, from the state store into the memory of the share coordinator (about 0.05 s and a megabyte for 1 000 of them).

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
LEFT_OUT_HEAD = ["## Kafka's metrics that are not there", "", "| in Kafka | why not |", "| --- | --- |"]


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
