"""What a transactional producer is told, in every state of its id: InitProducerId, additions and
their verification. Ends of transactions have a module of their own, test_ends.py.

Each row of a table is what Kafka 4.4.0 answers.
"""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode
from kbroker.formats.transactions import TransactionState
from kbroker.transactions.coordinator import NOBODY, ProducerEpoch
from tests.transactions.world import (
    BAD_TIMEOUT,
    BUSY,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    FENCED,
    FIRST,
    FIRST_NEW,
    NOT_ADDED,
    OK,
    ONGOING,
    PID,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    SECOND,
    WRONG_PRODUCER,
    T,
    World,
    a_record,
    codes_without_transition,
)

IDLE = (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT)
ALL = (EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT)
SAME = ProducerEpoch(PID, 5)
LAST = ProducerEpoch(PID, 4)
OLDER = ProducerEpoch(PID, 3)
NEWER = ProducerEpoch(PID, 6)
OTHER = ProducerEpoch(PID + 1, 5)


# --- InitProducerId ---


@pytest.mark.parametrize("expected", [NOBODY, OTHER])
def test_a_new_id_gets_a_new_producer_with_epoch_0(expected: ProducerEpoch) -> None:
    world = World()
    decision = world.init(expected, timeout_ms=1234)
    assert (decision.code, decision.producer) == (OK, ProducerEpoch(FIRST_NEW, 0))
    assert world.transactions.record(T) is None, "nothing is known before it is saved"
    world.save(decision)
    assert (world.producer(), world.state(), world.record().timeout_ms) == ((FIRST_NEW, 0), EMPTY, 1234)
    assert world.record().started_ms == -1
    assert not world.transactions.unfinished()


@pytest.mark.parametrize("state", IDLE)
@pytest.mark.parametrize(
    ("expected", "code", "epoch"),
    [
        (NOBODY, OK, 6),
        (SAME, OK, 6),
        (LAST, OK, 5),
        (OLDER, FENCED, 5),
        (NEWER, FENCED, 5),
        (OTHER, FENCED, 5),
    ],
)
def test_a_producer_begins_between_transactions(
    state: TransactionState, expected: ProducerEpoch, code: ErrorCode, epoch: int
) -> None:
    world = World(a_record(state))
    decision = world.save(world.init(expected, timeout_ms=1234))
    assert decision.code == code
    assert world.producer() == (PID, epoch)
    if code is OK:
        assert decision.producer == (PID, epoch)
    if epoch == 6:
        assert (world.state(), world.record().timeout_ms) == (EMPTY, 1234)
    elif code is not OK:
        assert world.record() == a_record(state)


def test_only_a_bump_with_a_given_epoch_is_repeated() -> None:
    """Whoever names no epoch leaves none behind for which a repeat is answered."""
    world = World(a_record(COMPLETE_COMMIT))
    assert world.save(world.init(SAME)).producer == (PID, 6)
    assert world.save(world.init(SAME)).producer == (PID, 6)
    assert world.save(world.init()).producer == (PID, 7)
    assert world.save(world.init(NEWER)).code == FENCED
    assert world.producer() == (PID, 7)


def test_the_first_epoch_is_bumped_once_by_two_equal_requests() -> None:
    world = World()
    first = world.save(world.init()).producer
    assert [world.save(world.init(first)).producer.epoch for _ in range(2)] == [1, 1]


@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT])
@pytest.mark.parametrize("expected", [NOBODY, SAME, LAST])
def test_a_producer_waits_for_the_markers(state: TransactionState, expected: ProducerEpoch) -> None:
    world = World(a_record(state))
    assert list(codes_without_transition(world.init(expected))) == [BUSY]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("expected", [NOBODY, SAME, LAST])
def test_an_open_transaction_is_fenced_and_aborted(expected: ProducerEpoch, version: int) -> None:
    world = World(a_record(ONGOING, version=version))
    decision = world.save(world.init(expected))
    assert decision.code == BUSY
    assert decision.transition is not None
    assert decision.transition.ends
    assert (world.state(), world.producer()) == (PREPARE_ABORT, (PID, 6))
    assert world.record().partitions == {FIRST}
    assert world.init(expected).code == BUSY
    assert world.write_markers().partitions == frozenset()
    assert (world.state(), world.producer()) == (COMPLETE_ABORT, (PID, 6))
    assert world.save(world.init()).producer == (PID, 7)


@pytest.mark.parametrize("version", [1, 2])
def test_a_producer_that_aborted_its_own_transaction_gets_the_epoch_of_the_fence(version: int) -> None:
    world = World(a_record(ONGOING, version=version))
    assert world.carry_out(world.init(SAME)).code == BUSY
    assert world.save(world.init(SAME)).producer == (PID, 6)
    assert world.producer() == (PID, 6)


def test_another_producer_fences_no_open_transaction() -> None:
    world = World(a_record(ONGOING))
    assert list(codes_without_transition(world.init(OTHER))) == [FENCED]
    assert world.record() == a_record(ONGOING)


