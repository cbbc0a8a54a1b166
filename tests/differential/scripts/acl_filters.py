"""DescribeAcls and DeleteAcls: filters, and the entries that they match."""

from __future__ import annotations

from tests.differential.script import Entity, Value
from tests.differential.scripts.base_other import framed, header
from tests.differential.secured import (
    ALICE,
    ALLOW,
    ALTER,
    ANY,
    BOB,
    CAROL,
    CLUSTER,
    DENY,
    DESCRIBE,
    EVERYONE,
    GROUP,
    KAFKA_CLUSTER,
    LITERAL,
    MATCH,
    PREFIXED,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    Secured,
    secured_script,
)
from tests.differential.transcript import Json


def wanted(
    name: str | None, pattern: int = LITERAL, kind: int = TOPIC, principal: str | None = None,
    host: str | None = None, operation: int = ANY, permission: int = ANY,
) -> dict[str, Value]:  # fmt: skip
    return {
        "resource_type_filter": kind, "resource_name_filter": name, "pattern_type_filter": pattern,
        "principal_filter": principal, "host_filter": host, "operation": operation,
        "permission_type": permission,
    }  # fmt: skip


def own(s: Secured) -> Json:
    """Keep the entries of this script's users."""

    def kept(answer: Json) -> Json:
        rows = []
        for row in answer["resources"]:
            acls = [each for each in row["acls"] if s.name in each["principal"] + row["resource_name"]]
            if acls:
                rows.append({**row, "acls": acls})
        return {**answer, "resources": rows}

    return kept


def describe(
    s: Secured, name: str | None, pattern: int = LITERAL, *, on: str = ALICE, version: int = 3, **more: Value
) -> Entity:
    values = wanted(name, pattern, **more)
    return s.call("describe_acls", version, on=on, keep=own(s), **values)


def delete(s: Secured, *filters: dict[str, Value], on: str = ALICE, version: int = 3) -> Entity:
    return s.call("delete_acls", version, on=on, filters=list(filters))


def furnished(s: Secured) -> str:
    """Entries of several kinds for the topic `name`, and some that do not apply to it."""
    name = f"{s.name}-topic"
    s.allow(BOB, READ, TOPIC, name)
    s.allow(BOB, WRITE, TOPIC, name, host="127.0.0.1")
    s.deny(CAROL, READ, TOPIC, name)
    s.allow(BOB, DESCRIBE, TOPIC, f"{s.name}-", PREFIXED)
    s.allow(CAROL, WRITE, TOPIC, f"{s.name}-top", PREFIXED)
    s.allow(BOB, READ, TOPIC, f"{s.name}-topics")
    s.allow(BOB, READ, TOPIC, f"{name}-", PREFIXED)
    s.allow(BOB, WRITE, TOPIC, EVERYONE)
    s.allow(CAROL, READ, GROUP, name)
    s.allow(BOB, DESCRIBE, CLUSTER)
    return name


@secured_script()
def by_name(s: Secured) -> None:
    name = furnished(s)
    for pattern in (LITERAL, PREFIXED, ANY, MATCH):
        describe(s, name, pattern)
        describe(s, f"{s.name}-", pattern)
        describe(s, f"{s.name}-missing", pattern)
    describe(s, EVERYONE, LITERAL)
    describe(s, EVERYONE, PREFIXED)


@secured_script()
def by_type(s: Secured) -> None:
    furnished(s)
    for kind in (ANY, TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID):
        describe(s, None, ANY, kind=kind, principal=s.principal(BOB))
        describe(s, None, ANY, kind=kind, principal=s.principal(CAROL))
    describe(s, KAFKA_CLUSTER, kind=CLUSTER, principal=s.principal(BOB))


@secured_script()
def by_pattern(s: Secured) -> None:
    furnished(s)
    for pattern in (ANY, MATCH, LITERAL, PREFIXED):
        describe(s, None, pattern, principal=s.principal(BOB))


