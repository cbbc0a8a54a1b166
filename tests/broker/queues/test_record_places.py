"""Two walks over the records of a payload, one step by step and one over all at once, must find the
same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.broker.queues.record_places import STRIDE, UNWALKABLE, Places
from kbroker.formats.batches import HEADER_SIZE, Buffer, Record, add_record, build_batch
from tests.odd_batches import payload_of, varint


def plain(values: list[bytes], deltas: list[int], times_ms: list[int]) -> bytes:
    body: list[Buffer] = []
    for value, delta, time_ms in zip(values, deltas, times_ms, strict=True):
        add_record(body, Record(0, 0, None, value, ()), timestamp_delta=time_ms, offset_delta=delta)
    return b"".join(body)


@given(
    st.lists(
        st.tuples(st.integers(1, 200), st.integers(0, 300), st.integers(-(1 << 62), 1 << 62)),
        min_size=1,
        max_size=200,
    ),
    st.data(),
)
def test_a_place_is_found_from_anywhere(records: list[tuple[int, int, int]], data: st.DataObject) -> None:
    deltas, delta = [], -1
    for step, _, _ in records:
        delta += step
        deltas.append(delta)
    payload = plain([b"x" * size for _, size, _ in records], deltas, [time_ms for _, _, time_ms in records])
    known, step_by_step = Places(), Places()
    known.walk_all(payload, len(records), deltas[-1])
    for wanted in data.draw(st.lists(st.integers(0, delta + 5), max_size=10)):
        number = sum(1 for each in deltas if each < wanted)
        assert (
            known.find(payload, wanted)
            == step_by_step.find(payload, wanted)
            == Places().find(payload, wanted)
        )
        assert known.find(payload, wanted)[0] == number


@given(
    st.integers(1, 3 * STRIDE),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=3),
    st.booleans(),
)
def test_both_walks_meet_the_same_damage(count: int, damage: list[tuple[int, int]], cut: bool) -> None:
    payload = bytearray(
        build_batch([Record(0, 1000 * n, b"k", b"v" * (3 * n), ()) for n in range(count)])[HEADER_SIZE:]
    )
    for at, byte in damage:
        payload[at % len(payload)] = byte
    if cut:
        del payload[damage[0][0] % len(payload) :]
    stored = bytes(payload)
    try:
        found = Places().find(stored, count)
    except UNWALKABLE:
        found = None
    try:
        places = Places()
        places.walk_all(stored, count, count - 1)
    except UNWALKABLE:
        assert found != (count, len(stored))
    else:
        assert found == (count, len(stored))
        assert places.find(stored, count) == found


@pytest.mark.parametrize(
    ("payload", "count", "last_delta"),
    [
        (payload_of(b"a", b"b"), 3, 2),
        (payload_of(b"a", b"b"), 1, 1),
        (payload_of(b"a", b"b"), 2, 0),
        (payload_of(b"a", b"b", deltas=(1, 1)), 2, 1),
        (payload_of(b"a", b"b", deltas=(1, 0)), 2, 1),
        (payload_of(b"a", deltas=(-1,)), 1, 5),
        (varint(-40) + bytes(40), 1, 5),
        (varint(40) + bytes(10), 1, 5),
        (b"", 1, 0),
        (b"\xff" * 12, 1, 0),
    ],
)
def test_what_is_not_as_the_header_says(payload: bytes, count: int, last_delta: int) -> None:
    with pytest.raises(UNWALKABLE):
        Places().walk_all(payload, count, last_delta)


def test_places_take_little_memory() -> None:
    places = Places()
    places.walk_all(payload_of(*[b""] * 8000), 8000, 7999)
    assert places.size_bytes == 8 * (8000 // STRIDE + 1)
