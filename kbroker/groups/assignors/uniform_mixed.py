"""The uniform assignor where members subscribe to different topics: topics are shared out, and then
evened out, one at a time.

Members keep what they have. What is free goes to the subscriber with the fewest partitions of all
topics; topics with the most partitions for each subscriber come first, since they decide most. Then
subscribers of a topic who have most pass partitions of it on to those who have least, for all
topics over and over, until nothing moves: then no subscriber of any topic has two more than another
to whom he could pass one of it on. It is no more even than that: with members 1, 2 of topic a and
2, 3 of topic b, numbers like 9, 10, 11 stay. And it ends after ROUNDS in any case, so that long
chains of overlapping subscriptions may stay less even.

All of that is Kafka 4.3's, down to who is asked first, and so the results are equal. It must not
know ids: see PartitionPool.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Final, NamedTuple

from kbroker.groups.assignors.partition_pool import NOBODY, PartitionPool

ROUNDS: Final = 16
"""Over all topics. Kafka's number: each round about halves what is uneven."""


class _Next(NamedTuple):
    load: int
    """How many partitions the member has, before it is given one or gives one up."""
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
    """Pass partitions of the topic on; True if any moved. None moves twice in one go."""
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
    """To whom partitions go, one each time, without end. The caller keeps `loads` up to date.

    All who have the least get one, then all of those and whoever has as many by now, and so on.
    """
    load, count = loads[by_load[0]], 0
    while True:
        while count < len(by_load) and loads[by_load[count]] == load:
            count += 1
        for member in by_load[:count]:
            yield _Next(load, member)
        load += 1


def _most_loaded(by_load: Sequence[int], loads: Sequence[int], left: dict[int, list[int]]) -> Iterator[_Next]:
    """Who gives partitions up, one each time, as long as anybody has some `left`. The caller keeps
    `loads` and `left` up to date.

    The reverse of _least_loaded. Where a member has nothing left to give, who came first in the
    round comes last in the next: a quirk of Kafka's that decides between equals.
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
