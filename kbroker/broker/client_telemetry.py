"""Client telemetry (KIP-714) of a broker without a receiver: it requests no metrics, and drops
those that clients send.

Like Kafka without a receiver, the broker does not list the two APIs, so clients do not use them. A
client that uses them anyway is answered by Kafka's rules. The broker remembers its last requests
only for that, and forgets the clients that were silent for longest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID, uuid4
from zlib import crc32

import trio

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.compression import Codec, CorruptPayload, TooLarge, decompress
from kbroker.formats.turns import TURN_BYTES

PUSH_INTERVAL_MS: Final = 300_000
MAX_BYTES: Final = 1 << 20
COMPRESSION_TYPES: Final = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)
"""Codecs that clients may use, the best first."""
_MAX_CLIENTS: Final = 16_384
_thread: Final = trio.CapacityLimiter(1)
"""Inflates metrics that are too large for a turn of the loop."""
_RETRIES: Final = (ErrorCode.unknown_subscription_id, ErrorCode.unsupported_compression_type)
"""A client that receives one of these requests its subscription again at once."""


@dataclass(slots=True)
class _Client:
    subscription_id: int
    asked_ms: float = float("-inf")
    pushed_ms: float = float("-inf")
    is_terminating: bool = False
    told: ErrorCode = ErrorCode.none


class ClientTelemetryStatistics(NamedTuple):
    """`clients`: those that are remembered."""

    clients: int


async def _can_be_read(codec: Codec, metrics: bytes) -> bool:
    try:
        try:
            decompress(codec, metrics, max_bytes=TURN_BYTES)
        except TooLarge:
            await trio.to_thread.run_sync(decompress, codec, metrics, limiter=_thread)
    except CorruptPayload:
        return False
    return True


class ClientTelemetry:
    def __init__(self, now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self._clients: OrderedDict[UUID, _Client] = OrderedDict()

    def statistics(self) -> ClientTelemetryStatistics:
        return ClientTelemetryStatistics(len(self._clients))

    def subscribe(self, client_id: UUID | None) -> tuple[UUID, int]:
        """GetTelemetrySubscriptions: returns the client's id, a new one if it has none, and the id
        of its subscription. Raises THROTTLING_QUOTA_EXCEEDED for a client that is too early."""
        client_id = client_id or uuid4()
        client, now_ms = self._client(client_id), self._now_ms()
        if now_ms - max(client.asked_ms, client.pushed_ms) < PUSH_INTERVAL_MS and client.told not in _RETRIES:
            raise self._refusal(client, ErrorCode.throttling_quota_exceeded)
        client.asked_ms = now_ms
        client.told = ErrorCode.none
        return client_id, client.subscription_id

    async def push(
        self,
        client_id: UUID | None,
        subscription_id: int,
        metrics: bytes,
        codec: int,
        *,
        is_terminating: bool,
    ) -> None:
        """PushTelemetry. Raises KafkaError. May wait for a thread that inflates the metrics."""
        if client_id is None:
            raise KafkaError(ErrorCode.invalid_request)
        client, now_ms = self._client(client_id), self._now_ms()
        if client.is_terminating:
            raise self._refusal(client, ErrorCode.invalid_request)
        is_early = client.asked_ms <= client.pushed_ms and now_ms - client.pushed_ms < PUSH_INTERVAL_MS
        if is_early and not is_terminating:
            raise self._refusal(client, ErrorCode.throttling_quota_exceeded)
        client.pushed_ms, client.is_terminating = now_ms, is_terminating
        if subscription_id != client.subscription_id:
            raise self._refusal(client, ErrorCode.unknown_subscription_id)
        if codec != Codec.NONE and codec not in COMPRESSION_TYPES:
            raise self._refusal(client, ErrorCode.unsupported_compression_type)
        if len(metrics) > MAX_BYTES:
            raise self._refusal(client, ErrorCode.telemetry_too_large)
        if metrics and not await _can_be_read(Codec(codec), metrics):
            raise self._refusal(client, ErrorCode.invalid_record)

    def _client(self, client_id: UUID) -> _Client:
        client = self._clients.setdefault(client_id, _Client(crc32(client_id.bytes) >> 1 or 1))
        self._clients.move_to_end(client_id)
        if len(self._clients) > _MAX_CLIENTS:
            self._clients.popitem(last=False)
        return client

    @staticmethod
    def _refusal(client: _Client, code: ErrorCode) -> KafkaError:
        client.told = code
        return KafkaError(code)
