"""AlterConfigs (33), v0-2: replaces all settings of topics, brokers or groups with those given. A
setting that the request does not name is unset.

Loggers are refused (42). The rest is as in IncrementalAlterConfigs, which clients should prefer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kbroker.api.config_resources import alter
from kbroker.api.request import Message, Request
from kbroker.settings.altering import Scope, replace_all


async def handle(request: Request) -> Message:
    def decide(scope: Scope, _: Mapping[str, str], resource: Any) -> dict[str, str]:
        entries = [(config.name, config.value) for config in resource.configs]
        return replace_all(scope, entries, request.broker.config, broker_name=resource.resource_name)

    return await alter(request, decide)
