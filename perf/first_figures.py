"""kbroker's first figures: start, memory, joining and one-record-at-a-time work, by engine and durability.

    make perf                                     everything; about a quarter of an hour, and 8 GiB of disk for the cache
    .venv-run/bin/python -m perf.first_figures --part start --part rate --engine segment

The workloads are described in perf/README.md. Readings of all settings are interleaved (every repeat goes through all of them), so
that another load of the machine meets all of them alike, and medians are shown.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console

from kbroker.client.broker_process import RunningBroker
from kbroker.workloads.fill import fill_small
from kbroker.workloads.outcome import Outcome
from kbroker.workloads.share import share_consume
from kbroker.workloads.window import Plan as Window
from perf.big_directory import NoRoom, big_directory, evict, read_all
from perf.figures import Results, Setting, as_json, show
from perf.measured_broker import cpu_s, idle_memory_mb, measured_broker, start_ms
from perf.processes import BrokerWatch

PARTS = ("start", "big", "first", "rate")
STYLES = {"one": "next poll", "sync": "commit_sync"}
RECORD_BYTES = 100
TOPIC = "orders"
_PAPER_WIDTH = 160
_START_RATIO = 3  # a start is short: more of them


class Plan(NamedTuple):
    settings: Sequence[Setting]
    consumers: Sequence[int]
    repeats: int
    seconds: float
    topic_records: int
    big_bytes: int
    cache: Path
    home: Path
    console: Console

    def say(self, text: str) -> None:
        self.console.print(f"[dim]{text}[/dim]")


def measure_starts(plan: Plan, results: Results) -> None:
    """Time to ready and memory, a new directory each time."""
    for repeat in range(plan.repeats * _START_RATIO):
        plan.say(f"start {repeat + 1} of {plan.repeats * _START_RATIO}")
        for setting in plan.settings:
            home = plan.home / f"start-{setting.engine}-{setting.durability}"
            shutil.rmtree(home, ignore_errors=True)
            broker = measured_broker(home, *setting)
            with _killed_at_last(broker):
                results.add(setting, ready=start_ms(broker))
                results.add(setting, ready_cpu=cpu_s(broker.pid) * 1000, memory=idle_memory_mb(broker))
                broker.stop()


def measure_big_starts(plan: Plan, results: Results, *, cold: bool) -> None:
    """Starts on a directory of 2 GiB: after a clean stop, after a kill, and at the very end with its files out of the page cache."""
    homes = _big_homes(plan, results)
    settings = [setting for setting in plan.settings if setting.engine in homes]
    for repeat in range(plan.repeats):
        plan.say(f"start on the big directory {repeat + 1} of {plan.repeats}")
        for setting in settings:
            broker = measured_broker(homes[setting.engine], *setting)
            with _killed_at_last(broker):
                results.add(setting, ready_big=start_ms(broker))
                results.add(setting, memory_big=idle_memory_mb(broker))
                broker.kill()
                results.add(setting, ready_big_killed=start_ms(broker))
                broker.stop()
    for setting in settings if cold else ():
        plan.say(f"start on the big directory, files not cached: {setting}")
        broker = measured_broker(homes[setting.engine], *setting)
        evict(broker.data_dir)
        with _killed_at_last(broker):
            results.add(setting, ready_big_cold=start_ms(broker))
            broker.stop()


def _big_homes(plan: Plan, results: Results) -> dict[str, Path]:
    """By engine; stopped in good order, files in the page cache."""
    homes = {}
    for engine in dict.fromkeys(setting.engine for setting in plan.settings):
        if engine == "memory":
            continue
        plan.say(f"directory of {plan.big_bytes >> 20} MiB on {engine}: built unless the cache has it, then read once")
        try:
            home = big_directory(plan.cache, engine, plan.big_bytes)
        except NoRoom as error:
            results.notes.append(str(error))
            continue
        broker = measured_broker(home, engine, "os")
        with _killed_at_last(broker):
            broker.start()
            broker.stop()
        read_all(broker.data_dir)
        homes[engine] = home
    return homes


def measure_work(plan: Plan, results: Results, parts: Sequence[str]) -> None:
    """Joining and working, on one broker for each setting; all are up all the time, one of them has work."""
    with contextlib.ExitStack() as stack:
        brokers = {setting: stack.enter_context(_filled_broker(plan, setting)) for setting in plan.settings}
        for repeat in range(plan.repeats):
            plan.say(f"work {repeat + 1} of {plan.repeats}")
            for consumers in plan.consumers:
                for setting, broker in brokers.items():
                    if "first" in parts:
                        work, _ = _work(plan, broker, f"first-{repeat}", consumers, sync=False, seconds=0)
                        assert work.first_record_ms is not None
                        results.add(setting, **{f"first_{consumers}": work.first_record_ms})
                    if "rate" in parts:
                        _rates(plan, setting, broker, results, repeat, consumers)
        for setting, broker in brokers.items():
            results.add(setting, memory_worked=idle_memory_mb(broker))
            broker.stop()


def _rates(plan: Plan, setting: Setting, broker: RunningBroker, results: Results, repeat: int, consumers: int) -> None:
    for name, style in STYLES.items():
        work, watch = _work(plan, broker, f"{name}-{repeat}", consumers, sync=name == "sync", seconds=plan.seconds)
        if work.ran_dry:
            results.notes.append(f"{setting}, {consumers} consumers, {style}: the topic was empty before the end; raise --records")
            continue
        key, used_s = f"{name}_{consumers}", watch.cost().cpu_s
        cpu_us = used_s * 1e6 / max(1, work.records)
        results.add(setting, **{key: work.records_per_s, f"{key}_cpu": cpu_us})
        plan.say(
            f"{setting!s:12} {consumers} x {style:11} {work.records_per_s:6.0f} records/s, {cpu_us:4.0f} us of broker CPU, "
            f"broker at {used_s / work.seconds:4.0%}, {work.records / max(1, work.requests):.1f} records a poll"
        )


def _work(plan: Plan, broker: RunningBroker, group: str, consumers: int, *, sync: bool, seconds: float) -> tuple[Outcome, BrokerWatch]:
    group_id, watch = f"{group}-{consumers}", BrokerWatch(broker.pid)
    broker.set_group_config(group_id, {"share.auto.offset.reset": "earliest"})
    outcome = share_consume(
        Window(seconds, watch=watch),
        broker.bootstrap,
        TOPIC,
        group_id,
        consumers=consumers,
        mode="explicit",
        max_poll_records=1,
        sync=sync,
        most=plan.topic_records,
    )
    return outcome, watch


@contextlib.contextmanager
def _filled_broker(plan: Plan, setting: Setting) -> Iterator[RunningBroker]:
    broker = measured_broker(plan.home / f"work-{setting.engine}-{setting.durability}", *setting)
    with _killed_at_last(broker):
        broker.start()
        broker.create_topic(TOPIC)
        plan.say(f"{setting}: writing {plan.topic_records} records in batches of 1 to 3")
        fill_small(broker.bootstrap, TOPIC, plan.topic_records, RECORD_BYTES)
        yield broker


@contextlib.contextmanager
def _killed_at_last(broker: RunningBroker) -> Iterator[None]:
    try:
        yield
    finally:
        broker.kill()


@click.command()
@click.option("--engine", "engines", multiple=True, default=("segment", "lmdb", "rocksdb"), show_default=True, help="May be repeated.")
@click.option("--durability", "durabilities", multiple=True, type=click.Choice(["disk", "os"]), default=("disk", "os"), show_default=True)
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), default=PARTS, show_default=True, help="May be repeated.")
@click.option("--consumers", multiple=True, type=click.Choice(["1", "8"]), default=("1", "8"), show_default=True)
@click.option("--repeats", default=5, show_default=True, help="Readings of each figure (starts: three times as many).")
@click.option("--seconds", default=3.0, show_default=True, help="Length of one window of work.")
@click.option("--records", default=60_000, show_default=True, help="Records in the topic; must last for one window.")
@click.option("--big-mib", default=2048, show_default=True, help="Size of the big directory.")
@click.option("--cold", is_flag=True, help="Also start on the big directory with its files out of the page cache (slow).")
@click.option("--cache-dir", type=click.Path(path_type=Path), help="Where big directories are kept.  [default: the temporary directory]")
@click.option("--kafka", nargs=2, type=float, help="Your Kafka's records/s with 1 and with 8 consumers.  [default: 600 550]")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write every reading there.")
def main(
    engines: Sequence[str],
    durabilities: Sequence[str],
    parts: Sequence[str],
    consumers: Sequence[str],
    repeats: int,
    seconds: float,
    records: int,
    big_mib: int,
    cold: bool,
    cache_dir: Path | None,
    kafka: tuple[float, float] | None,
    json_file: Path | None,
) -> None:
    """Print a table of kbroker's first figures, a column for each engine and durability, beside Kafka's.

    A goal that was missed is named in its cell. The parts: start (time to ready and memory, on an empty directory), big (the same on
    2 GiB), first (subscribe to first record) and rate (one record at a time, explicit acknowledgement). perf/README.md says how each
    is measured.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PAPER_WIDTH)
    results = Results({"one_1": kafka[0], "one_8": kafka[1]} if kafka else {})
    settings = [Setting(engine, durability) for engine in engines for durability in durabilities]
    cache = cache_dir or Path(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix="kbroker-perf-", dir=cache_dir) as home:
        counts = [int(count) for count in consumers]
        plan = Plan(settings, counts, repeats, seconds, records, big_mib << 20, cache, Path(home), console)
        if "start" in parts:
            measure_starts(plan, results)
        if "big" in parts:
            measure_big_starts(plan, results, cold=cold)
        if {"first", "rate"} & set(parts):
            measure_work(plan, results, parts)
    show(results, console)
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(results), indent=1) + "\n")


if __name__ == "__main__":
    main()
