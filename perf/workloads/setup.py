"""Shared by the commands of `python -m perf.workloads`: the topic and the group to work with, the
window, and the table."""

from __future__ import annotations

import contextlib
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kbroker.cli.clients import require_topics
from kbroker.cli.exits import CommandFailed, say
from kbroker.cli.output import Cell, print_json, print_table
from kbroker.cli.params import (
    COUNT,
    Address,
    Bootstrap,
    FiniteRange,
    bootstrap_option_with,
    connect,
    json_option,
    not_empty,
)

if TYPE_CHECKING:
    from perf.workloads.outcome import WorkloadOutcome
    from perf.workloads.window import Plan

_PROGRESS_S = 0.5


class Setup(NamedTuple):
    """The options of all commands."""

    bootstrap: Bootstrap
    topic: str | None
    partitions: int
    keep: bool
    seconds: float
    warm_up_s: float
    as_json: bool

    @contextlib.contextmanager
    def working_topic(self) -> Iterator[str]:
        """The topic that was named, unchanged, or a new empty one that is deleted afterwards.
        Raises KafkaError and BrokerUnreachable."""
        from kbroker.client import admin

        if self.topic is not None:
            require_topics(self.bootstrap, [self.topic])
            yield self.topic
            return
        name = _new_name()
        with connect(self.bootstrap) as connection:
            admin.create_topic(connection, name, partitions=self.partitions)
        try:
            yield name
        finally:
            if self.keep:
                say(f"topic {name} is kept")
            else:
                with connect(self.bootstrap) as connection:
                    admin.delete_topic(connection, name)

    @contextlib.contextmanager
    def working_group(self, group: str | None) -> Iterator[str]:
        """The share group that was named, or a new one that is deleted afterwards. A new group
        begins at the earliest record."""
        from kbroker.cli.share_consume import begin_new_group

        name = group or _new_name()
        with connect(self.bootstrap) as connection:
            begin_new_group(connection, name, None)
        try:
            yield name
        finally:
            if group is None:
                self._delete_group(name)

    def _delete_group(self, name: str) -> None:
        """Prints a line if the group cannot be deleted, because a member had to be killed: the
        broker still waits for the end of that member's session."""
        from kbroker.cli.share_consume import RESET
        from kbroker.client import admin, group_admin

        with connect(self.bootstrap) as connection:
            admin.alter_configs(connection, admin.ResourceType.GROUP, name, delete_configs=[RESET])
            coordinator = group_admin.find_coordinators(connection, [name])[name]
        there = Bootstrap(Address(coordinator.host, coordinator.port), self.bootstrap.security)
        with connect(there) as connection:
            for refused in group_admin.delete_groups(connection, [name]).values():
                say(f"share group {name} is left behind: {refused.message or refused.code.name}")

    def client_settings(self) -> Mapping[str, str]:
        """What the workloads' clients need beside the address."""
        return self.bootstrap.security.library_settings()

    def plan(self) -> Plan:
        from perf.workloads.window import Plan

        return Plan(self.seconds, self.warm_up_s, _Countdown(self.seconds))

    def measure(self, workload: Callable[[], WorkloadOutcome]) -> WorkloadOutcome:
        """Raises CommandFailed if the workload yields no figure."""
        from perf.workloads.window import WorkloadFailed

        try:
            outcome = workload()
        except WorkloadFailed as error:
            raise CommandFailed(str(error)) from error
        if outcome.ran_dry:
            say("the records were used up too soon for a meaningful figure: more are needed (--records)")
        return outcome

    def fill(
        self, topic: str, records: int, record_bytes: int, *, small: bool = False, compression: str = "none"
    ) -> None:
        """Raises CommandFailed."""
        from perf.workloads.fill import fill, fill_small
        from perf.workloads.window import WorkloadFailed

        say(f"writing {records} records of {record_bytes} bytes")
        try:
            if small:
                fill_small(
                    str(self.bootstrap),
                    topic,
                    records,
                    record_bytes,
                    partitions=self.partitions,
                    progress=_written(records),
                    settings=self.client_settings(),
                )
            else:
                progress, partitions = _written(records), self.partitions
                fill(
                    str(self.bootstrap),
                    topic,
                    records,
                    record_bytes,
                    compression=compression,
                    partitions=partitions,
                    progress=progress,
                    settings=self.client_settings(),
                )
        except WorkloadFailed as error:
            raise CommandFailed(str(error)) from error

    def show(self, outcome: WorkloadOutcome) -> None:
        """Print the table, or a JSON document with all results."""
        if self.as_json:
            rates = {"records_per_s": outcome.records_per_s, "megabytes_per_s": outcome.megabytes_per_s}
            print_json({**asdict(outcome), "details": dict(outcome.details), **rates})
            return
        cells: dict[str, Cell] = {
            "RECORDS": outcome.records,
            "SECONDS": round(outcome.seconds, 2),
            "RECORDS/S": round(outcome.records_per_s),
            "MB/S": round(outcome.megabytes_per_s, 1),
        }
        if outcome.first_record_ms is not None:
            cells["FIRST-MS"] = round(outcome.first_record_ms, 1)
        if outcome.latencies_ms is not None:
            found = outcome.latencies_ms
            named = {
                "P50-MS": found.p50,
                "P95-MS": found.p95,
                "P99-MS": found.p99,
                "P99.9-MS": found.p999,
                "MAX-MS": found.max,
            }
            cells |= {name: round(value, 3) for name, value in named.items()}
        cells |= {name.upper(): round(value, 3) for name, value in outcome.details.items()}
        print_table(list(cells), [list(cells.values())])


