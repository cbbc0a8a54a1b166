"""What the error code of an answer, or of a row of one, means to who asked."""

from __future__ import annotations

from kbroker.errors import ErrorCode, KafkaError


def check(code: ErrorCode, message: str | None = None) -> None:
    """Raises KafkaError unless the code is none."""
    if code is not ErrorCode.none:
        raise KafkaError(code, message)


def reason(code: ErrorCode, message: str | None = None) -> str:
    """For a person: the broker's own words, or else the code's name."""
    return message or code.name.replace("_", " ")
