"""flush.messages and flush.ms, which promise that little is lost in a power cut.

With durability `disk` every commit is synced before it is answered, which keeps the promise for any
value. With `os` the broker syncs all logs in the background, at an interval of its own, so these
settings would promise what nobody does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from kbroker.broker.logs.topics import Topic
from kbroker.broker.options import Durability
from kbroker.errors import ErrorCode, KafkaError
from kbroker.settings.topic_configs import FLUSH_MESSAGES, FLUSH_MS, NEVER_FLUSH

logger = logging.getLogger(__name__)

_MAX_SHOWN = 10


def check_flushes(configs: Mapping[str, str], stored: Mapping[str, str], durability: Durability) -> None:
    """Raises INVALID_CONFIG if `configs` want syncs that this broker does not make, and `stored`,
    which they replace, did not: other settings of such a topic can be altered."""
    for name, value in _promises(configs) if durability == "os" else ():
        if value != stored.get(name):
            what = (
                f"Invalid value {value} for configuration {name}: with --durability os the broker syncs "
                "all logs at an interval of its own; start it with --durability disk, which syncs every "
                f"write, or leave {name} out"
            )
            raise KafkaError(ErrorCode.invalid_config, what)


def warn_of_flushes(topics: Iterable[Topic], durability: Durability) -> None:
    """At start: name the topics whose promise this broker does not keep, in one line."""
    names = sorted(each.name for each in topics if any(_promises(each.configs)))
    if not names or durability != "os":
        return
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    logger.warning(
        "%s or %s of these topics has no effect with --durability os, which syncs all logs at an interval of "
        "its own: %s%s. Start with --durability disk to sync every write",
        FLUSH_MESSAGES, FLUSH_MS, ", ".join(names[:_MAX_SHOWN]), more,
    )  # fmt: skip


def _promises(configs: Mapping[str, str]) -> list[tuple[str, str]]:
    return [
        (name, configs[name])
        for name in (FLUSH_MESSAGES, FLUSH_MS)
        if configs.get(name, NEVER_FLUSH) != NEVER_FLUSH
    ]
