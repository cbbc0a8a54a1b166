"""Requests to the HTTP endpoint of a broker (`kbroker start --admin`), with a log-in and TLS.

A password or a token is sent only over TLS or to this machine, since others could read it on the
way. It is sent at once, so that a broker that needs it gets one request only.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import ssl
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from kbroker.client.security import NO_LOGIN, AdminLogin, Tls
from kbroker.client.tls import context_of, not_trusted, said
from kbroker.client.unreachable import BrokerUnreachable, NotAuthenticated
from kbroker.errors import ErrorCode, KafkaError

_TIMEOUT_S: Final = 30.0
_HOW: Final = (
    "give --command-config with sasl.username and sasl.password of a user, or with kbroker.admin.token"
)


@dataclass(frozen=True, slots=True)
class AdminEndpoint:
    """`tls`: None: plain HTTP. Printed as a URL."""

    host: str
    port: int
    tls: Tls | None = None
    login: AdminLogin = NO_LOGIN

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.tls is None else 'https'}://{host}:{self.port}"

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at a path. Raises BrokerUnreachable, NotAuthenticated if the log-in is
        missing or wrong, and KafkaError with the broker's words for any other refusal."""
        is_safe = self.tls is not None or _is_this_machine(self.host)
        tries = list(_headers(self.login)) if is_safe else []
        for headers in tries or [{}]:
            status, document = self._ask(path, headers)
            if status != http.HTTPStatus.UNAUTHORIZED:
                break
        words = str(document.get("error", f"{self} answered {status}"))
        if status == http.HTTPStatus.UNAUTHORIZED:
            if not is_safe and any(_headers(self.login)):
                words = "it needs a log-in, which others could read on the way: use --admin https://..."
            elif not tries:
                words = f"{words}; {_HOW}"
            raise NotAuthenticated(f"{self}: {words}")
        if status == http.HTTPStatus.FORBIDDEN:
            raise KafkaError(ErrorCode.cluster_authorization_failed, words)
        if status != http.HTTPStatus.OK:
            raise KafkaError(ErrorCode.invalid_request, words)
        return document

    def _ask(self, path: str, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
        with closing(self._connection()) as connection:
            try:
                connection.request("GET", path, headers=headers)
                answer = connection.getresponse()
                document = json.loads(answer.read())
                if not isinstance(document, dict):
                    raise ValueError("no object")
            except ssl.SSLCertVerificationError as error:
                raise BrokerUnreachable(not_trusted(str(self), error)) from error
            except (http.client.HTTPException, ValueError) as error:
                raise BrokerUnreachable(
                    f"{self} does not answer as a broker's --admin endpoint does; is it the Kafka port? Or "
                    f"does it speak {'http' if self.tls else 'https'}?"
                ) from error
            except ssl.SSLError as error:
                why = said(str(self), error, "is it http?")
                raise BrokerUnreachable(f"TLS with {self} failed: {why}") from error
            except OSError as error:
                reason = error.strerror or str(error)
                raise BrokerUnreachable(
                    f"cannot connect to {self}: {reason}; was the broker started with --admin?"
                ) from error
        return answer.status, document

    def _connection(self) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=_TIMEOUT_S)
        context = context_of(self.tls)
        return http.client.HTTPSConnection(self.host, self.port, timeout=_TIMEOUT_S, context=context)


def _headers(login: AdminLogin) -> Iterator[dict[str, str]]:
    """One for each way to log in, the likely one first."""
    if login.user is not None:
        text = base64.b64encode(":".join(login.user).encode()).decode()
        yield {"Authorization": f"Basic {text}"}
    if login.token is not None:
        yield {"Authorization": f"Bearer {login.token}"}


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
