"""The client of a request to the admin HTTP endpoint, and whether it may do what it wants.

A client is known by an Authorization header (Bearer: the token; Basic: a user's password), by the
cookie of a log-in in a browser, or by its certificate. Every other client is User:ANONYMOUS.

    rights      with an authorizer, the client's principal needs those of the table (kbroker.api);
                without one, every client that is known may do everything
    open        numbers and names are also for unknown clients: with an authorizer if ANONYMOUS has
                the rights, without one if the client is on the same machine
    changes     (POST) never come from a page of another site: what the browser says about the
                origin must be this endpoint, and a session's requests must repeat its CSRF value

The browser has a random value in a cookie, and this process only its hash, in memory: a restart of
the broker ends all sessions.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Final, NamedTuple
from urllib.parse import quote

import trio

from kbroker.api import NEEDS, AdminAction
from kbroker.api.authorization import refusal
from kbroker.broker.broker import Broker
from kbroker.errors import KafkaError
from kbroker.security.acls import CLUSTER_NAME, Operation, ResourceType
from kbroker.security.principals import ANONYMOUS, Principal
from kbroker.security.rights import Rights
from kbroker.server.admin_log_ins import TOKEN_OWNER, AdminLogIns, Proved, TooManyLogIns
from kbroker.server.admin_requests import HttpRefusal, HttpRequest
from kbroker.server.tls import ListenerTls

CSRF_HEADER: Final = "x-csrf-token"
_HOW_USERS: Final = "log in with the name and the password of a user (`kbroker users`)"
_HOW_TOKEN: Final = (
    "log in with the token in the file admin-token of the data directory (`kbroker admin token --show`)"
)


LIFETIME_S: Final = 8 * 3600
MAX_SESSIONS: Final = 1000
_VALUE_BYTES: Final = 32


class Session(NamedTuple):
    """- `proof`: what the client has proved; see AdminLogIns.is_current
    - `csrf`: a value that pages of this endpoint repeat in each change, and other pages do not know
    - `ends_s`: in trio's time"""

    principal: Principal
    proof: object
    csrf: str
    ends_s: float


class AdminSessions:
    """Browsers that have logged in. A session ends by time, by logging out, and when the reason for
    it is gone: the user's password, or the token."""

    def __init__(self) -> None:
        self._by_hash: dict[bytes, Session] = {}
        """The oldest one first."""

    def __len__(self) -> int:
        return len(self._by_hash)

    def begin(self, principal: Principal, proof: object, now_s: float) -> str:
        """Returns the value of the cookie."""
        for key in [key for key, each in self._by_hash.items() if each.ends_s <= now_s]:
            del self._by_hash[key]
        if len(self._by_hash) >= MAX_SESSIONS:
            del self._by_hash[next(iter(self._by_hash))]
        value = secrets.token_urlsafe(_VALUE_BYTES)
        csrf = secrets.token_urlsafe(_VALUE_BYTES)
        self._by_hash[_hash(value)] = Session(principal, proof, csrf, now_s + LIFETIME_S)
        return value

    def get(self, value: str, now_s: float) -> Session | None:
        session = self._by_hash.get(_hash(value))
        return session if session is not None and now_s < session.ends_s else None

    def end(self, value: str) -> None:
        """Nothing happens if there is none."""
        self._by_hash.pop(_hash(value), None)


def _hash(value: str) -> bytes:
    return hashlib.sha256(value.encode("utf-8", "replace")).digest()


class AdminCaller(NamedTuple):
    """- `is_known`: it has logged in
    - `rights`: None: it may do everything, if it is known
    - `session`: of a browser"""

    principal: Principal
    is_known: bool
    rights: Rights | None
    session: Session | None = None

    def sees(self, kind: ResourceType, name: str) -> bool:
        """Whether a name that the request does not have may be in the answer."""
        return self.rights is None or self.rights.has(Operation.DESCRIBE, kind, name)


