"""The verdict over the notes of all processes, by the rules of tests.judges.history.

    python -m clients.python.tests.chaos.judging FOLDER LOCK_MS DELIVERY_LIMIT PARTITIONS

prints it for notes that a failed test has left. The partitions are judged one by one: no rule
compares records of two of them, since the value of a record says its partition.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from clients.python.tests.chaos.notes import TOPIC, Line, Note, Value, expand, read_notes
from tests.judges.history import GroupSettings, check
from tests.judges.history_events import Record
from tests.judges.log_rules import Violation

REQUESTS_LATE_MS = 6000
"""The proxy may hold up a request of a client that has been killed."""


class Verdict(NamedTuple):
    violations: list[Violation]
    statistics: Counter[str]

    @property
    def rules(self) -> set[str]:
        return {violation.rule for violation in self.violations}

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in self.statistics.items())
        rules = Counter(violation.rule for violation in self.violations)
        head = ", ".join(f"{count} x {rule}" for rule, count in rules.items()) or "no violation"
        return "\n".join([f"{head}; {counts}", *map(str, self.violations[:20])])


def judge(folder: Path, lock_ms: int, delivery_limit: int, partitions: int) -> Verdict:
    notes = read_notes(folder)
    settings = GroupSettings(lock_ms, delivery_limit, requests_late_ms=REQUESTS_LATE_MS)
    violations, statistics = list(_misplaced(notes)), Counter[str]()
    for partition in range(partitions):
        events = sorted(expand(notes, partition), key=lambda event: event.at_ns)
        report = check(events, settings)
        violations += report.violations
        counts = asdict(report.statistics)
        lives = counts.pop("lives")
        statistics.update(counts)
        statistics["lives"] = lives
    return Verdict(violations, statistics)


def _misplaced(notes: Mapping[str, list[Line]]) -> list[Violation]:
    """Records in another partition than their producer sent them to."""
    return [
        Violation("misplaced", f"{Value(*run[3:6])} is in partition {run[0]}", Record(TOPIC, *run[:2]))
        for lines in notes.values()
        for note, _, *fields in lines
        if note in (Note.DELIVERED, Note.READ)
        for run in fields[-1]
        if run[0] != run[4]
    ]


if __name__ == "__main__":
    print(judge(Path(sys.argv[1]), *map(int, sys.argv[2:])))
