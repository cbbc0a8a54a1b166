"""The log-in of one connection: carries out what the pure `Sasl` decides.

Refusals are answered late, by `failure_delay_s`, so that a client cannot guess fast on one
connection. Other connections do not wait for that. After a refusal (`refusal` is set) the server
must close the connection.
"""

from __future__ import annotations

import logging
import secrets
from typing import Final

import trio

from kbroker.broker.commits.deadlines import now_ms
from kbroker.broker.security.derivations import Derivations, TooManyDerivations
from kbroker.broker.security.token_keys import TokenKeys
from kbroker.errors import ErrorCode
from kbroker.metrics import SaslMetrics
from kbroker.security.exchange import Derivation
from kbroker.security.oauth import TokenCheck
from kbroker.security.oauth_tokens import TokenRefused
from kbroker.security.principals import Principal
from kbroker.security.sasl import Admission, Authenticated, Handshake, Outcome, Refused, Sasl, SaslStage
from kbroker.security.sasl_settings import SaslSettings

logger = logging.getLogger(__name__)

_NONCE_BYTES: Final = 24


def new_nonce() -> str:
    return secrets.token_urlsafe(_NONCE_BYTES)


class LogIn:
    """`host`: the address of the client."""

    def __init__(
        self,
        sasl: Sasl,
        derivations: Derivations,
        metrics: SaslMetrics,
        settings: SaslSettings,
        host: str,
        token_keys: TokenKeys | None = None,
    ) -> None:
        self._host = host
        self._sasl = sasl
        self._derivations = derivations
        self._metrics = metrics
        self._token_keys = token_keys
        self._token_fault = ""
        self.settings = settings
        self.was_too_many = False
        """It was refused without a look at the password."""
        self.refusal: str | None = None
        """Why the connection must be closed, for the log: without names and passwords."""

    @property
    def is_complete(self) -> bool:
        """Requests of all kinds may come. Not during a re-authentication."""
        return self._sasl.stage is SaslStage.READY

    @property
    def takes_raw_tokens(self) -> bool:
        return self._sasl.takes_raw_tokens

    @property
    def principal(self) -> Principal | None:
        return self._sasl.principal

    def admit(self, api_key: int) -> Admission:
        """Call it for every request, in order, before it is served."""
        admission = self._sasl.admit(api_key, now_ms())
        if admission is Admission.EXPIRED:
            self._metrics.expired += 1
            self.refusal = "its session is over, and it did not authenticate again"
        elif admission is not Admission.SERVE:
            self.refusal = f"it sent a request with API key {api_key} during its log-in"
        return admission

    def api_versions_answered(self) -> None:
        self._sasl.api_versions_answered()

    async def handshake(self, version: int, mechanism: str) -> Handshake:
        answer = self._sasl.handshake(version, mechanism)
        if self._sasl.stage is SaslStage.FAILED:
            await self._fail("it asked for a SASL mechanism that is not enabled")
        return answer

    async def authenticate(self, token: bytes) -> Outcome:
        if len(token) > self.settings.max_receive_bytes:
            token = b""  # At a re-authentication, where frames may be large. No mechanism takes it.
        step = self._sasl.authenticate(token, now_ms())
        if isinstance(step, Derivation):
            step = await self._derived(step)
        elif isinstance(step, TokenCheck):
            step = await self._checked(step)
        if isinstance(step, Authenticated):
            self._metrics.authenticated(self._sasl.mechanism or "", is_renewal=step.is_renewal)
            logger.debug("%s authenticated with %s", self._sasl.principal, self._sasl.mechanism)
        elif isinstance(step, Refused) and step.error_code is ErrorCode.sasl_authentication_failed:
            what = "came while too many others were checked" if self.was_too_many else "failed"
            await self._fail(f"its log-in with {self._sasl.mechanism} {what}{self._token_fault}")
        return step

    async def _derived(self, wanted: Derivation) -> Outcome:
        try:
            salted = await self._derivations.derive(wanted, self._host)
        except TooManyDerivations:
            self.was_too_many = True
            return Refused(ErrorCode.sasl_authentication_failed, "Too many log-ins at this time")
        return self._sasl.derived(salted, now_ms())

    async def _checked(self, wanted: TokenCheck) -> Outcome:
        assert self._token_keys is not None
        try:
            bearer = await self._token_keys.bearer_of(wanted.token, self._host)
        except TokenRefused as refused:
            self._token_fault = f": {refused}"
            bearer = None
        return self._sasl.checked(bearer, now_ms())

    async def _fail(self, reason: str) -> None:
        self._metrics.failed(self._sasl.mechanism or "none")
        self.refusal = reason
        await self.delay()

    async def delay(self) -> None:
        await trio.sleep(self.settings.failure_delay_ms / 1000)
