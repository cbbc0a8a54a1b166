"""Requests of hostile sizes: no turn of the loop is long, none takes much memory, no answer is
larger than its bound, and a request beyond its bound ends its connection.

Every API of the table is judged: one that only reads by bounded turns, another by its work for each
row."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from kbroker.api import APIS, Api
from kbroker.api.bounds import BOUNDS
from kbroker.client.broker_process import RunningBroker
from kbroker.client.rpc import Connection
from kbroker.client.unreachable import ConnectionClosed
from kbroker.formats.compression import DEFAULT_MAX_BYTES
from kbroker.testing.broker import open_test_broker
from tests.server.hostile_judge import AUTHORIZER, Judge, Verdict, judge
from tests.server.hostile_state import STATE, payloads
from tests.server.numeric_fields import REQUESTS

ROWS: Final = 400
ROWS_OF_CHANGES: Final = 200
ROWS_OF_STATE: Final = 600
FEWER: Final = {"create_topics": 100}
"""Rows of changes that take long for each."""
KEYS = {api.module: api.key for api in APIS.values()}

READS: Final = frozenset(
    {
        "alter_partition_reassignments", "alter_replica_log_dirs", "api_versions", "consumer_group_describe",
        "create_delegation_token", "describe_delegation_token", "describe_quorum", "elect_leaders",
        "expire_delegation_token", "list_partition_reassignments", "renew_delegation_token",
        "update_features", "describe_acls", "describe_client_quotas",
        "describe_cluster", "describe_configs", "describe_groups", "describe_log_dirs", "describe_producers",
        "describe_share_group_offsets", "describe_topic_partitions", "describe_transactions",
        "describe_user_scram_credentials", "fetch", "find_coordinator", "list_config_resources",
        "list_groups", "list_offsets", "list_transactions", "metadata", "offset_fetch",
        "offset_for_leader_epoch", "read_share_group_state_summary", "share_fetch", "share_group_describe",
    }
)  # fmt: skip
"""Their turns are bounded, however many rows they have. Those about a cluster of several brokers
change nothing either."""
IN_TURNS: Final = frozenset({"alter_configs", "incremental_alter_configs"})
"""Changes, whose turns are bounded as well: each row is a change of its own."""
CHANGES: Final[dict[str, int]] = {
    "produce": 65, "offset_commit": 85, "join_group": 10, "heartbeat": 0, "leave_group": 90, "sync_group": 6,
    "create_topics": 215, "delete_topics": 90, "delete_records": 95, "init_producer_id": 0,
    "add_partitions_to_txn": 135, "add_offsets_to_txn": 0, "end_txn": 0, "write_txn_markers": 115,
    "txn_offset_commit": 90, "create_acls": 115, "delete_acls": 220,
    "create_partitions": 80, "delete_groups": 65, "offset_delete": 80,
    "alter_client_quotas": 65, "alter_user_scram_credentials": 90, "consumer_group_heartbeat": 70,
    "share_group_heartbeat": 75, "share_acknowledge": 60, "initialize_share_group_state": 155,
    "read_share_group_state": 180, "write_share_group_state": 160, "delete_share_group_state": 100,
    "alter_share_group_offsets": 270, "delete_share_group_offsets": 10, "sasl_handshake": 0,
    "sasl_authenticate": 0, "get_telemetry_subscriptions": 0, "push_telemetry": 0,
}  # fmt: skip
"""The work of a row in the longest turn of a request that is never interrupted. So its turns are
bounded by the bound of its rows (kbroker/api/bounds.py)."""
OLDEST: Final = {"metadata": 8}
"""Instead of the oldest version, which creates topics."""
_TURN: Final = 65_000
"""256 rows that are looked up, built and packed, or 2048 that are decoded."""
_SHORT: Final = {"ROWS_A_TURN": 32, "DECODED_ROWS_A_TURN": 256}
_SHORT_TURN: Final = 13_000
_SMALL_REQUEST: Final = 5_000
_ROW_BYTES: Final = 8 << 10
_KEPT_BYTES: Final = {"create_topics": 8 << 10}
"""More of each row: what it creates stays."""
_ANY_BYTES: Final = 3 << 20
"""Modules that a request imports, and caches that it fills."""


_OF_ONE_GROUP: Final = {
    "consumer_group_heartbeat": 270, "share_group_heartbeat": 270, "consumer_group_describe": 40,
    "share_group_describe": 20,
}  # fmt: skip
"""The work of each topic of a group's only member. An assignment is made, and a group is looked up,
in one turn."""


def most_work(api: str, verdict: Verdict, turn: int) -> int:
    if "a member of" in verdict.name:
        return turn + _OF_ONE_GROUP[api] * verdict.rows
    if api in READS | IN_TURNS:
        return turn
    if "text" in verdict.name:
        return _TURN
    return _SMALL_REQUEST + CHANGES[api] * verdict.rows


def complaints(api: str, verdicts: Iterable[Verdict], turn: int = _TURN) -> list[str]:
    found = []
    for each in verdicts:
        print(each)
        row_bytes = _ROW_BYTES + _KEPT_BYTES.get(api, 0)
        most_bytes = _ANY_BYTES + row_bytes * each.rows + 3 * (each.frame_bytes + each.answer_bytes)
        if each.longest > (most := most_work(api, each, turn)) or each.peak_bytes > most_bytes:
            found.append(f"{each}; allowed are {most} and {most_bytes / (1 << 20):.1f} MiB")
        is_beyond = each.rows > BOUNDS[KEYS[api]].rows or each.frame_bytes > BOUNDS[KEYS[api]].frame_bytes
        if not each.answer_bytes and not is_beyond:
            found.append(f"{each}: it has no answer")
    return found


def complaints_about_state(data_dir: Path, what: str, rows: int, turn: int = _TURN) -> list[str]:
    with judge(data_dir, AUTHORIZER if what == "ACLs" else None) as found:
        return [
            complaint
            for verdict in STATE[what](found, rows)
            for complaint in complaints(verdict.name.partition(":")[0].partition(" ")[0], [verdict], turn)
        ]


@pytest.fixture
def short_turns() -> Iterator[int]:
    """The most work of a turn of few rows: some hundred rows then show the work that grows with
    them, in little time."""
    before = _set(_SHORT)
    yield _SHORT_TURN
    _set(before)  # Also in modules that a request has imported: they copied the short ones.


def _set(values: Mapping[str, int]) -> dict[str, int]:
    """In each module of kbroker that has such constants. Returns the former values."""
    before: dict[str, int] = {}
    for name, module in tuple(sys.modules.items()):
        for constant in values.keys() & vars(module).keys() if name.startswith("kbroker.") else ():
            before[constant] = getattr(module, constant)
            setattr(module, constant, values[constant])
    return before


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with judge(tmp_path_factory.mktemp("hostile") / "data") as found:
        yield found


def test_every_api_is_judged() -> None:
    assert len(READS) + len(IN_TURNS) + len(CHANGES) == len(KEYS)
    assert READS | IN_TURNS | CHANGES.keys() == KEYS.keys() == REQUESTS.keys()


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.module)
def test_no_turn_is_long(measured: Judge, short_turns: int, api: Api) -> None:
    many = ROWS if api.module in READS else FEWER.get(api.module, ROWS_OF_CHANGES)
    assert complaints(api.module, measured.of_api(api, api.last, many), short_turns) == []


@pytest.mark.parametrize("api", sorted(IN_TURNS))
@pytest.mark.parametrize("kind", [4, 8, 16])
def test_no_turn_of_refused_alterations_is_long(
    measured: Judge, short_turns: int, api: str, kind: int
) -> None:
    """Of settings of other brokers, their loggers, and a type that is not served."""
    rows = [
        {"resource_type": kind, "resource_name": f"other-{number}", "configs": ()} for number in range(ROWS)
    ]
    version = {"alter_configs": 2, "incremental_alter_configs": 1}[api]
    frame = measured.connection.encode(api, version, {"resources": rows, "validate_only": False})
    verdict = measured.ask(f"{api}: refused rows", ROWS, frame, with_memory=False)
    assert complaints(api, [verdict], short_turns) == []


@pytest.fixture(scope="module")
def without_rights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """A judge that lost all of its rights once its topic and its transactional id were there."""
    config = {"authorizer.class.name": AUTHORIZER["authorizer.class.name"]}
    config["allow.everyone.if.no.acl.found"] = "true"
    with judge(tmp_path_factory.mktemp("refused") / "data", config, watches_memory=False) as found:
        found.world.transactional_id()
        of_another = {"resource_pattern_type": 3, "host": "*", "operation": 2, "permission_type": 3}
        acls = [
            {**of_another, "resource_type": kind, "resource_name": name, "principal": "User:another"}
            for kind, name in {2: "*", 3: "*", 5: "*", 4: "kafka-cluster"}.items()
        ]
        answer = found.connection.call("create_acls", 3, creations=acls)
        assert {each.error_code for each in answer.results} == {0}
        assert found.connection.call("list_config_resources", 1, resource_types=()).error_code == 31
        yield found


@pytest.mark.parametrize("api", sorted(READS))
def test_no_turn_is_long_without_rights(without_rights: Judge, short_turns: int, api: str) -> None:
    (its,) = (each for each in APIS.values() if each.module == api)
    verdicts = without_rights.of_api(its, its.last, ROWS, "many rows")
    assert complaints(api, verdicts, short_turns) == []


@pytest.mark.full
@pytest.mark.parametrize("api", sorted(READS))
def test_no_turn_is_long_near_the_bound_without_rights(without_rights: Judge, api: str) -> None:
    (its,) = (each for each in APIS.values() if each.module == api)
    many = BOUNDS[its.key].rows // 3 - 10
    assert complaints(api, without_rights.of_api(its, its.last, many, "many rows")) == []


@pytest.mark.full
@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.module)
def test_no_turn_is_long_near_the_bound(tmp_path: Path, api: Api) -> None:
    """A third of the bound, as rows have rows of their own. For requests that change something: a
    tenth of the bound, and 5000 rows at most. In a broker of its own: 5000 topics stay in it."""
    bound = BOUNDS[api.key].rows
    many = bound // 3 - 10 if api.module in READS else min(bound // 10, 5000)
    with judge(tmp_path / "data") as found:
        for version in {OLDEST.get(api.module, api.first), api.last}:
            assert complaints(api.module, found.of_api(api, version, many, "many rows")) == []


@pytest.mark.parametrize("what", STATE)
def test_no_turn_over_stored_state_is_long(tmp_path: Path, short_turns: int, what: str) -> None:
    assert complaints_about_state(tmp_path / "data", what, ROWS_OF_STATE, short_turns) == []


@pytest.mark.full
@pytest.mark.parametrize("what", STATE)
def test_no_turn_over_much_stored_state_is_long(tmp_path: Path, what: str) -> None:
    assert complaints_about_state(tmp_path / "data", what, 20_000) == []


def test_payloads_that_inflate(measured: Judge) -> None:
    """What a turn of the loop inflates is judged in all tests (tests/turns.py)."""
    for verdict in payloads(measured):
        print(verdict)
        assert verdict.longest < _TURN
        assert verdict.peak_bytes < 5 * DEFAULT_MAX_BYTES, "two at a time, with their records"


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with open_test_broker(
        storage="segment", durability="os", config={"group.initial.rebalance.delay.ms": "0"}
    ) as running:
        yield running


def join(connection: Connection, group_id: str, metadata_bytes: int) -> None:
    timeouts = {"session_timeout": 60_000, "rebalance_timeout": 60_000}
    protocols = [{"name": "range", "metadata": bytes(metadata_bytes)}]
    asked = {"group_id": group_id, "member_id": "", "protocol_type": "consumer", "protocols": protocols}
    joined = connection.call("join_group", 3, **timeouts, **asked)
    assert joined.error_code == 0
    member = {"generation_id": joined.generation_id, "member_id": joined.member_id}
    connection.call("sync_group", 3, group_id=group_id, **member, group_instance_id=None, assignments=())


def test_one_group_many_times(broker: RunningBroker) -> None:
    """A group of any size is described, and again while the answer has room."""
    metadata_bytes = 4 << 20
    with broker.connect(timeout_s=120) as connection:
        join(connection, "large", metadata_bytes)

        def ask(times: int) -> bytes:
            asked = {"groups": ["large"] * times, "include_authorized_operations": False}
            connection.send_raw(connection.encode("describe_groups", 5, asked))
            return connection.read_frame()

        assert len(ask(15)) > 15 * metadata_bytes
        with pytest.raises(ConnectionClosed):
            ask(200)
    lines = [line for line in broker.logs().splitlines() if "the answer to describe_groups would" in line]
    assert len(lines) == 1
    assert "more than kbroker.response.max.bytes=67108864" in lines[0]


def test_settings_of_one_topic_many_times(broker: RunningBroker) -> None:
    broker.create_topic("described")
    resources = [{"resource_type": 2, "resource_name": "described", "configuration_keys": None}] * 20_000
    with broker.connect(timeout_s=120) as connection:
        asked = {"resources": resources, "include_synonyms": True, "include_documentation": True}
        connection.send_raw(connection.encode("describe_configs", 4, asked))
        with pytest.raises(ConnectionClosed):
            connection.read_frame()
    assert "the answer to describe_configs would have" in broker.logs()
    assert broker.anonymous_memory_bytes() < 400 << 20


@pytest.mark.parametrize("version", [4, 12])
def test_a_request_beyond_its_rows(broker: RunningBroker, version: int) -> None:
    count = 250_001
    row = struct.pack(">h", 1) + b"t" if version == 4 else bytes(16) + b"\x02t\x00"
    length = struct.pack(">i", count) if version == 4 else b"\x92\xa1\x0f"
    head = struct.pack(">hhih", KEYS["metadata"], version, 7, -1) + (b"\x00" if version == 12 else b"")
    frame = head + length + row * count + b"\x00\x00\x00"
    with broker.connect(timeout_s=120) as connection:
        connection.send_raw(struct.pack(">i", len(frame)) + frame)
        with pytest.raises(ConnectionClosed):
            connection.read_frame()
    assert "is refused: its bound is 250000 rows and 67108864 bytes" in broker.logs()


def test_a_request_beyond_its_bytes(broker: RunningBroker) -> None:
    frame = struct.pack(">hhih", KEYS["heartbeat"], 4, 7, -1) + bytes(2 << 20)
    with broker.connect(timeout_s=60) as connection:
        connection.send_raw(struct.pack(">i", len(frame)) + frame)
        with pytest.raises(ConnectionClosed):
            connection.read_frame()
        # One line a minute for each API.
    assert "heartbeat of 2097162 bytes is refused: its bound is 100 rows" in broker.logs()
