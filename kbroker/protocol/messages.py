"""Requests in, responses out, by api key and version, over kio's generated schemas.

Decoding is native in kio and fast. Encoding is pure Python and slow, which is fine for everything
but the hot answers (protocol/responses.py, protocol/transaction_responses.py). kio has one class
per message *and version*. Handlers need not know them: they return a mapping with the fields of
every version, and `build` takes those of the requested version.

Schemas are imported at first use: importing all of them takes half a second.
"""

from __future__ import annotations

import datetime
import io
import struct
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, replace
from functools import cache
from typing import Any, NamedTuple, TypeAlias, cast, get_args, get_origin, get_type_hints

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.primitive import TZAware, i32, i32Timedelta, i64, i64Timedelta
from kio.static.protocol import Entity

from ..errors import ErrorCode
from ..formats.makers import maker
from .array_check import check_arrays, edited, skip_tags
from .newer_schemas import NEWER, newer_request, newer_response
from .produce_request import PRODUCE, read_plain_produce
from .reject_reasons import SHARE_ACKNOWLEDGE, with_reasons

Message: TypeAlias = Mapping[str, Any]
"""A response as handlers return it: kio's field names, times as int milliseconds, nested rows as
mappings or objects."""

CORRELATION = struct.Struct(">i")
_HEADER_START = struct.Struct(">hhih")
_ANY_ROWS = (1 << 31) - 1


class Repeated:
    """A row that a response has several times, since its client has named something several times.
    `packed`: its bytes and error codes, once they are known."""

    __slots__ = ("packed", "row")

    def __init__(self, row: Any) -> None:
        self.row = row
        self.packed: tuple[bytes, list[int]] | None = None


