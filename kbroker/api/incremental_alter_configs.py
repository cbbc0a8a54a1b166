"""IncrementalAlterConfigs (44), v0-1 (KIP-339): SET, DELETE, APPEND and SUBTRACT on the settings of
topics, brokers and groups.

A broker resource is "" (all brokers) or this broker's id. One bad setting refuses its whole
resource. A group need not exist to have settings. With validate_only nothing changes.

With an authorizer a resource needs ALTER_CONFIGS, brokers on the cluster (29, 30 or 31, whether or
not it exists).

Not done: BROKER_LOGGER and CLIENT_METRICS resources (42).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.api.config_resources import alter
from kbroker.api.request import Message, Request
from kbroker.settings.altering import ConfigChange, Scope, alter_incrementally


async def handle(request: Request) -> Message:
    def decide(scope: Scope, stored: Mapping[str, str], resource: Any) -> dict[str, str]:
        changes = [
            ConfigChange(config.name, config.config_operation, config.value) for config in resource.configs
        ]
        return alter_incrementally(
            scope, stored, changes, request.broker.config, broker_name=resource.resource_name
        )

    return await alter(request, decide)
