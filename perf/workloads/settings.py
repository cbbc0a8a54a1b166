"""Settings of the client library that all workloads share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

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


def is_about_its_group(error: KafkaError) -> bool:
    """Whether the broker denies a consumer its group. The library requires a group id and looks for
    the group's coordinator, even of a consumer that joins no group and may read all the same."""
    return error.code() == error.GROUP_AUTHORIZATION_FAILED
