"""The examples of docs/python-client.md and of the client's README, run as they stand."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from textwrap import indent
from typing import Any

import anyio
import pytest

from clients.python.tests.targets import Target

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[3]
ADDRESS = "127.0.0.1:9092"


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


class Delivered(Exception):
    """Ends an example that runs for ever."""


async def test_sending_and_receiving(target: Target) -> None:
    topic = target.topic()
    target.configure(topic, {"share.auto.offset.reset": "earliest"})
    seen: list[bytes] = []

    async def deliver(value: bytes) -> None:
        seen.append(value)
        if len(seen) == 2:
            raise Delivered

    names: dict[str, Any] = {"deliver": deliver}
    for block in blocks("docs/python-client.md")[:2]:
        exec(block.replace(ADDRESS, target.bootstrap).replace('"emails"', repr(topic)), names)
    await names["send_mails"](["a@example.org", "b@example.org"])
    with anyio.fail_after(30), pytest.raises(Delivered):
        await names["receive"]()
    assert sorted(seen) == [b"a@example.org", b"b@example.org"]


async def test_outcomes(target: Target) -> None:
    topic = target.topic()
    target.configure(topic, {"share.auto.offset.reset": "earliest"})
    sending, _, outcomes = blocks("docs/python-client.md")[:3]
    failures: dict[bytes, Exception] = {b"away": ConnectionError("away"), b"bad": ValueError("bad")}

    async def deliver(value: bytes) -> None:
        if value in failures:
            raise failures.pop(value)

    names: dict[str, Any] = {"deliver": deliver, "bootstrap": target.bootstrap}
    text = f"from kbroker_client import ShareConsumer\nasync def work():\n{indent(outcomes, '    ')}"
    exec(sending.replace(ADDRESS, target.bootstrap).replace('"emails"', repr(topic)), names)
    exec(text.replace('"emails"', repr(topic)) + "    return outcomes\n", names)
    await names["send_mails"](["good", "away", "bad"])
    with anyio.fail_after(60):
        while failures:
            assert set((await names["work"]()).values()) == {None}
        assert set((await names["work"]()).values()) == {None}, "the released one is delivered again"


async def test_creating_queues(target: Target) -> None:
    if target.broker is None:
        pytest.skip("queues cannot be created in Apache Kafka")
    name, printed = f"q{uuid.uuid4().hex[:12]}", []
    names: dict[str, Any] = {"print": lambda *words: printed.append(words)}
    block = blocks("docs/python-client.md")[3]
    exec(block.replace(ADDRESS, target.bootstrap).replace('"emails"', repr(name)), names)
    for _ in range(2):
        await names["set_up"]()
    assert printed == [(0, 5), (0, 5)]


async def test_the_readme(target: Target) -> None:
    topic = target.topic()
    target.configure(topic, {"share.auto.offset.reset": "earliest"})
    (block,) = blocks("clients/python/README.md")
    block, run, rest = block.partition("anyio.run(main)")
    assert run
    assert not rest.strip()
    printed = anyio.Event()
    names: dict[str, Any] = {"print": lambda value: printed.set() if value == b"hello" else None}
    exec(block.replace(ADDRESS, target.bootstrap).replace('"emails"', repr(topic)), names)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(names["main"])
            await printed.wait()
            tasks.cancel_scope.cancel()
