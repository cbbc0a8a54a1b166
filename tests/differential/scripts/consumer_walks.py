"""Long histories of a consumer group: members act in a random but repeatable order."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from tests.differential.consumers import Consumer, Owned, describe, group_of
from tests.differential.script import Entity, Session, Topic, script

MEMBERS = "abcde"
STEPS = 60


@dataclass
class Walker:
    """A member that remembers the answers, as clients do, and sometimes sends false ones."""

    consumer: Consumer
    topics: dict[str, Topic]
    dice: Random
    assignor: str
    told: dict[Topic, list[int]] = field(default_factory=dict)

    def step(self) -> None:
        choices = (
            "beat",
            "owned",
            "partly",
            "nothing",
            "whole",
            "subscribe",
            "join",
            "leave",
            "away",
            "stale",
            "future",
        )
        weights = (20, 30, 6, 4, 6, 8, 6 if self.consumer.epoch else 40, 4, 4, 6, 2)
        getattr(self, f"_{self.dice.choices(choices, weights)[0]}")()

    def _beat(self) -> None:
        self._heard(self.consumer.beat())

    def _owned(self) -> None:
        self._heard(self.consumer.beat(owns=self.told))

    def _partly(self) -> None:
        owned: Owned = {
            topic: [each for each in which if self.dice.random() < 0.5] for topic, which in self.told.items()
        }
        self._heard(self.consumer.beat(owns=owned))

    def _nothing(self) -> None:
        self._heard(self.consumer.beat(owns={}))

    def _whole(self) -> None:
        self._heard(
            self.consumer.beat(owns=self.told, subscribed_topic_names=self._names(), rebalance_timeout=60_000)
        )

    def _subscribe(self) -> None:
        self._heard(self.consumer.beat(subscribed_topic_names=self._names()))

    def _join(self) -> None:
        self._heard(self.consumer.join(*self._names(), server_assignor=self.assignor))

    def _leave(self) -> None:
        self._heard(self.consumer.leave())

    def _away(self) -> None:
        self._heard(self.consumer.leave(-2))

    def _stale(self) -> None:
        owned = self.dice.choice((None, self.told, {}))
        self._heard(self.consumer.beat(max(1, self.consumer.epoch - self.dice.choice((1, 1, 2))), owns=owned))

    def _future(self) -> None:
        self._heard(self.consumer.beat(self.consumer.epoch + 1))

    def _names(self) -> list[str]:
        return self.dice.choice(
            [[topic.name for topic in each] for each in _subsets(list(self.topics.values()))]
        )

    def _heard(self, answer: Entity) -> None:
        if answer.error_code.value == 0 and answer.assignment is not None:
            by_id = {topic.topic_id: topic for topic in self.topics.values()}
            told = {by_id[row.topic_id]: sorted(row.partitions) for row in answer.assignment.topic_partitions}
            # the order in which random numbers are drawn
            self.told = dict(sorted(told.items(), key=lambda row: row[0].name))


def _subsets(topics: list[Topic]) -> list[list[Topic]]:
    return [topics] if len(topics) == 1 else [topics, topics[:1], topics[1:]]


def walk(s: Session, seed: int, *partitions: int, assignor: str, static: int = 0) -> None:
    dice = Random(seed)
    topics = [s.topic(count) for count in partitions]
    group = group_of(s, "g", *topics)
    names = {topic.name: topic for topic in topics}
    members = [
        Walker(
            Consumer(s, group, name, instance_id=f"i{name}" if index < static else None),
            names,
            dice,
            assignor,
        )
        for index, name in enumerate(MEMBERS)
    ]
    for step in range(1, STEPS + 1):
        dice.choice(members).step()
        if step % 10 == 0:
            describe(s, group)


@script()
def uniform(s: Session) -> None:
    walk(s, 1, 6, assignor="uniform")


@script()
def uniform_with_fewer_partitions_than_members(s: Session) -> None:
    walk(s, 2, 3, assignor="uniform")


@script()
def uniform_with_static_members(s: Session) -> None:
    walk(s, 3, 7, assignor="uniform", static=3)


@script()
def range_of_two_topics(s: Session) -> None:
    walk(s, 4, 4, 3, assignor="range")


@script()
def range_with_static_members(s: Session) -> None:
    walk(s, 5, 5, 5, assignor="range", static=2)


@script()
def range_of_static_members_alone(s: Session) -> None:
    walk(s, 6, 2, 6, assignor="range", static=5)
