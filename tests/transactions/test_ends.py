"""EndTxn in every state of an id, for both transaction versions, and the rollover of epochs.

Each row of a table is what Kafka 4.4.0 answers, except that a commit of a transaction that was
aborted is fenced for version 2, as in Kafka 4.4 (KAFKA-20785).
"""

from __future__ import annotations

from typing import Final

import pytest

from kbroker.errors import ErrorCode
from kbroker.formats.transactions import NO_PRODUCER, TransactionState
from kbroker.transactions.coordinator import NOBODY, ProducerEpoch
from tests.transactions.world import (
    BUSY,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    COMPLETED,
    EMPTY,
    FENCED,
    FIRST_NEW,
    OK,
    ONGOING,
    PID,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    WRONG_PRODUCER,
    WRONG_STATE,
    World,
    a_record,
)

SAME = ProducerEpoch(PID, 5)
LAST = ProducerEpoch(PID, 4)
OLDER = ProducerEpoch(PID, 3)
NEWER = ProducerEpoch(PID, 6)
OTHER = ProducerEpoch(PID + 1, 5)
ALL = (EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT)

Outcome = TransactionState | ErrorCode

VERSION_1: Final[dict[TransactionState, tuple[Outcome, Outcome]]] = {
    # state: (commit, abort)
    ONGOING: (PREPARE_COMMIT, PREPARE_ABORT),
    PREPARE_COMMIT: (BUSY, WRONG_STATE),
    PREPARE_ABORT: (WRONG_STATE, BUSY),
    COMPLETE_COMMIT: (OK, WRONG_STATE),
    COMPLETE_ABORT: (WRONG_STATE, OK),
    EMPTY: (WRONG_STATE, WRONG_STATE),
}

VERSION_2: Final[dict[tuple[TransactionState, ProducerEpoch], tuple[Outcome, Outcome]]] = {
    # (state, who): (commit, abort); a repeat has the last epoch
    (ONGOING, SAME): (PREPARE_COMMIT, PREPARE_ABORT),
    (ONGOING, LAST): (FENCED, FENCED),
    (PREPARE_COMMIT, LAST): (BUSY, WRONG_STATE),
    (PREPARE_ABORT, LAST): (FENCED, BUSY),
    (COMPLETE_COMMIT, LAST): (OK, WRONG_STATE),
    (COMPLETE_COMMIT, SAME): (WRONG_STATE, PREPARE_ABORT),
    (COMPLETE_ABORT, LAST): (FENCED, OK),
    (COMPLETE_ABORT, SAME): (WRONG_STATE, PREPARE_ABORT),
    (EMPTY, SAME): (WRONG_STATE, PREPARE_ABORT),
    (EMPTY, LAST): (FENCED, FENCED),
}


def check_end(world: World, who: ProducerEpoch, outcome: Outcome, *, is_commit: bool, version: int) -> None:
    """`outcome`: the state that follows, or the code that is answered without a change."""
    before = world.record()
    decision = world.end(who, is_commit=is_commit, version=version)
    if isinstance(outcome, ErrorCode):
        assert (decision.code, decision.transition) == (outcome, None)
        assert world.record() == before
        assert decision.producer == (NOBODY if outcome is not OK else world.producer()) or version == 1
        return
    assert decision.code == OK
    assert decision.transition is not None
    assert decision.transition.ends
    assert world.record() == before, "memory changes when it is saved"
    world.save(decision)
    epoch = before.producer_epoch + (version == 2)
    assert (world.state(), world.producer()) == (outcome, (PID, epoch))
    assert world.record().partitions == before.partitions
    if version == 2:
        assert decision.producer == (PID, epoch)
        assert world.record().last_producer_epoch == before.producer_epoch
    assert world.write_markers().partitions == frozenset()
    assert (world.state(), world.producer()) == (COMPLETED[outcome], (PID, epoch))


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("state", VERSION_1)
def test_version_1_ends_a_transaction(state: TransactionState, is_commit: bool) -> None:
    world = World(a_record(state, version=1))
    check_end(world, SAME, VERSION_1[state][not is_commit], is_commit=is_commit, version=1)


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize(
    ("who", "code"), [(LAST, FENCED), (OLDER, FENCED), (NEWER, FENCED), (OTHER, WRONG_PRODUCER)]
)
@pytest.mark.parametrize("state", ALL)
def test_version_1_refuses_other_producers(
    state: TransactionState, who: ProducerEpoch, code: ErrorCode, is_commit: bool
) -> None:
    check_end(World(a_record(state)), who, code, is_commit=is_commit, version=1)


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize(("state", "who"), VERSION_2)
def test_version_2_ends_a_transaction(state: TransactionState, who: ProducerEpoch, is_commit: bool) -> None:
    outcome = VERSION_2[state, who][not is_commit]
    check_end(World(a_record(state)), who, outcome, is_commit=is_commit, version=2)


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("who", [OLDER, NEWER, OTHER])
@pytest.mark.parametrize("state", [EMPTY, ONGOING, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_version_2_refuses_other_producers(
    state: TransactionState, who: ProducerEpoch, is_commit: bool
) -> None:
    code = WRONG_PRODUCER if who is OTHER else FENCED
    check_end(World(a_record(state)), who, code, is_commit=is_commit, version=2)


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("who", [OLDER, NEWER])
@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT])
def test_version_2_refuses_strange_epochs_before_the_markers_are_written(
    state: TransactionState, who: ProducerEpoch, is_commit: bool
) -> None:
    check_end(World(a_record(state)), who, FENCED, is_commit=is_commit, version=2)


