"""Quotas: which entities can have which, filters that select them, and which one holds for a
client."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.security.quotas import (
    DEFAULT,
    EXACT,
    PRODUCER_BYTE_RATE,
    SPECIFIED,
    BadQuota,
    Component,
    Entity,
    EntityFilter,
    Owner,
    Quota,
    QuotaTable,
    UnsupportedEntityType,
    check_value,
    entity_of,
    keys_of,
)

CLIENTS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        ({"user": "alice"}, CLIENTS),
        ({"user": None}, CLIENTS),
        ({"client-id": "app"}, CLIENTS),
        ({"user": None, "client-id": "app"}, CLIENTS),
        ({"ip": "10.0.0.1"}, ("connection_creation_rate",)),
        ({"ip": "::1"}, ("connection_creation_rate",)),
        ({"ip": None}, ("connection_creation_rate",)),
    ],
)
def test_an_entity_has_the_keys_of_its_types(names: Mapping[str, str | None], keys: tuple[str, ...]) -> None:
    assert keys_of(entity_of(names)) == keys


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({}, "Invalid empty client quota entity"),
        ({"group": "g"}, "Unhandled client quota entity type: group"),
        ({"user": ""}, "Empty user not supported"),
        ({"client-id": ""}, "Empty client-id not supported"),
        (
            {"ip": "10.0.0.1", "user": "alice"},
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId",
        ),
        ({"ip": "no address"}, "no address is not a valid IP or resolvable host."),
        ({"ip": "fe80::1%eth0"}, "fe80::1%eth0 is not a valid IP or resolvable host."),
        ({"ip": "0.0.0.0"}, "0.0.0.0 is not a valid IP or resolvable host."),
    ],
)
def test_other_entities_are_refused_with_kafkas_words(names: Mapping[str, str | None], message: str) -> None:
    with pytest.raises(BadQuota) as refused:
        keys_of(entity_of(names))
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("nonsense", 1.0, "Invalid configuration key nonsense"),
        ("connection_creation_rate", 1.0, "Invalid configuration key connection_creation_rate"),
        ("producer_byte_rate", 0.0, "Quota producer_byte_rate must be greater than 0"),
        ("producer_byte_rate", -1.0, "Quota producer_byte_rate must be greater than 0"),
        ("request_percentage", float("nan"), "Quota request_percentage must be greater than 0"),
        ("request_percentage", float("inf"), "Quota request_percentage must be a finite number"),
        ("producer_byte_rate", 1.5, "producer_byte_rate cannot be a fractional value."),
        ("consumer_byte_rate", 1e300, "Proposed value for consumer_byte_rate is too large for a LONG."),
    ],
)
def test_values_that_make_no_quota(key: str, value: float, message: str) -> None:
    with pytest.raises(BadQuota) as refused:
        check_value(CLIENTS, key, value)
    assert str(refused.value) == message


def test_a_rate_that_would_not_be_enforced_is_refused() -> None:
    with pytest.raises(BadQuota, match="is not supported"):
        check_value(CLIENTS, "controller_mutation_rate", 1.0)
    with pytest.raises(BadQuota, match="too large for an INT"):
        check_value(("connection_creation_rate",), "connection_creation_rate", 1e12)


def test_values_that_make_a_quota() -> None:
    for key, value in (
        ("producer_byte_rate", 1.0),
        ("request_percentage", 0.01),
        ("request_percentage", 250.0),
    ):
        check_value(CLIENTS, key, value)


@pytest.mark.parametrize(
    ("components", "message"),
    [
        ([("", EXACT, "a")], "Invalid empty entity type."),
        ([("user", EXACT, None)], "Request specified MATCH_TYPE_EXACT, but set match string to null."),
        (
            [("user", DEFAULT, "a")],
            "Request specified MATCH_TYPE_DEFAULT, but also specified a match string.",
        ),
        (
            [("user", SPECIFIED, "a")],
            "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.",
        ),
        ([("user", 3, None)], "Unknown match type 3"),
        (
            [("user", EXACT, "a"), ("user", SPECIFIED, None)],
            "Entity type user cannot appear more than once in the filter.",
        ),
        (
            [("user", EXACT, "a"), ("ip", SPECIFIED, None)],
            "Invalid entity filter component combination. IP filter component should not be used with user "
            "or clientId filter component.",
        ),
    ],
)
def test_filters_that_select_nothing_are_refused(
    components: list[tuple[str, int, str | None]], message: str
) -> None:
    with pytest.raises(BadQuota) as refused:
        EntityFilter([Component(*each) for each in components], strict=False)
    assert str(refused.value) == message


def test_a_type_that_does_not_exist_has_an_error_of_its_own() -> None:
    with pytest.raises(UnsupportedEntityType, match="Unsupported entity type group"):
        EntityFilter([Component("group", EXACT, "g")], strict=False)


ALL = [
    entity_of(names)
    for names in (
        {"user": "a"}, {"user": None}, {"client-id": "c"}, {"client-id": None}, {"ip": "10.0.0.1"},
        {"user": "a", "client-id": "c"}, {"user": "a", "client-id": None}, {"user": None, "client-id": "c"},
        {"user": None, "client-id": None},
    )
]  # fmt: skip


def selected(*components: Component, strict: bool = False) -> list[Entity]:
    return [entity for entity in ALL if EntityFilter(components, strict=strict).selects(entity)]


def test_a_filter_selects_entities_that_fulfil_every_component() -> None:
    assert selected() == ALL
    assert selected(strict=True) == []
    assert selected(Component("user", EXACT, "a")) == [ALL[0], ALL[5], ALL[6]]
    assert selected(Component("user", EXACT, "a"), strict=True) == [ALL[0]]
    assert selected(Component("user", DEFAULT)) == [ALL[1], ALL[7], ALL[8]]
    assert selected(Component("user", SPECIFIED), strict=True) == [ALL[0], ALL[1]]
    assert selected(Component("user", SPECIFIED), Component("client-id", DEFAULT)) == [ALL[6], ALL[8]]
    assert selected(Component("ip", SPECIFIED)) == [ALL[4]]


# Kafka's table: /config/users/<user>/clients/<client-id> and so on, with what shares the rate.
ORDER = [
    ({"user": "a", "client-id": "c"}, Owner("a", "c")),
    ({"user": "a", "client-id": None}, Owner("a", "c")),
    ({"user": "a"}, Owner("a", "")),
    ({"user": None, "client-id": "c"}, Owner("a", "c")),
    ({"user": None, "client-id": None}, Owner("a", "c")),
    ({"user": None}, Owner("a", "")),
    ({"client-id": "c"}, Owner("", "c")),
    ({"client-id": None}, Owner("", "c")),
]  # fmt: skip
OTHERS: list[dict[str, str | None]] = [
    {"user": "b"}, {"client-id": "d"}, {"user": "b", "client-id": "c"}, {"user": None, "client-id": "d"},
]  # fmt: skip


@given(st.sets(st.integers(0, 7)), st.sets(st.integers(0, 3)), st.data())
def test_the_most_specific_quota_holds(present: set[int], others: set[int], data: st.DataObject) -> None:
    """Kafka's order of the eight combinations."""
    table = QuotaTable()
    entries: list[tuple[dict[str, str | None], float]] = [
        *((dict(ORDER[number][0]), float(number + 1)) for number in present),
        *((OTHERS[number], 99.0) for number in others),
    ]
    for names, value in data.draw(st.permutations(entries)):
        table.put(entity_of(names), {PRODUCER_BYTE_RATE: value})
    expected = None
    for number, (_, owner) in enumerate(ORDER):
        if number in present:
            expected = Quota(float(number + 1), owner)
            break
    assert table.of_client(PRODUCER_BYTE_RATE, "a", "c") == expected
    assert table.of_client("consumer_byte_rate", "a", "c") is None, "each key has quotas of its own"
    of_users = [number for number in (2, 5) if number in present]
    without_id = table.of_client(PRODUCER_BYTE_RATE, "a", "")
    assert without_id == (Quota(float(of_users[0] + 1), Owner("a", "")) if of_users else None)


