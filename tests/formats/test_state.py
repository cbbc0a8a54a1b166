"""Keys and values of stored state: they sort, survive a round trip, and are skipped if a later
format wrote them."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import blake2b
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.formats import state as state_records
from kbroker.formats.parked_records import (
    BlockedKey,
    KeptRecord,
    ParkedCount,
    ParkedKey,
    ParkedRecord,
    ParkedValue,
    RejectionReason,
    Shelf,
    by_offset_key,
    end_of,
    generation_prefix,
    parked_prefix,
    parked_topic_prefix,
    place_key,
    read_parked_entries,
    shelf_of,
)
from kbroker.formats.security_values import (
    AclKey,
    QuotaKey,
    ScramCredential,
    ScramKey,
    ScramMechanism,
    ScramSecret,
    StoredAcl,
    StoredQuota,
)
from kbroker.formats.share_records import (
    MEMBER_RECORD_TYPES,
    NamedTopic,
    NamedTopicPartitions,
    RecordType,
    ShareGroupPartitions,
    ShareSnapshot,
    ShareUpdate,
)
from kbroker.formats.state import (
    GENERATION,
    MAX_GROUP_ID_BYTES,
    MAX_KEY_BYTES,
    PERSISTER,
    PRODUCER_IDS,
    SCRAM_SECRET,
    Cleaned,
    CleanedKey,
    Config,
    ConfigKey,
    ControlChain,
    ControlHint,
    ControlHintKey,
    DeadLetterCursor,
    DeadLetterKey,
    Generation,
    GivenUp,
    GivenUpKey,
    GroupKey,
    GroupOffsetKey,
    LeaderEpoch,
    LeaderEpochKey,
    LogStart,
    LogStartKey,
    PendingOffsetKey,
    PersisterName,
    Producer,
    ProducerBatch,
    ProducerIds,
    ProducerSnapshot,
    ProducerSnapshotKey,
    ResourceType,
    ShareStateKey,
    StateKey,
    Topic,
    TopicKey,
    TopicState,
    dead_letter_topic_prefix,
    given_up_topic_prefix,
    group_prefix,
    parse_key,
    read_entries,
    share_partition_prefix,
    share_state_number,
    share_topic_prefix,
)
from kbroker.formats.transactions import AbortedKey, TransactionalLog, TransactionalLogKey, TransactionKey

TOPIC = UUID("00000000-0000-0001-0000-000000000002")
OTHER = UUID("01234567-89ab-cdef-0123-456789abcdef")
TOPIC_HEX = "00000000000000010000000000000002"

PARKED = (
    b"parked/" + bytes.fromhex(TOPIC_HEX + "00000003") + b"\x00\x02g1" + bytes.fromhex("0000000000000102")
)

KEYS_AND_BYTES = [
    (GENERATION, b"meta/generation"),
    (TopicKey(TOPIC), b"topic/" + TOPIC.bytes),
    (ConfigKey(ResourceType.GROUP, "grün"), b"config/\x20gr\xc3\xbcn"),
    (ScramKey(ScramMechanism.SHA_512, "jürgen"), b"scram/\x02j\xc3\xbcrgen"),
    (CleanedKey(TOPIC, 3), b"cleaned/" + bytes.fromhex(TOPIC_HEX + "00000003")),
    (LogStartKey(TOPIC, 3), b"log_start/" + bytes.fromhex(TOPIC_HEX + "00000003")),
    (LeaderEpochKey(TOPIC, 3, 258), b"leader_epoch/" + bytes.fromhex(TOPIC_HEX + "0000000300000102")),
    (
        ProducerSnapshotKey(TOPIC, 3, 258),
        b"producers/" + bytes.fromhex(TOPIC_HEX + "000000030000000000000102"),
    ),
    (GroupKey(RecordType.SHARE_GROUP_METADATA, "g1"), b"group/\x00\x02g1\x00\x0b"),
    (GroupKey(RecordType.SHARE_GROUP_MEMBER, "g1", "m"), b"group/\x00\x02g1\x00\x0a\x00\x01m"),
    (GroupOffsetKey("g1", TOPIC, 3), b"offset/\x00\x02g1" + bytes.fromhex(TOPIC_HEX + "00000003")),
    (
        ShareStateKey(TOPIC, 3, "g1", 7),
        b"share/" + bytes.fromhex(TOPIC_HEX + "00000003") + b"\x00\x02g1" + bytes(7) + b"\x07",
    ),
    (DeadLetterKey(TOPIC, 3, "g1"), b"dead_letter/" + bytes.fromhex(TOPIC_HEX + "00000003") + b"\x00\x02g1"),
    (GivenUpKey(TOPIC, 3, "g1"), b"given_up/" + bytes.fromhex(TOPIC_HEX + "00000003") + b"\x00\x02g1"),
    (ControlHintKey(TOPIC, 3), b"share_control/" + bytes.fromhex(TOPIC_HEX + "00000003")),
    (ParkedKey(TOPIC, 3, "g1", 258, 0), PARKED + b"\x00"),
    (ParkedKey(TOPIC, 3, "g1", 258, 1, offset=77), PARKED + bytes.fromhex("01 000000000000004d")),
    (
        ParkedKey(TOPIC, 3, "g1", 258, 2, offset=77, due_ms=1_000),
        PARKED + bytes.fromhex("02 00000000000003e8 000000000000004d"),
    ),
    (ParkedKey(TOPIC, 3, "g1", 258, 5, offset=77), PARKED + bytes.fromhex("05 000000000000004d")),
    (ParkedKey(TOPIC, 3, "g1", 258, 7, offset=77), PARKED + bytes.fromhex("07 000000000000004d")),
    (
        ParkedKey(TOPIC, 3, "g1", 258, 4, offset=77),
        PARKED + bytes.fromhex("04 0000000000000000 000000000000004d"),
    ),
    (TransactionKey("grün"), b"transaction/gr\xc3\xbcn"),
    (TransactionalLogKey(TOPIC, 3), b"transactional/" + bytes.fromhex(TOPIC_HEX + "00000003")),
    (
        PendingOffsetKey(258, "g1", TOPIC, 3),
        b"txn_offset/" + bytes.fromhex("0000000000000102 0002 6731" + TOPIC_HEX + "00000003"),
    ),
    (AbortedKey(TOPIC, 3, 258), b"aborted/" + bytes.fromhex(TOPIC_HEX + "000000030000000000000102")),
    (AclKey(TOPIC), b"acl/" + TOPIC.bytes),
    (QuotaKey(TOPIC), b"quota/" + TOPIC.bytes),
]

ACL = StoredAcl(2, 3, "orders", "User:grün", "*", 4, 3)

QUOTA = StoredQuota({"user": "grün", "client-id": None}, {"producer_byte_rate": 1000.0})

VALUES = [
    (
        QuotaKey.of(QUOTA.entity),
        QUOTA,
        '{"entity":{"client-id":null,"user":"grün"},"values":{"producer_byte_rate":1000.0}}'.encode(),
    ),
    (
        AclKey.of(ACL),
        ACL,
        '{"host":"*","name":"orders","operation":4,"pattern_type":3,"permission":3,"principal":"User:grün",'
        '"resource_type":2}'.encode(),
    ),
    (GENERATION, Generation(7), b'{"number":7,"unsynced":false}'),
    (GENERATION, Generation(8, unsynced=True), b'{"number":8,"unsynced":true}'),
    (PERSISTER, PersisterName("default"), b'{"name":"default"}'),
    (PRODUCER_IDS, ProducerIds(1000), b'{"next_id":1000}'),
    (SCRAM_SECRET, ScramSecret(b"\1\xff"), b'{"secret":"01ff"}'),
    (
        ScramKey(ScramMechanism.SHA_256, "alice"),
        ScramCredential(b"salt", 4096, b"\2", b"\3"),
        b'{"iterations":4096,"salt":"73616c74","server_key":"03","stored_key":"02"}',
    ),
    (
        TopicKey(TOPIC),
        Topic("orders", 3, 5),
        b'{"created_ms":5,"name":"orders","partitions":3,"state":"live"}',
    ),
    (
        TopicKey(TOPIC),
        Topic("orders", 3, 5, TopicState.DELETING),
        b'{"created_ms":5,"name":"orders","partitions":3,"state":"deleting"}',
    ),
    (
        ConfigKey(ResourceType.GROUP, "g"),
        Config({"share.auto.offset.reset": "earliest"}),
        b'{"entries":{"share.auto.offset.reset":"earliest"}}',
    ),
    (LogStartKey(TOPIC, 0), LogStart(12), b'{"offset":12}'),
    (CleanedKey(TOPIC, 0), Cleaned(12), b'{"offset":12}'),
    (TransactionalLogKey(TOPIC, 0), TransactionalLog(12), b'{"first_offset":12}'),
    (LeaderEpochKey(TOPIC, 0, 4), LeaderEpoch(99), b'{"start_offset":99}'),
    (
        ProducerSnapshotKey(TOPIC, 0, 100),
        ProducerSnapshot(
            (Producer(1000, 0, (ProducerBatch(0, 4, 90, 94, 5), ProducerBatch(5, 5, 95, 95, 6))),)
        ),
        b'{"producers":[[1000,0,[[0,4,90,94,5],[5,5,95,95,6]]]]}',
    ),
    (
        DeadLetterKey(TOPIC, 0, "g"),
        DeadLetterCursor(OTHER, "dlq.orders", 2, 7),
        b'{"offset":7,"partition":2,"topic":"dlq.orders","topic_id":"01234567-89ab-cdef-0123-456789abcdef"}',
    ),
    (
        DeadLetterKey(TOPIC, 0, "g"),
        DeadLetterCursor(None, "dlq.orders", 0, 0),
        b'{"offset":0,"partition":0,"topic":"dlq.orders","topic_id":null}',
    ),
    (GivenUpKey(TOPIC, 0, "g"), GivenUp(10_000), b'{"records":10000}'),
    (
        ControlHintKey(TOPIC, 0),
        ControlHint(90, True, {"g": ControlChain(7, 80)}),
        b'{"groups":{"g":[7,80]},"is_open":true,"offset":90}',
    ),
]


@pytest.mark.parametrize(("key", "encoded"), KEYS_AND_BYTES)
def test_keys_as_bytes(key: StateKey, encoded: bytes) -> None:
    assert key.encode() == encoded
    assert parse_key(encoded) == key


PARKED_VALUES = [
    (ParkedKey(TOPIC, 3, "g", 1, 0), ParkedCount(258),
     "00 0000000000000102"),
    (ParkedKey(TOPIC, 3, "g", 1, 1, offset=77), ParkedRecord(77, 2, 1000, 5, 258, False),
     "00 02 00000000000003e8 0005 00000102"),
    (ParkedKey(TOPIC, 3, "g", 1, 1, offset=77), ParkedRecord(77, 4, 0, 5, 258, True),
     "01 04 0000000000000000 0005 00000102"),
    (ParkedKey(TOPIC, 3, "g", 1, 3, offset=77, due_ms=9), ParkedRecord(77, 3, 9, 0, 0, False),
     "00 0000 00000000"),
    (ParkedKey(TOPIC, 3, "g", 1, 4, offset=77), ParkedRecord(77, 4, 0, 5, 258, True),
     "01 0005 00000102"),
    (ParkedKey(TOPIC, 3, "g", 1, 1, offset=77),
     ParkedRecord(77, 2, 1000, 5, 258, False, key_hash=0xFEDCBA9876543210),
     "02 02 00000000000003e8 0005 00000102 fedcba9876543210"),
    (ParkedKey(TOPIC, 3, "g", 1, 4, offset=77), ParkedRecord(77, 4, 0, 5, 258, True, key_hash=1),
     "03 0005 00000102 0000000000000001"),
    (ParkedKey(TOPIC, 3, "g", 1, 1, offset=77), ParkedRecord(77, 4, 0, 0, 258, False, True),
     "04 04 0000000000000000 0000 00000102"),
    (ParkedKey(TOPIC, 3, "g", 1, 4, offset=77), ParkedRecord(77, 4, 0, 0, 258, False, True, 1),
     "06 0000 00000102 0000000000000001"),
    (ParkedKey(TOPIC, 3, "g", 1, 6, offset=77, key_hash=258), BlockedKey(258, 77),
     "00"),
    (ParkedKey(TOPIC, 3, "g", 1, 1, offset=77), ParkedRecord(77, 2, 9, 5, 258, False, kept=True),
     "08 02 0000000000000009 0005 00000102"),
    (ParkedKey(TOPIC, 3, "g", 1, 4, offset=77), ParkedRecord(77, 4, 0, 5, 258, True, False, 1, True),
     "0b 0005 00000102 0000000000000001"),
    (ParkedKey(TOPIC, 3, "g", 1, 5, offset=77), KeptRecord(b"a batch"),
     "00 61206261746368"),
    (ParkedKey(TOPIC, 3, "g", 1, 7, offset=77), RejectionReason("E", "\u00fc", ""),
     "00 0001 45 0002 c3bc 0000"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "encoded"), PARKED_VALUES)
def test_parked_values_as_bytes(key: ParkedKey, value: ParkedValue, encoded: str) -> None:
    """They are on disk: every later version has to read them."""
    stored = bytes.fromhex(encoded)
    assert key.decode_value(stored) == value
    assert (
        value.encode_place() if isinstance(value, ParkedRecord) and key.kind > 1 else value.encode()
    ) == stored


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (0, ""), (0, "00 00000000000001"), (0, "01 0000000000000001"), (0, "00 ffffffffffffffff"),
        (1, "00 02 00000000000003e8 0005"), (1, "00 05 00000000000003e8 0005 00000102"),
        (1, "02 02 00000000000003e8 0005 00000102"),
        (1, "10 02 00000000000003e8 0005 00000102"), (2, "02 0005 00000102 00000000000000"), (6, "01"),
        (2, "00 0005 00000102 00"), (2, "80 0005 00000102"),
        (5, ""), (5, "00"), (5, "01 61"),
        (7, ""), (7, "01 0000 0000 0000"), (7, "00 0000 0000"), (7, "00 0000 0000 0000 00"),
        (7, "00 0000 0000 0001 ff"), (7, "00 ffff 0000 0000"), (7, "00 0000 0000 0002 61"),
    ],
)  # fmt: skip
def test_a_parked_value_that_is_broken_or_of_a_later_version_is_a_value_error(kind: int, value: str) -> None:
    with pytest.raises(ValueError, match=r"parked record|key that waits|reason of a rejection"):
        ParkedKey(TOPIC, 3, "g", 1, kind).decode_value(bytes.fromhex(value))


def test_parked_keys_sort_by_what_they_name() -> None:
    prefix = generation_prefix(parked_prefix("g", TOPIC, 3), 7)
    places = [
        place_key(prefix, 2, due_ms, offset)
        for due_ms, offset in ((0, 5), (3, 1), (3, 2), (255, 0), (256, 0), (1 << 40, 0))
    ]
    offsets = [by_offset_key(prefix, offset) for offset in (0, 9, 255, 256, (1 << 63) - 1)]
    assert sorted([*places, *offsets]) == [*offsets, *places]
    assert all(key < end_of(prefix) for key in (*places, *offsets))
    assert end_of(prefix) <= generation_prefix(parked_prefix("g", TOPIC, 3), 8)
    before, behind = (
        generation_prefix(parked_prefix("g", TOPIC, 3), generation) for generation in (255, 256)
    )
    assert place_key(before, 4, (1 << 63) - 1, 5) < end_of(before) <= behind
    assert prefix.startswith(parked_topic_prefix(TOPIC))
    assert shelf_of(places[0]) == Shelf(TOPIC, 3, "g", 7, prefix)


def test_parked_entries_of_a_later_kind_are_left_out_and_broken_ones_are_not() -> None:
    key = ParkedKey(TOPIC, 3, "g", 1, 0)
    later = generation_prefix(parked_prefix("g", TOPIC, 3), 1) + b"\x09?"
    assert list(read_parked_entries([(later, b"?"), (key.encode(), ParkedCount(2).encode())])) == [
        (key, ParkedCount(2))
    ]
    assert parse_key(later) is None
    for broken in (b"parked/x", key.encode()[:-1], key.encode() + b"x"):
        with pytest.raises(ValueError, match="parked"):
            list(read_parked_entries([(broken, b"")]))
        with pytest.raises(ValueError, match="parked"):
            parse_key(broken)


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"secret":1}', b'{"secret":"ca7a", "secret":"x"}'])
def test_a_broken_secret_is_not_told(value: bytes) -> None:
    for decode in (ScramSecret.decode, ScramCredential.decode):
        with pytest.raises(ValueError, match=rf"^not a Scram\w+ \({len(value)} bytes\)$"):
            decode(value)


@pytest.mark.parametrize(("key", "value", "encoded"), VALUES)
def test_values_as_bytes(key: StateKey, value: state_records.JsonValue, encoded: bytes) -> None:
    assert value.encode() == encoded
    assert key.decode_value(encoded) == value


def test_the_id_of_an_acl_is_a_hash_of_its_value() -> None:
    """As docs/format.md says, so that other versions find the same key."""
    assert AclKey.of(ACL) == AclKey.of(replace(ACL))
    assert AclKey.of(ACL).acl_id == UUID(bytes=blake2b(ACL.encode(), digest_size=16).digest())
    assert AclKey.of(ACL) != AclKey.of(replace(ACL, host="10.0.0.1"))


def test_the_id_of_a_quota_is_a_hash_of_its_entity() -> None:
    digest = blake2b('{"client-id":null,"user":"grün"}'.encode(), digest_size=16).digest()
    assert QuotaKey.of({"user": "grün", "client-id": None}).quota_id == UUID(bytes=digest)
    assert QuotaKey.of({"user": "grün"}) != QuotaKey.of({"user": "grün", "client-id": None})


def test_every_namespace_is_in_the_table_at_the_head() -> None:
    assert state_records.__doc__ is not None
    assert {key.namespace for key, _ in KEYS_AND_BYTES} == set(state_records.DECLARED)
    for namespace in state_records.DECLARED:
        assert f"\n    {namespace.decode()} " in state_records.__doc__
    assert {key.name for key, *_ in VALUES if isinstance(key, state_records.MetaKey)} == set(
        state_records.META_VALUES
    )


@pytest.mark.parametrize(
    "key",
    [
        b"later/x",
        b"meta/later",
        b"scram/\x09alice",
        b"noslash",
        b"",
        b"group/\x00\x01g\x00\x04",
        b"group/\x00\x01g\x00\x63\x00\x01m",
    ],
)
def test_what_a_later_format_knows_is_skipped(key: bytes) -> None:
    assert parse_key(key) is None
    assert list(read_entries([(key, b"?"), (GENERATION.encode(), b'{"number":1,"later":true}')])) == [
        (GENERATION, Generation(1))
    ]


@pytest.mark.parametrize(
    "key",
    [
        b"topic/short",
        b"config/",
        b"config/\x63x",
        b"log_start/x",
        b"group/\x00\x09g",
        b"group/\x00\x01g\x00",
        b"share/x",
        b"meta/\xff",
        b"dead_letter/x",
        b"given_up/x",
        b"share_control/x",
        b"parked/x",
        b"scram/",
        b"scram/\x01\xff",
    ],
)
def test_a_broken_key_is_a_value_error(key: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_key(key)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"{}",
        b'{"name":"x"}',
        b"\xff",
        b'{"name":"x","partitions":1,"created_ms":1,"state":"odd"}',
    ],
)
def test_a_broken_value_is_a_value_error(value: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Topic.decode(value)


def test_many_producers_are_one_json_value() -> None:
    """It is written and read in pieces; earlier versions wrote and read it as a whole."""
    batches = tuple(ProducerBatch(number, number + 1, 7, 8, -1) for number in range(5))
    snapshot = ProducerSnapshot(
        tuple(Producer(number, number % 3, batches[: number % 6]) for number in range(1000))
    )
    idempotent = [each[:3] for each in snapshot.producers]
    encoded = json.dumps({"producers": idempotent}, separators=(",", ":")).encode()
    assert snapshot.encode() == encoded
    assert ProducerSnapshot.decode(encoded) == snapshot
    assert ProducerSnapshot.decode(b'{"producers":[]}') == ProducerSnapshot(())


def test_a_transactional_producer_has_more_members() -> None:
    producer = Producer(5, 1, (), coordinator_epoch=3, open_from=12, marked_ms=900)
    encoded = b'{"producers":[[5,1,[],3,12,900]]}'
    assert ProducerSnapshot((producer,)).encode() == encoded
    assert ProducerSnapshot.decode(encoded) == ProducerSnapshot((producer,))
    newer = producer._replace(newest_ms=800)
    encoded = b'{"producers":[[5,1,[],3,12,900,800]]}'
    assert ProducerSnapshot((newer,)).encode() == encoded
    assert ProducerSnapshot.decode(encoded) == ProducerSnapshot((newer,))
    idempotent = Producer(5, 1, (), newest_ms=800)
    assert ProducerSnapshot((idempotent,)).encode() == b'{"producers":[[5,1,[]]]}'


@pytest.mark.parametrize(
    "part",
    [b"[5,0,[]]", b"[5,0,[]],[6,0,[[1,2]]]]}", b"[5,0]]}", b"[5,0,[]]]", b"5]}", b"[5,0,[]]]}]}", b"[5,0,["],
)
def test_broken_producers_are_a_value_error(part: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        ProducerSnapshot.decode(b'{"producers":[' + part)


names = st.text(max_size=40)
topic_ids = st.uuids(version=4)
numbers = st.integers(0, 2**31 - 1)
keys: st.SearchStrategy[StateKey] = st.one_of(
    st.builds(TopicKey, topic_ids),
    st.builds(ConfigKey, st.sampled_from(ResourceType), names),
    st.builds(LogStartKey, topic_ids, numbers),
    st.builds(LeaderEpochKey, topic_ids, numbers, numbers),
    st.builds(ProducerSnapshotKey, topic_ids, numbers, st.integers(0, 2**63 - 1)),
    st.builds(GroupKey, st.sampled_from(sorted(MEMBER_RECORD_TYPES)), names, names),
    st.builds(GroupKey, st.sampled_from(sorted(set(RecordType) - MEMBER_RECORD_TYPES)), names),
    st.builds(ShareStateKey, topic_ids, numbers, names, st.integers(0, 2**63 - 1)),
    st.builds(DeadLetterKey, topic_ids, numbers, names),
    st.builds(GivenUpKey, topic_ids, numbers, names),
    st.builds(
        ParkedKey, topic_ids, numbers, names, st.integers(0, 2**63 - 1), st.just(1), st.integers(0, 2**63 - 1)
    ),
    st.builds(
        ParkedKey,
        topic_ids,
        numbers,
        names,
        st.integers(0, 2**63 - 1),
        st.integers(2, 4),
        *[st.integers(0, 2**63 - 1)] * 2,
    ),
)


@settings(deadline=None)
@given(keys)
def test_every_key_comes_back(key: StateKey) -> None:
    assert parse_key(key.encode()) == key


@given(names, names, topic_ids, st.lists(st.integers(0, 2000), max_size=8))
def test_a_scan_finds_one_share_partition_in_the_order_of_its_updates(
    group: str, other: str, topic: UUID, found: list[int]
) -> None:
    prefix = share_partition_prefix(group, topic, 5)
    encoded = [ShareStateKey(topic, 5, group, number).encode() for number in found]
    assert encoded == [prefix + share_state_number(number) for number in found]
    assert sorted(encoded) == [prefix + share_state_number(number) for number in sorted(found)]
    assert prefix.startswith(share_topic_prefix(topic))
    if group != other:
        assert not ShareStateKey(topic, 5, other, 0).encode().startswith(prefix)
        assert DeadLetterKey(topic, 5, other).encode() != DeadLetterKey(topic, 5, group).encode()
        assert not GivenUpKey(topic, 5, other).encode().startswith(GivenUpKey(topic, 5, group).encode())
        assert not GroupKey(RecordType.SHARE_GROUP_METADATA, other).encode().startswith(group_prefix(group))
    assert DeadLetterKey(topic, 5, group).encode().startswith(dead_letter_topic_prefix(topic))
    assert GivenUpKey(topic, 5, group).encode().startswith(given_up_topic_prefix(topic))


def test_keys_of_the_longest_names_fit_every_engine() -> None:
    group, member = "g" * MAX_GROUP_ID_BYTES, "\U0001f600" * 36
    longest = max(
        GroupKey(RecordType.SHARE_GROUP_MEMBER, group, member).encode(),
        ShareStateKey(TOPIC, 1, group, 1).encode(),
        DeadLetterKey(TOPIC, 1, group).encode(),
        ParkedKey(TOPIC, 1, group, 1, 2).encode(),
        ConfigKey(ResourceType.GROUP, group).encode(),
        ConfigKey(ResourceType.TOPIC, "t" * 249).encode(),
        key=len,
    )
    assert len(longest) == 411 <= MAX_KEY_BYTES


def test_group_and_share_values_are_kafkas_records() -> None:
    snapshot = ShareSnapshot(
        snapshot_epoch=0,
        state_epoch=1,
        leader_epoch=0,
        start_offset=-1,
        create_timestamp=5,
        write_timestamp=5,
        state_batches=(),
    )
    update = ShareUpdate(
        snapshot_epoch=0, leader_epoch=1, start_offset=4, state_batches=(), delivery_complete_count=0
    )
    partitions = ShareGroupPartitions(
        initializing_topics=(NamedTopicPartitions(topic_id=TOPIC, topic_name="orders", partitions=(1,)),),
        initialized_topics=(NamedTopicPartitions(topic_id=TOPIC, topic_name="orders", partitions=(0, 2)),),
        deleting_topics=(NamedTopic(topic_id=OTHER, topic_name="old"),),
    )
    entries = [
        (ShareStateKey(TOPIC, 0, "g", 0), snapshot),
        (ShareStateKey(TOPIC, 0, "g", 1), update),
        (GroupKey(RecordType.SHARE_GROUP_PARTITIONS, "g"), partitions),
    ]
    assert list(read_entries((key.encode(), value.encode()) for key, value in entries)) == entries
