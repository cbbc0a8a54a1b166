"""AlterUserScramCredentials and DescribeUserScramCredentials."""

from __future__ import annotations

from tests.differential.scram import SALT, SHA_256, SHA_512, create, has, salted
from tests.differential.script import Entity, Value
from tests.differential.secured import (
    ALICE,
    ALTER,
    BOB,
    CLUSTER,
    CLUSTER_ACTION,
    DESCRIBE,
    Secured,
    secured_script,
)

KEYS = salted(SHA_256, "password")


def upsertion(name: str, mechanism: int = 1, iterations: int = 4096, **changed: Value) -> dict[str, Value]:
    row = {"name": name, "mechanism": mechanism, "iterations": iterations, "salt": SALT}
    return {**row, "salted_password": KEYS, **changed}


def alter(
    s: Secured, *upsertions: dict[str, Value], deletions: tuple[tuple[str, int], ...] = (), on: str = ALICE
) -> Entity:
    rows = [{"name": name, "mechanism": mechanism} for name, mechanism in deletions]
    return s.call("alter_user_scram_credentials", 0, on=on, deletions=rows, upsertions=list(upsertions))


def describe(s: Secured, *names: str, on: str = ALICE) -> Entity:
    rows = [{"name": name} for name in names]
    return s.call("describe_user_scram_credentials", 0, on=on, users=rows)


@secured_script()
def upserted_described_and_deleted(s: Secured) -> None:
    user = s.user("dave")
    alter(s, upsertion(user))
    s.until(lambda: has(s, user, SHA_256), "the credential exists")
    describe(s, user)
    alter(s, upsertion(user, 2, 8192))
    s.until(lambda: has(s, user, SHA_512, iterations=8192), "both exist")
    describe(s, user)
    alter(s, upsertion(user, 1, 5000))
    s.until(lambda: has(s, user, SHA_256, iterations=5000), "it has changed")
    describe(s, user)
    alter(s, deletions=((user, 1),))
    s.until(lambda: not has(s, user, SHA_256, iterations=5000), "it is gone")
    describe(s, user)
    alter(s, deletions=((user, 2),))
    s.until(lambda: not has(s, user, SHA_512, iterations=8192), "the user is gone")
    describe(s, user)


@secured_script()
def several_users(s: Secured) -> None:
    one, two, three = (s.user(name) for name in ("one", "two", "three"))
    alter(s, upsertion(one), upsertion(two, 2), upsertion(""), upsertion(three, 7))
    s.until(lambda: has(s, one, SHA_256) and has(s, two, SHA_512), "they exist")
    describe(s, one, two, three)
    alter(s, upsertion(three), deletions=((one, 1), (two, 1)))


@secured_script()
def unknown_users(s: Secured) -> None:
    describe(s, s.user("nobody"))
    describe(s, s.user(BOB))
    describe(s, "")
    alter(s, deletions=((s.user("nobody"), 1),))
    alter(s, deletions=(("", 1),))
    alter(s, deletions=((s.user("nobody"), 0), (s.user("none"), 9)))


@secured_script()
def iterations(s: Secured) -> None:
    for number in (4095, 0, -1, 16385, 2_000_000_000):
        alter(s, upsertion(s.user("dave"), iterations=number))
    describe(s, s.user("dave"))
    alter(s, upsertion(s.user("least"), 1, 4096), upsertion(s.user("most"), 2, 16384))


@secured_script()
def mechanisms(s: Secured) -> None:
    for number in (0, 3, -1, 127):
        alter(s, upsertion(s.user("dave"), number))
    create(s, s.user("dave"), SHA_256)
    for number in (2, 0, 3):
        alter(s, deletions=((s.user("dave"), number),))
    describe(s, s.user("dave"))


@secured_script()
def names(s: Secured) -> None:
    for name in ("", " ", "a b", "a,b=c", "Zoë", "x" * 300):
        alter(s, upsertion(f"{s.name} {name}" if name else ""))


@secured_script()
def the_same_user_twice(s: Secured) -> None:
    user = s.user("dave")
    alter(s, upsertion(user), upsertion(user))
    alter(s, upsertion(user), upsertion(user, 2))
    alter(s, upsertion(user), deletions=((user, 1),))
    alter(s, upsertion(user, 2), deletions=((user, 1),))
    alter(s, deletions=((user, 1), (user, 1)))
    alter(s, upsertion(user), upsertion(user), upsertion(s.user("other")))
    alter(s, upsertion(user, iterations=1), upsertion(user))
    describe(s, user, user)
    describe(s, user, user, s.user("other"))


@secured_script()
def salts_and_passwords(s: Secured) -> None:
    user = s.user("dave")
    alter(s, upsertion(user, salt=b""))
    alter(s, upsertion(user, salt=b"s"))
    alter(s, upsertion(user, salted_password=b""))
    alter(s, upsertion(user, salted_password=b"short"))
    alter(s, upsertion(user, 2, salted_password=KEYS))


@secured_script()
def nothing_named(s: Secured) -> None:
    alter(s)
    create(s, s.user("dave"), SHA_512)
    for users in (None, ()):
        answer = s.prepare("describe_user_scram_credentials", 0, on=ALICE, users=users)
        rows = [row for row in answer.results if row.user == s.user("dave")]
        s.note("all users", [
            answer.error_code.name,
            [[row.error_code.name, [[each.mechanism, each.iterations] for each in row.credential_infos]]
             for row in rows],
        ])  # fmt: skip


@secured_script()
def altering_without_rights(s: Secured) -> None:
    user = s.user("dave")

    def ask() -> None:
        alter(s, upsertion(user), upsertion(s.user("erin"), 9), deletions=((s.user("nobody"), 1),), on=BOB)
        alter(s, on=BOB)

    s.rising(
        ask, (DESCRIBE, CLUSTER, "kafka-cluster"), (CLUSTER_ACTION, CLUSTER, "kafka-cluster"),
        (ALTER, CLUSTER, "kafka-cluster"),
    )  # fmt: skip


@secured_script(seconds=5)
def describing_all_without_rights(s: Secured) -> None:
    """Kafka leaves the request for all users unanswered."""
    s.call_or_silence("describe_user_scram_credentials", 0, on=BOB, users=None)


@secured_script()
def describing_without_rights(s: Secured) -> None:
    create(s, s.user("dave"), SHA_256)
    describe(s, s.user("dave"), on=BOB)
    describe(s, s.user("dave"), s.user("dave"), s.user("nobody"), on=BOB)
    describe(s, on=BOB)


@secured_script()
def describing_with_rights(s: Secured) -> None:
    create(s, s.user("dave"), SHA_256)
    s.allow(BOB, DESCRIBE, CLUSTER)
    describe(s, s.user("dave"), s.user("nobody"), on=BOB)


@secured_script()
def a_user_may_not_change_its_own(s: Secured) -> None:
    alter(s, upsertion(s.user(BOB)), on=BOB)
