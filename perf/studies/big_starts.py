"""Time to ready and memory of kbroker on 2 GiB in 1 000 partitions, by engine and durability.

    python -m perf.studies.big_starts       all engines; keeps 8 GiB of directories for later runs
    python -m perf.studies.big_starts --engine lmdb --cold

It measures starts after a clean stop and after kill -9 while idle; with --cold also with the files
evicted from the page cache, as after a reboot. Readings of all settings are interleaved, and
medians are shown. The suite measures starts on an empty directory (perf/suite/__main__.py).
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

from kbroker.client.broker_process import RunningBroker
from perf.measuring.measured_broker import idle_memory_mb, measured_broker, start_ms
from perf.studies.big_directory import NoRoom, big_directory, evict, read_all

FIGURES: Mapping[str, str] = {
    "stopped": "ready after a clean stop, files cached, ms",
    "memory": "anonymous memory then, MB",
    "killed": "ready after kill -9, files cached, ms",
    "cold": "ready after a clean stop, files not cached, ms",
}


class Setting(NamedTuple):
    engine: str
    durability: str


def big_homes(engines: Sequence[str], cache: Path, total_bytes: int, console: Console) -> dict[str, Path]:
    """The directories by engine, left by a clean stop, with their files in the page cache. Engines
    for which the disk has no space are left out."""
    homes = {}
    for engine in engines:
        console.print(
            f"[dim]directory of {total_bytes >> 20} MiB on {engine}: built unless the cache has it, then "
            "read once[/dim]"
        )
        try:
            home = big_directory(cache, engine, total_bytes)
        except NoRoom as error:
            console.print(f"[yellow]{error}[/yellow]")
            continue
        broker = measured_broker(home, engine, "os")
        with _killed_at_last(broker):
            broker.start()
            broker.stop()
        read_all(broker.data_dir)
        homes[engine] = home
    return homes


def measure(home: Path, setting: Setting) -> dict[str, float]:
    """Measures one start after a stop and one after a kill. The broker is stopped on return."""
    broker = measured_broker(home, *setting)
    with _killed_at_last(broker):
        found = {"stopped": start_ms(broker), "memory": idle_memory_mb(broker)}
        broker.kill()
        found["killed"] = start_ms(broker)
        broker.stop()
    return found


def measure_cold(home: Path, setting: Setting) -> float:
    broker = measured_broker(home, *setting)
    evict(broker.data_dir)
    with _killed_at_last(broker):
        took_ms = start_ms(broker)
        broker.stop()
    return took_ms


@contextlib.contextmanager
def _killed_at_last(broker: RunningBroker) -> Iterator[None]:
    try:
        yield
    finally:
        broker.kill()


def _table(readings: Mapping[Setting, Mapping[str, Sequence[float]]]) -> Table:
    table = Table("", *(f"{setting.engine} {setting.durability}" for setting in readings))
    for key, title in FIGURES.items():
        if any(key in found for found in readings.values()):
            table.add_row(
                title,
                *(
                    f"{statistics.median(found[key]):.0f}" if key in found else "-"
                    for found in readings.values()
                ),
            )
    return table


@click.command(help=__doc__)
@click.option(
    "--engine",
    "engines",
    multiple=True,
    default=("segment", "lmdb", "rocksdb"),
    show_default=True,
    help="May be repeated.",
)
@click.option(
    "--durability",
    "durabilities",
    multiple=True,
    type=click.Choice(["disk", "os"]),
    default=("disk", "os"),
    show_default=True,
)
@click.option("--repeats", default=5, show_default=True, help="Readings of each figure.")
@click.option("--mib", default=2048, show_default=True, help="Size of the directory.")
@click.option(
    "--cold", is_flag=True, help="Also with the files evicted from the page cache (slow; one reading)."
)
@click.option(
    "--cache-dir",
    type=click.Path(path_type=Path),
    help="Directory that keeps the data directories.  [default: the temporary directory]",
)
def main(
    engines: Sequence[str],
    durabilities: Sequence[str],
    repeats: int,
    mib: int,
    cold: bool,
    cache_dir: Path | None,
) -> None:
    console = Console()
    homes = big_homes(engines, cache_dir or Path(tempfile.gettempdir()), mib << 20, console)
    settings = [Setting(engine, durability) for engine in homes for durability in durabilities]
    readings: dict[Setting, dict[str, list[float]]] = {setting: defaultdict(list) for setting in settings}
    for repeat in range(repeats):
        console.print(f"[dim]{repeat + 1} of {repeats}[/dim]")
        for setting in settings:
            for key, value in measure(homes[setting.engine], setting).items():
                readings[setting][key].append(value)
    for setting in settings if cold else ():
        readings[setting]["cold"].append(measure_cold(homes[setting.engine], setting))
    console.print(_table(readings))


if __name__ == "__main__":
    main()
