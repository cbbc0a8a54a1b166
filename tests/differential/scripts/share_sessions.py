"""Share sessions: epochs, and the requests that open, close and refuse a session."""

from __future__ import annotations

from tests.differential.script import ACCEPT, Session, script


@script("SES-2")
def first_fetch_and_accept(s: Session) -> None:
    topic, group = s.topic(), s.group()
    s.produce(topic, "one", "two", "three")
    s.join(group, "m", topic)
    member = s.member(group)
    member.fetch({topic: {0: ()}}, wait_ms=10_000)
    member.acknowledge({topic: {0: [(0, 2, [ACCEPT])]}})
    member.fetch()
    member.fetch(epoch=-1)


@script("SES-3", "SES-10")
def acknowledgements_on_epoch_zero(s: Session) -> None:
    topic, group = s.topic(), s.group()
    s.produce(topic, "one")
    s.join(group, "m", topic)
    member = s.member(group)
    member.fetch({topic: {0: [(0, 0, [ACCEPT])]}})
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}})


@script("SES-6", "SES-15")
def unknown_session_and_wrong_epoch(s: Session) -> None:
    topic, group = s.topic(), s.group()
    s.join(group, "m", topic)
    s.load(group, topic)
    member = s.member(group)
    member.fetch({topic: {0: ()}}, epoch=1)
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}}, epoch=3)
    member.fetch({topic: {0: ()}}, epoch=-1)
    member.fetch({topic: {0: ()}})
    member.fetch(epoch=5)
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}}, epoch=7)
    member.fetch()


@script("SES-4", "SES-5", "SES-17")
def opened_again(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, "one", "two")
    member.fetch({topic: {0: ()}}, wait_ms=10_000)
    member.fetch({topic: {0: ()}}, epoch=0)
    member.acknowledge({topic: {0: [(0, 1, [ACCEPT])]}})
    member.fetch(epoch=2)


@script("SES-3")
def acknowledgements_on_epoch_zero_of_an_open_session(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, "one")
    member.fetch({topic: {0: ()}}, wait_ms=10_000)
    member.fetch({topic: {0: [(0, 0, [ACCEPT])]}}, epoch=0)
    member.fetch({topic: {0: [(0, 0, [ACCEPT])]}}, epoch=1)


@script("SES-7", "FET-5")
def added_by_a_later_request(s: Session) -> None:
    topic, member = s.share(2)
    member.fetch({topic: {0: ()}})
    member.fetch({topic: {1: ()}})
    s.produce(topic, "one", partition=1)
    member.fetch(wait_ms=10_000)
    member.fetch(forget={topic: [1]})
    s.produce(topic, "two", partition=1)
    member.fetch({topic: {1: [(0, 0, [ACCEPT])]}}, wait_ms=10_000)


@script("SES-29", "FET-6")
def added_and_forgotten_in_one(s: Session) -> None:
    topic, member = s.share(2)
    s.produce(topic, "one", partition=1)
    member.fetch({topic: {0: (), 1: ()}}, wait_ms=10_000)
    member.fetch({topic: {1: [(0, 0, [ACCEPT])]}}, forget={topic: [1]})
    s.produce(topic, "two", partition=1)
    member.fetch({topic: {1: ()}}, forget={topic: [1]})
    member.fetch()
    member.fetch({topic: {1: ()}}, wait_ms=10_000)


@script("SES-7")
def forgetting_what_is_not_there(s: Session) -> None:
    topic, member = s.share(2)
    member.fetch({topic: {0: ()}})
    member.fetch(forget={topic: [1, 9]})
    member.fetch(forget={topic: [0]})
    s.produce(topic, "one")
    member.fetch(wait_ms=300)


@script("SES-8", "SES-26")
def final_fetch(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, *"abc")
    member.fetch({topic: {0: ()}}, wait_ms=10_000)
    member.fetch({topic: {0: [(0, 0, [ACCEPT])]}}, epoch=-1)
    member.fetch(epoch=2)
    other = member.other()
    other.fetch({topic: {0: ()}}, wait_ms=3_000)


@script("SES-9")
def final_fetch_that_lists_topics(s: Session) -> None:
    topic, member = s.share(2)
    s.produce(topic, "one")
    member.fetch({topic: {0: ()}}, wait_ms=10_000)
    member.fetch({topic: {0: (), 1: ()}}, forget={topic: [0]}, epoch=-1)
    member.fetch(epoch=-1)
    member.fetch({topic: {0: ()}}, wait_ms=3_000)


@script("SES-12", "SES-26")
def final_acknowledgement(s: Session) -> None:
    topic, member = s.share()
    s.produce(topic, *"abc", per_batch=1)
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}}, epoch=-1)
    member.fetch({topic: {0: ()}}, wait_ms=10_000)
    member.acknowledge({topic: {0: [(1, 1, [ACCEPT])]}}, epoch=-1)
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}}, epoch=-1)
    member.other().fetch({topic: {0: ()}}, wait_ms=3_000)


@script("SES-14")
def epochs_below_minus_one(s: Session) -> None:
    topic, member = s.share()
    member.fetch({topic: {0: ()}}, epoch=-2)
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}}, epoch=-2)
    member.fetch({topic: {0: ()}})
    member.fetch(epoch=-2)
    member.acknowledge({topic: {0: [(0, 0, [ACCEPT])]}}, epoch=-(1 << 31))
    member.fetch(epoch=(1 << 31) - 1)
    member.fetch(epoch=1)


@script("SES-11")
def acknowledging_does_not_add(s: Session) -> None:
    topic, member = s.share(2)
    member.fetch({topic: {0: ()}})
    member.acknowledge({topic: {1: [(0, 0, [ACCEPT])]}})
    s.produce(topic, "one", partition=1)
    member.fetch(wait_ms=300)


@script("SES-1", "ACK-9")
def sessions_of_two_members(s: Session) -> None:
    topic, member = s.share()
    other = member.other()
    s.produce(topic, *"abcd", per_batch=2)
    member.fetch({topic: {0: ()}}, max_records=1, wait_ms=10_000)
    other.fetch({topic: {0: ()}}, max_records=1)
    member.acknowledge({topic: {0: [(2, 3, [ACCEPT])]}})
    other.acknowledge({topic: {0: [(2, 3, [ACCEPT])]}})
    member.acknowledge({topic: {0: [(0, 1, [ACCEPT])]}})
    other.fetch()
