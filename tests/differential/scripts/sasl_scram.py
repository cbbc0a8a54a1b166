"""Exchanges of SCRAM-SHA-256 and SCRAM-SHA-512: good, with wrong credentials, malformed."""

from __future__ import annotations

from tests.differential.scram import (
    MECHANISMS,
    PASSWORD,
    SHA_256,
    SHA_512,
    ScramClient,
    create,
    log_in,
    remove,
)
from tests.differential.scripts.base_other import framed
from tests.differential.secured import BOB, SASL, Secured, password_of, secured_script

BOTH = tuple(MECHANISMS)


def dave(s: Secured, *mechanisms: str) -> str:
    user = s.user("dave")
    create(s, user, *(mechanisms or (SHA_256,)))
    return user


def first(s: Secured, name: str, message: bytes, mechanism: str = SHA_256) -> bytes | None:
    """A first message on a connection of its own, and the server's."""
    on = f"{SASL}/{name}"
    s.handshake(mechanism, on=on)
    answer = s.authenticate(message, on=on)
    if answer is None or answer.error_code.value:
        s.works(on)
        return None
    return bytes(answer.auth_bytes)


def final(s: Secured, name: str, message: bytes) -> None:
    """The client's second message; then a request, which is answered only after success."""
    s.authenticate(message, on=f"{SASL}/{name}")
    s.works(f"{SASL}/{name}")


@secured_script()
def both_mechanisms(s: Secured) -> None:
    user = dave(s, *BOTH)
    for mechanism in BOTH:
        on = f"{SASL}/{mechanism}"
        log_in(s, mechanism, user, on=on)
        s.works(on)


@secured_script()
def each_version_of_the_request(s: Secured) -> None:
    user = dave(s)
    for version in (0, 1, 2):
        on = f"{SASL}/{version}"
        client = ScramClient(SHA_256, user)
        s.handshake(SHA_256, on=on)
        answer = s.authenticate(client.first(), version, on=on)
        s.authenticate(client.final(answer.auth_bytes), version, on=on)
        s.works(on)


@secured_script()
def wrong_passwords(s: Secured) -> None:
    user = dave(s, *BOTH)
    for mechanism in BOTH:
        for password in ("wrong", PASSWORD + " ", ""):
            on = f"{SASL}/{mechanism}{password}"
            log_in(s, mechanism, user, password, on=on)
            s.works(on)


def outcome(
    s: Secured, what: str, mechanism: str, user: str, password: str = PASSWORD, *, on: str = ""
) -> None:
    """A whole exchange as one step: the last code, whichever message gets it."""
    on = on or f"{SASL}/{what}"
    connection = s.connection(on)
    client = ScramClient(mechanism, user, password)
    connection.call("sasl_handshake", 1, mechanism=mechanism)
    answer = connection.call("sasl_authenticate", 2, auth_bytes=client.first())
    if not answer.error_code.value:
        answer = connection.call("sasl_authenticate", 2, auth_bytes=client.final(answer.auth_bytes))
    s.note(what, [answer.error_code.name, answer.error_message is not None, answer.session_lifetime])
    s.works(on)


@secured_script()
def unknown_users(s: Secured) -> None:
    for mechanism in BOTH:
        outcome(s, f"nobody with {mechanism}", mechanism, s.user("nobody"))


@secured_script()
def users_of_the_other_mechanism(s: Secured) -> None:
    user = dave(s, SHA_256)
    outcome(s, "dave", SHA_512, user)


@secured_script()
def users_of_plain_alone(s: Secured) -> None:
    outcome(s, "bob", SHA_256, s.user(BOB), password_of(s.user(BOB)))


@secured_script()
def first_message_of_an_unknown_user(s: Secured) -> None:
    """Kafka refuses it, and so says which users exist."""
    for mechanism in BOTH:
        on = f"{SASL}/{mechanism}"
        s.handshake(mechanism, on=on)
        s.authenticate(ScramClient(mechanism, s.user("nobody")).first(), on=on)