class RequestHead(NamedTuple):
    """The part of the request header that is the same in every version, and the position after the
    client id."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    end: int


_as_head = maker(RequestHead, tuple[int, int, int, str | None, int])
"""Called for every request, hence not the slower constructor."""


def read_request_head(frame: bytes | memoryview) -> RequestHead:
    """The head of a frame (without its length). Raises ValueError if the frame is too short or its
    text is not UTF-8.

    Any negative length of the client id is null, as in Kafka."""
    try:
        api_key, api_version, correlation_id, length = _HEADER_START.unpack_from(frame)
    except struct.error as error:
        raise ValueError(f"a frame of {len(frame)} bytes is too short for a request header") from error
    end = _HEADER_START.size + length if length > 0 else _HEADER_START.size
    if end > len(frame):
        raise ValueError("client id beyond the end of the frame")
    client_id = None if length < 0 else str(frame[_HEADER_START.size : end], "utf-8")
    return _as_head((api_key, api_version, correlation_id, client_id, end))


@cache
def request_schema(api_key: int, version: int) -> type[Any]:
    if NEWER.get(api_key) == version:
        return newer_request(api_key)
    return cast(type[Any], load_request_schema(api_key, version))


@cache
def response_schema(api_key: int, version: int) -> type[Any]:
    if NEWER.get(api_key) == version:
        return newer_response(api_key)
    return cast(type[Any], load_response_schema(api_key, version))


@cache
def _request_reader(
    api_key: int, version: int
) -> tuple[type[Any], bool, Callable[[Any, int], tuple[Any, int]]]:
    schema = request_schema(api_key, version)
    return schema, schema.__header_schema__.__version__ >= 2, cast(Any, entity_reader(schema))


def read_request(head: RequestHead, frame: bytes | memoryview, most_rows: int = _ANY_ROWS) -> Any:
    """The request entity of a frame. Raises ValueError (kio's errors among them) if the body cannot
    be parsed, and TooManyRows if it has more rows than `most_rows` (long_requests.py).

    A ShareAcknowledge request with reasons of kbroker's own is a ReasonedAcknowledge.

    The entity keeps no reference to `frame`, except for the batches of a Produce request, which may
    be slices of it.
    """
    view = memoryview(frame)
    if (
        head.api_key == PRODUCE
        and (plain := read_plain_produce(head.api_version, view, head.end, most_rows)) is not None
    ):
        return plain
    return _read_with_kio(head, view.toreadonly(), most_rows)


def _read_with_kio(head: RequestHead, frame: memoryview, most_rows: int = _ANY_ROWS) -> Any:
    schema, has_tags, reader = _request_reader(head.api_key, head.api_version)
    at = head.end
    try:
        if has_tags:
            at = skip_tags(frame, at) if frame[at] else at + 1
        # A row has at least one byte: nearly all frames are too small for so many.
        edits = check_arrays(schema, frame, at, None if frame.nbytes <= most_rows else most_rows)
        entity, _ = reader(edited(frame, edits) if edits else frame, at)
        if edits and head.api_key == SHARE_ACKNOWLEDGE:
            entity = with_reasons(entity, frame, edits)
    except (SerialError, ValueError, LookupError, struct.error, OverflowError, TypeError) as error:
        raise ValueError(f"body cannot be parsed: {error}") from error
    return entity


@cache
def response_header(api_key: int, version: int) -> bytes:
    """The rest of a response header after the correlation id: an empty tag section in version 1,
    nothing in version 0."""
    header_version: int = response_schema(api_key, version).__header_schema__.__version__
    return b"\x00" if header_version >= 1 else b""


def build_response(api_key: int, version: int, message: Message) -> Any:
    """The entity of a response."""
    return build(response_schema(api_key, version), message)


def encode_response(api_key: int, version: int, message: Message) -> bytes:
    """The body of a response."""
    return encode(build_response(api_key, version, message))


def encode(entity: Entity) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


_Converter: TypeAlias = Callable[[Any], Any]
_MILLISECOND = datetime.timedelta(milliseconds=1)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _timedelta(value: Any) -> Any:
    return value if isinstance(value, datetime.timedelta) else datetime.timedelta(milliseconds=value)


def moment(time_ms: int) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(milliseconds=time_ms)


def _moment(value: Any) -> Any:
    if isinstance(value, int):
        return None if value < 0 else moment(value)
    return value


def _converter(field: Field[Any], hint: Any) -> _Converter | None:
    if get_origin(hint) is tuple:
        return _tuple_converter(_entity_type(get_args(hint)[0]))
    alternatives = get_args(hint)
    inner = next((a for a in alternatives if a is not type(None)), hint)
    if get_origin(inner) is tuple:
        rows = _tuple_converter(_entity_type(get_args(inner)[0]))
        return lambda value: None if value is None else rows(value)
    entity = _entity_type(inner)
    if entity is not None:
        return lambda value: None if value is None else build(entity, value)
    kafka_type = field.metadata.get("kafka_type", "")
    if kafka_type == "error_code":
        return ErrorCode
    if kafka_type.startswith("timedelta"):
        return _timedelta
    return _moment if kafka_type.startswith("datetime") else None


def _tuple_converter(entity: type[Any] | None) -> _Converter:
    if entity is None:
        return tuple
    return lambda rows: tuple(build(entity, row) for row in rows if row is not None)


def _entity_type(hint: Any) -> type[Any] | None:
    return hint if isinstance(hint, type) and hasattr(hint, "__flexible__") else None


@cache
def field_plan(schema: type[Any]) -> tuple[tuple[str, _Converter | None, Any], ...]:
    """(name, converter, default or MISSING) of every field."""
    hints = get_type_hints(schema)
    plan = []
    for field in fields(schema):
        default: Any = field.default
        if field.name == "throttle_time":
            default = datetime.timedelta(0)
        plan.append((field.name, _converter(field, hints[field.name]), default))
    return tuple(plan)


def build(schema: Any, message: Any) -> Any:
    """An entity of the class `schema` from a dict or any object with attributes.

    Fields that the schema does not know are ignored: another version has them. A missing field has
    the schema's default; without a default it is a KeyError, which is a bug in kbroker.
    """
    if isinstance(message, schema):
        return message
    if type(message) is Repeated:
        message = message.row
    is_mapping = isinstance(message, dict)
    values = {}
    for name, convert, default in field_plan(schema):
        value = message.get(name, MISSING) if is_mapping else getattr(message, name, MISSING)
        if value is MISSING:
            if default is MISSING:
                raise KeyError(f"{schema.__module__}.{schema.__name__}.{name}")
            value = default
        elif convert is not None:
            value = convert(value)
        values[name] = value
    return schema(**values)


def with_throttle_time(entity: Any, throttle_ms: int) -> Any:
    """A response with its throttle time; itself if its schema has no such field."""
    if "throttle_time" not in entity.__dataclass_fields__:
        return entity
    return replace(entity, throttle_time=_timedelta(throttle_ms))


@cache
def throttle_time_at(api_key: int, version: int) -> int:
    """Where the throttle time is in a packed response: at the start, or behind its error code. -1
    if the response has none, or behind an array. Produce, which ends with it, gives 0."""
    names = [field.name for field in fields(response_schema(api_key, version))]
    if api_key == PRODUCE:
        return 0
    if "throttle_time" not in names[:2]:
        return -1
    return 2 * names.index("throttle_time")


def milliseconds(value: i32Timedelta | i64Timedelta | datetime.timedelta) -> int:
    """A value that kio decodes as a timedelta, as the integer on the wire."""
    return value // _MILLISECOND


__all__ = [
    "CORRELATION", "Message", "Repeated", "RequestHead", "TZAware", "build", "build_response", "encode",
    "encode_response", "field_plan", "i32", "i64", "milliseconds", "moment", "read_request",
    "read_request_head", "request_schema", "response_header", "response_schema", "throttle_time_at",
    "with_throttle_time",
]  # fmt: skip
