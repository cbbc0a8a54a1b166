"""SCRAM: the examples of the RFCs, both sides against each other, and clients that lie."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.formats.security_values import ScramCredential, ScramMechanism
from kbroker.security.exchange import AuthenticationFailed, Found
from kbroker.security.scram import (
    DIGESTS,
    MAX_MESSAGE_BYTES,
    OTHER_AUTHZID,
    ScramClient,
    ScramRefused,
    ScramServer,
    credential_of,
    is_password,
    new_credential,
    salt_password,
)

REFUSAL = "refused"
PASSWORD = "pencil"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
FAST = new_credential(PASSWORD, SALT, 4096, ScramMechanism.SHA_256)


# digest, salt, client nonce, server nonce, and the four messages
RFC_5802 = (
    "sha1",
    "QSXCR+Q6sek8bf92",
    "fyko+d2lbbFgONRv9qkxdawL",
    "3rfcNHYJY1ZVvWVs7j",
    "n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
    "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
    "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
    "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
)
RFC_7677 = (
    "sha256",
    "W22ZaJ0SNY7soEsUEjb6gQ==",
    "rOprNGfwEbeRWgbNEkqO",
    "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
    "n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
)


def found(credential: ScramCredential = FAST, *, is_known: bool = True) -> Found:
    return Found(ScramMechanism.SHA_256, credential, is_known)


def server(credential: ScramCredential = FAST, digest: str = "sha256", nonce: str = "server") -> ScramServer:
    return ScramServer(digest, lambda _: found(credential), nonce, REFUSAL)


@pytest.mark.parametrize("vector", [RFC_5802, RFC_7677], ids=["RFC 5802", "RFC 7677"])
def test_the_examples_of_the_rfcs(vector: tuple[str, ...]) -> None:
    digest, salt_text, client_nonce, server_nonce, *messages = vector
    salt = base64.b64decode(salt_text)
    credential = credential_of(salt_password(b"pencil", salt, 4096, digest), salt, 4096, digest)
    broker = server(credential, digest, server_nonce)
    client = ScramClient(digest, "user", "pencil", client_nonce)
    first = client.first()
    server_first = broker.respond(first)
    final = client.final(server_first.token)
    server_final = broker.respond(final)
    client.check(server_final.token)
    assert [first, server_first.token, final, server_final.token] == [each.encode() for each in messages]
    assert (server_first.user, server_final.user) == (None, "user")


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(ScramMechanism),
    st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable()),
    st.text(min_size=1, max_size=20),
    st.binary(min_size=1, max_size=20),
    st.booleans(),
)
def test_a_client_is_let_in_with_the_right_password_only(
    mechanism: ScramMechanism, user: str, password: str, salt: bytes, is_right: bool
) -> None:
    digest = DIGESTS[mechanism]
    credential = new_credential(password, salt, 4096, mechanism)
    asked: list[str] = []

    def find(name: str) -> Found:
        asked.append(name)
        return Found(mechanism, credential, is_known=True)

    broker = ScramServer(digest, find, "server", REFUSAL)
    client = ScramClient(mechanism, user, password if is_right else password + "!", "client")
    final = client.final(broker.respond(client.first()).token)
    assert asked == [user]
    if is_right:
        answer = broker.respond(final)
        client.check(answer.token)
        assert answer.user == user
    else:
        with pytest.raises(AuthenticationFailed, match=REFUSAL):
            broker.respond(final)


def test_a_made_up_credential_lets_nobody_in_even_with_its_password() -> None:
    broker = ScramServer("sha256", lambda _: found(is_known=False), "server", REFUSAL)
    client = ScramClient(ScramMechanism.SHA_256, "user", PASSWORD, "client")
    final = client.final(broker.respond(client.first()).token)
    with pytest.raises(AuthenticationFailed, match=REFUSAL):
        broker.respond(final)


def test_a_delegation_tokens_name_is_no_user() -> None:
    broker = server()
    answer = broker.respond(b"n,,n=user,r=client,tokenauth=true")
    client = ScramClient(ScramMechanism.SHA_256, "user", PASSWORD, "client")
    client._bare += ",tokenauth=true"
    with pytest.raises(AuthenticationFailed):
        broker.respond(client.final(answer.token))


WRONG_FIRST = [
    b"", b"n", b"n,", b"n,,", b"n,,n=user", b"y,,n=user,r=c", b"p=tls-unique,,n=user,r=c", b"n,,r=c,n=user",
    b"n,,n=,r=c", b"n,,n=us=er,r=c", b"n,,n=us=2cer,r=c", b"n,,n=user,r=", b"n,,n=user,r=a b", b"n,,n=user,c",
    b"n,,n=user,r=c,", b"n,,n=user,r=c,x", b"n,,m=1,n=user,r=c", b"n,b=user,n=user,r=c", b"n,,n=\xff,r=c",
    "n,,n=user,r=ä".encode(), b"N,,n=user,r=c", b"n,,n=user,r=c\x00",
]  # fmt: skip


@pytest.mark.parametrize(
    "token", [*WRONG_FIRST, pytest.param(b"n,,n=user,r=c,x=" + b"y" * MAX_MESSAGE_BYTES, id="too long")]
)
def test_a_first_message_that_is_not_one(token: bytes) -> None:
    with pytest.raises(AuthenticationFailed, match=REFUSAL):
        server().respond(token)


def test_the_authorization_id_must_be_the_user() -> None:
    with pytest.raises(AuthenticationFailed, match=OTHER_AUTHZID):
        server().respond(b"n,a=root,n=user,r=c")
    broker = server()
    answer = broker.respond(b"n,a=user,n=user,r=client")
    client = ScramClient(ScramMechanism.SHA_256, "user", PASSWORD, "client")
    final = client.final(answer.token)
    with pytest.raises(AuthenticationFailed, match=REFUSAL):
        broker.respond(final)  # Its c= is that of a header without the id.


def right_final() -> tuple[ScramServer, bytes]:
    broker = server()
    client = ScramClient(ScramMechanism.SHA_256, "user", PASSWORD, "client")
    return broker, client.final(broker.respond(client.first()).token)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda final: final[:-1],
        lambda final: final.replace(b"c=biws", b"c=eSws"),
        lambda final: final.replace(b"r=client", b"r=Client"),
        lambda final: final.replace(b"server", b"servex"),
        lambda final: final.replace(b",p=", b",x=1,p="),
        lambda final: final.rpartition(b",p=")[0],
        lambda final: final + b"AAAA",
        lambda final: final.rpartition(b",p=")[0] + b",p=" + base64.b64encode(bytes(32)),
        lambda final: b"",
        lambda final: b"\xff" + final,
    ],
)
def test_a_final_message_that_is_changed(spoil: object) -> None:
    broker, final = right_final()
    assert callable(spoil)
    with pytest.raises(AuthenticationFailed, match=REFUSAL):
        broker.respond(spoil(final))
    with pytest.raises(AuthenticationFailed, match=REFUSAL):
        broker.respond(final)  # There is no second try in an exchange.


@pytest.mark.parametrize(
    ("nonce", "is_right"),
    [
        ("clientserver", True),
        ("clientclientserver", True),  # librdkafka before 2.2
        ("clientserver!", False),
        ("server", False),
        ("", False),
        ("client,clientserver", False),
    ],
)
def test_the_last_nonce_ends_with_both(nonce: str, is_right: bool) -> None:
    broker = server()
    first = broker.respond(b"n,,n=user,r=client").token.decode()
    salted = salt_password(b"pencil", FAST.salt, FAST.iterations, "sha256")
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    message = f"n=user,r=client,{first},c=biws,r={nonce}"
    signature = hmac.digest(hashlib.sha256(client_key).digest(), message.encode(), "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    final = f"c=biws,r={nonce},p={base64.b64encode(proof).decode()}".encode()
    if is_right:
        assert broker.respond(final).user == "user"
    else:
        with pytest.raises(AuthenticationFailed):
            broker.respond(final)


def test_replayed_messages_are_of_no_use() -> None:
    """All that a client sent, sent again: the server's nonce is another one."""
    broker, final = right_final()
    broker.respond(final)
    again = server(nonce="another")
    again.respond(b"n,,n=user,r=client")
    with pytest.raises(AuthenticationFailed):
        again.respond(final)
    with pytest.raises(AuthenticationFailed):
        broker.respond(final)