@pytest.mark.parametrize("is_commit", [True, False])
def test_the_producer_that_an_end_answered_is_not_fenced_before_the_markers_are_written(
    is_commit: bool,
) -> None:
    """KAFKA-18464: a client aborts its next transaction right after a commit."""
    world = World(a_record(ONGOING))
    following = world.save(world.end(SAME, is_commit=is_commit)).producer
    decision = world.end(following, is_commit=False)
    assert (decision.code, decision.transition) == (BUSY, None)
    assert world.add(following).code == BUSY
    world.write_markers()
    assert world.end(following, is_commit=False).code == OK


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("is_commit", [True, False])
def test_an_unknown_id_ends_nothing(version: int, is_commit: bool) -> None:
    decision = World().end(SAME, is_commit=is_commit, version=version)
    assert (decision.code, decision.transition) == (WRONG_PRODUCER, None)


def test_an_aborted_producer_of_version_2_goes_on_with_a_new_epoch() -> None:  # BASE-66
    world = World(a_record(ONGOING))
    world.pass_ms(60_001)
    (fence,) = world.transactions.abort_timed_out(world.now)
    world.save_transition(fence)
    world.write_markers()
    assert world.end(SAME, is_commit=True).code == FENCED
    decision = world.end(SAME, is_commit=False)
    assert (decision.code, decision.producer, decision.transition) == (OK, NEWER, None)
    assert world.save(world.add(decision.producer)).code == OK


def test_both_versions_serve_one_id() -> None:
    world = World()
    first = world.save(world.init()).producer
    for version, epoch in ((1, 0), (1, 0), (2, 1), (1, 1), (2, 2), (2, 3)):
        producer = world.producer()
        assert world.save(world.add(producer, version=version)).code == OK
        assert world.carry_out(world.end(producer, version=version)).code == OK
        assert world.producer() == (first.producer_id, epoch)
    for version in (1, 2):
        assert world.end(first, version=version).code == FENCED
        assert world.add(first, version=version).code == FENCED


# --- rollover ---


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
@pytest.mark.parametrize("is_given", [True, False])
@pytest.mark.parametrize(
    ("epoch", "following"),
    [
        (32_764, (PID, 32_765)),
        (32_765, (PID, 32_766)),
        (32_766, (FIRST_NEW, 0)),
        (32_767, (FIRST_NEW, 0)),
    ],
)
def test_init_rotates_an_exhausted_epoch(
    state: TransactionState, is_given: bool, epoch: int, following: tuple[int, int]
) -> None:
    world = World(a_record(state, epoch))
    old = ProducerEpoch(PID, epoch)
    assert world.transactions.exhausted() == (epoch >= 32_766)
    decision = world.save(world.init(old if is_given else NOBODY))
    assert (decision.code, decision.producer) == (OK, following)
    assert world.transactions.exhausted() == (following[1] >= 32_766)
    assert (world.producer(), world.state()) == (following, EMPTY)
    if is_given:
        assert world.save(world.init(old)).producer == following, "a repeat is told the same"
        assert world.producer() == following
    assert world.save(world.add(old)).code == (FENCED if following[0] == PID else WRONG_PRODUCER)


def test_a_repeat_before_the_last_epoch_rotates_nothing() -> None:
    world = World(a_record(EMPTY, 32_766))
    assert world.save(world.init(ProducerEpoch(PID, 32_765))).producer == (PID, 32_766)
    assert world.producer() == (PID, 32_766)


