"""What the broker checks before it writes a letter: a record without a letter is finished
nevertheless."""

from __future__ import annotations

from tests.differential.dead_letters import ENABLED, letter_name, letter_topic, queue, show, switch
from tests.differential.restarts import Restartable, restarting_script
from tests.differential.script import REJECT, Session, script

AUTO_CREATE = "errors_deadletterqueue_auto_create_topics_enable"
PREFIX = "errors_deadletterqueue_topic_name_prefix"
CREATED = (
    "errors.deadletterqueue.group.enable",
    "message.timestamp.type",
    "cleanup.policy",
    "retention.ms",
    "max.message.bytes",
    "compression.type",
)


def rejected(s: Session, letters: str) -> None:
    """Steps: two rejections by a group with this dead letter topic, and what becomes of them."""
    q = queue(s, "a", "b", letters=letters)
    q.acknowledge((0, 1, [REJECT]))
    q.outcome()
    q.fetch()


@script("DLQ-1", "DLQ-8")
def no_name(s: Session) -> None:
    q = queue(s, "a", "b", letters="")
    q.acknowledge((0, 1, [REJECT]))
    q.settle()
    q.state()


@script("DLQ-1")
def a_name_that_is_set_between_two_rejections(s: Session) -> None:
    q = queue(s, "a", "b", letters="")
    q.acknowledge((0, 0, [REJECT]))
    q.letters = letter_topic(s).name
    q.configure(errors_deadletterqueue_topic_name=q.letters)
    q.acknowledge((1, 1, [REJECT]))
    q.outcome()


@script("DLQ-1")
def a_name_that_is_emptied_between_two_rejections(s: Session) -> None:
    q = queue(s, "a", "b")
    q.acknowledge((0, 0, [REJECT]))
    q.settle()
    q.configure(errors_deadletterqueue_topic_name="")
    q.acknowledge((1, 1, [REJECT]))
    q.outcome()


@script("DLQ-1")
def another_name_between_two_rejections(s: Session) -> None:
    q = queue(s, "a", "b")
    q.acknowledge((0, 0, [REJECT]))
    q.outcome()
    q.letters = letter_topic(s, name=letter_name(s, "-other")).name
    q.configure(errors_deadletterqueue_topic_name=q.letters)
    q.acknowledge((1, 1, [REJECT]))
    q.outcome()


@script("DLQ-3", "DLQ-8")
def a_topic_that_is_not_for_letters(s: Session) -> None:
    rejected(s, s.topic(name=letter_name(s)).name)


@script("DLQ-3", "DLQ-7")
def a_topic_that_is_made_one_for_letters(s: Session) -> None:
    letters = s.topic(name=letter_name(s))
    q = queue(s, "a", "b", "c", letters=letters.name)
    q.acknowledge((0, 0, [REJECT]))
    q.outcome()
    switch(s, letters, **ENABLED)
    q.acknowledge((1, 1, [REJECT]))
    q.outcome()
    switch(s, letters, errors_deadletterqueue_group_enable="false")
    q.acknowledge((2, 2, [REJECT]))
    q.outcome()


@script("DLQ-4", "DLQ-8")
def a_missing_topic(s: Session) -> None:
    rejected(s, letter_name(s))


@script("DLQ-8")
def names_that_no_topic_has(s: Session) -> None:
    q = queue(s, "a", "b", "c", letters="dlq.a b")
    q.acknowledge((0, 0, [REJECT]))
    q.settle()
    for offset, name in ((1, ".."), (2, "x" * 250)):
        q.configure(errors_deadletterqueue_topic_name=name)
        q.acknowledge((offset, offset, [REJECT]))
        q.settle()
    q.state()


@script("DLQ-4", "DLQ-7", "DLQ-33")
def an_existing_topic_without_the_prefix(s: Session) -> None:
    rejected(s, letter_topic(s, name=f"dead.{s.name}").name)


def created(s: Session, name: str) -> None:
    """A step: the settings of a topic that are its own, or that matter."""
    rows = [{"resource_type": 2, "resource_name": name, "configuration_keys": list(CREATED)}]
    s.call("describe_configs", 4, resources=rows, include_synonyms=False, include_documentation=False)
    s.call("describe_topic_partitions", 0, topics=[{"name": name}], response_partition_limit=100, cursor=None)


@restarting_script("DLQ-4", "DLQ-5", "DLQ-9")
def a_topic_that_the_broker_creates(s: Restartable) -> None:
    with s.settings(**{AUTO_CREATE: "true"}):
        q = queue(s, "a", "b", letters=letter_name(s))
        q.acknowledge((0, 1, [REJECT]))
        q.settle()
    s.learn(q.letters)
    q.outcome()
    created(s, q.letters)


@restarting_script("DLQ-4", "DLQ-9")
def creation_is_switched_on_and_off(s: Restartable) -> None:
    q = queue(s, "a", "b", "c", letters=letter_name(s))
    q.acknowledge((0, 0, [REJECT]))
    q.outcome()
    with s.settings(**{AUTO_CREATE: "true"}):
        q.acknowledge((1, 1, [REJECT]))
        q.outcome()
    q.acknowledge((2, 2, [REJECT]))
    q.outcome()
    q.configure(errors_deadletterqueue_topic_name=letter_name(s, "-other"))
    q.put("d")
    q.take(1)
    q.acknowledge((3, 3, [REJECT]))
    q.settle()
    show(s, letter_name(s, "-other"))


@restarting_script("DLQ-4", "DLQ-7")
def a_missing_topic_without_the_prefix(s: Restartable) -> None:
    with s.settings(**{AUTO_CREATE: "true"}):
        rejected(s, f"dead.{s.name}")


@restarting_script("DLQ-4", "DLQ-9")
def no_prefix(s: Restartable) -> None:
    with s.settings(**{AUTO_CREATE: "true", PREFIX: ""}):
        rejected(s, f"made.{s.name}")


@restarting_script("DLQ-33", "DLQ-9")
def no_prefix_and_an_existing_topic(s: Restartable) -> None:
    with s.settings(**{PREFIX: ""}):
        rejected(s, letter_topic(s, name=f"dead.{s.name}").name)


@restarting_script("DLQ-33", "DLQ-9")
def another_prefix(s: Restartable) -> None:
    with s.settings(**{AUTO_CREATE: "true", PREFIX: "dead."}):
        rejected(s, f"dead.{s.name}")


@restarting_script("DLQ-33", "DLQ-9")
def another_prefix_than_that_of_the_topic(s: Restartable) -> None:
    letters = letter_topic(s)
    with s.settings(**{PREFIX: "dead."}):
        rejected(s, letters.name)


@restarting_script("DLQ-4", "DLQ-8")
def a_name_that_cannot_be_created(s: Restartable) -> None:
    with s.settings(**{AUTO_CREATE: "true"}):
        q = queue(s, "a", "b", letters="dlq.a b")
        q.acknowledge((0, 1, [REJECT]))
        q.settle()
        q.state()
