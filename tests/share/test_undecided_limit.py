"""The limit of records in flight when it counts undecided records: one slow job does not block the
others."""

from __future__ import annotations

from random import Random

import pytest

from kbroker.share import offers
from kbroker.share.effects import AckBatch, AcquiredRange, ShareSettings, StateBatch
from kbroker.share.share_partition import AcquireMode, SharePartition
from kbroker.share_state.loading import ShareState
from tests.share.queue_driver import ACCEPT, RELEASE

LIMIT, BATCH = 2000, 100
"""The rest of a batch that was read may be delivered beyond the limit: it is in memory already."""


def load(state: ShareState) -> SharePartition:
    settings = ShareSettings(limits_undecided=True, max_record_locks=LIMIT, lock_duration_ms=3_600_000)
    batches = state.merged_batches()
    return SharePartition.load(
        settings, start_offset=state.start_offset, state_batches=batches, state_epoch=0, leader_epoch=0
    )


def acquire(
    sp: SharePartition, member: str, max_records: int, fetch_offset: int, batches: list[tuple[int, int]]
) -> list[AcquiredRange]:
    return sp.acquire(
        member,
        mode=AcquireMode.RECORD_LIMIT,
        batch_size=1,
        max_records=max_records,
        fetch_offset=fetch_offset,
        batches=batches,
        now_ms=0,
    )


@pytest.mark.parametrize("records", [20_000, pytest.param(500_000, marks=pytest.mark.full)])
def test_records_flow_behind_one_that_is_held(records: int) -> None:
    """Acknowledged in random order, every third released once."""
    rnd, state = Random(1), ShareState(0, 0, 0, 0, 0)
    sp = load(state)
    assert acquire(sp, "slow", 1, 0, [(0, 0)])
    held: list[int] = []
    released: set[int] = set()
    done = writes = longest_state = 0
    while done < records:
        while (offset := offers.offset_to_acquire(sp)) is not None and offset <= records:
            batches = [
                (first, first + BATCH - 1)
                for first in range(offset - offset % BATCH, min(offset + 500, records + 1), BATCH)
            ]
            ranges = acquire(sp, "m", 100, offset, batches)
            if not ranges:
                break
            held += [offset for first, last, _ in ranges for offset in range(first, last + 1)]
        assert held, "it flows"
        assert sp.window.undecided < LIMIT + BATCH
        rnd.shuffle(held)
        chosen, held = sorted(held[:100]), held[100:]
        types = {
            offset: RELEASE if offset % 3 == 0 and offset not in released else ACCEPT for offset in chosen
        }
        released |= {offset for offset, ack_type in types.items() if ack_type == RELEASE}
        done += sum(ack_type == ACCEPT for ack_type in types.values())
        persist = sp.acknowledge(
            "m", [AckBatch(offset, offset, (ack_type,)) for offset, ack_type in types.items()], now_ms=0
        )
        assert persist is not None
        state.recent += persist.batches
        sp.persisted(persist.token)
        writes += 1
        if not writes % 50:
            longest_state = max(longest_state, len(state.merged_batches()))
    assert sp.start_offset == 0
    assert longest_state <= 2 * LIMIT + 1000
    again = load(state)
    assert again.window.undecided < LIMIT + BATCH
    assert acquire(again, "x", 1, 0, [(0, 0)])[0].first_offset == 0


def test_a_full_window_passes_over_no_record_that_was_never_read() -> None:
    """After a restart the limit is reached, and the first records were never delivered. A read for
    a returned record begins with its batch, among these: the start offset stays before unread
    records."""
    batches = [StateBatch(37, 45, 0, 2)]
    settings = ShareSettings(limits_undecided=True, max_record_locks=5, lock_duration_ms=1000)
    sp = SharePartition.load(settings, start_offset=27, state_batches=batches, state_epoch=0, leader_epoch=0)
    assert offers.offset_to_acquire(sp) == 37
    assert acquire(sp, "a", 30, 37, [(30, 41), (42, 45)]) == [(37, 45, 3)]
    assert sp.start_offset == 27
    sp.acknowledge("a", [AckBatch(37, 45, [ACCEPT])], now_ms=0)
    assert offers.offset_to_acquire(sp) == 27
