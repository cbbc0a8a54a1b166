"""Requests that ask for much stored state, which each case stores first, and small requests whose
payloads inflate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from uuid import UUID

from kbroker.client.rpc import Connection
from kbroker.clock import wall_clock_ms
from kbroker.formats.batches import ProducerInfo, Record, build_batch
from kbroker.formats.compression import DEFAULT_MAX_BYTES, Codec, compress
from tests.odd_batches import payload_of, with_payload
from tests.server.hostile_judge import Judge, Verdict
from tests.server.numeric_fields import Topic, Values

_AT_ONCE: Final = 200
_MOST_PARTITIONS: Final = 10_000
"""Of a request that creates them."""
_NOTHING: Values = {"include_authorized_operations": False}


def _send_all(connection: Connection, api: str, version: int, requests: Iterable[Values]) -> None:
    """Pipelined, and answered."""
    frames = [connection.encode(api, version, each) for each in requests]
    for at in range(0, len(frames), _AT_ONCE):
        some = frames[at : at + _AT_ONCE]
        connection.send_raw(b"".join(some))
        for _ in some:
            connection.read_frame()


def _new_topic(judge: Judge, name: str, partitions: int) -> Topic:
    asked: Values = {
        "name": name,
        "num_partitions": min(partitions, _MOST_PARTITIONS),
        "replication_factor": 1,
    }
    (row,) = judge.connection.call(
        "create_topics", 7, topics=[{**asked, "assignments": (), "configs": ()}], timeout=60_000,
        validate_only=False,
    ).topics  # fmt: skip
    assert row.error_code == 0, row
    for count in range(2 * _MOST_PARTITIONS, partitions + 1, _MOST_PARTITIONS):
        more = [{"name": name, "count": count, "assignments": None}]
        judge.connection.call("create_partitions", 3, topics=more, timeout=60_000, validate_only=False)
    return Topic(name, UUID(bytes=row.topic_id.bytes))


class _Asking:
    """Memory is measured for the first request of each API, since it makes a broker three times as
    slow."""

    def __init__(self, judge: Judge, rows: int) -> None:
        self._judge = judge
        self._rows = rows
        self._measured: set[str] = set()

    def __call__(self, name: str, api: str, version: int, **values: Any) -> Verdict:
        frame = self._judge.connection.encode(api, version, values)
        with_memory = api not in self._measured
        self._measured.add(api)
        return self._judge.ask(name, self._rows, frame, with_memory=with_memory)


def _groups(judge: Judge, rows: int) -> Iterator[Verdict]:
    ask, (name, _) = _Asking(judge, rows), judge.world.topic
    committed = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    topics = [{"name": name, "partitions": [committed]}]
    member = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    groups = ({"group_id": f"g-{number}", **member, "topics": topics} for number in range(rows))
    _send_all(judge.connection, "offset_commit", 8, groups)
    yield ask("list_groups: groups", "list_groups", 5, states_filter=(), types_filter=())
    yield ask("list_groups: groups of a state", "list_groups", 4, states_filter=["Stable"])


def _transactional_ids(judge: Judge, rows: int) -> Iterator[Verdict]:
    ask = _Asking(judge, rows)
    ids = ({"transactional_id": f"t-{number}", "transaction_timeout": 60_000} for number in range(rows))
    _send_all(judge.connection, "init_producer_id", 1, ids)
    filters: Values = {"state_filters": (), "producer_id_filters": (), "duration_filter": -1}
    yield ask("list_transactions: ids", "list_transactions", 1, **filters)
    yield ask(
        "list_transactions: a pattern", "list_transactions", 2, **filters, transactional_id_pattern="t.*9"
    )
    yield ask("list_transactions: a state", "list_transactions", 0, state_filters=["Ongoing"],
              producer_id_filters=())  # fmt: skip


def _producers(judge: Judge, rows: int) -> Iterator[Verdict]:
    ask, (name, topic_id) = _Asking(judge, rows), judge.world.new_topic()

    def produced(number: int) -> Values:
        record = Record(0, 1_700_000_000_000, None, b"x", ())
        records = build_batch([record], producer=ProducerInfo(1_000_000 + number, 0, 0))
        data = [{"topic_id": topic_id, "partition_data": [{"index": 0, "records": records}]}]
        return {"acks": -1, "timeout": 60_000, "transactional_id": None, "topic_data": data}

    _send_all(judge.connection, "produce", 13, map(produced, range(rows)))
    topics = [{"name": name, "partition_indexes": [0]}]
    yield ask("describe_producers: of one partition", "describe_producers", 0, topics=topics)


def _partitions(judge: Judge, rows: int) -> Iterator[Verdict]:
    """One topic of many partitions."""
    ask, (name, topic_id) = _Asking(judge, rows), _new_topic(judge, "large", rows)
    everything: Values = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    yield ask(
        "metadata: a large topic", "metadata", 12, topics=[{"topic_id": None, "name": name}], **everything
    )
    yield ask("metadata v0: a large topic", "metadata", 0, topics=[{"name": name}])
    yield ask("describe_topic_partitions: a large topic", "describe_topic_partitions", 0,
              topics=[{"name": name}], response_partition_limit=2000, cursor=None)  # fmt: skip
    yield ask("describe_log_dirs: a large topic", "describe_log_dirs", 4, topics=None)
    offsets = [{"partition_index": number, "timestamp": -1} for number in range(rows)]
    yield ask("list_offsets: a large topic", "list_offsets", 7, replica_id=-1, isolation_level=0,
              topics=[{"name": name, "partitions": offsets}])  # fmt: skip
    committed = [
        {"partition_index": number, "committed_offset": 0, "committed_metadata": ""} for number in range(rows)
    ]
    judge.connection.call(
        "offset_commit", 8, group_id="all", generation_id_or_member_epoch=-1, member_id="",
        group_instance_id=None, topics=[{"name": name, "partitions": committed}],
    )  # fmt: skip
    yield ask("offset_fetch: all of a group", "offset_fetch", 8,
              groups=[{"group_id": "all", "topics": None}], require_stable=False)  # fmt: skip
    yield from _fetches(ask, judge, topic_id, rows)
    yield from _share_fetches(ask, topic_id, rows)


def _fetches(ask: _Asking, judge: Judge, topic_id: UUID, rows: int) -> Iterator[Verdict]:
    limits: Values = {
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "rack_id": "",
        "isolation_level": 0,
    }
    partitions = [{"partition": each, "fetch_offset": 0, "partition_max_bytes": 1} for each in range(rows)]
    topics = [{"topic_id": topic_id, "partitions": partitions}]
    yield ask("fetch: a session begins", "fetch", 13, **limits, session_id=0, session_epoch=0, topics=topics,
              forgotten_topics_data=())  # fmt: skip
    first = judge.connection.call(
        "fetch", 13, **limits, session_id=0, session_epoch=0, topics=topics, forgotten_topics_data=()
    )
    session: Values = {**limits, "session_id": first.session_id, "forgotten_topics_data": ()}
    yield ask("fetch: a session continues", "fetch", 13, **session, session_epoch=1, topics=())
    yield ask("fetch: a session names all again", "fetch", 13, **session, session_epoch=2, topics=topics)
    session["forgotten_topics_data"] = [{"topic_id": topic_id, "partitions": list(range(rows))}]
    yield ask("fetch: a session forgets all", "fetch", 13, **session, session_epoch=3, topics=())
    unknown = [
        {"topic": f"u-{each}", "partitions": [{**partitions[0], "log_start_offset": -1}]}
        for each in range(rows)
    ]
    for epoch, name in ((-1, "no session"), (0, "a session")):
        yield ask(f"fetch: {name} of unknown names", "fetch", 7, **limits, session_id=0, session_epoch=epoch,
                  topics=unknown, forgotten_topics_data=())  # fmt: skip


def _share_fetches(ask: _Asking, topic_id: UUID, rows: int) -> Iterator[Verdict]:
    limits: Values = {
        "member_id": "m", "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "max_records": 1,
        "batch_size": 1,
    }  # fmt: skip
    listed = [{"partition_index": each, "acknowledgement_batches": ()} for each in range(rows)]
    topics = [{"topic_id": topic_id, "partitions": listed}]
    forgotten = [{"topic_id": topic_id, "partitions": list(range(rows))}]
    for epoch, name, named, left in (
        (0, "a session begins", topics, ()),
        (1, "a session continues", (), ()),
        (2, "a session waits for bytes", (), ()),
        (3, "a session names all again", topics, ()),
        (4, "a session forgets all", (), forgotten),
    ):
        values = {**limits, "group_id": "shared", "share_session_epoch": epoch}
        values["min_bytes"] = 2 if epoch == 2 else 0
        yield ask(
            f"share_fetch: {name}", "share_fetch", 1, **values, topics=named, forgotten_topics_data=left
        )
    unknown = [{"topic_id": UUID(int=7), "partitions": listed}]
    yield ask("share_fetch: unknown topics", "share_fetch", 1, **limits, group_id="unknown",
              share_session_epoch=0, topics=unknown, forgotten_topics_data=())  # fmt: skip
    starts = [{"partition_index": each, "start_offset": 0} for each in range(rows)]
    yield ask("alter_share_group_offsets: a large topic", "alter_share_group_offsets", 0, group_id="altered",
              topics=[{"topic_name": "large", "partitions": starts}])  # fmt: skip
    yield ask("describe_share_group_offsets: all of a group", "describe_share_group_offsets", 1,
              groups=[{"group_id": "altered", "topics": None}])  # fmt: skip
    summary = [{"partition": each, "leader_epoch": -1} for each in range(rows)]
    yield ask("read_share_group_state_summary: a large topic", "read_share_group_state_summary", 1,
              group_id="altered", topics=[{"topic_id": topic_id, "partitions": summary}])  # fmt: skip


def _topics(judge: Judge, rows: int) -> Iterator[Verdict]:
    count = min(rows // 2, _MOST_PARTITIONS)
    ask = _Asking(judge, count)
    one: Values = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    topics = [{"name": f"one-{number}", **one} for number in range(count)]
    judge.connection.call("create_topics", 7, topics=topics, timeout=60_000, validate_only=False)
    yield ask("metadata: all topics", "metadata", 12, topics=None, allow_auto_topic_creation=False,
              include_topic_authorized_operations=True)  # fmt: skip
    yield ask("list_config_resources: all", "list_config_resources", 1, resource_types=())
    yield ask("describe_topic_partitions: all topics", "describe_topic_partitions", 0, topics=(), cursor=None)
    names = [each["name"] for each in topics]
    for kind in ("consumer", "share"):
        heartbeat: Values = {"group_id": f"a {kind} group", "member_id": "m", "rack_id": None}
        if kind == "consumer":
            heartbeat |= {"instance_id": None, "rebalance_timeout": 60_000, "server_assignor": None,
                          "topic_partitions": ()}  # fmt: skip
        heartbeat |= {"member_epoch": 0, "subscribed_topic_names": names}
        what, group_id = "a member of all topics", heartbeat["group_id"]
        yield ask(f"{kind}_group_heartbeat: {what}", f"{kind}_group_heartbeat", 1, **heartbeat)
        yield ask(
            f"{kind}_group_describe: {what}", f"{kind}_group_describe", 1, group_ids=[group_id], **_NOTHING
        )


def _users(judge: Judge, rows: int) -> Iterator[Verdict]:
    ask = _Asking(judge, rows)
    password: Values = {"mechanism": 1, "iterations": 4096, "salt": bytes(16), "salted_password": bytes(32)}
    users = [{"name": f"user-{number}", **password} for number in range(rows)]
    yield ask("alter_user_scram_credentials: users", "alter_user_scram_credentials", 0, deletions=(),
              upsertions=users)  # fmt: skip
    yield ask("describe_user_scram_credentials: all users", "describe_user_scram_credentials", 0, users=None)


def _quotas(judge: Judge, rows: int) -> Iterator[Verdict]:
    ask = _Asking(judge, rows)
    ops = [{"key": "producer_byte_rate", "value": 1e9, "remove": False}]
    entries = [
        {"entity": [{"entity_type": "user", "entity_name": f"user-{number}"}], "ops": ops}
        for number in range(rows)
    ]
    yield ask("alter_client_quotas: users", "alter_client_quotas", 1, entries=entries, validate_only=False)
    yield ask("describe_client_quotas: all users", "describe_client_quotas", 1, components=(), strict=False)
    removed = [{**each, "ops": [{**ops[0], "remove": True}]} for each in entries]
    yield ask("alter_client_quotas: removal", "alter_client_quotas", 1, entries=removed, validate_only=False)


def _acls(judge: Judge, rows: int) -> Iterator[Verdict]:
    """Of a broker with an authorizer."""
    ask = _Asking(judge, rows)
    entry: Values = {"resource_type": 2, "host": "*", "operation": 3, "permission_type": 3}
    literal: Values = {**entry, "resource_pattern_type": 3}
    acls = [{**literal, "resource_name": f"topic-{each}", "principal": "User:x"} for each in range(rows)]
    yield ask("create_acls: of topics", "create_acls", 3, creations=acls)
    acls = [{**literal, "resource_name": "topic", "principal": f"User:{each}"} for each in range(rows)]
    yield ask("create_acls: of one topic", "create_acls", 3, creations=acls)
    acls = [
        {**literal, "resource_name": "t", "principal": "User:*", "permission_type": 2,
         "host": f"2001:db8::{each:x}/127"}
        for each in range(rows)
    ]  # fmt: skip
    yield ask("create_acls: of ranges", "create_acls", 3, creations=acls)
    wanted: Values = {
        "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
        "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip
    yield ask("describe_acls: all", "describe_acls", 3, **wanted)
    yield ask("describe_acls: none of all", "describe_acls", 3, **{**wanted, "principal_filter": "User:none"})
    wanted |= {"resource_type_filter": 2, "pattern_type_filter": 3}
    one = [{**wanted, "resource_name_filter": f"topic-{number}"} for number in range(min(rows // 10, 3000))]
    yield _Asking(judge, len(one))("delete_acls: one by one", "delete_acls", 3, filters=one)


def payloads(judge: Judge) -> Iterator[Verdict]:
    """`rows` are MiB that a payload inflates to."""
    ask = _Asking(judge, DEFAULT_MAX_BYTES >> 20)
    topic_id = _new_topic(judge, "inflated", 4).topic_id
    payload = compress(Codec.ZSTD, payload_of(bytes(DEFAULT_MAX_BYTES - 100)))
    for days, what in ((0, "in time"), (11, "too new")):
        time_ms = wall_clock_ms() + days * 86_400_000
        records = with_payload(payload, codec=Codec.ZSTD, claimed=1, time_ms=time_ms)
        rows = [{"index": index, "records": records} for index in range(4)]
        topics = [{"topic_id": topic_id, "partition_data": rows}]
        yield ask(f"produce: batches that inflate, {what}", "produce", 13, acks=-1, timeout=60_000,
                  transactional_id=None, topic_data=topics)  # fmt: skip
    for codec in (Codec.ZSTD, Codec.GZIP, Codec.LZ4, Codec.SNAPPY):
        client = judge.connection.call("get_telemetry_subscriptions", 0, client_instance_id=None)
        metrics = compress(codec, bytes(DEFAULT_MAX_BYTES))[: 1 << 20]
        yield ask(f"push_telemetry: {codec.name}", "push_telemetry", 0, terminating=False, metrics=metrics,
                  client_instance_id=client.client_instance_id, compression_type=int(codec),
                  subscription_id=client.subscription_id)  # fmt: skip


STATE: Final[dict[str, Callable[[Judge, int], Iterator[Verdict]]]] = {
    "groups": _groups,
    "transactional ids": _transactional_ids,
    "producers": _producers,
    "partitions": _partitions,
    "topics": _topics,
    "users": _users,
    "quotas": _quotas,
    "ACLs": _acls,
}