@settings(deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes_are_answered_or_refused(first: bytes, final: bytes) -> None:
    broker = server()
    try:
        broker.respond(first)
        broker.respond(final)
    except AuthenticationFailed:
        return
    raise AssertionError("random bytes have logged in")


@pytest.mark.parametrize(
    "answer",
    [
        b"r=clientserver,s=QSXCR+Q6sek8bf92,i=1",
        b"r=clientserver,s=QSXCR+Q6sek8bf92,i=9999999",
        b"r=clientserver,s=QSXCR+Q6sek8bf92,i=-4096",
        b"r=client,s=QSXCR+Q6sek8bf92,i=4096",
        b"r=otherserver,s=QSXCR+Q6sek8bf92,i=4096",
        b"r=clientserver,s=,i=4096",
        b"r=clientserver,s=!,i=4096",
        b"s=QSXCR+Q6sek8bf92,r=clientserver,i=4096",
        b"e=other-error",
        b"\xff",
        b"",
    ],
)
def test_a_client_does_not_follow_a_server_that_lies(answer: bytes) -> None:
    client = ScramClient(ScramMechanism.SHA_256, "user", PASSWORD, "client")
    client.first()
    with pytest.raises(ScramRefused):
        client.final(answer)


def test_a_client_notices_a_server_that_does_not_know_the_password() -> None:
    broker = server()
    client = ScramClient(ScramMechanism.SHA_256, "user", PASSWORD, "client")
    with pytest.raises(ScramRefused):
        client.check(b"v=")
    client.final(broker.respond(client.first()).token)
    for answer in (b"v=", b"v=" + base64.b64encode(bytes(32)), b"e=invalid-proof", b""):
        with pytest.raises(ScramRefused):
            client.check(answer)


def test_secrets_are_in_no_repr() -> None:
    text = repr(FAST) + repr(found())
    assert FAST.stored_key.hex() not in text
    assert repr(FAST.stored_key) not in text
    assert repr(FAST.server_key) not in text


def test_a_password_against_a_credential() -> None:
    salted = salt_password(PASSWORD.encode(), SALT, 4096, "sha256")
    assert is_password(FAST, salted, "sha256")
    assert not is_password(FAST, salted[:-1] + b"\0", "sha256")