@pytest.mark.parametrize(
    ("timeout_ms", "code"),
    [(0, BAD_TIMEOUT), (-1, BAD_TIMEOUT), (1, OK), (900_000, OK), (900_001, BAD_TIMEOUT)],
)
def test_a_timeout_is_above_0_and_at_most_the_brokers(timeout_ms: int, code: ErrorCode) -> None:
    assert World().init(timeout_ms=timeout_ms).code == code


@pytest.mark.parametrize("state", ALL)
def test_the_timeout_is_looked_at_first(state: TransactionState) -> None:
    world = World(a_record(state))
    assert list(codes_without_transition(world.init(OTHER, timeout_ms=0))) == [BAD_TIMEOUT]


def test_a_changed_maximum_counts_at_once() -> None:
    world = World()
    world.settings = world.settings._replace(max_timeout_ms=10)
    assert world.init(timeout_ms=11).code == BAD_TIMEOUT
    assert world.init(timeout_ms=10).code == OK


# --- additions ---


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("producer", "code"),
    [(SAME, OK), (LAST, FENCED), (OLDER, FENCED), (NEWER, FENCED), (OTHER, WRONG_PRODUCER)],
)
@pytest.mark.parametrize("state", [ONGOING, *IDLE])
def test_only_the_producer_itself_adds(
    state: TransactionState, producer: ProducerEpoch, code: ErrorCode, version: int
) -> None:
    world = World(a_record(state))
    decision = world.add(producer, SECOND, version=version)
    assert decision.code == code
    assert (decision.transition is not None) == (code is OK)
    world.save(decision)
    if code is OK:
        assert (world.state(), world.producer()) == (ONGOING, SAME)
        assert world.record().partitions == {SECOND} | ({FIRST} if state is ONGOING else set())
        assert world.record().version == version
    else:
        assert world.record() == a_record(state)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("producer", "code"), [(SAME, BUSY), (LAST, FENCED), (NEWER, FENCED), (OTHER, WRONG_PRODUCER)]
)
@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT])
def test_nothing_is_added_before_the_markers_are_written(
    state: TransactionState, producer: ProducerEpoch, code: ErrorCode, version: int
) -> None:
    world = World(a_record(state))
    assert list(codes_without_transition(world.add(producer, SECOND, version=version))) == [code]


def test_an_unknown_id_has_no_producer() -> None:
    world = World()
    assert list(codes_without_transition(world.add(SAME))) == [WRONG_PRODUCER]
    assert world.transactions.verify(T, SAME, FIRST) == WRONG_PRODUCER


def test_what_is_already_there_is_not_saved_again() -> None:
    world = World(a_record(ONGOING, partitions=frozenset((FIRST, SECOND)), groups=frozenset("g")))
    assert list(codes_without_transition(world.add(SAME, FIRST), world.add(SAME, groups=("g",)))) == [OK, OK]
    world.save(world.add(SAME, groups=("g", "h")))
    assert world.record().groups == {"g", "h"}
    assert world.record().partitions == {FIRST, SECOND}


@pytest.mark.parametrize("state", IDLE)
def test_a_transaction_begins_with_the_first_addition(state: TransactionState) -> None:
    world = World(a_record(state))
    world.pass_ms(100)
    begin_ms = world.now.wall_ms
    world.save(world.add(SAME))
    world.pass_ms(100)
    world.save(world.add(SAME, SECOND))
    assert world.record().started_ms == begin_ms
    assert world.record().updated_ms == world.now.wall_ms
    world.carry_out(world.end(SAME))
    assert world.record().started_ms == begin_ms, "it can still be described"


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (EMPTY, NOT_ADDED),
        (ONGOING, OK),
        (PREPARE_COMMIT, BUSY),
        (PREPARE_ABORT, BUSY),
        (COMPLETE_COMMIT, NOT_ADDED),
        (COMPLETE_ABORT, NOT_ADDED),
    ],
)
def test_a_log_is_verified(state: TransactionState, code: ErrorCode) -> None:
    world = World(a_record(state))
    assert world.transactions.verify(T, SAME, FIRST) == code
    assert world.transactions.verify(T, SAME, SECOND) == (BUSY if code is BUSY else NOT_ADDED)
    assert world.transactions.verify(T, OTHER, FIRST) == WRONG_PRODUCER
    for producer in (LAST, NEWER):
        assert world.transactions.verify(T, producer, FIRST) == FENCED


def test_a_verification_does_not_wait_for_a_save() -> None:
    world = World(a_record(ONGOING))
    decision = world.add(SAME, SECOND)
    assert world.transactions.verify(T, SAME, FIRST) == OK
    assert world.transactions.verify(T, SAME, SECOND) == NOT_ADDED, "it is not added before it is saved"
    world.save(decision)
    assert world.transactions.verify(T, SAME, SECOND) == OK