@secured_script()
def by_entry(s: Secured) -> None:
    name = furnished(s)
    describe(s, name, ANY, operation=READ)
    describe(s, name, ANY, operation=READ, permission=ALLOW)
    describe(s, name, ANY, permission=DENY)
    describe(s, name, ANY, host="127.0.0.1")
    describe(s, name, ANY, host="*")
    describe(s, name, ANY, host="")
    describe(s, name, MATCH, principal=s.principal(CAROL))
    describe(s, name, MATCH, operation=DESCRIBE)
    describe(s, name, MATCH, principal="User:*")


@secured_script()
def empty_and_odd_filters(s: Secured) -> None:
    name = furnished(s)
    describe(s, "", ANY)
    describe(s, name, principal="")
    describe(s, name, principal="no colon")
    describe(s, name, principal="Group:x")
    describe(s, "x", ANY, kind=CLUSTER)


@secured_script()
def each_version(s: Secured) -> None:
    name = furnished(s)
    for version in (1, 2, 3):
        describe(s, name, MATCH, version=version)
    for version in (1, 2, 3):
        delete(s, wanted(name, principal=s.principal(CAROL), operation=version), version=version)


@secured_script()
def values_that_do_not_exist(s: Secured) -> None:
    name = f"{s.name}-topic"
    for number, row in enumerate((
        wanted(name, pattern=0), wanted(name, pattern=9), wanted(name, kind=0), wanted(name, kind=99),
        wanted(name, operation=0), wanted(name, operation=99), wanted(name, permission=0),
        wanted(name, permission=9),
    )):  # fmt: skip
        s.call("describe_acls", 3, on=f"{ALICE}/describe{number}", **row)
        delete(s, row, on=f"{ALICE}/delete{number}")


@secured_script()
def deleting(s: Secured) -> None:
    name = furnished(s)
    delete(s, wanted(f"{s.name}-missing"))
    delete(s, wanted(name, operation=READ, permission=DENY))
    delete(s, wanted(name, principal=s.principal(BOB)), wanted(name, PREFIXED))
    s.until(lambda: s.entries(wanted(name)) == 0, "they are gone")
    describe(s, name, MATCH)
    delete(s, wanted(name, MATCH, operation=DESCRIBE))
    s.until(lambda: s.entries(wanted(f"{s.name}-", PREFIXED)) == 0, "it is gone")
    describe(s, f"{s.name}-", PREFIXED)
    delete(s)


@secured_script()
def filters_that_overlap(s: Secured) -> None:
    """An entry that two filters match."""
    name = f"{s.name}-topic"
    s.allow(BOB, READ, TOPIC, name)
    s.allow(CAROL, READ, TOPIC, name)
    delete(s, wanted(name), wanted(name, principal=s.principal(BOB)), wanted(name, operation=WRITE))
    s.until(lambda: s.entries(wanted(name)) == 0, "they are gone")


@secured_script()
def describing_without_rights(s: Secured) -> None:
    name = f"{s.name}-topic"
    s.allow(CAROL, READ, TOPIC, name)

    def ask() -> None:
        describe(s, name, on=BOB)
        describe(s, f"{s.name}-missing", on=BOB)

    s.rising(ask, (READ, TOPIC, name), (DESCRIBE, CLUSTER, KAFKA_CLUSTER))


@secured_script()
def deleting_without_rights(s: Secured) -> None:
    name = f"{s.name}-topic"
    s.allow(CAROL, READ, TOPIC, name)

    def ask() -> None:
        delete(s, wanted(f"{s.name}-missing"), wanted(name), on=BOB)
        delete(s, on=BOB)

    s.rising(ask, (DESCRIBE, CLUSTER, KAFKA_CLUSTER), (ALTER, CLUSTER, KAFKA_CLUSTER))


@secured_script()
def alter_describes_too(s: Secured) -> None:
    s.allow(BOB, ALTER, CLUSTER)
    describe(s, f"{s.name}-missing", on=BOB)


@secured_script()
def requests_cut_off(s: Secured) -> None:
    """DescribeAcls that ends too early."""
    s.frame("without a body", framed(header(29, 3, flexible=True)), f"{ALICE}/1")
    s.frame("half a body", framed(header(29, 3, flexible=True) + b"\x02\x00"), f"{ALICE}/2")
