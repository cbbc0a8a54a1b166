"""Control records: their bytes as in the format, and all records that are not control records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.formats.batches import CONTROL, Record, build_batch, read_header
from kbroker.formats.control_records import (
    NO_OFFSET,
    ControlType,
    ShareControl,
    build_control_batch,
    read_controls,
)

CHECKPOINT, DELTA = ControlType.SHARE_CHECKPOINT, ControlType.SHARE_DELTA


@pytest.mark.parametrize(
    ("control", "key", "value"),
    [
        (ShareControl(CHECKPOINT, "g1", b"state"), "0000 0005", "0001 0002 6731 7374617465"),
        (ShareControl(CHECKPOINT, "g1", b""), "0000 0005", "0001 0002 6731"),
        (ShareControl(DELTA, "ü", b"\x07", 258), "0000 0006", "0001 0002 c3bc 0000000000000102 07"),
    ],
)
def test_bytes(control: ShareControl, key: str, value: str) -> None:
    record = control.to_record()
    assert (record.key, record.value, record.timestamp_ms) == (bytes.fromhex(key), bytes.fromhex(value), -1)
    assert ShareControl.from_record(record) == control
    assert control.is_deletion == (control.state == b"")


def test_a_batch_of_them() -> None:
    controls = [
        ShareControl(CHECKPOINT, "g", b"a"),
        ShareControl(DELTA, "h", b"b", 7),
        ShareControl(CHECKPOINT, "h", b""),
    ]
    batch = build_control_batch(controls)
    header = read_header(batch)
    assert (header.is_control, header.is_transactional, header.producer_id, header.record_count) == (
        True,
        False,
        -1,
        3,
    )
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (-1, -1)
    assert list(read_controls(batch, 0, header)) == list(enumerate(controls))


controls_of_any_kind = st.builds(
    lambda group_id, state, back: (
        ShareControl(CHECKPOINT, group_id, state)
        if back is None
        else ShareControl(DELTA, group_id, state, back)
    ),
    st.text(max_size=80),
    st.binary(max_size=200) | st.integers(0, 20_000).map(bytes),
    st.none() | st.integers(0, 2**63 - 1),
)


@given(st.lists(controls_of_any_kind, min_size=1, max_size=70))
def test_the_hand_packed_batch_is_that_of_its_records(controls: list[ShareControl]) -> None:
    assert build_control_batch(controls) == build_batch(
        [control.to_record() for control in controls], attributes=CONTROL
    )


@pytest.mark.parametrize(
    "record",
    [
        Record(0, -1, None, b"x"),
        Record(0, -1, b"\0\0\0", b"x"),
        Record(0, -1, bytes.fromhex("00000001"), bytes.fromhex("000000000000")),  # the end of a transaction
        Record(0, -1, bytes.fromhex("00010005"), b"x"),
        Record(0, -1, bytes.fromhex("00000005"), None),
    ],
)
def test_others_are_left_alone(record: Record) -> None:
    assert ShareControl.from_record(record) is None
    batch = build_batch([record], attributes=CONTROL)
    assert list(read_controls(batch, 0, read_header(batch))) == []


@pytest.mark.parametrize("value", ["", "00", "0000 0001 67", "0001", "0001 0005 67", "0001 0001 67 0000"])
def test_what_cannot_be_read_is_a_value_error(value: str) -> None:
    record = Record(0, -1, bytes.fromhex("00000006"), bytes.fromhex(value))
    with pytest.raises(ValueError, match=r".+"):
        ShareControl.from_record(record)


def test_damage_is_a_value_error() -> None:
    batch = bytearray(build_control_batch([ShareControl(CHECKPOINT, "g", b"state", NO_OFFSET)]))
    batch[-3] ^= 1
    with pytest.raises(ValueError, match="damaged"):
        list(read_controls(batch, 0, read_header(batch)))
