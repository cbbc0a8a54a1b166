"""The queue of passwords that wait to be checked: bounded, and shared between addresses."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from kbroker.broker.security.derivations import AT_A_TIME, QUEUED, Derivations, TooManyDerivations
from kbroker.security.exchange import Derivation

FULL = AT_A_TIME + QUEUED
WANTED = Derivation(b"password", b"salt", 4096, "sha256")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No derivation ends before it is set."""
    opened = threading.Event()

    def slow(*_: object) -> bytes:
        assert opened.wait(60)
        return bytes(32)

    monkeypatch.setattr("kbroker.broker.security.derivations.salt_password", slow)
    yield opened
    opened.set()


class Clients:
    """`done`, `refused`: log-ins by address."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.derivations = Derivations()
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._nursery = nursery

    async def come(self, *hosts: str) -> None:
        for host in hosts:
            self._nursery.start_soon(self._derive, host)
            await trio.testing.wait_all_tasks_blocked()

    async def _derive(self, host: str) -> None:
        try:
            await self.derivations.derive(WANTED, host)
            self.done[host] += 1
        except TooManyDerivations:
            self.refused[host] += 1


async def test_one_address_may_fill_the_queue(gate: threading.Event) -> None:
    async with trio.open_nursery() as nursery:
        clients = Clients(nursery)
        await clients.come(*["10.0.0.1"] * 80)
        assert clients.derivations.statistics().waiting == FULL
        assert clients.refused["10.0.0.1"] == clients.derivations.statistics().refused == 80 - FULL
        gate.set()
    assert clients.done["10.0.0.1"] == clients.derivations.statistics().done == FULL
    assert clients.derivations.statistics().waiting == 0


@pytest.mark.parametrize(
    ("flood", "other"),
    [
        (["10.0.0.1"] * 80, "10.0.0.2"),
        ([f"2001:db8::{number:x}" for number in range(80)], "2001:db8:1::1"),
    ],
    ids=["one address", "the addresses of one IPv6 network"],
)
async def test_a_flood_keeps_no_other_address_out(
    gate: threading.Event, flood: list[str], other: str
) -> None:
    async with trio.open_nursery() as nursery:
        clients = Clients(nursery)
        await clients.come(*flood, other, other, *flood)
        assert clients.derivations.statistics().waiting == FULL
        gate.set()
    assert (clients.done[other], clients.refused[other]) == (2, 0)
    assert clients.done.total() == FULL


async def test_two_floods_share_the_queue(gate: threading.Event) -> None:
    async with trio.open_nursery() as nursery:
        clients = Clients(nursery)
        await clients.come(*["10.0.0.1"] * 80, *["10.0.0.2"] * 80)
        gate.set()
    assert clients.done == {"10.0.0.1": FULL // 2, "10.0.0.2": FULL // 2}


async def test_a_log_in_that_is_given_up_leaves_its_place(gate: threading.Event) -> None:
    async with trio.open_nursery() as nursery:
        clients = Clients(nursery)
        await clients.come("10.0.0.1", "10.0.0.1")
        with trio.move_on_after(0.01):
            await clients.derivations.derive(WANTED, "10.0.0.2")
        assert clients.derivations.statistics().waiting == 2
        gate.set()
