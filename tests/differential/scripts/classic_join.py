"""JoinGroup of clients that are not members yet: which ones are admitted, and the refusals."""

from __future__ import annotations

from tests.differential.classic import (
    ClassicMember,
    classic_group,
    describe,
    form,
    protocols,
    subscription,
    until_state,
)
from tests.differential.script import Session, script

JOINED_AT_ONCE = 3
"""The last version in which a member without an id joins with its first request."""


@script()
def first_join_in_each_version(s: Session) -> None:
    for version in range(2, 10):
        a = ClassicMember(s, classic_group(s, f"g{version}"), f"a{version}")
        a.join(version)
        if version > JOINED_AT_ONCE:
            a.join(version)


@script()
def oldest_versions(s: Session) -> None:
    for version in (0, 1):
        group = classic_group(s, f"g{version}")
        s.call(
            "join_group", version, on=f"v{version}", group_id=group, session_timeout=30_000, member_id="",
            protocol_type="consumer",
            protocols=protocols("range"), **({"rebalance_timeout": 30_000} if version else {}),
        )  # fmt: skip
        describe(s, group)


@script()
def pending_member(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    a.join()
    describe(s, group)
    a.heartbeat(generation=0)
    a.heartbeat(generation=-1)
    a.sync()
    b.join()
    form(b)
    a.heartbeat(generation=1)
    a.sync(generation_id=1)
    a.leave()
    a.join()


@script()
def pending_member_without_id_again(s: Session) -> None:
    group = classic_group(s)
    a = ClassicMember(s, group, "a")
    for _ in ("an id", "another one"):
        a.join(member_id="")
    a.join()
    a.sync(a)


@script()
def unknown_member_id(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    for version in (2, 6, 7, 9):
        b.join(version, member_id="nobody")
    form(a)
    for version in (3, 9):
        b.join(version, member_id="nobody")
    describe(s, group)


@script()
def session_timeout_out_of_bounds(s: Session) -> None:
    for index, timeout in enumerate((99, 0, -1, 1_800_001, 100_000, 1_800_000)):
        a = ClassicMember(s, classic_group(s, f"g{index}"), "a")
        a.join(session_timeout=timeout)
    a.join(2, member_id="given", session_timeout=99)


@script()
def rebalance_timeout_zero_and_negative(s: Session) -> None:
    for timeout in (0, -1):
        a = ClassicMember(s, classic_group(s, f"g{timeout}"), f"a{timeout}")
        a.join(rebalance_timeout=timeout)
        a.join(rebalance_timeout=timeout)


@script()
def blank_group_ids(s: Session) -> None:
    classic_group(s)
    for group in ("", " "):
        a = ClassicMember(s, group, "a")
        a.join(member_id="given")
        a.join(2, member_id="given")
        a.sync(member_id="given", generation_id=1)
        a.heartbeat(generation=1, member_id="given")
        a.leave(members=[{"member_id": "given", "group_instance_id": None}])


@script()
def no_protocols(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    a.join(protocols=())
    a.join(3, protocols=())
    a.join(protocol_type="")
    a.join(member_id="nobody", protocols=())
    describe(s, group)
    form(a)
    b.join(protocols=())
    b.join(protocol_type="")
    b.join(3, protocols=())


@script()
def protocols_that_nobody_shares(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    form(a, protocols=protocols("range", "roundrobin"))
    b.join(protocols=protocols("sticky"))
    b.join(3, protocols=protocols("sticky"))
    b.join(protocol_type="connect")
    b.join(5, protocol_type="connect", member_id="nobody")
    b.join(protocols=protocols("sticky", "roundrobin"))
    a.heartbeat()


@script()
def faults_in_order(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    b.join(group_id="", session_timeout=1, member_id="nobody")
    b.join(session_timeout=1, member_id="nobody", protocols=())
    b.join(member_id="nobody", protocols=())
    form(a)
    b.join(session_timeout=1, protocol_type="other")
    b.join(member_id="nobody", protocols=protocols("other"))
    b.join(member_id=a.member_id, protocols=protocols("other"))
    b.join(member_id=a.member_id, group_instance_id="unknown", protocols=protocols("other"))


@script()
def two_members(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    form(a)
    b.join(protocols=protocols("range", metadata=b"of b"))
    answer = b.begin_join(protocols=protocols("range", metadata=b"of b"))
    until_state(s, group, "PreparingRebalance", 2)
    a.heartbeat()
    a.join(protocols=protocols("range", metadata=b"of a"))
    answer()
    later = b.begin_sync()
    a.sync(a, b)
    later()
    for member in (a, b):
        member.heartbeat()
    describe(s, group)


@script()
def two_members_of_old_versions(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    a.join(2)
    a.sync(a, version=0)
    answer = b.begin_join(3)
    until_state(s, group, "PreparingRebalance", 2)
    a.heartbeat(0)
    a.join(3)
    answer()
    later = b.begin_sync(version=1)
    a.sync(a, b, version=2)
    later()
    b.leave(0)
    a.heartbeat(1)
    a.leave(1)
    describe(s, group, version=0)


@script()
def protocol_vote(s: Session) -> None:
    group = classic_group(s)
    a, b, c = (ClassicMember(s, group, name) for name in "abc")
    wanted = {"a": ("one", "two", "three"), "b": ("three", "two"), "c": ("two", "three", "four")}
    waiting = []
    for count, member in enumerate((a, b, c), 1):
        member.join(protocols=protocols(*wanted[member.name]))
        later = member.begin_join(protocols=protocols(*wanted[member.name]))
        if count > 1:
            until_state(s, group, "PreparingRebalance", count)
            waiting.append(later)
        else:
            later()
    a.join(protocols=protocols(*wanted["a"]))
    for answer in waiting:
        answer()
    describe(s, group)


@script()
def metadata_of_each_protocol(s: Session) -> None:
    group = classic_group(s)
    a = ClassicMember(s, group, "a")
    rows = [{"name": "one", "metadata": b""}, {"name": "two", "metadata": b"2"}]
    a.join(protocols=rows)
    a.join(protocols=rows)
    a.sync(a)
    describe(s, group)


@script()
def the_same_protocol_twice(s: Session) -> None:
    group = classic_group(s)
    a = ClassicMember(s, group, "a")
    rows = [
        {"name": "one", "metadata": b"1"},
        {"name": "one", "metadata": b"2"},
        {"name": "two", "metadata": b"3"},
    ]
    a.join(protocols=rows)
    a.join(protocols=rows)
    a.sync(a, protocol_name="two")
    describe(s, group)


@script()
def protocol_types_of_other_clients(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    a.join(protocol_type="connect", protocols=protocols("compatible", metadata=b"\x01"))
    a.join(protocol_type="connect", protocols=protocols("compatible", metadata=b"\x01"))
    a.sync(a, protocol_type="connect")
    describe(s, group)
    b.join()
    a.leave()
    b.join()
    b.join()
    b.sync(b)
    describe(s, group)


@script()
def group_is_full(s: Session) -> None:
    group = classic_group(s)
    members = [ClassicMember(s, group, name) for name in "abcde"]
    a, b, c, d, e = members
    form(a, b, c, d)
    e.join()
    e.join(3)
    e.join(group_instance_id="e")
    d.leave()
    e.join()


@script(seconds=2)
def group_is_full_of_pending_members(s: Session) -> None:
    group = classic_group(s)
    members = [ClassicMember(s, group, name, rebalance_ms=2_000) for name in "abcde"]
    for member in members:
        member.join()
    a, b, c, d, e = members
    a.join()
    answers = []
    for count, member in enumerate((b, c, d), 2):
        answers.append(member.begin_join())
        until_state(s, group, "PreparingRebalance", count)
        if member is b:
            answers.append(a.begin_join())
    e.join()
    for answer in answers:
        answer()
    describe(s, group)


@script()
def no_client_id(s: Session) -> None:
    group = classic_group(s)
    a = ClassicMember(s, group, "")
    a.join()
    a.join()
    describe(s, group)


@script()
def reasons(s: Session) -> None:
    group = classic_group(s)
    a = ClassicMember(s, group, "a")
    a.join(8, reason="r" * 300)
    a.join(8, reason="")
    a.leave(members=[{"member_id": a.member_id, "group_instance_id": None, "reason": "é" * 300}])
    a.join(reason=None, member_id="")


@script()
def joining_an_empty_group_again(s: Session) -> None:
    group = classic_group(s)
    a = ClassicMember(s, group, "a")
    form(a)
    a.leave()
    a.join()
    a.join(member_id="")
    a.join(protocols=protocols("another", metadata=subscription()))
    a.sync(a)
    describe(s, group)
