"""Builds a dataclass from JSON, as the annotation of a task's payload asks for.

Fields may be dataclasses, str, int, float, bool, None, Any, lists, tuples, dicts with text keys,
unions, Literal, Enum, datetime, date, time, UUID and Decimal. A value of another type is an error
that names the field; nothing is converted silently except an int to a float. Members that no field
takes are ignored, so that senders may be newer than workers.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any, Final, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from .policies import Unreadable

Build: TypeAlias = Callable[[Any, str], Any]
"""Takes a value of JSON and its place, for errors."""
_FROM_TEXT: Final[dict[type, Callable[[str], Any]]] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
    UUID: UUID,
    Decimal: Decimal,
}
_PLAIN: Final = (str, int, bool, type(None))


def builder(annotation: object) -> Build | None:
    """None: the payload stays as it was read. Raises TypeError for a field that JSON cannot
    fill."""
    if not (isinstance(annotation, type) and dataclasses.is_dataclass(annotation)):
        return None
    return _dataclass(annotation, {})


def _builder(hint: Any, known: dict[type, Build]) -> Build:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return lambda value, _: value
    if hint in _PLAIN or hint is None:
        return _plain(type(None) if hint is None else hint)
    if hint is float:
        return _float
    if isinstance(hint, type) and not arguments:
        if hint in _FROM_TEXT:
            return _from_text(hint, _FROM_TEXT[hint])
        if issubclass(hint, Enum):
            return _converted(hint)
        if dataclasses.is_dataclass(hint):
            return _dataclass(hint, known)
        if hint in (list, dict):
            return _plain(hint)
    if origin is Literal:
        return _one_of(arguments)
    if origin in (Union, types.UnionType):
        return _union([_builder(each, known) for each in arguments])
    if origin is list:
        return _list(_builder(arguments[0], known))
    if origin is dict and arguments[0] is str:
        return _dict(_builder(arguments[1], known))
    if origin is tuple:
        return _tuple(arguments, known)
    raise TypeError(f"{hint!r} is not a type that a payload of JSON can be built from")


def _wrong(value: object, place: str, wanted: str) -> Unreadable:
    return Unreadable(f"{place} is not {wanted}, but {type(value).__name__}: {str(value)[:80]!r}")


def _plain(wanted: type) -> Build:
    def build(value: Any, place: str) -> Any:
        if type(value) is not wanted:
            raise _wrong(value, place, "null" if wanted is type(None) else wanted.__name__)
        return value

    return build


def _float(value: Any, place: str) -> float:
    if type(value) not in (int, float):
        raise _wrong(value, place, "a number")
    try:
        return float(value)
    except OverflowError as error:
        raise _wrong(value, place, "a number of this size") from error


def _from_text(wanted: type, read: Callable[[str], Any]) -> Build:
    def build(value: Any, place: str) -> Any:
        try:
            return read(_plain(str)(value, place))
        except (ValueError, InvalidOperation) as error:
            raise _wrong(value, place, f"a {wanted.__name__}") from error

    return build


def _converted(wanted: type[Enum]) -> Build:
    def build(value: Any, place: str) -> Any:
        try:
            return wanted(value)
        except ValueError as error:
            raise _wrong(value, place, f"a {wanted.__name__}") from error

    return build


def _one_of(values: tuple[Any, ...]) -> Build:
    def build(value: Any, place: str) -> Any:
        if not any(value == each and type(value) is type(each) for each in values):
            raise _wrong(value, place, f"one of {', '.join(map(repr, values))}")
        return value

    return build


def _union(builds: list[Build]) -> Build:
    def build(value: Any, place: str) -> Any:
        problems = []
        for each in builds:
            try:
                return each(value, place)
            except Unreadable as error:
                problems.append(str(error))
        raise Unreadable("; ".join(problems))

    return build


def _list(item: Build) -> Build:
    def build(value: Any, place: str) -> Any:
        return [item(each, f"{place}[{index}]") for index, each in enumerate(_plain(list)(value, place))]

    return build


def _dict(item: Build) -> Build:
    def build(value: Any, place: str) -> Any:
        return {name: item(each, f"{place}.{name}") for name, each in _plain(dict)(value, place).items()}

    return build


def _tuple(arguments: tuple[Any, ...], known: dict[type, Build]) -> Build:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        items = _list(_builder(arguments[0], known))
        return lambda value, place: tuple(items(value, place))
    builds = [_builder(each, known) for each in arguments]

    def build(value: Any, place: str) -> Any:
        values = _plain(list)(value, place)
        if len(values) != len(builds):
            raise _wrong(value, place, f"a list of {len(builds)}")
        pairs = enumerate(zip(builds, values, strict=True))
        return tuple(make(each, f"{place}[{index}]") for index, (make, each) in pairs)

    return build


def _dataclass(wanted: type, known: dict[type, Build]) -> Build:
    """`known`: dataclasses that are being looked at, which may contain themselves."""
    if wanted in known:
        return lambda value, place: known[wanted](value, place)
    builds: dict[str, Build] = {}
    needed: set[str] = set()

    def build(value: Any, place: str) -> Any:
        members = _plain(dict)(value, place)
        if missing := sorted(needed - members.keys()):
            raise Unreadable(f"{place} lacks {', '.join(missing)}")
        given = [name for name in builds if name in members]
        return wanted(**{name: builds[name](members[name], f"{place}.{name}") for name in given})

    known[wanted] = build
    hints = get_type_hints(wanted)
    for field in dataclasses.fields(wanted):
        if not field.init:
            continue
        try:
            builds[field.name] = _builder(hints[field.name], known)
        except TypeError as error:
            raise TypeError(f"{wanted.__name__}.{field.name}: {error}") from None
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            needed.add(field.name)
    return build
