"""ACL entries, filters and the table, beside a brute-force model of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.security.acls import (
    Acl,
    AclFilter,
    AclTable,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from kbroker.settings.hosts import canonical_host
from tests.security.acl_strategies import NAMES, acls, entry

_KINDS = st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP])


def applies(acl: Acl, kind: ResourceType, name: str) -> bool:
    """The rule of the docstring, without an index."""
    if acl.kind is not kind:
        return False
    if acl.pattern is PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (name, "*")


@given(st.lists(acls()), _KINDS, st.sampled_from(NAMES))
def test_the_table_finds_each_entry_that_applies_once(
    entries: list[Acl], kind: ResourceType, name: str
) -> None:
    found = list(AclTable(entries).matching(kind, name))
    assert sorted(found) == sorted({acl for acl in entries if applies(acl, kind, name)})


@given(st.lists(st.tuples(st.booleans(), acls())), _KINDS, st.sampled_from(NAMES))
def test_a_table_that_changes_is_as_a_new_one(
    changes: list[tuple[bool, Acl]], kind: ResourceType, name: str
) -> None:
    table, known = AclTable(), set[Acl]()
    for is_added, acl in changes:
        (table.add if is_added else table.remove)(acl)
        (known.add if is_added else known.discard)(acl)
        assert (acl in table) is is_added
    assert len(table) == len(known)
    assert set(table) == known
    assert set(table.matching(kind, name)) == {acl for acl in known if applies(acl, kind, name)}


@given(st.lists(acls()), st.sampled_from(NAMES))
def test_match_selects_what_applies_to_the_name(entries: list[Acl], name: str) -> None:
    wanted = AclFilter(ResourceType.TOPIC, PatternType.MATCH, name)
    assert [acl for acl in entries if wanted.selects(acl)] == [
        acl for acl in entries if applies(acl, ResourceType.TOPIC, name)
    ]


@pytest.mark.parametrize(
    ("wanted", "is_selected"),
    [
        (AclFilter(), True),
        (AclFilter(name="orders"), True),
        (AclFilter(name="order"), False),
        (AclFilter(pattern=PatternType.LITERAL), False),
        (AclFilter(pattern=PatternType.PREFIXED, name="orders"), True),
        (AclFilter(pattern=PatternType.PREFIXED, name="orders-eu"), False),
        (AclFilter(pattern=PatternType.MATCH, name="orders-eu"), True),
        (AclFilter(pattern=PatternType.ANY, name="orders-eu"), False),
        (AclFilter(kind=ResourceType.GROUP), False),
        (AclFilter(principal="User:a"), True),
        (AclFilter(principal="User:*"), False),
        (AclFilter(host="10.0.0.1"), False),
        (AclFilter(host="*", operation=Operation.READ, permission=Permission.ALLOW), True),
        (AclFilter(operation=Operation.ALL), False),
        (AclFilter(permission=Permission.DENY), False),
    ],
)
def test_filters(wanted: AclFilter, is_selected: bool) -> None:
    assert wanted.selects(entry("User:a", Operation.READ, "orders", PatternType.PREFIXED)) is is_selected


def test_match_finds_entries_for_all_resources() -> None:
    everything = entry("User:a", Operation.READ, "*")
    assert AclFilter(pattern=PatternType.MATCH, name="orders").selects(everything)
    assert not AclFilter(pattern=PatternType.LITERAL, name="orders").selects(everything)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2001:DB8::1", "2001:db8::1"),
        ("*", "*"),
        ("", ""),
        ("example.org", "example.org"),
    ],
)
def test_an_address_has_one_spelling(text: str, canonical: str) -> None:
    assert canonical_host(text) == canonical


_FILTERS = st.builds(
    AclFilter,
    st.sampled_from([ResourceType.ANY, ResourceType.TOPIC, ResourceType.GROUP]),
    st.sampled_from([PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from([None, *NAMES]),
    st.sampled_from([None, "User:alice", "User:*"]),
)


@given(st.lists(acls()), _FILTERS)
def test_the_table_finds_what_a_filter_selects(entries: list[Acl], wanted: AclFilter) -> None:
    found = [each for each in AclTable(entries).candidates(wanted) if wanted.selects(each)]
    assert sorted(found) == sorted(set(filter(wanted.selects, entries)))


@pytest.mark.parametrize("pattern", [PatternType.LITERAL, PatternType.PREFIXED, PatternType.MATCH])
def test_a_filter_with_a_name_does_not_look_at_every_entry(
    pattern: PatternType,
) -> None:
    """Thousands of filters, one for each entry that is removed, must not stop the broker."""
    table = AclTable(entry("User:alice", Operation.READ, f"topic-{number}") for number in range(1_000))
    wanted = AclFilter(ResourceType.TOPIC, pattern, "topic-7")
    candidates = table.candidates(wanted)
    assert len(candidates) == 1
    assert wanted.selects(candidates[0]) == (pattern is not PatternType.PREFIXED)
