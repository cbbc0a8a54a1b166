"""One blocking connection to a broker. A request is a name and fields; the response is an entity of
kio.

For administration, tests and scripts, where one request at a time is enough: no pipelining, pool,
retry or cluster. Fields have kio's names, nested structures are dicts and lists, and times are in
milliseconds. The entity classes of the version are found here. What requests mean is not known here
(see admin.py and group_admin.py), and nothing is printed.

    frame: length (4) | api key (2) | version (2) | correlation id (4) | client id
           | tag section (header v2) | body
"""

from __future__ import annotations

import math
import re
import socket
import ssl
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import MISSING, fields
from datetime import timedelta
from types import TracebackType
from typing import Any, NamedTuple, Self

from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader

from kbroker.client import sasl, tls
from kbroker.client.caller import Entity as Entity
from kbroker.client.caller import FieldValue
from kbroker.client.security import PLAINTEXT, ClientSecurity
from kbroker.client.unreachable import BrokerUnreachable as BrokerUnreachable
from kbroker.client.unreachable import ConnectionClosed as ConnectionClosed
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.messages import build, encode, milliseconds, request_schema, response_schema

API_KEYS: Mapping[str, int] = {name: key for key, name in api_key_map.items()}
API_VERSIONS = API_KEYS["api_versions"]
_API_VERSIONS_VERSION = 3  # the first with the client's software name; brokers have served it since 2019
_SIZE = struct.Struct(">i")
_HTTP = b"HTTP"
_TLS_ALERT = b"\x15\x03"
"""How the answer of a TLS listener to other bytes begins."""
_RENEWED_AT = 0.85
"""The part of a login's lifetime after which it is renewed, as Kafka's clients do."""
_NOTHING: tuple[Any, ...] = (None, 0, "", False, (), [], b"", -1)


class VersionRange(NamedTuple):
    lowest: int
    highest: int


