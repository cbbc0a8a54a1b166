"""FindCoordinator (10), v0-6: this broker coordinates everything. Key type 2 (share-partition keys) from v6 (KIP-932).

Key type 1 (transactions) is answered with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which every client takes as final.
"""

from __future__ import annotations

from kbroker.broker.connection import Message, Request
from kbroker.coordinator.share_keys import parse_share_coordinator_key
from kbroker.errors import ErrorCode, KafkaError

GROUP, TRANSACTION, SHARE = range(3)
_KEYS_FROM = 4
_SHARE_FROM = 6


def handle(request: Request) -> Message:
    body = request.body
    key_type: int = getattr(body, "key_type", GROUP)
    if request.version >= _KEYS_FROM:
        return {"coordinators": [{"key": key, **_row(request, key_type, key)} for key in body.coordinator_keys]}
    return _row(request, key_type, body.key)


def _row(request: Request, key_type: int, key: str) -> Message:
    try:
        _check(request.version, key_type, key)
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.message, "node_id": -1, "host": "", "port": -1}
    broker = request.broker
    return {"error_code": ErrorCode.none, "error_message": None, "node_id": broker.node_id, "host": broker.host, "port": broker.port}


def _check(version: int, key_type: int, key: str) -> None:
    if key_type == TRANSACTION:
        raise KafkaError(ErrorCode.transactional_id_authorization_failed, "transactions are not supported")
    if key_type not in (GROUP, SHARE) or (key_type == SHARE and version < _SHARE_FROM):
        raise KafkaError(ErrorCode.invalid_request, f"unknown coordinator key type {key_type}")
    if key_type == SHARE:
        parse_share_coordinator_key(key)
