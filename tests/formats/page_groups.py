"""Reads groups and committed offsets from a state map by docs/format.md and the heads of
modules that it links to, without kbroker's code, like page_reader.py.

A record is a tuple of its fields in the order of the heads, tagged fields last; a missing tagged
field is None.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID


class GroupRecord(NamedTuple):
    group: str
    type: int
    member: str | None


class Fields:
    """A value, read from the front. `flexible`: with compact lengths and tags."""

    def __init__(self, value: bytes, *, flexible: bool, at: int = 0) -> None:
        self._value = value
        self._flexible = flexible
        self._at = at

    def number(self, size: int) -> int:
        self._at += size
        return int.from_bytes(self._value[self._at - size : self._at], "big", signed=True)

    def uuid(self) -> UUID:
        self._at += 16
        return UUID(bytes=self._value[self._at - 16 : self._at])

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._value[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def _length(self, size: int) -> int:
        """-1: null."""
        return self._varint() - 1 if self._flexible else self.number(size)

    def _raw(self, length: int) -> bytes:
        self._at += length
        return self._value[self._at - length : self._at]

    def string(self) -> str | None:
        length = self._length(2)
        return None if length < 0 else self._raw(length).decode()

    def bytes(self) -> bytes:
        return self._raw(self._length(4))

    def array(self, element: Callable[[], Any]) -> tuple[Any, ...]:
        return tuple(element() for _ in range(self._length(4)))

    def struct(
        self, *fields: Callable[[], Any], tag_0: Callable[[Fields], Any] | None = None
    ) -> tuple[Any, ...]:
        """Its fields, and that of tag 0 if it may have one."""
        values = tuple(field() for field in fields)
        tagged = None
        for _ in range(self._varint() if self._flexible else 0):
            assert self._varint() == 0
            assert tag_0 is not None
            size = self._varint()
            inside = Fields(self._raw(size), flexible=True)
            tagged = tag_0(inside)
            inside.end()
        return (*values, tagged) if tag_0 is not None else values

    def end(self) -> None:
        assert self._at == len(self._value), "bytes are left over"

    # --- parts that several records share ---

    def int32s(self) -> tuple[int, ...]:
        return self.array(lambda: self.number(4))

    def partitions(self) -> tuple[Any, ...]:
        return self.array(lambda: self.struct(self.uuid, self.int32s))

    def owned(self) -> tuple[Any, ...]:
        return self.array(lambda: self.struct(self.uuid, self.int32s, tag_0=Fields.int32s))

    def named_partitions(self) -> tuple[Any, ...]:
        return self.array(lambda: self.struct(self.uuid, self.string, self.int32s))


def _classic_group(f: Fields) -> tuple[Any, ...]:
    def member() -> tuple[Any, ...]:
        ids = (f.string(), f.string(), f.string(), f.string())
        return (*ids, f.number(4), f.number(4), f.bytes(), f.bytes())

    return (f.string(), f.number(4), f.string(), f.string(), f.number(8), f.array(member))


def _consumer_member(f: Fields) -> tuple[Any, ...]:
    def classic(tag: Fields) -> Any:
        assert tag.number(1) == 1
        return tag.struct(lambda: tag.number(4), lambda: tag.array(lambda: tag.struct(tag.string, tag.bytes)))

    names = lambda: f.array(f.string)  # noqa: E731
    return f.struct(
        f.string, f.string, f.string, f.string, names, f.string, lambda: f.number(4), f.string, tag_0=classic
    )


def _target(f: Fields) -> tuple[Any, ...]:
    return f.struct(lambda: f.number(4), tag_0=lambda tag: tag.number(8))


RECORDS: dict[int, Callable[[Fields], tuple[Any, ...]]] = {
    2: _classic_group,
    3: _target,  # an epoch, and a hash instead of the time
    5: _consumer_member,
    6: _target,
    7: lambda f: f.struct(f.partitions),
    8: lambda f: f.struct(lambda: f.number(4), lambda: f.number(4), lambda: f.number(1), f.owned, f.owned),
    10: lambda f: f.struct(f.string, f.string, f.string, lambda: f.array(f.string)),
    11: lambda f: f.struct(lambda: f.number(4), lambda: f.number(8)),
    12: _target,
    13: lambda f: f.struct(f.partitions),
    14: lambda f: f.struct(lambda: f.number(4), lambda: f.number(4), lambda: f.number(1), f.partitions),
    15: lambda f: f.struct(
        f.named_partitions, f.named_partitions, lambda: f.array(lambda: f.struct(f.uuid, f.string))
    ),
}
WITH_MEMBER = {5, 7, 8, 10, 13, 14}


def groups(state: dict[bytes, bytes]) -> dict[GroupRecord, tuple[Any, ...]]:
    found = {}
    for key, value in state.items():
        if key.startswith(b"group/"):
            head = Fields(key, flexible=False, at=6)
            group, record_type = head.string(), head.number(2)
            assert group is not None
            member = head.string() if record_type in WITH_MEMBER else None
            head.end()
            version = 3 if record_type == 2 else 0
            assert value[:2] == struct.pack(">h", version)
            fields = Fields(value, flexible=version == 0, at=2)
            found[GroupRecord(group, record_type, member)] = RECORDS[record_type](fields)
            fields.end()
    return found


def offsets(state: dict[bytes, bytes]) -> dict[tuple[str, UUID, int], dict[str, Any]]:
    found = {}
    for key, value in state.items():
        if key.startswith(b"offset/"):
            head = Fields(key, flexible=False, at=7)
            place = (head.string() or "", head.uuid(), head.number(4))
            head.end()
            fields = Fields(value, flexible=False, at=2)
            offset: dict[str, Any] = {"offset": fields.number(8)}
            if value[:2] == b"\0\3":
                offset |= {
                    "leader_epoch": fields.number(4),
                    "metadata": fields.string(),
                    "commit_timestamp": fields.number(8),
                }
            else:
                assert value[:2] == b"\0\1"
                offset |= {
                    "metadata": fields.string(),
                    "commit_timestamp": fields.number(8),
                    "expire_timestamp": fields.number(8),
                }
            fields.end()
            found[place] = offset
    return found
