"""The page of dead-letter-report: the records that groups gave up, with their sources and
causes."""

from __future__ import annotations

from collections import defaultdict
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
    Tone,
    counted,
    human_count,
    human_duration,
    human_share,
    human_time,
)

_MOST_BARS = 25
_COLOURS = {"rejected": "@pink", "exhausted": "@orange", "expired": "@violet", "other": "@grey"}
_TONES: dict[str, Tone] = {
    "same": "good",
    "gone": "neutral",
    "differs": "bad",
    "there, not copied": "neutral",
}


class SourceRow(NamedTuple):
    """Dead letters of one partition and group."""

    source_topic: str
    source_partition: int
    group: str
    letters: int
    rejected: int
    exhausted: int
    most_deliveries: int
    first_ms: int
    last_ms: int


class KeyRow(NamedTuple):
    """Dead letters of one key, of which `key` is an excerpt."""

    key: str
    source_topic: str
    group: str
    letters: int
    rejected: int
    exhausted: int
    most_deliveries: int
    first_ms: int
    last_ms: int


class LetterRow(NamedTuple):
    """One dead letter. `original`: `same` and `differs` compare the original record with the copy
    in the dead letter; `gone`: the log no longer has it."""

    at_ms: int
    cause: str
    group: str
    source_topic: str
    source_partition: int
    source_offset: int
    delivery_count: int
    place: str
    original: str
    key: str | None
    value: str | None


class Letters(NamedTuple):
    """The data of the page.

    - `originals`: the number of dead letters whose original record still exists.
    - `copies`: the number of dead letters with a copied key or value.
    - `times`: (start of an interval of `width_ms`, cause, dead letters).
    - `deliveries`: (cause, delivery count, dead letters).
    """

    data_dir: str
    engines: str
    now_ms: int
    topics: Sequence[str]
    added: int
    letters: int
    originals: int
    copies: int
    first_ms: int | None
    last_ms: int | None
    width_ms: int
    times: Sequence[tuple[int, str, int]]
    deliveries: Sequence[tuple[str, int, int]]
    sources: Sequence[SourceRow]
    keys: Sequence[KeyRow]
    newest: Sequence[LetterRow]

    @property
    def rejected(self) -> int:
        return sum(row.rejected for row in self.sources)

    @property
    def exhausted(self) -> int:
        return sum(row.exhausted for row in self.sources)


def page(found: Letters) -> Page:
    groups, topics = {row.group for row in found.sources}, {row.source_topic for row in found.sources}
    differing = [row for row in found.newest if row.original == "differs"]
    return Page(
        title="Dead letters",
        summary=f"{counted(found.letters, 'record')} of {counted(len(topics), 'topic')}, given up by "
        f"{counted(len(groups), 'share group')}."
        if found.letters
        else "No group has given up a record into a dead letter topic.",
        status=Tagged(f"{human_count(found.added)} new", "warn")
        if found.added
        else Tagged("nothing new", "good"),
        facts=(
            ("Data directory", found.data_dir),
            ("Engines", found.engines),
            ("Run", human_time(found.now_ms)),
            ("Dead letter topics", ", ".join(found.topics) or "none"),
        ),
        headlines=_headlines(found),
        notices=[
            Notice(
                f"{len(differing)} copies differ",
                "from the record at the offset that their dead letter names: was that topic deleted and "
                "recreated?",
            )
        ]
        if differing
        else (),
        sections=(
            Section("When and why", "", [_times(found), _deliveries(found)]),
            Section("Sources and keys", "", [_sources(found), _keys(found)]),
            Section("Top offenders", "The keys with the most dead letters.", [_key_table(found)], wide=True),
            Section("Sources", "", [_source_table(found)], wide=True),
            Section(
                "Newest dead letters",
                f"The last {len(found.newest)} of {found.letters:,}.",
                [_newest(found)],
                wide=True,
            ),
        ),
    )


def _headlines(found: Letters) -> list[Headline]:
    since = None if found.last_ms is None else max(0, found.now_ms - found.last_ms) / 1000
    return [
        Headline(
            "Dead letters",
            human_count(found.letters),
            f"{human_count(found.added)} new in this run",
            "warn" if found.added else "neutral",
        ),
        Headline(
            "Rejected",
            human_count(found.rejected),
            f"{human_share(found.rejected, found.letters)}: by a consumer",
        ),
        Headline(
            "Deliveries exhausted",
            human_count(found.exhausted),
            f"{human_share(found.exhausted, found.letters)}: released or expired too often",
        ),
        Headline("Originals", human_share(found.originals, found.letters), "still in their logs"),
        Headline(
            "First seen",
            "-" if found.first_ms is None else human_time(found.first_ms)[:10],
            human_time(found.first_ms)[11:],
        ),
        Headline(
            "Last seen", "-" if since is None else f"{human_duration(since)} ago", human_time(found.last_ms)
        ),
    ]


