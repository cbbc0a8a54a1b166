"""Principals of SSL and SASL_SSL listeners: subjects of client certificates, mapping rules, and who
is refused."""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from cryptography import x509
from cryptography.x509.oid import NameOID

from tests.certificates import Authority
from tests.differential.script import Topic
from tests.differential.scripts.acl_decisions import topics
from tests.differential.secured import (
    ALICE,
    BOB,
    READ,
    TOPIC,
    Secured,
    password_of,
    plain_token,
    secured_script,
)
from tests.differential.tls import connect

SUBJECT_REST = ",O=Acme,C=DE"


def allow_name(s: Secured, name: str, topic: Topic) -> None:
    """READ for `User:name`, whatever its form."""
    s.allow_principal(f"User:{name}", READ, TOPIC, topic.name)


@secured_script()
def without_a_certificate(s: Secured) -> None:
    """The principal is ANONYMOUS, here a super user."""
    connect(s, "nobody")
    topics(s, s.topic(), on="nobody")


@secured_script()
def the_subject_is_the_principal(s: Secured) -> None:
    topic, other = s.topic(), s.topic()
    user = s.user(BOB)
    allow_name(s, f"CN={user}{SUBJECT_REST}", topic)
    allow_name(s, user, other)
    allow_name(s, f"C=DE,O=Acme,CN={user}", other)
    allow_name(s, f"CN={user}, O=Acme, C=DE", other)
    connect(s, "bob's certificate", s.place.authority.client(user))
    topics(s, topic, other, on="bob's certificate")


@secured_script()
def mapping_rules(s: Secured) -> None:
    topic = s.topic()
    user = s.user(BOB)
    allow_name(s, user, topic)
    for name in (f"{user}-mapped", f"{user}-upper", user):
        connect(s, name, s.place.authority.client(name))
        topics(s, topic, on=name)
    allow_name(s, user.upper(), topic)
    topics(s, topic, on=f"{user}-upper")


@secured_script()
def names_with_special_characters(s: Secured) -> None:
    """Each by the form that RFC 4514 gives it."""
    user = s.user(BOB)
    for number, end in enumerate((" and, more", "+plus", '"quoted"', "\\back", "<>;", "=", " ", "é", "#")):
        name = f"{user}{end}"
        topic = s.topic()
        attribute = x509.NameAttribute(NameOID.COMMON_NAME, name)
        allow_name(s, f"{attribute.rfc4514_string()}{SUBJECT_REST}", topic)
        on = f"certificate {number}"
        connect(s, on, s.place.authority.client(name))
        topics(s, topic, on=on)


@secured_script()
def certificates_that_are_refused(s: Secured) -> None:
    authority = s.place.authority
    connect(s, "expired", authority.client(s.user(BOB), days=-1))
    stranger = Authority(s.place.home, f"{s.name}-stranger")
    connect(s, "of another authority", stranger.client(s.user(BOB)))


@secured_script()
def versions_of_tls(s: Secured) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        connect(s, version.name, version=version)


@secured_script()
def plain_bytes_on_a_listener_with_tls(s: Secured) -> None:
    for listener in ("ssl", "sasl_ssl"):
        on = f"plain on {listener}"
        s.open_plainly(on, s.place.ports[listener])
        s.call("metadata", 1, on=on, topics=())


@secured_script()
def sasl_on_a_listener_without(s: Secured) -> None:
    connect(s, "nobody")
    s.handshake(on="nobody")
    s.authenticate(s.token(), on="nobody")
    s.works("nobody")


def logged_in(s: Secured, on: str, role: str = BOB) -> None:
    s.handshake(on=on)
    s.authenticate(s.token(role), on=on)


@secured_script()
def sasl_over_tls(s: Secured) -> None:
    """The SASL user is the principal, with a client certificate too."""
    topic, other = s.topic(), s.topic()
    s.allow(BOB, READ, TOPIC, topic.name)
    allow_name(s, f"CN={s.user(BOB)}{SUBJECT_REST}", other)
    certificate = s.place.authority.client(s.user(BOB))
    names: Sequence[str] = ("without a certificate", "with a certificate")
    for on, pair in zip(names, (None, certificate), strict=True):
        connect(s, on, pair, listener="sasl_ssl")
        logged_in(s, on)
        topics(s, topic, other, on=on)


@secured_script()
def wrong_passwords_over_tls(s: Secured) -> None:
    for on, token in (
        ("wrong", plain_token(s.user(BOB), "wrong")),
        ("nobody", plain_token(f"{s.name}-nobody", password_of(s.user(BOB)))),
        ("super user", plain_token(ALICE, "wrong")),
    ):
        connect(s, on, listener="sasl_ssl")
        s.handshake(on=on)
        s.authenticate(token, on=on)
        s.works(on)


@secured_script()
def requests_before_authentication_over_tls(s: Secured) -> None:
    connect(s, "early", listener="sasl_ssl")
    s.call("metadata", 1, on="early", topics=())
