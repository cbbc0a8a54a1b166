"""Settings of the client library that all workloads share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Settings = Mapping[str, Any]
NO_SETTINGS: Settings = {}


def base(bootstrap: str, more: Settings) -> dict[str, Any]:
    """Settings of any client. `more`: the caller's own, for instance for security."""
    return {
        "bootstrap.servers": bootstrap,
        "client.id": "kbroker-perf",
        "log_level": 0,
        "socket.nagle.disable": True,
        **more,
    }
