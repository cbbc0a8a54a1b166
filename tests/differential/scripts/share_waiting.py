"""ShareFetch that waits: which events end the wait, and which do not."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.differential.script import ACCEPT, RELEASE, Member, Session, Topic, script

LONG_MS, SETTLED_S = 9_000, 0.5


def woken(s: Session, topic: Topic, member: Member, event: Callable[[], object], **how: int) -> None:
    """Send a ShareFetch, trigger the event while it waits, and note whether the answer came long
    before MaxWaitMs."""
    began = time.monotonic()
    answer = member.begin_fetch({topic: {0: ()}}, wait_ms=LONG_MS, **how)
    s.wait(SETTLED_S)
    event()
    answer()
    s.note("answered early", time.monotonic() - began < LONG_MS / 1000 - 2)


@script("FET-23", "RPC-59")
def nothing_comes(s: Session) -> None:
    topic, member = s.share()
    began = time.monotonic()
    member.fetch({topic: {0: ()}}, wait_ms=800)
    s.note("waited", 0.7 < time.monotonic() - began < 5)
    member.fetch(wait_ms=100)


@script("FET-24", seconds=1)
def new_records(s: Session) -> None:
    topic, member = s.share()
    other = member.other()
    woken(s, topic, other, lambda: s.produce(topic, "one"))


@script("FET-21", "FET-24", seconds=9)
def new_records_but_too_few(s: Session) -> None:
    topic, member = s.share()
    other = member.other()
    woken(s, topic, other, lambda: s.produce(topic, "one"), min_bytes=10_000)


@script("FET-25", seconds=2)
def lock_runs_out(s: Session) -> None:
    topic, member = s.share(share_record_lock_duration_ms="1500")
    s.produce(topic, "one")
    member.fetch({topic: {0: ()}})
    woken(s, topic, member.other(), lambda: None)


@script("FET-27", seconds=1)
def window_gets_room(s: Session) -> None:
    topic, member = s.share(share_partition_max_record_locks="100")
    s.produce(topic, *(f"{index}" for index in range(120)), per_batch=10)
    member.fetch({topic: {0: ()}}, max_records=100)
    woken(s, topic, member.other(), lambda: member.acknowledge({topic: {0: [(0, 29, [ACCEPT])]}}))


@script("FET-29", seconds=9)
def release(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, "one")
    member.fetch({topic: {0: ()}})
    woken(s, topic, member.other(), lambda: member.acknowledge({topic: {0: [(0, 0, [RELEASE])]}}))


@script("FET-29", seconds=9)
def session_ends(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, "one")
    member.fetch({topic: {0: ()}})
    woken(s, topic, member.other(), lambda: member.fetch(epoch=-1))


@script("FET-29", seconds=9)
def connection_ends(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, "one")
    first = member.other("first")
    first.fetch({topic: {0: ()}})
    woken(s, topic, member.other(), lambda: s.disconnect("first"))


@script("FET-16", "FET-26", seconds=1)
def share_partition_that_loads(s: Session) -> None:
    topic, group = s.topic(), s.group()
    s.produce(topic, "one")
    s.join(group, "m", topic)
    woken(s, topic, s.member(group, on="waiting"), lambda: None)


@script("RPC-39", seconds=2)
def acknowledgement_with_a_fetch_that_waits(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, "one")
    member.fetch({topic: {0: ()}})
    began = time.monotonic()
    member.fetch({topic: {0: [(0, 0, [ACCEPT])]}}, wait_ms=1_500)
    s.note("waited", time.monotonic() - began > 1.4)


@script("RPC-39", "ACK-19")
def released_with_a_fetch(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, "one")
    member.fetch({topic: {0: ()}})
    member.fetch({topic: {0: [(0, 0, [RELEASE])]}}, wait_ms=1_000)
    member.fetch()


@script("SES-22", seconds=2)
def session_used_elsewhere_meanwhile(s: Session) -> None:
    topic, member = s.share()
    member.fetch({topic: {0: ()}})
    answer = member.begin_fetch(wait_ms=1_500)
    s.wait(SETTLED_S)
    same = s.member(member.group_id, "m", on="elsewhere")
    same.fetch(epoch=2)
    answer()
    same.fetch(epoch=3)


@script("SES-22", "SES-4", seconds=2)
def session_opened_elsewhere_meanwhile(s: Session) -> None:
    topic, member = s.share()
    member.fetch({topic: {0: ()}})
    member.fetch()
    answer = member.begin_fetch(wait_ms=1_500)
    s.wait(SETTLED_S)
    same = s.member(member.group_id, "m", on="elsewhere")
    same.fetch({topic: {0: ()}})
    answer()
    same.fetch()


@script("SES-22", "SES-8", seconds=2)
def session_ended_elsewhere_meanwhile(s: Session) -> None:
    topic, member = s.share()
    member.fetch({topic: {0: ()}})
    answer = member.begin_fetch(wait_ms=1_500)
    s.wait(SETTLED_S)
    same = s.member(member.group_id, "m", on="elsewhere")
    same.fetch(epoch=-1)
    answer()
    same.fetch(epoch=2)


@script("SES-22", "SES-4", seconds=3)
def records_come_after_the_session_was_opened_elsewhere(s: Session) -> None:
    topic, member = s.share()
    member.on = "waiting"
    member.fetch({topic: {0: ()}})
    answer = member.begin_fetch(wait_ms=2_000)
    s.wait(SETTLED_S)
    same = s.member(member.group_id, "m", on="elsewhere")
    same.fetch({topic: {0: ()}})
    s.produce(topic, "one")
    answer()
    same.fetch(wait_ms=500)


@script("RPC-60", "FET-18", "LOAD-5", seconds=2)
def no_record_young_enough(s: Session) -> None:
    topic, group = s.topic(), s.group(share_auto_offset_reset="by_duration:PT1H")
    s.produce(topic, "old", timestamp_ms=1_700_000_000_000)
    s.join(group, "m", topic)
    member = s.member(group)
    began = time.monotonic()
    member.fetch({topic: {0: ()}}, wait_ms=1_000)
    s.note("waited", time.monotonic() - began > 0.9)
    member.fetch(wait_ms=300)
    s.produce(topic, "young")
    member.fetch(wait_ms=9_000)


@script("LOAD-4", "LOAD-8")
def reset_by_duration(s: Session) -> None:
    topic, group = s.topic(), s.group(share_auto_offset_reset="by_duration:PT1H")
    s.produce(topic, "old", timestamp_ms=1_700_000_000_000)
    s.produce(topic, "young")
    s.join(group, "m", topic)
    s.member(group).fetch({topic: {0: ()}}, wait_ms=9_000)


@script("LOAD-2", "LOAD-7")
def reset_to_latest(s: Session) -> None:
    topic, group = s.topic(), s.group(share_auto_offset_reset="latest")
    s.join(group, "m", topic)
    s.produce(topic, "before the first fetch")
    member = s.member(group)
    member.fetch({topic: {0: ()}}, wait_ms=1_500)
    s.produce(topic, "after")
    member.fetch(wait_ms=9_000)
