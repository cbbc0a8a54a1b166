"""The broker writes dead letters as itself: a client needs no right on the dead letter topic."""

from __future__ import annotations

from tests.differential.dead_letters import letter_topic, queue
from tests.differential.script import REJECT, RELEASE
from tests.differential.secured import BOB, DESCRIBE, GROUP, READ, TOPIC, WRITE, Secured, secured_script


@secured_script("DLQ-29")
def reading_is_enough(s: Secured) -> None:
    q = queue(s, copies=True)
    s.allow(BOB, READ, TOPIC, q.topic.name)
    s.allow(BOB, READ, GROUP, q.group)
    q.member = s.member(q.group, "m", on=BOB)
    q.put("a", "b")
    q.take(2)
    q.acknowledge((0, 1, [REJECT, RELEASE]))
    q.outcome()


@secured_script("DLQ-29")
def the_client_is_denied_the_topic(s: Secured) -> None:
    letters = letter_topic(s)
    for operation in (READ, WRITE, DESCRIBE):
        s.deny(BOB, operation, TOPIC, letters.name)
    q = queue(s, letters=letters.name)
    s.allow(BOB, READ, TOPIC, q.topic.name)
    s.allow(BOB, READ, GROUP, q.group)
    q.member = s.member(q.group, "m", on=BOB)
    q.put("a")
    q.take(1)
    q.acknowledge((0, 0, [REJECT]))
    q.outcome()
