"""The network side: listeners, connections, frames in and responses out in order.

One task per connection: wait until readable, receive into one buffer that all connections share,
handle every frame of the burst with plain function calls, send all answers with one sendmsg.
Nothing is allocated per request but the answer. A frame's bytes are only valid until the task waits
for something: the decoded request keeps no reference to them, and what of it is a slice of them
(batches of Produce) is copied by who keeps it, unless the frame came in pieces and has a buffer of
its own.

A frame that cannot be understood (size, api, version, body) ends its connection with one log line,
never the broker.
"""

from __future__ import annotations

import errno
import faulthandler
import logging
import math
import os
import signal
import socket
import struct
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from time import perf_counter
from types import CoroutineType
from typing import TYPE_CHECKING, Any

import trio

from kbroker.api import APIS, handler_of
from kbroker.api.api_versions import API_KEY as API_VERSIONS_KEY
from kbroker.api.api_versions import unsupported_version
from kbroker.api.request import Answer, CloseConnection, Later, Message, Raw, as_request
from kbroker.broker.broker import Broker, open_broker
from kbroker.broker.connection import Connection, PeerGone
from kbroker.broker.options import ReadyInfo, StartOptions
from kbroker.errors import ErrorCode, OperatorError
from kbroker.formats.batches import Buffer
from kbroker.metrics import RequestMetrics
from kbroker.protocol.error_codes import error_codes
from kbroker.protocol.frames import BadFrame, FrameReader
from kbroker.protocol.messages import build_response, encode, read_request, read_request_head, response_header
from kbroker.server.allocator import keep_freed_memory
from kbroker.server.hang_ups import HangUps
from kbroker.server.strangers import Strangers
from kbroker.storage.files import after

if TYPE_CHECKING:
    from kbroker.server.admin_http import AdminHttp

logger = logging.getLogger(__name__)

RECEIVE_BYTES = 1 << 20
_MAX_IOVECS = 1000
_SIZE_AND_CORRELATION = struct.Struct(">ii")
_IDLE_CHECK_S = 5.0
_GRACE_S = 10.0
_DEAF_S = 1.0
"""How long a stopping broker waits for a peer that takes none of its answers."""
_LEAVE_S = 1.0
"""How long a connection that the broker ends is kept for its peer to read the last answers and to
close it as well."""
_BACKLOG = 1024
_TURN_S = 0.01
"""How long one connection's burst may be worked on before the others have a turn, and its answers
are sent."""
_ACCEPTS_PER_TURN = 64


class _ClosedByPeer(Exception):
    pass


class _Response:
    """One response in the making: its head is known at once, its body perhaps only after a commit.
    `began`: when its request was cut out of what the socket gave."""

    __slots__ = ("answer", "api_key", "began", "correlation_id", "metrics", "version")

    def __init__(
        self,
        metrics: RequestMetrics,
        began: float,
        api_key: int,
        version: int,
        correlation_id: int,
        answer: Answer,
    ) -> None:
        self.metrics = metrics
        self.began = began
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.answer = answer

    def buffers(self, answer: Raw | Message | None) -> Sequence[Buffer]:
        """The whole response with `answer` for its body; nothing where that is None."""
        if answer is None:
            self.metrics.answered(perf_counter() - self.began, 0)
            return ()
        if type(answer) is Raw:
            body, errors = answer
        else:
            entity = build_response(self.api_key, self.version, answer)
            body, errors = (encode(entity),), error_codes(entity)
        if errors:
            self.metrics.failed(errors)
        tags = response_header(self.api_key, self.version)
        size = 4 + len(tags) + sum(map(len, body))
        self.metrics.answered(perf_counter() - self.began, 4 + size)
        return (_SIZE_AND_CORRELATION.pack(size, self.correlation_id) + tags, *body)


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    connections: int
    accepted: int
    refused: int
    requests: int
    reserved_bytes: int


