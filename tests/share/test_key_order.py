"""Which record of each key is delivered first, without windows and stores; test_key_order_model.py
tests the whole."""

from __future__ import annotations

import pytest

from kbroker.formats.batches import Record, build_batch
from kbroker.formats.record_keys import hash_of_key, keys_of
from kbroker.share import key_order
from kbroker.share.key_order import KeyOrder

A, B = 7, 8


@pytest.fixture
def order() -> KeyOrder:
    return KeyOrder(0, -1, look_ahead=3)


def admit(order: KeyOrder, offset: int, key_hash: int) -> bool:
    order.know(offset, key_hash)
    return order.admit(offset)


def test_one_of_a_key_goes_and_the_next_behind_it(order: KeyOrder) -> None:
    assert [admit(order, *each) for each in ((5, A), (9, A), (6, B), (7, A))] == [True, False, True, False]
    assert order.admit(100), "a record without a key"
    order.end(5)
    assert order.freed == [7]
    order.end(7)
    assert order.freed == [7, 9]
    order.end(9)
    assert admit(order, 20, A)


def test_what_came_back_goes_on_and_others_that_were_held_beside_it_go_behind(order: KeyOrder) -> None:
    for offset in (1, 2, 3):
        order.hold(offset, A)
    assert not order.admit(3)
    assert not order.admit(2)
    assert order.admit(1)
    order.end(1)
    assert order.freed == [2]


def test_a_record_that_is_gone_does_not_come_after_others(order: KeyOrder) -> None:
    for offset in (1, 2, 3):
        admit(order, offset, A)
    order.end(2)
    assert order.waiting == 1
    order.end(1)
    assert order.freed == [3]


def test_the_bound(order: KeyOrder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_order, "_RESUME_ROOM", 2)
    for offset in range(4):
        admit(order, offset, A)
    assert (order.room(), order.stops, order.is_full) == (0, 1, True)
    order.end(0)
    assert (order.room(), order.stops) == (0, 1), "room for one is not enough to resume"
    order.end(1)
    assert (order.room(), order.most_at_once()) == (2, 2)


class TestLookups:
    def test_a_key_that_the_store_knows_waits(self, order: KeyOrder) -> None:
        order.begin_lookup()
        order.found({A: [50]})
        order.end_lookup()
        assert not admit(order, 90, A)
        order.end(50)
        assert order.freed == [90]

    def test_what_ended_while_the_store_was_asked_is_not_believed(self, order: KeyOrder) -> None:
        order.hold(50, A, parked=True)
        order.begin_lookup()
        order.end(50)
        order.found({A: [50]})
        order.end_lookup()
        assert admit(order, 90, A)

    def test_nothing_is_forgotten_while_the_store_is_asked(
        self, order: KeyOrder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(key_order, "_FORGET_FROM", 0)
        order._forget_from = 0
        order.begin_lookup()
        order.hold(50, A, parked=True)
        order.forget_parked(())
        assert order.is_parked(50)
        order.end_lookup()
        order.forget_parked({50})
        assert order.is_parked(50), "it is in memory"
        assert not admit(order, 90, A)
        order._forget_from = 0
        order.forget_parked(())
        assert order.is_parked(50), "a record is behind it"
        order.end(90)
        order._forget_from = 0
        order.forget_parked(())
        assert order.hash_of(50) is None


def test_the_hash_of_a_key_never_changes() -> None:
    """It is stored with waiting records."""
    assert hash_of_key(b"customer-7") == 0x53C90E5D77C799A3
    assert hash_of_key(b"") == 0x2676BB2D13F3E2DC


def test_keys_of_a_batch() -> None:
    records = [Record(0, 1, key, b"", ()) for key in (b"a", None, b"", b"a")]
    keys = keys_of(memoryview(build_batch(records, base_offset=10)))
    assert keys.between(0, 100) == {10: hash_of_key(b"a"), 12: hash_of_key(b""), 13: hash_of_key(b"a")}
    assert keys.between(11, 12) == {12: hash_of_key(b"")}
    assert keys.between(0, 9) == keys.between(14, 20) == {}


def test_a_batch_that_cannot_be_read_has_the_keys_that_can_be() -> None:
    batch = bytearray(build_batch([Record(0, 1, b"a", b"", ()), Record(0, 1, b"b", b"", ())]))
    batch[-9] = 0xFF
    assert len(keys_of(memoryview(batch))) <= 1