def _times(found: Letters) -> Figure:
    series: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for at_ms, cause, letters in found.times:
        series[cause].append((at_ms, letters))
    note = f"By the dead letters' timestamps, one bar for {human_duration(found.width_ms / 1000)}."
    return figures.columns("Over time", note, series, unit="dead letters", time=True, colours=_COLOURS)


def _deliveries(found: Letters) -> Figure:
    series: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for cause, count, letters in found.deliveries:
        series[cause].append((str(count), letters))
    note = "The delivery counts of the records when they were given up."
    return figures.columns(
        "Deliveries", note, series, unit="dead letters", x_title="deliveries of a record", colours=_COLOURS
    )


def _by_cause(rows: Sequence[SourceRow | KeyRow], names: Sequence[str]) -> dict[str, list[tuple[str, float]]]:
    pairs = list(zip(names, rows, strict=True))[:_MOST_BARS]
    found: dict[str, list[tuple[str, float]]] = {
        "rejected": [(name, row.rejected) for name, row in pairs],
        "exhausted": [(name, row.exhausted) for name, row in pairs],
        "other": [(name, row.letters - row.rejected - row.exhausted) for name, row in pairs],
    }
    return {
        cause: points
        for cause, points in found.items()
        if cause != "other" or any(count for _, count in points)
    }


def _sources(found: Letters) -> Figure:
    names = [f"{row.source_topic}-{row.source_partition} · {row.group}" for row in found.sources]
    return figures.rows(
        "Partitions",
        "The sources of the records.",
        _by_cause(found.sources, names),
        unit="dead letters",
        colours=_COLOURS,
    )


def _keys(found: Letters) -> Figure:
    names = [f"{row.key[:32]} · {row.source_topic}" for row in found.keys]
    return figures.rows(
        "Keys",
        "The records' keys, if they have one.",
        _by_cause(found.keys[:12], names[:12]),
        unit="dead letters",
        colours=_COLOURS,
    )


def _key_table(found: Letters) -> Table:
    titles = (
        "Key",
        "Topic",
        "Group",
        "Dead letters",
        "Rejected",
        "Used up",
        "Most deliveries",
        "First seen",
        "Last seen",
    )
    return Table(
        "",
        [
            (name, "right" if name in ("Dead letters", "Rejected", "Used up", "Most deliveries") else "left")
            for name in titles
        ],
        [
            (Tagged(row.key, mono=True), *row[1:7], human_time(row.first_ms), human_time(row.last_ms))
            for row in found.keys
        ],
        empty="No record has a key.",
    )


def _source_table(found: Letters) -> Table:
    titles = (
        "Topic",
        "Partition",
        "Group",
        "Dead letters",
        "Rejected",
        "Used up",
        "Most deliveries",
        "First seen",
        "Last seen",
    )
    return Table(
        "",
        [(name, "left" if name in ("Topic", "Group") or "seen" in name else "right") for name in titles],
        [(*row[:7], human_time(row.first_ms), human_time(row.last_ms)) for row in found.sources],
        empty="There are no dead letters.",
    )


def _newest(found: Letters) -> Table:
    def cells(row: LetterRow) -> tuple[Cell, ...]:
        return (
            human_time(row.at_ms)[:-4],
            Tagged(row.cause, "bad" if row.cause == "rejected" else "warn"),
            row.group,
            f"{row.source_topic}-{row.source_partition}:{row.source_offset}",
            row.delivery_count,
            Tagged(row.original, _TONES.get(row.original, "neutral")),
            None if row.key is None else Tagged(row.key, mono=True),
            None if row.value is None else Tagged(row.value, mono=True),
            row.place,
        )

    titles = ("Time", "Cause", "Group", "Record", "Deliveries", "Original", "Key", "Value", "Dead letter at")
    return Table(
        "",
        [(name, "right" if name == "Deliveries" else "left") for name in titles],
        [cells(row) for row in found.newest],
    )
