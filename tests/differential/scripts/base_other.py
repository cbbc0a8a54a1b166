"""Versions and frames, producer ids, coordinators, the cluster, and behavior common to all APIs."""

from __future__ import annotations

import struct

from kbroker.client.rpc import ConnectionClosed
from tests.differential.script import Session, only, script

CONTROLLERS = (52, 53, 54, 58, 59, 62, 63, 64, 70, 73)
"""Vote, BeginQuorumEpoch, EndQuorumEpoch, Envelope, FetchSnapshot, BrokerRegistration and others:
between brokers and controllers."""
SHARE = (76, 77, 78, 79, 83, 84, 85, 86, 87)
CONSUMER_GROUPS = (8, 9, 11, 12, 13, 14, 15, 47, 68, 69, 71, 72)
BASE = (0, 1, 2, 3, 10, 16, 19, 20, 32, 42)


def sent(s: Session, what: str, frame: bytes, on: str = "raw") -> None:
    """An unmodified frame, and whether there was an answer, as a step."""
    connection = s.connection(on)
    connection.send_raw(frame)
    try:
        connection.read_frame()
    except ConnectionClosed:
        s.disconnect(on)
        s.note(what, "connection closed")
    else:
        s.note(what, "answered")


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def header(key: int, version: int, *, flexible: bool = False) -> bytes:
    return struct.pack(">hhih", key, version, 7, 1) + b"c" + (b"\x00" if flexible else b"")


@script("BASE-5", "RPC-50")
def apis_and_versions_that_are_not_served(s: Session) -> None:
    sent(s, "unknown API", framed(header(999, 0)))
    sent(s, "negative API", framed(header(-1, 0)))
    for key, version in (
        (0, 99),
        (1, 3),
        (2, 0),
        (3, 99),
        (10, 7),
        (16, 6),
        (19, 1),
        (20, 0),
        (32, 0),
        (42, 99),
    ):
        sent(s, f"API {key} in version {version}", framed(header(key, version, flexible=True)))
    for key in SHARE:
        sent(s, f"API {key} in version 99", framed(header(key, 99, flexible=True)))


@script("BASE-5", "RPC-1", "RPC-2")
def share_apis_in_version_0(s: Session) -> None:
    for key in (76, 77, 78, 79):
        sent(s, f"API {key} in version 0", framed(header(key, 0, flexible=True) + bytes(40)))


@script("BASE-5")
def apis_for_controllers(s: Session) -> None:
    for key in CONTROLLERS:
        sent(s, f"API {key}", framed(header(key, 0, flexible=True) + bytes(40)))


@script("BASE-5")
def frames_that_are_none(s: Session) -> None:
    sent(s, "length 0", struct.pack(">i", 0))
    sent(s, "length -1", struct.pack(">i", -1))
    sent(s, "length of 100 MiB and one", struct.pack(">i", 100 * 1024 * 1024 + 1))
    sent(s, "a header cut off", framed(b"\x00\x03\x00"))
    sent(s, "metadata without a body", framed(header(3, 9, flexible=True)))
    sent(s, "metadata with a count of topics beyond its end", framed(header(3, 1) + struct.pack(">i", 1000)))
    sent(s, "metadata with a count of -5", framed(header(3, 1) + struct.pack(">i", -5)))
    sent(s, "metadata with bytes behind it", framed(header(3, 1) + struct.pack(">i", 0) + b"behind"))


@script("RPC-51", "RPC-52", "RPC-53", "RPC-54")
def api_versions(s: Session) -> None:
    for version in (3, 4, 5):
        answer = s.prepare(
            "api_versions", version, client_software_name="kbroker", client_software_version="1"
        )
        s.note(
            f"features in version {version}",
            sorted([f.name, f.min_version, f.max_version] for f in answer.supported_features),
        )
        s.note(
            "finalised",
            sorted([f.name, f.min_version_level, f.max_version_level] for f in answer.finalized_features),
        )
        s.note("epoch", answer.finalized_features_epoch >= 0)
    for name, number in (
        ("", "1"),
        ("a", ""),
        ("-a", "1"),
        ("a b", "1"),
        ("a", "1 2"),
        ("a.b-c", "1.0-x"),
        ("ä", "1"),
        ("a_b", "1"),
    ):
        answer = s.prepare("api_versions", 3, client_software_name=name, client_software_version=number)
        s.note(f"{name!r} {number!r}", [answer.error_code.name, bool(answer.api_keys)])


@script("RPC-74")
def the_broker_that_a_client_expects(s: Session) -> None:
    """ApiVersions 5, over one connection."""
    cluster = s.prepare("describe_cluster", 0, include_cluster_authorized_operations=False)
    expected = cluster.cluster_id, cluster.controller_id
    for what, cluster_id, node_id in (
        ("neither", None, -1), ("both", *expected), ("the cluster", expected[0], -1),
        ("the node", None, expected[1]), ("another cluster", "another", expected[1]),
        ("an empty cluster", "", expected[1]), ("only an empty cluster", "", -1),
        ("another node", expected[0], 99), ("no such node", expected[0], -2), ("only no such node", None, -2),
    ):  # fmt: skip
        answer = s.prepare(
            "api_versions", 5, client_software_name="kbroker", client_software_version="1",
            cluster_id=cluster_id, node_id=node_id,
        )  # fmt: skip
        s.note(what, [answer.error_code.name, bool(answer.api_keys), bool(answer.supported_features)])
    answer = s.prepare(
        "api_versions", 5, client_software_name="", client_software_version="1", cluster_id="x", node_id=0
    )
    s.note("without a name", answer.error_code.name)


