"""FindCoordinator (10), v0-6: this broker coordinates everything. Key type 2 (share-partition keys)
from v6 (KIP-932).

Key type 1 is for transactional ids (KIP-98).

With an authorizer a key needs DESCRIBE on the group (30) or transactional id (53), and type 2
CLUSTER_ACTION for all keys (31).
"""

from __future__ import annotations

from kbroker.api.authorization import check, check_cluster
from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.security.acls import Operation, ResourceType
from kbroker.share_state.keys import parse_share_coordinator_key

GROUP, TRANSACTION, SHARE = range(3)
_KINDS = {GROUP: ResourceType.GROUP, TRANSACTION: ResourceType.TRANSACTIONAL_ID}
_KEYS_FROM = 4
_SHARE_FROM = 6
_NO_ERROR = "NONE"
"""Kafka's message beside code 0, up to version 3. Later versions have a message only if the whole
request is refused."""


def handle(request: Request) -> Message:
    body = request.body
    key_type: int = getattr(body, "key_type", GROUP)
    refused = _refused(request, key_type)
    if request.version >= _KEYS_FROM:
        return {
            "coordinators": (
                {"key": key, **_row(request, refused or _refused_key(request, key_type, key), "")}
                for key in body.coordinator_keys
            )
        }
    return _row(request, refused or _denied(request, key_type, body.key), _NO_ERROR)


def _row(request: Request, error: KafkaError | None, no_message: str) -> Message:
    if error is not None:
        return {
            "error_code": error.code,
            "error_message": error.message or no_message,
            "node_id": -1,
            "host": "",
            "port": -1,
        }
    broker = request.broker
    host, port = request.advertised
    return {
        "error_code": ErrorCode.none,
        "error_message": no_message,
        "node_id": broker.node_id,
        "host": host,
        "port": port,
    }


def _refused(request: Request, key_type: int) -> KafkaError | None:
    if key_type not in (GROUP, TRANSACTION, SHARE) or (key_type == SHARE and request.version < _SHARE_FROM):
        return KafkaError(ErrorCode.invalid_request, f"unknown coordinator key type {key_type}")
    if key_type == SHARE:
        try:
            check_cluster(request, Operation.CLUSTER_ACTION)
        except KafkaError as error:
            return error
    return None


def _refused_key(request: Request, key_type: int, key: str) -> KafkaError | None:
    """The error of one of several keys, which has no message."""
    try:
        if key_type == SHARE:
            parse_share_coordinator_key(key)
    except KafkaError as error:
        return KafkaError(error.code)
    denied = _denied(request, key_type, key)
    return denied and KafkaError(denied.code)


def _denied(request: Request, key_type: int, key: str) -> KafkaError | None:
    kind = _KINDS.get(key_type)
    try:
        if kind is not None:
            check(request, Operation.DESCRIBE, kind, key)
    except KafkaError as error:
        return error
    return None
