"""Decoding: every acquired offset is a record, a gap or damaged, whatever the batches are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker_client._shared.formats.batches import CONTROL, build_batch
from kbroker_client._shared.formats.batches import Record as BatchRecord
from kbroker_client.share.records import Acquired, Lease, decode
from tests.framings import READABLE, RECORDS, framed_batch
from tests.odd_batches import odd_batch

LEASE = Lease()


def batch(base: int, count: int, attributes: int = 0) -> bytes:
    made = [BatchRecord(0, 1000 + each, b"k", b"%d" % (base + each), ()) for each in range(count)]
    return build_batch(made, base_offset=base, attributes=attributes)


def test_only_acquired_records_are_delivered() -> None:
    data = batch(0, 5) + batch(5, 5)
    found = decode("t", 3, data, [Acquired(1, 2, 1), Acquired(6, 6, 4)], LEASE)
    assert [(each.offset, each.value, each.delivery_count) for each in found.records] == [
        (1, b"1", 1), (2, b"2", 1), (6, b"6", 4),
    ]  # fmt: skip
    assert (found.gaps, found.damaged, found.unreadable) == ([], [], [])
    first = found.records[0]
    assert (first.topic, first.partition, first.timestamp_ms, first.key) == ("t", 3, 1001, b"k")


def test_control_batches_and_missing_offsets_are_gaps() -> None:
    data = batch(0, 2) + batch(2, 1, CONTROL) + batch(7, 1)
    found = decode("t", 0, data, [Acquired(0, 9, 1)], LEASE)
    assert [each.offset for each in found.records] == [0, 1, 7]
    assert sorted(found.gaps) == [(2, 6), (8, 9)]


def test_a_damaged_batch_is_told_apart() -> None:
    broken = bytearray(batch(2, 3))
    broken[-1] ^= 1
    found = decode("t", 0, batch(0, 2) + bytes(broken) + batch(5, 1), [Acquired(1, 5, 2)], LEASE)
    assert [each.offset for each in found.records] == [1, 5]
    assert found.damaged == [(2, 4)]
    assert (found.gaps, found.unreadable) == ([], [])


def test_a_batch_that_cannot_be_decoded_is_not_damaged() -> None:
    """Its checksum is right: another client may read it."""
    odd = bytearray(odd_batch("no zstd"))
    odd[7] = 2
    found = decode("t", 0, batch(0, 2) + bytes(odd) + batch(5, 1), [Acquired(1, 5, 2)], LEASE)
    assert [each.offset for each in found.records] == [1, 5]
    assert found.unreadable == [(2, 4)]
    assert (found.gaps, found.damaged) == ([], [])


@pytest.mark.parametrize("name", READABLE)
def test_payloads_of_several_frames(name: str) -> None:
    found = decode("t", 0, framed_batch(name), [Acquired(0, RECORDS - 1, 1)], LEASE)
    assert [each.offset for each in found.records] == list(range(RECORDS))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=5), st.sets(st.integers(0, 30)))
def test_each_acquired_offset_is_accounted_for_once(shape: list[tuple[int, int]], wanted: set[int]) -> None:
    data, offset, there = b"", 0, set()
    for hole, count in shape:
        offset += hole
        data += batch(offset, count)
        there |= set(range(offset, offset + count))
        offset += count
    found = decode("t", 0, data, [Acquired(each, each, 1) for each in sorted(wanted)], LEASE)
    gaps = [each for first, last in found.gaps for each in range(first, last + 1)]
    assert [each.offset for each in found.records] == sorted(wanted & there)
    assert sorted(gaps) == sorted(wanted - there)
