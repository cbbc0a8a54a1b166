"""The page of archive: the archived part of each log, and the commits over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kbroker_pipeline import figures
from kbroker_pipeline.archive import Batch, Totals
from kbroker_pipeline.report import (
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
    human_duration,
    human_time,
)
from kbroker_pipeline.sources import Part

_MOST_BARS = 40
_MOST_SERIES = 8


class Archived(NamedTuple):
    """The data of the page. `parts`: the current logs. `added`: records added by this run."""

    data_dir: str
    engines: str
    table: str
    now_ms: int
    added: int
    seconds: float
    totals: Totals
    batches: Sequence[Batch]
    parts: Sequence[Part]


class PartRow(NamedTuple):
    """An archived partition and its log. `behind`: offsets at the end of the log that are not
    archived yet. `log_start` and `log_end` are None if the log was deleted."""

    topic: str
    partition: int
    records: int
    first: int
    last: int
    log_start: int | None
    log_end: int | None

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def behind(self) -> int | None:
        return None if self.log_end is None else max(0, self.log_end - self.last - 1)

    @property
    def only_here(self) -> int:
        """The number of archived offsets that the log no longer has."""
        return max(
            0, min(self.last + 1, self.last + 1 if self.log_start is None else self.log_start) - self.first
        )


def part_rows(totals: Totals, parts: Sequence[Part]) -> list[PartRow]:
    logs = {(part.topic.name, part.partition): part for part in parts}
    found = []
    for topic, spans in sorted(totals.spans.items()):
        for number, span in sorted(spans.items(), key=lambda each: int(each[0])):
            part = logs.get((topic, int(number)))
            ends = (None, None) if part is None else (part.start, part.end)
            found.append(PartRow(topic, int(number), span.rows, span.first or 0, span.last or 0, *ends))
    return found


def page(archived: Archived) -> Page:
    rows, totals = part_rows(archived.totals, archived.parts), archived.totals
    behind = sum(row.behind or 0 for row in rows)
    status = (
        Tagged(f"{counted(archived.added, 'record')} added", "good")
        if archived.added
        else Tagged("nothing new", "neutral")
    )
    return Page(
        title="Archive",
        summary=f"{counted(totals.rows, 'record')} of {counted(len(totals.spans), 'topic')} as Parquet, "
        "each exactly once.",
        status=status,
        facts=(
            ("Data directory", archived.data_dir),
            ("Engines", archived.engines),
            ("Table", archived.table),
            ("Run", human_time(archived.now_ms)),
        ),
        headlines=_headlines(archived, rows, behind),
        notices=[
            Notice(
                row.name,
                f"{row.only_here:,} offsets are only in the archive: "
                f"its log now begins at {row.log_start:,}.",
                "neutral",
            )
            for row in rows
            if row.only_here and row.log_start is not None
        ][:5],
        sections=(
            Section("Contents", "", [_coverage(rows), _sizes(totals)]),
            Section("Over time", "", [_rate(archived.batches), _days(totals)]),
            Section("Partitions", "", [_table(rows)], wide=True),
        ),
    )


def _headlines(archived: Archived, rows: Sequence[PartRow], behind: int) -> list[Headline]:
    totals, rate = archived.totals, archived.added / archived.seconds if archived.seconds else 0
    each = totals.size_bytes / totals.rows if totals.rows else 0
    return [
        Headline("Records", human_count(totals.rows), f"in {len(rows)} partitions"),
        Headline(
            "Added", human_count(archived.added), "by this run", "good" if archived.added else "neutral"
        ),
        Headline("Behind", human_count(behind), "offsets not archived yet", "warn" if behind else "good"),
        Headline(
            "Parquet", human_bytes(totals.size_bytes), f"{totals.files:,} files, {each:.0f} B per record"
        ),
        Headline(
            "This run",
            human_duration(archived.seconds),
            f"{human_count(rate)} records per s" if archived.added else "nothing to do",
        ),
    ]


def _coverage(rows: Sequence[PartRow]) -> Figure:
    most = sorted(rows, key=lambda row: -row.records)[:_MOST_BARS]
    most.sort(key=lambda row: (row.topic, row.partition))
    gone = [(row.name, row.first, row.first + row.only_here) for row in most if row.only_here]
    both = [(row.name, row.first + row.only_here, row.last + 1) for row in most]
    waiting = [
        (row.name, row.last + 1, row.log_end) for row in most if row.log_end is not None and row.behind
    ]
    bars: dict[str, list[tuple[str, int, int]]] = {
        "archived": both,
        "archived, gone from the log": gone,
        "not archived yet": waiting,
    }
    colours = {"archived": "@blue", "archived, gone from the log": "@violet", "not archived yet": "@grey"}
    return figures.spans(
        "Offsets", "The archived part of each log.", {k: v for k, v in bars.items() if v}, colours=colours
    )


def _sizes(totals: Totals) -> Figure:
    sums = {topic: sum(span.rows for span in spans.values()) for topic, spans in totals.spans.items()}
    points = sorted(sums.items(), key=lambda each: -each[1])[:_MOST_BARS]
    return figures.rows("Records by topic", "All archived records.", {"records": points}, unit="records")


def _rate(batches: Sequence[Batch]) -> Figure:
    points = [(batch.at_ms, batch.rows) for batch in batches if batch.rows][-200:]
    return figures.over_time(
        "Archived, commit by commit",
        "One point per micro-batch; the last 200.",
        {"records": points},
        unit="records",
        steps=False,
    )


def _days(totals: Totals) -> Figure:
    days: Mapping[str, Mapping[str, int]] = totals.days
    largest = sorted(days, key=lambda topic: -sum(days[topic].values()))[:_MOST_SERIES]
    series: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for topic, of_topic in days.items():
        name = topic if topic in largest else "other topics"
        for date, count in of_topic.items():
            series[name][date] += count
    return figures.columns(
        "Records by day",
        "The day of a record's timestamp, UTC.",
        {k: sorted(v.items()) for k, v in sorted(series.items())},
        unit="records",
    )


def _table(rows: Sequence[PartRow]) -> Table:
    titles = (
        "Topic",
        "Partition",
        "Records",
        "First offset",
        "Last offset",
        "Log start",
        "Log end",
        "Behind",
    )
    return Table(
        "",
        [(name, "left" if name == "Topic" else "right") for name in titles],
        [
            (
                row.topic,
                row.partition,
                row.records,
                row.first,
                row.last,
                row.log_start,
                row.log_end,
                row.behind,
            )
            for row in rows
        ],
        empty="Nothing is archived yet.",
    )
