"""Committed offsets against a plain dictionary: commits, deletions of offsets, groups and topics,
retention, failed saves, restarts.

Outcomes wait to be saved in the order of the decisions. Each changes the dictionary, as its reply
says, when it is saved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kbroker.formats.state import GroupOffsetKey, parse_key
from kbroker.groups.offsets.messages import Commit
from kbroker.groups.outcome import Outcome
from tests.groups.world import NOT_SAVED, Call, World

GROUPS = ("a", "b")
NAMES = ("orders", "other")
groups = st.sampled_from(GROUPS)
names = st.sampled_from(NAMES)
numbers = st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True)
RETENTION_MS = 1000


class Place(NamedTuple):
    group: str
    topic_id: UUID
    partition: int


class Kept(NamedTuple):
    offset: int
    expires_ms: int


Dictionary = dict[Place, Kept]


@dataclass
class Waiting:
    """A decision's changes to the dictionary, applied when it is saved."""

    call: Call | None
    places: set[Place]
    do: Callable[[Dictionary], None]


class OffsetsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(patient=True)
        self.ids = {name: self.world.topic(name, 3) for name in NAMES}
        self.waiting: list[Waiting] = []
        self.saved: Dictionary = {}
        self.next_offset = 1

    def decided(
        self,
        outcome: Outcome[Any],
        places: set[Place],
        do: Callable[[Dictionary], None],
        *,
        answer: object = None,
    ) -> None:
        """Queue an outcome; one without changes is carried out at once."""
        if not outcome.changes:
            call = self.world.carry_out(outcome)
            assert answer is None or call.reply == answer
            return
        call = self.world.carry_out(outcome)
        assert call.reply is None, "nobody is answered before it is saved"
        self.waiting.append(Waiting(call, places, do))

    # --- decisions ---

    @rule(group=groups, name=names, chosen=numbers, kept_ms=st.sampled_from((None, None, 0, 300, 5000)))
    def commit(self, group: str, name: str, chosen: list[int], kept_ms: int | None) -> None:
        now_ms = self.world.now_ms
        expires_ms = now_ms + (RETENTION_MS if kept_ms is None else kept_ms)
        news = {
            Place(group, self.ids[name], number): Kept(self.next_offset + number, expires_ms)
            for number in chosen
        }
        self.next_offset += 10
        version, retention_ms = (10, -1) if kept_ms is None else (4, kept_ms)
        rows = {(place.topic_id, place.partition): Commit(kept.offset) for place, kept in news.items()}
        call = self.world.commit(rows, group, version=version, retention_ms=retention_ms)
        assert call.reply is None
        self.waiting.append(Waiting(call, set(news), lambda saved: saved.update(news)))

    @rule(group=groups, name=names, chosen=numbers)
    def delete_offsets(self, group: str, name: str, chosen: list[int]) -> None:
        if group not in self.world.types():
            return
        places = {Place(group, self.ids[name], number) for number in chosen}
        outcome = self.world.groups.delete_offsets(
            group, [(place.topic_id, place.partition) for place in places]
        )
        self.decided(outcome, places, lambda saved: _remove(saved, lambda place: place in places))

    @rule(group=groups)
    def delete_group(self, group: str) -> None:
        if group in self.world.types():
            places = {place for place in self.known() if place.group == group}
            outcome = self.world.groups.delete(group)
            self.decided(outcome, places, lambda saved: _remove(saved, lambda place: place.group == group))
            assert group not in self.world.types()

    @rule(name=names)
    def recreate_topic(self, name: str) -> None:
        """The new one has none of the old one's offsets."""
        old = self.world.topics.remove(name)
        self.ids[name] = self.world.topic(name, 3)
        places = {place for place in self.known() if place.topic_id == old}
        self.decided(
            self.world.groups.topic_deleted(old),
            places,
            lambda saved: _remove(saved, lambda place: place.topic_id == old),
        )

    @rule(group=groups)
    def expire(self, group: str) -> None:
        coming = {place for each in self.waiting for place in each.places}
        old = {
            place
            for place, kept in self.saved.items()
            if place.group == group and self.world.now_ms >= kept.expires_ms
        }
        gone = old - coming
        before = self.world.types()
        self.decided(
            self.world.groups.expire_offsets(group, now_ms=self.world.now_ms),
            gone,
            lambda saved: _remove(saved, lambda each: each in gone),
        )
        if group in before and not any(place.group == group for place in self.known() - gone):
            assert group not in self.world.types(), "it goes with its last offset"

    @rule(milliseconds=st.sampled_from((1, 200, 700)))
    def pass_time(self, milliseconds: int) -> None:
        self.world.after(milliseconds)

    # --- saving ---

    @precondition(lambda self: self.waiting)
    @rule()
    def save(self) -> None:
        self.world.save()
        waiting = self.waiting.pop(0)
        waiting.do(self.saved)
        assert waiting.call is not None
        assert waiting.call.reply != NOT_SAVED

    @precondition(lambda self: self.waiting)
    @rule()
    def fail(self) -> None:
        self.world.fail()
        assert all(each.call is not None and each.call.reply == NOT_SAVED for each in self.waiting)
        self.waiting.clear()

    @rule()
    def restart(self) -> None:
        """Decisions without an answer may be lost. The start reports deleted topics."""
        self.waiting.clear()
        self.world.start()
        offsets = self.world.groups.offsets
        assert offsets.topic_ids() == {place.topic_id for place in self.saved}
        for topic_id in offsets.topic_ids() - set(self.ids.values()):
            places = {place for place in self.saved if place.topic_id == topic_id}
            self.decided(
                self.world.groups.topic_deleted(topic_id),
                places,
                lambda saved, gone=places: _remove(saved, gone.__contains__),
            )
        while self.waiting:
            self.save()

    # --- invariants ---

    def known(self) -> set[Place]:
        """Partitions that have an offset, or may soon have one."""
        return set(self.saved) | {place for each in self.waiting for place in each.places}

    @invariant()
    def fetches_are_answered_with_what_is_saved(self) -> None:
        for group in GROUPS:
            expected = {
                (place.topic_id, place.partition): kept.offset
                for place, kept in self.saved.items()
                if place.group == group
            }
            assert self.world.offsets(group) == expected

    @invariant()
    def the_store_has_what_is_saved(self) -> None:
        found: dict[Place, int] = {}
        for key, value in self.world.store.scan(GroupOffsetKey.namespace):
            parsed = parse_key(key)
            assert isinstance(parsed, GroupOffsetKey)
            found[Place(parsed.group_id, parsed.topic_id, parsed.partition)] = parsed.decode_value(
                value
            ).offset
        assert found == {place: kept.offset for place, kept in self.saved.items()}

    @invariant()
    def a_group_with_offsets_is_there_and_counted(self) -> None:
        if self.waiting:
            return
        listed = self.world.types()
        with_offsets = {place.group for place in self.saved}
        assert with_offsets <= set(listed)
        assert all(self.world.group_ids.type_of(group) == "classic" for group in listed)
        statistics = self.world.groups.offsets.statistics()
        assert (statistics.groups, statistics.offsets) == (len(with_offsets), len(self.saved))
        assert not self.world.groups.offsets._on_their_way


def _remove(saved: Dictionary, is_gone: Callable[[Place], bool]) -> None:
    for place in [place for place in saved if is_gone(place)]:
        del saved[place]


TestOffsets = OffsetsMachine.TestCase
TestOffsets.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class TestOffsetsAtLength(OffsetsMachine.TestCase):
    settings = settings(max_examples=500, stateful_step_count=80, deadline=None)
    pytestmark = pytest.mark.full