@secured_script()
def iterations(s: Secured) -> None:
    user = s.user("dave")
    create(s, user, SHA_512, iterations=16384)
    log_in(s, SHA_512, user)
    s.works(SASL)


@secured_script()
def names_and_their_escapes(s: Secured) -> None:
    for number, (name, sent) in enumerate((
        ("a=b,c", "a=3Db=2Cc"),
        ("a=2Cb", "a=3D2Cb"),
        ("blank at the end ", "blank at the end "),
    )):  # fmt: skip
        user = f"{s.user('dave')} {name}"
        create(s, user, SHA_256)
        on = f"{SASL}/{number}"
        log_in(s, SHA_256, f"{s.user('dave')} {sent}", on=on)
        s.works(on)


@secured_script()
def names_with_letters_outside_of_ascii(s: Secured) -> None:
    create(s, f"{s.user('dave')} Zoë", SHA_256)
    outcome(s, "Zoë", SHA_256, f"{s.user('dave')} Zoë")


@secured_script()
def names_that_are_badly_escaped(s: Secured) -> None:
    user = dave(s)
    for number, sent in enumerate((f"{user}=2c", f"{user}=", f"{user}=41", f"{user}=2", "")):
        opening(s, f"{number}", ScramClient(SHA_256, sent).first())


def opening(s: Secured, name: str, message: bytes) -> None:
    """A first message, and whether the connection continues."""
    on = f"{SASL}/{name}"
    s.handshake(SHA_256, on=on)
    s.authenticate(message, on=on)


@secured_script()
def first_messages(s: Secured) -> None:
    user = dave(s)
    for name, message in (
        ("empty", ""),
        ("no header", f"n={user},r=abc"),
        ("binding supported", f"y,,n={user},r=abc"),
        ("binding wanted", f"p=tls-unique,,n={user},r=abc"),
        ("no nonce", f"n,,n={user}"),
        ("an empty nonce", f"n,,n={user},r="),
        ("no name", "n,,r=abc"),
        ("another order", f"n,,r=abc,n={user}"),
        ("a blank in the nonce", f"n,,n={user},r=a bc"),
        ("a letter that is none of ASCII in the nonce", f"n,,n={user},r=aä"),
        ("nonsense", "nonsense"),
    ):
        opening(s, name, message.encode())
    opening(s, "no UTF-8", b"n,,n=\xff\xfe,r=abc")


@secured_script()
def a_mandatory_extension(s: Secured) -> None:
    """RFC 5802 has the server refuse it; Kafka does not look at it."""
    opening(s, "x", f"n,,m=x,n={dave(s)},r=abc".encode())


@secured_script()
def extensions(s: Secured) -> None:
    """Only one at a time: Kafka signs several in the order of a hash table."""
    user = dave(s)
    for name, more in (
        ("unknown", ",x=y"),
        ("no token", ",tokenauth=false"),
    ):
        client = ScramClient(SHA_256, user)
        server_first = first(s, name, client.first(more=more))
        if server_first is not None:
            final(s, name, client.final(server_first))
    opening(s, "malformed", ScramClient(SHA_256, user).first(more=",x"))


@secured_script()
def token_authentication(s: Secured) -> None:
    """For delegation tokens, of which there are none: Kafka refuses the first message."""
    opening(s, "a token", ScramClient(SHA_256, dave(s)).first(more=",tokenauth=true"))


@secured_script()
def authorization_ids(s: Secured) -> None:
    user = dave(s)
    for name, header in (
        ("its own", f"n,a={user},"),
        ("another one", f"n,a={s.user(BOB)},"),
        ("none", "n,a=,"),
    ):
        client = ScramClient(SHA_256, user)
        server_first = first(s, name, client.first(header))
        if server_first is not None:
            final(s, name, client.final(server_first))


def attempt_final(s: Secured, user: str, name: str, **changed: str) -> None:
    client = ScramClient(SHA_256, user)
    server_first = first(s, name, client.first())
    assert server_first is not None
    final(s, name, client.final(server_first, **changed))