class Server:
    """Serves one broker on one listening socket. `admin`: the address of the broker's HTTP, to name
    it to clients that send HTTP here.

    `shared_buffer` is valid between a receive and the next wait of any task."""

    def __init__(self, broker: Broker, admin: tuple[str, int] | None = None) -> None:
        self._strangers = Strangers(admin)
        self._broker = broker
        config = broker.config
        self._max_frame_bytes: int = config["socket.request.max.bytes"]
        self._max_connections: int = config["max.connections"]
        self._max_queued_bytes: int = config["queued.max.request.bytes"]
        max_idle_ms: int = config["connections.max.idle.ms"]
        self._max_idle_s = max_idle_ms / 1000 if max_idle_ms >= 0 else math.inf
        self._shared_buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._open: dict[int, _Peer] = {}
        self._next_id = 1
        self.metrics = broker.metrics
        self.metrics.requests = {key: RequestMetrics(api.last + 1) for key, api in APIS.items()}
        self.requests = 0
        self._reserved_bytes = 0
        self._room = trio.lowlevel.ParkingLot()
        self._emptied = trio.lowlevel.ParkingLot()
        self._accepting = trio.CancelScope()
        self._hang_ups = HangUps()
        self.stopping = False

    def statistics(self) -> ServerStatistics:
        return ServerStatistics(
            len(self._open), self.metrics.accepted, self.metrics.refused, self.requests, self._reserved_bytes
        )

    async def serve(self, listener: socket.socket) -> None:
        """Accept until cancelled; then connections end with their tasks."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._close_idle)
            nursery.start_soon(self._hang_ups.run)
            with self._accepting:
                while True:
                    await trio.lowlevel.wait_readable(listener.fileno())
                    await self._accept_all(listener, nursery)

    async def _accept_all(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                await self._after_accept_error(error)
                return
            self._admit(nursery, sock, str(address[0]))

    async def _after_accept_error(self, error: OSError) -> None:
        if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            logger.warning("accept failed: %s", error)
            return
        logger.error("cannot accept connections: %s", error)
        await trio.sleep(0.1)

    def _admit(self, nursery: trio.Nursery, sock: socket.socket, host: str) -> None:
        if len(self._open) >= self._max_connections:
            self.metrics.refused += 1
            full = f"max.connections={self._max_connections} are open"
            self._strangers.warn(host, f"connection from {host} refused", full, trio.current_time())
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.metrics.accepted += 1
        peer = _Peer(self, self._broker, sock, self._next_id, host)
        self._open[self._next_id] = peer
        self._hang_ups.watch(sock.fileno(), peer.connection)
        self.metrics.connections = len(self._open)
        self._next_id += 1
        nursery.start_soon(self._serve_peer, peer)

    async def _serve_peer(self, peer: _Peer) -> None:
        try:
            if await self._work_for(peer):
                await peer.take_leave(self._shared_buffer)
        finally:
            del self._open[peer.connection.id]
            self.metrics.connections = len(self._open)
            self._hang_ups.forget(peer.sock.fileno())
            peer.sock.close()
            if not self._open:
                self._emptied.unpark_all()

    async def _work_for(self, peer: _Peer) -> bool:
        """Serve until the connection ends, or has to. True if it is the broker that ends it: the
        peer may have answers to read."""
        try:
            await peer.serve(self._shared_buffer)
            return True
        except _ClosedByPeer:
            pass
        except PeerGone:
            logger.debug("%s hung up while a request was waiting", peer.name)
        except (BadFrame, CloseConnection) as error:
            host = peer.connection.client_host
            if farewell := self._strangers.closing(peer.name, host, error, trio.current_time()):
                peer.send_if_there_is_room(farewell)
            return True
        except OSError as error:
            logger.info("connection of %s lost: %s", peer.name, error)
        except Exception:
            # A bug of ours. The state changes of a request are made without a wait in between, so
            # others can go on.
            logger.exception("closing connection of %s: internal error", peer.name)
        finally:
            self.release(peer)
            self._broker.connection_closed(peer.connection)
        return False

    async def _close_idle(self) -> None:
        while True:
            await trio.sleep(min(_IDLE_CHECK_S, max(0.1, self._max_idle_s / 4)))
            now = trio.current_time()
            for peer in list(self._open.values()):
                # A burst only notes that it was: to ask for the time would cost it more calls.
                if peer.was_active:
                    peer.was_active, peer.last_active = False, now
                elif (peer.is_stalled or not peer.busy) and peer.last_active < now - self._max_idle_s:
                    logger.info("closing connection of %s: idle for connections.max.idle.ms", peer.name)
                    peer.shut_down()

    async def reserve(self, peer: _Peer, frame_bytes: int) -> None:
        """Count a frame that has begun to arrive against queued.max.request.bytes; above that, wait
        before reading more of it.

        As in Kafka a frame may begin while anything of the limit is left, so that every frame that
        has begun can end.
        """
        self.release(peer)
        while frame_bytes and 0 < self._max_queued_bytes <= self._reserved_bytes:
            await self._room.park()
        peer.reserved_bytes = frame_bytes
        self._reserved_bytes += frame_bytes

    def release(self, peer: _Peer) -> None:
        self._reserved_bytes -= peer.reserved_bytes
        peer.reserved_bytes = 0
        self._room.unpark_all()

    @property
    def max_frame_bytes(self) -> int:
        return self._max_frame_bytes

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more, let every connection finish the requests that it has received; idle
        ones are closed at once, and those whose peer does not read its answers soon after."""
        self.stopping = True
        self._accepting.cancel()
        self._broker.start_closing()
        for peer in list(self._open.values()):
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


