"""One client's connection: frames in, answers out in order. One above a quota waits.

One task per connection: wait until readable, receive into the buffer that all connections share,
handle every frame of the burst with plain function calls, send all answers with one sendmsg. Apart
from the answer, nothing is allocated per request.

A frame's bytes are valid until the task waits for something. The decoded request keeps no reference
to them. Slices of them (the batches of a Produce) are copied by the part that keeps them, unless
the frame came in pieces and has a buffer of its own.
"""

from __future__ import annotations

import logging
import socket
import struct
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from time import perf_counter
from types import CoroutineType, coroutine
from typing import Any, Final, TypeVar

import trio

from kbroker.api import APIS, handler_of
from kbroker.api.api_versions import API_KEY as API_VERSIONS_KEY
from kbroker.api.api_versions import unsupported_version
from kbroker.api.bounds import BOUNDS
from kbroker.api.request import Answer, CloseConnection, Later, Message, Raw, as_request
from kbroker.api.unserved import unserved_line
from kbroker.broker.broker import Broker
from kbroker.broker.commits.deadlines import now_ms
from kbroker.broker.commits.waiting import Waiter
from kbroker.broker.connection import ClientConnection, PeerGone
from kbroker.errors import ErrorCode
from kbroker.formats.batches import Buffer
from kbroker.metrics import QuotaMetrics, RequestMetrics
from kbroker.protocol.array_check import TooManyRows
from kbroker.protocol.error_codes import error_codes
from kbroker.protocol.frames import BadFrame, FrameReader
from kbroker.protocol.long_requests import DECODED_ROWS_A_TURN, LongRequest
from kbroker.protocol.long_responses import Packing, ResponseTooLarge, is_long
from kbroker.protocol.messages import (
    RequestHead,
    build_response,
    encode,
    read_request,
    read_request_head,
    response_header,
    response_schema,
    throttle_time_at,
    with_throttle_time,
)
from kbroker.protocol.responses import with_throttle_time as throttled_body
from kbroker.security.metering import Metering
from kbroker.security.principals import ANONYMOUS, Principal
from kbroker.server.intake import Intake
from kbroker.server.tls_socket import TlsSocket
from kbroker.settings.listeners import Listener
from kbroker.storage.files import after

logger = logging.getLogger(__name__)
T = TypeVar("T")

_SIZE_AND_CORRELATION = struct.Struct(">ii")
_TURN_S = 0.01
"""How long one connection's burst is processed before its answers are sent and other connections
get a turn."""
_MAX_IOVECS = 1000
_LEAVE_S = 1.0
"""How long a connection that the broker ends stays open, so that the peer can read the last answers
and close its own side."""
PRODUCE_KEY: Final = 0
UNMETERED: Final = frozenset({17, 36})
"""Log-ins do not count as work for a client."""
LEAST_MS: Final = 100
"""A client that always holds a lock which nearly ends must not ask as often as it likes. It could
have acknowledged at the end of each wait before."""


class Mute:
    """One wait of one connection: a timer, and nothing that polls."""

    def __init__(self, connection: ClientConnection, metrics: QuotaMetrics) -> None:
        self._connection = connection
        self._metrics = metrics
        self._waiter = Waiter()

    async def wait(self, wait_ms: int) -> None:
        """Returns earlier at the `end`, and if the client hangs up."""
        self._metrics.muted += 1
        try:
            await self._connection.park(self._waiter, trio.current_time() + wait_ms / 1000)
        except PeerGone:
            pass  # What the client has sent before is answered; the server then reads the end.
        finally:
            self._metrics.muted -= 1

    def end(self) -> None:
        self._waiter.wake()


def before_locks_end(wait_ms: int, first_lock_ms: float, now_ms: float) -> int:
    """The time that the client waits: at most half of the time that is left of its first lock, so
    that it can still acknowledge the record, and not less than LEAST_MS because of it."""
    left_ms = (first_lock_ms - now_ms) / 2
    return wait_ms if left_ms >= wait_ms else min(wait_ms, max(LEAST_MS, int(left_ms)))


