"""Client telemetry, as answered by a broker without a metrics receiver: GetTelemetrySubscriptions,
PushTelemetry, and their settings."""

from __future__ import annotations

from uuid import NAMESPACE_DNS, UUID, uuid5

from tests.differential.script import Entity, Session, only, script
from tests.differential.scripts.base_other import framed, header, sent

ZERO = UUID(int=0)
CLIENT_METRICS = 16


def client_of(s: Session, which: object = 0) -> UUID:
    """A separate id for this script: brokers remember clients."""
    return uuid5(NAMESPACE_DNS, f"{s.name}-{which}")


def subscriptions(s: Session, client: UUID, on: str = "a") -> Entity:
    return s.call("get_telemetry_subscriptions", 0, on=on, client_instance_id=client)


def push(
    s: Session,
    client: UUID,
    subscription: int,
    *,
    terminating: bool = False,
    compression: int = 0,
    metrics: bytes = b"",
    on: str = "a",
) -> Entity:
    return s.call(
        "push_telemetry", 0, on=on, client_instance_id=client, subscription_id=subscription,
        terminating=terminating,
        compression_type=compression, metrics=metrics,
    )  # fmt: skip


@script("RPC-51")
def apis_listed(s: Session) -> None:
    for version in (0, 3, 4):
        answer = s.prepare(
            "api_versions",
            version,
            **({"client_software_name": "n", "client_software_version": "1"} if version >= 3 else {}),
        )
        s.note(
            f"version {version}",
            sorted(
                [row.api_key, row.min_version, row.max_version]
                for row in answer.api_keys
                if row.api_key in (71, 72)
            ),
        )


@script()
def a_client_without_an_id(s: Session) -> None:
    answer = subscriptions(s, ZERO)
    if answer is not None:
        s.note("an id was made", answer.client_instance_id not in (None, ZERO))


@script()
def a_client_with_an_id(s: Session) -> None:
    subscriptions(s, client_of(s))
    subscriptions(s, client_of(s))
    subscriptions(s, client_of(s), on="b")


@script()
def pushing(s: Session) -> None:
    answer = subscriptions(s, client_of(s))
    known = 0 if answer is None else answer.subscription_id
    push(s, client_of(s), known)
    push(s, client_of(s), known)


@script()
def pushing_before_anything_else(s: Session) -> None:
    push(s, client_of(s), 0)
    push(s, ZERO, 0)


@script()
def an_unknown_subscription(s: Session) -> None:
    answer = subscriptions(s, client_of(s))
    push(s, client_of(s), (0 if answer is None else answer.subscription_id) + 1)


@script()
def terminating(s: Session) -> None:
    answer = subscriptions(s, client_of(s))
    known = 0 if answer is None else answer.subscription_id
    for _ in range(2):
        push(s, client_of(s), known, terminating=True)


@script()
def compression_types(s: Session) -> None:
    for index, compression in enumerate((0, 1, 2, 3, 4, 5, 99, -1)):
        client = client_of(s, index)
        answer = subscriptions(s, client, on=f"{index}")
        push(
            s,
            client,
            0 if answer is None else answer.subscription_id,
            compression=compression,
            metrics=b"nonsense",
            on=f"{index}",
        )


@script()
def other_versions(s: Session) -> None:
    for key in (71, 72):
        for version in (0, 1):
            sent(
                s, f"API {key} version {version}, without a body", framed(header(key, version, flexible=True))
            )


@script()
def settings_of_client_metrics(s: Session) -> None:
    name = f"{s.name}-metrics"
    wanted = {"interval.ms": "1000", "match": f"client_instance_id={client_of(s)}"}
    rows = [{"name": key, "config_operation": 0, "value": value} for key, value in wanted.items()]
    resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configs": rows}
    s.call("incremental_alter_configs", 1, resources=[resource], validate_only=True)
    described = {
        "resource_type": CLIENT_METRICS,
        "resource_name": f"{s.name}-none",
        "configuration_keys": None,
    }
    s.call("describe_configs", 4, resources=[described], include_synonyms=False, include_documentation=False)


@script()
def resources_of_client_metrics(s: Session) -> None:
    s.call(
        "list_config_resources",
        1,
        keep=only("config_resources", "resource_name", f"{s.name}*"),
        resource_types=[CLIENT_METRICS],
    )
    s.call("list_config_resources", 0, keep=only("config_resources", "resource_name", f"{s.name}*"))
