"""Tokens of PLAIN: right, wrong, and of no user."""

from __future__ import annotations

from tests.differential.scram import PASSWORD, SHA_256, create
from tests.differential.script import Value
from tests.differential.secured import (
    ALICE,
    BOB,
    CAROL,
    DESCRIBE,
    SASL,
    TOPIC,
    Secured,
    password_of,
    plain_token,
    secured_script,
)


def attempt(s: Secured, name: str, token: bytes) -> None:
    """One token on a connection of its own; then a request, which is answered only after
    success."""
    on = f"{SASL}/{name}"
    s.handshake(on=on)
    s.authenticate(token, on=on)
    s.works(on)


@secured_script()
def right_tokens(s: Secured) -> None:
    for role in (ALICE, BOB, CAROL):
        attempt(s, role, s.token(role))


@secured_script()
def wrong_passwords(s: Secured) -> None:
    user, right = s.user(BOB), password_of(s.user(BOB))
    for name, password in (
        ("another", "wrong"),
        ("capitals", right.upper()),
        ("shorter", right[:-1]),
        ("longer", right + "x"),
        ("with a blank", right + " "),
        ("another user's", password_of(s.user(CAROL))),
        ("quoted", f'"{right}"'),
    ):
        attempt(s, name, plain_token(user, password))


@secured_script()
def unknown_users(s: Secured) -> None:
    right = password_of(s.user(BOB))
    for user in (f"{s.name}-nobody", s.user(BOB).upper(), f"{s.user(BOB)} ", f"User:{s.user(BOB)}", "*"):
        attempt(s, user, plain_token(user, right))


@secured_script()
def empty_parts(s: Secured) -> None:
    attempt(s, "no user", plain_token("", "secret"))
    attempt(s, "no password", plain_token(s.user(BOB), ""))
    attempt(s, "neither", plain_token("", ""))


@secured_script()
def authorization_ids(s: Secured) -> None:
    user, password = s.user(BOB), password_of(s.user(BOB))
    attempt(s, "the user's own", plain_token(user, password, user))
    attempt(s, "another user's", plain_token(user, password, s.user(CAROL)))
    attempt(s, "the super user's", plain_token(user, password, ALICE))
    attempt(s, "another user's and a wrong password", plain_token(user, "wrong", s.user(CAROL)))


@secured_script()
def malformed_tokens(s: Secured) -> None:
    user, password = s.user(BOB), password_of(s.user(BOB))
    for name, token in (
        ("empty", b""),
        ("one part", user.encode()),
        ("two parts", f"{user}\0{password}".encode()),
        ("four parts", f"\0{user}\0{password}\0".encode()),
        ("five parts", f"\0{user}\0{password}\0\0x".encode()),
        ("zeros", b"\0\0\0"),
        ("no UTF-8", b"\0\xff\xfe\0secret"),
        ("no UTF-8 behind the password", s.token() + b"\xff"),
    ):
        attempt(s, name, token)


@secured_script()
def long_parts(s: Secured) -> None:
    attempt(s, "user", plain_token("u" * 5_000, "secret"))
    attempt(s, "password", plain_token(s.user(BOB), "p" * 5_000))


@secured_script()
def a_user_of_scram_alone(s: Secured) -> None:
    user = s.user("dave")
    create(s, user, SHA_256)
    attempt(s, "dave", plain_token(user, PASSWORD))


@secured_script()
def a_second_token(s: Secured) -> None:
    """After a right token the connection is not authenticated a second time."""
    s.handshake()
    s.authenticate(s.token())
    s.authenticate(s.token())
    s.authenticate(s.token(CAROL))
    s.works(SASL)


@secured_script()
def the_principal_decides(s: Secured) -> None:
    """Two users on two connections at once see what is theirs."""
    topic, other = s.topic(), s.topic()
    s.allow(BOB, DESCRIBE, TOPIC, topic.name)
    s.allow(CAROL, DESCRIBE, TOPIC, other.name)
    wanted: list[dict[str, Value]] = [{"name": each.name} for each in (topic, other)]
    for on in (BOB, CAROL, ALICE, BOB, "a"):
        s.call("metadata", 8, on=on, topics=wanted, allow_auto_topic_creation=False,
               include_cluster_authorized_operations=False,
               include_topic_authorized_operations=False)  # fmt: skip
