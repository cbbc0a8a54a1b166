"""Rows per second that Spark reads from a topic: from its files with each decoder, from Parquet,
and from the broker with Spark's Kafka source.

    python -m perf.spark.read                      some minutes; Java and Maven; --write puts the
                                                   result into perf/results

One topic has two partitions and records of 100 bytes with keys of 10, in batches of 16 KiB, which a
producer with default settings fills. Spark writes the same rows to Parquet with default settings
(all seven columns). A query reads all columns of all rows into Spark's sink `noop`. One Spark
session uses all CPUs of this machine. One broker runs beside it, and only the Kafka source contacts
it.

Every round measures all four sources in turns, so that other work on the machine affects all alike.
Ratios are calculated for each round, and their median is reported. CPU is the time per row of all
processes: JVM, Python workers and broker.

The query needs enough rows for seconds of reading, since planning takes some tenths of a second for
any size. The machine must be quiet, since sources with more busy processes get a larger share of a
busy one.
"""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from confluent_kafka import Producer

from kbroker.client.broker_process import RunningBroker
from kbroker_spark.session import session
from perf.spark.decode import value
from perf.spark.report import RESULTS, machine, page, spread, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC, PARTITIONS = "rows", 2
POM = Path(__file__).with_name("kafka_pom.xml")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_FLUSH_S = 300


class Goal(NamedTuple):
    source: str
    than: str
    factor: float


NUMPY, C, PARQUET, KAFKA = "kbroker, numpy", "kbroker, C", "parquet", "spark-sql-kafka"
GOALS = (Goal(NUMPY, PARQUET, 0.6), Goal(C, PARQUET, 0.9), Goal(NUMPY, KAFKA, 3), Goal(C, KAFKA, 3))


class Reading(NamedTuple):
    million_rows_per_s: float
    cpu_us: float


@click.command()
@click.option("--rows", default=10_000_000, show_default=True)
@click.option(
    "--warm",
    default=2,
    show_default=True,
    help="Warm-up rounds, in which the JVM compiles hot code.",
)
@click.option("--rounds", default=7, show_default=True)
@click.option("--codec", default="none", show_default=True, help="Codec of the producer's batches.")
@click.option(
    "--kafka-jars",
    type=click.Path(exists=True, path_type=Path),
    help="Directory with the Kafka source's jars. Default: Maven fetches them.",
)
@click.option(
    "--conf",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the Spark session, for all sources; may be repeated.",
)
@click.option("--name", default="spark-read", show_default=True, help="Name of the files in perf/results.")
@click.option("--write", "is_written", is_flag=True, help="Put the result into perf/results.")
def main(
    rows: int,
    warm: int,
    rounds: int,
    codec: str,
    kafka_jars: Path | None,
    conf: tuple[str, ...],
    name: str,
    is_written: bool,
) -> None:
    """Measure reading rates in Spark."""
    with tempfile.TemporaryDirectory(prefix="kbroker-perf-") as place:
        home = Path(place)
        jars = sorted((kafka_jars or _fetched(home / "jars")).glob("*.jar"))
        (home / "broker").mkdir()
        broker = RunningBroker(home / "broker", storage="segment", durability="os")
        broker.start()
        try:
            broker.create_topic(TOPIC, partitions=PARTITIONS)
            _fill(broker.bootstrap, rows, codec)
            settings: dict[str, object] = {"spark.driver.memory": "3g", "spark.local.dir": home / "spark"}
            settings |= dict(each.partition("=")[::2] for each in conf) | {
                "spark.jars": ",".join(map(str, jars))
            }
            spark = session("perf", **settings)
            readings, parquet_bytes = _measured(spark, broker, home / "parquet", rows, range(-warm, rounds))
            spark.stop()
        finally:
            broker.kill()
    kafka_source = next((jar.stem for jar in jars if "spark-sql-kafka" in jar.name), "none")
    versions = {"Kafka source": kafka_source, "codec": codec, "conf": " ".join(conf)}
    facts = machine("pyspark", "pyarrow", "numpy")
    ratios = {f"{goal.source} / {goal.than}": _ratios(readings, goal) for goal in GOALS}
    text = _page(rows, parquet_bytes, versions, facts, readings)
    print(text)
    if is_written:
        named = {source: [reading._asdict() for reading in found] for source, found in readings.items()}
        goals = {f"{goal.source} / {goal.than}": goal.factor for goal in GOALS}
        data = {
            "machine": facts,
            "rows": rows,
            **versions,
            "readings": named,
            "ratios_of_rounds": ratios,
            "goals": goals,
        }
        write(RESULTS, name, data, text)


