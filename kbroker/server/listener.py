"""The server: accepts connections of all listeners up to a limit, runs a task for each, and ends
those that are idle, broken, or left over at a stop.

A frame that cannot be understood (size, api, version, body) ends its connection with one log line,
never the broker.
"""

from __future__ import annotations

import errno
import logging
import math
import select
import socket
from dataclasses import dataclass
from typing import NamedTuple, cast

import trio

from kbroker.api import APIS
from kbroker.api.request import CloseConnection
from kbroker.broker.broker import Broker
from kbroker.broker.connection import ClientConnection, PeerGone
from kbroker.broker.security.service import LogIns
from kbroker.metrics import RequestMetrics
from kbroker.protocol.frames import BadFrame
from kbroker.security.principals import ANONYMOUS
from kbroker.security.sasl_settings import SaslSettings
from kbroker.seldom import Seldom
from kbroker.server.connection_limits import ConnectionLimits
from kbroker.server.intake import RECEIVE_BYTES, Intake
from kbroker.server.peer import ClosedByPeer, Peer
from kbroker.server.sasl_peer import SaslPeer
from kbroker.server.strangers import INTERVAL_S, Strangers, again
from kbroker.server.tls import ListenerTls
from kbroker.server.tls_socket import Ciphertext, TlsSocket
from kbroker.settings.hosts import canonical_host
from kbroker.settings.listeners import Listener

logger = logging.getLogger(__name__)

_IDLE_CHECK_S = 5.0
_DEAF_S = 1.0
"""How long a stopping broker waits for a peer that reads none of its answers."""
_ACCEPTS_PER_TURN = 64
_HANG_UP_CHECK_S = 1.0
_END_OF_STREAM = getattr(select, "POLLRDHUP", select.POLLHUP)


class HangUps:
    """Notifies connections whose peers have closed their side, even if bytes of later requests are
    unread: otherwise a fetch could wait for days. Without epoll it polls once a second."""

    def __init__(self, *, has_epoll: bool = hasattr(select, "epoll")) -> None:
        self._poller = select.epoll() if has_epoll else select.poll()
        self._has_epoll = has_epoll
        self._connections: dict[int, ClientConnection] = {}

    def watch(self, fd: int, connection: ClientConnection) -> None:
        self._connections[fd] = connection
        self._poller.register(fd, _END_OF_STREAM)

    def forget(self, fd: int) -> None:
        if self._connections.pop(fd, None) is not None:
            self._poller.unregister(fd)

    async def run(self) -> None:
        while True:
            if self._has_epoll:
                await trio.lowlevel.wait_readable(cast("select.epoll", self._poller))
            else:
                await trio.sleep(_HANG_UP_CHECK_S)
            for fd, _ in self._poller.poll(0):
                connection = self._connections[fd]
                self.forget(fd)
                connection.hang_up()


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    connections: int
    accepted: int
    refused: int
    requests: int
    reserved_bytes: int


class Door(NamedTuple):
    """A listening socket, and what connections through it are. `listener` None: the only one, which
    is plain."""

    sock: socket.socket
    listener: Listener | None = None
    tls: ListenerTls | None = None
    sasl: SaslSettings | None = None


