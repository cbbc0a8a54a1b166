"""JSON of strangers, read strictly: an object, in which no name comes twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NoReturn


def read_object(text: bytes | str) -> dict[str, Any]:
    """Raises ValueError, without any part of the text."""
    try:
        found = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON, or a name comes twice") from None
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError("not a number")
