"""The bearer token of a client: from its issuer for a secret (OAuth 2.0, client credentials), or
from a file that another program keeps current.

It blocks for a bounded time. No error has a token or a secret.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote_plus, urlencode

from kbroker.client.fetching import FetchFailed, fetch

_MAX_BYTES: Final = 65_536
_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class TokenSource:
    """`url`: https: of the issuer's token endpoint, or file: of a token. The rest is for the
    former."""

    url: str
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""

    @property
    def is_file(self) -> bool:
        return self.url.startswith("file:")


def fetch_token(source: TokenSource) -> str:
    """A token. Raises FetchFailed."""
    if source.is_file:
        found = _text(fetch(source.url, limit_bytes=_MAX_BYTES, timeout_s=_TIMEOUT_S)).strip()
    else:
        found = _granted(source)
    if not found or not found.isascii() or not found.isprintable() or " " in found:
        raise FetchFailed("there is no token in it")
    return found


def _granted(source: TokenSource) -> str:
    form = {"grant_type": "client_credentials", **({"scope": source.scope} if source.scope else {})}
    # RFC 6749, 2.3.1: both are encoded as in a form first.
    pair = f"{quote_plus(source.client_id)}:{quote_plus(source.client_secret)}"
    basic = base64.b64encode(pair.encode()).decode()
    answer = fetch(
        source.url,
        limit_bytes=_MAX_BYTES,
        timeout_s=_TIMEOUT_S,
        form=urlencode(form),
        headers={"Authorization": f"Basic {basic}"},
    )
    try:
        found = json.loads(_text(answer))["access_token"]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    return found if isinstance(found, str) else ""


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return ""
