"""The jobs as commands: their options and output. Each imports its job only when it runs, so that
`--help` is fast."""

from __future__ import annotations

import re
import time
from typing import Any

import click

from kbroker_pipeline.cli import Common, finish, job_options, working
from kbroker_pipeline.exits import Exit


def _common(options: dict[str, Any]) -> Common:
    """Moves the options of all jobs out of a command's options."""
    chosen = {name: options.pop(name) for name in Common._fields}
    return Common(**{**chosen, "settings": dict(chosen["settings"])})


def _pattern(context: click.Context, param: click.Parameter, text: str | None) -> str | None:
    try:
        re.compile(text or "")
    except (re.error, OverflowError) as error:  # OverflowError: a repetition count that is too large
        raise click.BadParameter(f"{text!r} is not a regular expression: {error}") from error
    return text


@click.command()
@job_options
@click.option(
    "--topics",
    metavar="REGEX",
    callback=_pattern,
    help="The topics, as a regular expression. Default: all except those that begin with two underscores.",
)
@click.option(
    "--continuous",
    is_flag=True,
    help="Archive new records as they arrive, until Ctrl-C, instead of ending with the current ones.",
)
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Interval of the micro-batches with --continuous.",
)
@click.option(
    "--batch-records",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    metavar="N",
    help="Maximum number of records in a micro-batch.",
)
@click.option(
    "--skip-lost",
    is_flag=True,
    help="Continue if records were removed before they were archived, instead of failing.",
)
@click.option(
    "--committed",
    is_flag=True,
    help="Leave out records of aborted transactions, and wait for the end of open ones.",
)
def archive(
    topics: str | None,
    continuous: bool,
    every_s: float,
    batch_records: int,
    skip_lost: bool,
    committed: bool,
    **options: Any,  # noqa: ANN401
) -> None:
    """Copy the records of topics into a table of Parquet files, each exactly once.

    Resumes where the last run ended, and includes new topics and partitions.
    """
    from kbroker_pipeline import archive as job
    from kbroker_pipeline import archive_page, sources

    common = _common(options)
    settings = job.Settings(
        common.data_dir,
        topics or job.USERS_TOPICS,
        batch_records,
        every_s if continuous else None,
        fail_on_data_loss=not skip_lost,
        committed=committed,
    )
    with working("archive", common) as work:
        began_s = time.monotonic()
        before = job.Totals.of(work.store.last())
        work.progress.tell("archiving", job.waiting(before, sources.parts(common.data_dir), settings.pattern))
        try:
            job.archive(work.spark, work.store, settings, work.progress.add, common.moment_ms)
        except KeyboardInterrupt:
            if not continuous:
                raise
        totals = job.Totals.of(work.store.last())
        archived = archive_page.Archived(
            data_dir=str(work.directory.path),
            engines=work.directory.engines,
            table=str(work.store.table(job.TABLE)),
            now_ms=common.moment_ms(),
            added=totals.rows - before.rows,
            seconds=time.monotonic() - began_s,
            totals=totals,
            batches=job.batches(work.store),
            parts=sources.parts(common.data_dir),
        )
        rows = [
            {**row._asdict(), "behind": row.behind} for row in archive_page.part_rows(totals, archived.parts)
        ]
        facts = {
            "records": totals.rows,
            "added": archived.added,
            "files": totals.files,
            "size_bytes": totals.size_bytes,
            "table": archived.table,
        }
        finish(work, common, archive_page.page(archived), {"partitions": rows}, facts)


@click.command("queue-health")
@job_options
@click.option(
    "--stuck-after", "stuck_after_s", type=click.FloatRange(min=0), default=60.0, show_default=True,
    metavar="SECONDS",
    help="How long a start offset must not have moved, despite backlog, to be reported.",
)  # fmt: skip
@click.option(
    "--history/--no-history",
    default=True,
    show_default=True,
    help="Also search the state's history for records that were given up.",
)
def queue_health(stuck_after_s: float, history: bool, **options: Any) -> None:  # noqa: ANN401
    """Take a snapshot of all share groups and compare it with those of earlier runs."""
    from kbroker_pipeline import health_job, health_page, health_rows

    common = _common(options)
    with working("queue-health", common) as work:
        settings = health_job.Settings(stuck_after_s, history)
        found = health_job.queue_health(
            work.spark, work.store, work.directory, settings, common.moment_ms(), work.progress.tell
        )
        facts = {
            "snapshots": found.runs,
            "changed": found.changed,
            "oldest_unfinished_s": health_rows.oldest_age_s(found),
            "stuck": len(found.stuck),
            "unreadable": len(found.problems),
        }
        names = (
            "group",
            "topic",
            "partition",
            "start_offset",
            "log_end",
            "backlog",
            "acknowledged",
            "archived",
            "dead_lettered",
            "redelivered",
            "max_deliveries",
        )
        shares = [{name: getattr(row, name) for name in names} for row in found.shares]
        stuck = [
            {
                "group": each.row.group,
                "topic": each.row.topic,
                "partition": each.row.partition,
                "start_offset": each.row.start_offset,
                "stuck_for_s": (found.now_ms - each.since_ms) / 1000,
                "backlog": each.row.backlog,
                "head_is": each.row.head_state,
            }
            for each in found.stuck
        ]
        rows = {
            "share_partitions": shares,
            "stuck_heads": stuck,
            "worst_records": [row._asdict() for row in found.worst[:10]],
        }
        finish(work, common, health_page.page(found), rows, facts)


@click.command("dead-letter-report")
@job_options
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="A dead letter topic; may be repeated. Default: all dead letter topics.",
)
def dead_letter_report(topics: tuple[str, ...], **options: Any) -> None:  # noqa: ANN401
    """Collect dead letters and their original records: causes, sources, keys, first and last
    time."""
    from kbroker_pipeline import letters_job, letters_page
    from kbroker_pipeline.report import human_time

    common = _common(options)
    with working("dead-letter-report", common) as work:
        found = letters_job.dead_letter_report(
            work.spark, work.store, work.directory, topics, common.moment_ms(), work.progress.tell
        )
        facts = {
            "dead_letters": found.letters,
            "added": found.added,
            "rejected": found.rejected,
            "exhausted": found.exhausted,
            "originals_still_there": found.originals,
            "first_seen": human_time(found.first_ms),
            "last_seen": human_time(found.last_ms),
        }
        rows = {
            "sources": [row._asdict() for row in found.sources],
            "top_offenders": [row._asdict() for row in found.keys[:10]],
        }
        finish(work, common, letters_page.page(found), rows, facts)


@click.command()
@job_options
def verify(**options: Any) -> int:  # noqa: ANN401
    """Read the whole data directory and report errors. The exit code is 1 if there are errors, or
    if dead letters cannot be read."""
    from kbroker_pipeline import verify_job, verify_page

    common = _common(options)
    with working("verify", common) as work:
        found = verify_job.verify(
            work.spark, work.store, work.directory, common.moment_ms(), work.progress.tell
        )
        facts = {
            "errors": found.errors,
            "notes": len(found.findings) - found.errors,
            "batches": sum(log.batches for log in found.logs),
            "records": sum(log.records for log in found.logs),
            "size_bytes": sum(log.size_bytes for log in found.logs),
            "share_partitions": found.share_partitions,
            "dead_letters": None if found.unread else found.letters,
        }
        finish(
            work,
            common,
            verify_page.page(found),
            {"findings": [row._asdict() for row in found.findings]},
            facts,
        )
        return Exit.REFUSED if found.errors or found.unread else Exit.OK