class Server:
    """Serves one broker on its listening sockets. `admin`: the URL of the broker's HTTP endpoint,
    for the answer to clients that send HTTP to a port of it."""

    def __init__(self, broker: Broker, admin: str | None = None) -> None:
        self._strangers = Strangers(admin)
        self._broker = broker
        self._intake = Intake(broker.config)
        max_idle_ms: int = broker.config["connections.max.idle.ms"]
        self._max_idle_s = max_idle_ms / 1000 if max_idle_ms >= 0 else math.inf
        self._open: dict[int, Peer] = {}
        self._next_id = 1
        self._metrics = broker.metrics
        self._metrics.requests.update((key, RequestMetrics(api.last + 1)) for key, api in APIS.items())
        self._emptied = trio.lowlevel.ParkingLot()
        self._accepting = trio.CancelScope()
        self._hang_ups = HangUps()
        self._ciphertext = Ciphertext(RECEIVE_BYTES)
        self._tls: dict[Listener | None, ListenerTls] = {}
        self._limits = ConnectionLimits(broker.config, self._admits)
        self._seldom = Seldom(INTERVAL_S)

    def statistics(self) -> ServerStatistics:
        accepted, refused = self._metrics.accepted, self._metrics.refused
        intake = self._intake
        return ServerStatistics(len(self._open), accepted, refused, intake.requests, intake.reserved_bytes)

    async def serve(self, *doors: Door) -> None:
        """Accept until cancelled, which also ends the connections' tasks."""
        self._tls = {door.listener: door.tls for door in doors if door.tls is not None}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._close_idle)
            nursery.start_soon(self._hang_ups.run)
            with self._accepting:
                async with trio.open_nursery() as accepting:
                    for door in doors:
                        if door.sasl is not None:
                            self._broker.metrics.sasl.offer(door.sasl.mechanisms)
                        log_ins = self._log_ins(door)
                        accepting.start_soon(self._accept, door, log_ins, nursery)
                        if log_ins is not None and log_ins.token_keys is not None:
                            accepting.start_soon(log_ins.token_keys.keep_current)
                        if door.tls is not None:
                            accepting.start_soon(door.tls.keep_current)

    def _log_ins(self, door: Door) -> LogIns | None:
        """None: clients do not log in."""
        if door.sasl is None:
            return None
        return self._broker.security.log_ins(door.sasl, "" if door.listener is None else door.listener.name)

    async def _accept(self, door: Door, log_ins: LogIns | None, nursery: trio.Nursery) -> None:
        while True:
            await trio.lowlevel.wait_readable(door.sock.fileno())
            await self._accept_all(door, log_ins, nursery)

    async def _accept_all(self, door: Door, log_ins: LogIns | None, nursery: trio.Nursery) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, address = door.sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                await self._after_accept_error(error)
                return
            # One spelling for each address, also for an IPv4 client at an IPv6 socket.
            host = canonical_host(str(address[0]))
            if (peer := self._admitted(door, log_ins, sock, host)) is not None:
                nursery.start_soon(self._serve_peer, peer)

    async def _after_accept_error(self, error: OSError) -> None:
        if times := self._seldom.times(error.errno, trio.current_time()):
            logger.error("cannot accept connections: %s%s", error, again(times))
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            await trio.sleep(0.1)

    def _admitted(self, door: Door, log_ins: LogIns | None, sock: socket.socket, host: str) -> Peer | None:
        """The connection of a client; None if a limit refuses it."""
        if (full := self._limits.exceeded(host)) is not None:
            self._metrics.refused += 1
            self._strangers.warn(host, f"connection from {host} refused", full, trio.current_time())
            sock.close()
            return None
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._metrics.accepted += 1
        self._limits.add(host)
        secured = sock if door.tls is None else TlsSocket(sock, door.tls.context, self._ciphertext)
        common = (self._intake, self._broker, secured, self._next_id, host, door.listener)
        peer = Peer(*common) if log_ins is None else SaslPeer(*common, log_ins)
        self._open[self._next_id] = peer
        self._hang_ups.watch(sock.fileno(), peer.connection)
        self._metrics.connections = len(self._open)
        self._next_id += 1
        return peer

    def _admits(self, host: str) -> bool:
        quotas = self._broker.quotas
        if not quotas.limit_addresses or quotas.admits(host):
            return True
        self._metrics.quotas.refused += 1
        return False

    async def _serve_peer(self, peer: Peer) -> None:
        try:
            if await self._work_for(peer):
                await peer.take_leave(self._intake.buffer)
        finally:
            del self._open[peer.connection.id]
            self._limits.remove(peer.connection.client_host)
            self._metrics.connections = len(self._open)
            self._hang_ups.forget(peer.sock.fileno())
            peer.sock.close()
            if not self._open:
                self._emptied.unpark_all()

    async def _work_for(self, peer: Peer) -> bool:
        """Serve until the connection ends or must end. True if the broker ends it: the peer may
        still have answers to read."""
        try:
            if isinstance(peer.sock, TlsSocket):
                await self._secure(peer, peer.sock)
            await peer.serve(self._intake.buffer)
            return True
        except ClosedByPeer:
            pass
        except PeerGone:
            logger.debug("%s hung up while a request was waiting", peer.name)
        except (BadFrame, CloseConnection) as error:
            host = peer.connection.client_host
            if farewell := self._strangers.closing(peer.name, host, error, trio.current_time()):
                peer.send_if_there_is_room(farewell)
            return True
        except OSError as error:
            self._strangers.lost(peer.name, peer.connection.client_host, error, trio.current_time())
        except Exception:
            # A bug in kbroker. A request changes state without a wait in between, so the other
            # connections can continue.
            logger.exception("closing connection of %s: internal error", peer.name)
        finally:
            self._intake.release(peer)
            self._broker.security.sessions.remove(peer.connection.principal, peer.connection.id)
            self._broker.connection_closed(peer.connection)
        return False

    async def _secure(self, peer: Peer, sock: TlsSocket) -> None:
        """The handshake. From then on the client is the principal of its certificate. Raises
        CloseConnection, OSError."""
        listener = peer.connection.listener
        await sock.handshake(str(listener))
        principal = self._tls[listener].principal_of(sock.peer_certificate())
        if principal is None:
            unnamed = (
                "the subject of its certificate cannot be read, or no rule of ssl.principal.mapping.rules "
                "matches it"
            )
            raise CloseConnection(unnamed, "certificate")
        peer.act_as(principal)
        if principal != ANONYMOUS:
            self._broker.security.sessions.add(principal, peer.connection.id, peer.end_session)

    async def _close_idle(self) -> None:
        while True:
            await trio.sleep(min(_IDLE_CHECK_S, max(0.1, self._max_idle_s / 4)))
            now = trio.current_time()
            for peer in list(self._open.values()):
                # A burst sets only a flag, since reading the clock would cost more calls.
                if peer.was_active:
                    peer.was_active, peer.last_active = False, now
                elif (peer.is_stalled or not peer.busy) and peer.last_active < now - self._max_idle_s:
                    logger.info("closing connection of %s: idle for connections.max.idle.ms", peer.name)
                    peer.shut_down()

    async def stop(self, grace_s: float) -> None:
        """Stop accepting and let every connection finish the requests that it has received. Idle
        connections are closed at once, and those whose peer reads no answers soon after."""
        self._intake.stopping = True
        self._accepting.cancel()
        self._broker.start_closing()
        for peer in list(self._open.values()):
            peer.end_mute()
            if not peer.busy and not peer.has_unread_bytes():
                peer.shut_down(socket.SHUT_RD)
        with trio.move_on_after(grace_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._close_deaf)
                while self._open:
                    await self._emptied.park()
                nursery.cancel_scope.cancel()

    async def _close_deaf(self) -> None:
        began = trio.current_time()
        while True:
            await trio.sleep(_DEAF_S / 4)
            oldest = trio.current_time() - _DEAF_S
            for peer in list(self._open.values()):
                if peer.is_stalled and max(peer.last_active, began) <= oldest:
                    logger.info("closing connection of %s: it does not read its answers", peer.name)
                    peer.shut_down()
