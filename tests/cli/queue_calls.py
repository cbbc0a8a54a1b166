"""Counts the requests by which a command changes something, or simulates a kill before or after one
of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.client.rpc import Connection

CHANGES = (
    "create_topics",
    "incremental_alter_configs",
    "create_partitions",
    "alter_share_group_offsets",
    "delete_topics",
    "delete_groups",
)


class Changes:
    """`made`: names of the requests that reached the broker. `at(n, before=...)` calls `strike`
    when the n-th is about to be sent, or has been answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        self._struck: tuple[int, bool] | None = None
        self._strike: Callable[[], None] = self.interrupt
        call = Connection.call

        def watched(
            connection: Connection, api: str | int, version: int | None = None, /, **values: Any
        ) -> Any:
            if api not in CHANGES or values.get("validate_only"):
                return call(connection, api, version, **values)
            self._look(before=True)
            answer = call(connection, api, version, **values)
            self.made.append(str(api))
            self._look(before=False)
            return answer

        monkeypatch.setattr(Connection, "call", watched)

    def at(self, number: int, *, before: bool, strike: Callable[[], None] | None = None) -> None:
        self.made.clear()
        self._struck, self._strike = (number, before), strike or self.interrupt

    def no_more(self) -> None:
        self.made.clear()
        self._struck = None

    @staticmethod
    def interrupt() -> None:
        raise KeyboardInterrupt

    def _look(self, *, before: bool) -> None:
        if self._struck == (len(self.made) + before, before):
            self._strike()


def queue_name(request: pytest.FixtureRequest) -> str:
    """A name unique to the test, for queue and topic."""
    return "q-" + re.sub(r"[^\w.-]+", "-", request.node.name).strip("-")
