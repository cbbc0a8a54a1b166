"""What happens to members who do not come in time: sessions, rebalances, ids that were never joined with, syncs."""

from __future__ import annotations

import time

from tests.differential.classic import ClassicMember, classic_group, describe, form, protocols, share_out, until_state
from tests.differential.script import Session, script
from tests.differential.scripts.classic_rejoin import NEW

SHORT_MS, SHORT_S = 1_000, 1.0
LONG_ENOUGH_S = 2.5
"""After this time something that takes SHORT_S has happened."""


@script(seconds=3)
def session_runs_out(s: Session) -> None:
    a = ClassicMember(s, classic_group(s), "a")
    form(a, session_timeout=SHORT_MS)
    until_state(s, a.group_id, "Empty")
    a.heartbeat()
    a.sync()
    a.join()
    a.join(member_id="")
    a.join()


@script(seconds=3)
def session_of_a_follower_runs_out(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    form(a)
    b.join(quiet=True, session_timeout=SHORT_MS)
    waiting = b.begin_join(quiet=True, session_timeout=SHORT_MS)
    until_state(s, group, "PreparingRebalance", 2)
    a.join(quiet=True)
    waiting()
    share_out(a, b)
    until_state(s, group, "PreparingRebalance", 1)
    b.heartbeat()
    a.heartbeat()
    a.join()
    describe(s, group)


@script(seconds=3)
def heartbeats_keep_the_session(s: Session) -> None:
    a = ClassicMember(s, classic_group(s), "a")
    form(a, session_timeout=1_500)
    until = time.monotonic() + 3
    while time.monotonic() < until:
        a.heartbeat(quiet=True)
        s.wait(0.2)
    a.heartbeat()


@script(seconds=3)
def commits_and_syncs_keep_the_session(s: Session) -> None:
    topic = s.topic()
    a = ClassicMember(s, classic_group(s), "a")
    form(a, session_timeout=1_500)
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
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    form(a, b, session_timeout=SHORT_MS * 20)
    waiting = b.begin_join(protocols=NEW, session_timeout=SHORT_MS)
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
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    form(a, b, rebalance_timeout=SHORT_MS)
    a.join()
    describe(s, group)
    b.heartbeat()
    b.join()
    a.sync(a)


@script(seconds=3)
def leader_who_does_not_join_in_time(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    form(a, b, rebalance_timeout=SHORT_MS)
    b.join(protocols=NEW)
    a.heartbeat()
    b.sync(b)


@script(seconds=3)
def longest_rebalance_timeout_counts(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    form(a, rebalance_timeout=SHORT_MS)
    b.join()
    waiting = b.begin_join(rebalance_timeout=6_000)
    until_state(s, group, "PreparingRebalance", 2)
    s.wait(LONG_ENOUGH_S)
    a.heartbeat()
    a.join(rebalance_timeout=SHORT_MS)
    waiting()


@script(seconds=3)
def static_member_who_does_not_join_in_time(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a", "first"), ClassicMember(s, group, "b", "second")
    form(a, b, rebalance_timeout=SHORT_MS)
    a.join()
    describe(s, group)
    b.heartbeat()
    b.join()


@script(seconds=3)
def static_leader_who_does_not_join_in_time(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a", "first"), ClassicMember(s, group, "b", "second")
    form(a, b, rebalance_timeout=SHORT_MS)
    b.join(protocols=NEW)
    describe(s, group)
    a.heartbeat()


@script(seconds=3)
def static_members_who_do_not_make_way_for_a_new_one(s: Session) -> None:
    group = classic_group(s)
    a, b, c = (ClassicMember(s, group, name, name * 2) for name in "abc")
    form(a, b, rebalance_timeout=SHORT_MS)
    c.begin_join(rebalance_timeout=SHORT_MS, session_timeout=SHORT_MS * 10)
    until_state(s, group, "PreparingRebalance", 3)
    until_state(s, group, "CompletingRebalance")
    describe(s, group)


@script(seconds=3)
def session_of_a_static_member_runs_out(s: Session) -> None:
    a = ClassicMember(s, classic_group(s), "a", "first")
    form(a, session_timeout=SHORT_MS)
    until_state(s, a.group_id, "Empty")
    a.heartbeat()
    a.join()
    again = ClassicMember(s, a.group_id, "again", "first")
    again.join()


@script(seconds=3)
def leader_who_does_not_sync_in_time(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    form(a, b, rebalance_timeout=SHORT_MS)
    waiting = a.begin_join(quiet=True, rebalance_timeout=SHORT_MS)
    until_state(s, group, "PreparingRebalance")
    b.join(quiet=True, rebalance_timeout=SHORT_MS)
    waiting()
    b.sync()
    describe(s, group)
    a.heartbeat()
    b.heartbeat()
    b.join()


@script(seconds=3)
def follower_who_does_not_sync_in_time(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    form(a, b, rebalance_timeout=SHORT_MS)
    waiting = a.begin_join(quiet=True, rebalance_timeout=SHORT_MS)
    until_state(s, group, "PreparingRebalance")
    b.join(quiet=True, rebalance_timeout=SHORT_MS)
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
    a = ClassicMember(s, group, "a")
    a.join(rebalance_timeout=SHORT_MS)
    a.join(rebalance_timeout=SHORT_MS)
    until_state(s, group, "Empty")
    a.sync(a)
    a.heartbeat()
    describe(s, group)


@script(seconds=3)
def client_goes_away_while_its_join_waits(s: Session) -> None:
    group = classic_group(s)
    a, b = ClassicMember(s, group, "a"), ClassicMember(s, group, "b")
    form(a)
    b.join(session_timeout=SHORT_MS)
    b.begin_join(session_timeout=SHORT_MS)
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
