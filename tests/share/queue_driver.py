"""A share-partition over an invented log, driven the way the broker drives it: read at the next
fetch offset, acquire, save.

By default each Persist is saved at once, through the batch combiner, so that reload() is a restart
of the broker.
"""

from __future__ import annotations

from dataclasses import replace

from kbroker.share import offers
from kbroker.share.effects import AckBatch, Persist, ShareSettings, StateBatch
from kbroker.share.record_state import RecordState
from kbroker.share.share_partition import AcquireMode, SharePartition
from kbroker.share.state_batches import combine
from tests.share.holdings import holdings

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)

AVAILABLE, ACKNOWLEDGED, ARCHIVING, ARCHIVED = (
    RecordState.AVAILABLE,
    RecordState.ACKNOWLEDGED,
    RecordState.ARCHIVING,
    RecordState.ARCHIVED,
)
_LETTERS = {"A": 0, "H": 1, "K": 2, "G": 3, "R": 4}


def state(text: str) -> tuple[StateBatch, ...]:
    """State batches as the fact sheets write them: "21-30 K1, 31 A2" (A available, K acknowledged,
    G archiving, R archived, H held)."""
    batches = []
    for part in filter(None, text.split(", ")):
        offsets, word = part.split()
        first, _, last = offsets.partition("-")
        batches.append(StateBatch(int(first), int(last or first), _LETTERS[word[0]], int(word[1:])))
    return tuple(batches)


def ack(first: int, last: int, *types: int) -> AckBatch:
    return AckBatch(first, last, types)


class Queue:
    """`log`: record batches as (base offset, last offset). Time stands still unless `now_ms` is
    set."""

    def __init__(
        self,
        *log: tuple[int, int],
        saved: str = "",
        start: int = 0,
        settings: ShareSettings | None = None,
        **changed: int,
    ) -> None:
        self.log = list(log)
        self.settings = replace(ShareSettings(), **changed)
        self.saved_start = start
        self.saved_batches = state(saved)
        self.now_ms = 0.0
        self.reload()

    def reload(self) -> SharePartition:
        self.sp = SharePartition.load(
            self.settings,
            start_offset=self.saved_start,
            state_batches=self.saved_batches,
            state_epoch=3,
            leader_epoch=7,
        )
        return self.sp

    def read(self, offset: int, size: int = 1000) -> list[tuple[int, int]]:
        """Whole batches from the one that holds `offset` (or the next one) on, at most `size` of
        them."""
        return [batch for batch in self.log if batch[1] >= offset][:size]

    def fetch(
        self,
        member: str,
        max_records: int = 500,
        *,
        by_record: bool = False,
        batch_size: int | None = None,
        read: int = 1000,
    ) -> list[tuple[int, int, int]]:
        """One ShareFetch of one partition: the AcquiredRecords entries. `read`: how many record
        batches fit into the bytes."""
        if offers.offset_to_acquire(self.sp) is None:
            return []
        offset = self.sp.window.next_fetch_offset()
        return [
            tuple(entry)
            for entry in self.sp.acquire(
                member,
                mode=AcquireMode.RECORD_LIMIT if by_record else AcquireMode.BATCH_OPTIMIZED,
                batch_size=max_records if batch_size is None else batch_size,
                max_records=max_records,
                fetch_offset=offset,
                batches=self.read(offset, read),
                now_ms=self.now_ms,
            )
        ]

    def ask(self, member: str, *batches: AckBatch) -> Persist | None:
        """Acknowledge without saving."""
        return self.sp.acknowledge(member, batches, now_ms=self.now_ms)

    def ack(self, member: str, *batches: AckBatch) -> Persist | None:
        return self.save(self.ask(member, *batches))

    def save(self, persist: Persist | None) -> Persist | None:
        if persist is not None:
            self.saved_start = max(self.saved_start, persist.start_offset)
            self.saved_batches = combine(self.saved_batches, persist.batches, self.saved_start)
            self.sp.persisted(persist.token)
        return persist

    def fail(self, persist: Persist | None) -> None:
        assert persist is not None
        self.sp.persist_failed(persist.token, now_ms=self.now_ms)

    def release(self, member: str) -> Persist | None:
        return self.save(self.sp.release_member(member))

    def expire(self, now_ms: float) -> Persist | None:
        self.now_ms = now_ms
        return self.save(self.sp.expire(now_ms))

    def shown(self) -> str:
        """The records in flight: "0-4 K1, 5 H2 m1", with ~ before a state that is being saved."""
        parts = []
        for run in holdings(self.sp):
            offsets = (
                f"{run.first_offset}"
                if run.first_offset == run.last_offset
                else f"{run.first_offset}-{run.last_offset}"
            )
            letter = "AHKGR"[run.state]
            text = f"{offsets} {'~' if run.pending else ''}{letter}{run.delivery_count}"
            parts.append(text if run.member_id is None or run.pending else f"{text} {run.member_id}")
        return ", ".join(parts)