def test_quotas_are_replaced_and_removed() -> None:
    table = QuotaTable()
    alice = entity_of({"user": "alice"})
    table.put(alice, {PRODUCER_BYTE_RATE: 5.0, "request_percentage": 10.0})
    table.put(alice, {"request_percentage": 20.0})
    assert table.of_client(PRODUCER_BYTE_RATE, "alice", "x") is None
    assert table.of_client("request_percentage", "alice", "x") == Quota(20.0, Owner("alice", ""))
    assert (len(table), table.limits_clients) == (1, True)
    table.put(alice, {})
    assert (len(table), table.limits_clients, table.values_of(alice)) == (0, False, {})


def test_an_address_has_its_own_quota_or_the_default() -> None:
    table = QuotaTable()
    assert (table.of_address("10.0.0.1"), table.limits_addresses) == (None, False)
    table.put(entity_of({"ip": None}), {"connection_creation_rate": 5})
    table.put(entity_of({"ip": "10.0.0.1"}), {"connection_creation_rate": 9})
    assert table.limits_addresses
    assert not table.limits_clients
    assert [table.of_address(host) for host in ("10.0.0.1", "::ffff:10.0.0.1", "10.0.0.2")] == [9, 9, 5]


NAMES = st.sampled_from(["a", "b", None])
ENTITIES = st.one_of(
    st.builds(lambda name: entity_of({"user": name}), NAMES),
    st.builds(lambda name: entity_of({"client-id": name}), NAMES),
    st.builds(lambda user, client: entity_of({"user": user, "client-id": client}), NAMES, NAMES),
    st.builds(lambda name: entity_of({"ip": name}), st.sampled_from(["10.0.0.1", "::ffff:10.0.0.1", None])),
)
CHANGES = st.lists(st.tuples(ENTITIES, st.sampled_from([None, 1.0, 2.0]), st.booleans()), max_size=12)


