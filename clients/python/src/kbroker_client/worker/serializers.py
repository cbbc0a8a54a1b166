"""Payloads to bytes and back: JSON, bytes as they are, or functions of the caller's own."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from .policies import Unreadable


class Serializer(NamedTuple):
    """`decode` may raise anything for bytes that it cannot read: the job is rejected."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]

    def read(self, value: bytes | None) -> Any:
        """A record without a value is read as no bytes. Raises Unreadable."""
        try:
            return self.decode(value or b"")
        except Unreadable:
            raise
        except Exception as error:
            raise Unreadable(f"the payload cannot be read: {type(error).__name__}: {error}") from error


def _plain(value: object) -> object:
    """For what JSON has no form of."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, UUID | Decimal):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    raise TypeError(
        f"{type(value).__name__} has no form in JSON: send plain values, or give the task a serializer"
    )


def _to_json(payload: object) -> bytes:
    write = partial(json.dumps, payload, default=_plain, separators=(",", ":"), allow_nan=False)
    try:
        return write(ensure_ascii=False).encode()
    except UnicodeEncodeError:  # Half a surrogate pair: a payload that was read may have one.
        return write().encode()


def _from_json(value: bytes) -> object:
    if not value:
        raise Unreadable("the job has no payload")
    try:
        return json.loads(value)
    except ValueError as error:
        raise Unreadable(f"the payload is not JSON: {error}") from error


def _as_bytes(payload: object) -> bytes:
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise TypeError(f"the payload of this task is bytes, not {type(payload).__name__}")
    return bytes(payload)


JSON: Final = Serializer(_to_json, _from_json)
RAW: Final = Serializer(_as_bytes, lambda value: value)
