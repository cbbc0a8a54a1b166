"""ListTransactions and DescribeTransactions: states, filters, and ids that are not there."""

from __future__ import annotations

from collections.abc import Sequence

from tests.differential.script import Entity, Session, Topic, only, script
from tests.differential.scripts.base_produce import has_offsets_topic
from tests.differential.transactions import ADMIN, LOG, Producer, describe, fresh, transactional

OPEN_OR_DONE = ("Ongoing", "CompleteCommit", "CompleteAbort", "Empty")


def listed(
    s: Session, *, version: int = 2, states: Sequence[str] = (), producers: Sequence[int] = (),
    duration_ms: int = -1, pattern: str | None = None,
) -> Entity:  # fmt: skip
    """Of the answer only this script's ids."""
    values = {"state_filters": list(states), "producer_id_filters": list(producers)}
    if version >= 1:
        values |= {"duration_filter": duration_ms}
    if version >= 2:
        values |= {"transactional_id_pattern": pattern}
    keep = only("transaction_states", "transactional_id", f"{s.name}-*")
    return s.call("list_transactions", version, on=ADMIN, keep=keep, **values)


def in_each_state(s: Session) -> tuple[Topic, list[Producer]]:
    """Ids e, o, c and a: empty, ongoing, committed and aborted."""
    topic = s.topic(**LOG)
    made = [transactional(s, name) for name in "eoca"]
    for each in made[1:]:
        each.send(topic, "one")
    made[2].ended(True)
    made[3].ended(False)
    return topic, made


@script()
def lists_in_each_version(s: Session) -> None:
    in_each_state(s)
    for version in (0, 1, 2):
        listed(s, version=version)


@script()
def lists_by_state(s: Session) -> None:
    in_each_state(s)
    for version in (0, 2):
        for state in (*OPEN_OR_DONE, "PrepareCommit", "PrepareAbort", "Dead", "PrepareEpochFence"):
            listed(s, version=version, states=[state])
        listed(s, version=version, states=["Ongoing", "Empty"])
        listed(s, version=version, states=["Ongoing", "Ongoing"])


@script()
def states_that_are_none(s: Session) -> None:
    in_each_state(s)
    for states in (
        ["ongoing"],
        ["Nonsense"],
        ["Nonsense", "Ongoing"],
        [""],
        ["Complete", "Complete"],
        ["A", "B"],
    ):
        listed(s, states=states)


@script()
def lists_by_producer(s: Session) -> None:
    _, made = in_each_state(s)
    for version in (0, 2):
        listed(s, version=version, producers=[made[1].producer_id])
        listed(s, version=version, producers=[each.producer_id for each in made[2:]])
        listed(s, version=version, producers=[1 << 40])
        listed(s, version=version, producers=[-1])
    listed(s, producers=[made[1].producer_id], states=["Empty"])
    listed(s, producers=[made[1].producer_id, made[1].producer_id], states=["Ongoing"])


@script()
def lists_by_duration(s: Session) -> None:
    in_each_state(s)
    s.wait(0.05)
    for version in (1, 2):
        for duration_ms in (-1, -1000, 0, 10, 3_600_000, (1 << 63) - 1):
            listed(s, version=version, duration_ms=duration_ms)
        listed(s, version=version, duration_ms=10, states=["Ongoing"])


@script()
def lists_by_pattern(s: Session) -> None:
    _, made = in_each_state(s)
    for pattern in (
        "", ".*", made[0].id, f"{s.name}-[eo]", f"{s.name}", ".*-o", "-o", f"(?i){s.name.upper()}-C",
    ):  # fmt: skip
        listed(s, pattern=pattern)
    for pattern in ("(", "[", "*", "(?=a)", "\\"):
        listed(s, pattern=pattern)
    listed(s, pattern=".*-o", states=["Empty"])


@script()
def a_time_after_another_producer(s: Session) -> None:
    topic = s.topic(**LOG)
    for t in [transactional(s, f"t{generation}", generation) for generation in (1, 2)]:
        t.send(topic, "one")
        t.ended(True)
        before = t.who
        listed(s, duration_ms=3_600_000)
        t.init(who=before)
        listed(s, duration_ms=3_600_000)
        describe(s, t.id)
        t.init(who=before)
        describe(s, t.id)


@script()
def described_in_each_state(s: Session) -> None:
    _, made = in_each_state(s)
    describe(s, *(each.id for each in made))
    describe(s, made[0].id, made[0].id)
    describe(s)


@script()
def ids_that_are_not_there(s: Session) -> None:
    t, unknown = transactional(s), fresh(s, "unknown")
    describe(s, unknown.id)
    describe(s, "")
    describe(s, t.id, "", unknown.id)


@script()
def groups_alone(s: Session) -> None:
    has_offsets_topic(s)
    t = transactional(s)
    t.add_offsets(f"{s.name}-g")
    describe(s, t.id)
    listed(s)
    t.end(True)
    t.settle()
    describe(s, t.id)
    listed(s)


@script()
def partitions_that_are_left(s: Session) -> None:
    topic, other = s.topic(3, **LOG), s.topic(**LOG)
    t = transactional(s)
    t.added({topic: (2, 0), other: (0,)})
    describe(s, t.id)
    s.prepare("delete_topics", 6, topics=[{"name": other.name, "topic_id": None}], timeout=30_000)
    s.until(lambda: s.gone(other), "the topic is deleted")
    describe(s, t.id)
    t.end(False)
    t.settle()
    describe(s, t.id)
