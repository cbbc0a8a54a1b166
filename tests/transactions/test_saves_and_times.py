"""Transitions that are being saved or could not be, timeouts, expiry, and a start with stored
records."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.formats.transactions import TransactionState
from kbroker.transactions.coordinator import ProducerEpoch, TransactionDecision
from tests.transactions.world import (
    BUSY,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    COMPLETED,
    DAY_MS,
    EMPTY,
    FENCED,
    FIRST,
    FIRST_NEW,
    OK,
    ONGOING,
    PID,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    SECOND,
    TIMEOUT_MS,
    WRONG_PRODUCER,
    T,
    World,
    a_record,
)

IDLE = (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT)
ALL = (EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT)
SAME = ProducerEpoch(PID, 5)
LAST = ProducerEpoch(PID, 4)
OTHER = ProducerEpoch(PID + 1, 5)
WEEK_MS = 7 * DAY_MS

BEGUN: dict[str, tuple[TransactionState, Callable[[World], TransactionDecision]]] = {
    "init": (EMPTY, lambda world: world.init()),
    "rotation": (EMPTY, lambda world: world.init(SAME)),
    "fence": (ONGOING, lambda world: world.init()),
    "begin": (COMPLETE_COMMIT, lambda world: world.add(SAME, version=1)),
    "more": (ONGOING, lambda world: world.add(SAME, SECOND)),
    "group": (ONGOING, lambda world: world.add(SAME, groups=("g",))),
    "commit 1": (ONGOING, lambda world: world.end(SAME, version=1)),
    "commit 2": (ONGOING, lambda world: world.end(SAME)),
    "abort 1": (ONGOING, lambda world: world.end(SAME, is_commit=False, version=1)),
    "abort 2": (ONGOING, lambda world: world.end(SAME, is_commit=False)),
    "empty abort": (COMPLETE_ABORT, lambda world: world.end(SAME, is_commit=False)),
}
"""What is begun: (state before, request)."""


# --- saves ---


@pytest.mark.parametrize("name", BEGUN)
def test_other_requests_wait_for_a_save(name: str) -> None:
    state, begin = BEGUN[name]
    world = World(a_record(state))
    assert begin(world).transition is not None
    assert world.record() == a_record(state)
    waiting = [world.init(), world.init(LAST), world.init(OTHER), world.add(SAME), world.add(SAME, SECOND)]
    for is_commit in (True, False):
        waiting += [world.end(who, is_commit=is_commit) for who in (SAME, LAST, OTHER)]
        waiting.append(world.end(SAME, is_commit=is_commit, version=1))
        assert world.end(OTHER, is_commit=is_commit, version=1).code == WRONG_PRODUCER
        assert world.end(LAST, is_commit=is_commit, version=1).code == FENCED
    waiting += [world.add(who, version=1) for who in (SAME, LAST, OTHER)]
    assert {each.code for each in waiting} == {BUSY}
    assert {each.transition for each in waiting} == {None}
    world.pass_ms(2 * WEEK_MS)
    assert not world.transactions.abort_timed_out(world.now)
    assert not world.transactions.remove_expired(world.now)


def test_requests_for_an_id_that_is_being_created_wait() -> None:
    world = World()
    decision = world.init()
    assert decision.transition is not None
    assert [world.init().code, world.add(decision.producer).code, world.end(decision.producer).code] == [
        BUSY,
        BUSY,
        BUSY,
    ]
    assert world.all() == {}


def test_other_ids_do_not_wait() -> None:
    world = World(a_record(ONGOING), u=a_record(ONGOING, producer_id=PID + 1))
    assert world.end(SAME).code == OK
    assert world.end(OTHER, name="u").code == OK


@pytest.mark.parametrize("name", BEGUN)
def test_a_failed_save_leaves_everything_as_it_was(name: str) -> None:
    state, begin = BEGUN[name]
    world = World(a_record(state))
    first = begin(world)
    world.fail(first)
    assert world.record() == a_record(state)
    assert world.transactions.unfinished() == ([T] if state in COMPLETED else [])
    second = begin(world)
    assert second == first, "nothing is bumped twice"
    world.save(second)
    assert second.transition is not None
    assert world.record() == second.transition.record


def test_an_id_whose_first_save_failed_is_unknown() -> None:
    world = World()
    world.fail(world.init())
    assert world.transactions.record(T) is None
    assert world.all() == {}
    assert world.add(ProducerEpoch(FIRST_NEW, 0)).code == WRONG_PRODUCER
    decision = world.save(world.init())
    assert (decision.code, decision.producer.epoch) == (OK, 0)


@pytest.mark.parametrize("failures", [1, 3])
@pytest.mark.parametrize("epoch", [5, 32_766])
def test_a_failed_fence_bumps_the_epoch_once(failures: int, epoch: int) -> None:
    """KAFKA-19367: by a client or by the clock, the epoch grows by one."""
    world = World(a_record(ONGOING, epoch))
    world.pass_ms(TIMEOUT_MS + 1)
    for _ in range(failures):
        world.fail(world.init())
        (fence,) = world.transactions.abort_timed_out(world.now)
        world.transactions.not_saved(fence)
    assert world.producer() == (PID, epoch)
    (fence,) = world.transactions.abort_timed_out(world.now)
    world.save_transition(fence)
    assert (world.state(), world.producer()) == (PREPARE_ABORT, (PID, epoch + 1))


# --- timeouts ---


@pytest.mark.parametrize("wall_step_ms", [0, DAY_MS, -DAY_MS])
@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_that_lasts_too_long_is_fenced(version: int, wall_step_ms: int) -> None:
    world = World()
    producer = world.save(world.init()).producer
    world.pass_ms(10 * TIMEOUT_MS)
    assert not world.transactions.abort_timed_out(world.now), "it has not begun"
    world.save(world.add(producer, version=version))
    world.pass_ms(TIMEOUT_MS - 10, wall_step_ms=wall_step_ms)
    world.save(world.add(producer, SECOND, version=version))
    assert not world.transactions.abort_timed_out(world.now)
    world.pass_ms(10)
    assert not world.transactions.abort_timed_out(world.now), "exactly as long as it may"
    world.pass_ms(1)
    (fence,) = world.transactions.abort_timed_out(world.now)
    assert fence.ends
    assert world.record().state is ONGOING
    assert not world.transactions.abort_timed_out(world.now), "it is being saved"
    world.save_transition(fence)
    assert (world.state(), world.producer().epoch) == (PREPARE_ABORT, producer.epoch + 1)
    assert world.record().partitions == {FIRST, SECOND}
    assert not world.transactions.abort_timed_out(world.now)
    world.write_markers()
    assert world.state() is COMPLETE_ABORT
    assert world.add(producer, version=version).code == FENCED
    for is_commit in (True, False):
        assert world.end(producer, is_commit=is_commit, version=1).code == FENCED


def test_each_transaction_has_its_own_time() -> None:
    world = World(a_record(EMPTY), u=a_record(EMPTY, timeout_ms=10))
    for _ in range(3):
        world.save(world.add(SAME, version=1))
        world.pass_ms(TIMEOUT_MS - 1)
        assert not world.transactions.abort_timed_out(world.now)
        world.carry_out(world.end(SAME, version=1))
    world.save(world.add(SAME))
    world.save(world.add(SAME, name="u"))
    world.pass_ms(11)
    assert [each.transactional_id for each in world.transactions.abort_timed_out(world.now)] == ["u"]


def test_statistics_tell_how_transactions_ended() -> None:
    world = World(a_record(EMPTY), u=a_record(ONGOING))
    world.save(world.add(SAME))
    assert world.transactions.statistics().by_state[ONGOING] == 2
    decision = world.end(SAME)
    assert world.transactions.statistics().pending == 1
    world.carry_out(decision)
    world.save(world.add(world.producer()))
    world.carry_out(world.end(world.producer(), is_commit=False))
    world.pass_ms(TIMEOUT_MS + 1)
    (fence,) = world.transactions.abort_timed_out(world.now)
    world.save_transition(fence)
    world.write_markers("u")
    told = world.transactions.statistics()
    assert (told.committed, told.aborted, told.timed_out, told.pending) == (1, 2, 1, 0)
    assert told.by_state[COMPLETE_ABORT] == 2


def test_a_timeout_counts_once_though_its_save_failed() -> None:
    world = World(a_record(ONGOING))
    world.pass_ms(TIMEOUT_MS + 1)
    (fence,) = world.transactions.abort_timed_out(world.now)
    world.transactions.not_saved(fence)
    assert world.transactions.statistics().timed_out == 0
    (fence,) = world.transactions.abort_timed_out(world.now)
    world.save_transition(fence)
    world.write_markers()
    told = world.transactions.statistics()
    assert (told.aborted, told.timed_out) == (1, 1)


# --- expiry ---


@pytest.mark.parametrize("wall_step_ms", [0, DAY_MS, -DAY_MS])
@pytest.mark.parametrize("state", IDLE)
def test_an_unused_id_is_removed(state: TransactionState, wall_step_ms: int) -> None:
    world = World(a_record(state))
    world.pass_ms(WEEK_MS - 1, wall_step_ms=wall_step_ms)
    assert not world.transactions.remove_expired(world.now)
    world.pass_ms(2)
    (removed,) = world.transactions.remove_expired(world.now)
    assert (removed.transactional_id, removed.record, removed.ends) == (T, None, False)
    assert not world.transactions.remove_expired(world.now)
    assert world.init().code == BUSY
    assert world.add(SAME).code == BUSY
    world.transactions.not_saved(removed)
    assert world.record() == a_record(state)
    (removed,) = world.transactions.remove_expired(world.now)
    world.save_transition(removed)
    assert world.transactions.record(T) is None
    assert world.all() == {}
    assert world.add(SAME).code == WRONG_PRODUCER
    for version in (1, 2):
        assert world.end(SAME, version=version).code == WRONG_PRODUCER
    assert world.save(world.init()).producer == (FIRST_NEW, 0)


@pytest.mark.parametrize("state", [ONGOING, PREPARE_COMMIT, PREPARE_ABORT])
def test_an_id_with_a_transaction_is_not_removed(state: TransactionState) -> None:
    world = World(a_record(state))
    world.pass_ms(100 * WEEK_MS)
    assert not world.transactions.remove_expired(world.now)


def test_each_use_keeps_an_id() -> None:
    world = World()
    producer = world.save(world.init()).producer
    for _ in range(3):
        world.pass_ms(WEEK_MS - 2)
        assert not world.transactions.remove_expired(world.now)
        world.save(world.add(producer, version=1))
        world.pass_ms(2)
        world.carry_out(world.end(producer, version=1))
        assert not world.transactions.remove_expired(world.now)
    world.pass_ms(WEEK_MS + 1)
    assert len(world.transactions.remove_expired(world.now)) == 1


def test_a_changed_expiration_counts_at_once() -> None:
    world = World(a_record(EMPTY))
    world.pass_ms(11)
    world.settings = world.settings._replace(expiration_ms=10)
    assert len(world.transactions.remove_expired(world.now)) == 1


# --- starts ---


@pytest.mark.parametrize("state", ALL)
def test_a_start_goes_on_where_it_was(state: TransactionState) -> None:
    stored = a_record(state, groups=frozenset("g") if state not in IDLE else frozenset())
    world = World(stored)
    assert world.all() == {T: stored}
    assert world.transactions.unfinished() == ([T] if state in COMPLETED else [])
    if state in COMPLETED:
        after = world.write_markers()
        assert after.state is COMPLETED[state]
        assert (after.partitions, after.groups) == (frozenset(), frozenset())
        assert not world.transactions.unfinished()
        assert world.save(world.init()).producer == (PID, 6)
    elif state is ONGOING:
        assert world.carry_out(world.end(SAME)).code == OK
    else:
        assert world.save(world.add(SAME)).code == OK


def test_a_start_finishes_a_rotation() -> None:
    world = World(a_record(ONGOING, 32_766))
    answer = world.save(world.end(ProducerEpoch(PID, 32_766))).producer
    for _ in range(2):
        prepared = world.store[T]
        world.start()
        assert world.transactions.unfinished() == [T]
        assert world.write_markers().state is COMPLETE_COMMIT
        assert world.producer() == answer
        world.store[T] = prepared  # the new state was not saved
    world.start()
    world.write_markers()
    world.start()
    assert world.producer() == answer
    assert world.end(ProducerEpoch(PID, 32_766)).producer == answer


def test_a_time_that_passed_before_a_start_counts() -> None:
    world = World(a_record(ONGOING))
    world.pass_ms(TIMEOUT_MS)
    world.start()
    assert not world.transactions.abort_timed_out(world.now)
    world.pass_ms(1, wall_step_ms=-DAY_MS)
    assert len(world.transactions.abort_timed_out(world.now)) == 1

    world = World(a_record(EMPTY))
    world.pass_ms(WEEK_MS - 1)
    world.start()
    assert not world.transactions.remove_expired(world.now)
    world.pass_ms(2, wall_step_ms=-DAY_MS)
    assert len(world.transactions.remove_expired(world.now)) == 1


def test_a_beginning_in_the_future_is_taken_for_now() -> None:
    """The wall clock was set back while the broker was off."""
    world = World(a_record(ONGOING, started_ms=World.START.wall_ms + DAY_MS))
    assert not world.transactions.abort_timed_out(world.now)
    world.pass_ms(TIMEOUT_MS + 1)
    assert len(world.transactions.abort_timed_out(world.now)) == 1
