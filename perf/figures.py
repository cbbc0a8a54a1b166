"""What is measured, in which unit, against which goal: one table, and the two ways to show it.

Kafka's column was read once from Apache Kafka 4.3.1 (KRaft, one node, -Xmx1G) on a machine with 2 virtual CPUs, by the same
clients doing the same work. A ratio is worth something on that kind of machine only; elsewhere measure Kafka and give --kafka.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table


class Setting(NamedTuple):
    engine: str
    durability: str

    def __str__(self) -> str:
        return f"{self.engine} {self.durability}"


class Figure(NamedTuple):
    """`kafka` None: not known. A goal is a limit in the figure's unit, or how many times Kafka's figure, by durability."""

    title: str
    unit: str
    kafka: float | None = None
    at_most: float | None = None
    times_kafka: Mapping[str, float] | None = None


FIGURES: Mapping[str, Figure] = {
    "ready": Figure("ready, empty directory", "ms", kafka=2_200, at_most=500),
    "ready_cpu": Figure("  CPU time of that", "ms"),
    "ready_big": Figure("ready, 2 GiB in 1 000 partitions, files cached", "ms"),
    "ready_big_cold": Figure("  files not cached", "ms"),
    "ready_big_killed": Figure("  after kill -9, files cached", "ms"),
    "memory": Figure("anonymous memory after start", "MB", kafka=450, at_most=64),
    "memory_big": Figure("  on 2 GiB in 1 000 partitions", "MB"),
    "memory_worked": Figure("  after the one-at-a-time work", "MB", kafka=1_200),
    "first_1": Figure("subscribe to first record, 1 consumer", "ms", kafka=4_500),
    "first_8": Figure("  8 at once, the last of them", "ms"),
    "one_1": Figure("one at a time, ack with next poll, 1 consumer", "records/s", kafka=600, times_kafka={"os": 6, "disk": 3}),
    "one_1_cpu": Figure("  broker CPU for a record", "us"),
    "one_8": Figure("one at a time, ack with next poll, 8 consumers", "records/s", kafka=550, times_kafka={"os": 6, "disk": 5}),
    "one_8_cpu": Figure("  broker CPU for a record", "us"),
    "sync_1": Figure("one at a time, commit_sync, 1 consumer", "records/s"),
    "sync_1_cpu": Figure("  broker CPU for a record", "us"),
    "sync_8": Figure("one at a time, commit_sync, 8 consumers", "records/s"),
    "sync_8_cpu": Figure("  broker CPU for a record", "us"),
}


@dataclass
class Results:
    """Every reading, by setting and figure; `kafka` replaces the table's figures of Kafka."""

    kafka: Mapping[str, float]
    readings: dict[Setting, dict[str, list[float]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, setting: Setting, **values: float) -> None:
        for name, value in values.items():
            assert name in FIGURES, name
            self.readings.setdefault(setting, {}).setdefault(name, []).append(value)

    def kafka_of(self, name: str) -> float | None:
        return self.kafka.get(name, FIGURES[name].kafka)

    def median(self, setting: Setting, name: str) -> float | None:
        values = self.readings[setting].get(name)
        return statistics.median(values) if values else None

    def goal(self, name: str, durability: str) -> float | None:
        """In the figure's unit: the most that is allowed (times, memory), or the least (rates)."""
        figure, kafka = FIGURES[name], self.kafka_of(name)
        if figure.times_kafka is not None and kafka is not None:
            return figure.times_kafka[durability] * kafka
        return figure.at_most

    def is_met(self, setting: Setting, name: str) -> bool | None:
        value, goal = self.median(setting, name), self.goal(name, setting.durability)
        if value is None or goal is None:
            return None
        return value >= goal if FIGURES[name].times_kafka is not None else value <= goal


def as_json(results: Results) -> dict[str, Any]:
    rows = [
        {
            "engine": setting.engine,
            "durability": setting.durability,
            "figure": name,
            "unit": FIGURES[name].unit,
            "median": results.median(setting, name),
            "readings": values,
            "goal": results.goal(name, setting.durability),
            "goal_met": results.is_met(setting, name),
            "kafka": results.kafka_of(name),
        }
        for setting, figures in results.readings.items()
        for name, values in figures.items()
    ]
    return {"machine": machine(), "figures": rows, "notes": results.notes}


def machine() -> dict[str, Any]:
    packages = ("kbroker", "trio", "kio", "lmdb", "rocksdict", "confluent-kafka")
    return {
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "packages": {name: version(name) for name in packages},
    }


def show(results: Results, console: Console) -> None:
    """A row for each figure, a column for each engine and durability; medians, the spread in --json."""
    settings = list(results.readings)
    table = Table(title="kbroker, first figures (medians)", title_justify="left")
    table.add_column("figure", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column("Kafka", justify="right", no_wrap=True)
    for setting in settings:
        table.add_column("\n".join(setting), justify="right")
    for name, figure in FIGURES.items():
        if any(name in figures for figures in results.readings.values()):
            kafka = results.kafka_of(name)
            cells = [_cell(results, setting, name) for setting in settings]
            table.add_row(figure.title, figure.unit, "" if kafka is None else _number(kafka), *cells)
    console.print(table)
    console.print(
        "[green]goal met[/green]  [red]missed: the goal[/red]  "
        f"on {os.cpu_count()} CPUs, load average now {os.getloadavg()[0]:.1f}"
    )
    for note in results.notes:
        console.print(f"[yellow]{note}[/yellow]")


def _cell(results: Results, setting: Setting, name: str) -> str:
    value, goal, is_met = results.median(setting, name), results.goal(name, setting.durability), results.is_met(setting, name)
    if value is None:
        return "-"
    text, kafka = _number(value), results.kafka_of(name)
    if FIGURES[name].times_kafka is not None and kafka:
        text += f"\n{value / kafka:.1f} x Kafka"
    if is_met is None or goal is None:
        return text
    return f"[green]{text}[/green]" if is_met else f"[red]{text}\nmissed: {_number(goal)}[/red]"


def _number(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if value >= 100 else f"{value:.1f}"
