"""A change that is confirmed is seen by the next question, on the same connection (sent with it,
without waiting for the answer) and on another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from kio.serial import entity_reader

from kbroker.client.rpc import API_KEYS, Connection
from kbroker.protocol.error_codes import error_codes
from kbroker.protocol.messages import response_schema
from kbroker.testing.broker import RunningBroker, open_test_broker
from tests.brokers import DURABLE_ENGINES, require_engine
from tests.server.changes import CASES, Asked, Case, call

ROUNDS = 3
_numbers = count()


@pytest.fixture(scope="module", params=DURABLE_ENGINES)
def broker(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    with open_test_broker(storage=require_engine(request.param), durability="disk") as running:
        yield running


@contextmanager
def _prepared(broker: RunningBroker, case: str) -> Iterator[tuple[Case, Connection]]:
    with broker.connect() as connection:
        yield CASES[case](connection, f"changed-{next(_numbers)}"), connection


def _is_silent(change: Asked) -> bool:
    return change.fields.get("acks") == 0


@pytest.mark.parametrize("case", CASES)
def test_on_the_same_connection(broker: RunningBroker, case: str) -> None:
    for _ in range(ROUNDS):
        with _prepared(broker, case) as ((change, question, found, expected), connection):
            frames = [connection.encode(*each) for each in (change, question)]
            connection.send_raw(b"".join(frames))
            if not _is_silent(change):
                assert error_codes(_decoded(change, connection.read_frame())) == []
            assert found(connection.read_response(question.api, question.version)) == expected


@pytest.mark.parametrize("case", [name for name in CASES if "acks=0" not in name])
def test_on_another_connection(broker: RunningBroker, case: str) -> None:
    with broker.connect() as other:
        for _ in range(ROUNDS):
            with _prepared(broker, case) as ((change, question, found, expected), connection):
                call(connection, change)
                assert found(other.call(question.api, question.version, **question.fields)) == expected


def _decoded(change: Asked, frame: bytes) -> Any:
    schema = response_schema(API_KEYS[change.api], change.version)
    _, size = entity_reader(schema.__header_schema__)(frame, 0)
    return entity_reader(schema)(frame, size)[0]
