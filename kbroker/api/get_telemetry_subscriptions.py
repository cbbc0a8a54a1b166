"""GetTelemetrySubscriptions (71), v0 (KIP-714): the broker wants no metrics. Served, but not listed
(broker/client_telemetry.py)."""

from __future__ import annotations

from kbroker.api.request import Message, Request
from kbroker.broker.client_telemetry import COMPRESSION_TYPES, MAX_BYTES, PUSH_INTERVAL_MS
from kbroker.errors import ErrorCode, KafkaError


def handle(request: Request) -> Message:
    try:
        client_id, subscription_id = request.broker.client_telemetry.subscribe(
            request.body.client_instance_id
        )
    except KafkaError as error:
        return {
            "error_code": error.code,
            "client_instance_id": None,
            "subscription_id": 0,
            "push_interval": 0,
            "telemetry_max_bytes": 0,
            "delta_temporality": False,
        }
    return {
        "error_code": ErrorCode.none,
        "client_instance_id": client_id,
        "subscription_id": subscription_id,
        "accepted_compression_types": COMPRESSION_TYPES,
        "push_interval": PUSH_INTERVAL_MS,
        "telemetry_max_bytes": MAX_BYTES,
        "delta_temporality": True,
        "requested_metrics": (),
    }
