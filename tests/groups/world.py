"""All groups and their offsets with their surroundings in the broker: topics, a store, commits that
may wait or fail, and a clock."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any
from uuid import UUID

from kbroker.errors import ErrorCode
from kbroker.formats.state import GroupKey, GroupOffsetKey, group_prefix
from kbroker.groups.classic import messages as classic
from kbroker.groups.classic.coordinator import ClassicGroups
from kbroker.groups.consumer import messages as consumer
from kbroker.groups.consumer.coordinator import ConsumerGroups
from kbroker.groups.ids import GroupIds
from kbroker.groups.offsets.committed import Offsets
from kbroker.groups.offsets.messages import Commit, CommitRequest, OffsetErrors, OffsetsSettings
from kbroker.groups.outcome import Answer, OffsetOf, Outcome, Ticket
from kbroker.groups.routing import Groups
from kbroker.groups.stored_times import StoredTimes
from kbroker.storage.memory_store import MemoryStateStore
from tests.groups.consumer.world import ASSIGNORS, Topics

G = "g"
OK = ErrorCode.none
NOT_SAVED = "not saved"


def subscription(*topics: str) -> bytes:
    """ConsumerProtocolSubscription v0, without user data."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


class Call(Ticket):
    """A request. `reply`: None while it waits, NOT_SAVED if a failed save refused it."""

    def __init__(self) -> None:
        self.reply: Any = None

    def answer(self, reply: object) -> None:
        if self.reply is None:
            self.reply = reply


@dataclass
class Flying:
    """An outcome that waits for its save."""

    outcome: Outcome[Any]
    call: Call


