"""Decisions of the built-in authorizer, beside a brute-force model of Kafka's."""

from __future__ import annotations

from functools import partial
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.security.acls import Acl, AclTable, Operation, PatternType, Permission, ResourceType
from kbroker.security.authorizer import StandardAuthorizer, parse_super_users
from kbroker.security.principals import Principal, user
from tests.security.acl_strategies import NAMES, OPERATIONS, acls, entry

TOPIC = ResourceType.TOPIC
ALICE, BOB, ROOT = user("alice"), user("bob"), user("root")
HOST = "10.0.0.1"
_deny = partial(entry, permission=Permission.DENY)
_PREFIXED = PatternType.PREFIXED

_IMPLIES = {
    Operation.READ: {Operation.DESCRIBE},
    Operation.WRITE: {Operation.DESCRIBE},
    Operation.DELETE: {Operation.DESCRIBE},
    Operation.ALTER: {Operation.DESCRIBE},
    Operation.ALTER_CONFIGS: {Operation.DESCRIBE_CONFIGS},
}


def authorizer(*entries: Acl, opens_unlisted: bool = False) -> StandardAuthorizer:
    made = StandardAuthorizer({ROOT}, opens_unlisted=opens_unlisted)
    made.acls_changed(AclTable(entries))
    return made


def has_client(host: str, client: str) -> bool:
    if "/" not in host:
        return host.removeprefix("::ffff:") in ("*", client)
    return host != "a/b" and ip_address(client) in ip_network(host, strict=False)


def model(
    entries: list[Acl], principal: Principal, host: str, operation: Operation, name: str, *, is_open: bool
) -> bool:
    def has_pattern(acl: Acl) -> bool:
        if acl.pattern is PatternType.PREFIXED:
            return name.startswith(acl.name)
        return acl.name in (name, "*")

    found = [acl for acl in entries if acl.kind is TOPIC and has_pattern(acl)]
    mine = [
        acl
        for acl in found
        if acl.principal in ("User:*", f"User:{principal.name}") and has_client(acl.host, host)
    ]
    if any(acl.permission is Permission.DENY and acl.operation in (operation, Operation.ALL) for acl in mine):
        return False
    for acl in mine:
        implied = _IMPLIES.get(acl.operation, set())
        if acl.permission is Permission.ALLOW and (
            acl.operation in (operation, Operation.ALL) or operation in implied
        ):
            return True
    return is_open and not found


@settings(max_examples=300, deadline=None)
@given(
    st.lists(acls(), max_size=8),
    st.sampled_from([ALICE, BOB]),
    st.sampled_from([HOST, "10.0.0.2", "192.0.2.1", "2001:db8::1"]),
    st.sampled_from(OPERATIONS[1:]),
    st.sampled_from(NAMES),
    st.booleans(),
)
def test_decisions_are_those_of_the_model(
    entries: list[Acl], principal: Principal, host: str, operation: Operation, name: str, is_open: bool
) -> None:
    """ACL-1, ACL-3, for hosts."""
    made = authorizer(*entries, opens_unlisted=is_open)
    expected = model(entries, principal, host, operation, name, is_open=is_open)
    assert made.allows(principal, host, operation, TOPIC, name) is expected
    assert made.allows(ROOT, host, operation, TOPIC, name)


@given(st.lists(acls(), max_size=8), st.sampled_from([ALICE, BOB]), st.booleans())
def test_any_topic_is_allowed_if_some_name_is(
    entries: list[Acl], principal: Principal, is_open: bool
) -> None:
    """Names beyond those of the entries are possible, hence the long ones."""
    made = authorizer(*entries, opens_unlisted=is_open)
    names = [name + more for name in ("", *NAMES) for more in ("", "-elsewhere")][1:]
    if any(model(entries, principal, HOST, Operation.WRITE, name, is_open=False) for name in names):
        assert made.allows_any(principal, HOST, Operation.WRITE, TOPIC)


def test_a_denied_read_leaves_the_topic_visible() -> None:
    """DESCRIBE is implied by the entry that allows, and not denied."""
    found = authorizer(entry("User:bob", Operation.READ, "t"), _deny("User:bob", Operation.READ, "t"))
    assert not found.allows(BOB, HOST, Operation.READ, TOPIC, "t")
    assert found.allows(BOB, HOST, Operation.DESCRIBE, TOPIC, "t")


def test_a_denied_describe_hides_what_may_be_read() -> None:
    found = authorizer(entry("User:bob", Operation.READ, "t"), _deny("User:bob", Operation.DESCRIBE, "t"))
    assert found.allows(BOB, HOST, Operation.READ, TOPIC, "t")
    assert not found.allows(BOB, HOST, Operation.DESCRIBE, TOPIC, "t")


