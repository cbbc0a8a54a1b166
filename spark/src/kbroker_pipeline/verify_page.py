"""The page of verify: the logs, the checks and the findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from kbroker_pipeline import figures
from kbroker_pipeline.report import (
    Cell,
    Figure,
    Headline,
    Notice,
    Page,
    Section,
    Table,
    Tagged,
    counted,
    human_bytes,
    human_count,
    human_time,
)

_MOST_BARS = 40
_MOST_ROWS = 500
_MOST_MARKS = 500


class FindingRow(NamedTuple):
    """One error, or (severity `note`) possible error. `topic` is None if the topic does not
    exist."""

    check: str
    severity: str
    topic: str | None
    topic_id: str | None
    partition: int
    group: str | None
    first_offset: int | None
    last_offset: int | None
    detail: str

    @property
    def log(self) -> str:
        return f"{self.topic or self.topic_id}-{self.partition}"


class LogRow(NamedTuple):
    """A log that was read; `start` and `end` are the offsets that clients see."""

    topic: str
    partition: int
    start: int
    end: int
    batches: int
    records: int
    size_bytes: int

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


class Verified(NamedTuple):
    """The data of the page.

    - `checks`: name, input and meaning.
    - `changed`: the findings differ from those of the last run.
    - `unread`: why dead letters could not be read, and therefore were not checked.
    """

    data_dir: str
    engines: str
    now_ms: int
    changed: bool
    checks: Sequence[tuple[str, str, str]]
    findings: Sequence[FindingRow]
    logs: Sequence[LogRow]
    share_partitions: int
    letters: int
    unread: str | None = None

    @property
    def errors(self) -> int:
        return sum(finding.severity == "error" for finding in self.findings)


def page(found: Verified) -> Page:
    errors, notes = found.errors, len(found.findings) - found.errors
    if errors:
        status = Tagged(counted(errors, "error"), "bad")
    elif found.unread is not None:
        status = Tagged("check incomplete", "bad")
    else:
        status = Tagged(counted(notes, "note"), "warn") if notes else Tagged("all checks passed", "good")
    return Page(
        title="Verification",
        summary=f"{len(found.checks)} checks on every record batch, all share-group state and all dead "
        "letters.",
        status=status,
        facts=(
            ("Data directory", found.data_dir),
            ("Engines", found.engines),
            ("Run", human_time(found.now_ms)),
            (
                "Findings",
                "the same as in the last run"
                if not found.changed
                else "new since the last run"
                if found.findings
                else "none",
            ),
        ),
        headlines=_headlines(found, errors, notes),
        notices=_notices(found),
        sections=(
            Section("Checks", "", [_check_table(found)], wide=True),
            Section("Logs", "", [_map(found), _sizes(found)]),
            Section("Findings", "", [_finding_table(found)], wide=True),
            Section("Logs read", "", [_log_table(found)], wide=True),
        ),
    )


def _notices(found: Verified) -> list[Notice]:
    notices = [
        Notice(_where(each), f"{each.check}: {each.detail}", "bad")
        for each in found.findings
        if each.severity == "error"
    ][:5]
    return (
        notices
        if found.unread is None
        else [Notice("Dead letters were not checked", found.unread, "bad"), *notices]
    )


def _where(finding: FindingRow) -> str:
    return finding.log if finding.group is None else f"{finding.group} · {finding.log}"


def _headlines(found: Verified, errors: int, notes: int) -> list[Headline]:
    return [
        Headline("Errors", human_count(errors), "damage or impossible state", "bad" if errors else "good"),
        Headline("Notes", human_count(notes), "may be harmless", "warn" if notes else "good"),
        Headline("Batches", human_count(sum(log.batches for log in found.logs)), "read, CRCs checked"),
        Headline(
            "Records",
            human_count(sum(log.records for log in found.logs)),
            human_bytes(sum(log.size_bytes for log in found.logs)),
        ),
        Headline("Share-partitions", human_count(found.share_partitions), "with state"),
        Headline("Dead letters", human_count(found.letters), "compared with the state"),
    ]


def _check_table(found: Verified) -> Table:
    counted = Counter(finding.check for finding in found.findings)
    bad = {finding.check for finding in found.findings if finding.severity == "error"}

    def result(name: str, about: str) -> Tagged:
        if about == "letters" and found.unread is not None:
            return Tagged("not done", "bad")
        if not counted[name]:
            return Tagged("passed", "good")
        return Tagged(f"{counted[name]:,} found", "bad" if name in bad else "warn")

    rows = [(name, meaning, about, result(name, about)) for name, about, meaning in found.checks]
    return Table("", [("Check", "left"), ("Meaning", "left"), ("Of", "left"), ("Result", "left")], rows)


def _map(found: Verified) -> Figure:
    marked = {finding.log for finding in found.findings}
    ordered = sorted(found.logs, key=lambda log: (log.name not in marked, -log.records))[:_MOST_BARS]
    bars = {
        "log": [
            (log.name, log.start, log.end)
            for log in sorted(ordered, key=lambda log: (log.topic, log.partition))
        ]
    }
    shown = {log.name for log in ordered}
    marks = [
        (
            each.log,
            each.first_offset or 0,
            each.check if each.group is None else f"{each.check}, group {each.group}",
        )
        for each in found.findings
        if each.log in shown
    ][:_MOST_MARKS]
    return figures.spans(
        "Offsets and findings", "The positions of the findings in each log.", bars, marks=marks
    )


def _sizes(found: Verified) -> Figure:
    largest = sorted(found.logs, key=lambda log: -log.size_bytes)[:_MOST_BARS]
    points = [(log.name, round(log.size_bytes / 2**20, 3)) for log in largest]
    return figures.rows(
        "Size",
        "The size of each log's record batches.",
        {"size": points},
        unit="MiB",
        colours={"size": "@teal"},
    )


def _finding_table(found: Verified) -> Table:
    def cells(row: FindingRow) -> tuple[Cell, ...]:
        level = Tagged(row.severity, "bad" if row.severity == "error" else "warn")
        return (
            level,
            row.check,
            row.topic or row.topic_id,
            row.partition,
            row.group,
            row.first_offset,
            row.last_offset,
            row.detail,
        )

    titles = ("", "Check", "Topic", "Partition", "Group", "First offset", "Last offset", "Detail")
    note = f"The first {_MOST_ROWS} of {len(found.findings):,}." if len(found.findings) > _MOST_ROWS else ""
    return Table(
        "",
        [
            (name, "right" if name in ("Partition", "First offset", "Last offset") else "left")
            for name in titles
        ],
        [cells(row) for row in found.findings[:_MOST_ROWS]],
        note=note,
        empty="There are no findings.",
    )


def _log_table(found: Verified) -> Table:
    titles = ("Topic", "Partition", "Log start", "Log end", "Batches", "Records", "Size")
    rows = [
        (log.topic, log.partition, log.start, log.end, log.batches, log.records, human_bytes(log.size_bytes))
        for log in found.logs
    ]
    return Table(
        "",
        [(name, "left" if name == "Topic" else "right") for name in titles],
        rows,
        empty="There are no logs.",
    )