@pytest.mark.parametrize("epoch", [0, 5, 32_765])
def test_a_previous_producer_below_the_last_epochs_is_fenced(epoch: int) -> None:
    world = World(a_record(EMPTY, 32_766))
    world.save(world.init(ProducerEpoch(PID, 32_766)))
    assert world.init(ProducerEpoch(PID, epoch)).code == FENCED


def test_version_1_keeps_even_the_last_epoch() -> None:
    world = World(a_record(ONGOING, 32_766))
    world.carry_out(world.end(ProducerEpoch(PID, 32_766), version=1))
    assert world.producer() == (PID, 32_766)


@pytest.mark.parametrize(
    ("state", "is_commit"),
    [(ONGOING, True), *((state, False) for state in (EMPTY, ONGOING, COMPLETE_COMMIT, COMPLETE_ABORT))],
)
def test_an_end_of_version_2_rotates_an_exhausted_epoch(state: TransactionState, is_commit: bool) -> None:
    world = World(a_record(state, 32_766))
    old, following = ProducerEpoch(PID, 32_766), (FIRST_NEW, 0)
    decision = world.save(world.end(old, is_commit=is_commit))
    assert (decision.code, decision.producer) == (OK, following)
    assert world.record().next_producer_id == FIRST_NEW
    assert world.producer() == (PID, 32_767), "the markers have the old id, and an epoch above"
    assert world.end(old, is_commit=is_commit).code == BUSY
    assert world.end(old, is_commit=not is_commit).code == (WRONG_STATE if is_commit else FENCED)
    world.write_markers()
    assert world.producer() == following
    assert (world.record().previous_producer_id, world.record().next_producer_id) == (PID, NO_PRODUCER)
    repeat = world.end(old, is_commit=is_commit)
    assert (repeat.code, repeat.producer, repeat.transition) == (OK, following, None)
    assert world.end(old, is_commit=not is_commit).code == (WRONG_STATE if is_commit else FENCED)
    assert world.end(old, version=1).code == WRONG_PRODUCER
    assert world.end(ProducerEpoch(PID, 32_765)).code == WRONG_PRODUCER
    assert world.save(world.add(decision.producer)).code == OK


def test_the_next_producer_id_is_not_unknown_before_the_markers_are_written() -> None:
    """The client has been told the id: WRONG_PRODUCER would be the end of it."""
    world = World(a_record(ONGOING, 32_766))
    following = world.save(world.end(ProducerEpoch(PID, 32_766))).producer
    assert following == (FIRST_NEW, 0)
    assert [
        world.add(following).code,
        world.init(following).code,
        world.end(following, is_commit=False).code,
    ] == [BUSY, BUSY, BUSY]


def test_an_end_before_the_last_epoch_keeps_the_producer_id() -> None:
    world = World(a_record(ONGOING, 32_765))
    assert world.carry_out(world.end(ProducerEpoch(PID, 32_765))).producer == (PID, 32_766)
    assert world.producer() == (PID, 32_766)


@pytest.mark.parametrize("by_time", [True, False])
@pytest.mark.parametrize("version", [1, 2])
def test_a_fence_at_the_last_epoch_uses_32767(version: int, by_time: bool) -> None:
    """KAFKA-19367: the epoch grew twice, to a negative one."""
    world = World(a_record(ONGOING, 32_766, version=version))
    if by_time:
        world.pass_ms(60_001)
        (fence,) = world.transactions.abort_timed_out(world.now)
        world.save_transition(fence)
    else:
        assert world.save(world.init()).code == BUSY
    assert (world.state(), world.producer()) == (PREPARE_ABORT, (PID, 32_767))
    world.write_markers()
    assert world.producer() == (FIRST_NEW, 0)
    assert world.save(world.init()).producer == (FIRST_NEW, 1)


def test_a_client_goes_on_after_a_fence_at_the_last_epoch() -> None:
    """A timeout aborts its transaction at 32766, it aborts as well, and continues as the producer
    of the answer. Kafka answers epoch 32767, after which no end could follow."""
    world = World(a_record(ONGOING, 32_766))
    world.pass_ms(60_001)
    (fence,) = world.transactions.abort_timed_out(world.now)
    world.save_transition(fence)
    world.write_markers()
    decision = world.carry_out(world.end(ProducerEpoch(PID, 32_766), is_commit=False))
    assert (decision.code, decision.producer) == (OK, (FIRST_NEW, 0))
    assert world.save(world.init(ProducerEpoch(PID, 32_766))).producer == (FIRST_NEW, 0)
    assert world.save(world.add(world.producer())).code == OK
    assert world.carry_out(world.end(world.producer())).producer == (FIRST_NEW, 1)
