"""Log-ins with tokens over sockets, and the keys that check them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kbroker.broker.security import token_keys
from kbroker.client.rpc import BrokerUnreachable, Connection
from kbroker.errors import ErrorCode
from kbroker.security.oauth import INVALID_TOKEN, OAUTHBEARER, first_message
from kbroker.security.oauth_tokens import TokenRules
from kbroker.security.principals import user
from kbroker.security.sasl_settings import TokenSettings
from tests.client.certificates import Certificates, make_certificates
from tests.security.tokens import (
    AUDIENCE,
    ISSUER,
    claims,
    key_set,
    public,
    rsa,
    signed,
    signed_with_public_key,
    unsigned,
)
from tests.server.issuer import Issuer, open_issuer
from tests.server.sasl_world import SETTINGS, SaslBroker, open_sasl_broker

RULES = TokenRules(audiences=(AUDIENCE,), issuer=ISSUER)
TOPICS = {"topics": None, "allow_auto_topic_creation": False}
PATIENCE_S = 60


@contextmanager
def opened(folder: Path, url: str, refresh_s: float = 3600) -> Iterator[SaslBroker]:
    tokens = TokenSettings(
        url=url, rules=RULES, refresh_s=refresh_s, retry_backoff_s=0.01, retry_backoff_max_s=0.05
    )
    settings = replace(SETTINGS, mechanisms=(OAUTHBEARER,), tokens=tokens)
    with open_sasl_broker(folder / "data", settings) as world:
        yield world


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def issuer(files: Certificates, monkeypatch: pytest.MonkeyPatch) -> Iterator[Issuer]:
    monkeypatch.setenv("SSL_CERT_FILE", str(files.ca))
    with open_issuer(files.server) as found:
        yield found


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(public(rsa("a"))))
    return file


def token(key: Any = None, **changed: Any) -> str:
    return signed(key or rsa("a"), claims(time.time(), **changed))


def send(connection: Connection, text: str) -> Any:
    assert connection.call("sasl_handshake", 1, mechanism=OAUTHBEARER).error_code == ErrorCode.none
    return connection.call("sasl_authenticate", 2, auth_bytes=first_message(text))


def is_taken(world: SaslBroker, text: str) -> bool:
    """Whether a token is; if not, the answers are those of Kafka."""
    with world.connect() as connection:
        answer = send(connection, text)
        assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
        if answer.auth_bytes == b"":
            assert connection.call("metadata", 7, **TOPICS).brokers
            return True
        assert answer.auth_bytes == INVALID_TOKEN.encode()
        refused = connection.call("sasl_authenticate", 2, auth_bytes=b"\x01")
        assert refused.error_code == ErrorCode.sasl_authentication_failed
        assert refused.error_message == INVALID_TOKEN
        with pytest.raises(BrokerUnreachable):
            connection.call("metadata", 7, **TOPICS)
        return False


def ask_for_ever(connection: Connection) -> None:
    """Until the broker closes the connection."""
    try:
        while True:
            connection.call("metadata", 7, **TOPICS)
    except BrokerUnreachable:
        return


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_log_ins_with_a_key_set_in_a_file(
    tmp_path: Path, keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    forged = (
        unsigned(claims(time.time()), {"alg": "none", "kid": "a"}, "AAAA"),
        signed_with_public_key(rsa("a"), claims(time.time())),
        token(rsa("wrong")),
        token(exp=time.time() - 60),
        token(nbf=time.time() + 60),
        token(aud="other"),
        token(iss="other"),
        token(more="x" * 16_384),
        token(sub=None),
        "no-token",
    )
    good = token()
    with opened(tmp_path, keys.as_uri()) as world:
        assert is_taken(world, good)
        assert [text for text in forged if is_taken(world, text)] == []
        metrics = world.broker.metrics.sasl
        assert (metrics.successes, metrics.failures) == ({OAUTHBEARER: 1}, {OAUTHBEARER: len(forged)})
    parts = [part for text in (good, *forged) for part in text.split(".") if len(part) > 10]
    assert [line for line in caplog.messages if any(part in line for part in parts)] == []
    assert [line for line in caplog.messages if "its log-in with OAUTHBEARER failed: the token" in line]


def test_a_session_ends_with_its_token_and_can_be_renewed(tmp_path: Path, keys: Path) -> None:
    with opened(tmp_path, keys.as_uri()) as world:
        with world.connect() as renewed, world.connect() as expiring:
            answer = send(renewed, token(exp=time.time() + 3))
            assert 0 < answer.session_lifetime.total_seconds() <= 3
            assert send(expiring, token(exp=time.time() + 3)).auth_bytes == b""
            assert send(renewed, token()).session_lifetime.total_seconds() > 200
            ask_for_ever(expiring)
            assert renewed.call("metadata", 7, **TOPICS).brokers
        assert world.broker.metrics.sasl.expired == 1
        with world.connect() as other:
            assert send(other, token(exp=time.time() + 200)).auth_bytes == b""
            assert user("alice") in world.broker.security.sessions._by_principal
            answer = send(other, token(sub="bob"))
            assert answer.error_code == ErrorCode.sasl_authentication_failed
            assert "Cannot change principals" in answer.error_message


def test_a_new_key_is_found_and_strangers_cannot_ask_often(tmp_path: Path, issuer: Issuer) -> None:
    with opened(tmp_path, issuer.url("keys")) as world:
        assert is_taken(world, token())
        issuer.keys = key_set(public(rsa("a")), public(rsa("b")))
        assert is_taken(world, token(rsa("b")))
        for _ in range(3):
            assert not is_taken(world, token(rsa("wrong")))
        assert issuer.asked == ["/keys", "/keys"]


def test_a_key_that_the_issuer_withdraws(tmp_path: Path, issuer: Issuer) -> None:
    with opened(tmp_path, issuer.url("keys"), refresh_s=0.05) as world:
        assert is_taken(world, token())
        issuer.keys = key_set(public(rsa("b")))
        until(lambda: not is_taken(world, token()))
        assert is_taken(world, token(rsa("b")))


def test_log_ins_go_on_while_the_issuer_hangs(tmp_path: Path, issuer: Issuer) -> None:
    """Only tokens with a new key wait for it, all for the same read."""
    with opened(tmp_path, issuer.url("keys")) as world, ThreadPoolExecutor(5) as threads:
        assert is_taken(world, token())
        issuer.gate.clear()
        issuer.keys = key_set(public(rsa("a")), public(rsa("b")))
        waiting = [threads.submit(is_taken, world, token(rsa("b"))) for _ in range(5)]
        until(lambda: len(issuer.asked) == 2)
        assert is_taken(world, token())
        assert not any(each.done() for each in waiting)
        issuer.gate.set()
        assert all(each.result(PATIENCE_S) for each in waiting)
        assert issuer.asked == ["/keys", "/keys"]


def test_an_issuer_that_never_answers(
    tmp_path: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_keys, "READ_S", 0.3)
    with opened(tmp_path, issuer.url("keys")) as world:
        assert is_taken(world, token())
        issuer.gate.clear()
        assert not is_taken(world, token(rsa("b")))
        assert is_taken(world, token())
        issuer.gate.set()


def test_a_bounded_number_of_log_ins_wait_for_the_issuer(
    tmp_path: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_keys, "_WAITING", 1)
    with opened(tmp_path, issuer.url("keys")) as world, ThreadPoolExecutor(1) as threads:
        assert is_taken(world, token())
        issuer.gate.clear()
        waiting = threads.submit(is_taken, world, token(rsa("b")))
        until(lambda: len(issuer.asked) == 2)
        assert not is_taken(world, token(rsa("b")))
        assert not waiting.done()
        issuer.gate.set()
        assert not waiting.result(PATIENCE_S)


@pytest.mark.parametrize("trouble", ["status", "redirect", "size", "content"])
def test_a_key_set_that_cannot_be_read(
    tmp_path: Path, issuer: Issuer, caplog: pytest.LogCaptureFixture, trouble: str, keys: Path
) -> None:
    good = issuer.keys
    if trouble == "redirect":
        issuer.headers = {"Location": keys.as_uri()}
    issuer.status = {"status": 500, "redirect": 302}.get(trouble, 200)
    issuer.keys = {"size": b" " * 300_000 + good, "content": b"<html>"}.get(trouble, good)
    with opened(tmp_path, issuer.url("keys")) as world:
        until(lambda: len(issuer.asked) > 3)
        assert not is_taken(world, token())
        issuer.status, issuer.keys, issuer.headers = 200, good, {}
        asked = len(issuer.asked)
        until(lambda: len(issuer.asked) > asked + 1 or is_taken(world, token()))
        until(lambda: is_taken(world, token()))
    lines = [line for line in caplog.messages if "cannot read sasl.oauthbearer.jwks" in line]
    assert len(lines) == 1
