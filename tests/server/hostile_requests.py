"""Requests of hostile sizes for every served API, made from the request that the broker accepts
(numeric_fields.py). An API without such a request fails a test, so a new API is judged as soon as
it is served.

    many rows    of each array, each with another name, id or number
    one row      the same, many times
    nested rows  of an array within an array: as many of one as of the other
    long texts   of each row of an array
    one text     of the greatest length, in each field that has one
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from functools import partial
from types import NoneType
from typing import Any, Final, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints
from uuid import UUID

from kio.static.primitive import i8

from kbroker.api import Api
from kbroker.protocol.messages import build, encode, request_schema
from tests.server.numeric_fields import CORRELATION_ID, Values

LONGEST_TEXT: Final = (1 << 15) - 1
MOST_TEXT_BYTES: Final = 4 << 20
_NUMBERED = frozenset({"partition", "partition_index", "index", "first_offset", "last_offset"})
_FIXED = frozenset({"entity_type", "key"})
"""Texts of which a few are valid."""
_Path: TypeAlias = tuple[str, ...]


class Shape(NamedTuple):
    """A hostile size of one API. `rows`: elements of the enlarged arrays; `enlarged`: makes the
    hostile request of an accepted one."""

    kind: str
    rows: int
    enlarged: Callable[[Values], Values]


def shapes(api: Api, version: int, many: int) -> Iterator[Shape]:
    schema = request_schema(api.key, version)
    arrays = dict(_arrays(schema))
    for path, element in arrays.items():
        name = ".".join(path)
        numbers = range(many)
        yield Shape(f"many rows of {name}", many, partial(_enlarged, arrays, path, numbers))
        yield Shape(f"one row of {name}", many, partial(_enlarged, arrays, path, [0] * many))
        if len(path) > 1:
            side = math.isqrt(many)
            yield Shape(f"nested rows of {name}", side * side, partial(_nested, arrays, path, range(side)))
        if _has_text(element):
            count = min(many, MOST_TEXT_BYTES // LONGEST_TEXT)
            longest = partial(_enlarged, arrays, path, range(count), is_longest=True)
            yield Shape(f"long texts of {name}", count, longest)
    for field in fields(schema):
        if _is(_kind(get_type_hints(schema)[field.name]), str):
            yield Shape(f"one text of {field.name}", 1, partial(_with_text, field.name))


def frame_of(api: Api, version: int, values: Values) -> bytes:
    """A request. Fields that this version does not have are left out."""
    schema = request_schema(api.key, version)
    head = {
        "request_api_key": api.key, "request_api_version": version, "correlation_id": CORRELATION_ID,
        "client_id": "hostile",
    }  # fmt: skip
    payload = encode(build(schema.__header_schema__, head)) + encode(build(schema, values))
    return len(payload).to_bytes(4, "big") + payload


def _with_text(name: str, values: Values) -> Values:
    return {**values, name: "x" * LONGEST_TEXT}


def _enlarged(
    arrays: Mapping[_Path, Any],
    path: _Path,
    numbers: Any,
    values: Values,
    *,
    is_longest: bool = False,
) -> Values:
    sample, most = _sample(values, path, arrays[path]), _most(arrays[path])
    return _put(arrays, values, path, [_row(sample, number & most, is_longest) for number in numbers])


def _nested(arrays: Mapping[_Path, Any], path: _Path, numbers: range, values: Values) -> Values:
    """The outermost and the innermost array have many rows."""
    first = path[0]
    sample, most = _sample(values, path, arrays[path]), _most(arrays[path])
    inside = _put(arrays, values, path, [_row(sample, number & most, False) for number in numbers])
    (outer,) = inside[first][:1]
    return {**values, first: [_row(outer, number, False) for number in numbers]}


def _put(arrays: Mapping[_Path, Any], values: Values, path: _Path, rows: list[Any]) -> Values:
    """`rows` as the array at `path`, in one row of each array around it."""
    for end in range(len(path) - 1, 0, -1):
        rows = [{**_sample(values, path[:end], arrays[path[:end]]), path[end]: rows}]
    return {**values, path[0]: rows}


def _arrays(schema: Any, before: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    """The path of each array, and the type of its elements."""
    hints = get_type_hints(schema)
    for field in fields(schema):
        kind = _kind(hints[field.name])
        if get_origin(kind) is tuple:
            element = get_args(kind)[0]
            yield (*before, field.name), element
            if hasattr(element, "__flexible__"):
                yield from _arrays(element, (*before, field.name))


def _most(element: Any) -> int:
    """Where the elements are numbers."""
    return 0x7F if element is i8 else 0x7FFFFFFF


def _kind(hint: Any) -> Any:
    """The type of a field that may be None."""
    alternatives = get_args(hint) if NoneType in get_args(hint) else (hint,)
    return next(each for each in alternatives if each is not NoneType)


def _is(kind: Any, wanted: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, wanted)


def _has_text(element: Any) -> bool:
    if not hasattr(element, "__flexible__"):
        return _is(element, str)
    return any(_is(_kind(hint), str) for hint in get_type_hints(element).values())


def _sample(values: Values, path: _Path, element: Any) -> Any:
    """The first row of an array of the accepted request. If it has none: one like the defaults."""
    found: Any = values
    for name in path:
        rows = found.get(name) if isinstance(found, Mapping) else None
        found = rows[0] if rows else None
    if not hasattr(element, "__flexible__"):
        return _value(element, path[-1]) if found is None else found
    hints = get_type_hints(element)
    made: dict[str, Any] = {}
    for field in fields(element):
        hint = hints[field.name]
        if get_origin(_kind(hint)) is tuple:
            made[field.name] = ()
        elif field.default is MISSING:
            made[field.name] = _value(hint, field.name)
    return made if found is None else {**made, **found}


def _value(hint: Any, name: str) -> Any:
    kind = _kind(hint)
    if _is(kind, str):
        return name
    if _is(kind, UUID):
        return UUID(int=1)
    return b"" if _is(kind, bytes) else False if kind is bool else 1.0 if "f64" in str(kind) else 1


def _row(sample: Any, number: int, is_longest: bool) -> Any:
    """The sample with other names, ids and numbers of partitions."""
    if isinstance(sample, str):
        text = f"{sample}-{number}"
        return text + "x" * (LONGEST_TEXT - len(text)) if is_longest else text
    if isinstance(sample, UUID):
        return UUID(int=number + 1)
    if not isinstance(sample, Mapping):
        return number if type(sample) is int else sample
    row = dict(sample)
    for name, value in sample.items():
        if (isinstance(value, str) and value and name not in _FIXED) or isinstance(value, UUID):
            row[name] = _row(value, number, is_longest)
        elif name in _NUMBERED:
            row[name] = number
    return row