class Connection:
    """Connects on construction, with TLS and a login if `security` has them. The constructor and
    every method that waits for the broker raise BrokerUnreachable.

    After any error but KafkaError the connection must not be used again. `timeout_s` bounds each
    wait for bytes. `call` renews a login before it ends.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str = "kbroker-admin",
        timeout_s: float = 30.0,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.client_id = client_id
        self._timeout_s = timeout_s
        self._security = security
        self._correlation_id = 0
        self._answers = 0
        self._renewal_s = math.inf
        self._served: dict[int, VersionRange] | None = None
        plain = self._connect(host, port)
        self._socket = plain
        try:
            if security.tls is not None:
                self._socket = tls.wrapped(plain, host, self.address, security.tls)
            self._log_in()
        except BaseException:
            self.close()
            raise

    def _connect(self, host: str, port: int) -> socket.socket:
        try:
            found = socket.create_connection((host, port), timeout=self._timeout_s)
        except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
            reason = getattr(error, "strerror", None) or str(error)
            raise BrokerUnreachable(
                f"cannot connect to {self.address}: {reason}; is the broker running there?"
            ) from error
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found

    def _log_in(self) -> None:
        """Also renews a login, on the living connection. Raises BrokerUnreachable."""
        self._renewal_s = math.inf
        if (login := self._security.login) is not None and (
            lasts_ms := sasl.log_in(self.call, login, self.address)
        ):
            self._renewal_s = time.monotonic() + _RENEWED_AT * lasts_ms / 1000

    def _renew_login(self) -> None:
        if time.monotonic() >= self._renewal_s:
            self._log_in()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def served_versions(self) -> Mapping[int, VersionRange]:
        """Versions that the broker serves, by api key; requested once per connection."""
        if self._served is None:
            answer = self.call(
                API_VERSIONS,
                _API_VERSIONS_VERSION,
                client_software_name="kbroker",
                client_software_version="0",
            )
            if answer.error_code is not ErrorCode.none:
                raise KafkaError(
                    answer.error_code, f"{self.address} does not answer ApiVersions v{_API_VERSIONS_VERSION}"
                )
            self._served = {
                row.api_key: VersionRange(row.min_version, row.max_version) for row in answer.api_keys
            }
        return self._served

    def call(self, api: str | int, version: int | None = None, /, **values: FieldValue) -> Entity:
        """Send a request and wait for its response entity.

        `api`: an api key, or its name as in "create_topics" or "CreateTopics". `version` None: the
        highest that both sides know. The caller checks the error codes inside the response.

        Raises TypeError for a field that no version has, and for a missing one without a default.
        Raises KafkaError(unsupported_version) if this version cannot carry a field's value, or if
        there is no common version.
        """
        api_key = key_of(api)
        if version is None:
            version = self.common_version(api_key)
        self._renew_login()
        frame = self.encode(api_key, version, values)
        self.send_raw(frame)
        return self.read_response(api_key, version)

    def call_raw(self, api: str | int, version: int, /, **values: FieldValue) -> bytes:
        """As `call`, but returns the response's body as bytes, for one that kio cannot decode."""
        api_key = key_of(api)
        self._renew_login()
        self.send_raw(self.encode(api_key, version, values))
        frame = self.read_frame()
        return frame[self._read_header(response_schema(api_key, version), frame) :]

    def common_version(self, api: str | int, at_most: int | None = None) -> int:
        """The highest version that both sides know, not above `at_most`. Raises
        KafkaError(unsupported_version) if there is none."""
        api_key = key_of(api)
        name = api_key_map[api_key]
        served = self.served_versions().get(api_key)
        known = [version for version in schema_name_map[name] if at_most is None or version <= at_most]
        common = [
            version for version in known if served is not None and served.lowest <= version <= served.highest
        ]
        if not common:
            raise KafkaError(
                ErrorCode.unsupported_version,
                f"{self.address} serves no version of {name} that this client knows",
            )
        return max(common)

    def encode(self, api: str | int, version: int, values: Mapping[str, Any]) -> bytes:
        """The frame of a request, including its length; uses the next correlation id."""
        api_key = key_of(api)
        self._correlation_id += 1
        schema = request_schema(api_key, version)
        header = build(
            schema.__header_schema__,
            {
                "request_api_key": api_key,
                "request_api_version": version,
                "correlation_id": self._correlation_id,
                "client_id": self.client_id,
            },
        )
        payload = encode(header) + encode(_strict_entity(api_key, version, values))
        return _SIZE.pack(len(payload)) + payload

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are: frames from `encode`, or anything that a test wants to send."""
        try:
            self._socket.sendall(data)
        except TimeoutError as error:
            raise BrokerUnreachable(f"{self.address} took no data within {self._timeout_s:g} s") from error
        except OSError as error:
            raise self._closed(error) from error

    def read_frame(self) -> bytes:
        """The next frame from the broker, without its length."""
        head = self._read_exactly(_SIZE.size)
        if head == _HTTP:  # Read as a size it is above 1 GiB, larger than any response.
            raise BrokerUnreachable(
                f"{self.address} is an HTTP port, not a Kafka broker's; is it the admin port? "
                "give the address of --listen instead"
            )
        if head.startswith(_TLS_ALERT):  # as a size it is above 350 MB
            raise ConnectionClosed(
                f"{self.address} is a listener with TLS: give --command-config with security.protocol=SSL "
                "or SASL_SSL"
            )
        frame = self._read_exactly(*_SIZE.unpack(head))
        self._answers += 1
        return frame

    def read_response(self, api: str | int, version: int) -> Entity:
        """The next frame as the response to the request that was sent last."""
        api_key = key_of(api)
        frame = self.read_frame()
        schema = response_schema(api_key, version)
        if api_key == API_VERSIONS and _is_unsupported_version(frame):
            # A broker answers an ApiVersions version that it does not know in version 0.
            schema = response_schema(api_key, 0)
        body, _ = entity_reader(schema)(frame, self._read_header(schema, frame))
        return body

    def _read_header(self, schema: Entity, frame: bytes) -> int:
        """The header's size. Raises BrokerUnreachable if it is that of another response."""
        header, header_size = entity_reader(schema.__header_schema__)(frame, 0)
        if header.correlation_id != self._correlation_id:
            raise BrokerUnreachable(
                f"{self.address} answered request {header.correlation_id} instead of "
                f"{self._correlation_id}; is it a Kafka broker?"
            )
        return header_size

    def _read_exactly(self, size: int) -> bytes:
        chunks = bytearray()
        while len(chunks) < size:
            try:
                chunk = self._socket.recv(min(size - len(chunks), 1 << 20))
            except TimeoutError as error:
                raise BrokerUnreachable(
                    f"{self.address} did not answer within {self._timeout_s:g} s"
                ) from error
            except OSError as error:
                raise self._closed(error) from error
            if not chunk:
                raise ConnectionClosed(
                    f"{self.address} closed the connection without an answer{self._hint()}"
                )
            chunks += chunk
        return bytes(chunks)

    def _closed(self, error: OSError) -> ConnectionClosed:
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
            return ConnectionClosed(f"TLS with {self.address} failed: {tls.said(self.address, error)}")
        reason = error.strerror or error
        return ConnectionClosed(f"{self.address} closed the connection: {reason}{self._hint()}")

    def _hint(self) -> str:
        """A secured listener hangs up on a client that does not speak its protocol: at once, or
        after the answer to ApiVersions. What it says about a certificate may get lost."""
        words = ""
        if self._answers == 0 and self._security.tls is not None:
            words = tls.certificate_hint(self._security.tls)
        if self._security.login is None and self._answers <= 1:
            secured = "SASL" if self._security.tls is not None else "TLS or SASL"
            words += f"; if its listener uses {secured}, give --command-config with security.protocol"
        return words


