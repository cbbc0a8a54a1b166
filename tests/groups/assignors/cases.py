"""Random consumer groups: some evolve, with members that join, leave and change their subscriptions
and topics that are added and grow; others are in arbitrary states.

A case is the input of an assignor, as JSON:

    {"assignor": "uniform" | "range",
     "partitions": {topic id: number of partitions},
     "members": [{"id", "instance": id or null, "topics": [topic ids],
                  "assigned": {topic id: [numbers]}}]}

Members, topics and numbers are in the order in which kbroker processes them
(docs/consumer-groups.md). Given that order, Kafka's assignors return the same result. Topic ids are
chosen so that Kafka's hash sets have them in that order too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from kbroker.groups.assignors.range import RangeAssignor
from kbroker.groups.assignors.spi import ConsumerAssignor, ConsumerAssignorMember, topic_order
from kbroker.groups.assignors.uniform import UniformAssignor

Case = dict[str, Any]
T = TypeVar("T")
Assignment = Mapping[str, Mapping[T, Sequence[int]]]
Members = dict[str, ConsumerAssignorMember]

VECTORS = Path(__file__).parent / "vectors" / "consumer_assignors.json"
"""Cases with the answers of Kafka's assignors, for tests without Java."""
ASSIGNORS: Mapping[str, ConsumerAssignor] = {"uniform": UniformAssignor(), "range": RangeAssignor()}


def answer(case: Case) -> dict[str, dict[str, list[int]]]:
    """kbroker's assignment, in the form of the cases. Members without partitions are included."""
    members, partitions = parsed(case)
    found = ASSIGNORS[case["assignor"]].assign(members, partitions)
    return {
        member_id: {str(topic): list(numbers) for topic, numbers in topics.items()}
        for member_id, topics in found.items()
    }


def parsed(case: Case) -> tuple[Members, dict[UUID, Sequence[int]]]:
    members = {
        each["id"]: ConsumerAssignorMember(
            frozenset(map(UUID, each["topics"])),
            {UUID(topic): tuple(numbers) for topic, numbers in each["assigned"].items()},
            each["instance"],
        )
        for each in case["members"]
    }
    return members, {UUID(topic): range(count) for topic, count in case["partitions"].items()}


def case_of(assignor: str, members: Members, counts: Mapping[UUID, int]) -> Case:
    return {
        "assignor": assignor,
        "partitions": {str(topic): counts[topic] for topic in sorted(counts, key=topic_order)},
        "members": [
            {
                "id": member_id,
                "instance": members[member_id].instance_id,
                "topics": [str(topic) for topic in sorted(members[member_id].topic_ids, key=topic_order)],
                "assigned": {
                    str(topic): sorted(numbers) for topic, numbers in _in_order(members[member_id].assigned)
                },
            }
            for member_id in sorted(members)
        ],
    }


def _in_order(assigned: Mapping[UUID, Sequence[int]]) -> Iterable[tuple[UUID, Sequence[int]]]:
    return ((topic, assigned[topic]) for topic in sorted(assigned, key=topic_order))


def moves(before: Assignment[T], after: Assignment[T]) -> int:
    """How many partitions move from one member to another, among members that are in `after`."""
    owners = {partition: member_id for member_id in after for partition in flat(before.get(member_id, {}))}
    return sum(
        owners.get(partition, member_id) != member_id
        for member_id in after
        for partition in flat(after[member_id])
    )


def flat(assigned: Mapping[T, Sequence[int]]) -> list[tuple[T, int]]:
    return [(topic, number) for topic, numbers in assigned.items() for number in numbers]


def cases(seed: int, count: int) -> Iterator[Case]:
    random = Random(seed)
    while count:
        group = RandomGroup(random)
        for _ in range(min(count, random.randint(1, 8))):
            yield group.next_case()
            count -= 1


def chain(topics: int) -> Case:
    """Each member shares a topic with the next, and the last has no partitions: a long chain needs
    more rounds than the assignor makes."""
    ids = topic_ids(Random(topics), topics)
    members = {
        f"member-{number:02}": ConsumerAssignorMember(
            frozenset(ids[max(0, number - 1) : number + 1]),
            {topic: range(200) for topic in ids[number : number + 1]},
        )
        for number in range(topics + 1)
    }
    return case_of("uniform", members, dict.fromkeys(ids, 200))


def two_topics_of_equal_weight() -> Case:
    """Two partitions for each subscriber of both: the one with fewer subscribers comes first,
    although its id is the greater one."""
    both = topic_ids(Random(0), 2)
    members = {
        "member-1": ConsumerAssignorMember(frozenset(both), {}),
        "member-2": ConsumerAssignorMember(frozenset(both[:1]), {}),
    }
    return case_of("uniform", members, dict(zip(both, (4, 2), strict=True)))


