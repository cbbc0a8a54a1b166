"""Does a broker's memory grow? Hours of traffic in minutes, with new clients all the time, and
samples of the broker's anonymous memory.

    python -m perf.studies.memory_over_time          five minutes on segment: 100 M records
    python -m perf.studies.memory_over_time --engine lmdb --minutes 60

A producer at full speed and eight share consumers of one group (explicit, 1 % released, 0.1 %
rejected) alternate, as new processes each time. The topic keeps 64 MiB, so retention works too.
Memory that a broker allocates at first (caches, buffers, the interpreter's arenas) is not growth.
Growth is the difference of the medians of the last and the second third of the time.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

from perf.measuring.measured_broker import measured_broker
from perf.measuring.processes import memory
from perf.workloads.produce import produce
from perf.workloads.share import Mix, share_consume
from perf.workloads.window import Plan

TOPIC_CONFIG: Mapping[str, str] = {"segment.bytes": str(16 << 20), "retention.bytes": str(64 << 20)}
CONSUMERS = 8
_PRODUCE_S, _CONSUME_S = 0.5, 1.0
_SHOWN_ROWS = 30


class Sample(NamedTuple):
    """The memory after `seconds`, in which `records` were written and read."""

    seconds: float
    records: int
    rss_anon_mb: float


def samples(bootstrap: str, pid: int, topic: str, group: str, seconds: float) -> list[Sample]:
    """One sample for each turn, at least three. Raises WorkloadFailed."""
    began, records, found = time.monotonic(), 0, list[Sample]()
    while len(found) < 3 or time.monotonic() - began < seconds:
        produced = produce(Plan(_PRODUCE_S, 0.0), bootstrap, topic)
        consumed = share_consume(
            Plan(_CONSUME_S, 0.0),
            bootstrap,
            topic,
            group,
            consumers=CONSUMERS,
            mode="explicit",
            verdicts=Mix(),
            most=produced.records,
        )
        records += produced.records + consumed.records
        found.append(Sample(time.monotonic() - began, records, memory(pid).anonymous_mb))
    return found


def growth_mb(found: Sequence[Sample]) -> float:
    third = len(found) // 3
    second, last = found[-2 * third : -third], found[-third:]
    return median(sample.rss_anon_mb for sample in last) - median(sample.rss_anon_mb for sample in second)


@click.command(help=__doc__)
@click.option("--engine", default="segment", show_default=True)
@click.option("--durability", type=click.Choice(["disk", "os"]), default="disk", show_default=True)
@click.option("--minutes", default=5.0, show_default=True)
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all samples to this file.",
)
def main(engine: str, durability: str, minutes: float, json_file: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix="kbroker-perf-") as home:
        broker = measured_broker(Path(home), engine, durability)
        broker.start()
        try:
            broker.create_topic("orders", config=TOPIC_CONFIG)
            broker.set_group_config("workers", {"share.auto.offset.reset": "earliest"})
            found = samples(broker.bootstrap, broker.pid, "orders", "workers", minutes * 60)
            broker.stop()
        finally:
            broker.kill()
    table = Table("minutes", "million records", "anonymous memory, MB")
    for sample in found[:: max(1, len(found) // _SHOWN_ROWS)]:
        table.add_row(
            f"{sample.seconds / 60:.1f}", f"{sample.records / 1e6:.1f}", f"{sample.rss_anon_mb:.1f}"
        )
    console = Console()
    console.print(table)
    console.print(f"growth in the last third: {growth_mb(found):+.1f} MB")
    if json_file is not None:
        json_file.write_text(json.dumps([sample._asdict() for sample in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
