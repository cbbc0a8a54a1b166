"""Finds the error codes in a response, at any depth, so that refusals are counted without the
handler's help.

The fields of a schema that are or contain error codes are determined once per schema. The hot
answers have no entity; they list their codes themselves (`Raw.errors`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from typing import TypeAlias, get_args, get_type_hints

from kio.static.protocol import Entity

Walk: TypeAlias = Callable[[object], Iterator[int]]


def error_codes(entity: Entity) -> list[int]:
    """Every error code of the entity except NONE, one for each row, in order."""
    walk = _walk(type(entity))
    return [] if walk is None else [code for code in walk(entity) if code]


@cache
def _walk(schema: type[Entity]) -> Walk | None:
    """None: the schema has no error code."""
    hints = get_type_hints(schema)
    codes = [field.name for field in fields(schema) if field.metadata.get("kafka_type") == "error_code"]
    nested = [
        (field.name, walk) for field in fields(schema) if (walk := _nested(hints[field.name])) is not None
    ]
    if not codes and not nested:
        return None

    def walk_rows(entity: object) -> Iterator[int]:
        for name in codes:
            yield int(getattr(entity, name))
        for name, inner in nested:
            value = getattr(entity, name)
            for row in value if isinstance(value, tuple) else (value,):
                if row is not None:
                    yield from inner(row)

    return walk_rows


def _nested(hint: object) -> Walk | None:
    if isinstance(hint, type) and hasattr(hint, "__flexible__"):
        return _walk(hint)
    return next((walk for each in get_args(hint) if (walk := _nested(each)) is not None), None)
