"""Client telemetry of a broker without a metrics receiver (KIP-714): intervals for clients, and
refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

import pytest
import trio

from kbroker.broker import client_telemetry
from kbroker.broker.client_telemetry import MAX_BYTES, PUSH_INTERVAL_MS, ClientTelemetry
from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.compression import DEFAULT_MAX_BYTES, Codec, compress, decompress
from kbroker.formats.turns import TURN_BYTES
from tests.formats.test_compression import of_many_parts
from tests.turns import watch

CLIENT = UUID(int=7)


class Clock:
    now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def telemetry(clock: Clock) -> ClientTelemetry:
    return ClientTelemetry(clock)


def code(ask: Callable[[], object]) -> ErrorCode:
    try:
        ask()
    except KafkaError as refusal:
        return refusal.code
    return ErrorCode.none


def pushed(telemetry: ClientTelemetry, *arguments: Any, is_terminating: bool) -> None:
    trio.run(partial(telemetry.push, *arguments, is_terminating=is_terminating))


def test_a_client_gets_an_id_and_keeps_its_subscription(telemetry: ClientTelemetry, clock: Clock) -> None:
    made, subscription = telemetry.subscribe(None)
    clock.now_ms = PUSH_INTERVAL_MS
    assert telemetry.subscribe(made) == (made, subscription)
    assert telemetry.subscribe(None)[0] != made


def test_who_comes_too_often_is_put_off(telemetry: ClientTelemetry, clock: Clock) -> None:
    _, subscription = telemetry.subscribe(CLIENT)
    assert code(lambda: telemetry.subscribe(CLIENT)) is ErrorCode.throttling_quota_exceeded

    def push() -> None:
        pushed(telemetry, CLIENT, subscription, b"", Codec.NONE, is_terminating=False)

    clock.now_ms += 1
    assert [code(push), code(push)] == [ErrorCode.none, ErrorCode.throttling_quota_exceeded]
    clock.now_ms += PUSH_INTERVAL_MS
    assert [code(push), code(push)] == [ErrorCode.none, ErrorCode.throttling_quota_exceeded]
    pushed(telemetry, CLIENT, subscription, b"", Codec.NONE, is_terminating=True)
    clock.now_ms += PUSH_INTERVAL_MS
    assert code(push) is ErrorCode.invalid_request


@pytest.mark.parametrize(
    ("subscription", "metrics", "codec", "refusal"),
    [
        (1, b"", Codec.NONE, ErrorCode.unknown_subscription_id),
        (0, b"", 9, ErrorCode.unsupported_compression_type),
        (0, bytes(MAX_BYTES + 1), Codec.NONE, ErrorCode.telemetry_too_large),
        (0, b"nonsense", Codec.ZSTD, ErrorCode.invalid_record),
        (0, compress(Codec.GZIP, b"metrics"), Codec.GZIP, ErrorCode.none),
        (0, b"", Codec.ZSTD, ErrorCode.none),
    ],
)
def test_what_may_be_pushed(
    telemetry: ClientTelemetry,
    clock: Clock,
    subscription: int,
    metrics: bytes,
    codec: int,
    refusal: ErrorCode,
) -> None:
    _, known = telemetry.subscribe(CLIENT)
    clock.now_ms += 1
    assert (
        code(lambda: pushed(telemetry, CLIENT, known + subscription, metrics, codec, is_terminating=False))
        is refusal
    )


def test_who_pushes_for_another_subscription_may_ask_for_its_own_at_once(telemetry: ClientTelemetry) -> None:
    assert (
        code(lambda: pushed(telemetry, CLIENT, 0, b"", 0, is_terminating=False))
        is ErrorCode.unknown_subscription_id
    )
    assert telemetry.subscribe(CLIENT)[0] == CLIENT
    assert code(lambda: pushed(telemetry, None, 0, b"", 0, is_terminating=False)) is ErrorCode.invalid_request


def test_clients_that_were_not_heard_of_for_longest_are_forgotten(telemetry: ClientTelemetry) -> None:
    for number in range(1, 20_000):
        telemetry.subscribe(UUID(int=number))
    telemetry.subscribe(UUID(int=1))
    assert code(lambda: telemetry.subscribe(UUID(int=19_999))) is ErrorCode.throttling_quota_exceeded


def test_metrics_that_inflate_are_inflated_in_a_thread(telemetry: ClientTelemetry) -> None:
    """Beyond what a turn of the loop may inflate, which is tried first."""
    _, subscription = telemetry.subscribe(CLIENT)
    before = watch.inflated_bytes
    pushed(
        telemetry, CLIENT, subscription, compress(Codec.ZSTD, bytes(9 << 20)), Codec.ZSTD, is_terminating=True
    )
    assert watch.inflated_bytes - before == TURN_BYTES
    other = UUID(int=8)
    _, subscription = telemetry.subscribe(other)
    bomb = compress(Codec.ZSTD, bytes(DEFAULT_MAX_BYTES + 1))
    refusal = code(lambda: pushed(telemetry, other, subscription, bomb, Codec.ZSTD, is_terminating=True))
    assert refusal is ErrorCode.invalid_record


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_metrics_of_many_parts_are_inflated_in_a_thread(
    telemetry: ClientTelemetry, monkeypatch: pytest.MonkeyPatch, codec: Codec
) -> None:
    """Each part costs microseconds, though it may inflate to nothing."""
    threads: list[bool] = []

    def noted(*arguments: Any, **more: Any) -> bytes:
        threads.append(threading.current_thread() is not threading.main_thread())
        return decompress(*arguments, **more)

    monkeypatch.setattr(client_telemetry, "decompress", noted)
    _, subscription = telemetry.subscribe(CLIENT)
    pushed(telemetry, CLIENT, subscription, of_many_parts(codec, 1_000_000), codec, is_terminating=True)
    assert threads == [False, True]
