"""Brokers whose consumer groups are broken on purpose; the judge of consumer groups has to catch
each.

    takes-zombies         commits are accepted from removed members, and from members of an older
                          generation or epoch
    refuses-in-rebalance  a classic group refuses commits while it rebalances: its members lose the
                          positions that they have reached
    gives-twice           a group of the new protocol assigns a partition to its next member before
                          the previous one has given it up
    forgets-commits       every third commit of an offset is confirmed and stored, but missing in
                          memory

`install` breaks the broker of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from kbroker.errors import ErrorCode, KafkaError
from kbroker.groups.classic.coordinator import ClassicGroups
from kbroker.groups.classic.state import GroupState
from kbroker.groups.consumer.coordinator import ConsumerGroups
from kbroker.groups.consumer.state import ConsumerGroup
from kbroker.groups.offsets.committed import Offsets


def _takes_zombies() -> None:
    for groups in (ClassicGroups, ConsumerGroups):
        groups.check_commit = lambda *_, **__: None  # type: ignore[assignment,attr-defined]


def _refuses_in_rebalance() -> None:
    check_commit = ClassicGroups.check_commit

    def check_more(self: Any, request: Any, **options: Any) -> None:
        check_commit(self, request, **options)
        if self.get(request.group_id).state is GroupState.PREPARING:
            raise KafkaError(ErrorCode.rebalance_in_progress)

    ClassicGroups.check_commit = check_more  # type: ignore[method-assign]


def _gives_twice() -> None:
    for remember in ("_own", "_disown"):
        setattr(ConsumerGroup, remember, lambda *_: None)


def _forgets_commits() -> None:
    put, numbers = Offsets._put, count()

    def put_some(*args: Any) -> None:
        if next(numbers) % 3 != 2:
            put(*args)

    Offsets._put = put_some  # type: ignore[method-assign]


FAULTS: Mapping[str, Callable[[], None]] = {
    "takes-zombies": _takes_zombies,
    "refuses-in-rebalance": _refuses_in_rebalance,
    "gives-twice": _gives_twice,
    "forgets-commits": _forgets_commits,
}


def install(fault: str) -> None:
    FAULTS[fault]()
