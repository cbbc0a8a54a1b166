"""The table of all that clients may request, and the rights that each request needs: the Kafka APIs
(api key -> handler and versions), and the actions of the admin HTTP endpoint. ApiVersions answers
from this table, so every API that it lists is served.

A handler takes a `Request` (request.py) and returns the answer's body in one of three forms:

- a mapping with kio's field names (see protocol/messages.py)
- `Raw`: buffers packed by hand
- `Later`: a body that is ready when its commit is

A handler that waits is a coroutine function. A handler that never waits should be a plain function,
so that a burst of requests costs no task switch. Modules are imported at first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import NamedTuple, cast

from kbroker.api.request import Handler
from kbroker.security.acls import SUPPORTED, Operation, ResourceType

NOTHING = "nothing"
"""In the column `needs`: every client may send it."""


class Need(NamedTuple):
    """A right that a handler looks at: an operation on a kind of resource. The column `needs`:

        READ group; READ topic                     both, each for every group and topic that the
                                                   request names
        IDEMPOTENT_WRITE cluster or WRITE topic    one of them is enough
        ALTER_CONFIGS topic, cluster, group        that operation, on each kind that the request
                                                   names

    How a refusal looks is in the handler's docstring. Some rights are only needed for a part of the
    answer. A test calls every handler and compares the rights that it looks at with this column.
    """

    operation: Operation
    kind: ResourceType


def parse_needs(text: str) -> tuple[Need, ...]:
    """Raises ValueError for a text that names no operation of a kind of resource."""
    if text == NOTHING:
        return ()
    return tuple(need for each in text.split("; ") for part in each.split(" or ") for need in _parse(part))


def _parse(text: str) -> Iterator[Need]:
    operation, _, kinds = text.partition(" ")
    for kind in kinds.split(", "):
        need = Need(
            Operation.__members__.get(operation, Operation.UNKNOWN),
            ResourceType.__members__.get(kind.upper(), ResourceType.UNKNOWN),
        )
        if need.operation < Operation.READ or need.kind not in SUPPORTED:
            raise ValueError(f"no operation and kind of resource: {text!r}")
        yield need


class Api(NamedTuple):
    """`module` of kbroker.api has a function `handle`. Versions `first` to `last` are served: all
    that kio has, unless the module says otherwise.

    - `needs`: the rights that the handler checks if there is an authorizer (see Need)
    - `listed`: in ApiVersions
    """

    key: int
    module: str
    first: int
    last: int
    needs: str
    listed: bool = True


class AdminAction(NamedTuple):
    """A request to the admin HTTP endpoint, which server/admin_views.py serves.

    - `path`: a part in capitals is a name that the request gives, of a GROUP or a USER
    - `needs`: the rights that the endpoint checks before it acts
    - `is_open`: without an authorizer, clients on the same machine need no log-in. Only for actions
      that show numbers and names.
    - `summary`: for the list of all actions; empty: not listed
    """

    name: str
    method: str
    path: str
    needs: str
    is_open: bool
    summary: str = ""


APIS: dict[int, Api] = {
    api.key: api
    for api in (
        Api(0, "produce", 3, 13, "WRITE topic, transactional_id"),
        Api(1, "fetch", 4, 18, "READ topic"),
        Api(2, "list_offsets", 1, 11, "DESCRIBE topic"),
        Api(3, "metadata", 0, 13, "DESCRIBE topic; CREATE cluster or CREATE topic; DESCRIBE cluster"),
        Api(8, "offset_commit", 2, 10, "READ group, topic"),
        Api(9, "offset_fetch", 1, 10, "DESCRIBE group, topic"),
        Api(10, "find_coordinator", 0, 6, "DESCRIBE group, transactional_id; CLUSTER_ACTION cluster"),
        Api(11, "join_group", 0, 9, "READ group"),
        Api(12, "heartbeat", 0, 4, "READ group"),
        Api(13, "leave_group", 0, 5, "READ group"),
        Api(14, "sync_group", 0, 5, "READ group"),
        Api(15, "describe_groups", 0, 6, "DESCRIBE group"),
        Api(16, "list_groups", 0, 5, "DESCRIBE cluster or DESCRIBE group"),
        Api(17, "sasl_handshake", 0, 1, "nothing"),
        Api(18, "api_versions", 0, 5, "nothing"),
        Api(19, "create_topics", 2, 7, "CREATE cluster or CREATE topic; DESCRIBE_CONFIGS topic"),
        Api(20, "delete_topics", 1, 6, "DELETE cluster or DELETE topic; DESCRIBE topic"),
        Api(21, "delete_records", 0, 2, "DELETE topic"),
        Api(22, "init_producer_id", 0, 5, "IDEMPOTENT_WRITE cluster or WRITE topic; WRITE transactional_id"),
        Api(23, "offset_for_leader_epoch", 2, 4, "CLUSTER_ACTION cluster or DESCRIBE topic"),
        Api(24, "add_partitions_to_txn", 0, 5, "WRITE transactional_id, topic; CLUSTER_ACTION cluster"),
        Api(25, "add_offsets_to_txn", 0, 4, "WRITE transactional_id; READ group"),
        Api(26, "end_txn", 0, 5, "WRITE transactional_id"),
        Api(27, "write_txn_markers", 1, 2, "ALTER cluster or CLUSTER_ACTION cluster"),
        Api(28, "txn_offset_commit", 0, 6, "WRITE transactional_id; READ group, topic"),
        Api(29, "describe_acls", 1, 3, "DESCRIBE cluster"),
        Api(30, "create_acls", 1, 3, "ALTER cluster"),
        Api(31, "delete_acls", 1, 3, "ALTER cluster"),
        Api(32, "describe_configs", 1, 4, "DESCRIBE_CONFIGS topic, cluster, group"),
        Api(33, "alter_configs", 0, 2, "ALTER_CONFIGS topic, cluster, group"),
        Api(34, "alter_replica_log_dirs", 1, 2, "ALTER cluster"),
        Api(35, "describe_log_dirs", 1, 5, "DESCRIBE cluster"),
        Api(36, "sasl_authenticate", 0, 2, "nothing"),
        Api(37, "create_partitions", 0, 3, "ALTER topic"),
        Api(38, "create_delegation_token", 1, 3, "nothing"),
        Api(39, "renew_delegation_token", 1, 2, "nothing"),
        Api(40, "expire_delegation_token", 1, 2, "nothing"),
        Api(41, "describe_delegation_token", 1, 3, "nothing"),
        Api(42, "delete_groups", 0, 3, "DELETE group"),
        Api(43, "elect_leaders", 0, 2, "ALTER cluster"),
        Api(44, "incremental_alter_configs", 0, 1, "ALTER_CONFIGS topic, cluster, group"),
        Api(45, "alter_partition_reassignments", 0, 1, "ALTER cluster"),
        Api(46, "list_partition_reassignments", 0, 0, "DESCRIBE cluster"),
        Api(47, "offset_delete", 0, 0, "DELETE group; READ topic"),
        Api(48, "describe_client_quotas", 0, 1, "DESCRIBE_CONFIGS cluster"),
        Api(49, "alter_client_quotas", 0, 1, "ALTER_CONFIGS cluster"),
        Api(50, "describe_user_scram_credentials", 0, 0, "DESCRIBE cluster"),
        Api(51, "alter_user_scram_credentials", 0, 0, "ALTER cluster"),
        Api(55, "describe_quorum", 0, 2, "DESCRIBE cluster"),
        Api(57, "update_features", 0, 2, "ALTER cluster"),
        Api(60, "describe_cluster", 0, 2, "DESCRIBE cluster"),
        Api(61, "describe_producers", 0, 0, "READ topic"),
        Api(65, "describe_transactions", 0, 0, "DESCRIBE transactional_id, topic"),
        Api(66, "list_transactions", 0, 2, "DESCRIBE transactional_id"),
        Api(68, "consumer_group_heartbeat", 0, 1, "READ group; DESCRIBE topic"),
        Api(69, "consumer_group_describe", 0, 1, "DESCRIBE group, topic"),
        Api(71, "get_telemetry_subscriptions", 0, 0, "nothing", listed=False),
        Api(72, "push_telemetry", 0, 0, "nothing", listed=False),
        Api(74, "list_config_resources", 0, 1, "DESCRIBE_CONFIGS cluster"),
        Api(75, "describe_topic_partitions", 0, 0, "DESCRIBE topic"),
        Api(76, "share_group_heartbeat", 1, 1, "READ group; DESCRIBE topic"),
        Api(77, "share_group_describe", 1, 1, "DESCRIBE group, topic"),
        Api(78, "share_fetch", 1, 2, "READ group, topic"),
        Api(79, "share_acknowledge", 1, 2, "READ group, topic"),
        Api(83, "initialize_share_group_state", 0, 0, "CLUSTER_ACTION cluster"),
        Api(84, "read_share_group_state", 0, 0, "CLUSTER_ACTION cluster"),
        Api(85, "write_share_group_state", 0, 1, "CLUSTER_ACTION cluster"),
        Api(86, "delete_share_group_state", 0, 0, "CLUSTER_ACTION cluster"),
        Api(87, "read_share_group_state_summary", 0, 1, "CLUSTER_ACTION cluster"),
        Api(90, "describe_share_group_offsets", 0, 1, "DESCRIBE group, topic"),
        Api(91, "alter_share_group_offsets", 0, 0, "READ group, topic"),
        Api(92, "delete_share_group_offsets", 0, 0, "DELETE group; READ topic"),
    )
}

ADMIN_ACTIONS: dict[str, AdminAction] = {
    action.name: action
    for action in (
        AdminAction("start_page", "GET", "/", "nothing", is_open=True),
        AdminAction("log_in_page", "GET", "/log-in", "nothing", is_open=True),
        AdminAction("log_in", "POST", "/log-in", "nothing", is_open=True),
        AdminAction("log_out", "POST", "/log-out", "nothing", is_open=True),
        AdminAction(
            "metrics",
            "GET",
            "/metrics",
            "DESCRIBE cluster",
            is_open=True,
            summary="Metrics for Prometheus, in its text format or OpenMetrics.",
        ),
        AdminAction(
            "in_flight",
            "GET",
            "/v1/share-groups/GROUP/inflight",
            "DESCRIBE group, topic",
            is_open=True,
            summary="Records in flight in the group's share-partitions in memory; ?topic=TOPIC for one.",
        ),
        AdminAction(
            "users",
            "GET",
            "/v1/users",
            "DESCRIBE cluster",
            is_open=False,
            summary="The users of this broker, and how they may log in.",
        ),
        AdminAction(
            "disconnect",
            "POST",
            "/v1/users/USER/disconnect",
            "ALTER cluster",
            is_open=False,
            summary="End all connections and sessions of a user.",
        ),
    )
}

NEEDS: dict[int | str, tuple[Need, ...]] = {
    **{api.key: parse_needs(api.needs) for api in APIS.values()},
    **{action.name: parse_needs(action.needs) for action in ADMIN_ACTIONS.values()},
}
"""The rights that are checked for each API and each action. A row without them, or with wrong ones,
stops the start here."""


@cache
def handler_of(api_key: int) -> Handler:
    """The handler of an API of the table."""
    return cast(Handler, import_module(f"kbroker.api.{APIS[api_key].module}").handle)
