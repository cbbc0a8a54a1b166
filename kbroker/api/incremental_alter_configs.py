"""IncrementalAlterConfigs (44), v0-1 (KIP-339): SET, DELETE, APPEND and SUBTRACT on the settings of
topics, brokers and groups, and the levels of loggers.

A broker resource is "" (all brokers) or this broker's id. One bad setting refuses its whole
resource. A group need not exist to have settings. With validate_only nothing changes.

Of loggers (settings/loggers.py) the resource is this broker's id. An unknown logger or level is 40;
APPEND, SUBTRACT, and DELETE of root are 42. Levels last until the broker stops.

With an authorizer a resource needs ALTER_CONFIGS, brokers on the cluster (29, 30 or 31, whether or
not it exists).

Not done: CLIENT_METRICS resources (42).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.api.config_resources import alter
from kbroker.api.request import Message, Request
from kbroker.settings.altering import ConfigChange, Scope, alter_incrementally
from kbroker.settings.loggers import alter_loggers


async def handle(request: Request) -> Message:
    def decide(scope: Scope, stored: Mapping[str, str], resource: Any) -> dict[str, str]:
        return alter_incrementally(
            scope, stored, _changes(resource), request.broker.config, broker_name=resource.resource_name
        )

    def set_levels(resource: Any) -> None:
        alter_loggers(_changes(resource), validate_only=request.body.validate_only)

    return await alter(request, decide, set_levels)


def _changes(resource: Any) -> list[ConfigChange]:
    return [ConfigChange(config.name, config.config_operation, config.value) for config in resource.configs]
