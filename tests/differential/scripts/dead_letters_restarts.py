"""Brokers that are killed while records are on their way to the dead letter topic. Kafka may write
letters twice then, so only the offsets that have letters are noted."""

from __future__ import annotations

from tests.differential.dead_letters import ARCHIVING, Queue, letter_offsets, letter_topic, queue
from tests.differential.restarts import Restartable, restarting_script
from tests.differential.script import REJECT
from tests.differential.scripts.dead_letters_stored import loaded, stored

MANY = 200


def restarted(s: Restartable, q: Queue, **configs: str) -> None:
    """The broker is killed and started, the group gets other settings, and a client comes."""
    s.restart(q.topic)
    if configs:
        q.configure(**configs)
    q.member.epoch = 0


@restarting_script("DLQ-20", "DLQ-32", seconds=20)
def killed_right_after_the_answer(s: Restartable) -> None:
    q = queue(s, *(f"{index}" for index in range(MANY)), copies=True)
    q.acknowledge((0, MANY - 1, [REJECT]))
    restarted(s, q)
    q.put("next")
    q.fetch(wait_ms=20_000)
    q.settle()
    letter_offsets(s, q.letters)


@restarting_script("DLQ-20", "DLQ-32", seconds=20)
def killed_after_the_letters(s: Restartable) -> None:
    q = queue(s, "a", "b", "c")
    q.acknowledge((0, 1, [REJECT]))
    q.outcome()
    restarted(s, q)
    q.fetch(wait_ms=20_000)
    q.outcome()


@restarting_script("DLQ-20", seconds=20)
def the_limit_is_lowered_meanwhile(s: Restartable) -> None:
    q = stored(s, (0, 1, ARCHIVING, 3), (2, 3, ARCHIVING, 1))
    restarted(s, q, share_delivery_count_limit="2")
    loaded(q)


@restarting_script("DLQ-20", "DLQ-8", seconds=20)
def the_name_is_emptied_meanwhile(s: Restartable) -> None:
    q = stored(s, (0, 3, ARCHIVING, 3))
    restarted(s, q, errors_deadletterqueue_topic_name="")
    loaded(q)


@restarting_script("DLQ-20", seconds=20)
def the_name_is_altered_meanwhile(s: Restartable) -> None:
    q = stored(s, (0, 3, ARCHIVING, 3))
    restarted(s, q)
    q.letters = letter_topic(s, name=f"{q.letters}-other").name
    q.configure(errors_deadletterqueue_topic_name=q.letters)
    loaded(q)


@restarting_script("DLQ-20", seconds=20)
def nobody_comes(s: Restartable) -> None:
    """Kafka loads a share-partition for a client, not before."""
    q = stored(s, (0, 3, ARCHIVING, 3))
    restarted(s, q)
    s.wait(2.0)
    q.fetch(wait_ms=20_000)
    q.outcome()
