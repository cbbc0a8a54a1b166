"""The settings of a topic: `TopicConfig` with one topic's values; settings/topic_configs.py has the
table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kbroker.settings.broker import BrokerConfig
from kbroker.settings.queue import QUEUE_RETENTION
from kbroker.settings.topic_configs import (
    CLEANUP_POLICY,
    COMPACT,
    DEAD_LETTERS,
    MAX_COMPACTION_LAG,
    MIN_COMPACTION_LAG,
    TOPIC_CONFIGS,
)


def contradictions(stored: Mapping[str, str]) -> Iterator[str]:
    """Contradictions between these settings, one line each."""
    if stored.get(QUEUE_RETENTION, "time") != "time" and stored.get(DEAD_LETTERS) == "true":
        yield (
            f"{QUEUE_RETENTION} must be time for a topic of dead letters ({DEAD_LETTERS}=true): nobody "
            "finishes those"
        )
    least, most = (_stored_number(stored, name) for name in (MIN_COMPACTION_LAG, MAX_COMPACTION_LAG))
    if least > most:
        yield f"conflict topic config setting {MIN_COMPACTION_LAG} ({least}) > {MAX_COMPACTION_LAG} ({most})"


def _stored_number(stored: Mapping[str, str], name: str) -> int:
    text = stored.get(name, TOPIC_CONFIGS[name].default)
    assert text is not None
    return int(text)


class TopicConfig:
    """The effective settings of one topic: `config["retention.ms"]`, typed as the table says.

    Settings not set on the topic come from the broker, read with each access.
    """

    def __init__(self, stored: Mapping[str, str], broker: BrokerConfig) -> None:
        """`stored`: the values set for the topic, as altering returned them; names that are no
        longer in the table are ignored."""
        self._own: dict[str, Any] = {
            name: TOPIC_CONFIGS[name].parse(text) for name, text in stored.items() if name in TOPIC_CONFIGS
        }
        if "internal.segment.bytes" in self._own:
            self._own["segment.bytes"] = self._own["internal.segment.bytes"]
        self._broker = broker

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - the table knows the type, and callers annotate what they take
        if name in self._own:
            return self._own[name]
        each = TOPIC_CONFIGS[name]
        return self._broker.first_set(each.synonyms) if each.synonyms else each.default_value()


def is_compacted(config: TopicConfig) -> bool:
    return COMPACT in config[CLEANUP_POLICY]