class _Peer:
    """One client connection."""

    __slots__ = (
        "_broker", "_frames", "_metrics", "_server", "busy", "connection", "is_stalled", "last_active",
        "name", "reserved_bytes", "sock", "was_active",
    )  # fmt: skip

    def __init__(
        self, server: Server, broker: Broker, sock: socket.socket, connection_id: int, host: str
    ) -> None:
        self._server = server
        self._broker = broker
        self._metrics = server.metrics
        self.sock = sock
        self.name = f"{host} (connection {connection_id})"
        self.connection = Connection(connection_id, host, broker.deadlines)
        self._frames = FrameReader(server.max_frame_bytes)
        self.reserved_bytes = 0
        self.busy = False
        self.is_stalled = False
        """The peer reads too slowly, or not at all: its answers wait for it."""
        self.last_active = trio.current_time()
        self.was_active = False
        """Since somebody looked at `last_active`."""

    async def serve(self, shared_buffer: memoryview) -> None:
        while True:
            await trio.lowlevel.wait_readable(self.sock.fileno())
            try:
                received = self.sock.recv_into(shared_buffer)
            except BlockingIOError:
                continue
            if not received:
                raise _ClosedByPeer
            self._metrics.received_bytes += received
            self.busy = True
            await self._handle_burst(shared_buffer[:received])
            self.busy = False
            if self._server.stopping:
                return
            self.was_active = True
            if self._frames.expected_bytes != self.reserved_bytes:
                await self._server.reserve(self, self._frames.expected_bytes)

    async def _handle_burst(self, data: memoryview) -> None:
        """Answer every whole frame of `data`, in order."""
        ready: deque[_Response] = deque()
        frames: Iterator[bytes | memoryview] = self._frames.feed(data)
        is_owned = False
        turn_ends = perf_counter() + _TURN_S
        try:
            while (frame := next(frames, None)) is not None:
                response, waiting = self._dispatch(frame)
                is_turn_over = response.began > turn_ends
                if not is_owned and (waiting is not None or is_turn_over):
                    # The shared buffer is another task's as soon as this one waits: own what has
                    # not been looked at yet.
                    frames, is_owned = _owned(frames), True
                if waiting is not None:
                    response.answer = await self._send_then(ready, waiting)
                ready.append(response)
                if is_turn_over:
                    await self._send(ready)
                    await trio.lowlevel.checkpoint()
                    turn_ends = perf_counter() + _TURN_S
        except (BadFrame, CloseConnection):
            await self._send(ready)  # What came before the bad request is answered all the same.
            raise
        await self._send(ready)

    async def _send_then(self, ready: deque[_Response], waiting: Coroutine[Any, Any, Answer]) -> Answer:
        """What is answered already does not wait for a request that may be parked."""
        try:
            if ready:
                await self._send(ready)
        except BaseException:
            waiting.close()
            raise
        return await waiting

    def _dispatch(self, frame: bytes | memoryview) -> tuple[_Response, Coroutine[Any, Any, Answer] | None]:
        began = perf_counter()
        self._server.requests += 1
        try:
            head = read_request_head(frame)
            api = APIS.get(head.api_key)
            if api is None:
                raise CloseConnection(f"unknown api key {head.api_key}", "api key")
            metrics = self._metrics.requests[head.api_key]
            if not api.first <= head.api_version <= api.last:
                if head.api_key == API_VERSIONS_KEY:
                    metrics.by_version[0] += 1  # It is answered as that.
                    refusal = Raw((unsupported_version(),), (ErrorCode.unsupported_version,))
                    return _Response(metrics, began, API_VERSIONS_KEY, 0, head.correlation_id, refusal), None
                unserved = f"{api.module} version {head.api_version} is not served"
                raise CloseConnection(unserved, f"version of {api.module}")
            metrics.by_version[head.api_version] += 1
            metrics.request_bytes += 4 + len(frame)
            body = read_request(head, frame)
        except ValueError as error:
            raise CloseConnection(f"malformed request: {error}", "malformed request") from error
        request = as_request(
            (self._broker, self.connection, head.api_key, head.api_version, head.client_id, body)
        )
        answer = handler_of(head.api_key)(request)
        response = _Response(metrics, began, head.api_key, head.api_version, head.correlation_id, answer)
        return response, answer if type(answer) is CoroutineType else None

    async def _send(self, ready: deque[_Response]) -> None:
        buffers: list[Buffer] = []
        try:
            while ready:
                response = ready.popleft()
                answer = response.answer
                if type(answer) is Later:
                    if answer.pending.parts:
                        await answer.pending.wait()
                    answer = answer.body()
                buffers += response.buffers(answer)
        finally:
            # Also when an acks=0 batch was refused, which ends the connection: earlier answers of
            # the burst are good. Nearly always it takes everything at once.
            if buffers and (sent := self._send_some(buffers)) != sum(map(len, buffers)):
                await self._send_rest(buffers, sent)

    async def _send_rest(self, buffers: list[Buffer], sent: int) -> None:
        views = [memoryview(buffer) for buffer in buffers]
        while views := after(views, sent):
            if not sent:
                self.last_active = trio.current_time()
                self.is_stalled = True
                await trio.lowlevel.wait_writable(self.sock.fileno())
                self.is_stalled = False
            sent = self._send_some(views)

    def _send_some(self, buffers: Sequence[Buffer]) -> int:
        """The number of bytes that the socket has taken; 0 where it takes none now."""
        try:
            sent = self.sock.sendmsg(buffers[:_MAX_IOVECS])
        except BlockingIOError:
            return 0
        self._metrics.sent_bytes += sent
        return sent

    def send_if_there_is_room(self, data: bytes) -> None:
        try:
            self._send_some((data,))
        except OSError as error:
            logger.debug("sending to %s: %s", self.name, error)

    async def take_leave(self, shared_buffer: memoryview) -> None:
        """Send the end of the stream and read to the peer's, for a moment: to close a socket in
        which unread bytes lie resets the connection, and answers that are still on their way would
        be lost."""
        self.shut_down(socket.SHUT_WR)
        with trio.move_on_after(_LEAVE_S):
            while True:
                await trio.lowlevel.wait_readable(self.sock.fileno())
                try:
                    if not self.sock.recv_into(shared_buffer):
                        return
                except BlockingIOError:
                    continue
                except OSError:  # Reset: whoever did that reads nothing more.
                    return

    def has_unread_bytes(self) -> bool:
        try:
            return bool(self.sock.recv(1, socket.MSG_PEEK))
        except OSError:  # Also BlockingIOError: there are none.
            return False

    def shut_down(self, how: int = socket.SHUT_RDWR) -> None:
        """End the connection from this side; its task notices by reading the end of the stream (not
        with SHUT_WR)."""
        try:
            self.sock.shutdown(how)
        except OSError as error:
            logger.debug("shutting down %s: %s", self.name, error)


