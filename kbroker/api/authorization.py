"""Checks of a client's rights, for handlers that are not called for every record.

Hot handlers look at `connection.rights` themselves, so that a broker without an authorizer makes no
call. An operation is checked before the body is validated and before a resource is looked up, so
that a refusal does not say whether the resource exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kbroker.api.request import Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.security.acls import CLUSTER_NAME, Operation, ResourceType

_REFUSALS: Final = {
    ResourceType.TOPIC: (ErrorCode.topic_authorization_failed, "Topic authorization failed."),
    ResourceType.GROUP: (ErrorCode.group_authorization_failed, "Group authorization failed."),
    ResourceType.CLUSTER: (ErrorCode.cluster_authorization_failed, "Cluster authorization failed."),
    ResourceType.TRANSACTIONAL_ID: (
        ErrorCode.transactional_id_authorization_failed,
        "Transactional Id authorization failed.",
    ),
}


def refusal(kind: ResourceType) -> KafkaError:
    """The error of a client without a right on a resource of this kind, with Kafka's message."""
    return KafkaError(*_REFUSALS[kind])


def allows(request: Request, operation: Operation, kind: ResourceType, name: str) -> bool:
    rights = request.connection.rights
    return rights is None or rights.allows(operation, kind, name)


def allows_on_topic(request: Request, operation: Operation, name: str) -> bool:
    return allows(request, operation, ResourceType.TOPIC, name)


def allows_on_group(request: Request, operation: Operation, group_id: str) -> bool:
    return allows(request, operation, ResourceType.GROUP, group_id)


def allows_on_cluster(request: Request, operation: Operation) -> bool:
    return allows(request, operation, ResourceType.CLUSTER, CLUSTER_NAME)


def has(request: Request, operation: Operation, kind: ResourceType, name: str) -> bool:
    """As `allows`, without a report of a denial: where another right is enough, and for resources
    that the client has not named."""
    rights = request.connection.rights
    return rights is None or rights.has(operation, kind, name)


def has_on_cluster(request: Request, operation: Operation) -> bool:
    return has(request, operation, ResourceType.CLUSTER, CLUSTER_NAME)


def sees_topic(request: Request, name: str) -> bool:
    """Whether a topic that the client has not named may be part of the answer."""
    return has(request, Operation.DESCRIBE, ResourceType.TOPIC, name)


def sees_topics(request: Request, names: Iterable[str]) -> bool:
    return request.connection.rights is None or all(sees_topic(request, name) for name in names)


def check(request: Request, operation: Operation, kind: ResourceType, name: str) -> None:
    """Raises KafkaError."""
    if not allows(request, operation, kind, name):
        raise refusal(kind)


def check_topic(request: Request, operation: Operation, name: str) -> None:
    check(request, operation, ResourceType.TOPIC, name)


def check_group(request: Request, operation: Operation, group_id: str) -> None:
    check(request, operation, ResourceType.GROUP, group_id)


def check_cluster(request: Request, operation: Operation) -> None:
    check(request, operation, ResourceType.CLUSTER, CLUSTER_NAME)
