"""CreateAcls: entries that are accepted, and every refusal."""

from __future__ import annotations

from tests.differential.script import Entity, Value
from tests.differential.secured import (
    ALICE,
    ALL,
    ALLOW,
    ALTER,
    ANY,
    BOB,
    CAROL,
    CLUSTER,
    CLUSTER_ACTION,
    CREATE,
    DENY,
    DESCRIBE,
    EVERYONE,
    GROUP,
    KAFKA_CLUSTER,
    MATCH,
    PREFIXED,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    USER,
    WRITE,
    Secured,
    secured_script,
)


def create(s: Secured, *rows: dict[str, Value], on: str = ALICE, version: int = 3) -> Entity:
    return s.call("create_acls", version, on=on, creations=list(rows))


def changed(row: dict[str, Value], **fields: Value) -> dict[str, Value]:
    return {**row, **fields}


def usual(s: Secured, **fields: Value) -> dict[str, Value]:
    return changed(s.entry(BOB, READ, TOPIC, f"{s.name}-t"), **fields)


@secured_script()
def every_type_of_resource(s: Secured) -> None:
    create(
        s,
        s.entry(BOB, READ, TOPIC, f"{s.name}-t"),
        s.entry(BOB, READ, GROUP, f"{s.name}-g"),
        s.entry(BOB, DESCRIBE, TRANSACTIONAL_ID, f"{s.name}-x"),
        s.entry(BOB, CREATE, CLUSTER),
        s.entry(BOB, DESCRIBE, 6, f"{s.name}-token"),
        s.entry(BOB, DESCRIBE, USER, s.principal(CAROL)),
    )
    create(s)


@secured_script()
def each_version(s: Secured) -> None:
    for version in (1, 2, 3):
        create(s, usual(s, resource_name=f"{s.name}-{version}"), version=version)
        row = usual(s, resource_name=f"{s.name}-p{version}", resource_pattern_type=PREFIXED)
        create(s, row, version=version)


@secured_script()
def an_entry_that_exists(s: Secured) -> None:
    row = usual(s)
    create(s, row, row)
    s.until(lambda: s.entries(filter_of(row)) == 1, "it exists")
    create(s, row)
    s.note("entries", s.entries(filter_of(row)))


def filter_of(row: dict[str, Value]) -> dict[str, Value]:
    """All entries of the resource."""
    return {
        "resource_type_filter": row["resource_type"], "resource_name_filter": row["resource_name"],
        "pattern_type_filter": row["resource_pattern_type"], "principal_filter": None, "host_filter": None,
        "operation": ANY, "permission_type": ANY,
    }  # fmt: skip


@secured_script()
def names_that_are_refused(s: Secured) -> None:
    create(s, usual(s, resource_name=""))
    create(s, usual(s, resource_name="", resource_pattern_type=PREFIXED))
    for name in ("", "*", "kafka", "Kafka-Cluster"):
        create(s, s.entry(BOB, CREATE, CLUSTER, name))
    create(s, s.entry(BOB, CREATE, CLUSTER, KAFKA_CLUSTER, PREFIXED))


@secured_script()
def names_that_are_accepted(s: Secured) -> None:
    long = f"{s.name}-" + "n" * 300
    for name in (f"{s.name} a b", f"{s.name}/?*", f"{s.name}-ä", long):
        create(s, usual(s, resource_name=name))
        create(s, usual(s, resource_name=name, resource_pattern_type=PREFIXED))


@secured_script()
def principals(s: Secured) -> None:
    for principal in (
        "bob",
        "",
        ":",
        "User:",
        ":bob",
        f"Group:{s.name}",
        f"User:{s.name}:x",
        f"User:{s.name} y",
    ):
        create(s, usual(s, principal=principal))
    create(s, usual(s, principal=f"user:{s.name}"))


@secured_script()
def hosts(s: Secured) -> None:
    for host in ("127.0.0.1", "", "10.0.0.0/8", "::1", "localhost", " "):
        create(s, usual(s, host=host))


@secured_script()
def operations_that_the_type_does_not_have(s: Secured) -> None:
    create(
        s,
        s.entry(BOB, WRITE, GROUP, f"{s.name}-g"),
        s.entry(BOB, CLUSTER_ACTION, TOPIC, f"{s.name}-t"),
        s.entry(BOB, READ, CLUSTER),
        s.entry(BOB, READ, TRANSACTIONAL_ID, f"{s.name}-x"),
        s.entry(BOB, ALL, USER, s.principal(CAROL)),
    )


@secured_script()
def values_that_only_filters_have(s: Secured) -> None:
    for fields in (
        {"resource_pattern_type": ANY},
        {"resource_pattern_type": MATCH},
        {"resource_type": ANY},
        {"operation": ANY},
        {"permission_type": ANY},
    ):
        create(s, usual(s, **fields))


@secured_script()
def values_that_do_not_exist(s: Secured) -> None:
    for fields in (
        {"resource_pattern_type": 0},
        {"resource_pattern_type": 9},
        {"resource_type": 0},
        {"resource_type": 99},
        {"operation": 0},
        {"operation": 99},
        {"permission_type": 0},
        {"permission_type": 9},
        {"permission_type": -1},
    ):
        create(s, usual(s, **fields))


@secured_script()
def rows_on_their_own(s: Secured) -> None:
    rows = [
        usual(s, resource_name=f"{s.name}-1"),
        usual(s, resource_name=""),
        usual(s, resource_name=f"{s.name}-2", principal="bob"),
        s.entry(BOB, CREATE, CLUSTER, "other"),
        usual(s, resource_name=f"{s.name}-3"),
    ]
    connection = s.connection(ALICE)
    answer = connection.call("create_acls", 3, creations=rows)
    s.note("codes in the order of the request", [row.error_code.name for row in answer.results])
    s.note("texts", [row.error_message is None or bool(row.error_message) for row in answer.results])


@secured_script()
def deny_and_allow_of_the_same(s: Secured) -> None:
    create(s, usual(s), usual(s, permission_type=DENY), usual(s, permission_type=ALLOW, host="127.0.0.1"))
    s.until(lambda: s.entries(filter_of(usual(s))) == 3, "they exist")
    s.note("entries", s.entries(filter_of(usual(s))))


@secured_script()
def without_rights(s: Secured) -> None:
    def ask() -> None:
        create(s, s.entry(CAROL, READ, TOPIC, f"{s.name}-t"), on=BOB)
        create(s, s.entry(CAROL, READ, TOPIC, ""), s.entry(CAROL, READ, TOPIC, f"{s.name}-t"), on=BOB)
        create(s, on=BOB)

    s.rising(ask, (DESCRIBE, CLUSTER, KAFKA_CLUSTER), (CREATE, CLUSTER, KAFKA_CLUSTER),
             (ALTER, CLUSTER, KAFKA_CLUSTER))  # fmt: skip


@secured_script()
def for_everyone(s: Secured) -> None:
    create(s, s.entry(EVERYONE, READ, TOPIC, f"{s.name}-t"))
    create(s, s.entry(EVERYONE, DESCRIBE, GROUP, f"{s.name}-", PREFIXED, host="127.0.0.1"))
    s.until(lambda: s.entries(filter_of(usual(s))) == 1, "it exists")
