"""One connection to a broker: one request at a time, and its answer.

A call that fails or is cancelled closes the connection, since the next bytes would belong to it. So
a connection belongs to one task, and programs that need several have several connections. Requests
are built and answers read by kio; those of the hot path come as bytes (share_wire.py).

    frame: length (4) | api key (2) | version (2) | correlation id (4) | client id
           | tag section (header v2) | body
"""

from __future__ import annotations

import math
import ssl
import struct
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import anyio
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader
from kio.serial.errors import SerialError

from . import login
from ._shared.errors import ErrorCode, KafkaError
from ._shared.protocol.messages import build, encode, request_schema, response_schema
from .addresses import Address
from .asyncio_stream import lighter
from .errors import BrokerUnreachable, NotAuthenticated
from .security import PLAINTEXT, Security

API_KEYS: Final[Mapping[str, int]] = {name: key for key, name in api_key_map.items()}
CONNECT_S: Final = 10.0
"""For a connection with TLS and a log-in."""
REQUEST_S: Final = 30.0
"""For an answer, in addition to the time that the request lets the broker wait."""
_RENEWED_AT: Final = 0.85
"""The part of a log-in's lifetime after which it is renewed, as Kafka's clients do."""
_API_VERSIONS: Final = 18
_API_VERSIONS_VERSION: Final = 3
_HEAD: Final = struct.Struct(">ihhih")
_SIZE: Final = struct.Struct(">i")
_MAX_ANSWER_BYTES: Final = 1 << 30
_RECEIVE_BYTES: Final = 1 << 18
_LOST: Final = (OSError, anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError)


class VersionRange(NamedTuple):
    lowest: int
    highest: int


class Served:
    """Of a broker: the versions by api key, and the features that it supports, by name."""

    def __init__(self, versions: Mapping[int, VersionRange], features: Mapping[str, int]) -> None:
        self.features = features
        self._versions = versions
        self._chosen: dict[tuple[str, int], int] = {}

    def version(self, api: str, at_most: int = 1 << 15) -> int:
        """The highest that both sides know. Raises KafkaError (unsupported_version)."""
        if (known := self._chosen.get((api, at_most))) is None:
            known = self._chosen[api, at_most] = self._choose(api, at_most)
        return known

    def _choose(self, api: str, at_most: int) -> int:
        served = self._versions.get(API_KEYS[api])
        known = [each for each in schema_name_map[api] if each <= at_most]
        common = [each for each in known if served and served.lowest <= each <= served.highest]
        if not common:
            raise KafkaError(ErrorCode.unsupported_version, f"the broker does not serve {api}")
        return max(common)


class Connection:
    """Made by `connect`. Every call may raise BrokerUnreachable and closes the connection with
    it."""

    def __init__(self, stream: ByteStream, address: Address, client_id: str) -> None:
        self.address = address
        self.is_closed = False
        self._stream = stream
        self._client_id = client_id.encode()
        self._correlation_id = 0
        self._received = b""
        self.served = Served({}, {})
        self._security = PLAINTEXT
        self._log_in_again_s = math.inf
        self._late_s = math.inf
        self._is_late = False

    async def log_in(self, security: Security) -> None:
        """Also renews a log-in, on the living connection. Raises BrokerUnreachable."""
        self._security, self._log_in_again_s = security, math.inf
        if security.mechanism is not None and (
            lasts_s := await login.log_in(self.call, self.address, security)
        ):
            self._log_in_again_s = anyio.current_time() + _RENEWED_AT * lasts_s

    async def _renew_log_in(self) -> None:
        try:
            with anyio.fail_after(CONNECT_S):
                await self.log_in(self._security)
        except BaseException as error:  # Half a log-in is none.
            await self.close()
            if isinstance(error, TimeoutError):
                raise BrokerUnreachable(
                    f"the log-in at {self.address} was not renewed within {CONNECT_S:g} s"
                ) from None
            raise

    async def call(self, api: str, version: int | None = None, /, wait_s: float = 0.0, **fields: Any) -> Any:
        """Send a request and return the answer, an entity of kio. Field names are kio's, nested
        structures dicts and lists, times in milliseconds. `wait_s`: how long the broker may wait
        before it answers. Error codes in the answer are the caller's business."""
        if version is None:
            version = self.served.version(api)
        key = API_KEYS[api]
        body = encode(build(request_schema(key, version), fields))
        return read_answer(key, version, await self.call_raw(api, version, (body,), wait_s))

    async def call_raw(
        self, api: str, version: int, body: Sequence[bytes], wait_s: float = 0.0, *, is_watched: bool = False
    ) -> memoryview:
        """The same with bodies as bytes, without the headers. `is_watched`: a task of the caller
        calls `close_if_late` now and then, which costs less than a deadline for each request."""
        key = API_KEYS[api]
        if self._log_in_again_s != math.inf and anyio.current_time() >= self._log_in_again_s:
            await self._renew_log_in()
        if self.is_closed:
            raise BrokerUnreachable(f"the connection to {self.address} is closed")
        patience_s = REQUEST_S + wait_s
        try:
            if is_watched:
                self._late_s = time.monotonic() + patience_s
                answer = await self._exchange(self._frame(key, version, body))
                self._late_s = math.inf
            else:
                with anyio.fail_after(patience_s):
                    answer = await self._exchange(self._frame(key, version, body))
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError) or self._is_late:
                raise BrokerUnreachable(f"{self.address} did not answer within {patience_s:g} s") from None
            if isinstance(error, _LOST):
                raise BrokerUnreachable(f"{self.address} closed the connection{_reason(error)}") from error
            raise
        return answer[_header_bytes(key, version) :]

    async def close_if_late(self) -> None:
        """For a request that `is_watched`: it fails if it has no answer although it should."""
        if time.monotonic() > self._late_s:
            self._is_late = True
            await self.close()

    async def _exchange(self, frame: bytes) -> memoryview:
        await self._stream.send(frame)
        return await self._receive()

    def _frame(self, key: int, version: int, body: Sequence[bytes]) -> bytes:
        self._correlation_id = self._correlation_id + 1 & 0x7FFFFFFF
        tags = b"\0" if _has_tags(key, version) else b""
        size = _HEAD.size - _SIZE.size + len(self._client_id) + len(tags) + sum(map(len, body))
        head = _HEAD.pack(size, key, version, self._correlation_id, len(self._client_id))
        return b"".join((head, self._client_id, tags, *body))

    async def _receive(self) -> memoryview:
        """The next answer, from its correlation id on."""
        received: bytes | bytearray = self._received or await self._stream.receive(_RECEIVE_BYTES)
        while len(received) < _SIZE.size:
            received = bytearray(received) + await self._stream.receive(_RECEIVE_BYTES)
        (size,) = _SIZE.unpack_from(received)
        if not 4 <= size <= _MAX_ANSWER_BYTES:
            await self.close()
            raise BrokerUnreachable(f"{self.address} answered as no Kafka broker does; is the port right?")
        end = _SIZE.size + size
        if len(received) < end:
            received = bytearray(received)
            while len(received) < end:
                received += await self._stream.receive(_RECEIVE_BYTES)
        self._received = bytes(received[end:])
        if received[4:8] != _SIZE.pack(self._correlation_id):
            await self.close()
            raise BrokerUnreachable(f"{self.address} answered another request; is it a Kafka broker?")
        return memoryview(received)[:end].toreadonly()

    async def close(self) -> None:
        """Does not wait for the broker."""
        self.is_closed = True
        await anyio.aclose_forcefully(self._stream)