def uneven(random: Random) -> Case:
    """Some members have equal shares of two topics; others subscribe to only one of these, and have
    nothing yet."""
    both = topic_ids(random, 2)
    each = random.randint(4, 10)
    held: dict[UUID, list[int]] = {topic: [] for topic in both}
    """How many partitions each of these members has."""
    for _ in range(random.randint(3, 6)):
        held[both[0]].append(random.randint(1, each - 1))
        held[both[1]].append(each - held[both[0]][-1])
    members = {
        f"poor-{number}": ConsumerAssignorMember(frozenset(both[:1]), {})
        for number in range(random.randint(1, 4))
    }
    for rich in range(len(held[both[0]])):
        begins = {topic: sum(held[topic][:rich]) for topic in both}
        members[f"rich-{rich}"] = ConsumerAssignorMember(
            frozenset(both),
            {topic: range(begins[topic], begins[topic] + held[topic][rich]) for topic in both},
        )
    return case_of("uniform", members, {topic: sum(held[topic]) for topic in both})


def topic_ids(random: Random, count: int) -> list[UUID]:
    """At most 11 random ids. In the order of topic_order() they fall into the buckets 0, 1, … of a
    small Java hash set."""
    begins = sorted((UUID(int=random.getrandbits(124) << 4) for _ in range(count)), key=topic_order)
    return [
        next(found for end in range(16) if _bucket(found := UUID(int=begin.int | end)) == bucket)
        for bucket, begin in enumerate(begins)
    ]


def _bucket(topic_id: UUID) -> int:
    halves = topic_id.int >> 64 ^ topic_id.int
    hashed = (halves >> 32 ^ halves) & 0xFFFFFFFF
    return (hashed >> 16 ^ hashed) & 15


class RandomGroup:
    """One group with one assignor, from its first member on."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._assignor = random.choice(["uniform", "uniform", "range"])
        self._alike = random.random() < 0.4
        """All members have the same subscription."""
        topics = random.choice([1, 1, 2, 3, 5, 8])
        self._counts = {topic: random.randint(1, 12) for topic in topic_ids(random, topics)}
        self._members: Members = {}
        for _ in range(random.choice([1, 2, 3, 6, 12, 24])):
            self._join()
        if random.random() < 0.5:
            self._any_state()

    def next_case(self) -> Case:
        case = case_of(self._assignor, self._members, self._counts)
        members, partitions = parsed(case)
        for member_id, assigned in ASSIGNORS[self._assignor].assign(members, partitions).items():
            self._members[member_id] = self._members[member_id]._replace(assigned=assigned)
        for _ in range(self._random.choice([0, 1, 1, 1, 2, 4])):
            self._random.choice(
                [
                    self._join,
                    self._join,
                    self._leave,
                    self._leave,
                    self._come_back,
                    self._subscribe,
                    self._grow,
                ]
            )()
        return case

    def _join(self) -> None:
        instance = (
            f"{self._random.choice('az')}-instance-{self._random.randrange(10**6)}"
            if self._random.random() < 0.3
            else None
        )
        self._members[f"member-{self._random.randrange(10**6)}"] = ConsumerAssignorMember(
            self._subscription(), {}, instance
        )

    def _leave(self) -> None:
        if len(self._members) > 1:
            del self._members[self._random.choice(sorted(self._members))]

    def _come_back(self) -> None:
        """A static member, under another member id."""
        for member_id in [name for name, member in sorted(self._members.items()) if member.instance_id][:1]:
            self._members[f"member-{self._random.randrange(10**6)}"] = self._members.pop(member_id)

    def _subscribe(self) -> None:
        changed = self._random.choice(sorted(self._members))
        topics = self._random_topics()
        for member_id in self._members if self._alike else [changed]:
            self._members[member_id] = self._members[member_id]._replace(topic_ids=topics)

    def _grow(self) -> None:
        self._counts[self._random.choice(sorted(self._counts))] += self._random.randint(1, 6)

    def _any_state(self) -> None:
        """As another assignor might have left it: uneven, with gaps, with topics that no member
        subscribes to any more."""
        names = sorted(self._members)
        assigned: dict[str, dict[UUID, list[int]]] = {name: {} for name in names}
        few = self._random.sample(names, self._random.randint(1, len(names)))
        for topic, count in self._counts.items():
            for number in range(count):
                if self._random.random() < 0.8:
                    assigned[self._random.choice(few)].setdefault(topic, []).append(number)
        for name in names:
            self._members[name] = self._members[name]._replace(
                assigned={topic: tuple(all_) for topic, all_ in assigned[name].items()}
            )

    def _subscription(self) -> frozenset[UUID]:
        if self._alike and self._members:
            return next(iter(self._members.values())).topic_ids
        return self._random_topics()

    def _random_topics(self) -> frozenset[UUID]:
        topics, most = sorted(self._counts), self._random.choice([1, 2, 3, 8])
        return frozenset(
            topics if self._random.random() < 0.2 else self._random.sample(topics, min(most, len(topics)))
        )
