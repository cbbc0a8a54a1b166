"""The stored state of a transactional id, and the markers of a log: what is written is read again,
and damaged bytes raise ValueError."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.formats.state_values import dump_json
from kbroker.formats.transactions import (
    Marker,
    MarkerType,
    TransactionKey,
    TransactionPartition,
    TransactionRecord,
    TransactionState,
    marker_key,
    marker_value,
)
from tests.transactions.world import FIRST, ONGOING, SECOND, a_record

FULL = a_record(
    ONGOING,
    partitions=frozenset((FIRST, SECOND, TransactionPartition(UUID(int=2), 7))),
    groups=frozenset(("g", "größe")),
    previous_producer_id=6,
    next_producer_id=8,
)

records = st.builds(
    TransactionRecord,
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(-1, 32_767),
    timeout_ms=st.integers(1, 2**31 - 1),
    state=st.sampled_from(TransactionState),
    partitions=st.frozensets(st.builds(TransactionPartition, st.uuids(), st.integers(0, 2**31 - 1))),
    groups=st.frozensets(st.text()),
    last_producer_epoch=st.integers(-1, 32_767),
    previous_producer_id=st.integers(-1, 2**63 - 1),
    next_producer_id=st.integers(-1, 2**63 - 1),
    started_ms=st.integers(-1, 2**53),
    updated_ms=st.integers(-1, 2**53),
    version=st.sampled_from((1, 2)),
)


def changed(**members: Any) -> bytes:
    """FULL with other members; None removes one."""
    found = json.loads(FULL.encode()) | members
    return json.dumps({name: value for name, value in found.items() if value is not None}).encode()


@given(records)
def test_a_record_is_compact_json_with_sorted_members(record: TransactionRecord) -> None:
    partitions: dict[str, list[int]] = {}
    for topic_id, index in sorted(record.partitions):
        partitions.setdefault(str(topic_id), []).append(index)
    others = {each.name: getattr(record, each.name) for each in fields(record)}
    assert record.encode() == dump_json({**others, "partitions": partitions, "groups": sorted(record.groups)})


@given(records)
def test_a_record_is_read_as_it_was_written(record: TransactionRecord) -> None:
    read = TransactionRecord.decode(record.encode())
    assert read == record
    assert isinstance(read.state, TransactionState)
    assert all(isinstance(each, TransactionPartition) for each in read.partitions)


def test_equal_records_are_equal_bytes() -> None:
    """The order in which partitions and groups were added is not seen."""
    logs = [FIRST, SECOND, TransactionPartition(UUID(int=2), 7)]
    assert (
        FULL.encode()
        == a_record(
            ONGOING,
            partitions=frozenset(reversed(logs)),
            groups=frozenset(("größe", "g")),
            previous_producer_id=6,
            next_producer_id=8,
        ).encode()
    )


def test_members_of_later_formats_are_ignored() -> None:
    assert TransactionRecord.decode(changed(later={"a": [1]}, other="x")) == FULL


@pytest.mark.parametrize("name", ["producer_id", "producer_epoch", "timeout_ms"])
def test_a_record_without_its_producer_is_damaged(name: str) -> None:
    with pytest.raises(ValueError, match="not a TransactionRecord"):
        TransactionRecord.decode(changed(**{name: None}))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"null",
        b"[]",
        b"7",
        b"{}",
        b"\xff\xfe",
        FULL.encode()[:-1],
        FULL.encode() + b"x",
        changed(state=6),
        changed(state=7),
        changed(state=-1),
        changed(state="ONGOING"),
        changed(partitions=[]),
        changed(partitions={"no uuid": [1]}),
        changed(partitions={str(UUID(int=1)): 1}),
        changed(groups=7),
    ],
)
def test_a_damaged_record_raises(value: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        TransactionRecord.decode(value)


@pytest.mark.parametrize("length", range(0, len(FULL.encode()), 7))
def test_a_record_that_was_cut_off_raises(length: int) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        TransactionRecord.decode(FULL.encode()[:length])


@pytest.mark.parametrize("name", ["t", "größe", "a/b", "transaction/", "x" * 255])
def test_a_key_names_its_id(name: str) -> None:
    key = TransactionKey(name)
    assert key.encode() == b"transaction/" + name.encode()
    assert TransactionKey.parse(name.encode()) == key
    assert key.decode_value(FULL.encode()) == FULL


# --- markers ---


@pytest.mark.parametrize(("kind", "key"), [(MarkerType.ABORT, "00000000"), (MarkerType.COMMIT, "00000001")])
@pytest.mark.parametrize(("epoch", "value"), [(0, "000000000000"), (258, "000000000102")])
def test_a_marker_has_kafkas_bytes(kind: MarkerType, key: str, epoch: int, value: str) -> None:
    assert (marker_key(kind).hex(), marker_value(epoch).hex()) == (key, value)
    assert Marker.from_record(marker_key(kind), marker_value(epoch)) == (kind, epoch)


@pytest.mark.parametrize("version", [1, 2, 32_767])
def test_a_later_version_is_read_like_version_0(version: int) -> None:
    """Later versions may have more fields behind the known ones."""
    head = version.to_bytes(2, "big")
    key, value = head + b"\x00\x01" + b"more", head + b"\x00\x00\x00\x05" + b"more"
    assert Marker.from_record(key, value) == (MarkerType.COMMIT, 5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, marker_value(1)),
        (b"", marker_value(1)),
        (b"\x00\x00\x00", marker_value(1)),
        (marker_key(MarkerType.COMMIT), None),
        (marker_key(MarkerType.COMMIT), b""),
        (marker_key(MarkerType.COMMIT), marker_value(1)[:5]),
        (b"\x00\x00\x00\x02", marker_value(1)),  # LEADER_CHANGE
        (b"\x00\x00\x00\x05", marker_value(1)),  # of kbroker's own
        (b"\x00\x00\xff\xff", marker_value(1)),  # UNKNOWN
        (b"\xff\xff\x00\x01", marker_value(1)),  # version -1
    ],
)
def test_what_is_no_marker_raises(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Marker.from_record(key, value)