async def connect(address: Address, client_id: str, security: Security = PLAINTEXT) -> Connection:
    """A connection that has logged in. Raises BrokerUnreachable."""
    try:
        with anyio.fail_after(CONNECT_S):
            stream = await _open(address, security)
            connection = Connection(stream, address, client_id)
            try:
                await _introduce(connection)
                await connection.log_in(security)
            except BaseException:
                await connection.close()
                raise
    except TimeoutError:
        raise BrokerUnreachable(f"{address} did not answer within {CONNECT_S:g} s") from None
    return connection


async def _open(address: Address, security: Security) -> ByteStream:
    try:
        stream = lighter(await anyio.connect_tcp(address.host, address.port))
    except OSError as error:
        reason = error.strerror or str(error)
        raise BrokerUnreachable(
            f"cannot connect to {address}: {reason}; is the broker running there?"
        ) from error
    if security.context is None:
        return stream
    try:
        return await _with_tls(stream, address, security.context)
    except BaseException:
        await anyio.aclose_forcefully(stream)
        raise


async def _with_tls(stream: ByteStream, address: Address, context: ssl.SSLContext) -> ByteStream:
    """Raises BrokerUnreachable."""
    try:
        return await TLSStream.wrap(
            stream, hostname=address.host, ssl_context=context, standard_compatible=False
        )
    except ssl.SSLCertVerificationError as error:
        reason = f"is not trusted: {error.verify_message}"
        raise NotAuthenticated(f"the certificate of {address} {reason}") from error
    except (OSError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
        reason = getattr(error, "reason", None) or "it closed the connection"
        raise BrokerUnreachable(f"TLS with {address} failed: {reason}; does this port speak TLS?") from error


async def _introduce(connection: Connection) -> None:
    answer = await connection.call(
        "api_versions",
        _API_VERSIONS_VERSION,
        client_software_name="kbroker-client",
        client_software_version="0.2.0.dev0",
    )
    if answer.error_code is not ErrorCode.none:
        raise KafkaError(answer.error_code, f"{connection.address} does not answer ApiVersions")
    if not answer.api_keys:
        raise BrokerUnreachable(f"{connection.address} names no requests that it serves; is it a broker?")
    versions = {row.api_key: VersionRange(row.min_version, row.max_version) for row in answer.api_keys}
    features = {row.name: row.max_version for row in answer.supported_features}
    connection.served = Served(versions, features)


def read_answer(key: int, version: int, body: memoryview) -> Any:
    """Raises BrokerUnreachable for bytes that are not an answer of this kind."""
    if key == _API_VERSIONS and body[:2] == struct.pack(">h", ErrorCode.unsupported_version.value):
        version = 0
    try:
        entity, _ = entity_reader(response_schema(key, version))(body, 0)
    except (SerialError, ValueError, LookupError) as error:
        raise BrokerUnreachable(f"an answer of the broker cannot be read: {error}") from error
    return entity


@cache
def _has_tags(key: int, version: int) -> bool:
    found: int = request_schema(key, version).__header_schema__.__version__
    return found >= 2


@cache
def _header_bytes(key: int, version: int) -> int:
    """Of an answer: its size, the correlation id, and from version 1 an empty tag section."""
    found: int = response_schema(key, version).__header_schema__.__version__
    return 8 + (found >= 1)


def _reason(error: Exception) -> str:
    return f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""


__all__ = ["API_KEYS", "Connection", "Served", "VersionRange", "connect", "read_answer"]
