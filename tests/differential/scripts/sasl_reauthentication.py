"""Re-authentication (KIP-368) on listeners with a session lifetime."""

from __future__ import annotations

import time

from tests.differential.scram import SHA_256, ScramClient, create, log_in, remove
from tests.differential.scripts.base_other import framed
from tests.differential.scripts.sasl_scram import outcome
from tests.differential.scripts.sasl_states import versions
from tests.differential.secured import (
    BOB,
    BRIEF,
    CAROL,
    LIFETIMES_MS,
    REAUTH,
    Secured,
    password_of,
    plain_token,
    secured_script,
)

SOON_S = 1.2
"""Longer than the second that Kafka demands between two re-authentications."""
OVER_S = LIFETIMES_MS[BRIEF] / 1000 + 0.4


def logged_in(s: Secured, on: str = REAUTH, version: int = 2) -> None:
    s.handshake(on=on)
    s.authenticate(s.token(), version, on=on)


@secured_script()
def lifetimes(s: Secured) -> None:
    for version in (0, 1, 2):
        on = f"{REAUTH}/{version}"
        logged_in(s, on, version)
        s.works(on)


@secured_script()
def lifetimes_of_scram(s: Secured) -> None:
    """Only the last answer has one."""
    create(s, s.user("dave"), SHA_256)
    log_in(s, SHA_256, s.user("dave"), on=REAUTH)
    s.works(REAUTH)


@secured_script(seconds=3)
def same_user_again(s: Secured) -> None:
    logged_in(s)
    for _ in range(2):
        s.wait(SOON_S)
        logged_in(s)
        s.works(REAUTH)


@secured_script(seconds=2)
def too_early(s: Secured) -> None:
    """A second passes from one re-authentication to the next; the first one may come at once."""
    logged_in(s)
    logged_in(s)
    s.works(REAUTH)
    on, code = s.until(lambda: _refused_early(s), "a handshake comes too early")
    s.note("a handshake within the second", code)
    s.note("the connection continues", _is_served(s, on))
    s.wait(SOON_S)
    connection = s.connection(on)
    answer = connection.call("sasl_handshake", 1, mechanism="PLAIN")
    s.note("a handshake after the second", answer.error_code.name)
    answer = connection.call("sasl_authenticate", 2, auth_bytes=s.token())
    s.note("its token", answer.error_code.name)
    s.note("the connection continues", _is_served(s, on))


def _refused_early(s: Secured) -> tuple[str, str] | None:
    """A connection with two re-authentications at once, and the code of the second one. None: the
    machine is too slow for two within the second."""
    on = f"{REAUTH}/{time.monotonic()}"
    connection = s.connection(on)
    begun = 0.0
    for _ in range(2):
        begun = time.monotonic()
        connection.call("sasl_handshake", 1, mechanism="PLAIN")
        connection.call("sasl_authenticate", 2, auth_bytes=s.token())
    answer = connection.call("sasl_handshake", 1, mechanism="PLAIN")
    return (on, answer.error_code.name) if time.monotonic() < begun + 0.9 else None


def _is_served(s: Secured, on: str) -> bool:
    return bool(s.prepare("find_coordinator", 3, on, key="", key_type=9).error_code.value)


@secured_script()
def requests_after_an_early_handshake(s: Secured) -> None:
    for name in ("metadata", "versions", "handshake"):
        on = f"{REAUTH}/{name}"
        logged_in(s, on)
        s.handshake(on=on)
        between(s, name, on)


def between(s: Secured, name: str, on: str) -> None:
    """Another request between the handshake and the token of a re-authentication."""
    if name == "metadata":
        s.works(on)
    elif name == "versions":
        versions(s, on=on)
    else:
        s.handshake(on=on)
    if s.is_open(on):
        s.authenticate(s.token(), on=on)


@secured_script(seconds=2)
def another_user(s: Secured) -> None:
    logged_in(s)
    s.wait(SOON_S)
    s.handshake(on=REAUTH)
    s.authenticate(s.token(CAROL), on=REAUTH)
    s.ended(REAUTH)


@secured_script(seconds=2)
def another_mechanism(s: Secured) -> None:
    create(s, s.user("dave"), SHA_256)
    logged_in(s)
    s.wait(SOON_S)
    s.handshake(SHA_256, on=REAUTH)
    s.authenticate(ScramClient(SHA_256, s.user("dave")).first(), on=REAUTH)
    s.ended(REAUTH)


@secured_script(seconds=2)
def an_unknown_mechanism(s: Secured) -> None:
    logged_in(s)
    s.wait(SOON_S)
    s.handshake("nonsense", on=REAUTH)
    s.ended(REAUTH)


@secured_script(seconds=2)
def a_wrong_password(s: Secured) -> None:
    logged_in(s)
    s.wait(SOON_S)
    s.handshake(on=REAUTH)
    s.authenticate(plain_token(s.user(BOB), password_of(s.user(BOB)) + "x"), on=REAUTH)
    s.ended(REAUTH)


@secured_script(seconds=2)
def scram_again(s: Secured) -> None:
    user = s.user("dave")
    create(s, user, SHA_256)
    log_in(s, SHA_256, user, on=REAUTH)
    s.wait(SOON_S)
    log_in(s, SHA_256, user, on=REAUTH)
    s.works(REAUTH)


@secured_script(seconds=2)
def a_removed_credential(s: Secured) -> None:
    """The session goes to its end, and no further."""
    user = s.user("dave")
    create(s, user, SHA_256)
    log_in(s, SHA_256, user, on=REAUTH)
    remove(s, user, SHA_256)
    s.works(REAUTH)
    s.wait(SOON_S)
    outcome(s, "dave again", SHA_256, user, on=REAUTH)


@secured_script(seconds=2)
def requests_in_between(s: Secured) -> None:
    """Requests that are sent between the handshake and the token of a re-authentication."""
    for name in ("metadata", "versions", "handshake"):
        on = f"{REAUTH}/{name}"
        logged_in(s, on)
    s.wait(SOON_S)
    for name in ("metadata", "versions", "handshake"):
        on = f"{REAUTH}/{name}"
        s.handshake(on=on)
        between(s, name, on)


@secured_script(seconds=2)
def a_token_without_a_handshake(s: Secured) -> None:
    logged_in(s)
    s.wait(SOON_S)
    s.authenticate(s.token(), on=REAUTH)
    s.works(REAUTH)


@secured_script(seconds=2)
def a_handshake_of_version_0(s: Secured) -> None:
    logged_in(s)
    s.wait(SOON_S)
    s.handshake(version=0, on=REAUTH)
    s.frame("a raw token", framed(s.token()), REAUTH)


@secured_script(seconds=4)
def a_session_that_is_over(s: Secured) -> None:
    """The next request closes the connection; a handshake still renews it."""
    for name in ("request", "handshake", "versions"):
        logged_in(s, f"{BRIEF}/{name}")
    s.wait(OVER_S)
    s.works(f"{BRIEF}/request")
    logged_in(s, f"{BRIEF}/handshake")
    s.works(f"{BRIEF}/handshake")
    versions(s, on=f"{BRIEF}/versions")


@secured_script(seconds=4)
def a_session_of_an_old_client(s: Secured) -> None:
    """A client that authenticated with version 0 knows no lifetimes; its session ends too."""
    logged_in(s, BRIEF, version=0)
    s.handshake(version=0, on=f"{BRIEF}/raw")
    s.frame("a raw token", framed(s.token()), f"{BRIEF}/raw")
    s.wait(OVER_S)
    s.works(BRIEF)
    s.works(f"{BRIEF}/raw")
