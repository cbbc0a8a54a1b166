"""JoinGroup of members: with the same and other metadata in each state of the group, and the effect
on the others."""

from __future__ import annotations

from tests.differential.classic import ClassicMember, classic_group, describe, form, protocols, until_state
from tests.differential.script import Session, script

NEW = protocols("range", metadata=b"new")


def pair(s: Session) -> tuple[str, ClassicMember, ClassicMember]:
    """A stable group of two, in generation 2; the first one leads."""
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    form(a, b)
    return group, a, b


def completing(s: Session) -> tuple[str, ClassicMember, ClassicMember]:
    """The same two in generation 3, before any SyncGroup."""
    group, a, b = pair(s)
    answer = a.begin_join(quiet=True)
    until_state(s, group, "PreparingRebalance")
    b.join(quiet=True)
    answer()
    return group, a, b


@script()
def follower_with_the_same_metadata(s: Session) -> None:
    group, a, b = pair(s)
    for version in (9, 7, 6, 3):
        b.join(version)
    describe(s, group)
    a.heartbeat()
    b.heartbeat()


@script()
def follower_with_other_metadata(s: Session) -> None:
    group, a, b = pair(s)
    answer = b.begin_join(protocols=NEW)
    until_state(s, group, "PreparingRebalance")
    describe(s, group)
    a.heartbeat()
    ClassicMember(s, group, "again", member_id=b.member_id, generation=2).heartbeat()
    a.join()
    answer()
    a.sync(a, b)
    b.sync()
    describe(s, group)


@script()
def follower_with_another_protocol_besides(s: Session) -> None:
    group, a, b = pair(s)
    answer = b.begin_join(protocols=protocols("sticky", "range"))
    until_state(s, group, "PreparingRebalance")
    a.join(protocols=protocols("sticky", "range"))
    answer()


@script()
def leader_with_the_same_metadata(s: Session) -> None:
    group, a, b = pair(s)
    answer = a.begin_join(reason="topics have changed")
    until_state(s, group, "PreparingRebalance")
    b.heartbeat()
    b.join()
    answer()
    describe(s, group)


@script()
def only_member_joins_again(s: Session) -> None:
    a = ClassicMember(s, classic_group(s), "a")
    form(a)
    a.join()
    a.join()
    a.join(protocols=NEW)
    a.sync(a)
    a.join(protocols=NEW)


@script()
def while_completing_with_the_same_metadata(s: Session) -> None:
    group, a, b = completing(s)
    b.join()
    a.join()
    a.join(5)
    describe(s, group)
    a.sync(a, b)
    b.sync()


@script()
def while_completing_with_other_metadata(s: Session) -> None:
    group, a, b = completing(s)
    other = b.begin_join(protocols=NEW)
    until_state(s, group, "PreparingRebalance")
    a.sync(a, b)
    a.heartbeat()
    a.join()
    other()
    a.sync(a, b)
    b.sync()


@script()
def new_member_while_completing(s: Session) -> None:
    group, a, b = completing(s)
    c = ClassicMember(s, group, "c")
    c.join()
    waiting = b.begin_sync()
    new = c.begin_join()
    until_state(s, group, "PreparingRebalance", 3)
    waiting()
    a.sync(a, b)
    others = [a.begin_join(), b.begin_join()]
    for answer in (*others, new):
        answer()
    a.sync(a, b, c)
    c.sync()


@script()
def new_member_while_preparing(s: Session) -> None:
    group, a, b = pair(s)
    c = ClassicMember(s, group, "c")
    first = b.begin_join(protocols=NEW)
    until_state(s, group, "PreparingRebalance")
    c.join()
    second = c.begin_join()
    until_state(s, group, "PreparingRebalance", 3)
    a.join()
    first()
    second()


@script()
def the_same_request_again_while_it_waits(s: Session) -> None:
    group, a, b = pair(s)
    b.begin_join(protocols=NEW)
    until_state(s, group, "PreparingRebalance")
    again = ClassicMember(s, group, "again", member_id=b.member_id)
    answer = again.begin_join(protocols=NEW)
    s.wait(0.5)
    a.join()
    answer()


@script()
def changed_protocols_that_nobody_shares(s: Session) -> None:
    group, _a, b = pair(s)
    b.join(protocols=protocols("sticky"))
    b.join(protocol_type="connect")
    describe(s, group)
    b.heartbeat()


@script()
def only_member_changes_its_protocol(s: Session) -> None:
    a = ClassicMember(s, classic_group(s), "a")
    form(a)
    a.join(protocols=protocols("sticky"))
    a.sync(a)
    a.join(protocol_type="connect", protocols=protocols("sticky"))
    describe(s, a.group_id)


@script()
def other_timeouts(s: Session) -> None:
    _group, _a, b = pair(s)
    b.join(session_timeout=20_000, rebalance_timeout=20_000)
    b.join(session_timeout=99)
    b.heartbeat()


@script()
def leader_leaves(s: Session) -> None:
    group, a, b = pair(s)
    a.leave()
    b.heartbeat()
    b.join()
    b.sync(b)
    describe(s, group)


@script()
def follower_leaves_while_the_leader_waits(s: Session) -> None:
    group, a, b = pair(s)
    answer = a.begin_join()
    until_state(s, group, "PreparingRebalance")
    b.leave()
    answer()
    describe(s, group)
