"""Members that miss a deadline: sessions, rebalances, ids that never joined, syncs."""

from __future__ import annotations

import time

from tests.differential.classic import (
    ClassicMember,
    classic_group,
    describe,
    form,
    protocols,
    share_out,
    until_state,
)
from tests.differential.script import Session, script
from tests.differential.scripts.classic_rejoin import NEW

SHORT_MS, SHORT_S = 1_500, 1.5
LONG_ENOUGH_S = 3.5
"""After this time an event due after SHORT_S has happened."""


@script(seconds=3)
def session_runs_out(s: Session) -> None:
    a = ClassicMember(s, classic_group(s), "a", session_ms=SHORT_MS)
    form(a)
    until_state(s, a.group_id, "Empty")
    a.heartbeat()
    a.sync()
    a.join()
    a.join(member_id="")
    a.join()


@script(seconds=3)
def session_of_a_follower_runs_out(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b", session_ms=SHORT_MS)
    form(a, b)
    until_state(s, group, "PreparingRebalance", 1)
    b.heartbeat()
    a.heartbeat()
    a.join()
    describe(s, group)


@script(seconds=3)
def heartbeats_keep_the_session(s: Session) -> None:
    a = ClassicMember(s, classic_group(s), "a", session_ms=1_500)
    form(a)
    until = time.monotonic() + 3
    while time.monotonic() < until:
        a.heartbeat(quiet=True)
        s.wait(0.2)
    a.heartbeat()


@script(seconds=3)
def commits_and_syncs_keep_the_session(s: Session) -> None:
    topic = s.topic()
    a = ClassicMember(s, classic_group(s), "a", session_ms=1_500)
    form(a)
    until = time.monotonic() + 3
    while time.monotonic() < until:
        a.commit(topic, 1, quiet=True)
        s.wait(0.2)
    a.heartbeat()
    until = time.monotonic() + 3
    while time.monotonic() < until:
        a.sync(a, quiet=True)
        s.wait(0.2)
    a.heartbeat()


@script(seconds=3)
def joins_that_wait_keep_the_session(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b", session_ms=SHORT_MS)
    form(a, b)
    waiting = b.begin_join(protocols=NEW)
    until_state(s, group, "PreparingRebalance")
    s.wait(LONG_ENOUGH_S)
    a.heartbeat()
    a.join()
    waiting()


@script(seconds=3)
def id_that_is_never_joined_with(s: Session) -> None:
    group = classic_group(s)
    a = ClassicMember(s, group, "a")
    a.join(session_timeout=SHORT_MS)
    s.wait(LONG_ENOUGH_S)
    a.join()
    describe(s, group)


@script(seconds=3)
def id_that_is_never_joined_with_holds_up_the_others(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    form(a)
    b.join(session_timeout=SHORT_MS * 3)
    began = time.monotonic()
    a.join()
    s.note("waited", time.monotonic() - began > SHORT_S)
    b.join()
    describe(s, group)


@script(seconds=3)
def followers_who_do_not_join_in_time(s: Session) -> None:
    group = classic_group(s)
    a, b = (ClassicMember(s, group, name, rebalance_ms=SHORT_MS) for name in "ab")
    form(a, b)
    a.join()
    describe(s, group)
    b.heartbeat()
    b.join()
    a.sync(a)


@script(seconds=3)
def leader_who_does_not_join_in_time(s: Session) -> None:
    group = classic_group(s)
    a, b = (ClassicMember(s, group, name, rebalance_ms=SHORT_MS) for name in "ab")
    form(a, b)
    b.join(protocols=NEW)
    a.heartbeat()
    b.sync(b)


@script(seconds=3)
def longest_rebalance_timeout_counts(s: Session) -> None:
    group = classic_group(s)
    a, b = (
        ClassicMember(s, group, "a", rebalance_ms=SHORT_MS),
        ClassicMember(s, group, "b", rebalance_ms=6_000),
    )
    form(a)
    b.join()
    waiting = b.begin_join()
    until_state(s, group, "PreparingRebalance", 2)
    s.wait(LONG_ENOUGH_S)
    a.heartbeat()
    a.join()
    waiting()


@script(seconds=3)
def static_member_who_does_not_join_in_time(s: Session) -> None:
    group = classic_group(s)
    a, b = (ClassicMember(s, group, name, name * 2, rebalance_ms=SHORT_MS) for name in "ab")
    form(a, b)
    a.join()
    describe(s, group)
    b.heartbeat()
    b.join()


@script(seconds=3)
def static_leader_who_does_not_join_in_time(s: Session) -> None:
    group = classic_group(s)
    a, b = (ClassicMember(s, group, name, name * 2, rebalance_ms=SHORT_MS) for name in "ab")
    form(a, b)
    b.join(protocols=NEW)
    describe(s, group)
    a.heartbeat()


@script(seconds=3)
def static_members_who_do_not_make_way_for_a_new_one(s: Session) -> None:
    group = classic_group(s)
    a, b, c = (ClassicMember(s, group, name, name * 2, rebalance_ms=SHORT_MS) for name in "abc")
    form(a, b)
    c.join()
    describe(s, group)
    a.heartbeat()
    b.sync()
    c.sync()


@script(seconds=3)
def session_of_a_static_member_runs_out(s: Session) -> None:
    a = ClassicMember(s, classic_group(s), "a", "first", session_ms=SHORT_MS)
    form(a)
    until_state(s, a.group_id, "Empty")
    a.heartbeat()
    a.join()
    again = ClassicMember(s, a.group_id, "again", "first")
    again.join()


@script(seconds=3)
def leader_who_does_not_sync_in_time(s: Session) -> None:
    group = classic_group(s)
    a, b = (ClassicMember(s, group, name, rebalance_ms=SHORT_MS) for name in "ab")
    form(a, b)
    waiting = a.begin_join(quiet=True)
    until_state(s, group, "PreparingRebalance")
    b.join(quiet=True)
    waiting()
    b.sync()
    describe(s, group)
    a.heartbeat()
    b.heartbeat()
    b.join()


@script(seconds=3)
def follower_who_does_not_sync_in_time(s: Session) -> None:
    group = classic_group(s)
    a, b = (ClassicMember(s, group, name, rebalance_ms=SHORT_MS) for name in "ab")
    form(a, b)
    waiting = a.begin_join(quiet=True)
    until_state(s, group, "PreparingRebalance")
    b.join(quiet=True)
    waiting()
    a.sync(a, b)
    until_state(s, group, "PreparingRebalance", 1)
    b.heartbeat()
    b.sync()
    a.heartbeat()
    a.join()
    a.sync(a)


@script(seconds=3)
def only_member_does_not_sync_in_time(s: Session) -> None:
    group = classic_group(s)
    a = ClassicMember(s, group, "a", rebalance_ms=SHORT_MS)
    a.join()
    a.join()
    until_state(s, group, "Empty")
    a.sync(a)
    a.heartbeat()
    describe(s, group)


@script(seconds=3)
def client_goes_away_while_its_join_waits(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b", session_ms=SHORT_MS)
    form(a)
    b.join()
    b.begin_join()
    until_state(s, group, "PreparingRebalance", 2)
    b.disconnect()
    a.join()
    b.generation = a.generation
    share_out(a, b)
    until_state(s, group, "PreparingRebalance", 1)
    a.heartbeat()


@script(seconds=1)
def metadata_votes_after_a_member_is_gone(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    form(a, protocols=protocols("one", "two"))
    b.join(quiet=True, protocols=protocols("two"))
    waiting = b.begin_join(protocols=protocols("two"))
    until_state(s, group, "PreparingRebalance", 2)
    a.join(protocols=protocols("one", "two"))
    waiting()
    b.leave()
    a.join(protocols=protocols("one", "two"))
