"""The names that a topic may have, and the message for an illegal one, for broker and clients
alike."""

from __future__ import annotations

import re

MAX_NAME_LENGTH = 249
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def is_legal(name: str) -> bool:
    """As Kafka decides (Topic.validate)."""
    return (
        name not in (".", "..") and len(name) <= MAX_NAME_LENGTH and _LEGAL_NAME.fullmatch(name) is not None
    )


def is_legal_prefix(name: str) -> bool:
    """Whether a legal name can begin so."""
    return is_legal(name) or name in (".", "..")


def why_illegal(name: str) -> str:
    return (
        f"Topic name is invalid: {name!r} is not 1 to {MAX_NAME_LENGTH} characters out of ASCII "
        "alphanumerics, '.', '_' and '-'"
    )
