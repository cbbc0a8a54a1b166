"""Reads a small document from an https: or file: URL, with limits of size and time.

Redirects are not followed: they could lead to another host, or to another scheme. No proxy is used.
It blocks: call it in a thread. No error has a part of the answer, of the request, or of the URL
behind its host.
"""

from __future__ import annotations

import io
import os
import socket
import ssl
import stat
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import SplitResult, unquote, urlsplit

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_HTTPS_PORT: Final = 443


class FetchFailed(Exception):
    """The text says why, and from where."""


def url_fault(url: str) -> str | None:
    """The fault of a URL, in words that fit behind its name; None: it can be read."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "it is not a URL"
    if not url.isascii() or not url.isprintable() or " " in url:
        return "it is not a URL"
    if parts.scheme == "file":
        is_path = parts.path.startswith("/") and not parts.netloc
        return None if is_path else "write file: URLs as file:///PATH"
    if parts.scheme != "https" or not parts.hostname:
        return "it must begin with https:// or file:///"
    return "it must not have a user name or a password" if "@" in parts.netloc else None


def fetch(
    url: str,
    *,
    limit_bytes: int,
    timeout_s: float,
    form: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """The document, at most `limit_bytes` of it. Raises FetchFailed.

    - `timeout_s`: for the connection, the request and the answer together. The resolver of names
      has limits of its own.
    - `form`: the body of a POST; None: GET

    TLS trusts the authorities of the operating system, or of the variable SSL_CERT_FILE."""
    if (fault := url_fault(url)) is not None:
        raise FetchFailed(fault)
    parts = urlsplit(url)
    if parts.scheme == "file":
        return _read_file(unquote(parts.path), limit_bytes)
    from http.client import HTTPException  # It takes time and memory, and few need it.

    where = f"https://{parts.netloc}"
    try:
        return _request(parts, form, headers or {}, limit_bytes, time.monotonic() + timeout_s)
    except TimeoutError as error:
        raise FetchFailed(f"{where}: no complete answer within {timeout_s:g} s") from error
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", None) or error.reason or "TLS failed"
        raise FetchFailed(f"{where}: {reason}") from error
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise FetchFailed(f"{where}: {reason}") from error
    except FetchFailed as error:
        raise FetchFailed(f"{where}: {error}") from error


def _read_file(path: str, limit_bytes: int) -> bytes:
    try:
        # Not to wait for the writer of a pipe.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(file, "rb") as opened:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise FetchFailed(f"{path}: it is not a regular file")
            content = opened.read(limit_bytes + 1)
    except (OSError, ValueError) as error:
        raise FetchFailed(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > limit_bytes:
        raise FetchFailed(f"{path}: it is larger than {limit_bytes} bytes")
    return content


# -- https:
# --------------------------------------------------------------------------------------------------


class _Stream(io.RawIOBase):
    """A TLS connection of which every step ends before `deadline` (of time.monotonic). A socket's
    own time-out begins again with each byte that arrives."""

    def __init__(self, sock: ssl.SSLSocket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def _in_time(self) -> ssl.SSLSocket:
        self._sock.settimeout(_left(self._deadline))
        return self._sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        return self._in_time().recv_into(buffer)

    def sendall(self, content: bytes) -> None:
        self._in_time().sendall(content)

    def shake_hands(self) -> None:
        self._in_time().do_handshake()

    def makefile(self, mode: str) -> io.BufferedReader:
        """All that an HTTPResponse calls of a socket."""
        return io.BufferedReader(self)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _request(
    parts: SplitResult, form: str | None, headers: Mapping[str, str], limit_bytes: int, deadline: float
) -> bytes:
    assert parts.hostname is not None
    context = ssl.create_default_context()
    address = (parts.hostname, parts.port or _HTTPS_PORT)
    with (
        socket.create_connection(address, timeout=_left(deadline)) as plain,
        context.wrap_socket(plain, server_hostname=parts.hostname, do_handshake_on_connect=False) as secured,
    ):
        stream = _Stream(secured, deadline)
        stream.shake_hands()
        stream.sendall(_message(parts, form, headers))
        return _answer(stream, "GET" if form is None else "POST", limit_bytes)


def _message(parts: SplitResult, form: str | None, headers: Mapping[str, str]) -> bytes:
    """The URL has no line break or space: `url_fault` has looked at it."""
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    body = (form or "").encode()
    sent = {"Host": parts.netloc, "Accept": "application/json", "Connection": "close", **headers}
    if form is not None:
        sent |= {"Content-Type": "application/x-www-form-urlencoded", "Content-Length": str(len(body))}
    lines = [
        f"{'GET' if form is None else 'POST'} {target} HTTP/1.1",
        *(f"{name}: {value}" for name, value in sent.items()),
    ]
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("ascii") + body


def _answer(stream: _Stream, method: str, limit_bytes: int) -> bytes:
    from http.client import OK, HTTPResponse

    with HTTPResponse(cast(Any, stream), method=method) as answer:
        answer.begin()
        if answer.status != OK:
            raise FetchFailed(f"it answers with status {answer.status}, where 200 is expected")
        content = answer.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise FetchFailed(f"the answer is larger than {limit_bytes} bytes")
    return content