@given(CHANGES)
def test_a_table_that_changes_is_as_a_new_one(changes: Sequence[tuple[Entity, float | None, bool]]) -> None:
    table, known = QuotaTable(), dict[Entity, dict[str, float]]()
    for entity, value, is_second in changes:
        keys = keys_of(entity)
        values = {} if value is None else {keys[is_second % len(keys)]: value}
        table.put(entity, values)
        known.pop(entity, None)
        known |= {entity: values} if values else {}
    new = QuotaTable()
    for entity, values in known.items():
        new.put(entity, values)
    assert dict(table) == dict(new) == known
    assert (table.limits_clients, table.limits_addresses) == (new.limits_clients, new.limits_addresses)
    for key, user, client_id in product(CLIENTS[:2], ("a", "c"), ("a", "c", "")):
        assert table.of_client(key, user, client_id) == new.of_client(key, user, client_id)
    for host in ("10.0.0.1", "10.0.0.2"):
        assert table.of_address(host) == new.of_address(host)


@pytest.mark.parametrize("kind", ["user", "client-id", "ip"])
def test_a_change_costs_the_same_with_many_entities(kind: str) -> None:
    """A start puts all of them: 20 000 users must not take minutes."""

    def lines_of(number: int) -> int:
        entity = entity_of({kind: f"10.0.{number // 250}.{number % 250}"})
        value = {"connection_creation_rate" if kind == "ip" else PRODUCER_BYTE_RATE: 1.0}
        return lines_run(lambda: table.put(entity, value))

    table = QuotaTable()
    assert max(map(lines_of, range(2_000))) < 200


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of Python it runs."""
    count = 0

    def trace(_: FrameType, event: str, __: object) -> Callable[..., Any]:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