class World:
    """Saves every outcome at once. If `patient`, `save` and `fail` do so, in the order of the
    decisions."""

    def __init__(self, *, patient: bool = False) -> None:
        self.patient = patient
        self.topics = Topics()
        self.store = MemoryStateStore({})
        self.offsets_settings = OffsetsSettings(retention_ms=1000)
        self.consumer_settings = consumer.ConsumerGroupSettings(assignment_interval_ms=0)
        self.classic_settings = classic.ClassicGroupSettings(initial_rebalance_delay_ms=0)
        self.now_ms = 1_000_000
        self.times = StoredTimes(self.now_ms)
        self._numbers = count(1)
        self.start()

    def start(self, *, load: bool = True) -> None:
        """As after kill -9: only stored state remains. The session clock restarts at the wall
        clock's time."""
        self.flying: list[Flying] = []
        self.now_ms += self.times.ahead_ms
        self.times = StoredTimes(self.now_ms)
        self.group_ids = GroupIds()
        self.groups = Groups(
            ClassicGroups(lambda: self.classic_settings, self.group_ids, self._new_id, self.times),
            ConsumerGroups(
                lambda _: self.consumer_settings,
                self.group_ids,
                self.topics,
                ASSIGNORS,
                self._new_id,
                self.times,
            ),
            Offsets(lambda: self.offsets_settings, self.times),
            self.group_ids,
            self.topics,
        )
        if load:
            self.groups.load(
                self.store.scan(GroupKey.namespace),
                self.store.scan(GroupOffsetKey.namespace),
                now_ms=self.now_ms,
            )

    def _new_id(self) -> str:
        return str(next(self._numbers))

    # --- carrying out ---

    def carry_out(self, outcome: Outcome[Any], call: Call | None = None) -> Call:
        flying = Flying(outcome, call or Call())
        if not outcome.changes:
            self._give(flying)
        else:
            self.flying.append(flying)
            if not self.patient:
                self.save()
        return flying.call

    def save(self) -> None:
        """Save the oldest outcome that waits."""
        flying = self.flying.pop(0)
        self.store.write(flying.outcome.changes)
        self._give(flying)

    def save_all(self) -> None:
        while self.flying:
            self.save()

    def fail(self) -> None:
        """Fail all outcomes that wait."""
        failed, self.flying = self.flying, []
        for flying in failed:
            flying.call.answer(NOT_SAVED)
            for effect in flying.outcome.effects:
                if isinstance(effect, Answer):
                    assert isinstance(effect.ticket, Call)
                    effect.ticket.answer(NOT_SAVED)
                else:
                    self.groups.effect_not_saved(effect)
            for group_id in flying.outcome.group_ids:
                outcome = self.groups.not_saved(
                    group_id, list(self.store.scan(group_prefix(group_id))), now_ms=self.now_ms
                )
                assert not outcome.changes
                self._give(Flying(outcome, Call()))

    def _give(self, flying: Flying) -> None:
        for effect in flying.outcome.effects:
            if isinstance(effect, Answer):
                assert isinstance(effect.ticket, Call)
                effect.ticket.answer(effect.reply)
            else:
                self.carry_out(self.groups.effect_saved(effect, now_ms=self.now_ms))
        if flying.outcome.reply is not None:
            flying.call.answer(flying.outcome.reply)

    def after(self, milliseconds: int) -> None:
        """Let time pass, and act on expired timers."""
        self.now_ms += milliseconds
        self.carry_out(self.groups.expire(self.now_ms))

    def step_clock(self, milliseconds: int) -> None:
        """The wall clock is set, or the machine was asleep: the session clock does not notice."""
        self.times.ahead_ms += milliseconds

    # --- offsets ---

    def topic(self, name: str = "orders", partitions: int = 4) -> UUID:
        return self.topics.put(name, partitions)

    def commit(self, offsets: Mapping[OffsetOf, int | Commit], group: str = G, **more: Any) -> Call:
        rows = {
            each: offset if isinstance(offset, Commit) else Commit(offset) for each, offset in offsets.items()
        }
        return self.carry_out(
            self.groups.commit_offsets(CommitRequest(group, rows, **more), now_ms=self.now_ms)
        )

    def code(self, call: Call) -> ErrorCode:
        """The code that refused the request, or the code of its only row."""
        errors = call.reply
        assert isinstance(errors, OffsetErrors)
        (code,) = set(errors.rows.values()) if errors.error_code is OK else {errors.error_code}
        return code

    def delete_offsets(self, *wanted: OffsetOf, group: str = G) -> Call:
        return self.carry_out(self.groups.delete_offsets(group, wanted))

    def delete(self, group: str = G) -> Call:
        return self.carry_out(self.groups.delete(group))

    def expire(self, *groups: str) -> None:
        """Expire offsets, as the broker does every few minutes."""
        for group in groups or self.groups.group_ids():
            self.carry_out(self.groups.expire_offsets(group, now_ms=self.now_ms))

    def offsets(self, group: str = G) -> dict[OffsetOf, int]:
        """The offsets that a fetch returns."""
        return {
            (topic_id, number): offset.offset
            for topic_id, numbers in self.groups.offsets.of(group).items()
            for number, offset in numbers.items()
        }

    def types(self) -> dict[str, tuple[str, str]]:
        """Type and state of all groups."""
        return {row.group_id: (row.group_type, row.group_state) for row in self.groups.listed()}

    # --- members ---

    def classic_join(
        self,
        name: str,
        group: str = G,
        topics: tuple[str, ...] = ("orders",),
        member_id: str = "",
        **changed: Any,
    ) -> Call:
        offered = (classic.Protocol("range", subscription(*topics)),)
        values = {
            "group_id": group,
            "member_id": member_id,
            "instance_id": None,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": offered,
            "client_id": name,
            "takes_member_id": False,
        }
        call = Call()
        return self.carry_out(
            self.groups.join(classic.JoinRequest(**values | changed), call, now_ms=self.now_ms), call
        )

    def classic_member(
        self, name: str = "m", group: str = G, topics: tuple[str, ...] = ("orders",), **changed: Any
    ) -> classic.JoinReply:
        """The only member of a stable group."""
        joined: classic.JoinReply = self.classic_join(name, group, topics, **changed).reply
        self.classic_sync(joined, group)
        return joined

    def classic_sync(self, joined: classic.JoinReply, group: str = G) -> Call:
        call = Call()
        request = classic.SyncRequest(
            group, joined.member_id, None, joined.generation_id, assignments=((joined.member_id, b""),)
        )
        return self.carry_out(self.groups.sync(request, call, now_ms=self.now_ms), call)

    def classic_leave(self, member_id: str, group: str = G) -> Call:
        request = classic.LeaveRequest(group, (classic.Leaving(member_id, None),))
        return self.carry_out(self.groups.leave(request, now_ms=self.now_ms))

    def consumer_beat(
        self, member_id: str, epoch: int = 0, group: str = G, topics: tuple[str, ...] = ("orders",)
    ) -> Call:
        """ConsumerGroupHeartbeat: epoch 0 joins, -1 leaves."""
        owned: dict[UUID, tuple[int, ...]] | None = {} if epoch == 0 else None
        said: dict[str, Any] = {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": topics,
            "owned": owned,
        }
        request = consumer.ConsumerGroupHeartbeatRequest(
            group, member_id, epoch, **said, client_id="c", client_host="/h"
        )
        return self.carry_out(self.groups.consumer.heartbeat(request, now_ms=self.now_ms))