@coroutine
def timed(work: Coroutine[Any, Any, T], metering: Metering) -> Generator[Any, Any, T]:
    """Do the work, and add the time that it runs to `metering`: not that in which it waits."""
    resume: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        began = perf_counter()
        try:
            trap = resume(value)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        finally:
            metering.busy_s += perf_counter() - began
        try:
            value, resume = (yield trap), work.send
        except BaseException as error:
            value, resume = error, work.throw


class ClosedByPeer(Exception):
    pass


class _Response:
    """A response in progress: its head is known at once, its body perhaps only after a commit.
    `began`: when the frame of its request was cut."""

    __slots__ = ("answer", "api_key", "began", "correlation_id", "metrics", "throttle_ms", "version")

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
        self.throttle_ms = 0

    def buffers(self, answer: Raw | Message | None) -> Sequence[Buffer]:
        """The whole response with `answer` as its body; nothing if that is None."""
        if answer is None:
            self.metrics.answered(perf_counter() - self.began, 0)
            return ()
        if type(answer) is Raw:
            body, errors = answer
            if self.throttle_ms and (at := throttle_time_at(self.api_key, self.version)) >= 0:
                body = throttled_body(self.api_key, self.version, body, self.throttle_ms, at)
        else:
            entity = build_response(self.api_key, self.version, answer)
            if self.throttle_ms:
                entity = with_throttle_time(entity, self.throttle_ms)
            body, errors = (encode(entity),), error_codes(entity)
        if errors:
            self.metrics.failed(errors)
        tags = response_header(self.api_key, self.version)
        size = 4 + len(tags) + sum(map(len, body))
        self.metrics.answered(perf_counter() - self.began, 4 + size)
        return (_SIZE_AND_CORRELATION.pack(size, self.correlation_id) + tags, *body)


