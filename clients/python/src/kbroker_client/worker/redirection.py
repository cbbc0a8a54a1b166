"""Where the apps of a program connect, and how a test sends all of them to another broker."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from ..addresses import addresses
from ..security import PLAINTEXT, Security

_DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
_ENVIRONMENT: Final = "KBROKER_BOOTSTRAP"


class Place(NamedTuple):
    """Addresses of brokers, and how a client logs in there."""

    bootstrap: str | Sequence[str]
    security: Security


_places: Final[list[Place]] = []


@contextmanager
def redirected(bootstrap: str | Sequence[str], security: Security = PLAINTEXT) -> Iterator[None]:
    """Until the end of the block every App of this program that connects does so at this broker,
    whatever address it was given. `App.testing` overrides it."""
    place = Place(bootstrap, security)
    _places.append(place)
    try:
        yield
    finally:
        _places.remove(place)


def redirection() -> Place | None:
    """Of the innermost `redirected`."""
    return _places[-1] if _places else None


def environment_bootstrap() -> str:
    """The address for an App without one. Raises ValueError for a text that is no address."""
    given = os.environ.get(_ENVIRONMENT)
    if not given:
        return _DEFAULT_BOOTSTRAP
    try:
        addresses(given)
    except ValueError as error:
        raise ValueError(f"{_ENVIRONMENT}: {error}") from None
    return given
