"""The entries of a resource for one client, among few and many entries for others."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.security import acl_index
from kbroker.security.acls import Acl, AclTable, Operation, Permission, ResourceType
from kbroker.security.authorizer import StandardAuthorizer
from kbroker.security.principals import user
from tests.security.acl_strategies import NAMES, PRINCIPALS, acls, entry

TOPIC = ResourceType.TOPIC
CLIENTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "192.0.2.1", "2001:db8::1", "fe80::1")


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), acls()), max_size=40),
    st.sampled_from([0, 2, 16]),
    st.sampled_from(NAMES),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(CLIENTS),
)
def test_the_entries_for_a_client_are_those_that_are_for_it(
    changes: list[tuple[bool, Acl]], few: int, name: str, principal: str, client: str
) -> None:
    """However many they are, and after any changes. ACL-1, ACL-3"""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acl_index, "FEW", few)
        table = AclTable()
        for is_added, acl in changes:
            (table.add if is_added else table.remove)(acl)
        found = list(table.concerning(TOPIC, name, principal, client))
        any_name = list(table.concerning_any(TOPIC, principal, client))
    assert sorted(found) == sorted(
        acl for acl in table.matching(TOPIC, name) if acl.is_for(principal, client)
    )
    assert sorted(any_name) == sorted(
        acl for acl in table if acl.kind is TOPIC and acl.is_for(principal, client)
    )


def _calls(work: Callable[[], object]) -> int:
    count = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # It calls others.
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.mark.parametrize("host", ["10.{}.{}.0/24", "10.0.{}.{}", "2001:db8:{:x}:{:x}::/64"])
def test_a_decision_does_not_look_at_the_hosts_of_others(host: str) -> None:
    """A list of addresses from which nobody may come. It may have thousands of entries, and is
    looked at in the broker's loop for each topic of a request."""

    def work(many: int) -> int:
        denied = [
            entry("User:*", Operation.ALL, "*", permission=Permission.DENY,
                  host=host.format(number >> 8, number & 255))
            for number in range(many)
        ]  # fmt: skip
        made = StandardAuthorizer()
        made.acls_changed(AclTable([*denied, entry("User:bob", Operation.ALL, "*")]))
        asked = user("bob"), "192.0.2.1", Operation.WRITE, TOPIC
        assert made.allows(*asked, "t")
        return _calls(lambda: (made.allows(*asked, "t"), made.allows_any(*asked)))

    assert max(work(2000), work(20)) < 100


def test_denials_of_other_names_cost_little() -> None:
    """Of whether a client may write to any topic."""

    def work(many: int) -> int:
        made = StandardAuthorizer()
        table = AclTable(
            entry("User:bob", Operation.WRITE, f"t{number}", permission=permission)
            for number in range(many)
            for permission in (Permission.ALLOW, Permission.DENY)
        )
        made.acls_changed(table)
        return _calls(lambda: made.allows_any(user("bob"), "192.0.2.1", Operation.WRITE, TOPIC))

    assert work(400) < 25 * work(20)