@script("BASE-1", "RPC-1", "RPC-2", "RPC-3", "RPC-5", "RPC-56")
def versions_served(s: Session) -> None:
    answer = s.prepare("api_versions", 3, client_software_name="kbroker", client_software_version="1")
    rows = {row.api_key: [row.min_version, row.max_version] for row in answer.api_keys}
    for key in (*BASE, 18, 21, 22, 23, 33, 35, 37, 44, 60, 74, 75, *SHARE):
        s.note(f"API {key}", rows.get(key))


@script("BASE-2")
def versions_served_for_consumer_groups(s: Session) -> None:
    answer = s.prepare("api_versions", 3, client_software_name="kbroker", client_software_version="1")
    rows = {row.api_key: [row.min_version, row.max_version] for row in answer.api_keys}
    for key in CONSUMER_GROUPS:
        s.note(f"API {key}", rows.get(key))


@script("BASE-41", "BASE-42")
def producer_ids(s: Session) -> None:
    values = {"transactional_id": None, "transaction_timeout": 60_000}
    s.until(lambda: not s.prepare("init_producer_id", 4, **values).error_code.value, "there are producer ids")
    s.call("init_producer_id", 4, **values)
    s.call("init_producer_id", 4, **values)
    s.call("init_producer_id", 4, **{**values, "transactional_id": ""})
    s.call("init_producer_id", 4, **{**values, "transaction_timeout": 0})
    s.call("init_producer_id", 4, **values, producer_id=700_000_123, producer_epoch=3)
    s.call("init_producer_id", 4, **values, producer_id=700_000_123, producer_epoch=-1)
    s.call("init_producer_id", 4, **values, producer_id=-1, producer_epoch=3)
    for version in (0, 1, 2, 3, 5):
        s.call("init_producer_id", version, **values)


@script("BASE-41")
def own_producer_ids(s: Session) -> None:
    """Only whether there is a new id: its value depends on other scripts' requests too."""
    values = {"transactional_id": None, "transaction_timeout": 60_000}
    s.until(lambda: not s.prepare("init_producer_id", 4, **values).error_code.value, "there are producer ids")
    for version in (3, 4, 5):
        for own in ((700, 3), (0, 0), (-5, -5), (700, 32767), (700, -1), (-1, 3), (-5, -1), (-1, -5)):
            answer = s.prepare(
                "init_producer_id", version, **values, producer_id=own[0], producer_epoch=own[1]
            )
            s.note(
                f"{own}",
                [
                    answer.error_code.name,
                    answer.producer_id >= 0 and answer.producer_id != own[0],
                    answer.producer_epoch,
                ],
            )


@script("SC-7", "RPC-5")
def coordinators(s: Session) -> None:
    for key in ("g", ""):
        s.until(
            lambda key=key: (
                s.prepare("find_coordinator", 1, key=key, key_type=0).error_code.value not in (15, 16)
            ),
            "a coordinator",
        )
    for version in range(4):
        s.call("find_coordinator", version, key=s.name)
    for kind in (0, 3, -1):
        s.call("find_coordinator", 4, key_type=kind, coordinator_keys=[s.name, ""])
    s.call("find_coordinator", 4, key_type=0, coordinator_keys=[s.name, s.name])
    s.call("find_coordinator", 4, key_type=0, coordinator_keys=())


@script("BASE-20")
def cluster(s: Session) -> None:
    for version in (0, 1):
        s.call("describe_cluster", version, include_cluster_authorized_operations=False)
    for kind in (2, 0, 3, -1):
        s.call(
            "describe_cluster",
            2,
            include_cluster_authorized_operations=False,
            endpoint_type=kind,
            include_fenced_brokers=False,
        )
    s.call("describe_cluster", 2, include_cluster_authorized_operations=True, include_fenced_brokers=True)


@script()
def topic_resources(s: Session) -> None:
    topic = s.topic(retention_ms="1000")
    mine = only("config_resources", "resource_name", f"{s.name}-*")
    s.call("list_config_resources", 1, keep=mine, resource_types=[2])
    resource = {
        "resource_type": 2,
        "resource_name": topic.name,
        "configuration_keys": ["retention.ms", "cleanup.policy", "nonsense"],
    }
    s.call("describe_configs", 4, resources=[resource], include_synonyms=False, include_documentation=False)
    missing = {**resource, "resource_name": f"{s.name}-missing"}
    s.call("describe_configs", 4, resources=[missing], include_synonyms=False, include_documentation=False)
    s.call(
        "describe_configs",
        4,
        resources=[{**resource, "resource_name": "a b"}],
        include_synonyms=False,
        include_documentation=False,
    )
    s.call(
        "describe_configs",
        4,
        resources=[{**resource, "resource_type": 77}],
        include_synonyms=False,
        include_documentation=False,
    )


@script("CFG-43")
def a_topic_as_dead_letter_queue(s: Session) -> None:
    topic = s.topic()
    for value in ("false", "true", "x"):
        configs = [{"name": "errors.deadletterqueue.group.enable", "config_operation": 0, "value": value}]
        resource = {"resource_type": 2, "resource_name": topic.name, "configs": configs}
        s.call("incremental_alter_configs", 1, resources=[resource], validate_only=False)


@script("BASE-6")
def answers_in_order(s: Session) -> None:
    """A fetch that waits, followed by a request that does not."""
    topic = s.topic()
    connection = s.connection()
    rows = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]
    topics = [{"topic": topic.name, "partitions": rows}]
    waiting = {"max_wait": 300, "min_bytes": 1, "max_bytes": 1000, "isolation_level": 0, "topics": topics}
    first = connection.encode("fetch", 4, waiting)
    second = connection.encode("metadata", 1, {"topics": ()})
    connection.send_raw(first + second)
    order = [struct.unpack_from(">i", connection.read_frame())[0] for _ in range(2)]
    s.note("the waiting one is answered first", order == sorted(order))