def key_of(api: str | int) -> int:
    """The api key for a key, "create_topics" or "CreateTopics"."""
    if isinstance(api, int):
        return api
    return API_KEYS[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api).lower()]


def _is_unsupported_version(frame: bytes) -> bool:
    return frame[4:6] == struct.pack(">h", ErrorCode.unsupported_version.value)


def _strict_entity(api_key: int, version: int, values: Mapping[str, Any]) -> Entity:
    _refuse_unknown(api_key, version, request_schema(api_key, version), values)
    try:
        return build(request_schema(api_key, version), values)
    except KeyError as missing:
        raise TypeError(f"{missing.args[0]} has no default and must be given") from missing


def _refuse_unknown(api_key: int, version: int, schema: Entity, values: Mapping[str, Any]) -> None:
    """Check every field against the version, including nested rows. A field that the version does
    not have may be dropped only if it has its default value."""
    known = {field.name: field for field in fields(schema)}
    for name, value in values.items():
        if name in known:
            nested = _nested_schema(known[name].type)
            for row in _rows(value) if nested else ():
                _refuse_unknown(api_key, version, nested, row)
            continue
        if not _is_default(api_key, schema.__name__, name, value):
            raise KafkaError(
                ErrorCode.unsupported_version,
                f"{schema.__name__} v{version} has no field {name!r} to carry {value!r}",
            )


def _rows(value: FieldValue) -> list[Mapping[str, Any]]:
    candidates = value if isinstance(value, (list, tuple)) else [value]
    return [row for row in candidates if isinstance(row, Mapping)]


def _nested_schema(hint: object) -> Entity:
    """The entity class in `X`, `X | None`, `tuple[X, ...]` or `tuple[X, ...] | None`, or None."""
    if hasattr(hint, "__flexible__"):
        return hint
    return next(
        (found for part in getattr(hint, "__args__", ()) if (found := _nested_schema(part)) is not None), None
    )


def _is_default(api_key: int, class_name: str, field_name: str, value: FieldValue) -> bool:
    """Whether `value` equals the field's default in the newest version that has the field. Raises
    TypeError if no version has it."""
    for version in sorted(schema_name_map[api_key_map[api_key]], reverse=True):
        module = sys.modules[request_schema(api_key, version).__module__]
        entity = getattr(module, class_name, None)
        for field in fields(entity) if entity is not None else ():
            if field.name == field_name:
                return (
                    value in _NOTHING
                    if field.default is MISSING
                    else value in (field.default, _plain(field.default))
                )
    raise TypeError(f"no version of {class_name} has a field {field_name!r}")


def _plain(value: FieldValue) -> FieldValue:
    return milliseconds(value) if isinstance(value, timedelta) else value
