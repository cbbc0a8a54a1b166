"""Settings of the client library that all workloads have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Settings = Mapping[str, Any]
NO_SETTINGS: Settings = {}


def base(bootstrap: str, more: Settings) -> dict[str, Any]:
    """Of any client. `more` is the caller's word: security, for instance."""
    return {
        "bootstrap.servers": bootstrap,
        "client.id": "kbroker-perf",
        "log_level": 0,
        "socket.nagle.disable": True,
        **more,
    }