def measured(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of Setup to a command, which receives them as its first argument."""

    @wraps(function)
    def command(**options: Any) -> None:  # noqa: ANN401 (what click found)
        own = {name: value for name, value in options.items() if name not in Setup._fields}
        function(Setup(**{name: options[name] for name in Setup._fields}), **own)

    with_options: Callable[..., None] = command
    for option in _OPTIONS:
        with_options = option(with_options)
    return with_options


_OPTIONS: Sequence[Callable[[Callable[..., None]], Callable[..., None]]] = (
    bootstrap_option_with("--bootstrap"),
    json_option("One document with all measurements."),
    click.option(
        "--warm-up",
        "warm_up_s",
        type=FiniteRange(0, 86_400),
        default=0.5,
        show_default=True,
        help="Length of the warm-up before the window.",
    ),
    click.option(
        "--seconds",
        type=FiniteRange(0.1, 86_400),
        default=5.0,
        show_default=True,
        help="Length of the window.",
    ),
    click.option("--keep", is_flag=True, help="Keep the topic that the command created."),
    click.option(
        "--partitions",
        type=COUNT,
        default=1,
        show_default=True,
        help="Partitions of the topic that the command creates.",
    ),
    click.option(
        "--topic",
        callback=not_empty,
        help="An existing topic.  [default: a new one, deleted afterwards]",
    ),
)


class _Countdown:
    """Shows the progress of the window on a terminal."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._over = seconds, threading.Event()

    def opened(self) -> None:
        if sys.stderr.isatty():
            threading.Thread(target=self._show, daemon=True).start()

    def closed(self) -> None:
        self._over.set()

    def _show(self) -> None:
        passed_s = 0.0
        while not self._over.wait(_PROGRESS_S):
            passed_s += _PROGRESS_S
            click.echo(f"\rmeasured {passed_s:.1f} of {self._seconds:.1f} s", err=True, nl=False)
        click.echo("\r", err=True, nl=False)


def _written(records: int) -> Callable[[int], None]:
    if not sys.stderr.isatty():
        return lambda written: None
    return lambda written: click.echo(
        f"\r{written} of {records} records written", err=True, nl=written == records
    )


def _new_name() -> str:
    return f"kbroker-perf-{uuid.uuid4().hex[:12]}"