def test_all_includes_every_operation() -> None:
    allowed = authorizer(entry("User:bob", Operation.ALL, "t"))
    denied = authorizer(entry("User:bob", Operation.ALL, "*"), _deny("User:bob", Operation.ALL, "t"))
    for operation in Operation:
        if operation > Operation.ALL:
            assert allowed.allows(BOB, HOST, operation, TOPIC, "t")
            assert not denied.allows(BOB, HOST, operation, TOPIC, "t")
            assert denied.allows(BOB, HOST, operation, TOPIC, "u")


def test_a_star_in_a_prefix_is_a_character() -> None:
    found = authorizer(entry("User:bob", Operation.READ, "*", _PREFIXED))
    assert not found.allows(BOB, HOST, Operation.READ, TOPIC, "t")


def test_resources_without_entries_may_be_open_to_everyone() -> None:
    found = authorizer(entry("User:alice", Operation.READ, "t"), opens_unlisted=True)
    assert found.allows(BOB, HOST, Operation.DELETE, TOPIC, "u")
    assert not found.allows(BOB, HOST, Operation.DELETE, TOPIC, "t")
    assert found.allows_any(BOB, HOST, Operation.WRITE, TOPIC)


@pytest.mark.parametrize(
    ("entries", "is_allowed"),
    [
        ([], False),
        ([entry("User:bob", Operation.WRITE, "t")], True),
        ([entry("User:bob", Operation.ALL, "t")], True),
        ([entry("User:bob", Operation.READ, "t")], False),
        ([entry("User:bob", Operation.WRITE, "t", kind=ResourceType.GROUP)], False),
        ([entry("User:bob", Operation.WRITE, "t", host="10.0.0.9")], False),
        ([entry("User:bob", Operation.WRITE, "t", host="10.0.0.0/30")], True),
        ([entry("User:bob", Operation.WRITE, "t", host="10.0.0.2/31")], False),
        (
            [
                entry("User:bob", Operation.WRITE, "t"),
                _deny("User:bob", Operation.WRITE, "t", host="10.0.0.0/8"),
            ],
            False,
        ),
        (
            [
                entry("User:bob", Operation.WRITE, "t"),
                _deny("User:bob", Operation.WRITE, "t", host="11.0.0.0/8"),
            ],
            True,
        ),
        ([entry("User:bob", Operation.WRITE, "orders", _PREFIXED)], True),
        ([entry("User:bob", Operation.WRITE, "t"), _deny("User:bob", Operation.WRITE, "t")], False),
        ([entry("User:bob", Operation.WRITE, "tt"), _deny("User:*", Operation.ALL, "t", _PREFIXED)], False),
        ([entry("User:bob", Operation.WRITE, "t", _PREFIXED), _deny("User:bob", Operation.ALL, "t")], True),
        (
            [
                entry("User:bob", Operation.WRITE, "t", _PREFIXED),
                _deny("User:bob", Operation.ALL, "t", _PREFIXED),
            ],
            False,
        ),
        ([entry("User:bob", Operation.WRITE, "t"), _deny("User:bob", Operation.WRITE, "*")], False),
        ([entry("User:bob", Operation.WRITE, "*"), _deny("User:bob", Operation.WRITE, "t", _PREFIXED)], True),
        ([entry("User:bob", Operation.WRITE, "*"), _deny("User:bob", Operation.READ, "*")], True),
    ],
)
def test_any_topic(entries: list[Acl], is_allowed: bool) -> None:
    assert authorizer(*entries).allows_any(BOB, HOST, Operation.WRITE, TOPIC) is is_allowed
    assert authorizer(*entries).allows_any(ROOT, HOST, Operation.WRITE, TOPIC)


def test_super_users_are_separated_by_semicolons() -> None:
    assert parse_super_users(" User:a; User:CN=b,O=c ;;") == {user("a"), user("CN=b,O=c")}
    assert parse_super_users("") == frozenset()
    with pytest.raises(ValueError, match="no colon"):
        parse_super_users("User:a;b")


def test_a_denied_range_wins_over_an_address_inside() -> None:
    """ACL-1: a DENY from 127.0.0.0/8 must deny."""
    found = authorizer(
        entry("User:bob", Operation.READ, "t", host="127.0.0.1"),
        entry("User:bob", Operation.READ, "t", host="10.0.0.1"),
        _deny("User:*", Operation.ALL, "t", host="127.0.0.0/8"),
    )
    assert not found.allows(BOB, "127.0.0.1", Operation.READ, TOPIC, "t")
    assert found.allows(BOB, "10.0.0.1", Operation.READ, TOPIC, "t")
