"""Connections are told that their peers have hung up, with epoll and where there is none."""

from __future__ import annotations

import select
import socket

import pytest
import trio
import trio.testing

from kbroker.broker.connection import Connection, PeerGone
from kbroker.broker.deadlines import Deadlines
from kbroker.broker.hang_ups import HangUps
from kbroker.broker.waiting import Waiter


@pytest.mark.parametrize(
    "has_epoll", [pytest.param(True, marks=pytest.mark.skipif(not hasattr(select, "epoll"), reason="a system without epoll")), False]
)
async def test_who_waits_hears_that_the_peer_has_gone(has_epoll: bool, autojump_clock: trio.testing.MockClock) -> None:
    hang_ups, deadlines = HangUps(has_epoll=has_epoll), Deadlines()
    (gone, its_peer), (there, _other_peer) = socket.socketpair(), socket.socketpair()
    connections = [Connection(number, "client", deadlines) for number in (1, 2)]
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
