"""Invented numbers for the pages, with texts that would do harm if they were interpreted as
HTML."""

from __future__ import annotations

from kbroker_pipeline.archive import Batch, Span, Totals
from kbroker_pipeline.archive_page import Archived
from kbroker_pipeline.checks import CHECKS
from kbroker_pipeline.health_rows import CountRow, Health, Point, ShareRow, Stuck, WorstRow
from kbroker_pipeline.letters_page import KeyRow, LetterRow, Letters, SourceRow
from kbroker_pipeline.verify_page import FindingRow, LogRow, Verified

NOW_MS = 1_795_334_400_000
NASTY = '</script><img src="http://example.org/x" onerror="alert(1)">&<!--'
MINUTE_MS = 60_000


def share(group: str, partition: int, backlog: int, head_state: str = "available") -> ShareRow:
    end = 120_000 + 3000 * partition
    return ShareRow(
        group=group, topic="orders", partition=partition, taken_ms=NOW_MS, log_start=0, log_end=end,
        start_offset=end - backlog - 500,
        state_epoch=1, produced=end, finished=end - backlog, acknowledged=end - backlog - 50, archived=50,
        dead_lettered=40, given_up=50,
        backlog=backlog, waiting_again=backlog // 5, archiving=0, finished_ahead=500, delivered=800,
        redelivered=160,
        deliveries=1200, max_deliveries=4, oldest_offset=end - backlog - 500,
        oldest_ms=NOW_MS - 7 * MINUTE_MS * (partition + 1), head_state=head_state, head_deliveries=3,
    )  # fmt: skip


def health(*, empty: bool = False) -> Health:
    if empty:
        return Health("/data", "log segment, state segment", NOW_MS, True, 0, (), (), (), (), (), ())
    shares = [share("billing", partition, 3000 + 900 * partition) for partition in range(4)] + [
        share("mailer", 0, 40, "archiving")
    ]
    points = [
        Point(
            NOW_MS - (9 - run) * 5 * MINUTE_MS,
            group,
            "orders",
            9000 * run,
            8000 * run,
            7900 * run,
            100 * run,
            90 * run,
            1000 * run,
            None,
        )
        for run in range(10)
        for group in ("billing", "mailer")
    ]
    counts = [CountRow("billing", count, 40_000 // 8**count + 1) for count in range(1, 6)] + [
        CountRow("mailer", 1, 12)
    ]
    worst = [
        WorstRow("billing", "orders", 1, number, "archived", 5, NOW_MS, NASTY, f"order {number}")
        for number in range(12)
    ]
    stuck = [Stuck(shares[2], NOW_MS - 25 * MINUTE_MS, True), Stuck(shares[4], NOW_MS - 3 * MINUTE_MS, False)]
    return Health(
        "/data",
        "log segment, state lmdb",
        NOW_MS,
        True,
        10,
        shares,
        points,
        stuck,
        counts,
        worst,
        ["state of group x on y-0: bad"],
    )


def archived(*, empty: bool = False) -> Archived:
    if empty:
        return Archived(
            "/data", "log segment, state segment", "/out/archive", NOW_MS, 0, 0.4, Totals(), (), ()
        )
    spans = {
        topic: {str(number): Span(90_000, 10 * number, 95_000) for number in range(4)}
        for topic in ("orders", NASTY)
    }
    days = {"orders": {"2026-11-21": 300_000, "2026-11-22": 60_000}, NASTY: {"2026-11-22": 360_000}}
    batches = [Batch(NOW_MS - number * MINUTE_MS, 2.5, 36_000 + number, 1 << 20) for number in range(20)]
    return Archived(
        "/data",
        "log segment",
        "/out/archive",
        NOW_MS,
        720_000,
        50.0,
        Totals(spans, days, 20 << 20, 160),
        batches,
        (),
    )


def letters(*, empty: bool = False) -> Letters:
    if empty:
        return Letters("/data", "log segment", NOW_MS, (), 0, 0, 0, 0, None, None, 1000, (), (), (), (), ())
    first_ms = NOW_MS - 60 * MINUTE_MS
    times = [
        (first_ms + number * MINUTE_MS, cause, number % 7 + 1)
        for number in range(60)
        for cause in ("exhausted", "rejected")
    ]
    sources = [
        SourceRow("orders", number, "billing", 60 - number, 20, 40 - number, 5, first_ms, NOW_MS - 9000)
        for number in range(4)
    ]
    keys = [
        KeyRow(
            f"customer-{number:04}",
            "orders",
            "billing",
            30 - number,
            number,
            20 - 2 * number,
            5,
            first_ms,
            NOW_MS,
        )
        for number in range(15)
    ]
    keys.append(KeyRow(NASTY, "orders", "billing", 1, 0, 1, 5, first_ms, NOW_MS))
    states = ("same", "gone", "differs", "there, not copied")
    newest = [
        LetterRow(
            NOW_MS - number * 900,
            "rejected",
            "billing",
            "orders",
            1,
            number,
            2,
            f"dlq.orders 0:{number}",
            states[number % 4],
            NASTY,
            None,
        )
        for number in range(30)
    ]
    deliveries = [("exhausted", 5, 200), ("rejected", 1, 90), ("rejected", 2, 4)]
    return Letters(
        "/data", "log segment", NOW_MS, ("dlq.orders",), 17, 234, 200, 200, first_ms, NOW_MS - 9000,
        MINUTE_MS, times, deliveries, sources,
        keys, newest,
    )  # fmt: skip


def verified(*, empty: bool = False) -> Verified:
    checks = [(check.name, check.about, check.meaning) for check in CHECKS]
    if empty:
        return Verified("/data", "log segment", NOW_MS, False, checks, (), (), 0, 0)
    logs = [
        LogRow(topic, number, 0, 90_000 + number, 700, 90_000, 9 << 20)
        for topic in ("orders", NASTY)
        for number in range(3)
    ]
    findings = [
        FindingRow(CHECKS[0].name, "error", "orders", "id", 1, None, 4000, 4100, "its CRC is wrong"),
        FindingRow(
            CHECKS[7].name, "error", "orders", "id", 2, "billing", 91_000, 91_004, "the log ends at 90002"
        ),
        FindingRow(CHECKS[9].name, "note", NASTY, "id", 0, "billing", 7, 7, "2 dead letters"),
    ]
    return Verified("/data", "log segment", NOW_MS, True, checks, findings, logs, 8, 234)
