"""How the keys of the StateStore are declared: a class names its fields, in the order of the bytes.

    class LeaderEpochKey(StateKey):
        topic_id: UUID
        partition: I32
        epoch: I32
        namespace = b"leader_epoch/"
        decode_value = staticmethod(LeaderEpoch.decode)

    field       form in a key
    UUID        16 bytes
    I32, I64    a big-endian number
    an enum     one byte
    str         length (2) and UTF-8
    Rest        UTF-8, up to the end of the key

A key is a named tuple that equals only keys of its own class. A class whose keys have another form
defines `encode` and `_parse` itself.
"""

from __future__ import annotations

import struct
import sys
from collections import namedtuple
from itertools import groupby
from typing import Any, ClassVar, Final, Self, TypeAlias, dataclass_transform
from uuid import UUID

I32: TypeAlias = int
I64: TypeAlias = int
Rest: TypeAlias = str
AnyValue: TypeAlias = Any
"""Of StateKey.decode_value: each class of keys has a type of its own."""

DECLARED: Final[dict[bytes, Any]] = {}
"""The classes of keys by their namespace."""

_NUMBERS: Final = {"UUID": "16s", "I32": "i", "I64": "q"}
_TEXTS: Final = ("str", "Rest")


class LaterKey(Exception):
    """A key that only later formats know."""


def encode_string(text: str) -> bytes:
    """Raises ValueError for more than 32 767 bytes."""
    encoded = text.encode()
    if len(encoded) > 32_767:
        raise ValueError(f"a string of {len(encoded)} bytes")
    return len(encoded).to_bytes(2, "big") + encoded


def decode_string(key: bytes, start: int) -> tuple[str, int]:
    """The string at `start`, and the position after it. Raises ValueError."""
    end = start + 2 + int.from_bytes(key[start : start + 2], "big", signed=True)
    if not start + 2 <= end <= len(key):
        raise ValueError(f"not a string at {start} of {key.hex()}")
    return key[start + 2 : end].decode(), end


@dataclass_transform(frozen_default=True)
class _Declared(type):
    def __new__(mcls, name: str, bases: tuple[Any, ...], body: dict[str, Any]) -> _Declared:
        types: dict[str, str] = body.pop("__annotations__", {})
        if types and bases[0] is not tuple:
            defaults = [body.pop(each) for each in types if each in body]
            bases = (*bases, namedtuple(name, types, defaults=defaults))
            body["_types"] = types
        if "namespace" in body and "encode" not in body:
            known = vars(sys.modules[body["__module__"]])
            body = _derived(body["namespace"], types or bases[0]._types, known) | body
        made = super().__new__(mcls, name, bases, {"__slots__": (), **body})
        if "namespace" in body:
            DECLARED[body["namespace"]] = made
        return made


def _derived(namespace: bytes, types: dict[str, str], known: dict[str, Any]) -> dict[str, Any]:
    """`encode` and `_parse`, as they would be written by hand."""
    names: dict[str, Any] = {each: known.get(each) for each in types.values()}
    names |= {"encode_string": encode_string, "decode_string": decode_string}
    terms, steps, at = [repr(namespace)], list[str](), "0"
    for text, run in groupby(types, lambda field: types[field] if types[field] in _TEXTS else ""):
        fields = list(run)
        if text == "str":
            terms.append(f"encode_string(self.{fields[0]})")
            steps.append(f"{fields[0]}, at = decode_string(body, {at})")
            at = "at"
        elif text == "Rest":
            terms.append(f"self.{fields[0]}.encode()")
            steps.append(f"{fields[0]} = body[{at}:].decode()")
            at = "len(body)"
        else:
            form = "".join(_NUMBERS.get(types[each], "B") for each in fields)
            unpacked = struct.Struct(">" + form)
            values = [f"self.{each}.bytes" if types[each] == "UUID" else f"self.{each}" for each in fields]
            if not steps:  # one call packs them with the namespace
                form, values = f"{len(namespace)}s{form}", [terms.pop(), *values]
            names[f"pack{len(steps)}"] = struct.Struct(">" + form).pack
            names[f"unpack{len(steps)}"] = unpacked.unpack_from
            terms.append(f"pack{len(steps)}({', '.join(values)})")
            steps.append(f"{', '.join(fields)}, = unpack{len(steps)}(body, {at})")
            at = f"{at} + {unpacked.size}"
    made = {"UUID": "UUID(bytes={})", "I32": "{}", "I64": "{}", "str": "{}", "Rest": "{}"}
    args = [made.get(form, form + "({})").format(each) for each, form in types.items()]
    steps.append(f"if {at} != len(body): raise IndexError('bytes are left over')")
    steps.append(f"return cls({', '.join(args)})")
    source = f"def encode(self): return {' + '.join(terms)}\ndef parse(cls, body):\n "
    exec(source + "\n ".join(steps), names)
    return {"encode": names["encode"], "_parse": classmethod(names["parse"])}


class StateKey(tuple[Any, ...], metaclass=_Declared):
    namespace: ClassVar[bytes]

    def encode(self) -> bytes:
        raise NotImplementedError

    def decode_value(self, value: bytes, /) -> AnyValue:
        """Raises ValueError."""
        raise NotImplementedError

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """Raises ValueError for a broken key, and LaterKey."""
        try:
            return cls._parse(body)
        except (struct.error, IndexError) as error:
            namespace = cls.namespace.decode()
            raise ValueError(f"not a key of {namespace}: {(cls.namespace + body).hex()}") from error

    @classmethod
    def _parse(cls, body: bytes) -> Self:
        raise NotImplementedError

    @classmethod
    def topic_prefix(cls, topic_id: UUID) -> bytes:
        """The prefix of all keys of one topic, if they begin with the topic id."""
        return cls.namespace + topic_id.bytes

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__


class LogKey(StateKey):
    """A key of one log."""

    topic_id: UUID
    partition: I32
