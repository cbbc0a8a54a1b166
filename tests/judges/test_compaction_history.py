"""Each rule of the judge of compaction: a history that keeps it and one that breaks only that
rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.judges.compaction_events import (
    EntriesRead,
    EntryConfirmed,
    EntrySeen,
    EntrySent,
    LogScanned,
    PassNoted,
    Settled,
    Stage,
)
from tests.judges.compaction_history import CompactionHistorySettings, Report, check
from tests.judges.history import GroupSettings
from tests.judges.history_events import (
    AckAnswered,
    AckKind,
    AckSent,
    Delivered,
    Drained,
    Event,
    LifeBegan,
    LifeEnded,
    Outcome,
    PowerLost,
    Record,
    from_json,
    merge,
    to_json,
)
from tests.judges.transaction_events import CommitAsked, TransactionEnded, TransactionResult

MS = 1_000_000
RETENTION_MS = 1000
SETTINGS = CompactionHistorySettings(RETENTION_MS, GroupSettings(1000, 10), frozenset({"w"}))
LOG = "t", 0


class Story:
    """One log. `log` has what the final scan finds; the share group finishes it. Times in ms: the
    final scan is at 2000, the group drains before."""

    def __init__(self, topic: str = "t") -> None:
        self.topic = topic
        self.events: list[Event] = [LifeBegan(-MS, 1)]
        self.log: dict[int, str] = {}
        self.scans = 0

    def send(
        self, at: int, name: str, offset: int, key: str = "k", *, gone: bool = False, transaction: str = ""
    ) -> None:
        """Sent and confirmed; a name that begins with x is that of a tombstone."""
        is_tombstone = name.startswith("x")
        self.events.append(
            EntrySent(at * MS, "p", name, self.topic, 0, key, is_tombstone, transaction, digest=name)
        )
        self.events.append(EntryConfirmed(at * MS + 1, name, offset))
        if not gone:
            self.log[offset] = name

    def send_unanswered(self, at: int, name: str, key: str = "k") -> None:
        self.events.append(EntrySent(at * MS, "q", name, self.topic, 0, key, name[0] == "x", digest=name))

    def end(self, at: int, transaction: str, result: TransactionResult) -> None:
        if result is not TransactionResult.ABORTED:
            self.events.append(CommitAsked(at * MS - 1, transaction))
        self.events.append(TransactionEnded(at * MS, transaction, result))

    def scan(
        self,
        at: int,
        *offsets: int,
        until: int | None = None,
        start: int = 0,
        stop: int = 100,
        is_final: bool = False,
        is_committed: bool = True,
        names: dict[int, str] | None = None,
    ) -> None:
        self.scans += 1
        reader, end = f"r{self.scans}", (at + 10 if until is None else until) * MS
        found = names or self.log
        entries = tuple(EntrySeen(each, found[each], found[each]) for each in offsets)
        self.events += [
            EntriesRead(end, reader, self.topic, 0, entries, is_committed),
            LogScanned(end, at * MS, reader, self.topic, 0, start, stop, is_committed, is_final),
        ]

    def deliver(
        self, at: int, offset: int, name: str, kind: AckKind = AckKind.ACCEPT, count: int = 1
    ) -> None:
        record = Record(self.topic, 0, offset)
        self.events += [
            Delivered(at * MS, at * MS - 1, "c", record, name, count, name),
            AckSent(at * MS + 1, "c", record, kind),
            AckAnswered(at * MS + 2, "c", record, Outcome.CONFIRMED),
        ]

    def finish(self, *, start: int = 0, settings: CompactionHistorySettings = SETTINGS) -> Report:
        delivered = {event.record.offset for event in self.events if isinstance(event, Delivered)}
        for number, (offset, name) in enumerate(sorted(self.log.items())):
            if offset not in delivered:
                self.deliver(1500 + number, offset, name)
        self.events.append(Drained(1900 * MS))
        self.scan(2000, *sorted(self.log), is_final=True, start=start)
        return check(merge([self.events]), settings)


def rules_of(report: Report) -> set[str]:
    return {violation.rule for violation in report.violations}


def good() -> Story:
    """A key with two values, one that is deleted, one that only an aborted transaction has."""
    story = Story()
    story.send(0, "v1", 0, gone=True)
    story.send(1, "v2", 1)
    story.send(2, "w1", 2, "deleted", gone=True)
    story.send(3, "x1", 3, "deleted", gone=True)
    story.send(4, "a1", 4, "aborted", gone=True, transaction="t1")
    story.end(5, "t1", TransactionResult.ABORTED)
    return story


def test_a_good_history() -> None:
    story = good()
    story.scan(10, 1, 2, 3, names={1: "v2", 2: "w1", 3: "x1"})
    story.scan(20, 1, 3, 4, names={1: "v2", 3: "x1", 4: "a1"}, is_committed=False)
    report = story.finish()
    assert report.ok, str(report)
    done = report.statistics
    assert (done.entries, done.tombstones, done.aborted, done.cleaned) == (5, 1, 1, 4)
    assert (done.scans, done.acknowledgements) == (3, 1)
    assert done.checked == 6


def test_events_survive_json() -> None:
    story = good()
    story.scan(10, 1)
    story.events += [Settled(5, "t", 0, 9), PassNoted(6, Stage.REPLACING, "t-0")]
    assert [from_json(to_json(event)) for event in story.events] == story.events


def lost() -> Story:
    story = good()
    del story.log[1]
    return story


def lost_to_an_older_one() -> Story:
    story = good()
    story.log = {0: "v1"}
    return story


def resurrected() -> Story:
    story = good()
    story.scan(500, 1, 2, names={1: "v2", 2: "w1"})
    return story


def early() -> Story:
    story = good()
    story.scan(500, 1)
    return story


def late_tombstone() -> Story:
    story = good()
    story.log[3] = "x1"
    story.events.append(Settled(1000 * MS, "t", 0, 5))
    return story


def late_value() -> Story:
    story = good()
    story.log[0] = "v1"
    story.events.append(Settled(1000 * MS, "t", 0, 5))
    return story


def late_aborted() -> Story:
    story = good()
    story.scan(2000, 1, 4, names={1: "v2", 4: "a1"}, is_committed=False, is_final=True)
    story.events.append(Settled(1000 * MS, "t", 0, 5))
    return story


def aborted() -> Story:
    story = good()
    story.scan(10, 1, 3, 4, names={1: "v2", 3: "x1", 4: "a1"})
    return story


def aborted_and_delivered() -> Story:
    story = good()
    story.deliver(20, 4, "a1")
    return story


def never_asked() -> Story:
    story = Story()
    story.send(0, "v1", 0, transaction="t")
    return story


def contradiction() -> Story:
    story = good()
    story.send_unanswered(6, "v3", "other")
    story.events.append(EntriesRead(10 * MS, "f", "t", 0, (EntrySeen(1, "v3", "v3"),)))
    return story


def moved() -> Story:
    story = good()
    story.events.append(
        EntriesRead(10 * MS, "f", "t", 0, (EntrySeen(1, "v2", "v2"), EntrySeen(7, "v2", "v2")))
    )
    return story


def changed() -> Story:
    story = good()
    story.events.append(EntriesRead(10 * MS, "f", "t", 0, (EntrySeen(1, "v2", "?"),)))
    return story


def invented() -> Story:
    story = good()
    story.events.append(
        EntriesRead(10 * MS, "f", "t", 0, (EntrySeen(1, "v2", "v2"), EntrySeen(9, "nobody", "")))
    )
    return story


def disorder() -> Story:
    story = good()
    for at, offset, name in ((10, 3, "x1"), (11, 1, "v2")):
        story.events.append(EntriesRead(at * MS, "f", "t", 0, (EntrySeen(offset, name, name),)))
    return story


def reordered() -> Story:
    story = good()
    story.send(6, "v3", 9, "y")
    story.send(7, "v4", 8, "z")
    return story


def skipped() -> Story:
    story = good()
    story.events.append(EntriesRead(10 * MS, "f", "t", 0, (EntrySeen(3, "x1", "x1"),)))
    return story


def undone() -> Story:
    story = good()
    story.deliver(20, 1, "v2")
    story.deliver(40, 1, "v2", count=2)
    return story


def unfinished() -> Story:
    story = good()
    story.deliver(20, 1, "v2", AckKind.RELEASE)
    return story


BROKEN: list[tuple[Callable[[], Story], str]] = [
    (lost, "lost"),
    (lost_to_an_older_one, "lost"),
    (resurrected, "resurrected"),
    (early, "early"),
    (late_tombstone, "late"),
    (late_value, "late"),
    (late_aborted, "late"),
    (aborted, "aborted"),
    (aborted_and_delivered, "aborted"),
    (never_asked, "aborted"),
    (contradiction, "contradiction"),
    (moved, "moved"),
    (changed, "changed"),
    (invented, "invented"),
    (disorder, "disorder"),
    (reordered, "reordered"),
    (skipped, "skipped"),
    (undone, "undone"),
    (unfinished, "unfinished"),
]


@pytest.mark.parametrize(("broken", "rule"), BROKEN, ids=[each.__name__ for each, _ in BROKEN])
def test_a_broken_rule_is_reported(broken: Callable[[], Story], rule: str) -> None:
    report = broken().finish()
    assert rule in rules_of(report), str(report)
    assert len(rules_of(report)) == 1, str(report)


def test_a_history_must_be_complete() -> None:
    report = check(merge([good().events]), SETTINGS)
    assert [each.rule for each in report.violations] == ["incomplete"] * 2


def test_retention_may_remove_what_lies_before_the_start() -> None:
    story = Story("w")
    story.send(0, "v1", 0, gone=True)
    story.send(1, "v2", 1, "other")
    assert story.finish(start=1).ok
    story = Story("t")
    story.send(0, "v1", 0, gone=True)
    story.send(1, "v2", 1, "other")
    assert rules_of(story.finish(start=1)) == {"trimmed"}


def test_an_unanswered_tombstone_may_have_deleted_the_value() -> None:
    story = lost()
    story.send_unanswered(6, "x2")
    assert story.finish().ok
    story = lost()
    story.send_unanswered(1900, "x2")
    assert rules_of(story.finish()) == {"lost"}


def test_an_unanswered_value_may_have_replaced_the_latest_one() -> None:
    story = lost()
    story.send_unanswered(6, "v3")
    story.log[5] = "v3"
    assert story.finish().ok


def test_an_open_transaction_holds_back_readers_of_committed_records() -> None:
    story = good()
    story.scan(10, stop=1)
    assert story.finish().ok
    story = good()
    story.scan(10, stop=1, is_committed=False)
    assert rules_of(story.finish()) == {"lost", "early"}


def test_a_slow_reader_may_miss_a_tombstone() -> None:
    story = good()
    story.scan(100, 1, 2, names={1: "v2", 2: "w1"}, until=1200)
    report = story.finish()
    assert report.ok, str(report)
    assert report.statistics.excused == 1


def test_a_long_pass_excuses_a_reader() -> None:
    story = good()
    story.scan(100, 1, 2, names={1: "v2", 2: "w1"}, until=800)
    assert rules_of(story.finish()) == {"resurrected"}
    story = good()
    story.scan(100, 1, 2, names={1: "v2", 2: "w1"}, until=800)
    story.events += [PassNoted(50 * MS, Stage.BEGAN, "t-0"), PassNoted(450 * MS, Stage.ENDED, "t-0")]
    assert story.finish().ok


def test_kills_and_cuts_in_passes_are_counted() -> None:
    story = good()
    story.events += [
        PassNoted(50 * MS, Stage.BEGAN, "t-0"),
        PassNoted(51 * MS, Stage.REPLACING, "t-0"),
        LifeEnded(52 * MS, 1),
        LifeBegan(53 * MS, 2),
        PassNoted(54 * MS, Stage.BEGAN, "t-0"),
        PassNoted(55 * MS, Stage.REPLACING, "t-0"),
        PassNoted(56 * MS, Stage.REPLACED, "t-0"),
        PowerLost(57 * MS, promises_end=False),
        LifeEnded(58 * MS, 2),
        LifeBegan(59 * MS, 3),
        PassNoted(60 * MS, Stage.BEGAN, "t-0"),
        PassNoted(61 * MS, Stage.ENDED, "t-0"),
    ]
    done = story.finish().statistics
    assert (done.lives, done.passes) == (3, 1)
    assert (done.kills_in_passes, done.kills_in_replacements) == (1, 1)
    assert (done.cuts_in_passes, done.cuts_in_replacements) == (1, 0)


def test_a_cut_may_take_what_was_confirmed_shortly_before() -> None:
    settings = CompactionHistorySettings(RETENTION_MS, SETTINGS.group, may_lose_last_ms=100)
    for at, rules in ((850, set[str]()), (700, {"lost"})):
        story = good()
        story.send(at, "v3", 9, gone=True)
        story.events += [PowerLost(900 * MS, promises_end=True), LifeEnded(901 * MS, 1)]
        assert rules_of(story.finish(settings=settings)) == rules


@pytest.mark.parametrize(
    ("value", "kind", "rules"),
    [
        ("v9", AckKind.ACCEPT, set()),
        ("v9", AckKind.RELEASE, {"unfinished"}),
        ("lost", AckKind.ACCEPT, {"unfinished"}),
    ],
)
def test_acknowledgements_of_a_delivery_that_a_cut_may_take_prove_nothing(
    value: str, kind: AckKind, rules: set[str]
) -> None:
    """The group need not deliver the record again: both may be on the disk. If it has another
    record there, it must."""
    settings = CompactionHistorySettings(RETENTION_MS, SETTINGS.group, may_lose_last_ms=100)
    story = good()
    record = Record(*LOG, 9)
    story.send(700, "v9", 9, "another")
    story.events += [
        Delivered(850 * MS, 849 * MS, "c", record, value, 1, "v9"),
        AckSent(860 * MS, "c", record, kind),
        AckAnswered(870 * MS, "c", record, Outcome.CONFIRMED),
        PowerLost(900 * MS, promises_end=True),
        LifeEnded(901 * MS, 1),
    ]
    assert rules_of(story.finish(settings=settings)) == rules
