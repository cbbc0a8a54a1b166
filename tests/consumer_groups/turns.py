"""The history that a member of a consumer group writes, with any client library: the events of its
turns.

All members run the same application. It gets records, does the work (it writes them down), and
commits. Before it gives a partition up, it repeats the commit for it: the response shows whether
the member still had the partition. An event is one line, written with one write() (O_APPEND), so
kill -9 loses no event.

SIGUSR1 makes a member in Python freeze itself between its work and its next commit, so that this
commit is certainly late. SIGCONT thaws it. SIGTERM makes it leave cleanly.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.judges.history_events import (
    Assigned,
    CommitAnswered,
    CommitSent,
    Event,
    Gone,
    Outcome,
    Read,
    Record,
    Revoked,
    to_json,
)

Partition = tuple[str, int]

GROUP_GONE = 71
"""Exit code of a member whose group has changed its protocol while the member was frozen."""
REFUSALS = {16, 22, 25, 27, 82, 110, 113}
"""Codes after which a commit was certainly not done: NOT_COORDINATOR, ILLEGAL_GENERATION,
UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, FENCED_INSTANCE_ID, FENCED_MEMBER_EPOCH,
STALE_MEMBER_EPOCH."""
FENCED = {22, 25, 82, 110}
"""Codes after which the member has lost its partitions, unless a later commit is confirmed: between
two generations a cooperative member briefly commits in the older one."""


@dataclass(frozen=True, slots=True)
class Orders:
    """The arguments of a member process."""

    kind: str
    name: str
    bootstrap: str
    group: str
    topic: str
    history: Path
    session_ms: int
    seed: int

    def arguments(self) -> list[str]:
        return [
            self.kind,
            self.name,
            self.bootstrap,
            self.group,
            self.topic,
            str(self.history),
            str(self.session_ms),
            str(self.seed),
        ]

    @classmethod
    def given(cls) -> Orders:
        kind, name, bootstrap, group, topic, history, session_ms, seed = sys.argv[1:]
        return cls(kind, name, bootstrap, group, topic, Path(history), int(session_ms), int(seed))


class Member:
    """Tracks the reads and commits of this member's partitions."""

    def __init__(self, orders: Orders) -> None:
        self.name = orders.name
        self.asked_ns = time.monotonic_ns()
        """No later than the library's next request for partitions, as some libraries send it before
        they call back."""
        self.read_up_to: dict[Partition, int] = {}
        self._held: set[Partition] = set()
        self._confirmed: dict[Partition, int] = {}
        self._fenced: set[Partition] = set()
        self.is_stopping = False
        self._freezes = False
        self._random = random.Random(orders.seed)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGUSR1, self._freeze_soon)
        signal.signal(signal.SIGCONT, self._go_on)
        # This file shows other processes that the member handles signals.
        self._fd = os.open(orders.history, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def _stop(self, *_: object) -> None:
        self.is_stopping = True

    def _freeze_soon(self, *_: object) -> None:
        self._freezes = True

    def _go_on(self, *_: object) -> None:
        self._freezes = False

    def _write(self, events: Iterable[Event]) -> None:
        if text := "".join(to_json(event) + "\n" for event in events):
            os.write(self._fd, text.encode())

    def assigned(self, partitions: Iterable[Partition], *, asked_ns: int | None = None) -> None:
        now_ns, new = time.monotonic_ns(), list(partitions)
        since_ns = self.asked_ns if asked_ns is None else asked_ns
        self._held.update(new)
        self._write(
            Assigned(now_ns, min(since_ns, now_ns), self.name, topic, partition) for topic, partition in new
        )

    def revoked(self, partitions: Iterable[Partition], *, lost: bool = False) -> None:
        """Call this after the last commit. A member whose commit was refused because it is fenced
        has lost the partitions, even if its library calls them revoked. Some libraries report a
        partition twice, when a rebalance restarts or in close()."""
        now_ns, old = time.monotonic_ns(), [place for place in partitions if place in self._held]
        self._write(Revoked(now_ns, self.name, *place, lost=lost or place in self._fenced) for place in old)
        for place in old:
            self.read_up_to.pop(place, None)
            self._held.discard(place)
            self._confirmed.pop(place, None)
            self._fenced.discard(place)
        self.asked_ns = now_ns

    def uncommitted(self) -> set[Partition]:
        """Partitions with more reads than confirmed commits. A commit may be refused for a while,
        for example during a rebalance: members repeat it, and close when none is left."""
        return {place for place, offset in self.read_up_to.items() if self._confirmed.get(place) != offset}

    def read(self, records: Iterable[tuple[str, int, int, str]]) -> None:
        """The work. Each record: (topic, partition, offset, value)."""
        now_ns = time.monotonic_ns()
        events = []
        for topic, partition, offset, value in records:
            events.append(Read(now_ns, self.name, Record(topic, partition, offset), value))
            self.read_up_to[topic, partition] = offset + 1
        self._write(events)
        time.sleep(self._random.choice([0, 0, 0, 0.01, 0.05]))

    def committing(self, places: Iterable[Partition]) -> dict[Partition, int]:
        """The offsets to commit: for each partition the next one to read. Freezes here if
        requested."""
        if self._freezes:
            self._freezes = False
            self._write([Gone(time.monotonic_ns(), self.name)])
            os.kill(os.getpid(), signal.SIGSTOP)
        offsets = {place: self.read_up_to[place] for place in places if place in self.read_up_to}
        self._write(
            CommitSent(time.monotonic_ns(), self.name, *place, offset) for place, offset in offsets.items()
        )
        return offsets

    def answered(self, offsets: Mapping[Partition, int], codes: Mapping[Partition, int | None]) -> None:
        """`codes`: Kafka's error code for each partition; None: no answer."""
        now_ns = time.monotonic_ns()
        self._write(
            CommitAnswered(now_ns, self.name, *place, outcome_of(codes.get(place))) for place in offsets
        )
        for place, offset in offsets.items():
            if codes.get(place) == 0:
                self._confirmed[place] = offset
                self._fenced.discard(place)
            elif codes.get(place) in FENCED:
                self._fenced.add(place)
        if any(codes.get(place) != 0 for place in offsets):
            print(
                f"{now_ns}: commit of {dict(offsets)} answered with {dict(codes)}",
                file=sys.stderr,
                flush=True,
            )


def outcome_of(code: int | None) -> Outcome:
    if code == 0:
        return Outcome.CONFIRMED
    return Outcome.REFUSED if code in REFUSALS else Outcome.UNKNOWN