class AdminAccess:
    def __init__(self, broker: Broker, port: int, tls: ListenerTls | None) -> None:
        self._acls = broker.acls
        self._tls = tls
        self.log_ins = AdminLogIns(broker)
        self.sessions = AdminSessions()
        # Cookies are for a host, not for a port: two brokers on one host need two names.
        prefix = "__Host-" if tls is not None else ""
        self._cookie = f"{prefix}kbroker-admin-{port}"

    # -- the client
    # ----------------------------------------------------------------------------------------------

    async def caller_of(self, request: HttpRequest) -> AdminCaller:
        """Raises HttpRefusal if what it has sent to prove its identity is wrong."""
        if (sent := request.headers.get("authorization")) is not None:
            return self._caller(request, await self._authorized(sent, request))
        if (session := self._session_of(request)) is not None:
            if await self.log_ins.is_current(Proved(session.principal, session.proof)):
                return self._caller(request, session.principal)._replace(session=session)
            self.end_session(request)
        if request.peer.certificate is not None and self._tls is not None:
            named = self._tls.principal_of(request.peer.certificate)
            if named is None:
                raise HttpRefusal(403, "no rule of ssl.principal.mapping.rules matches your certificate")
            if named != ANONYMOUS:
                return self._caller(request, named)
        return AdminCaller(
            ANONYMOUS, is_known=False, rights=self._acls.rights_of(ANONYMOUS, request.peer.host)
        )

    def _caller(self, request: HttpRequest, principal: Principal) -> AdminCaller:
        rights = None if principal == TOKEN_OWNER else self._acls.rights_of(principal, request.peer.host)
        return AdminCaller(principal, is_known=True, rights=rights)

    async def _authorized(self, sent: str, request: HttpRequest) -> Principal:
        scheme, _, value = sent.partition(" ")
        if scheme.lower() == "bearer":
            proved = await self.log_ins.by_token(value.strip(), request.peer.host)
        elif scheme.lower() == "basic":
            name, password = _basic(value)
            proved = await self.password_log_in(name, password, request)
        else:
            raise self._unknown(request, "send Authorization: Basic or Bearer")
        if proved is None:
            raise self._unknown(request, f"the log-in failed: {self.how()}", closes=True)
        return proved.principal

    async def password_log_in(self, name: str, password: str, request: HttpRequest) -> Proved | None:
        """None if it is wrong. Raises HttpRefusal if it cannot be checked now."""
        try:
            return await self.log_ins.by_password(name, password, request.peer.host)
        except TooManyLogIns:
            raise HttpRefusal(503, "too many log-ins at this time", ("retry-after", "1")) from None

    def how(self) -> str:
        return _HOW_USERS if self.log_ins.have_users else _HOW_TOKEN

    def _unknown(self, request: HttpRequest, message: str, *, closes: bool = False) -> HttpRefusal:
        """401 for programs. A browser that gets the challenge would ask for a password by itself,
        and keep it until it is closed: pages have the form instead."""
        is_browser = "sec-fetch-mode" in request.headers
        scheme = "Basic" if self.log_ins.have_users and not is_browser else "Bearer"
        challenge = f'{scheme} realm="kbroker"' + (', charset="UTF-8"' if scheme == "Basic" else "")
        return HttpRefusal(401, message, ("www-authenticate", challenge), closes=closes)

    # -- its rights
    # ----------------------------------------------------------------------------------------------

    async def check(
        self, action: AdminAction, names: Mapping[str, str], request: HttpRequest, caller: AdminCaller
    ) -> None:
        """`names`: of resources, by their kind in capitals. Raises HttpRefusal."""
        needs = NEEDS[action.name]
        if request.method == "POST":
            _check_origin(request)
        if not needs:
            return
        is_open = action.is_open and (self._acls.has_authorizer or request.peer.is_local)
        try:
            if caller.is_known or is_open:
                for operation, kind in needs:
                    name = CLUSTER_NAME if kind is ResourceType.CLUSTER else names.get(kind.name)
                    if name is not None:
                        _check_right(caller, operation, kind, name)
                return
        except KafkaError as denied:
            if caller.is_known:
                raise HttpRefusal(403, denied.message or "denied") from None
        await self.log_ins.make_token()
        if request.wants_html and request.method == "GET":
            place = quote(request.target, safe="")
            raise HttpRefusal(303, self.how(), ("location", f"/log-in?next={place}"))
        raise self._unknown(request, self.how())

    def check_csrf(self, request: HttpRequest, caller: AdminCaller, sent: str | None = None) -> None:
        """Of a change by a session. `sent`: of a form. Raises HttpRefusal."""
        found = sent if sent is not None else request.headers.get(CSRF_HEADER, "")
        if caller.session is not None and not _same(found, caller.session.csrf):
            raise HttpRefusal(403, f"the session's value is missing in the header {CSRF_HEADER}")

    # -- sessions of browsers
    # ----------------------------------------------------------------------------------------------

    def begin_session(self, proved: Proved) -> tuple[str, str]:
        """Returns the header with the cookie."""
        value = self.sessions.begin(proved.principal, proved.proof, trio.current_time())
        return "set-cookie", self._cookie_header(value, LIFETIME_S)

    def end_session(self, request: HttpRequest) -> tuple[str, str]:
        """Likewise, with a cookie that is over."""
        self.sessions.end(self._cookie_of(request) or "")
        return "set-cookie", self._cookie_header("", 0)

    def _session_of(self, request: HttpRequest) -> Session | None:
        value = self._cookie_of(request)
        return None if value is None else self.sessions.get(value, trio.current_time())

    def _cookie_of(self, request: HttpRequest) -> str | None:
        try:
            found = SimpleCookie(request.headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return None
        return None if found is None else found.value

    def _cookie_header(self, value: str, lifetime_s: int) -> str:
        secure = "; Secure" if self._tls is not None else ""
        return f"{self._cookie}={value}; Path=/; Max-Age={lifetime_s}; HttpOnly; SameSite=Strict{secure}"


def _check_right(caller: AdminCaller, operation: Operation, kind: ResourceType, name: str) -> None:
    if caller.rights is not None and not caller.rights.allows(operation, kind, name):
        raise refusal(kind)


def _check_origin(request: HttpRequest) -> None:
    """Programs say nothing about an origin. Browsers do with each change. Raises HttpRefusal."""
    headers = request.headers
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    is_foreign = origin is not None and origin.lower().partition("://")[2] != headers.get("host", "").lower()
    if is_foreign or site not in (None, "same-origin", "none"):
        raise HttpRefusal(403, "a page of another site has sent this request")


def _basic(value: str) -> tuple[str, str]:
    """Empty ones for a header that cannot be read, which no user has."""
    try:
        name, _, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except ValueError:
        return "", ""
    return name, password


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())
