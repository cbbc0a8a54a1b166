"""Long requests, decoded in turns: after every DECODED_ROWS_A_TURN rows other requests get a turn.

The check of a frame (array_check.py) ends where a request has more rows than one turn decodes. Then
the rows of its arrays are checked and decoded one by one, and the rest of the message as if its
arrays were empty. A row that is long itself is decoded in the same way. An array of texts or
numbers is decoded in parts, each together with the rest of the message.

The rows of a request are the elements of all of its arrays. Each API has a bound of them
(api/bounds.py). The number of an array's elements stands before them, so a request beyond the bound
is refused before they are decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import Any, Final, NamedTuple

from kio.serial import entity_reader
from kio.serial.errors import SerialError

from .array_check import (
    Array,
    Counted,
    Edit,
    TooManyRows,
    array_count,
    edited,
    program_of,
    run,
    skip_tags,
    to_uvarint,
)
from .messages import RequestHead, request_schema
from .reject_reasons import SHARE_ACKNOWLEDGE, with_reasons

DECODED_ROWS_A_TURN: Final = 2048
"""Some milliseconds of work."""


class _Values(NamedTuple):
    """An array of texts or numbers. `empty`: replaces it by an empty one; `parts`: arrays of some
    of its elements each, as bytes."""

    name: str
    empty: Edit
    parts: list[bytes]


class LongRequest:
    """A request of many rows. `frame` must stay as it is. `body`: kio's entity, once `turns` has
    ended."""

    def __init__(self, head: RequestHead, frame: bytes, most_rows: int) -> None:
        self.body: Any = None
        self._head = head
        self._frame = memoryview(frame)
        self._most_rows = most_rows
        self._rows_left = most_rows
        self._spent = 0

    def turns(self) -> Generator[None, None, None]:
        """Yields where others should get a turn. Raises TooManyRows, and ValueError if the body
        cannot be parsed."""
        head, frame = self._head, self._frame
        schema = request_schema(head.api_key, head.api_version)
        try:
            at = head.end
            if schema.__header_schema__.__version__ >= 2:
                at = skip_tags(frame, at)
            self.body, _, edits = yield from self._message(schema, at)
            if head.api_key == SHARE_ACKNOWLEDGE:
                self.body = with_reasons(self.body, frame, edits)
        except (SerialError, ValueError, LookupError, struct.error, OverflowError, TypeError) as error:
            raise ValueError(f"body cannot be parsed: {error}") from error

    def _message(self, schema: Any, at: int) -> Generator[None, None, tuple[Any, int, list[Edit]]]:
        """A message, where it ends, and what the decoder did not get to see of it."""
        begin, frame = at, self._frame
        edits = Counted(self._rows_left)
        arrays: dict[str, Any] = {}
        of_values: list[_Values] = []
        for step in program_of(schema):
            if type(step) is not Array or not step.name:
                at = run((step,), frame, at, edits)
                continue
            count_at = at
            count, at = array_count(step, frame, at, edits)
            self._rows_left = edits.rows_left
            if count > 0 and step.entity is None:
                values, at = yield from self._values(step, count, count_at, at)
                of_values.append(values)
                edits.append(values.empty)
            elif count > 0:
                rows = []
                for _ in range(count):
                    row, at = yield from self._row(step.entity, at)
                    rows.append(row)
                edits.rows_left = self._rows_left
                edits.append(Edit(count_at, at, b"\x01" if step.compact else bytes(4)))
                arrays[step.name] = tuple(rows)
        self._rows_left = edits.rows_left
        edits.sort()
        entity, _ = entity_reader(schema)(edited(frame, edits, begin, at), 0)
        for values in of_values:
            found: list[Any] = []
            for part in values.parts:
                filled = [
                    Edit(each.start, each.end, part) if each is values.empty else each for each in edits
                ]
                one, _ = entity_reader(schema)(edited(frame, filled, begin, at), 0)
                found += getattr(one, values.name)
                yield
            arrays[values.name] = tuple(found)
        for name, value in arrays.items():
            object.__setattr__(entity, name, value)  # It is frozen, and not yet used.
        return entity, at, edits

    def _values(
        self, step: Array, count: int, count_at: int, at: int
    ) -> Generator[None, None, tuple[_Values, int]]:
        """An array of texts or numbers, and where it ends."""
        frame, parts = self._frame, []
        left = count
        while left:
            some, begin = min(left, DECODED_ROWS_A_TURN), at
            inner: list[Edit] = []
            for _ in range(some):
                at = run(step.element, frame, at, inner)
            number = to_uvarint(some + 1) if step.compact else some.to_bytes(4, "big")
            parts.append(number + edited(frame, inner, begin, at))
            left -= some
            yield
        return _Values(step.name, Edit(count_at, at, b"\x01" if step.compact else bytes(4)), parts), at

    def _row(self, schema: Any, at: int) -> Generator[None, None, tuple[Any, int]]:
        edits = Counted(min(DECODED_ROWS_A_TURN, self._rows_left))
        before = edits.rows_left
        try:
            end = run(program_of(schema), self._frame, at, edits)
        except TooManyRows:
            row, end, _ = yield from self._message(schema, at)
            return row, end
        rows = before - edits.rows_left
        self._rows_left -= rows
        edits.sort()
        frame, begin = (edited(self._frame, edits, at, end), 0) if edits else (self._frame, at)
        row, _ = entity_reader(schema)(frame, begin)
        self._spent += 1 + rows
        if self._spent >= DECODED_ROWS_A_TURN:
            self._spent = 0
            yield
        return row, end
