"""How values of settings are written and shown, for each kind of config that a queue's setting may
have."""

from __future__ import annotations

import pytest

from kbroker.cli.queues.create import SettingType
from kbroker.client.queues.settings import SETTINGS, Kind, Part, Setting
from kbroker.client.queues.values import shown, text_of

EXAMPLES = {
    Kind.COUNT: Setting("n", Part.GROUP, "share.delivery.count.limit", "5", ""),
    Kind.FACTOR: Setting("x", Part.GROUP, "kbroker.queue.redelivery.jitter", "0.1", ""),
    Kind.DURATION: Setting("d", Part.GROUP, "share.record.lock.duration.ms", "30000", ""),
    Kind.SWITCH: Setting("s", Part.GROUP, "share.renew.acknowledge.enable", "true", ""),
    Kind.FLAG: Setting(
        "f",
        Part.GROUP,
        "share.isolation.level",
        "read_uncommitted",
        "",
        ("read_uncommitted", "read_committed"),
    ),
    Kind.WORD: Setting("w", Part.GROUP, "kbroker.queue.assignment", "all", ""),
    Kind.TEXT: Setting("t", Part.GROUP, "errors.deadletterqueue.topic.name", "", ""),
}
"""Configs of Kafka's and kbroker's own, one of each kind."""


def test_the_kind_follows_from_the_config() -> None:
    assert {kind: each.kind for kind, each in EXAMPLES.items()} == {kind: kind for kind in Kind}


@pytest.mark.parametrize(
    ("kind", "value", "text", "written"),
    [
        (Kind.COUNT, 3, "3", "3"),
        (Kind.FACTOR, "0.50", "0.5", "0.5"),
        (Kind.DURATION, "1h30m", "5400000", "90m"),
        (Kind.SWITCH, True, "true", "true"),
        (Kind.SWITCH, "False", "false", "false"),
        (Kind.FLAG, True, "read_committed", "true"),
        (Kind.FLAG, "False", "read_uncommitted", "false"),
        (Kind.WORD, "simple", "simple", "simple"),
        (Kind.TEXT, "a=1, b=2", "a=1, b=2", "a=1, b=2"),
    ],
)
def test_values_of_each_kind(kind: Kind, value: object, text: str, written: str) -> None:
    setting = EXAMPLES[kind]
    assert text_of(setting, value) == text
    assert shown(setting, text) == written
    assert text_of(setting, written) == text, "what is shown can be written"


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (Kind.COUNT, True, "True is not a whole number of at least 2"),
        (Kind.COUNT, 2.5, "2.5 is not a whole number"),
        (Kind.FACTOR, "2", "'2' is not a number from 0 to 1"),
        (Kind.DURATION, "500ms", "'500ms' is less than 1s, the minimum"),
        (Kind.DURATION, "25d", "'25d' is more than 2147483647ms, the maximum"),
        (Kind.DURATION, True, "True is not a duration"),
        (Kind.SWITCH, 1, "1 is not true or false"),
        (Kind.SWITCH, "yes", "'yes' is not true or false"),
        (Kind.FLAG, 1, "1 is not true or false"),
        (Kind.FLAG, "read_committed", "'read_committed' is not true or false"),
        (Kind.WORD, "some", "'some' is not one of simple, all"),
        (Kind.TEXT, 5, "5 is not a text"),
    ],
)
def test_what_is_refused(kind: Kind, value: object, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{why}"):
        text_of(EXAMPLES[kind], value)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=list(SETTINGS))
def test_each_default_is_what_its_config_takes(setting: Setting) -> None:
    assert text_of(setting, shown(setting, setting.default)) == setting.default
    assert SettingType(setting).name in {*(kind.value for kind in Kind), "|".join(setting.definition.choices)}
