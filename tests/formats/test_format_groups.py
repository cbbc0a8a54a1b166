"""docs/format.md and the heads that it links to are sufficient to read groups of all types and
their offsets from every engine's directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from kbroker import plugins
from kbroker.client.rpc import Connection
from kbroker.formats.group_records import NOT_CLASSIC, ClassicMember
from kbroker.formats.share_records import Message
from kbroker.formats.state import GroupKey, GroupOffsetKey, parse_key
from kbroker.testing.broker import open_test_broker
from tests.formats.page_groups import GroupRecord, groups, offsets
from tests.formats.page_reader import read_directory
from tests.groups.world import subscription

HEARTBEAT = {
    "instance_id": None,
    "rack_id": None,
    "rebalance_timeout": 60_000,
    "server_assignor": None,
    "topic_partitions": (),
}


def fill(connection: Connection) -> None:
    """Every type of record, with and without its optional fields."""
    join = {"session_timeout": 6000, "rebalance_timeout": 6000, "member_id": "", "protocol_type": "consumer"}
    protocols = [
        {"name": "range", "metadata": subscription("orders")},
        {"name": "sticky", "metadata": b"\0\1?"},
    ]
    joined = connection.call(
        "join_group", 5, group_id="classic", **join, group_instance_id="one", protocols=protocols
    )
    row = [{"member_id": joined.member_id, "assignment": b"all of it"}]
    member = {
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "group_instance_id": "one",
    }
    assert connection.call("sync_group", 4, group_id="classic", **member, assignments=row).error_code == 0
    beat = {**HEARTBEAT, "group_id": "consumer", "member_epoch": 0}
    by_name = {**beat, "member_id": "by name", "subscribed_topic_names": ["orders"], "rack_id": "here"}
    assert connection.call("consumer_group_heartbeat", 0, **by_name).error_code == 0
    by_regex = {
        **beat,
        "member_id": "by regex",
        "subscribed_topic_names": (),
        "subscribed_topic_regex": "or.*",
        "instance_id": "two",
    }
    assert (
        connection.call("consumer_group_heartbeat", 1, **{**by_regex, "server_assignor": "range"}).error_code
        == 0
    )
    assert connection.call("join_group", 3, group_id="consumer", **join, protocols=protocols).error_code == 0
    share = {
        "group_id": "share",
        "member_id": "m",
        "member_epoch": 0,
        "rack_id": None,
        "subscribed_topic_names": ["orders", "none"],
    }
    assert connection.call("share_group_heartbeat", 1, **share).error_code == 0
    rows = [
        {"partition_index": number, "committed_offset": number, "committed_metadata": "m é" * number}
        for number in range(3)
    ]
    nobody = {"generation_id_or_member_epoch": -1, "member_id": ""}
    for retention_ms, group in ((-1, "simple"), (60_000, "expiring")):
        topics = [{"name": "orders", "partitions": rows}]
        connection.call(
            "offset_commit", 2, group_id=group, **nobody, retention_time=retention_ms, topics=topics
        )


def flat(value: Any) -> Any:
    """The fields of one of kbroker's messages, in the form of the page's reader."""
    if value is NOT_CLASSIC or value == NOT_CLASSIC:
        return None
    if isinstance(value, ClassicMember):
        return (value.session_timeout, flat(value.supported_protocols))
    if is_dataclass(value):
        return tuple(
            _tagged(value, each.name) if "tag" in each.metadata else flat(getattr(value, each.name))
            for each in fields(value)
        )
    return tuple(map(flat, value)) if isinstance(value, tuple) else value


def _tagged(value: Any, name: str) -> Any:
    found = getattr(value, name)
    return None if found in (0, ()) else flat(found)


def expected(state: Mapping[bytes, bytes]) -> tuple[dict[GroupRecord, Any], dict[Any, Any]]:
    records, committed = {}, {}
    for stored, value in state.items():
        key = parse_key(stored)
        if isinstance(key, GroupKey):
            message: Message = key.decode_value(value)
            records[GroupRecord(key.group_id, int(key.record_type), key.member_id)] = flat(message)
        elif isinstance(key, GroupOffsetKey):
            offset = key.decode_value(value)
            committed[key.group_id, key.topic_id, key.partition] = {
                each.name: getattr(offset, each.name) for each in fields(offset)
            }
    return records, committed


@pytest.mark.parametrize(
    ("engine", "end"),
    [("segment", "stop"), ("segment", "kill"), ("lmdb", "kill"), ("rocksdb", "kill"), ("sqlite", "kill")],
)
def test_the_page_describes_groups_and_offsets(engine: str, end: str) -> None:
    config = {"group.initial.rebalance.delay.ms": "0", "group.consumer.assignment.interval.ms": "0"}
    with open_test_broker(storage=engine, state_storage=engine, config=config) as broker:
        broker.create_topic("orders", partitions=3)
        with broker.connect() as connection:
            fill(connection)
            getattr(broker, end)()
        # before the engine: opening a reader may change the files of a killed broker
        page = read_directory(broker.data_dir)
        state = plugins.state_store_factory(engine).open_reader(broker.data_dir / f"state-{engine}")
        try:
            records, committed = expected(dict(state.scan(b"")))
        finally:
            state.close()
    assert groups(page.state) == records
    assert offsets(page.state) == committed
    assert {key.type for key in records} >= {2, 3, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15}
    assert len(committed) == 6
    assert any(value[-1] is not None for key, value in records.items() if key.type == 5), (
        "a member speaks the classic protocol"
    )
    assert any(value[-1] is None for key, value in records.items() if key.type == 5)
