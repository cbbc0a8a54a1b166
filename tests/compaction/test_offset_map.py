"""The latest offset of each key in bounded memory."""

from __future__ import annotations

import random

import pytest

from kbroker.compaction.offset_map import OffsetMap


def test_a_dict_of_keys_says_the_same() -> None:
    chooser, latest, expected = random.Random(5), OffsetMap(1 << 20, 20_000), dict[bytes, int]()
    for offset in range(60_000):
        key = b"%d" % chooser.randrange(20_000)
        latest.put(key, offset)
        expected[key] = offset
    assert len(latest) == len(expected)
    assert all(latest.latest(key) == offset for key, offset in expected.items())
    assert latest.latest(b"another") == -1
    assert latest.latest(b"") == -1


def test_offset_0_and_the_empty_key_are_known() -> None:
    latest = OffsetMap(1 << 20, 10)
    latest.put(b"", 0)
    assert latest.latest(b"") == 0


def test_a_full_map_refuses_further_keys_and_takes_known_ones() -> None:
    latest = OffsetMap(24 * 1024, 10**9)
    most = 768
    assert latest.has_room_for(most)
    assert not latest.has_room_for(most + 1)
    for number in range(most):
        latest.put(b"%d" % number, number)
    latest.put(b"7", 1000)
    assert latest.latest(b"7") == 1000
    assert latest.has_room_for(0)
    assert not latest.has_room_for(1)
    with pytest.raises(OverflowError, match="768 keys"):
        latest.put(b"one more", 1001)


@pytest.mark.parametrize(("records", "keys"), [(0, 768), (700, 768), (1000, 1536), (10**9, 786_432)])
def test_the_table_is_as_large_as_the_records_need_within_the_memory(records: int, keys: int) -> None:
    latest = OffsetMap(24 << 20, records)
    assert latest.has_room_for(keys)
    assert not latest.has_room_for(keys + 1)


def test_many_keys_at_once_are_like_one_after_the_other() -> None:
    """Also with keys that want the same slot, and in a table that is as full as it may be."""
    chooser, single, bulk = random.Random(6), OffsetMap(24 * 4096, 10**9), OffsetMap(24 * 4096, 10**9)
    offset, keys = 0, [b"%d" % number for number in range(3072)]
    assert single.has_room_for(len(keys))
    while len(single) < len(keys):
        chosen = dict[bytes, int]()
        for key in chooser.choices(keys, k=chooser.choice((3, 200, 900))):
            chosen[key] = offset
            single.put(key, offset)
            offset += 1
        bulk.put_all(chosen)
        assert len(bulk) == len(single)
    asked = [*keys, *(b"other %d" % number for number in range(500))]
    expected = [single.latest(key) for key in asked]
    assert bulk.latest_of(asked) == [bulk.latest(key) for key in asked] == expected
    assert [bulk.latest_of(asked[at : at + 5])[-1] for at in range(0, 1000, 5)] == expected[4:1000:5]


def test_many_keys_at_once_are_refused_without_room_for_the_new_ones() -> None:
    latest = OffsetMap(24 * 1024, 10**9)
    latest.put_all({b"%d" % number: number for number in range(700)})
    latest.put_all({b"%d" % number: 1000 + number for number in range(500, 768)})
    assert len(latest) == 768
    assert latest.latest_of([b"0", b"600", b"767", b"768"]) == [0, 1600, 1767, -1]
    latest.put_all({b"%d" % number: 2000 for number in range(768)})
    with pytest.raises(OverflowError, match="768 keys"):
        latest.put_all({b"%d" % number: 3000 for number in range(769)})
    assert len(latest) == 768
