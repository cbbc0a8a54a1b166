"""Connections are notified that their peers have hung up, with and without epoll."""

from __future__ import annotations

import select
import socket

import pytest
import trio
import trio.testing

from kbroker.broker.commits.deadlines import Deadlines
from kbroker.broker.commits.waiting import Waiter
from kbroker.broker.connection import ClientConnection, PeerGone
from kbroker.metrics import WaitMetrics
from kbroker.server.listener import HangUps


@pytest.mark.parametrize(
    "has_epoll",
    [
        pytest.param(
            True, marks=pytest.mark.skipif(not hasattr(select, "epoll"), reason="a system without epoll")
        ),
        False,
    ],
)
async def test_who_waits_hears_that_the_peer_has_gone(
    has_epoll: bool, autojump_clock: trio.testing.MockClock
) -> None:
    hang_ups, deadlines = HangUps(has_epoll=has_epoll), Deadlines()
    (gone, its_peer), (there, _other_peer) = socket.socketpair(), socket.socketpair()
    connections = [ClientConnection(number, "client", deadlines) for number in (1, 2)]
    for sock, connection in zip((gone, there), connections, strict=True):
        hang_ups.watch(sock.fileno(), connection)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hang_ups.run)
        its_peer.sendall(b"a request that nobody has read yet")
        its_peer.shutdown(socket.SHUT_WR)
        with pytest.raises(PeerGone):
            await connections[0].park(Waiter(), trio.current_time() + 60)
        assert [connection.has_hung_up for connection in connections] == [True, False]
        hang_ups.forget(gone.fileno())
        hang_ups.forget(there.fileno())
        nursery.cancel_scope.cancel()
    for sock in (gone, its_peer, there, _other_peer):
        sock.close()


async def test_long_waits_leave_nothing_behind_for_long(autojump_clock: trio.testing.MockClock) -> None:
    """A wait ends when its time is over, however long that is; waits of clients that have gone are
    removed within a minute."""
    deadlines, day = Deadlines(), 86_400.0
    connections = [ClientConnection(number, "client", deadlines) for number in range(50)]
    waited: list[float] = []

    async def wait(connection: ClientConnection) -> None:
        try:
            await connection.park(Waiter(), 24 * day)
            waited.append(trio.current_time())
        except PeerGone:
            waited.append(-1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        async with trio.open_nursery() as waiting:
            for connection in connections:
                waiting.start_soon(wait, connection)
            await trio.testing.wait_all_tasks_blocked()
            for connection in connections[1:]:
                connection.hang_up()
            assert deadlines.statistics().scheduled == 50
            await trio.sleep(61)
            assert deadlines.statistics().scheduled == 1
        nursery.cancel_scope.cancel()
    assert waited == [-1] * 49 + [pytest.approx(24 * day, abs=0.1)]


class BusySearch:
    """Finds something in each look, never enough; more arrives while it reads in a thread."""

    has_paused = True

    def __init__(self) -> None:
        self.looks: list[bool] = []
        self._waiter = Waiter()

    async def look(self, *, is_last: bool) -> bool:
        self.looks.append(is_last)
        assert len(self.looks) < 100, "it does not end"
        await trio.sleep(0.1)
        self._waiter.wake()
        return False

    def watch(self, waiter: Waiter) -> None:
        self._waiter = waiter

    def unwatch(self) -> None:
        pass


async def test_a_wait_ends_though_more_arrives_during_each_look(
    autojump_clock: trio.testing.MockClock,
) -> None:
    deadlines, waits = Deadlines(), WaitMetrics()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        search, connection = BusySearch(), ClientConnection(1, "client", deadlines)
        began = trio.current_time()
        await connection.wait_for(search, 500, waits)
        assert trio.current_time() - began == pytest.approx(0.6, abs=0.01)
        assert search.looks == [False] * 5 + [True]
        assert (waits.waiting, waits.expired) == (0, 1)
        nursery.cancel_scope.cancel()