def _fetched(directory: Path) -> Path:
    """The directory of the Kafka source's jars. Raises ClickException with Maven's message."""
    command = [
        "mvn",
        "-q",
        "-B",
        "-f",
        str(POM),
        "dependency:copy-dependencies",
        f"-DoutputDirectory={directory}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"Maven could not fetch Spark's Kafka source: {done.stdout[:500]}")
    return directory


def _fill(bootstrap: str, rows: int, codec: str) -> None:
    chance = random.Random(1)
    values = [value(chance) for _ in range(100_003)]
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "batch.size": 16_384,
            "linger.ms": 500,
            "queue.buffering.max.messages": 10_000_000,
        }
    )
    for number in range(rows):
        producer.produce(
            TOPIC,
            values[number % len(values)],
            b"key%07d" % chance.randrange(10**7),
            partition=number % PARTITIONS,
        )
        if number % 1000 == 0:
            producer.poll(0)
    if left := producer.flush(_FLUSH_S):
        raise click.ClickException(f"the broker did not confirm {left} records")


def _measured(
    spark: SparkSession, broker: RunningBroker, parquet: Path, rows: int, rounds: range
) -> tuple[dict[str, list[Reading]], int]:
    stored = spark.read.format("kbroker").option("subscribe", TOPIC).load(str(broker.data_dir))
    stored.write.parquet(str(parquet))
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": TOPIC, "startingOffsets": "earliest"}
    sources: dict[str, Callable[[], DataFrame]] = {
        NUMPY: lambda: (
            spark.read.format("kbroker").options(subscribe=TOPIC, decoder="numpy").load(str(broker.data_dir))
        ),
        C: lambda: (
            spark.read.format("kbroker").options(subscribe=TOPIC, decoder="c").load(str(broker.data_dir))
        ),
        PARQUET: lambda: spark.read.parquet(str(parquet)),
        KAFKA: lambda: spark.read.format("kafka").options(**options).load(),
    }
    readings: dict[str, list[Reading]] = {source: [] for source in sources}
    for source, load in sources.items():
        found = load().count()
        if found != rows:
            raise click.ClickException(f"{source} reads {found} rows of {rows}")
    for number in rounds:
        for source, load in sources.items():
            reading = _read(load, rows)
            print(
                f"{number} {source:18} {reading.million_rows_per_s:6.2f} million rows/s, "
                f"{reading.cpu_us:6.2f} us of CPU",
                flush=True,
            )
            if number >= 0:
                readings[source].append(reading)
    return readings, sum(file.stat().st_size for file in parquet.glob("*.parquet"))


def _read(load: Callable[[], DataFrame], rows: int) -> Reading:
    began, cpu = time.perf_counter(), _cpu_s()
    load().write.format("noop").mode("overwrite").save()
    return Reading(rows / (time.perf_counter() - began) / 1e6, (_cpu_s() - cpu) / rows * 1e6)


def _cpu_s() -> float:
    """User and system time of this process and all its descendants, including ended children."""
    children: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for pid, fields in _processes():
        children.setdefault(int(fields[1]), []).append(pid)
        used[pid] = sum(int(field) for field in fields[11:15])
    total, left = 0, [os.getpid()]
    while left:
        pid = left.pop()
        total += used[pid]
        left += children.get(pid, ())
    return total / _TICKS_PER_S


def _processes() -> Iterator[tuple[int, list[str]]]:
    """(process id, fields of /proc/PID/stat after the name)."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
            yield int(entry.name), text.rpartition(")")[2].split()


def _ratios(readings: dict[str, list[Reading]], goal: Goal) -> list[float]:
    pairs = zip(readings[goal.source], readings[goal.than], strict=True)
    return [one.million_rows_per_s / other.million_rows_per_s for one, other in pairs]


def _page(
    rows: int,
    parquet_bytes: int,
    versions: dict[str, str],
    facts: dict[str, Any],
    readings: dict[str, list[Reading]],
) -> str:
    about = [
        f"{rows:,} rows of seven columns, values of 100 bytes, batches of 16 KiB (codec "
        f"{versions['codec']}); as Parquet",
        f"{parquet_bytes / 1e6:.0f} MB. Kafka source: {versions['Kafka source']}. {len(readings[C])} "
        "rounds: medians (lowest to highest).",
        *([f"Settings of the session: `{versions['conf']}`."] if versions["conf"] else []),
        "[The page about figures](../README.md#spark) explains the measurement.",
    ]
    table = [("source", "million rows/s", "x parquet", "x spark-sql-kafka", "CPU us for a row")]
    for source, found in readings.items():
        factors = [spread(_ratios(readings, Goal(source, than, 0))) for than in (PARQUET, KAFKA)]
        table.append(
            (
                source,
                spread([one.million_rows_per_s for one in found]),
                *factors,
                spread([one.cpu_us for one in found]),
            )
        )
    after = []
    for goal in GOALS:
        ratio = median(_ratios(readings, goal))
        after.append(
            f"- {goal.source} is {ratio:.2f} x {goal.than}; the goal of {goal.factor} is "
            f"{'met' if ratio >= goal.factor else 'MISSED'}"
        )
    return page("Reading a topic in Spark", about, facts, table, after)


if __name__ == "__main__":
    main()
