"""Error codes of responses and their rows, as exceptions and as text."""

from __future__ import annotations

from ..errors import ErrorCode, KafkaError


def check(code: ErrorCode, message: str | None = None) -> None:
    """Raises KafkaError unless the code is none."""
    if code is not ErrorCode.none:
        raise KafkaError(code, message)


def reason(code: ErrorCode, message: str | None = None) -> str:
    """Text for a person: the broker's message, or else the code's name."""
    return message or code.name.replace("_", " ")
