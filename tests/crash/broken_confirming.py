"""A broker that confirms records too early on purpose; the judges of what is confirmed have to
catch it.

    confirms-early      a Produce with acks=1 is answered before its batches are committed

`install` breaks the broker of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kbroker.api import produce
from kbroker.api.request import Later
from kbroker.broker.commits.waiting import Pending


def _confirms_early() -> None:
    def early(pending: Pending, body: Any, is_silent: bool) -> Later:
        request = body.__self__
        rows = [row for _, rows in request._topics for row in rows]
        if request.acks == 1 and all(row.base_offset >= 0 for row in rows):  # None waits for a thread.
            pending.start()
            pending.parts = 0
        return Later(pending, body, is_silent)

    produce.Later = early  # type: ignore[misc, assignment]


FAULTS: Mapping[str, Callable[[], None]] = {"confirms-early": _confirms_early}


def install(fault: str) -> None:
    FAULTS[fault]()
