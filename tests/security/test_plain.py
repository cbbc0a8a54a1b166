"""SASL/PLAIN, JAAS lines and principals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.formats.security_values import ScramMechanism
from kbroker.security.exchange import AuthenticationFailed, Derivation, Found
from kbroker.security.plain import PlainServer
from kbroker.security.principals import ANONYMOUS, Principal, parse_principal, user
from kbroker.security.scram import OTHER_AUTHZID, new_credential, salt_password
from kbroker.settings.jaas import plain_users

CREDENTIAL = new_credential("geheim ☃", b"salt", 4096, ScramMechanism.SHA_512)
WRONG = "Authentication failed: Invalid username or password"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def log_in(token: bytes, *, is_known: bool = True) -> str | None:
    server = PlainServer(lambda _: Found(ScramMechanism.SHA_512, CREDENTIAL, is_known))
    wanted = server.respond(token)
    assert wanted == Derivation(token.split(b"\0")[2], b"salt", 4096, "sha512")
    assert "geheim" not in repr(wanted)
    reply = server.derived(salt_password(wanted.password, wanted.salt, wanted.iterations, wanted.digest))
    assert reply.token == b""
    return reply.user


def test_the_right_password() -> None:
    assert log_in("\0alice\0geheim ☃".encode()) == "alice"
    assert log_in("alice\0alice\0geheim ☃".encode()) == "alice"


@pytest.mark.parametrize(
    ("token", "is_known", "message"),
    [
        ("\0alice\0geheim", True, WRONG),
        ("\0alice\0geheim ☃", False, WRONG),
        ("root\0alice\0geheim ☃", True, OTHER_AUTHZID),
        ("root\0alice\0geheim", True, WRONG),
        ("", True, "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        ("\0alice", True, "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        ("\0a\0b\0c", True, "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        ("\0\0x", True, "Authentication failed: username not specified"),
        ("\0alice\0", True, "Authentication failed: password not specified"),
    ],
)
def test_refusals(token: str, is_known: bool, message: str) -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        log_in(token.encode(), is_known=is_known)
    assert str(caught.value) == message


def test_what_is_not_utf_8_is_a_wrong_password() -> None:
    for token in (b"\xff\0a\0b", b"\0\xff\0b", b"\0a\0\xff"):
        with pytest.raises(AuthenticationFailed, match=WRONG):
            log_in(token)


def test_there_is_one_try() -> None:
    server = PlainServer(lambda _: Found(ScramMechanism.SHA_512, CREDENTIAL, is_known=True))
    server.respond(b"\0alice\0x")
    with pytest.raises(AuthenticationFailed):
        server.respond(b"\0alice\0x")


def test_users_of_a_jaas_line() -> None:
    line = f'{MODULE} required username="admin" password="x" user_alice="se\\"cret" user_b.ob=plain;'
    assert plain_users(line) == {"alice": 'se"cret', "b.ob": "plain"}
    assert plain_users(f"{MODULE} required;") == plain_users(" ") == {}
    assert plain_users(f"  {MODULE}  requisite\n  user_a='b c' ;  ") == {"a": "b c"}
    assert plain_users("org.apache.kafka.common.security.scram.ScramLoginModule required;") == {}


@pytest.mark.parametrize(
    "line",
    [
        "some.Module required;",
        f"{MODULE};",
        f'{MODULE} required user_alice="canary"',
        f'{MODULE} required user_alice="canary;',
        f'{MODULE} required user_="canary";',
        f'{MODULE} required user_alice="";',
        f'{MODULE} required user_alice="canary" canary;',
        f'{MODULE} sometimes user_alice="canary";',
    ],
)
def test_a_wrong_jaas_line_is_refused_without_its_secrets(line: str) -> None:
    with pytest.raises(ValueError, match=r"expected|without") as caught:
        plain_users(line)
    assert "canary" not in str(caught.value)


@settings(deadline=None)
@given(st.text(), st.text())
def test_principals_are_read_back(kind: str, name: str) -> None:
    principal = Principal(kind.replace(":", ""), name)
    assert parse_principal(str(principal)) == principal


def test_principals() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"
    assert parse_principal("User:CN=a:b") == user("CN=a:b")
    with pytest.raises(ValueError, match="Could not parse principal from `bob`"):
        parse_principal("bob")