def _owned(frames: Iterator[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Copies of the frames that are left. A bad one is reported where it lies, behind the good
    ones."""
    copies: list[bytes] = []
    bad: BadFrame | None = None
    try:
        copies.extend(bytes(frame) for frame in frames)
    except BadFrame as error:
        bad = error

    def replay() -> Iterator[bytes | memoryview]:
        yield from copies
        if bad is not None:
            raise bad

    return replay()


def bind(address: tuple[str, int], option: str = "--listen") -> socket.socket:
    """A listening socket. Raises OperatorError when the address cannot be had; `option` is what
    asked for it."""
    host, port = address
    try:
        info = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(info[0], info[1])
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(info[4])
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise OperatorError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another address with {option}"
        ) from error
    listener.setblocking(False)
    return listener


async def serve(options: StartOptions, stop: trio.Event) -> None:
    """Open a broker and serve it until `stop` is set: then requests that have arrived are answered,
    what is written is synced and everything is closed. Cancelling skips the answers, not the
    closing."""
    with ExitStack() as sockets:
        listener = sockets.enter_context(bind(options.listen))
        admin_listener = sockets.enter_context(bind(options.admin, "--admin")) if options.admin else None
        host, port = listener.getsockname()[:2]
        bound = replace(options, listen=(options.listen[0] or host, port))
        async with open_broker(bound) as broker:
            admin_address = admin_listener.getsockname()[:2] if admin_listener else None
            server = Server(broker, admin_address)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.serve, listener)
                admin = _open_admin(broker, admin_listener)
                if admin is not None:
                    nursery.start_soon(admin.serve)
                options.on_ready(ReadyInfo(host, port, admin_address))
                _notify_ready()
                await stop.wait()
                await server.stop(_GRACE_S)
                if admin is not None:
                    await admin.stop(_LEAVE_S)
                nursery.cancel_scope.cancel()


def _open_admin(broker: Broker, listener: socket.socket | None) -> AdminHttp | None:
    """What it needs is imported only where somebody wants it."""
    if listener is None or broker.options.admin is None:
        return None
    from kbroker.server.admin_http import AdminHttp
    from kbroker.server.admin_views import AdminViews

    names = (broker.options.admin[0], *broker.options.admin_names)
    return AdminHttp(listener, AdminViews(broker), names, kafka=f"{broker.host}:{broker.port}")


def run(options: StartOptions) -> int:
    """Serve until a signal: the first SIGTERM or SIGINT finishes what is in flight and closes, the
    second ends at once.

    Returns 0. Raises OperatorError when the broker cannot start.
    """
    keep_freed_memory()
    # What every thread does, on stderr: for a broker that does not answer.
    faulthandler.register(signal.SIGQUIT)
    trio.run(_serve_until_signal, options)
    return 0


async def _serve_until_signal(options: StartOptions) -> None:
    stop = trio.Event()
    refused: list[OperatorError] = []

    async def serve_and_leave(nursery: trio.Nursery) -> None:
        try:
            await serve(options, stop)
        except OperatorError as error:
            refused.append(error)
        nursery.cancel_scope.cancel()

    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_and_leave, nursery)
            async for number in signals:
                if stop.is_set():
                    logger.warning("second signal: ending at once")
                    os._exit(128 + number)
                logger.info("received %s: closing", signal.Signals(number).name)
                stop.set()
    if refused:
        raise refused[0]


def _notify_ready() -> None:
    """Tell systemd, where it started us (sd_notify): READY=1 on the datagram socket that it
    names."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        try:
            notify.sendto(b"READY=1", address)
        except OSError as error:
            logger.warning("sd_notify failed: %s", error)
