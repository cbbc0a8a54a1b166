"""The uniform assignor for members with different subscriptions: topics are assigned, and then
evened out, one at a time.

Members keep their partitions. Free ones go to the subscriber with the fewest partitions of all
topics. Topics with the most partitions per subscriber come first, since they matter most. Then
subscribers with the most partitions pass some on to those with the fewest, topic by topic, over and
over, until nothing moves: then no subscriber has two partitions more than another to which it could
pass one. Numbers over all members may still differ by more: with members 1, 2 of topic a and 2, 3
of topic b, numbers like 9, 10, 11 remain. The process ends after ROUNDS rounds in any case, so long
chains of overlapping subscriptions may stay less even.

All of this, down to the order of members, is as in Kafka 4.4, so the results are equal. This module
must not know ids: see PartitionPool.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Final, NamedTuple

from kbroker.groups.assignors.partition_pool import NOBODY, PartitionPool

ROUNDS: Final = 16
"""Rounds over all topics, as in Kafka. Each round roughly halves the unevenness."""


class _Next(NamedTuple):
    load: int
    """The number of the member's partitions before it gets one or gives one up."""
    member: int


def share_out_by_topic(pool: PartitionPool) -> None:
    """Give every slot of the pool an owner."""
    loads = list(map(len, pool.owned()))
    by_weight = sorted(range(len(pool.topics)), key=lambda topic: _weight(pool, topic))
    for topic in by_weight:
        free = [slot for slot in pool.topics[topic] if pool.owners[slot] == NOBODY]
        for slot, receiver in zip(
            free, _least_loaded(_by_load(pool.subscribers[topic], loads), loads), strict=False
        ):
            pool.owners[slot] = receiver.member
            loads[receiver.member] += 1
    shared = [topic for topic in by_weight if len(pool.subscribers[topic]) > 1]
    quiet = 0
    for topic in islice(cycle(shared), ROUNDS * len(shared)):
        quiet = 1 if _even_out(pool, topic, loads) else quiet + 1
        if quiet == len(shared):
            return


def _weight(pool: PartitionPool, topic: int) -> tuple[float, int]:
    subscribers = len(pool.subscribers[topic])
    return -len(pool.topics[topic]) / subscribers, subscribers


def _by_load(members: Sequence[int], loads: Sequence[int]) -> list[int]:
    return sorted(members, key=loads.__getitem__)


def _even_out(pool: PartitionPool, topic: int, loads: list[int]) -> bool:
    """Pass partitions of the topic on; True if any moved. None moves twice in one call."""
    found = [loads[member] for member in pool.subscribers[topic]]
    if max(found) - min(found) <= 1:
        return False
    left: dict[int, list[int]] = {member: [] for member in pool.subscribers[topic]}
    for slot in pool.topics[topic]:
        left[pool.owners[slot]].append(slot)
    by_load = _by_load(pool.subscribers[topic], loads)
    receivers = _least_loaded(by_load, loads)
    moved = False
    for giver in _most_loaded(by_load, loads, left):
        receiver = next(receivers)
        if giver.load - receiver.load <= 1:
            break
        pool.owners[left[giver.member].pop()] = receiver.member
        loads[giver.member] -= 1
        loads[receiver.member] += 1
        moved = True
    return moved


def _least_loaded(by_load: Sequence[int], loads: Sequence[int]) -> Iterator[_Next]:
    """The members that get the next partitions, one each, without end. The caller keeps `loads` up
    to date.

    All members with the least get one, then these and all that have as many now, and so on.
    """
    load, count = loads[by_load[0]], 0
    while True:
        while count < len(by_load) and loads[by_load[count]] == load:
            count += 1
        for member in by_load[:count]:
            yield _Next(load, member)
        load += 1


def _most_loaded(by_load: Sequence[int], loads: Sequence[int], left: dict[int, list[int]]) -> Iterator[_Next]:
    """The members that give up the next partitions, one each, while any has some `left`. The
    caller keeps `loads` and `left` up to date.

    The reverse of _least_loaded. If a member has none left, the first of the round becomes the last
    of the next: a quirk of Kafka that decides between equals.
    """
    waiting = deque(reversed(by_load))
    round_: deque[int] = deque()
    while round_ or waiting:
        load = loads[(round_ or waiting)[0]]
        while waiting and loads[waiting[0]] == load:
            round_.append(waiting.popleft())
        next_round: deque[int] = deque()
        for member in round_:
            if left[member]:
                yield _Next(load, member)
                next_round.append(member)
            else:
                next_round.rotate(-1)
        round_ = next_round
