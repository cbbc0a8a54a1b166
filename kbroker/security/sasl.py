"""The states of one SASL connection: which request may come next, and what it is answered.

    INITIAL ──ApiVersions──▶ HANDSHAKE ──SaslHandshake──▶ TOKENS ──the last token──▶ READY
       └─────────────────SaslHandshake───────────────────▶                             │
                             ▲                                                         │
                             └────SaslHandshake, if the session has a lifetime─────────┘

After SaslHandshake v0 the tokens come without a request around them (`takes_raw_tokens`). A session
may have a lifetime: connections.max.reauth.ms, or that of a bearer token if it is shorter. It is
renewed on the living connection (KIP-368), by the same mechanism and the same principal. Clients
that send raw tokens, or SaslAuthenticate v0, do not learn the lifetime. Their sessions end too, or
a client could choose a version to escape it.

Whatever is refused ends in FAILED: the connection must then be closed, after the answer if there is
one. Times are milliseconds of any monotonic clock, given as arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

from kbroker.errors import ErrorCode
from kbroker.formats.security_values import ScramMechanism
from kbroker.security.exchange import AuthenticationFailed, Derivation, Exchange, Reply, UserLookup
from kbroker.security.oauth import OAUTHBEARER, BearerServer, TokenCheck
from kbroker.security.oauth_tokens import Bearer
from kbroker.security.plain import PlainServer
from kbroker.security.principals import Principal, user
from kbroker.security.scram import DIGESTS, ScramServer

HANDSHAKE_KEY: Final = 17
API_VERSIONS_KEY: Final = 18
AUTHENTICATE_KEY: Final = 36
PLAIN: Final = "PLAIN"
SCRAM: Final[Mapping[str, ScramMechanism]] = {
    "SCRAM-SHA-256": ScramMechanism.SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SHA_512,
}
MECHANISMS: Final = (PLAIN, *SCRAM)
"""Those with a password. OAUTHBEARER has tokens."""
DISCONNECT: Final = 127
"""A SCRAM mechanism of kbroker alone: its deletion ends the connections of the user. Kafka refuses
it with 33 like any unknown one, so clients need no query of what the broker can do."""
LATE_AUTHENTICATE: Final = "SaslAuthenticate request received after successful authentication"
_LEAST_BETWEEN_RENEWALS_MS: Final = 1000


class SaslStage(Enum):
    INITIAL = auto()
    HANDSHAKE = auto()
    TOKENS = auto()
    READY = auto()
    FAILED = auto()


class Admission(Enum):
    """What becomes of a request.

    - SERVE: its handler answers it
    - ILLEGAL: it is answered with ILLEGAL_SASL_STATE, and the connection is closed
    - CLOSE: the connection is closed without an answer
    - EXPIRED: likewise, since the session's lifetime is over"""

    SERVE = auto()
    ILLEGAL = auto()
    CLOSE = auto()
    EXPIRED = auto()


class Handshake(NamedTuple):
    """The answer to a SaslHandshake."""

    error_code: ErrorCode
    mechanisms: Sequence[str]


class Continue(NamedTuple):
    """The server's next token."""

    token: bytes


class Authenticated(NamedTuple):
    """`lifetime_ms`: of the session; 0: no end."""

    token: bytes
    lifetime_ms: int
    is_renewal: bool


class Refused(NamedTuple):
    """`message`: for the client."""

    error_code: ErrorCode
    message: str


Outcome: TypeAlias = Continue | Authenticated | Refused
Step: TypeAlias = Outcome | Derivation | TokenCheck