class Peer:
    """One client connection. `reserved_bytes` belong to Intake; `name` is for log lines.

    Sending tries at once and waits only where the client reads too slowly."""

    __slots__ = (
        "_broker", "_frames", "_intake", "_metrics", "_mute", "_quotas", "_unconfirmed", "busy",
        "connection", "is_over", "is_stalled", "last_active", "name", "reserved_bytes", "sock", "was_active",
    )  # fmt: skip

    def __init__(
        self,
        intake: Intake,
        broker: Broker,
        sock: socket.socket | TlsSocket,
        connection_id: int,
        host: str,
        listener: Listener | None = None,
    ) -> None:
        self.sock = sock
        self.name = f"{host} (connection {connection_id})"
        self._intake = intake
        self._broker = broker
        self._metrics = broker.metrics
        self.is_stalled = False
        """The peer reads slowly or not at all, and answers wait for it."""
        self.last_active = trio.current_time()
        self._quotas = broker.quotas
        self._mute: Mute | None = None
        self._unconfirmed: Sequence[Later] = ()
        """Of the last burst: without an answer (acks=0), and not committed yet."""
        self.connection = ClientConnection(connection_id, host, broker.deadlines, listener)
        self.act_as(ANONYMOUS)
        self._frames = FrameReader(intake.max_frame_bytes)
        self.reserved_bytes = 0
        self.busy = False
        self.is_over = False
        """It ends after the answers to the requests that it has received."""
        self.was_active = False
        """Whether there was a burst since `last_active` was set."""

    def act_as(self, principal: Principal) -> None:
        """What the client does from now on, it does as `principal`."""
        connection = self.connection
        connection.principal = principal
        connection.rights = self._broker.acls.rights_of(principal, connection.client_host)

    def end_session(self, after_answer: bool) -> None:
        """An administrator ends it. A request that waits is given up, unless `after_answer`."""
        self.is_over = True
        if not after_answer:
            self.shut_down()

    async def serve(self, shared_buffer: memoryview) -> None:
        while True:
            await trio.lowlevel.wait_readable(self.sock.fileno())
            try:
                received = self.sock.recv_into(shared_buffer)
            except BlockingIOError:
                continue
            if not received:
                await self._confirm()
                raise ClosedByPeer
            self._metrics.received_bytes += received
            self.busy = True
            await self._handle_burst(shared_buffer[:received])
            self.busy = False
            if self._intake.stopping or self.is_over:
                await self._confirm()
                return
            self.was_active = True
            if self._frames.expected_bytes != self.reserved_bytes:
                await self._intake.reserve(self, self._frames.expected_bytes)

    async def _handle_burst(self, data: memoryview) -> None:
        """Answer every whole frame of `data`, in order."""
        if self._quotas.are_set:
            await self._handle_metered(_owned(self._frames.feed(data)))
            return
        ready: deque[_Response] = deque()
        frames: Iterator[bytes | memoryview] = self._frames.feed(data)
        is_owned = False
        turn_ends = perf_counter() + _TURN_S
        try:
            while (frame := next(frames, None)) is not None:
                response, waiting = self._dispatch(frame)
                is_turn_over = response.began > turn_ends
                if not is_owned and (waiting is not None or is_turn_over):
                    # Other tasks use the shared buffer as soon as this one waits: copy the frames
                    # that are left.
                    frames, is_owned = _owned(frames), True
                if waiting is not None:
                    response.answer = await self._send_then(ready, response, waiting)
                ready.append(response)
                if is_turn_over:
                    await self._send(ready)
                    await trio.lowlevel.checkpoint()
                    turn_ends = perf_counter() + _TURN_S
        except (BadFrame, CloseConnection):
            await self._send(ready)  # The requests before the bad one are answered.
            raise
        if ready and type(last := ready[-1].answer) is Later and last.is_silent:
            await self._end_silently(ready, last)
        else:
            await self._send(ready)

    async def _handle_metered(self, frames: Iterator[bytes | memoryview]) -> None:
        """The same for a broker with quotas. A client that has exceeded one gets its answer, and
        nothing more of what it has sent is looked at before its time is over."""
        ready: deque[_Response] = deque()
        connection = self.connection
        turn_ends = perf_counter() + _TURN_S
        try:
            for frame in frames:
                response, waiting = self._dispatch(frame)
                client_id = read_request_head(frame).client_id
                metering = connection.metering = self._quotas.metering(connection.principal, client_id)
                metering.busy_s = perf_counter() - response.began
                if waiting is not None:
                    response.answer = await timed(self._send_then(ready, response, waiting), metering)
                ready.append(response)
                response.throttle_ms = wait_ms = self._metered(metering, response.api_key, len(frame))
                if wait_ms or response.began > turn_ends:
                    await timed(self._send(ready), metering)
                    metering.worked_after(now_ms())
                    await self._be_muted(wait_ms)
                    turn_ends = perf_counter() + _TURN_S
        except (BadFrame, CloseConnection):
            await self._send(ready)
            raise
        finally:
            connection.metering = None
        await self._send(ready)

    def _metered(self, metering: Metering, api_key: int, frame_bytes: int) -> int:
        """How long the client must wait after this request, in milliseconds."""
        now = now_ms()
        if api_key == PRODUCE_KEY:
            metering.produced(frame_bytes, now)
        if api_key not in UNMETERED:
            metering.worked(now)
        key, wait_ms = metering.longest_wait
        if wait_ms:
            first_lock_ms = self._broker.share_partitions.first_lock_ms(self.connection.id)
            wait_ms = max(before_locks_end(wait_ms, first_lock_ms, now), metering.produced_wait_ms)
            self._quotas.metrics.throttled(key, wait_ms)
        return wait_ms

    async def _be_muted(self, wait_ms: int) -> None:
        """Nothing is read from the connection for this time, unless the client hangs up, or the
        broker stops: then the requests that have arrived are answered without a wait."""
        if self._intake.stopping or not wait_ms:
            await trio.lowlevel.checkpoint()
            return
        self._mute = Mute(self.connection, self._quotas.metrics)
        try:
            await self._mute.wait(wait_ms)
        finally:
            self._mute = None

    def end_mute(self) -> None:
        if self._mute is not None:
            self._mute.end()

    async def _send_then(
        self, ready: deque[_Response], response: _Response, waiting: Coroutine[Any, Any, Answer]
    ) -> Answer:
        """Answers that are ready do not wait for a request that may be parked."""
        try:
            if self._unconfirmed:
                await self._confirm()
            if ready:
                await self._send(ready)
        except BaseException:
            waiting.close()
            raise
        answer = await waiting
        if type(answer) is Raw or type(answer) is Later:
            return answer
        schema = response_schema(response.api_key, response.version)
        return await self._packed(response, answer) if is_long(schema, answer) else answer

    def _dispatch(self, frame: bytes | memoryview) -> tuple[_Response, Coroutine[Any, Any, Answer] | None]:
        began = perf_counter()
        self._intake.requests += 1
        try:
            head = read_request_head(frame)
            api = APIS.get(head.api_key)
            if api is None:
                raise CloseConnection(*unserved_line(head.api_key, head.client_id))
            metrics = self._metrics.requests[head.api_key]
            if not api.first <= head.api_version <= api.last:
                if head.api_key == API_VERSIONS_KEY:
                    metrics.by_version[0] += 1  # It is answered in version 0.
                    refusal = Raw((unsupported_version(),), (ErrorCode.unsupported_version,))
                    return _Response(metrics, began, API_VERSIONS_KEY, 0, head.correlation_id, refusal), None
                unserved = f"{api.module} version {head.api_version} is not served"
                raise CloseConnection(unserved, f"version of {api.module}")
            metrics.by_version[head.api_version] += 1
            frame_bytes = len(frame)
            metrics.request_bytes += 4 + frame_bytes
            if frame_bytes > BOUNDS[head.api_key].frame_bytes:
                raise _too_large(head, frame_bytes)
            body = read_request(head, frame, DECODED_ROWS_A_TURN)
        except ValueError as error:
            raise _malformed(error) from error
        except TooManyRows:
            response = _Response(metrics, began, head.api_key, head.api_version, head.correlation_id, None)
            return response, self._answer_long(head, bytes(frame))
        request = as_request(
            (self._broker, self.connection, head.api_key, head.api_version, head.client_id, body)
        )
        answer = handler_of(head.api_key)(request)
        response = _Response(metrics, began, head.api_key, head.api_version, head.correlation_id, answer)
        if type(answer) is CoroutineType:
            return response, answer
        if type(answer) is Raw or type(answer) is Later:
            return response, None
        if is_long(response_schema(head.api_key, head.api_version), answer):
            return response, _as_it_is(answer)
        return response, None

    async def _answer_long(self, head: RequestHead, frame: bytes) -> Answer:
        """A request of many rows is decoded in turns. What it does then is not interrupted here."""
        long = LongRequest(head, frame, BOUNDS[head.api_key].rows)
        try:
            for _ in long.turns():
                await trio.lowlevel.checkpoint()
        except TooManyRows:
            raise _too_large(head, len(frame)) from None
        except ValueError as error:
            raise _malformed(error) from error
        request = as_request(
            (self._broker, self.connection, head.api_key, head.api_version, head.client_id, long.body)
        )
        answer = handler_of(head.api_key)(request)
        return await answer if type(answer) is CoroutineType else answer

    async def _packed(self, response: _Response, answer: Message) -> Answer:
        """A long answer is packed in turns. Raises CloseConnection if it is too large."""
        schema = response_schema(response.api_key, response.version)
        most_bytes: int = self._broker.config["kbroker.response.max.bytes"]
        packing = Packing(schema, answer, most_bytes)
        try:
            for _ in packing.turns():
                await trio.lowlevel.checkpoint()
        except ResponseTooLarge as error:
            module = APIS[response.api_key].module
            raise CloseConnection(
                f"the answer to {module} would have {error.size_bytes} bytes with its row {error.rows}, more "
                f"than kbroker.response.max.bytes={most_bytes}",
                f"size of {module}",
            ) from None
        return Raw(packing.parts, packing.errors)

    async def _end_silently(self, ready: deque[_Response], last: Later) -> None:
        """Batches with acks=0 at the end of a burst are committed while the next burst is received
        and queued. So the connection is never ahead of the store by more than two bursts."""
        last.pending.start()
        unconfirmed: deque[Later] = deque()
        while ready and type(later := ready[-1].answer) is Later and later.is_silent and later.pending.parts:
            unconfirmed.appendleft(later)
            ready.pop().buffers(None)
        await self._confirm()
        await self._send(ready)
        self._unconfirmed = unconfirmed

    async def _confirm(self) -> None:
        """Wait for the batches with acks=0 of the last burst. Raises CloseConnection if one was
        refused."""
        unconfirmed, self._unconfirmed = self._unconfirmed, ()
        for later in unconfirmed:
            await later.pending.wait()
            later.body()

    async def _send(self, ready: deque[_Response]) -> None:
        buffers: list[Buffer] = []
        try:
            if self._unconfirmed and ready:
                await self._confirm()
            while ready:
                response = ready.popleft()
                answer = response.answer
                if type(answer) is Later:
                    if answer.pending.parts:
                        await answer.pending.wait()
                    answer = answer.body()
                buffers += response.buffers(answer)
        finally:
            # Earlier answers of the burst are sent even if an acks=0 batch was refused, which ends
            # the connection. The socket nearly always takes everything at once.
            if buffers and (sent := self.send_some(buffers)) != sum(map(len, buffers)):
                await self.send_rest(buffers, sent)

    # -- the socket
    # ----------------------------------------------------------------------------------------------

    def send_some(self, buffers: Sequence[Buffer]) -> int:
        """The number of bytes that the socket accepted; 0 if it has no room now."""
        try:
            sent = self.sock.sendmsg(buffers[:_MAX_IOVECS])
        except BlockingIOError:
            return 0
        self._metrics.sent_bytes += sent
        return sent

    async def send_rest(self, buffers: Sequence[Buffer], sent: int) -> None:
        """Send what follows the first `sent` bytes, at the speed at which the peer reads."""
        views = [memoryview(buffer) for buffer in buffers]
        while views := after(views, sent):
            if not sent:
                self.last_active = trio.current_time()
                self.is_stalled = True
                await trio.lowlevel.wait_writable(self.sock.fileno())
                self.is_stalled = False
            sent = self.send_some(views)

    def send_if_there_is_room(self, data: bytes) -> None:
        try:
            self.send_some((data,))
        except OSError as error:
            logger.debug("sending to %s: %s", self.name, error)

    async def take_leave(self, shared_buffer: memoryview) -> None:
        """Send the end of the stream, then read for a moment until the peer ends its own. Closing a
        socket that has unread bytes would reset the connection, and lose answers in transit."""
        self.shut_down(socket.SHUT_WR)
        with trio.move_on_after(_LEAVE_S):
            while True:
                await trio.lowlevel.wait_readable(self.sock.fileno())
                try:
                    if not self.sock.recv_into(shared_buffer):
                        return
                except BlockingIOError:
                    continue
                except OSError:  # Reset by the peer, which then reads nothing more.
                    return

    def has_unread_bytes(self) -> bool:
        try:
            return bool(self.sock.recv(1, socket.MSG_PEEK))
        except OSError:  # BlockingIOError, too: there are none.
            return False

    def shut_down(self, how: int = socket.SHUT_RDWR) -> None:
        """End the connection from this side. Unless `how` is SHUT_WR, the connection's task then
        reads the end of the stream."""
        try:
            self.sock.shutdown(how)
        except OSError as error:
            logger.debug("shutting down %s: %s", self.name, error)


async def _as_it_is(answer: Answer) -> Answer:
    return answer


def _malformed(error: ValueError) -> CloseConnection:
    return CloseConnection(f"malformed request: {error}", "malformed request")


def _too_large(head: RequestHead, frame_bytes: int) -> CloseConnection:
    module, bound = APIS[head.api_key].module, BOUNDS[head.api_key]
    return CloseConnection(
        f"{module} of {frame_bytes} bytes is refused: its bound is {bound.rows} rows and "
        f"{bound.frame_bytes} bytes",
        f"size of {module}",
    )


def _owned(frames: Iterator[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Copies of the frames that are left. A bad one is raised after the good ones before it."""
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
