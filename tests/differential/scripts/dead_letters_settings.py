"""Settings of dead letters: values, bounds and where they come from."""

from __future__ import annotations

from tests.differential.restarts import BROKER, NODE, Restartable, restarting_script
from tests.differential.script import Session, script
from tests.differential.scripts.group_configs import APPEND, DELETE, SET, change, each, settled, shown

NAME, COPIES = "errors.deadletterqueue.topic.name", "errors.deadletterqueue.copy.record.enable"
ENABLE = "errors.deadletterqueue.group.enable"
AUTO_CREATE = "errors.deadletterqueue.auto.create.topics.enable"
PREFIX = "errors.deadletterqueue.topic.name.prefix"
TOPIC = 2


@script("DLQ-2", "CFG-21")
def names(s: Session) -> None:
    each(s, f"{s.name}-g", NAME, "dlq.x", "", "__x", "__", "_x", "a b", "..", ".", "x" * 250, "ä/ö", " __x")


@script("CFG-21")
def copying(s: Session) -> None:
    each(s, f"{s.name}-g", COPIES, "true", "false", "TRUE", "False", "yes", "1", "", " true")


@script("DLQ-2", "CFG-37")
def a_group_s_own_values(s: Session) -> None:
    group = f"{s.name}-g"
    shown(s, group, NAME, COPIES)
    change(s, group, (NAME, SET, "dlq.x"), (COPIES, SET, "true"))
    settled(s, group, COPIES, "true")
    shown(s, group, NAME, COPIES)
    change(s, group, (NAME, SET, "__x"), (COPIES, SET, "false"))
    shown(s, group, NAME, COPIES)
    change(s, group, (NAME, DELETE, None), (COPIES, DELETE, None))
    settled(s, group, COPIES, None)
    shown(s, group, NAME, COPIES)


@script("CFG-21")
def operations_of_lists(s: Session) -> None:
    change(s, f"{s.name}-g", (NAME, APPEND, "dlq.x"))
    change(s, f"{s.name}-g", (COPIES, APPEND, "true"))


def described(s: Session, kind: int, name: str, *keys: str) -> None:
    rows = [{"resource_type": kind, "resource_name": name, "configuration_keys": list(keys)}]
    s.call("describe_configs", 4, resources=rows, include_synonyms=True, include_documentation=False)


def altered(s: Session, kind: int, resource: str, name: str, value: str | None, operation: int = SET) -> None:
    """Only checked."""
    configs = [{"name": name, "config_operation": operation, "value": value}]
    rows = [{"resource_type": kind, "resource_name": resource, "configs": configs}]
    s.call("incremental_alter_configs", 1, resources=rows, validate_only=True)


@script("DLQ-3", "CFG-43")
def of_topics(s: Session) -> None:
    topic = s.topic()
    described(s, TOPIC, topic.name, ENABLE)
    for value in ("true", "false", "TRUE", "yes", "", None):
        altered(s, TOPIC, topic.name, ENABLE, value)
    described(s, TOPIC, s.topic(errors_deadletterqueue_group_enable="true").name, ENABLE)


@script("DLQ-9", "CFG-16")
def of_the_broker(s: Session) -> None:
    described(s, BROKER, NODE, AUTO_CREATE, PREFIX, ENABLE)
    for value in ("true", "false", "yes", "", None):
        altered(s, BROKER, NODE, AUTO_CREATE, value)
        altered(s, BROKER, "", AUTO_CREATE, value)
    for value in ("dead.", "", " ", "__", "a b", None):
        altered(s, BROKER, NODE, PREFIX, value)
        altered(s, BROKER, "", PREFIX, value)
    altered(s, BROKER, NODE, PREFIX, "x", APPEND)


@restarting_script("DLQ-9")
def of_the_broker_altered(s: Restartable) -> None:
    with s.settings(**{AUTO_CREATE: "true", PREFIX: "dead."}):
        described(s, BROKER, NODE, AUTO_CREATE, PREFIX)
    described(s, BROKER, NODE, AUTO_CREATE, PREFIX)