class Sasl:
    """- `mechanisms`: those that the listener offers
    - `new_nonce`: printable ASCII without commas, never the same
    - `max_session_ms`: 0: sessions have no end"""

    def __init__(
        self, mechanisms: Sequence[str], users: UserLookup, new_nonce: Callable[[], str], max_session_ms: int
    ) -> None:
        self._mechanisms = mechanisms
        self._users = users
        self._new_nonce = new_nonce
        self._max_session_ms = max_session_ms
        self.stage = SaslStage.INITIAL
        self.takes_raw_tokens = False
        self.mechanism: str | None = None
        """Of the session, or of the log-in under way."""
        self.principal: Principal | None = None
        """Set by the first authentication; it never changes."""
        self._exchange: Exchange | BearerServer | None = None
        self._requested = ""
        self._ends_ms = math.inf
        self._renewed_ms = -math.inf

    # -- requests
    # ----------------------------------------------------------------------------------------------

    def admit(self, api_key: int, now_ms: float) -> Admission:
        """Call it for every request, in order, before it is served."""
        match self.stage:
            case SaslStage.READY:
                return self._admit_to_session(api_key, now_ms)
            case SaslStage.INITIAL if api_key in (API_VERSIONS_KEY, HANDSHAKE_KEY):
                return Admission.SERVE
            case SaslStage.HANDSHAKE if api_key == HANDSHAKE_KEY:
                return Admission.SERVE
            case SaslStage.TOKENS if not self.takes_raw_tokens:
                if api_key == AUTHENTICATE_KEY:
                    return Admission.SERVE
                self.stage = SaslStage.FAILED
                return Admission.ILLEGAL
        self.stage = SaslStage.FAILED
        return Admission.CLOSE

    def _admit_to_session(self, api_key: int, now_ms: float) -> Admission:
        if api_key == HANDSHAKE_KEY and self._may_renew(now_ms):
            self._renewed_ms = now_ms
            self.stage = SaslStage.HANDSHAKE
        elif now_ms > self._ends_ms:
            self.stage = SaslStage.FAILED
            return Admission.EXPIRED
        return Admission.SERVE

    def _may_renew(self, now_ms: float) -> bool:
        is_too_early = now_ms - self._renewed_ms < _LEAST_BETWEEN_RENEWALS_MS
        return self._ends_ms != math.inf and not is_too_early

    def api_versions_answered(self) -> None:
        """An admitted ApiVersions was answered without an error."""
        if self.stage is SaslStage.INITIAL:
            self.stage = SaslStage.HANDSHAKE

    def handshake(self, version: int, mechanism: str) -> Handshake:
        """An admitted SaslHandshake."""
        if self.stage is SaslStage.READY:
            return Handshake(ErrorCode.illegal_sasl_state, ())
        is_renewal = self.principal is not None
        if mechanism not in self._mechanisms:
            self.stage = SaslStage.FAILED
            return Handshake(ErrorCode.unsupported_sasl_mechanism, self._mechanisms)
        if is_renewal and version == 0:  # Its tokens would look like requests.
            self.stage = SaslStage.FAILED
            return Handshake(ErrorCode.illegal_sasl_state, ())
        self._requested = mechanism
        self.mechanism = self.mechanism or mechanism
        self.takes_raw_tokens = version == 0
        self._exchange = self._begin(mechanism)
        self.stage = SaslStage.TOKENS
        return Handshake(ErrorCode.none, self._mechanisms)

    def _begin(self, mechanism: str) -> Exchange | BearerServer:
        if mechanism == OAUTHBEARER:
            return BearerServer()
        if mechanism == PLAIN:
            return PlainServer(self._users.for_password)
        kind = SCRAM[mechanism]
        refusal = (
            "Authentication failed during authentication due to invalid credentials with SASL mechanism "
            f"{mechanism}"
        )
        return ScramServer(
            DIGESTS[kind], lambda name: self._users.for_scram(name, kind), self._new_nonce(), refusal
        )

    # -- tokens
    # ----------------------------------------------------------------------------------------------

    def authenticate(self, token: bytes, now_ms: float) -> Step:
        """The client's next token, from an admitted SaslAuthenticate or raw. After a Derivation
        call `derived` before anything else, and after a TokenCheck `checked`."""
        if self.stage is SaslStage.READY:
            return Refused(ErrorCode.illegal_sasl_state, LATE_AUTHENTICATE)
        assert self._exchange is not None
        if self._requested != self.mechanism:
            return self._refuse(
                f"SASL mechanism '{self._requested}' requested by client is not supported for "
                f"re-authentication of mechanism '{self.mechanism}'"
            )
        try:
            reply = self._exchange.respond(token)
        except AuthenticationFailed as failure:
            return self._refuse(str(failure))
        return self._replied(reply, now_ms) if isinstance(reply, Reply) else reply

    def derived(self, salted_password: bytes, now_ms: float) -> Outcome:
        """The result of a Derivation."""
        assert self._exchange is not None
        assert not isinstance(self._exchange, BearerServer)
        try:
            reply = self._exchange.derived(salted_password)
        except AuthenticationFailed as failure:
            return self._refuse(str(failure))
        return self._replied(reply, now_ms)

    def checked(self, bearer: Bearer | None, now_ms: float) -> Outcome:
        """The result of a TokenCheck; None: the token is not good."""
        assert isinstance(self._exchange, BearerServer)
        try:
            reply = self._exchange.checked(bearer)
        except AuthenticationFailed as failure:
            return self._refuse(str(failure))
        return self._replied(reply, now_ms)

    def _replied(self, reply: Reply, now_ms: float) -> Outcome:
        if reply.user is None:
            return Continue(reply.token)
        principal = user(reply.user)
        if self.principal not in (None, principal):
            return self._refuse(
                f"Cannot change principals during re-authentication from {_dotted(self.principal)}: "
                f"{_dotted(principal)}"
            )
        is_renewal = self.principal is not None
        self.principal = principal
        self._exchange = None
        self.takes_raw_tokens = False
        self.stage = SaslStage.READY
        limits_ms = [self._max_session_ms] if self._max_session_ms > 0 else []
        limits_ms += [] if reply.lifetime_ms is None else [reply.lifetime_ms]
        lifetime_ms = min(limits_ms, default=0)
        self._ends_ms = now_ms + lifetime_ms if limits_ms else math.inf
        return Authenticated(reply.token, lifetime_ms, is_renewal)

    def _refuse(self, message: str) -> Refused:
        self.stage = SaslStage.FAILED
        self.takes_raw_tokens = False
        self._exchange = None
        return Refused(ErrorCode.sasl_authentication_failed, message)


def _dotted(principal: Principal | None) -> str:
    assert principal is not None
    return f"{principal.kind}.{principal.name}"
