"""Checks the array counts of a request before it is decoded.

kio's native decoder reserves room for as many elements as a request announces. If there is not that
much memory the process aborts, so a frame of 20 bytes could end the broker. The check compares each
count with the bytes that are left.

The decoder also refuses some forms that Kafka accepts. The check notes where they are, and they are
cut out or replaced before decoding:

- unknown tagged fields, which a reader must skip, as newer clients may add them (KIP-482). Those of
  kbroker's own (SET_ASIDE) are cut out as well, and the edit says where their content is
- a boolean other than 0 and 1: Kafka reads anything but 0 as true
- a length or count below -1: Kafka reads null
- a duration of more than 292 000 years: it becomes that long

The check refuses null for an array that must not be null, which the decoder accepts. The decoder
refuses all other errors itself.

The check also counts the rows of a message, which are the elements of its arrays at any depth. It
ends where there are more than the caller allows (long_requests.py).

For each message a short program is made from kio's schema, once. Consecutive fields of fixed size
become one skip.

    int      skip that many bytes
    _Bool    a byte that is 0 or 1, or replaced
    _Long    a duration of 64 bits, or replaced
    _Text    a string or bytes: skip what its length says
    Array    a count, then that many elements
    _Struct  a byte that says whether a nullable struct follows
    _Tags    a tag section (KIP-482)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

from kio.static.constants import EntityType

Buffer: TypeAlias = bytes | memoryview

_SIZES: Final = {
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}

SET_ASIDE: Final[Mapping[int, frozenset[int]]] = {79: frozenset({10_000})}
"""By API key: tags at the end of a request that are kbroker's own (reject_reasons.py)."""
_NONE_ASIDE: Final[frozenset[int]] = frozenset()
_LONGEST_MS: Final = ((1 << 63) - 1) // 1000
"""The decoder counts microseconds in 64 bits."""


class _Bool(NamedTuple):
    """A boolean."""


class _Long(NamedTuple):
    """A duration of 64 bits."""


class _Text(NamedTuple):
    """`length_bytes` 2 or 4; 0: compact."""

    length_bytes: int
    nullable: bool


class Array(NamedTuple):
    """`least` is the smallest number of bytes of one element.

    - `name`: of the field; empty in a struct that is part of another one
    - `entity`: the schema of its elements, if they have fields
    """

    compact: bool
    nullable: bool
    element: Program
    least: int
    name: str = ""
    entity: Any = None


class _Struct(NamedTuple):
    program: Program


class _Tags(NamedTuple):
    known: Mapping[int, Program]
    aside: frozenset[int] = _NONE_ASIDE


Step: TypeAlias = int | _Bool | _Long | _Text | Array | _Struct | _Tags
Program: TypeAlias = Sequence[Step]


class Edit(NamedTuple):
    """Bytes of a frame to replace. `aside`: where the content of a tagged field of kbroker's own
    begins, which reaches to `end`; -1 for other edits."""

    start: int
    end: int
    replacement: bytes
    aside: int = -1


class TooManyRows(Exception):
    """A message has more rows than its reader allows."""


class Counted(list[Edit]):
    """The edits of a message whose rows are counted."""

    __slots__ = ("rows_left",)

    def __init__(self, most_rows: int) -> None:
        self.rows_left = most_rows

    def take(self, rows: int) -> None:
        """Raises TooManyRows."""
        self.rows_left -= rows
        if self.rows_left < 0:
            raise TooManyRows


def check_arrays(schema: Any, frame: Buffer, at: int, most_rows: int | None = None) -> list[Edit]:
    """Raises ValueError if the message of `schema` at `at` has an array with a count that cannot be
    true, or the frame ends too soon. Raises TooManyRows if it has more than `most_rows`.

    Returns the replacements after which the decoder accepts the message, in order; mostly none.
    """
    edits: list[Edit] = [] if most_rows is None else Counted(most_rows)
    try:
        run(program_of(schema), frame, at, edits)
    except IndexError as error:
        raise ValueError("the frame ends within a field") from error
    if edits:
        edits.sort()
    return edits


def skip_tags(frame: Buffer, at: int) -> int:
    """The end of the tag section at `at`. Raises ValueError."""
    try:
        if not frame[at]:
            return at + 1
        return _check_tags(_Tags({}), frame, at, [])
    except IndexError as error:
        raise ValueError("the frame ends within its header") from error


