"""Log-ins at the admin HTTP endpoint: by the name and the password of a user, as in SASL/PLAIN, or,
as long as the broker has no users, by the token in DATA_DIR/admin-token (storage/admin_token.py).

Passwords are checked by the same code as those of Kafka clients: the same credentials, threads,
failure delay and metrics. A program sends its password with every request, so one that was right is
remembered for a minute, as a keyed hash. Nothing here logs a name, a password or a token.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

import trio

from kbroker.broker.broker import Broker
from kbroker.errors import OperatorError
from kbroker.security.principals import Principal, user
from kbroker.security.sasl import AUTHENTICATE_KEY, HANDSHAKE_KEY, PLAIN, Authenticated
from kbroker.security.sasl_settings import SaslSettings
from kbroker.seldom import Seldom
from kbroker.server.strangers import INTERVAL_S, again, warn_seldom
from kbroker.settings.listeners import ADMIN
from kbroker.storage import admin_token

logger = logging.getLogger(__name__)

TOKEN_OWNER: Final = Principal("Token", admin_token.ADMIN_TOKEN)
"""The principal of clients that have shown the token. It stands for the owner of the data directory
and may do everything, also if there is an authorizer."""
_TOKEN: Final = "admin-token"
"""The mechanism in metrics."""
_REMEMBERED_S: Final = 60.0
_MAX_REMEMBERED: Final = 64


class Proved(NamedTuple):
    """A log-in. `proof`: its reason, which `is_current` compares with today's."""

    principal: Principal
    proof: object


class TooManyLogIns(Exception):
    """The log-in was not checked: the client may try again later."""


class AdminLogIns:
    def __init__(self, broker: Broker) -> None:
        delay_ms: int = broker.config.of_listener(ADMIN, "connection.failed.authentication.delay.ms")
        self._security = broker.security
        self._metrics = broker.metrics.sasl
        self._metrics.offer((_TOKEN,))
        self._log_ins = broker.security.log_ins(
            SaslSettings(mechanisms=(PLAIN,), failure_delay_ms=delay_ms), ADMIN
        )
        self._delay_s = delay_ms / 1000
        self._token = _TokenFile(broker.options.data_dir)
        self._key = secrets.token_bytes(32)
        self._remembered: dict[bytes, tuple[Proved, float]] = {}
        self._seldom = Seldom(INTERVAL_S)

    @property
    def have_users(self) -> bool:
        """Whether clients log in as users. Otherwise the token is valid."""
        return not self._security.credentials.is_empty

    async def by_password(self, name: str, password: str, host: str) -> Proved | None:
        """None, after a delay, if the client at `host` has sent a wrong one. Raises
        TooManyLogIns."""
        if not self.have_users:
            await self._failed(host)
            return None
        key = hmac.digest(self._key, f"{name}\0{password}".encode("utf-8", "surrogateescape"), "sha256")
        found = self._remembered.get(key)
        if found is not None and trio.current_time() < found[1] and await self.is_current(found[0]):
            return found[0]
        self._remembered.pop(key, None)
        proved = Proved(user(name), self._proof_of(name))
        log_in = self._log_ins.begin(host)
        log_in.admit(HANDSHAKE_KEY)
        await log_in.handshake(1, PLAIN)
        log_in.admit(AUTHENTICATE_KEY)
        outcome = await log_in.authenticate(f"\0{name}\0{password}".encode("utf-8", "surrogateescape"))
        if not isinstance(outcome, Authenticated):
            if log_in.was_too_many:
                raise TooManyLogIns
            self._warn(host)
            return None
        if len(self._remembered) >= _MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[key] = proved, trio.current_time() + _REMEMBERED_S
        return proved

    async def by_token(self, token: str, host: str) -> Proved | None:
        """Likewise."""
        known = None if self.have_users else await self._token.digest()
        if known is None or not hmac.compare_digest(known, _digest(token)):
            self._metrics.failed(_TOKEN)
            await self._failed(host)
            return None
        self._metrics.authenticated(_TOKEN, is_renewal=False)
        return Proved(TOKEN_OWNER, known)

    async def is_current(self, proved: Proved) -> bool:
        """Whether the log-in would still succeed: the user has the same password, and was not
        disconnected since; or the token is the same, and there are still no users."""
        if proved.principal == TOKEN_OWNER:
            return not self.have_users and proved.proof == await self._token.digest()
        return proved.proof == self._proof_of(proved.principal.name)

    async def make_token(self) -> None:
        """Have a token to log in with, if there are no users."""
        if not self.have_users:
            await self._token.digest()

    def _proof_of(self, name: str) -> object:
        disconnected = self._security.sessions.disconnected[user(name)]
        return self._security.credentials.for_password(name), disconnected

    async def _failed(self, host: str) -> None:
        self._warn(host)
        await trio.sleep(self._delay_s)

    def _warn(self, host: str) -> None:
        what = f"a log-in of {host} at the admin endpoint failed"
        warn_seldom(self._seldom, logger, host, what, "it is refused", trio.current_time())


class _TokenFile:
    """Reads the token again when its file was replaced, and makes one if there is none."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._known: tuple[admin_token.Stamp, bytes] | None = None
        self._one_at_a_time = trio.CapacityLimiter(1)
        self._seldom = Seldom(INTERVAL_S)

    async def digest(self) -> bytes | None:
        """None: the file cannot be used, which is logged."""
        return await trio.to_thread.run_sync(self._digest, limiter=self._one_at_a_time)

    def _digest(self) -> bytes | None:
        stamp = admin_token.stamp(self._data_dir)
        if self._known is not None and self._known[0] == stamp:
            return self._known[1]
        try:
            digest = _digest(admin_token.ensure(self._data_dir))
        except (OperatorError, OSError) as error:
            if times := self._seldom.times("unusable", monotonic()):
                logger.error("the admin endpoint has no token: %s%s", error, again(times))
            return None
        if stamp is not None and stamp == admin_token.stamp(self._data_dir):
            self._known = stamp, digest
        return digest


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
