"""The states of a SASL connection: Kafka's answers in each, and a model that walks at random."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.errors import ErrorCode
from kbroker.formats.security_values import ScramCredential, ScramMechanism
from kbroker.security.exchange import Derivation, Found
from kbroker.security.principals import user
from kbroker.security.sasl import (
    API_VERSIONS_KEY,
    AUTHENTICATE_KEY,
    HANDSHAKE_KEY,
    LATE_AUTHENTICATE,
    MECHANISMS,
    SCRAM,
    Admission,
    Authenticated,
    Continue,
    Refused,
    Sasl,
    SaslStage,
    Step,
)
from kbroker.security.scram import DIGESTS, ScramClient, new_credential, salt_password

METADATA = 3
PASSWORDS = {"alice": "secret of alice", "bob": "secret of bob"}
CREDENTIALS = {
    (name, mechanism): new_credential(password, b"salt", 4096, mechanism)
    for name, password in PASSWORDS.items()
    for mechanism in ScramMechanism
}
NOBODY = ScramCredential(b"salt", 4096, bytes(32), bytes(32))


class Users:
    def for_scram(self, name: str, mechanism: ScramMechanism) -> Found:
        found = CREDENTIALS.get((name, mechanism))
        return Found(mechanism, found or NOBODY, found is not None)

    def for_password(self, name: str) -> Found:
        return self.for_scram(name, ScramMechanism.SHA_256)


def connection(max_session_ms: int = 0) -> Sasl:
    return Sasl(MECHANISMS, Users(), lambda: "server", max_session_ms)


def plain(sasl: Sasl, name: str, password: str | None = None, now_ms: float = 0) -> Step:
    token = f"\0{name}\0{PASSWORDS[name] if password is None else password}".encode()
    step = sasl.authenticate(token, now_ms)
    if isinstance(step, Derivation):
        return sasl.derived(salt_password(step.password, step.salt, step.iterations, step.digest), now_ms)
    return step


def scram(sasl: Sasl, name: str, mechanism: ScramMechanism, now_ms: float = 0) -> Step:
    client = ScramClient(DIGESTS[mechanism], name, PASSWORDS.get(name, "?"), "client")
    step = sasl.authenticate(client.first(), now_ms)
    if isinstance(step, Continue):
        return sasl.authenticate(client.final(step.token), now_ms)
    return step


def log_in(sasl: Sasl, mechanism: str = "PLAIN", name: str = "alice", now_ms: float = 0) -> Step:
    assert sasl.admit(HANDSHAKE_KEY, now_ms) is Admission.SERVE
    assert sasl.handshake(1, mechanism) == (ErrorCode.none, MECHANISMS)
    assert sasl.admit(AUTHENTICATE_KEY, now_ms) is Admission.SERVE
    if mechanism == "PLAIN":
        return plain(sasl, name, now_ms=now_ms)
    return scram(sasl, name, SCRAM[mechanism], now_ms)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("asks_for_versions", [False, True])
def test_a_log_in(mechanism: str, asks_for_versions: bool) -> None:
    sasl = connection()
    if asks_for_versions:
        assert sasl.admit(API_VERSIONS_KEY, 0) is Admission.SERVE
        sasl.api_versions_answered()
    step = log_in(sasl, mechanism)
    assert isinstance(step, Authenticated)
    assert (step.lifetime_ms, step.is_renewal) == (0, False)
    assert sasl.principal == user("alice")
    assert [sasl.admit(key, 10**12) for key in (METADATA, HANDSHAKE_KEY, AUTHENTICATE_KEY)] == [
        Admission.SERVE
    ] * 3
    assert sasl.handshake(1, mechanism) == (ErrorCode.illegal_sasl_state, ())
    assert sasl.authenticate(b"x", 0) == Refused(ErrorCode.illegal_sasl_state, LATE_AUTHENTICATE)
    assert sasl.stage is SaslStage.READY


@pytest.mark.parametrize("key", [METADATA, AUTHENTICATE_KEY, -1, 9999])
@pytest.mark.parametrize("asks_for_versions", [False, True])
def test_nothing_else_comes_before_the_handshake(key: int, asks_for_versions: bool) -> None:
    sasl = connection()
    if asks_for_versions:
        sasl.admit(API_VERSIONS_KEY, 0)
        sasl.api_versions_answered()
    assert sasl.admit(key, 0) is Admission.CLOSE
    assert sasl.admit(HANDSHAKE_KEY, 0) is Admission.CLOSE


def test_api_versions_comes_once_before_the_handshake() -> None:
    sasl = connection()
    assert sasl.admit(API_VERSIONS_KEY, 0) is Admission.SERVE  # and is refused: the state stays
    assert sasl.admit(API_VERSIONS_KEY, 0) is Admission.SERVE
    sasl.api_versions_answered()
    assert sasl.admit(API_VERSIONS_KEY, 0) is Admission.CLOSE


@pytest.mark.parametrize("key", [API_VERSIONS_KEY, HANDSHAKE_KEY, METADATA])
def test_only_tokens_come_after_the_handshake(key: int) -> None:
    sasl = connection()
    sasl.admit(HANDSHAKE_KEY, 0)
    sasl.handshake(1, "PLAIN")
    assert sasl.admit(key, 0) is Admission.ILLEGAL
    assert sasl.admit(AUTHENTICATE_KEY, 0) is Admission.CLOSE


@pytest.mark.parametrize("mechanism", ["plain", "GSSAPI", "", "SCRAM-SHA-1"])
def test_an_unknown_mechanism(mechanism: str) -> None:
    sasl = connection()
    sasl.admit(HANDSHAKE_KEY, 0)
    assert sasl.handshake(1, mechanism) == (ErrorCode.unsupported_sasl_mechanism, MECHANISMS)
    assert sasl.admit(HANDSHAKE_KEY, 0) is Admission.CLOSE


def test_raw_tokens_after_handshake_version_0() -> None:
    sasl = connection(max_session_ms=10)
    sasl.admit(HANDSHAKE_KEY, 0)
    sasl.handshake(0, "PLAIN")
    assert sasl.takes_raw_tokens
    assert plain(sasl, "alice") == Authenticated(b"", 10, False)
    assert not sasl.takes_raw_tokens
    assert sasl.admit(METADATA, 10) is Admission.SERVE
    assert sasl.admit(METADATA, 11) is Admission.EXPIRED, "the session ends, though the client is not told"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_failed_log_in_ends_the_connection(mechanism: str) -> None:
    sasl = connection()
    sasl.admit(HANDSHAKE_KEY, 0)
    sasl.handshake(1, mechanism)
    if mechanism == "PLAIN":
        step = plain(sasl, "alice", "wrong")
        message = "Authentication failed: Invalid username or password"
    else:
        step = scram(sasl, "carol", SCRAM[mechanism])
        message = (
            "Authentication failed during authentication due to invalid credentials with SASL mechanism "
            f"{mechanism}"
        )
    assert step == Refused(ErrorCode.sasl_authentication_failed, message)
    assert sasl.principal is None
    assert {sasl.admit(key, 0) for key in range(100)} == {Admission.CLOSE}


class TestRenewal:
    """KIP-368."""

    def test_the_lifetime_is_told_and_kept(self) -> None:
        sasl = connection(max_session_ms=5000)
        assert log_in(sasl) == Authenticated(b"", 5000, False)
        assert sasl.admit(METADATA, 5000) is Admission.SERVE
        assert log_in(sasl, now_ms=4000) == Authenticated(b"", 5000, True)
        assert sasl.admit(METADATA, 9000) is Admission.SERVE
        assert sasl.admit(METADATA, 9001) is Admission.EXPIRED
        assert sasl.admit(HANDSHAKE_KEY, 9001) is Admission.CLOSE

    def test_a_late_client_may_still_renew(self) -> None:
        sasl = connection(max_session_ms=5000)
        log_in(sasl)
        assert log_in(sasl, now_ms=60_000) == Authenticated(b"", 5000, True)

    def test_not_more_often_than_once_a_second(self) -> None:
        sasl = connection(max_session_ms=5000)
        log_in(sasl)
        log_in(sasl, now_ms=10)
        assert sasl.admit(HANDSHAKE_KEY, 1009) is Admission.SERVE
        assert sasl.handshake(1, "PLAIN") == (ErrorCode.illegal_sasl_state, ())
        assert sasl.admit(METADATA, 1009) is Admission.SERVE
        log_in(sasl, now_ms=1010)

    def test_another_principal(self) -> None:
        sasl = connection(max_session_ms=5000)
        log_in(sasl)
        step = log_in(sasl, name="bob", now_ms=1000)
        assert isinstance(step, Refused)
        assert step.message == ("Cannot change principals during re-authentication from User.alice: User.bob")
        assert sasl.principal == user("alice")
        assert sasl.admit(METADATA, 1000) is Admission.CLOSE

    def test_another_mechanism(self) -> None:
        sasl = connection(max_session_ms=5000)
        log_in(sasl)
        step = log_in(sasl, "SCRAM-SHA-256", now_ms=1000)
        assert isinstance(step, Refused)
        assert step.error_code is ErrorCode.sasl_authentication_failed
        assert sasl.admit(METADATA, 1000) is Admission.CLOSE

    def test_a_request_in_the_middle(self) -> None:
        sasl = connection(max_session_ms=5000)
        log_in(sasl)
        sasl.admit(HANDSHAKE_KEY, 1000)
        sasl.handshake(1, "PLAIN")
        assert sasl.admit(METADATA, 1000) is Admission.ILLEGAL

    def test_raw_tokens_are_not_taken(self) -> None:
        sasl = connection(max_session_ms=5000)
        log_in(sasl)
        sasl.admit(HANDSHAKE_KEY, 1000)
        assert sasl.handshake(0, "PLAIN").error_code is ErrorCode.illegal_sasl_state
        assert sasl.stage is SaslStage.FAILED


class Walk(RuleBasedStateMachine):
    """A client does anything in any order. It gets in by a proof only, and never as another one."""

    sasl: Sasl
    now_ms: float
    proved: str | None
    has_lifetime: bool

    @initialize(lifetime=st.sampled_from([0, 2000]))
    def begin(self, lifetime: int) -> None:
        self.sasl = connection(lifetime)
        self.now_ms = 0
        self.proved = None

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds: float) -> None:
        self.now_ms += seconds * 1000

    @rule(key=st.sampled_from([METADATA, API_VERSIONS_KEY, 0, 1, 44]), is_refused=st.booleans())
    def request(self, key: int, is_refused: bool) -> None:
        was_ready = self.sasl.stage is SaslStage.READY
        admission = self.sasl.admit(key, self.now_ms)
        if admission is Admission.SERVE and key == API_VERSIONS_KEY and not is_refused:
            self.sasl.api_versions_answered()
        if admission is Admission.SERVE and key != API_VERSIONS_KEY:
            assert was_ready, "served without a log-in"
            assert self.proved is not None

    @rule(version=st.sampled_from([0, 1]), mechanism=st.sampled_from([*MECHANISMS, "GSSAPI"]))
    def shake_hands(self, version: int, mechanism: str) -> None:
        if not self.sasl.takes_raw_tokens and self.sasl.admit(HANDSHAKE_KEY, self.now_ms) is Admission.SERVE:
            answer = self.sasl.handshake(version, mechanism)
            assert (answer.error_code is ErrorCode.none) == (self.sasl.stage is SaslStage.TOKENS)

    def _may_send_token(self) -> bool:
        sasl = self.sasl
        return sasl.takes_raw_tokens or sasl.admit(AUTHENTICATE_KEY, self.now_ms) is Admission.SERVE

    @rule(token=st.binary(max_size=40))
    def send_rubbish(self, token: bytes) -> None:
        if self._may_send_token():
            step: Any = self.sasl.authenticate(token, self.now_ms)
            if isinstance(step, Derivation):
                step = self.sasl.derived(bytes(32), self.now_ms)
            assert not isinstance(step, Authenticated)

    @precondition(lambda self: self.sasl.stage is SaslStage.TOKENS)
    @rule(name=st.sampled_from(["alice", "bob", "carol"]), wrong=st.booleans())
    def prove(self, name: str, wrong: bool) -> None:
        requested = self.sasl._requested
        if not self._may_send_token():
            return
        if requested == "PLAIN":
            step = plain(self.sasl, name, "wrong" if wrong or name == "carol" else None, self.now_ms)
        else:
            step = scram(self.sasl, "carol" if wrong else name, SCRAM[requested], self.now_ms)
        is_right = not wrong and name in PASSWORDS
        if isinstance(step, Authenticated):
            assert is_right
            assert self.proved in (None, name)
            assert step.is_renewal == (self.proved is not None)
            self.proved = name

    @invariant()
    def only_a_proof_gives_a_principal(self) -> None:
        expected = None if self.proved is None else user(self.proved)
        assert self.sasl.principal == expected
        if self.sasl.stage is SaslStage.READY:
            assert self.proved is not None


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
