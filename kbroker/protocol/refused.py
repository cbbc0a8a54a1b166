"""The answer to a request that is refused as a whole, whatever its API is: one error everywhere.

An answer with a code of its own has no rows. Others repeat the rows of the request, each with the
error. Numbers that nobody knows are -1, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Final, get_args, get_origin, get_type_hints
from uuid import UUID

from kbroker.errors import ErrorCode
from kbroker.protocol.messages import encode_response, response_schema

_CODES: Final = ("error_code", "partition_error_code")
_UNKNOWN: Final = {
    "base_offset", "committed_offset", "controller_id", "high_watermark", "low_watermark", "node_id",
    "offset", "port", "producer_epoch", "producer_id",
}  # fmt: skip
_NAMES: Final = {
    "group_id": "group_id", "index": "index", "name": "name", "partition": "partition",
    "partition_index": "partition_index", "producer_id": "producer_id", "resource_name": "resource_name",
    "resource_type": "resource_type", "topic": "topic", "topic_id": "topic_id", "topic_name": "topic_name",
    "user": "name",
}  # fmt: skip
"""What a row is about: the field of the answer, and that of the request."""
_KEYS: Final = ("key", "group_id", "name", "transactional_id", "partition_index")
"""That field of a row, where the request has plain values."""


def refused_response(api_key: int, version: int, asked: Any, code: ErrorCode, message: str) -> bytes | None:
    """The body of the answer. `asked`: the request, None if it cannot be read. Then the answer is
    None, too, unless it has a code for the whole request."""
    schema = response_schema(api_key, version)
    if not is_dataclass(asked) and not _tells(schema):
        return None
    return encode_response(api_key, version, _filled(schema, asked, code, message))


def _filled(schema: Any, asked: Any, code: ErrorCode, message: str) -> dict[str, Any]:
    hints = get_type_hints(schema)
    values: dict[str, Any] = {}
    for field in fields(schema):
        row = _row_schema(hints[field.name])
        if field.name in _CODES:
            values[field.name] = code
        elif field.name == "error_message":
            values[field.name] = message
        elif row is not None and not _tells(schema) and _leads_to_a_code(row):
            values[field.name] = [_row(row, each, code, message) for each in _rows_of(asked)]
        else:
            values[field.name] = _nothing(field, hints[field.name])
    return values


def _row(schema: Any, asked: Any, code: ErrorCode, message: str) -> dict[str, Any]:
    values = _filled(schema, asked, code, message)
    if not is_dataclass(asked):
        values[next(key for key in _KEYS if key in values)] = asked
        return values
    for name in values:
        known = getattr(asked, _NAMES.get(name, ""), None)
        if known is not None:
            values[name] = known
    if "partition_index" in values and hasattr(asked, "partition"):  # Fetch
        values["partition_index"] = asked.partition
    return values


def _rows_of(asked: Any) -> Iterator[Any]:
    for field in fields(asked):
        value = getattr(asked, field.name)
        if isinstance(value, tuple):
            yield from value


def _tells(schema: Any) -> bool:
    return any(field.name in _CODES for field in fields(schema))


def _leads_to_a_code(schema: Any) -> bool:
    """Directories (DescribeLogDirs) are not what the request names."""
    names = {field.name for field in fields(schema)}
    if "log_dir" in names:
        return False
    rows = map(_row_schema, get_type_hints(schema).values())
    return _tells(schema) or any(row is not None and _leads_to_a_code(row) for row in rows)


def _row_schema(hint: Any) -> Any:
    """The class of an array's rows; None for any other field."""
    for each in (hint, *get_args(hint)):
        if get_origin(each) is tuple and is_dataclass(get_args(each)[0]):
            return get_args(each)[0]
    return None


def _nothing(field: Field[Any], hint: Any) -> Any:
    if field.name in _UNKNOWN:
        return -1
    if field.default is not MISSING:
        return field.default
    if type(None) in get_args(hint):
        return None
    if get_origin(hint) is tuple:
        return ()
    kafka_type = field.metadata.get("kafka_type", "")
    return {"string": "", "bytes": b"", "records": b"", "uuid": UUID(int=0), "bool": False}.get(kafka_type, 0)
