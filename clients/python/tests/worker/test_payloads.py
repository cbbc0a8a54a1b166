"""Serializers, and payloads that are built as dataclasses."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import pytest

from kbroker.testing.broker import RunningBroker
from kbroker_client import IllegalState, Producer
from kbroker_client.worker import JSON, RAW, App, Job, Serializer, Unreadable
from kbroker_client.worker.typed import builder


class Colour(Enum):
    RED = "red"


@dataclass
class Address:
    street: str
    number: int | None = None


@dataclass
class Order:
    id: UUID
    amount: Decimal
    address: Address
    when: datetime
    lines: list[tuple[str, int]]
    colour: Colour = Colour.RED
    kind: Literal["new", "old"] = "new"
    weight: float = 1.0
    tags: dict[str, str] = field(default_factory=dict)
    due: date | None = None
    extra: Any = None
    parent: Order | None = None

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise ValueError("a negative amount")


ORDER = Order(
    UUID(int=7), Decimal("10.50"), Address("Main"), datetime(2026, 1, 2, tzinfo=UTC), [("tea", 2)],
    weight=3, due=date(2026, 1, 3),
)  # fmt: skip


@pytest.mark.anyio
async def test_a_dataclass_is_built(broker: RunningBroker, queue: str) -> None:
    app, seen = App(), []

    @app.task(queue=queue)
    async def task(order: Order) -> None:
        seen.append(order)

    parent = Order(**{**vars(ORDER), "parent": ORDER})
    async with app.testing(broker.bootstrap) as worker:
        await task.send(parent)
        await task.send({**JSON.read(JSON.encode(ORDER)), "of a newer sender": 1})
        await task.send({"id": 7})
        with pytest.raises(TypeError, match="task takes Order, or a dict of its fields, not str"):
            await task.send("order 7")
        await task.send({**JSON.read(JSON.encode(ORDER)), "amount": "-1"})
        outcomes = await worker.drain()
    assert seen == [parent, ORDER]
    assert [each.outcome for each in outcomes] == ["succeeded", "succeeded", "rejected", "rejected"]
    assert [each.reason and each.reason.message for each in outcomes[2:]] == [
        "payload lacks address, amount, lines, when", "the payload is refused: ValueError: a negative amount",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("member", "value", "text"),
    [
        ("id", "x", "payload.id is not a UUID, but str: 'x'"),
        ("amount", 10.5, "payload.amount is not str, but float: '10.5'"),
        ("address", {"street": 1}, "payload.address.street is not str, but int: '1'"),
        ("address", {"street": "x", "number": True}, "payload.address.number is not int, but bool: 'True'; "),
        ("when", "yesterday", "payload.when is not a datetime, but str: 'yesterday'"),
        ("lines", [["tea"]], r"payload.lines\[0\] is not a list of 2, but list"),
        ("lines", [["tea", "2"]], r"payload.lines\[0\]\[1\] is not int, but str"),
        ("colour", "blue", "payload.colour is not a Colour"),
        ("kind", "newer", "payload.kind is not one of 'new', 'old'"),
        ("weight", "1", "payload.weight is not a number"),
        ("weight", 10**400, "payload.weight is not a number of this size"),
        ("tags", {"a": 1}, "payload.tags.a is not str"),
        ("parent", 1, "payload.parent is not dict, but int: '1'; payload.parent is not null"),
    ],
)
def test_a_wrong_member_is_named(member: str, value: object, text: str) -> None:
    build = builder(Order)
    assert build is not None
    with pytest.raises(Unreadable, match=text):
        build({**JSON.read(JSON.encode(ORDER)), member: value}, "payload")


@pytest.mark.anyio
async def test_what_is_no_json_is_rejected(broker: RunningBroker, queue: str) -> None:
    app, runs = App(), []

    @app.task(queue=queue)
    async def task(payload: object) -> None:
        runs.append(payload)

    async with app.testing(broker.bootstrap) as worker, Producer(broker.bootstrap) as producer:
        for value in (b"{", b"\xff", None):
            await producer.send(queue, value)
        outcomes = await worker.drain()
    assert [each.outcome for each in outcomes] == ["rejected"] * 3
    assert {each.reason.type for each in outcomes if each.reason} == {"Unreadable"}
    assert runs == []


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("serializer", "payload"),
    [
        (RAW, b"\x00\xff"),
        (RAW, b""),
        (Serializer(pickle.dumps, pickle.loads), {1, 2}),
        (JSON, "ä"),
        (JSON, "half a pair: \ud83d, ä"),
    ],
)
async def test_serializers(
    broker: RunningBroker, queue: str, serializer: Serializer, payload: object
) -> None:
    app, seen = App(), []

    @app.task(queue=queue, serializer=serializer)
    async def task(payload: object) -> None:
        seen.append(payload)

    async with app.testing(broker.bootstrap) as worker:
        await task.send(payload)
        await worker.drain()
    assert seen == [payload]


def test_what_cannot_be_sent() -> None:
    with pytest.raises(TypeError, match=r"^set has no form in JSON"):
        JSON.encode({1, 2})
    with pytest.raises(TypeError, match="bytes, not str"):
        RAW.encode("text")
    with pytest.raises(ValueError, match="Out of range float"):
        JSON.encode(float("nan"))


@pytest.mark.anyio
async def test_keys_and_headers(broker: RunningBroker, queue: str) -> None:
    app, seen = App(), []

    @app.task(queue=queue)
    async def task(payload: object, job: Job) -> None:
        seen.append((job.key, dict(job.headers)))

    expected = {"trace": b"a", "raw": b"\x00", "none": None}
    wrong: Any = 5
    async with app.testing(broker.bootstrap) as worker:
        await task.send(1, key="k", headers={"trace": "a", "raw": b"\x00", "none": None})
        await task.send(1, key=b"k", headers=list(expected.items()))
        with pytest.raises(TypeError, match="the key of a job is str or bytes, not int"):
            await task.send(1, key=wrong)
        with pytest.raises(TypeError, match="the header trace is str or bytes, not int"):
            await task.send(1, headers={"trace": wrong})
        with pytest.raises(IllegalState, match=r"would block the event loop: await .*task\.send"):
            task.send_blocking(1)
        await worker.drain()
    assert seen == [(b"k", expected)] * 2