def edited(frame: Buffer, edits: Sequence[Edit], begin: int = 0, end: int | None = None) -> bytes:
    """The part of `frame` from `begin` to `end`, with the replacements."""
    parts: list[Buffer] = []
    at = begin
    for edit in edits:
        parts += (frame[at : edit.start], edit.replacement)
        at = edit.end
    return b"".join((*parts, frame[at:end]))


def run(program: Program, frame: Buffer, at: int, edits: list[Edit]) -> int:
    """Handles without a call what nearly every request has: no tags, empty arrays, and texts of
    less than 127 bytes."""
    for step in program:
        if type(step) is int:
            at += step
        elif type(step) is _Tags:
            at = _check_tags(step, frame, at, edits) if frame[at] else at + 1
        elif type(step) is Array:
            if step.compact and frame[at] == 1:
                at += 1
                continue
            count, at = array_count(step, frame, at, edits)
            element = step.element
            if len(element) == 1 and type(element[0]) is int:
                at += count * element[0] if count > 0 else 0
                continue
            for _ in range(count):
                at = run(element, frame, at, edits)
        elif type(step) is _Text:
            length = frame[at]
            at = (
                _skip_text(step, frame, at, edits)
                if step.length_bytes or length >= 0x80
                else at + (length or 1)
            )
        elif type(step) is _Bool:
            if frame[at] > 1:
                edits.append(Edit(at, at + 1, b"\x01"))
            at += 1
        elif type(step) is _Struct:
            present = frame[at] < 0x80
            at = run(step.program, frame, at + 1, edits) if present else at + 1
        elif type(step) is _Long:
            duration_ms = int.from_bytes(frame[at : at + 8], "big", signed=True)
            if abs(duration_ms) > _LONGEST_MS:
                longest_ms = _LONGEST_MS if duration_ms > 0 else -_LONGEST_MS
                edits.append(Edit(at, at + 8, longest_ms.to_bytes(8, "big", signed=True)))
            at += 8
    return at


def _skip_text(step: _Text, frame: Buffer, at: int, edits: list[Edit]) -> int:
    if step.length_bytes:
        end = at + step.length_bytes
        length = int.from_bytes(frame[at:end], "big", signed=True)
        if length < -1 and step.nullable:
            edits.append(Edit(at, end, b"\xff" * step.length_bytes))
        return end + max(length, 0)
    begin = at
    length, at = uvarint(frame, begin)
    if step.nullable and _is_below_zero(length):
        edits.append(Edit(begin, at, b"\x00"))
        return at
    return at + length - 1 if length else at


def array_count(step: Array, frame: Buffer, at: int, edits: list[Edit]) -> tuple[int, int]:
    """The number of elements, 0 or less for none, and where the first one begins."""
    begin = at
    if step.compact:
        count = frame[at]
        at += 1
        if count >= 0x80:
            count, at = uvarint(frame, begin)
        count -= 1
    else:
        count = int.from_bytes(frame[at : at + 4], "big", signed=True)
        at += 4
    if count < 0 and not step.nullable:
        raise ValueError("null where an array must be")
    if count <= 0:
        if count < -1:
            edits.append(Edit(begin, at, b"\xff\xff\xff\xff"))
        return count, at
    if count * step.least > len(frame) - at:
        if step.compact and step.nullable and _is_below_zero(count + 1):
            edits.append(Edit(begin, at, b"\x00"))
            return -1, at
        raise ValueError(f"an array of {count} elements in a frame with {len(frame) - at} bytes left")
    if type(edits) is Counted:
        edits.take(count)
    return count, at


def _check_tags(step: _Tags, frame: Buffer, at: int, edits: list[Edit]) -> int:
    begin = at
    count, at = uvarint(frame, at)
    unknown: list[Edit] = []
    after_count = at
    for _ in range(count):
        field = at
        tag, at = uvarint(frame, at)
        size, at = uvarint(frame, at)
        end = at + size
        if end > len(frame):
            raise ValueError("a tagged field ends beyond the frame")
        if tag in step.known:
            _check_known(step.known[tag], frame, at, end, edits)
        else:
            unknown.append(Edit(field, end, b"", at if tag in step.aside else -1))
        at = end
    if unknown:
        edits += (Edit(begin, after_count, to_uvarint(count - len(unknown))), *unknown)
    return at


