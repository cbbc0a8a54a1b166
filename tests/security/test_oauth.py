"""The messages of SASL/OAUTHBEARER, and its sessions."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.errors import ErrorCode
from kbroker.security.exchange import AuthenticationFailed, Found
from kbroker.security.oauth import INVALID_TOKEN, OAUTHBEARER, BearerServer, TokenCheck, first_message
from kbroker.security.oauth_tokens import Bearer
from kbroker.security.principals import user
from kbroker.security.sasl import (
    AUTHENTICATE_KEY,
    HANDSHAKE_KEY,
    Admission,
    Authenticated,
    Continue,
    Refused,
    Sasl,
)

ALICE = Bearer("alice", 5_000)
MALFORMED = (
    "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER"
)


class NoUsers:
    def for_scram(self, name: str, mechanism: object) -> Found:
        raise AssertionError(name)

    def for_password(self, name: str) -> Found:
        raise AssertionError(name)


def begun(max_session_ms: int = 0) -> Sasl:
    sasl = Sasl((OAUTHBEARER,), NoUsers(), lambda: "server", max_session_ms)
    assert sasl.handshake(1, OAUTHBEARER).error_code is ErrorCode.none
    return sasl


@pytest.mark.parametrize(
    "message",
    [
        b"n,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=bearer   a.b.c\x01\x01",
        b"n,a=alice,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01logicalCluster=lkc-1\x01pool=p 2\x01\x01",
        b"n,,\x01host=h\x01auth=Bearer a.b.c\x01\x01",
    ],
)
def test_a_first_message(message: bytes) -> None:
    server = BearerServer()
    assert server.respond(message) == TokenCheck("a.b.c")
    assert server.checked(ALICE) == (b"", "alice", 5_000)


def test_the_message_of_a_client_is_read() -> None:
    assert BearerServer().respond(first_message("a.b.c")) == TokenCheck("a.b.c")
    assert "a.b.c" not in repr(TokenCheck("a.b.c"))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer a\x01",
        b"n,,\x01auth=Bearer a\x01\x01\x01",
        b"n,,auth=Bearer a\x01\x01",
        b"y,,\x01auth=Bearer a\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer a\x01\x01",
        b"n,a=,\x01auth=Bearer a\x01\x01",
        b"n,a==41,\x01auth=Bearer a\x01\x01",
        b"n,,\x01auth=Basic a\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"n,,\x01Auth=Bearer a\x01\x01",
        b"n,,\x01auth=Bearer a\x01x1=2\x01\x01",
        b"n,,\x01auth=Bearer a\x01x=\xc3\xa9\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        pytest.param(b"n,,\x01auth=Bearer a\x01x=" + b"y" * 65_536 + b"\x01\x01", id="too long"),
    ],
)
def test_a_malformed_message_is_refused(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed, match=MALFORMED):
        BearerServer().respond(message)


@given(message=st.binary(max_size=100) | st.text("n,a=\x01uthBer .é", max_size=60).map(str.encode))
def test_no_message_is_more_than_refused(message: bytes) -> None:
    with suppress(AuthenticationFailed):
        assert isinstance(BearerServer().respond(message), TokenCheck)


def test_a_bad_token_is_told_and_then_refused() -> None:
    for answer in (b"\x01", first_message("a.b.d"), b""):
        sasl = begun()
        assert isinstance(sasl.authenticate(first_message("a.b.c"), 0), TokenCheck)
        assert sasl.checked(None, 0) == Continue(INVALID_TOKEN.encode())
        assert sasl.authenticate(answer, 0) == Refused(ErrorCode.sasl_authentication_failed, INVALID_TOKEN)
        assert sasl.admit(AUTHENTICATE_KEY, 0) is Admission.CLOSE


def test_another_authorization_id_is_refused() -> None:
    sasl = begun()
    sasl.authenticate(b"n,a=admin,\x01auth=Bearer a.b.c\x01\x01", 0)
    refused = sasl.checked(ALICE, 0)
    assert isinstance(refused, Refused)
    assert "authorization id" in refused.message
    escaped = BearerServer()
    escaped.respond(b"n,a=a=2Cb=3Dc,\x01auth=Bearer a.b.c\x01\x01")
    assert escaped.checked(Bearer("a,b=c", 1)).user == "a,b=c"


@pytest.mark.parametrize(("max_session_ms", "lifetime_ms"), [(0, 5_000), (1_000, 1_000), (9_000, 5_000)])
def test_a_session_ends_with_its_token(max_session_ms: int, lifetime_ms: int) -> None:
    sasl = begun(max_session_ms)
    sasl.authenticate(first_message("a.b.c"), 100)
    assert sasl.checked(ALICE, 100) == Authenticated(b"", lifetime_ms, is_renewal=False)
    assert sasl.principal == user("alice")
    assert sasl.admit(3, 100 + lifetime_ms) is Admission.SERVE
    assert sasl.admit(3, 101 + lifetime_ms) is Admission.EXPIRED


def test_a_session_is_renewed_by_the_same_principal_only() -> None:
    for name, is_right in (("alice", True), ("bob", False)):
        sasl = begun()
        sasl.authenticate(first_message("a.b.c"), 0)
        sasl.checked(ALICE, 0)
        assert sasl.admit(HANDSHAKE_KEY, 4_000) is Admission.SERVE
        sasl.handshake(1, OAUTHBEARER)
        assert sasl.admit(AUTHENTICATE_KEY, 4_000) is Admission.SERVE
        sasl.authenticate(first_message("d.e.f"), 4_000)
        outcome = sasl.checked(Bearer(name, 7_000), 4_000)
        if is_right:
            assert outcome == Authenticated(b"", 7_000, is_renewal=True)
            assert sasl.admit(3, 11_000) is Admission.SERVE
        else:
            assert isinstance(outcome, Refused)
            assert "Cannot change principals" in outcome.message
