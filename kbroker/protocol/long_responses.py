"""Long responses, built and encoded in turns: after every ROWS_A_TURN rows other requests get one.

A response is long if it has more rows, texts and numbers than that, or if a handler returns an
iterator for an array.
Each row of an iterator is built when its turn comes, and is not kept. A handler's iterator must
look up by name what it needs for a row, because topics and groups may be deleted between two turns.
Where it passes over something without a row, it yields None, so that this counts as work.

A response has at most `most_bytes`. Its first row may have any size, but no further row may make
the response larger. A client that names one thing many times gets its row as often: `each_once`
looks it up once, and it is encoded once.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from kio.serial import entity_writer
from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    PrimitiveTupleField,
    classify_field,
    is_optional,
)
from kio.serial._serialize import get_field_writer, get_writer
from kio.serial._shared import NullableEntityMarker
from kio.serial.writers import write_compact_array_length, write_int8, write_legacy_array_length
from kio.static.primitive import i32

from kbroker.formats.batches import Buffer
from kbroker.protocol.error_codes import error_codes
from kbroker.protocol.messages import Repeated, build, field_plan
from kbroker.turns import ROWS_A_TURN

_SHORT: Final = 64
"""The most rows within a row that is encoded at once."""
_NODES: Final = frozenset(
    {
        "replica_nodes", "isr_nodes", "offline_replicas", "eligible_leader_replicas", "last_known_elr",
    }
)  # fmt: skip
"""Arrays of node ids, which are never long."""
_PART_BYTES: Final = 64 << 10
_COPIED_BYTES: Final = 8 << 10
"""A repeated row of no more bytes is copied: each part of a response is work when it is sent."""
_FEW: Final = 4
"""The most rows within a row of a request that is hashed whole."""
_KEYS_A_ROW: Final = 4
"""Keys whose look-up in a table counts as a row. Some are hashed by a function in Python."""
K = TypeVar("K", bound=Hashable)
_Write: TypeAlias = Callable[[Any, Any], None]


class ResponseTooLarge(Exception):
    """A response would be larger than its bound, and has several rows.

    `size_bytes`: with the row of number `rows`, or an estimate of it."""

    def __init__(self, rows: int, size_bytes: int) -> None:
        super().__init__(f"{rows} rows of {size_bytes} bytes")
        self.rows = rows
        self.size_bytes = size_bytes


def key_of(row: Any, rows: Sequence[Any] | None) -> Hashable:
    """The key of a row of a request, which has `rows` within: the row itself or, with many of them,
    its place in memory. A hash would be calls for each of them, in one turn, and such a row asks
    for no more than it names."""
    return row if rows is None or len(rows) <= _FEW else id(row)


def each_once(
    asked: Iterable[K], make: Callable[[K], Any], key: Callable[[K], Hashable] | None = None
) -> Iterator[Any]:
    """The rows for what a client has named, in its order. `make` is called once for each key; None:
    each of what is named is its own key."""
    named = asked if isinstance(asked, (tuple, list)) else list(asked)
    keys: list[Hashable] = []
    times: Counter[Hashable] = Counter()
    for at in range(0, len(named), _KEYS_A_ROW):
        some = named[at : at + _KEYS_A_ROW]
        keys += some if key is None else map(key, some)
        times.update(keys[at:])
        if at:
            yield None
    repeated = {key for key, count in times.items() if count > 1}
    made: dict[Hashable, Repeated] = {}
    for each, its_key in zip(named, keys, strict=True):
        if its_key not in repeated:
            yield make(each)
            continue
        if its_key not in made:
            made[its_key] = Repeated(make(each))
        yield made[its_key]


class _Within(NamedTuple):
    """A field that may be long: an array of rows, or of texts or numbers (`schema` is None), or one
    row (`is_one`)."""

    name: str
    schema: Any
    is_one: bool
    is_nullable: bool


def is_long(schema: Any, message: Any) -> bool:
    """Whether a response must be packed in turns. Called for every response."""
    within = _within(schema)
    return within != () and _count(within, message, ROWS_A_TURN) > ROWS_A_TURN


def _count(within: tuple[_Within, ...], message: Any, most: int) -> int:
    """The rows, texts and numbers in these fields, counted no further than above `most`. An
    iterator has more than that."""
    count = 0
    for name, schema, is_one, _ in within:
        rows = message.get(name) if isinstance(message, dict) else getattr(message, name, None)
        if rows is None:
            continue
        if is_one:
            rows = (rows,)
        elif not isinstance(rows, (tuple, list)):
            return most + 1
        count += len(rows)
        if count > most:
            return count
        if schema is not None and (within_rows := _all_within(schema)):
            for row in rows:
                count += _count(within_rows, row.row if type(row) is Repeated else row, most - count)
                if count > most:
                    return count
    return count


class _FieldPlan(NamedTuple):
    """How to pack one field, and one value of an array of texts or numbers."""

    name: str
    convert: Callable[[Any], Any] | None
    default: Any
    write: _Write
    within: _Within | None
    write_one: _Write | None


@cache
def _within(schema: Any) -> tuple[_Within, ...]:
    """The fields of a schema that may be long. None if it has tagged fields: such a message is
    short, or packed by hand."""
    return () if any("tag" in field.metadata for field in fields(schema)) else _all_within(schema)


@cache
def _all_within(schema: Any) -> tuple[_Within, ...]:
    found = []
    for field in fields(schema):
        kind = classify_field(field)
        if isinstance(kind, EntityField | EntityTupleField):
            found.append(_Within(field.name, kind.type_, not kind.is_array, is_optional(field)))
        elif kind.is_array and field.name not in _NODES:
            found.append(_Within(field.name, None, is_one=False, is_nullable=False))
    return tuple(found)


@cache
def _plan(schema: Any) -> tuple[_FieldPlan, ...]:
    within = {each.name: each for each in _within(schema)}
    by_name: dict[str, Field[Any]] = {field.name: field for field in fields(schema)}
    return tuple(
        _FieldPlan(
            name,
            convert,
            default,
            get_field_writer(by_name[name], schema.__flexible__, is_request_header=False, is_tag=False),
            within.get(name),
            _one_writer(by_name[name], schema.__flexible__),
        )
        for name, convert, default in field_plan(schema)
    )


def _one_writer(field: Field[Any], flexible: bool) -> _Write | None:
    if not isinstance(classify_field(field), PrimitiveTupleField):
        return None
    return get_writer(field.metadata["kafka_type"], flexible, optional=False)


@cache
def _payloads(schema: Any) -> tuple[str, ...]:
    """The fields whose size a client has chosen freely, such as the metadata of a member."""
    return tuple(field.name for field in fields(schema) if field.metadata.get("kafka_type") == "bytes")


@cache
def _has_payloads(schema: Any) -> bool:
    return bool(_payloads(schema)) or any(_has_payloads(each.schema) for each in _rows_within(schema))


def _payload_bytes(schema: Any, row: Any) -> int:
    """The least that a short row has, without encoding it."""
    own = sum(len(_value(row, name) or b"") for name in _payloads(schema))
    return own + sum(
        _payload_bytes(each.schema, one) for each in _rows_within(schema) for one in _rows(row, each)
    )


@cache
def _rows_within(schema: Any) -> tuple[_Within, ...]:
    return tuple(each for each in _within(schema) if each.schema is not None)


def _rows(message: Any, within: _Within) -> Any:
    rows = _value(message, within.name)
    return () if rows is None else (rows,) if within.is_one else rows


def _value(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, dict) else getattr(message, name, None)


class Packing:
    """One response. `parts` and `errors` are complete when `turns` has ended."""

    def __init__(self, schema: Any, message: Any, most_bytes: int) -> None:
        self.parts: list[Buffer] = []
        self.errors: list[int] = []
        self._schema = schema
        self._message = message
        self._most_bytes = most_bytes
        self._buffer = io.BytesIO()
        self._parts_bytes = 0
        self._spent = 0
        self._rows = 0
        self._is_first = True
        """Whether the first row is being packed, which may have any size."""

    def turns(self) -> Generator[None, None, None]:
        """Yields where others should get a turn. Raises ResponseTooLarge."""
        yield from self._message_in_turns(self._schema, self._message, is_top=True)
        self._end_part()

    @property
    def size_bytes(self) -> int:
        return self._parts_bytes + self._buffer.tell()

    def _end_part(self) -> None:
        if self._buffer.tell():
            self._append(self._buffer.getvalue())
            self._buffer = io.BytesIO()

    def _append(self, part: Buffer) -> None:
        self.parts.append(part)
        self._parts_bytes += len(part)

    def _message_in_turns(self, schema: Any, message: Any, *, is_top: bool) -> Generator[None, None, None]:
        for name, convert, default, write, within, write_one in _plan(schema):
            value = (
                message.get(name, MISSING) if isinstance(message, dict) else getattr(message, name, MISSING)
            )
            if value is MISSING:
                if default is MISSING:
                    raise KeyError(f"{schema.__module__}.{schema.__name__}.{name}")
                value = default
            elif within is None and convert is not None:
                value = convert(value)
            if within is None or value is None:
                write(self._buffer, value)
                if value and schema.__dataclass_fields__[name].metadata.get("kafka_type") == "error_code":
                    self.errors.append(int(value))
            elif within.is_one:
                if within.is_nullable:
                    write_int8(self._buffer, NullableEntityMarker.not_null.value)
                yield from self._row(within.schema, value)
            else:
                yield from self._array(schema, within.schema, write_one, value, is_top=is_top)
        if schema.__flexible__:
            self._buffer.write(b"\x00")

    def _array(
        self, schema: Any, rows_schema: Any, write_one: _Write | None, rows: Iterable[Any], *, is_top: bool
    ) -> Generator[None, None, None]:
        """The number of rows comes first. With an iterator it is known last."""
        write_count = write_compact_array_length if schema.__flexible__ else write_legacy_array_length
        if is_counted := isinstance(rows, Sequence):
            write_count(self._buffer, i32(len(rows)))
        place, at, count = len(self.parts), self._buffer.tell(), 0
        for row in rows:
            if row is not None:
                count += 1
                if is_top:
                    self._rows += 1
                    self._is_first = count == 1
                if write_one is None:
                    yield from self._row(rows_schema, row)
                else:
                    write_one(self._buffer, row)
            self._spent += 1
            if self._spent >= ROWS_A_TURN:
                self._spent = 0
                yield
        if not is_counted:
            counted = io.BytesIO()
            write_count(counted, i32(count))
            self._insert(counted.getvalue(), place, at)

    def _insert(self, counted: bytes, place: int, at: int) -> None:
        """In front of what was packed since there were `place` parts and `at` bytes in the
        buffer."""
        if len(self.parts) == place:
            with self._buffer.getbuffer() as packed:
                content = bytes(packed[at:])
            self._buffer.seek(at)
            self._buffer.write(counted + content)
        else:
            part = memoryview(self.parts[place])
            self.parts[place : place + 1] = (b"".join((part[:at], counted)), part[at:])
            self._parts_bytes += len(counted)

    def _row(self, schema: Any, row: Any) -> Generator[None, None, None]:
        if type(row) is Repeated:
            yield from self._repeated(schema, row)
        elif _is_short(schema, row):
            self._write(schema, row)
        else:
            yield from self._message_in_turns(schema, row, is_top=False)
        if self._buffer.tell() > _PART_BYTES:
            self._end_part()
        if not self._is_first:
            self._check(0)

    def _repeated(self, schema: Any, row: Repeated) -> Generator[None, None, None]:
        packed = row.packed
        if packed is None:
            within = Packing(schema, row.row, self._most_bytes)
            within._is_first, within._spent = self._is_first, self._spent
            yield from within._row(schema, row.row)
            within._end_part()
            self._spent = within._spent
            packed = row.packed = (b"".join(within.parts), within.errors)
        else:
            self._check(len(packed[0]))
        if len(packed[0]) <= _COPIED_BYTES:
            self._buffer.write(packed[0])
        else:
            self._end_part()
            self._append(packed[0])
        self.errors += packed[1]

    def _write(self, schema: Any, row: Any) -> None:
        """A short row, at once."""
        if not self._is_first and _has_payloads(schema):
            self._check(_payload_bytes(schema, row))
        entity = build(schema, row)
        entity_writer(schema)(self._buffer, entity)
        self.errors += error_codes(entity)
        for each in _all_within(schema):
            self._spent += 1 if each.is_one else len(getattr(entity, each.name) or ())

    def _check(self, more_bytes: int) -> None:
        size_bytes = self.size_bytes + more_bytes
        if size_bytes > self._most_bytes:
            raise ResponseTooLarge(self._rows, size_bytes)


def _is_short(schema: Any, row: Any) -> bool:
    for each in _within(schema):
        rows = _rows(row, each)
        if not isinstance(rows, (tuple, list)) or len(rows) > _SHORT:
            return False
        if rows and each.schema is not None and _within(each.schema):
            return False
    return True
