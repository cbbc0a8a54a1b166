"""Classic groups with their surroundings in the broker: a store, commits that may wait or fail,
requests that wait, and a clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from kbroker.errors import ErrorCode, KafkaError
from kbroker.formats.group_records import ClassicGroupMetadata
from kbroker.formats.share_records import RecordType
from kbroker.formats.state import GroupKey, group_prefix
from kbroker.groups.classic.coordinator import ClassicGroups
from kbroker.groups.classic.messages import (
    ClassicGroupSettings,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaveReply,
    LeaveRequest,
    Leaving,
    Protocol,
    SyncReply,
    SyncRequest,
)
from kbroker.groups.classic.state import ClassicGroup, GroupState
from kbroker.groups.ids import GroupIds
from kbroker.groups.offsets.messages import CommitRequest
from kbroker.groups.outcome import Answer, GenerationSaved, Outcome, Ticket
from kbroker.storage.memory_store import MemoryStateStore

NOT_SAVED = "not saved"
GROUP = "g"
OK = ErrorCode.none


class Call(Ticket):
    """A request. `reply`: None while it waits, NOT_SAVED if a failed save refused it."""

    def __init__(self) -> None:
        self.reply: Any = None

    def answer(self, reply: object) -> None:
        """The first answer is kept."""
        if self.reply is None:
            self.reply = reply

    @property
    def code(self) -> ErrorCode:
        code: ErrorCode = self.reply.error_code
        return code


@dataclass
class Flying:
    """An outcome that waits for its save."""

    outcome: Outcome[Any]
    call: Call | None


@dataclass
class World:
    """Saves every outcome at once. If `patient`, `save` and `fail` do so, in the order of the
    decisions."""

    settings: ClassicGroupSettings = field(
        default_factory=lambda: ClassicGroupSettings(initial_rebalance_delay_ms=0)
    )
    patient: bool = False
    now_ms: int = 1_000_000

    def __post_init__(self) -> None:
        self.store = MemoryStateStore({})
        self.flying: list[Flying] = []
        self.numbers = count(1)
        self.start()

    def start(self) -> None:
        """Start with the stored groups. Outcomes that waited for their save are lost, and no
        request waits."""
        self.flying = []
        self.group_ids = GroupIds()
        self.groups = ClassicGroups(lambda: self.settings, self.group_ids, lambda: str(next(self.numbers)))
        self.groups.load(self.store.scan(GroupKey.namespace), now_ms=self.now_ms)

    # --- carrying out ---

    def carry_out(self, outcome: Outcome[Any], call: Call | None = None) -> None:
        self.flying.append(Flying(outcome, call))
        if not outcome.changes:
            self.flying.pop()
            self._give(outcome, call)
        elif not self.patient:
            self.save()

    def save(self) -> None:
        """Save the oldest outcome that waits."""
        flying = self.flying.pop(0)
        self.store.write(flying.outcome.changes)
        self._give(flying.outcome, flying.call)

    def fail(self) -> None:
        """Fail all outcomes that wait."""
        failed, self.flying = self.flying, []
        for flying in failed:
            calls = [effect.ticket for effect in flying.outcome.effects if isinstance(effect, Answer)]
            for call in (*calls, *([flying.call] if flying.call else [])):
                assert isinstance(call, Call)
                call.answer(NOT_SAVED)
            for group_id in flying.outcome.group_ids:
                outcome = self.groups.not_saved(
                    group_id, list(self.store.scan(group_prefix(group_id))), now_ms=self.now_ms
                )
                assert not outcome.changes
                self._give(outcome, None)

    def _give(self, outcome: Outcome[Any], call: Call | None) -> None:
        for effect in outcome.effects:
            match effect:
                case Answer(ticket, reply):
                    assert isinstance(ticket, Call)
                    ticket.answer(reply)
                case GenerationSaved():
                    self.carry_out(self.groups.saved(effect, now_ms=self.now_ms))
        if call is not None and outcome.reply is not None:
            call.answer(outcome.reply)

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass, with a step for each timer."""
        end_ms = self.now_ms + milliseconds
        while (deadline_ms := self.groups.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.carry_out(self.groups.expire(self.now_ms))
        self.now_ms = end_ms

    # --- state ---

    @property
    def group(self) -> ClassicGroup:
        group = self.groups.get(GROUP)
        assert group is not None
        return group

    @property
    def state(self) -> GroupState:
        return self.group.state

    def stored(self) -> ClassicGroupMetadata | None:
        value = dict(self.store.scan(b"")).get(GroupKey(RecordType.CLASSIC_GROUP_METADATA, GROUP).encode())
        return None if value is None else ClassicGroupMetadata.decode(value)

    # --- members ---

    def leave(self, *members: Member | Leaving) -> LeaveReply:
        """All members leave, in one request."""
        rows = tuple(each.leaving() if isinstance(each, Member) else each for each in members)
        call = Call()
        self.carry_out(self.groups.leave(LeaveRequest(GROUP, rows), now_ms=self.now_ms), call)
        reply: LeaveReply = call.reply
        return reply

    def form(self, *members: Member) -> None:
        """Make new members a stable group. The first leads, and gives each member its name."""
        for member in members:
            member.enter()
        for member in members:
            if member.joining.reply is not None and self.state is GroupState.PREPARING:
                member.join()
        for member in members:
            member.note_id()
        for member in members:
            member.sync(*members)
        assert self.state is GroupState.STABLE


def protocols(*names: str, metadata: bytes = b"") -> tuple[Protocol, ...]:
    return tuple(Protocol(name, metadata) for name in names)


@dataclass
class Member:
    """A client. It remembers its last request of each kind, and its member id."""

    world: World
    name: str
    instance_id: str | None = None
    member_id: str = ""
    offers: tuple[Protocol, ...] = protocols("range")
    joining: Call = field(default_factory=Call)
    syncing: Call = field(default_factory=Call)

    @property
    def generation(self) -> int:
        """The generation in its last JoinGroup answer."""
        return -1 if not isinstance(self.joining.reply, JoinReply) else self.joining.reply.generation_id

    def join(self, **changed: Any) -> Call:
        values = {
            "group_id": GROUP,
            "member_id": self.member_id,
            "instance_id": self.instance_id,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": self.offers,
            "client_id": self.name,
        }
        call = self.joining = Call()
        self.world.carry_out(
            self.world.groups.join(JoinRequest(**values | changed), call, now_ms=self.world.now_ms), call
        )
        self.note_id()
        return call

    def note_id(self) -> None:
        """Take the member id of the last JoinGroup's answer, which may be old."""
        reply = self.joining.reply
        if isinstance(reply, JoinReply) and reply.error_code in (OK, ErrorCode.member_id_required):
            self.member_id = reply.member_id

    def enter(self, **changed: Any) -> Call:
        """Get a member id if it needs one, and join with it."""
        if self.instance_id is None and not self.member_id:
            assert self.join(**changed).code is ErrorCode.member_id_required
        return self.join(**changed)

    def sync(self, *assigned: Member, **changed: Any) -> Call:
        """The leader gives each member of `assigned` its name."""
        self.note_id()
        values = {
            "group_id": GROUP,
            "member_id": self.member_id,
            "instance_id": self.instance_id,
            "generation": self.generation,
            "assignments": tuple((each.member_id, each.name.encode()) for each in assigned)
            if self.leads()
            else (),
        }
        call = self.syncing = Call()
        self.world.carry_out(
            self.world.groups.sync(SyncRequest(**values | changed), call, now_ms=self.world.now_ms), call
        )
        return call

    def leads(self) -> bool:
        group = self.world.groups.get(GROUP)
        return group is not None and group.leader == self.member_id

    def heartbeat(self, generation: int | None = None) -> ErrorCode:
        request = HeartbeatRequest(
            GROUP, self.member_id, self.instance_id, self.generation if generation is None else generation
        )
        reply = self.world.groups.heartbeat(request, now_ms=self.world.now_ms).reply
        assert reply is not None
        return reply.error_code

    def commit(self, **changed: Any) -> ErrorCode:
        values: dict[str, Any] = {
            "group_id": GROUP,
            "offsets": {},
            "member_id": self.member_id,
            "instance_id": self.instance_id,
        }
        request = CommitRequest(**values | {"generation": self.generation} | changed)
        try:
            self.world.groups.check_commit(request, now_ms=self.world.now_ms)
        except KafkaError as refusal:
            return refusal.code
        return OK

    def leaving(self) -> Leaving:
        self.note_id()
        return Leaving(self.member_id, self.instance_id)

    def assignment(self) -> bytes:
        assert isinstance(self.syncing.reply, SyncReply), self.syncing.reply
        return self.syncing.reply.assignment


def beat_all(members: Iterable[Member]) -> list[ErrorCode]:
    return [member.heartbeat() for member in members]
