"""Principals: the names under which clients act. Pure values."""

from __future__ import annotations

from typing import Final, NamedTuple

USER: Final = "User"
"""The only type that authentication gives. ACLs may name others."""


class Principal(NamedTuple):
    """`str()` is Kafka's form, such as `User:alice`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""A client that has not authenticated, on a listener that does not require it."""


def user(name: str) -> Principal:
    return Principal(USER, name)


def parse_principal(text: str) -> Principal:
    """The reverse of `str()`; the name may contain colons. Raises ValueError with Kafka's words."""
    kind, colon, name = text.partition(":")
    if not colon:
        raise ValueError(
            f"Could not parse principal from `{text}` (no colon is present separating the principal type "
            "from the principal name)"
        )
    return Principal(kind, name)
