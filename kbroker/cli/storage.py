"""`kbroker storage inspect`: prints the contents of a data directory and checks it, even while a
broker runs on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kbroker.cli.exits import OK, REFUSED
from kbroker.cli.output import human_bytes, print_json, print_table
from kbroker.cli.params import json_option
from kbroker.cli.suggesting import SuggestingGroup

if TYPE_CHECKING:
    from kbroker.inspection.topics import Inspection, LogReport, ShareReport
    from kbroker.storage.data_dir import DataDescription
    from kbroker.storage.spi import LogReader, StateReader


@dataclass(frozen=True, slots=True)
class OpenDataDir:
    """A data directory, opened for reading without a change or a lock."""

    description: DataDescription
    logs: LogReader
    state: StateReader
    kept: Sequence[Path]
    """Files of record batches that recoveries have cut off logs and kept."""

    def inspect(self, *, check_batches: bool = False) -> Inspection:
        from kbroker.inspection.topics import inspect

        report = inspect(self.logs, self.state, check_batches=check_batches)
        report.problems += [
            f"{path} holds record batches that were cut off by the recovery after a crash"
            for path in self.kept
        ]
        return report


@contextmanager
def open_data_dir(path: Path) -> Iterator[OpenDataDir]:
    """Raises OperatorError if it is not a data directory of kbroker, or its engine is not
    installed."""
    from kbroker import plugins
    from kbroker.storage.data_dir import DataDirectory
    from kbroker.storage.segment.cut import kept_files

    with DataDirectory.inspect(path) as directory:
        description = directory.description
        with (
            closing(
                plugins.log_store_factory(description.log_engine).open_reader(directory.log_path)
            ) as logs,
            closing(
                plugins.state_store_factory(description.state_engine).open_reader(directory.state_path)
            ) as state,
        ):
            kept = [
                path for store in (directory.log_path, directory.state_path) for path in kept_files(store)
            ]
            yield OpenDataDir(description, logs, state, kept)


@click.group(cls=SuggestingGroup)
def storage() -> None:
    """Inspect a data directory, even while a broker runs on it."""


@storage.command()
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--segments", is_flag=True, help="Also print each segment of each log.")
@click.option("--check", is_flag=True, help="Read every record batch and check its CRC.")
@json_option(
    "One object: cluster_id, format_version, log_engine, state_engine, logs, groups (group, type, "
    "members), offsets (group, topic, partition, offset, lag, leader_epoch, metadata, "
    "committed_ms, expires_ms), share_partitions (with waiting and next_due_ms), problems, "
    "bytes_checked."
)
def inspect(directory: Path, segments: bool, check: bool, as_json: bool) -> int:
    """Print the contents of a data directory.

    Prints topics, sizes, groups, committed offsets and share state in DIR, and problems with them.
    The exit code is 1 if there are problems. DIR is only read, so a broker may be running on it.

    MEMBERS are those that a start would load: of a classic group, its last stable generation. LAG
    of a share group is the number of unfinished records in the log; negative if its start offset is
    beyond the log's end, - if nothing was acknowledged yet. STORED counts the records beyond the
    start offset whose state is stored: parked ones wait, finished ones were accepted after they
    were parked, or given up. WAITING counts parked records that are in the log, which LAG includes,
    and NEXT-DUE says when the next is due.
    """
    with open_data_dir(directory) as found:
        report = found.inspect(check_batches=check)
        if as_json:
            print_json(_as_json(found.description, report))
        else:
            _print_report(found.description, report, segments=segments, check=check)
    return REFUSED if report.problems else OK


def _print_report(description: DataDescription, report: Inspection, *, segments: bool, check: bool) -> None:
    engines = f"log {description.log_engine}, state {description.state_engine}"
    node = f"cluster {description.cluster_id}, node {description.node_id}"
    click.echo(f"{node}, format {description.format_version}, {engines}\n")
    columns = ("TOPIC", "PARTITION", "START-OFFSET", "END-OFFSET", "SEGMENTS", "SIZE", "NEWEST")
    print_table(
        columns,
        [
            (*_log_row(log), len(log.segments), human_bytes(log.size_bytes), _moment(log.newest_ms))
            for log in report.logs
        ],
    )
    if segments:
        _print_segments(report.logs)
    if report.groups:
        click.echo()
        print_table(
            ("GROUP", "TYPE", "MEMBERS"), [(each.group, each.type, each.members) for each in report.groups]
        )
    if report.offsets:
        click.echo()
        print_table(
            ("GROUP", "TOPIC", "PARTITION", "COMMITTED-OFFSET", "LAG", "COMMITTED"),
            [
                (each.group, each.topic, each.partition, each.offset, each.lag, _moment(each.committed_ms))
                for each in report.offsets
            ],
        )
    if report.share_partitions:
        _print_share_partitions(report.share_partitions)
    click.echo()
    for problem in report.problems:
        click.echo(f"problem: {problem}")
    if not report.problems:
        size = human_bytes(sum(log.size_bytes for log in report.logs))
        logs = "1 log" if len(report.logs) == 1 else f"{len(report.logs)} logs"
        click.echo(f"healthy: {logs}, {size}" + (", every batch read and its CRC checked" if check else ""))


def _print_segments(logs: Sequence[LogReport]) -> None:
    click.echo()
    print_table(
        ("TOPIC", "PARTITION", "BASE-OFFSET", "END-OFFSET", "BYTES", "NEWEST"),
        [
            (
                log.topic,
                log.partition,
                segment.base_offset,
                segment.end_offset,
                segment.size_bytes,
                _moment(segment.max_timestamp_ms),
            )
            for log in logs
            for segment in log.segments
        ],
    )


def _print_share_partitions(found: Sequence[ShareReport]) -> None:
    click.echo()
    parks = any(each.waiting for each in found)
    columns = (
        "GROUP",
        "TOPIC",
        "PARTITION",
        "START-OFFSET",
        "LAG",
        "UPDATES",
        "STORED",
        *(("WAITING", "NEXT-DUE") if parks else ()),
    )
    rows = [
        (
            each.group,
            each.topic,
            each.partition,
            None if each.start_offset < 0 else each.start_offset,
            each.lag,
            each.updates,
            " ".join(f"{name}:{count}" for name, count in sorted(each.records.items())) or None,
            *(
                (each.waiting, None if each.next_due_ms is None else _moment(each.next_due_ms))
                if parks
                else ()
            ),
        )
        for each in found
    ]
    print_table(columns, rows)


def _log_row(log: LogReport) -> tuple[str, int, int, int]:
    return log.topic, log.partition, log.start_offset, log.end_offset


def _moment(timestamp_ms: int) -> str | None:
    """In UTC; None if there is no timestamp. A producer may send one outside the calendar, which is
    printed as a number."""
    from datetime import UTC, datetime

    if timestamp_ms < 0:
        return None
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


def _as_json(description: DataDescription, report: Inspection) -> dict[str, object]:
    return {
        "cluster_id": description.cluster_id,
        "node_id": description.node_id,
        "format_version": description.format_version,
        "log_engine": description.log_engine,
        "state_engine": description.state_engine,
        "logs": [
            {
                "topic": log.topic,
                "topic_id": str(log.topic_id),
                "partition": log.partition,
                "start_offset": log.start_offset,
                "end_offset": log.end_offset,
                "size_bytes": log.size_bytes,
                "segments": [segment._asdict() for segment in log.segments],
            }
            for log in report.logs
        ],
        "groups": [asdict(each) for each in report.groups],
        "offsets": [asdict(each) for each in report.offsets],
        "share_partitions": [
            {
                "group": each.group,
                "topic": each.topic,
                "partition": each.partition,
                "start_offset": each.start_offset,
                "lag": each.lag,
                "state_epoch": each.state_epoch,
                "updates": each.updates,
                "records": dict(each.records),
                "waiting": each.waiting,
                "next_due_ms": each.next_due_ms,
            }
            for each in report.share_partitions
        ],
        "problems": report.problems,
        "bytes_checked": report.bytes_checked,
    }
