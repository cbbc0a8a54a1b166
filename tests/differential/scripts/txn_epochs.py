"""The last epochs of a producer id: who gets another id, when, and what the old one may still do.

Each script raises an epoch 32766 times, a step of the coordinator each.
"""

from __future__ import annotations

from tests.differential.script import Session, script
from tests.differential.scripts.txn_ends import until_aborted
from tests.differential.transactions import LAST_EPOCH, LOG, Producer, describe, fresh, init, transactional

SECONDS = 30.0


def ageing(s: Session, generation: int = 2, *, epoch: int = LAST_EPOCH, timeout_ms: int = 60_000) -> Producer:
    return transactional(s, "t", generation, timeout_ms).raised(epoch, timeout_ms)


def show(t: Producer) -> None:
    """The state of the id, and which epoch its client has now."""
    t.settle()
    describe(t.s, t.id)
    t.s.note("epoch", t.epoch)


@script("BASE-42", seconds=SECONDS, long=True)
def the_next_instance_gets_another_id(s: Session) -> None:
    topic = s.topic(**LOG)
    t = ageing(s)
    old = t.who
    t.init()
    show(t)
    for epoch in (LAST_EPOCH, LAST_EPOCH - 1, LAST_EPOCH + 1):
        init(s, t.id, who=(old[0], epoch))
        describe(s, t.id)
    t.produce(topic, "late", who=old, sequence=0)
    t.end(True, who=old)
    t.prepared()
    t.send(topic, "one")
    t.end(True)
    show(t)


@script("BASE-42", seconds=SECONDS, long=True)
def the_producer_itself_gets_another_id(s: Session) -> None:
    topic = s.topic(**LOG)
    t = ageing(s)
    old = t.who
    t.init(who=old)
    show(t)
    t.init(who=old)
    for epoch in (LAST_EPOCH - 1, LAST_EPOCH + 1, 0):
        init(s, t.id, who=(old[0], epoch))
    show(t)
    t.send(topic, "one")
    t.end(True)
    show(t)
    init(s, t.id, who=old)


@script("BASE-65", seconds=SECONDS, long=True)
def the_last_commits_of_an_id(s: Session) -> None:
    topic = s.topic(**LOG)
    t = ageing(s, epoch=LAST_EPOCH - 1)
    for generation in (2, 1, 2):
        t.generation, before = generation, t.who
        t.send(topic, "one")
        t.end(True)
        show(t)
        t.end(True, who=before)
        t.end(False, who=before)
        t.produce(topic, "late", who=before, sequence=1)
    t.generation = 2
    t.send(topic, "two")
    t.end(True)
    show(t)


@script("BASE-65", seconds=SECONDS, long=True)
def the_last_abort_of_an_id(s: Session) -> None:
    topic = s.topic(**LOG)
    t = ageing(s)
    before = t.who
    t.send(topic, "one")
    t.end(False)
    show(t)
    t.end(False, who=before)
    t.end(True, who=before)
    t.send(topic, "two")
    t.end(False)
    show(t)


@script("BASE-62", seconds=SECONDS, long=True)
def an_abort_of_nothing_with_the_last_epoch(s: Session) -> None:
    t = ageing(s)
    before = t.who
    t.end(False)
    show(t)
    t.end(False, who=before)
    t.init(who=t.who)
    show(t)


@script(seconds=SECONDS, long=True)
def another_instance_aborts_the_last_transaction(s: Session) -> None:
    topic = s.topic(**LOG)
    first = ageing(s)
    first.send(topic, "open")
    second = fresh(s)
    second.init()
    show(first)
    first.produce(topic, "late")
    first.end(True, 4)
    first.end(False)
    second.init()
    show(second)
    second.send(topic, "one")
    second.end(True)
    show(second)


@script("BASE-66", seconds=SECONDS, long=True)
def the_broker_aborts_the_last_transaction(s: Session) -> None:
    topic = s.topic(**LOG)
    t = ageing(s, timeout_ms=500)
    t.send(topic, "open")
    until_aborted(t)
    show(t)
    t.end(False)
    t.end(True, 4)
    t.produce(topic, "late")
    t.init(who=t.who)
    show(t)
    t.prepared()
    t.send(topic, "one")
    t.end(True)
    show(t)
