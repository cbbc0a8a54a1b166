"""The queue of a GroupCommit: writes, and operations on the store between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import outcome

from kbroker.broker.commits.waiting import OnDone


class Entry(NamedTuple):
    """A write. `on_done`: see group_commit.py."""

    items: Sequence[Any]
    on_done: OnDone


class Operation(NamedTuple):
    """A call in the store's thread. `ended` gets its outcome."""

    call: Callable[[], Any]
    ended: Callable[[outcome.Outcome[Any]], None]
