"""Kafka's coordinator records: byte vectors written out from the format (A.6 and the schemas), and
round trips."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.formats.group_records import (
    CONSUMER_GROUP_VALUES,
    MAX_METADATA_BYTES,
    ClassicGroupMember,
    ClassicGroupMetadata,
    ClassicMember,
    ClassicProtocol,
    ConsumerGroupCurrentMember,
    ConsumerGroupMember,
    ConsumerGroupMetadata,
    ConsumerGroupTargetMember,
    ConsumerGroupTargetMetadata,
    ExpiringGroupOffset,
    GroupOffset,
    OwnedPartitions,
    decode_group_offset,
)
from kbroker.formats.share_records import (
    SHARE_GROUP_VALUES,
    SHARE_STATE_VALUES,
    Message,
    NamedTopic,
    NamedTopicPartitions,
    RecordType,
    ShareGroupCurrentMember,
    ShareGroupMember,
    ShareGroupMetadata,
    ShareGroupPartitions,
    ShareGroupTargetMember,
    ShareGroupTargetMetadata,
    ShareSnapshot,
    ShareUpdate,
    StateBatchRecord,
    TopicPartitions,
    encode_share_snapshot,
    encode_share_update,
)

TOPIC = UUID("01234567-89ab-cdef-0123-456789abcdef")
T = "0123456789abcdef 0123456789abcdef"
BATCH = StateBatchRecord(16, 17, 2, 3)
BATCH_HEX = "0000000000000010 0000000000000011 02 0003 00"

VECTORS: list[tuple[Message, str]] = [
    (
        ShareSnapshot(
            snapshot_epoch=1,
            state_epoch=2,
            leader_epoch=3,
            start_offset=4,
            create_timestamp=5,
            write_timestamp=6,
            state_batches=(BATCH,),
            delivery_complete_count=7,
        ),
        "0000 00000001 00000002 00000003 0000000000000004 0000000000000005 0000000000000006 02 "
        f"{BATCH_HEX} 01 00 04 00000007",
    ),
    (  # Kafka 4.1: without the count
        ShareSnapshot(
            snapshot_epoch=0,
            state_epoch=0,
            leader_epoch=0,
            start_offset=-1,
            create_timestamp=0,
            write_timestamp=0,
            state_batches=(),
        ),
        "0000 00000000 00000000 00000000 ffffffffffffffff 0000000000000000 0000000000000000 01 00",
    ),
    (
        ShareUpdate(
            snapshot_epoch=1,
            leader_epoch=3,
            start_offset=4,
            state_batches=(BATCH, BATCH),
            delivery_complete_count=7,
        ),
        f"0000 00000001 00000003 0000000000000004 03 {BATCH_HEX} {BATCH_HEX} 01 00 04 00000007",
    ),
    (
        ShareUpdate(snapshot_epoch=1, leader_epoch=-1, start_offset=-1, state_batches=()),
        "0000 00000001 ffffffff ffffffffffffffff 01 00",
    ),
    (
        ShareGroupMember(rack_id=None, client_id="c", client_host="/h", subscribed_topic_names=("a", "bc")),
        "0000 00 02 63 03 2f68 03 02 61 03 6263 00",
    ),
    (
        ShareGroupMember(rack_id="r", client_id="", client_host="", subscribed_topic_names=()),
        "0000 02 72 01 01 01 00",
    ),
    (ShareGroupMetadata(epoch=258, metadata_hash=-2), "0000 00000102 fffffffffffffffe 00"),
    (
        ShareGroupTargetMetadata(assignment_epoch=3, assignment_timestamp=5),
        "0000 00000003 01 00 08 0000000000000005",
    ),
    (ShareGroupTargetMetadata(assignment_epoch=3), "0000 00000003 00"),
    (
        ShareGroupTargetMember(topic_partitions=(TopicPartitions(topic_id=TOPIC, partitions=(0, 2)),)),
        f"0000 02 {T} 03 00000000 00000002 00 00",
    ),
    (
        ShareGroupCurrentMember(
            member_epoch=5,
            previous_member_epoch=4,
            assigned_partitions=(TopicPartitions(topic_id=TOPIC, partitions=(1,)),),
        ),
        f"0000 00000005 00000004 00 02 {T} 02 00000001 00 00",
    ),
    (
        ShareGroupPartitions(
            initializing_topics=(NamedTopicPartitions(topic_id=TOPIC, topic_name="t", partitions=(1,)),),
            initialized_topics=(),
            deleting_topics=(NamedTopic(topic_id=TOPIC, topic_name="t"),),
        ),
        f"0000 02 {T} 02 74 02 00000001 00 01 02 {T} 02 74 00 00",
    ),
    (
        GroupOffset(offset=7, leader_epoch=2, metadata="m", commit_timestamp=5),
        "0003 0000000000000007 00000002 0001 6d 0000000000000005",
    ),
    (
        ExpiringGroupOffset(offset=7, metadata="m", commit_timestamp=5, expire_timestamp=6),
        "0001 0000000000000007 0001 6d 0000000000000005 0000000000000006",
    ),
    (
        ClassicGroupMetadata(
            protocol_type="consumer",
            generation=3,
            protocol="range",
            leader="m",
            current_state_timestamp=5,
            members=(
                ClassicGroupMember(
                    member_id="m",
                    client_id="c",
                    client_host="/h",
                    rebalance_timeout=1,
                    session_timeout=2,
                    subscription=b"s",
                    assignment=b"",
                ),
            ),
        ),
        "0003 0008 636f6e73756d6572 00000003 0005 72616e6765 0001 6d 0000000000000005 00000001"
        "0001 6d ffff 0001 63 0002 2f68 00000001 00000002 00000001 73 00000000",
    ),
    (
        ClassicGroupMetadata(protocol_type="", generation=0, protocol=None, leader=None, members=()),
        "0003 0000 00000000 ffff ffff ffffffffffffffff 00000000",
    ),
    (ConsumerGroupMetadata(epoch=3, metadata_hash=-2), "0000 00000003 01 00 08 fffffffffffffffe"),
    (
        ConsumerGroupMember(
            instance_id="i",
            rack_id=None,
            client_id="c",
            client_host="/h",
            subscribed_topic_names=("t",),
            subscribed_topic_regex="r",
            rebalance_timeout=9,
            server_assignor="u",
            classic=ClassicMember(
                session_timeout=3, supported_protocols=(ClassicProtocol(name="p", metadata=b"x"),)
            ),
        ),
        "0000 02 69 00 02 63 03 2f68 02 02 74 02 72 00000009 02 75 01 00 0c 01 00000003 02 02 70 02 78 00 00",
    ),
    (
        ConsumerGroupMember(client_id="", client_host="", subscribed_topic_names=()),
        "0000 00 00 01 01 01 00 ffffffff 00 00",
    ),
    (
        ConsumerGroupTargetMetadata(assignment_epoch=3, assignment_timestamp=5),
        "0000 00000003 01 00 08 0000000000000005",
    ),
    (
        ConsumerGroupTargetMember(topic_partitions=(TopicPartitions(topic_id=TOPIC, partitions=(0,)),)),
        f"0000 02 {T} 02 00000000 00 00",
    ),
    (
        ConsumerGroupCurrentMember(
            member_epoch=5,
            previous_member_epoch=4,
            state=1,
            assigned_partitions=(),
            partitions_pending_revocation=(OwnedPartitions(topic_id=TOPIC, partitions=(1,)),),
        ),
        f"0000 00000005 00000004 01 01 02 {T} 02 00000001 00 00",
    ),
    (
        ConsumerGroupCurrentMember(
            member_epoch=5,
            previous_member_epoch=4,
            state=0,
            assigned_partitions=(
                OwnedPartitions(topic_id=TOPIC, partitions=(1, 2), assignment_epochs=(5, 3)),
            ),
            partitions_pending_revocation=(),
        ),
        f"0000 00000005 00000004 00 02 {T} 03 00000001 00000002 01 00 09 03 00000005 00000003 01 00",
    ),
]


@pytest.mark.parametrize(("value", "encoded"), VECTORS)
def test_values_as_bytes(value: Message, encoded: str) -> None:  # SC-9..11, GRP-40
    assert value.encode().hex() == encoded.replace(" ", "")
    assert type(value).decode(bytes.fromhex(encoded)) == value


def test_there_is_a_vector_for_every_value() -> None:
    values = {
        *SHARE_GROUP_VALUES.values(),
        *CONSUMER_GROUP_VALUES.values(),
        *SHARE_STATE_VALUES.values(),
        GroupOffset,
        ExpiringGroupOffset,
    }
    assert {type(value) for value, _ in VECTORS} == values
    assert {*SHARE_GROUP_VALUES, *CONSUMER_GROUP_VALUES} == set(RecordType)


@pytest.mark.parametrize(
    "value",
    [b"", b"\0", b"\0\0", b"\0\1" + bytes(20), ShareGroupMetadata(epoch=1, metadata_hash=1).encode() + b"x"],
)
def test_a_broken_value_is_a_value_error(value: bytes) -> None:
    with pytest.raises(ValueError, match="ShareGroupMetadata"):
        ShareGroupMetadata.decode(value)


def test_a_tag_of_a_later_format_is_refused_and_not_lost() -> None:
    """Ignoring it and writing the record again would drop data of a newer broker."""
    with pytest.raises(ValueError, match="ShareGroupMetadata"):
        ShareGroupMetadata.decode(bytes.fromhex("0000 00000001 0000000000000002 01 09 02 abcd"))


int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
batches = st.lists(
    st.builds(StateBatchRecord, int64, int64, st.integers(-128, 127), st.integers(-(2**15), 2**15 - 1)),
    max_size=5,
)
many = st.integers(0, 300).map(lambda count: [BATCH] * count)


@given(int32, int32, int64, int32, batches | many)
def test_the_hand_packed_update_is_kios(
    epoch: int, leader: int, start: int, count: int, found: list[StateBatchRecord]
) -> None:
    update = ShareUpdate(
        snapshot_epoch=epoch,
        leader_epoch=leader,
        start_offset=start,
        state_batches=tuple(found),
        delivery_complete_count=count,
    )
    plain = [
        (each.first_offset, each.last_offset, each.delivery_state, each.delivery_count) for each in found
    ]
    assert encode_share_update(epoch, leader, start, count, plain) == update.encode()
    assert ShareUpdate.decode(update.encode()) == update


@given(
    st.tuples(int32, int32, int32),
    st.tuples(int64, int64, int64),
    st.tuples(st.sampled_from([-1, 0, 7]) | int32, st.sampled_from([-1, 0, 7]) | int32),
    st.sampled_from([0, 1, (7 << 32) + 1]) | int64,
    batches | many,
)
def test_snapshots_are_packed_by_hand_as_kio_does_it(
    epochs: tuple[int, int, int],
    offset_and_times: tuple[int, int, int],
    tags: tuple[int, int],
    generation: int,
    found: list[StateBatchRecord],
) -> None:
    snapshot = ShareSnapshot(
        snapshot_epoch=epochs[0],
        state_epoch=epochs[1],
        leader_epoch=epochs[2],
        start_offset=offset_and_times[0],
        create_timestamp=offset_and_times[1],
        write_timestamp=offset_and_times[2],
        state_batches=tuple(found),
        delivery_complete_count=tags[0],
        written_in=tags[1],
        parked_generation=generation,
    )
    plain = [
        (each.first_offset, each.last_offset, each.delivery_state, each.delivery_count) for each in found
    ]
    assert encode_share_snapshot(*epochs, *offset_and_times, *tags, plain, generation) == snapshot.encode()
    assert ShareSnapshot.decode(snapshot.encode()) == snapshot


def test_a_snapshot_with_parked_records_as_bytes_and_one_without_as_ever() -> None:
    head = "0000 00000001 00000002 00000003 0000000000000004 0000000000000005 0000000000000006 01"
    snapshot = ShareSnapshot(
        snapshot_epoch=1, state_epoch=2, leader_epoch=3, start_offset=4,
        create_timestamp=5, write_timestamp=6, state_batches=(), delivery_complete_count=7, written_in=8,
    )  # fmt: skip
    without, parking = (
        f"{head} 02 00 04 00000007 e807 04 00000008",
        replace(snapshot, parked_generation=(9 << 32) + 1),
    )
    assert snapshot.encode() == bytes.fromhex(without)
    assert parking.encode() == bytes.fromhex(
        f"{head} 03 00 04 00000007 e807 04 00000008 e907 08 0000000900000001"
    )
    assert ShareSnapshot.decode(snapshot.encode()).parked_generation == 0


topics = st.builds(
    NamedTopicPartitions,
    topic_id=st.uuids(version=4),
    topic_name=st.text(),
    partitions=st.lists(int32, max_size=200).map(tuple),
)


@given(st.lists(topics, max_size=3).map(tuple), st.lists(topics, max_size=3).map(tuple), st.text())
def test_round_trips(
    initializing: tuple[NamedTopicPartitions, ...], initialized: tuple[NamedTopicPartitions, ...], name: str
) -> None:
    partitions = ShareGroupPartitions(
        initializing_topics=initializing,
        initialized_topics=initialized,
        deleting_topics=(NamedTopic(topic_id=TOPIC, topic_name=name),),
    )
    assert ShareGroupPartitions.decode(partitions.encode()) == partitions
    member = ShareGroupMember(
        rack_id=name, client_id=name, client_host=name, subscribed_topic_names=(name, name)
    )
    assert ShareGroupMember.decode(member.encode()) == member


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.text(max_size=40),
    st.integers(0, 2**62),
)
def test_offsets_are_packed_by_hand_as_kio_does_it(
    offset: int, leader_epoch: int, metadata: str, now_ms: int
) -> None:
    for value in (
        GroupOffset(offset=offset, leader_epoch=leader_epoch, metadata=metadata, commit_timestamp=now_ms),
        ExpiringGroupOffset(
            offset=offset, metadata=metadata, commit_timestamp=now_ms, expire_timestamp=now_ms + 1000
        ),
    ):
        assert value.encode() == Message.encode(value)
        assert decode_group_offset(value.encode()) == value


def test_the_longest_metadata_fits() -> None:
    value = GroupOffset(offset=1, metadata="x" * MAX_METADATA_BYTES, commit_timestamp=2)
    assert decode_group_offset(value.encode()) == value