def _check_known(program: Program, frame: Buffer, at: int, end: int, edits: list[Edit]) -> None:
    """A tagged field has its size in front, so unknown fields within it cannot simply be cut out.
    No client is known to send any."""
    before = len(edits)
    run(program, frame[:end], at, edits)
    if any(len(edit.replacement) != edit.end - edit.start for edit in edits[before:]):
        raise ValueError("an unknown tagged field within a tagged field")


def uvarint(frame: Buffer, at: int) -> tuple[int, int]:
    """An unsigned varint, and where it ends. Raises IndexError at the end of the frame, ValueError
    for a longer number."""
    value = shift = 0
    while True:
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 28:
            raise ValueError("a varint of more than five bytes")


def _is_below_zero(compact_length: int) -> bool:
    """Whether Kafka reads it as null: it counts in 32 bits, and any negative length is null."""
    return compact_length & 0xFFFFFFFF == 0 or compact_length & 0xFFFFFFFF > 0x80000000


def to_uvarint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


@cache
def program_of(schema: Any) -> Program:
    hints = get_type_hints(schema)
    flexible: bool = schema.__flexible__
    steps: list[Step] = []
    tagged: dict[int, Program] = {}
    for field in fields(schema):
        step = _step(field, hints[field.name], flexible)
        if "tag" in field.metadata:
            # A tagged struct has no byte in front: its presence means that it is not null.
            tagged[field.metadata["tag"]] = step.program if isinstance(step, _Struct) else _as_program(step)
        elif isinstance(step, list):
            steps += step
        else:
            steps.append(step)
    if flexible:
        steps.append(_Tags(tagged, _aside(schema)))
    return tuple(_merged(steps))


def _aside(schema: Any) -> frozenset[int]:
    is_request = schema.__type__ is EntityType.request
    return SET_ASIDE.get(schema.__api_key__, _NONE_ASIDE) if is_request else _NONE_ASIDE


def _as_program(step: Step | list[Step]) -> Program:
    return step if isinstance(step, list) else (step,)


def _step(field: Field[Any], hint: Any, flexible: bool) -> Step | list[Step]:
    optional = type(None) in get_args(hint)
    inner = next((each for each in get_args(hint) if each is not type(None)), hint) if optional else hint
    if get_origin(inner) is tuple:
        element_type = get_args(inner)[0]
        entity = _entity(element_type)
        element = (
            program_of(entity)
            if entity is not None
            else _as_program(_primitive(field, flexible, nullable=False))
        )
        least = max(1, sum(map(_least, element)))
        return Array(flexible, optional, element, least, field.name, entity)
    entity = _entity(inner)
    if entity is None:
        return _primitive(field, flexible, nullable=optional)
    return _Struct(program_of(entity)) if optional else [_unnamed(step) for step in program_of(entity)]


def _unnamed(step: Step) -> Step:
    """A step of a struct that is part of another one, which has no field of that name."""
    return step._replace(name="", entity=None) if isinstance(step, Array) else step


def _entity(hint: Any) -> Any:
    return hint if isinstance(hint, type) and hasattr(hint, "__flexible__") else None


def _primitive(field: Field[Any], flexible: bool, *, nullable: bool) -> Step:
    kafka_type: str = field.metadata["kafka_type"]
    if kafka_type == "bool":
        return _Bool()
    if kafka_type == "timedelta_i64":
        return _Long()
    if kafka_type in _SIZES:
        return _SIZES[kafka_type]
    return _Text(0 if flexible else 2 if kafka_type == "string" else 4, nullable)


def _least(step: Step) -> int:
    if isinstance(step, int):
        return step
    if isinstance(step, _Long):
        return 8
    if isinstance(step, _Text):
        return step.length_bytes or 1
    return 4 if isinstance(step, Array) and not step.compact else 1


def _merged(steps: Sequence[Step]) -> list[Step]:
    merged: list[Step] = []
    for step in steps:
        if isinstance(step, int) and merged and isinstance(merged[-1], int):
            merged[-1] += step
        else:
            merged.append(step)
    return merged
