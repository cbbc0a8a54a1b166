"""PushTelemetry (72), v0 (KIP-714): drops the metrics that clients send. Served, but not listed
(broker/client_telemetry.py)."""

from __future__ import annotations

from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode, KafkaError


async def handle(request: Request) -> Message:
    body = request.body
    try:
        await request.broker.client_telemetry.push(
            body.client_instance_id,
            body.subscription_id,
            body.metrics,
            body.compression_type,
            is_terminating=body.terminating,
        )
    except KafkaError as error:
        return {"error_code": error.code}
    return {"error_code": ErrorCode.none}