@secured_script()
def other_headers_in_the_final_message(s: Secured) -> None:
    """RFC 5802 has the server compare it with that of the first message; Kafka does not."""
    user = dave(s)
    for name, binding in (("another one", "eSws"), ("none", "")):
        attempt_final(s, user, name, binding=binding)


@secured_script()
def proofs_of_a_wrong_length(s: Secured) -> None:
    """Kafka closes the connection without an answer."""
    user = dave(s)
    for name, proof in (("empty", ""), ("short", "YWJj")):
        attempt_final(s, user, name, proof=proof)


@secured_script()
def an_extension_in_the_final_message(s: Secured) -> None:
    """RFC 5802 has them; Kafka takes none."""
    attempt_final(s, dave(s), "x", more=",x=y")


@secured_script()
def final_messages(s: Secured) -> None:
    """Each with a right proof, but for the last ones."""
    user = dave(s)

    def attempt(name: str, **changed: str) -> None:
        attempt_final(s, user, name, **changed)

    attempt("right")
    attempt("another nonce", nonce="xyz")
    attempt("the client's nonce alone", nonce="")
    attempt("a header that is no base 64", binding="!!!!")
    attempt("a proof of zeros", proof="A" * 43 + "=")
    attempt("a proof that is no base 64", proof="!" * 44)


@secured_script()
def final_messages_that_are_none(s: Secured) -> None:
    user = dave(s)
    for name, message in (
        ("empty", b""),
        ("nonsense", b"nonsense"),
        ("no UTF-8", b"\xff\xfe"),
        ("no proof", b"c=biws,r=abc"),
    ):
        first(s, name, ScramClient(SHA_256, user).first())
        final(s, name, message)
    client = ScramClient(SHA_256, user)
    first(s, "first message twice", client.first())
    final(s, "first message twice", client.first())


@secured_script()
def the_nonce_of_the_server_is_new(s: Secured) -> None:
    user = dave(s)
    seen = [first(s, f"{number}", f"n,,n={user},r=abc".encode()) for number in range(2)]
    nonces = [(message or b"").split(b",")[0] for message in seen]
    s.note("they begin with the client's", [nonce.startswith(b"r=abc") for nonce in nonces])
    s.note("they differ", nonces[0] != nonces[1])


@secured_script()
def messages_that_are_repeated(s: Secured) -> None:
    """A final message proves nothing on another connection."""
    user = dave(s)
    client = ScramClient(SHA_256, user)
    opening = client.first()
    server_first = first(s, "one", opening)
    assert server_first is not None
    message = client.final(server_first)
    final(s, "one", message)
    first(s, "two", opening)
    final(s, "two", message)


@secured_script()
def a_third_message(s: Secured) -> None:
    user = dave(s)
    log_in(s, SHA_256, user)
    s.authenticate(b"")
    s.works(SASL)


@secured_script()
def raw_messages(s: Secured) -> None:
    """After SaslHandshake v0."""
    user = dave(s)
    client = ScramClient(SHA_256, user)
    s.handshake(SHA_256, 0)
    server_first = s.frame("the first message", framed(client.first()))
    assert server_first is not None
    server_final = s.frame("the final message", framed(client.final(server_first)))
    s.note("the server is verified", server_final is not None and client.verified(server_final))
    s.works(SASL)


@secured_script()
def changed_and_removed_credentials(s: Secured) -> None:
    user = dave(s, *BOTH)
    log_in(s, SHA_256, user, on=f"{SASL}/before")
    create(s, user, SHA_256, password="new", iterations=5000)
    log_in(s, SHA_256, user, on=f"{SASL}/old")
    log_in(s, SHA_256, user, "new", on=f"{SASL}/new")
    log_in(s, SHA_512, user, on=f"{SASL}/other mechanism")
    s.works(f"{SASL}/before")
    remove(s, user, SHA_512)
    outcome(s, "removed", SHA_512, user)
    log_in(s, SHA_256, user, "new", on=f"{SASL}/left")
    s.works(f"{SASL}/before")
