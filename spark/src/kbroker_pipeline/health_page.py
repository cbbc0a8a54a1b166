"""The page of queue-health: the last snapshot, and the development over the runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from kbroker_pipeline import figures
from kbroker_pipeline.health_rows import Health, Point, ShareRow, Stuck, oldest_age_s, rate_per_s
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

_MOST_BARS = 40
_MOST_NOTICES = 5


def page(health: Health) -> Page:
    status = Tagged("needs attention", "warn") if _notices(health) else Tagged("healthy", "good")
    groups, topics = {row.group for row in health.shares}, {row.topic for row in health.shares}
    return Page(
        title="Queue health",
        summary=f"{counted(len(groups), 'share group')} on {counted(len(topics), 'topic')}: progress, "
        "backlog "
        "and redeliveries.",
        status=status,
        facts=(
            ("Data directory", health.data_dir),
            ("Engines", health.engine),
            ("Taken", human_time(health.now_ms)),
            (
                "Snapshots",
                f"{health.runs:,}" + ("" if health.changed else ", nothing changed since the last one"),
            ),
        ),
        headlines=_headlines(health),
        notices=_notices(health),
        sections=(
            Section("Over time", "One point per run that found something changed.", _over_time(health)),
            Section(
                "Now",
                "The records of each share-partition from its start offset to the end of its log.",
                _now(health),
            ),
            Section("Stuck at the head", "", [_stuck_table(health)], wide=True),
            Section("Worst records", "", [_worst_table(health)], wide=True),
            Section("Share-partitions", "", [_share_table(health)], wide=True),
        ),
    )


def _headlines(health: Health) -> list[Headline]:
    backlog = sum(row.backlog or 0 for row in health.shares)
    delivered, redelivered = (
        sum(row.delivered for row in health.shares),
        sum(row.redelivered for row in health.shares),
    )
    archived, letters = (
        sum(row.archived for row in health.shares),
        sum(row.dead_lettered for row in health.shares),
    )
    rate = rate_per_s(health, lambda point: point.finished)
    age = oldest_age_s(health)
    stuck: Tone = "bad" if health.stuck else "good"
    return [
        Headline("Backlog", human_count(backlog), "records not finished", "neutral" if backlog else "good"),
        Headline("Oldest unfinished", human_duration(age), "since it was produced"),
        Headline(
            "Acknowledged",
            human_count(sum(row.acknowledged for row in health.shares)),
            "" if rate is None else f"{human_count(rate)} finished per s between the last two snapshots",
        ),
        Headline(
            "Redelivered",
            human_share(redelivered, delivered),
            f"{human_count(redelivered)} of {human_count(delivered)} records in the window",
            "warn" if redelivered * 10 > delivered else "neutral",
        ),
        Headline(
            "Given up",
            human_count(archived),
            f"{human_count(letters)} with a dead letter",
            "warn" if archived else "good",
        ),
        Headline("Stuck heads", str(len(health.stuck)), "start offsets that do not move", stuck),
    ]


def _notices(health: Health) -> list[Notice]:
    found = [
        Notice(
            each.row.place,
            f"has not moved from offset {each.row.start_offset:,} for "
            f"{human_duration((health.now_ms - each.since_ms) / 1000)}, with "
            f"a backlog of {each.row.backlog or 0:,} records; the record there is {_head(each.row)}. "
            + (
                "Later records were finished meanwhile: look at that record."
                if each.ahead_moves
                else "No later record was finished."
            ),
            "bad",
        )
        for each in health.stuck[:_MOST_NOTICES]
    ]
    if len(health.stuck) > _MOST_NOTICES:
        found.append(
            Notice(
                f"{len(health.stuck) - _MOST_NOTICES} more",
                "share-partitions are stuck: see the table.",
                "bad",
            )
        )
    found += [
        Notice(
            row.place,
            f"waits at offset {row.start_offset:,} for a dead letter that could not be written: "
            "check the dead letter topic.",
        )
        for row in health.shares
        if row.head_state == "archiving"
    ][:_MOST_NOTICES]
    return found + [Notice("Unreadable", problem, "bad") for problem in health.problems[:_MOST_NOTICES]]


def _head(row: ShareRow) -> str:
    if row.head_state == "not delivered":
        return "not delivered yet, or being delivered for the first time"
    return f"{row.head_state}, delivered {row.head_deliveries} times"


def _over_time(health: Health) -> list[Figure]:
    def lines(of: Callable[[Point], float | None]) -> dict[str, list[tuple[int, float]]]:
        series: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for point in health.points:
            value = of(point)
            if value is not None:
                series[point.place].append((point.taken_ms, value))
        return dict(series)

    totals: dict[str, dict[int, float]] = {
        "produced": defaultdict(float),
        "acknowledged": defaultdict(float),
        "given up": defaultdict(float),
    }
    for point in health.points:
        for name, value in zip(totals, (point.produced, point.acknowledged, point.archived), strict=True):
            totals[name][point.taken_ms] += value
    flow = {name: sorted(values.items()) for name, values in totals.items()}
    return [
        figures.over_time(
            "Backlog",
            "Records that a group has not finished.",
            lines(lambda point: point.backlog),
            unit="records",
            stacked=True,
        ),
        figures.over_time(
            "Produced and finished",
            "Totals of all groups. A record that several groups read is counted once for each.",
            flow,
            unit="records",
            colours={"produced": "@blue", "acknowledged": "@green", "given up": "@red"},
            dashed=frozenset({"produced"}),
        ),
        figures.over_time(
            "Age of the oldest unfinished record",
            "By its timestamp, at each snapshot.",
            lines(
                lambda point: (
                    None if point.oldest_ms is None else max(0, point.taken_ms - point.oldest_ms) / 1000
                )
            ),
            unit="s",
        ),
        figures.over_time(
            "Given up",
            "Rejected, or delivered up to the limit.",
            lines(lambda point: point.archived),
            unit="records",
        ),
    ]


def _now(health: Health) -> list[Figure]:
    most = sorted(health.shares, key=lambda row: -(row.backlog or 0))[:_MOST_BARS]
    parts: dict[str, list[tuple[str, float]]] = {
        "not delivered yet": [],
        "came back": [],
        "waits for dead letter": [],
        "finished ahead": [],
    }
    for row in most:
        fresh = max(0, (row.backlog or 0) - row.waiting_again - row.archiving)
        for part, value in zip(
            parts.values(), (fresh, row.waiting_again, row.archiving, row.finished_ahead), strict=True
        ):
            part.append((row.place, value))
    by_group: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for each in sorted(health.counts):
        by_group[each.group].append((str(each.delivery_count), each.records))
    note = (
        "Records in their first delivery are shown as not delivered yet, since acquisitions are not stored."
    )
    if len(health.shares) > _MOST_BARS:
        note += f" The {_MOST_BARS} with the largest backlog of {len(health.shares):,}."
    return [
        figures.rows(
            "From start offset to end of log",
            note,
            parts,
            unit="records",
            colours={
                "not delivered yet": "@grey",
                "came back": "@orange",
                "waits for dead letter": "@red",
                "finished ahead": "@green",
            },
        ),
        figures.columns(
            "Delivery counts",
            "The delivery counts of records with stored state. The scale is logarithmic.",
            by_group,
            unit="records",
            x_title="deliveries of a record",
            log=True,
        ),
    ]


def _stuck_table(health: Health) -> Table:
    def cells(each: Stuck) -> tuple[Cell, ...]:
        row = each.row
        why = Tagged("the head blocks", "bad") if each.ahead_moves else Tagged("nothing is finished", "warn")
        since = human_duration((health.now_ms - each.since_ms) / 1000)
        return (
            row.group,
            row.topic,
            row.partition,
            row.start_offset,
            since,
            row.backlog,
            row.head_state,
            row.head_deliveries,
            why,
        )

    titles = ("Group", "Topic", "Partition", "Start offset", "For", "Backlog", "Head is", "Deliveries", "")
    rights = {"Partition", "Start offset", "For", "Backlog", "Deliveries"}
    return Table(
        "",
        [(name, "right" if name in rights else "left") for name in titles],
        [cells(each) for each in health.stuck],
        empty="No start offset with backlog has stayed the same between runs.",
    )


_TONES: dict[str, Tone] = {"available": "warn", "archiving": "bad", "archived": "bad", "acknowledged": "good"}


def _worst_table(health: Health) -> Table:
    return Table(
        "",
        [
            ("Deliveries", "right"),
            ("State", "left"),
            ("Group", "left"),
            ("Topic", "left"),
            ("Partition", "right"),
            ("Offset", "right"),
            ("Produced", "left"),
            ("Key", "left"),
            ("Value", "left"),
        ],
        [
            (
                row.delivery_count,
                Tagged(row.state, _TONES.get(row.state, "neutral")),
                row.group,
                row.topic,
                row.partition,
                row.offset,
                human_time(row.timestamp_ms),
                _bytes(row.key),
                _bytes(row.value),
            )
            for row in health.worst
        ],
        empty="No record was delivered more than once.",
    )


def _bytes(text: str | None) -> Cell:
    return None if text is None else Tagged(text, mono=True)


def _share_table(health: Health) -> Table:
    titles = (
        "Group",
        "Topic",
        "Partition",
        "Start offset",
        "Log end",
        "Backlog",
        "Oldest",
        "Acknowledged",
        "Given up",
        "Dead letters",
        "Came back",
        "Redelivered",
        "Most deliveries",
    )
    rows = [
        (
            row.group,
            row.topic,
            row.partition,
            row.start_offset,
            row.log_end,
            row.backlog,
            None if row.oldest_ms is None else human_duration(max(0, health.now_ms - row.oldest_ms) / 1000),
            row.acknowledged,
            row.archived,
            row.dead_lettered,
            row.waiting_again,
            human_share(row.redelivered, row.delivered),
            row.max_deliveries,
        )
        for row in health.shares
    ]
    return Table(
        "",
        [(name, "left" if name in ("Group", "Topic") else "right") for name in titles],
        rows,
        empty="There is no share-group state.",
    )
