"""AlterClientQuotas and DescribeClientQuotas: entities, filters, refusals, rights; and how long a
client must wait that has exceeded a quota.

Kafka answers rows in the order of a hash table, so they are sorted. Its brokers learn of a change
later than the client, so scripts poll before they describe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from kbroker.client.rpc import Entity
from kbroker.formats.batches import Record, build_batch
from tests.differential.script import Session, Value, script
from tests.differential.secured import (
    ALTER,
    ALTER_CONFIGS,
    BOB,
    CLUSTER,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    KAFKA_CLUSTER,
    Secured,
    secured_script,
)
from tests.differential.transcript import Json

Names: TypeAlias = Mapping[str, str | None]
EXACT, DEFAULT, SPECIFIED = range(3)
PRODUCED, FETCHED, PERCENTAGE = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
CONNECTIONS = "connection_creation_rate"
MUCH = 1e12
"""Defaults hold for the clients of other scripts, too."""


def by_entity(answer: Json) -> Json:
    """The answer with its rows sorted, and the parts of each."""
    assert isinstance(answer, dict)
    if isinstance(rows := answer.get("entries"), list):
        for row in rows:
            row["entity"].sort(key=str)
            if "values" in row:
                row["values"].sort(key=str)
        rows.sort(key=lambda row: str(row["entity"]))
    return answer


def parts(names: Names) -> list[dict[str, Value]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in names.items()]


def entry(names: Names, *ops: tuple[str, float | None]) -> dict[str, Value]:
    rows = [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops]
    return {"entity": parts(names), "ops": rows}


def alter(
    s: Session, *entries: dict[str, Value], on: str = "a", version: int = 1, validate_only: bool = False
) -> Entity:
    return s.call(
        "alter_client_quotas", version, on=on, keep=by_entity, entries=list(entries),
        validate_only=validate_only,
    )  # fmt: skip


def components(wanted: tuple[tuple[str, int, str | None], ...]) -> list[dict[str, Value]]:
    return [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in wanted]


def describe(
    s: Session, *wanted: tuple[str, int, str | None], on: str = "a", version: int = 1, strict: bool = False
) -> Entity:
    return s.call(
        "describe_client_quotas", version, on=on, keep=by_entity, components=components(wanted), strict=strict
    )


def until(s: Session, names: Names, **values: float) -> None:
    """Wait until a description shows exactly these quotas of the entity."""
    wanted = tuple((kind, DEFAULT if name is None else EXACT, name) for kind, name in names.items())

    def is_so() -> bool:
        answer = s.prepare("describe_client_quotas", 1, components=components(wanted), strict=True)
        return {row.key: row.value for each in answer.entries for row in each.values} == values

    s.until(is_so, f"the quotas of {names} are {values}")


def put(s: Session, names: Names, **values: float) -> None:
    """Not part of the transcript."""
    entries = [entry(names, *values.items())]
    answer = s.prepare("alter_client_quotas", 1, entries=entries, validate_only=False)
    assert answer.entries[0].error_code == 0, answer
    until(s, names, **values)


def user(s: Session, name: str = "u") -> str:
    return f"{s.name}-{name}"


@script()
def set_described_and_removed(s: Session) -> None:
    names = {"user": user(s)}
    for version in (0, 1):
        alter(s, entry(names, (PRODUCED, 1000.0), (PERCENTAGE, 12.5)), version=version)
        until(s, names, **{PRODUCED: 1000.0, PERCENTAGE: 12.5})
        describe(s, ("user", EXACT, user(s)), version=version)
        alter(s, entry(names, (PRODUCED, 2000.0), (PERCENTAGE, None)), version=version)
        until(s, names, **{PRODUCED: 2000.0})
        describe(s, ("user", EXACT, user(s)), version=version)
        alter(s, entry(names, (PRODUCED, None)), version=version)
        until(s, names)
        describe(s, ("user", EXACT, user(s)), version=version)


@script()
def entities_of_each_type(s: Session) -> None:
    mine = user(s)
    for names, key in (
        ({"user": mine}, PRODUCED),
        ({"client-id": mine}, FETCHED),
        ({"user": mine, "client-id": mine}, FETCHED),
        ({"user": mine, "client-id": None}, FETCHED),
        ({"ip": "10.77.1.1"}, CONNECTIONS),
    ):
        alter(s, entry(names, (key, MUCH if key != CONNECTIONS else 7.0)))
        until(s, names, **{key: MUCH if key != CONNECTIONS else 7.0})
    describe(s, ("user", EXACT, mine))
    describe(s, ("client-id", EXACT, mine))
    describe(s, ("ip", EXACT, "10.77.1.1"))


@script()
def strict_and_other_filters(s: Session) -> None:
    mine, other = user(s), user(s, "other")
    put(s, {"user": mine}, **{PRODUCED: MUCH})
    put(s, {"user": mine, "client-id": mine}, **{PRODUCED: MUCH})
    put(s, {"user": mine, "client-id": other}, **{FETCHED: MUCH})
    put(s, {"user": mine, "client-id": None}, **{FETCHED: MUCH})
    for strict in (False, True):
        describe(s, ("user", EXACT, mine), strict=strict)
        describe(s, ("user", EXACT, mine), ("client-id", EXACT, mine), strict=strict)
        describe(s, ("user", EXACT, mine), ("client-id", DEFAULT, None), strict=strict)
        describe(s, ("user", EXACT, mine), ("client-id", SPECIFIED, None), strict=strict)
        describe(s, ("client-id", EXACT, other), strict=strict)
        describe(s, ("user", EXACT, user(s, "nobody")), strict=strict)
    describe(s, strict=True)


@script()
def refused_filters(s: Session) -> None:
    for wanted in (
        (("", EXACT, "a"),),
        (("group", EXACT, "a"),),
        (("User", EXACT, "a"),),
        (("user", EXACT, None),),
        (("user", DEFAULT, "a"),),
        (("user", SPECIFIED, "a"),),
        (("user", 3, None),),
        (("user", -1, None),),
        (("user", EXACT, "a"), ("user", EXACT, "b")),
        (("user", EXACT, "a"), ("user", SPECIFIED, None)),
        (("user", EXACT, "a"), ("ip", EXACT, "10.0.0.1")),
        (("ip", SPECIFIED, None), ("client-id", DEFAULT, None)),
        (("group", EXACT, "a"), ("user", EXACT, None)),
        (("user", EXACT, None), ("group", EXACT, "a")),
    ):
        for version in (0, 1):
            describe(s, *wanted, version=version)


@script()
def refused_entities(s: Session) -> None:
    mine = user(s)
    for names in (
        {},
        {"group": mine},
        {"user": ""},
        {"client-id": ""},
        {"user": mine, "client-id": ""},
        {"ip": "10.0.0.1", "user": mine},
        {"ip": "10.0.0.1", "client-id": None},
        {"ip": "no address"},
        {"ip": ""},
        {"user": mine, "group": mine},
    ):
        alter(s, entry(names, (PRODUCED, 1.0)))
        alter(s, entry(names))
        alter(s, entry(names, (PRODUCED, 1.0)), validate_only=True)


@script()
def refused_values(s: Session) -> None:
    mine = user(s)
    for key, value in (
        ("nonsense", 1.0),
        ("", 1.0),
        ("SCRAM-SHA-256", 1.0),
        (CONNECTIONS, 1.0),
        (PRODUCED, 0.0),
        (PRODUCED, -1.0),
        (PRODUCED, 1.5),
        (PRODUCED, 1e300),
        (FETCHED, 0.0),
        (FETCHED, 0.5),
        (PERCENTAGE, 0.0),
        (PERCENTAGE, -0.001),
    ):
        alter(s, entry({"user": mine}, (key, value)))
        alter(s, entry({"client-id": mine}, (key, value)))
    for key, value in ((PRODUCED, 1.0), (CONNECTIONS, 0.0), (CONNECTIONS, 1.5), (CONNECTIONS, 1e12)):
        alter(s, entry({"ip": "10.77.2.1"}, (key, value)))
    describe(s, ("user", EXACT, mine))
    describe(s, ("client-id", EXACT, mine))
    describe(s, ("ip", EXACT, "10.77.2.1"))


@script()
def values_that_are_taken(s: Session) -> None:
    names = {"user": user(s)}
    for key, value in (
        (PRODUCED, 1.0), (PRODUCED, 1e15), (FETCHED, 12345678.0), (PERCENTAGE, 0.001), (PERCENTAGE, 1234.5),
    ):  # fmt: skip
        alter(s, entry(names, (key, value)))
        until(s, names, **{key: value})
        describe(s, ("user", EXACT, user(s)))
        put_away(s, names, key)


def put_away(s: Session, names: Names, *keys: str) -> None:
    entries = [entry(names, *((key, None) for key in keys))]
    s.prepare("alter_client_quotas", 1, entries=entries, validate_only=False)
    until(s, names)


@script()
def refused_rows_do_not_affect_others(s: Session) -> None:
    one, two = {"user": user(s, "one")}, {"user": user(s, "two")}
    alter(
        s,
        entry(one, (PRODUCED, 1000.0)),
        entry({}, (PRODUCED, 1000.0)),
        entry(two, (PRODUCED, 1000.0), (FETCHED, -1.0)),
        entry({"group": "g"}, (PRODUCED, 1000.0)),
    )
    until(s, one, **{PRODUCED: 1000.0})
    describe(s, ("user", EXACT, user(s, "one")))
    describe(s, ("user", EXACT, user(s, "two")))


@script()
def validation_changes_nothing(s: Session) -> None:
    one, two = {"user": user(s, "one")}, {"user": user(s, "two")}
    put(s, one, **{PRODUCED: 1000.0})
    alter(s, entry(one, (PRODUCED, None)), entry(two, (PRODUCED, 1.0)), validate_only=True)
    alter(s, entry(one, (FETCHED, -1.0)), validate_only=True)
    put(s, {"user": user(s, "three")}, **{PRODUCED: 1.0})  # Later than those, if they had an effect.
    describe(s, ("user", EXACT, user(s, "one")))
    describe(s, ("user", EXACT, user(s, "two")))


@script()
def named_twice(s: Session) -> None:
    """The codes; what then holds is another matter (docs/differences.md)."""
    mine = {"user": user(s)}
    alter(s, entry(mine, (PRODUCED, 1.0), (PRODUCED, 2.0)), validate_only=True)
    alter(s, entry(mine, (PRODUCED, 1.0), (PRODUCED, None)), validate_only=True)
    alter(s, entry(mine, (PRODUCED, 1.0)), entry(mine, (FETCHED, 2.0)), validate_only=True)
    twice = {**entry(mine, (PRODUCED, 1.0)), "entity": [*parts({"user": "x"}), *parts(mine)]}
    alter(s, twice, validate_only=True)


@script()
def removing_what_is_not_there(s: Session) -> None:
    mine = {"user": user(s)}
    alter(s, entry(mine, (PRODUCED, None)))
    alter(s, entry(mine, ("nonsense", None)))
    alter(s, entry(mine))
    alter(s)
    describe(s, ("user", EXACT, user(s)))


@secured_script()
def describing_needs_a_right(s: Secured) -> None:
    put(s, {"user": user(s)}, **{PRODUCED: 1000.0})

    def ask() -> None:
        for version in (0, 1):
            describe(s, ("user", EXACT, user(s)), on=BOB, version=version)
        describe(s, ("group", EXACT, "g"), on=BOB)

    s.rising(ask, (DESCRIBE, CLUSTER, KAFKA_CLUSTER), (DESCRIBE_CONFIGS, CLUSTER, KAFKA_CLUSTER))


@secured_script()
def altering_needs_a_right(s: Secured) -> None:
    mine = {"user": user(s)}

    def ask() -> None:
        for version in (0, 1):
            alter(s, entry(mine, (PRODUCED, 1000.0)), on=BOB, version=version)
        alter(s, entry(mine, (PRODUCED, -1.0)), entry({}, (PRODUCED, 1.0)), on=BOB)
        alter(s, entry(mine, (PRODUCED, 1.0)), on=BOB, validate_only=True)
        alter(s, on=BOB)

    s.rising(
        ask, (ALTER, CLUSTER, KAFKA_CLUSTER), (DESCRIBE_CONFIGS, CLUSTER, KAFKA_CLUSTER),
        (ALTER_CONFIGS, CLUSTER, KAFKA_CLUSTER),
    )  # fmt: skip


@secured_script()
def altering_implies_describing(s: Secured) -> None:
    put(s, {"user": user(s)}, **{PRODUCED: 1000.0})
    s.allow(BOB, ALTER_CONFIGS, CLUSTER)
    describe(s, ("user", EXACT, user(s)), on=BOB)


# -- waiting
# --------------------------------------------------------------------------------------------------


def produced(s: Session, topic: str, size: int, on: str) -> int:
    """The time to wait, in seconds."""
    records = build_batch([Record(0, 1000, None, bytes(size), ())])
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    answer = s.prepare("produce", 9, on, acks=-1, timeout=5000, topic_data=rows, transactional_id=None)
    assert answer.responses[0].partition_responses[0].error_code == 0
    return round(answer.throttle_time.total_seconds())


@script(seconds=3)
def producers_wait_by_the_formula(s: Session) -> None:
    topic = s.topic()
    for limit, size in ((1000.0, 9_000), (1000.0, 20_000), (500.0, 20_000), (2000.0, 100_000)):
        mine = f"{s.name}-{limit:g}-{size}"
        put(s, {"client-id": mine}, **{PRODUCED: limit})
        s.connection(mine, client_id=mine)
        s.note(f"{limit:g} bytes a second, {size} bytes", produced(s, topic.name, size, mine))


@script(seconds=3)
def the_most_specific_quota_holds(s: Session) -> None:
    """Of a client that has not logged in, whose user is ANONYMOUS."""
    topic = s.topic()
    for number, (here, there) in enumerate(
        (
            ({"client-id": "mine"}, {"user": "somebody", "client-id": "mine"}),
            ({"user": "ANONYMOUS", "client-id": "mine"}, {"client-id": "mine"}),
            ({"user": None, "client-id": "mine"}, {"client-id": "mine"}),
            ({"user": "ANONYMOUS", "client-id": "mine"}, {"user": None, "client-id": "mine"}),
        )
    ):
        mine = f"{s.name}-{number}"
        for names, limit in ((here, 1000.0), (there, 400.0)):
            entity = {kind: mine if name == "mine" else name for kind, name in names.items()}
            put(s, entity, **{PRODUCED: limit})
        s.connection(mine, client_id=mine)
        s.note(f"{here} beside {there}", produced(s, topic.name, 20_000, mine))


@script(seconds=3)
def the_time_of_the_broker_costs_no_more_than_a_second(s: Session) -> None:
    mine = f"{s.name}-slow"
    put(s, {"client-id": mine}, **{PERCENTAGE: 0.0001})
    s.connection(mine, client_id=mine)
    for _ in range(2):
        answer = s.prepare("metadata", 5, mine, topics=None, allow_auto_topic_creation=False)
        s.note("seconds to wait", answer.throttle_time.total_seconds())
