"""Chains of control records: which records are appended, what remains after a failure, and how a
state is found again."""

from __future__ import annotations

import random

import pytest

from kbroker.formats.control_records import ControlType, ShareControl
from kbroker.formats.state import ControlChain
from kbroker.share_state.control_chains import ChainWalk, ControlChains, ShareChange

CHECKPOINT, DELTA = ControlType.SHARE_CHECKPOINT, ControlType.SHARE_DELTA


class Log:
    """Chains, and the log that they are in."""

    def __init__(self) -> None:
        self.chains = ControlChains()
        self.records: dict[int, ShareControl] = {}
        self.end = 0

    def append(self, *changes: ShareChange) -> None:
        to_append = self.chains.records(changes, self.end)
        for control in to_append.controls:
            self.records[self.end] = control
            self.end += 1
        self.chains.confirm(to_append.ends)

    def state(self, group_id: str) -> list[tuple[int, bytes]]:
        chain = self.chains.chain(group_id)
        assert chain is not None
        walk = ChainWalk(group_id, chain)
        while walk.offset is not None:
            walk.take(self.records.get(walk.offset))
        return walk.entries()


def test_deltas_lead_back_to_their_checkpoint() -> None:
    log = Log()
    log.append(("a", 0, b"a0"), ("b", 0, b"b0"))
    log.append(("a", 1, b"a1"))
    log.end += 5  # records of producers
    log.append(("b", 1, b"b1"), ("a", 2, b"a2"))
    assert [(offset, control.type, control.back_offset) for offset, control in log.records.items()] == [
        (0, CHECKPOINT, -1),
        (1, CHECKPOINT, -1),
        (2, DELTA, 0),
        (8, DELTA, 1),
        (9, DELTA, 2),
    ]
    assert log.state("a") == [(0, b"a0"), (1, b"a1"), (2, b"a2")]
    assert log.state("b") == [(0, b"b0"), (1, b"b1")]


def test_a_checkpoint_begins_anew_and_a_deletion_ends() -> None:
    log = Log()
    log.append(("a", 0, b"old"))
    log.append(("a", 1, b"old"))
    log.append(("a", 0, b"new"), ("a", 1, None))
    assert log.state("a") == [(0, b"new")]
    assert log.chains.below(3) == ["a"]
    assert log.chains.below(2) == []
    log.append(("a", 0, None), ("a", 1, None))
    assert log.records[3].is_deletion
    assert log.chains.known() == set()


def test_several_on_their_way() -> None:
    """Each refers to the one before, even if that is not saved yet; a failed one is dropped, with
    all after it."""
    chains = ControlChains({"a": ControlChain(3, 5)})
    first = chains.records([("a", 2, b"x")], 10)
    second = chains.records([("a", 3, b"y"), ("b", 0, b"z")], 11)
    assert [control.back_offset for control in (*first.controls, *second.controls)] == [5, 10, -1]
    assert chains.chain("a") == (3, 11)
    assert chains.known() == {"a", "b"}
    chains.confirm(first.ends)
    assert (chains.groups, chains.chain("a")) == ({"a": (3, 10)}, (3, 11))
    chains.fail()
    assert (chains.chain("a"), chains.known()) == ((3, 10), {"a"})


def test_nothing_to_say() -> None:
    chains = ControlChains({"a": ControlChain(3, 5)})
    assert not chains.records([("a", 1, None), ("a", 2, None)], 10).controls


@pytest.mark.parametrize("seed", range(20))
def test_replaying_a_log_gives_the_same(seed: int) -> None:
    """From its beginning, or from any hint on."""
    rng, log, hints = random.Random(seed), Log(), []
    numbers: dict[str, int] = {}
    for step in range(120):
        group_id = rng.choice("abc")
        if group_id not in numbers or rng.random() < 0.1:
            log.append((group_id, 0, b"%d" % step))
            numbers[group_id] = 0
        elif rng.random() < 0.05:
            log.append((group_id, 0, None))
            del numbers[group_id]
        else:
            numbers[group_id] += 1
            log.append((group_id, numbers[group_id], b"%d" % step))
        if rng.random() < 0.1:
            hints.append(log.chains.hint(log.end, is_open=True))
    for hint in [ControlChains().hint(0, is_open=True), *hints]:
        again = ControlChains(hint.groups)
        for offset, control in log.records.items():
            if offset >= hint.offset:
                again.replay(offset, control)
        assert again.groups == log.chains.groups
        assert {group_id: len(log.state(group_id)) - 1 for group_id in again.groups} == numbers


@pytest.mark.parametrize(
    "found",
    [
        None,
        ShareControl(DELTA, "other", b"", 3),
        ShareControl(CHECKPOINT, "a", b""),  # a deletion
        ShareControl(CHECKPOINT, "a", b"x"),  # not where the checkpoint is
        ShareControl(DELTA, "a", b"x", 9),  # forward
        ShareControl(DELTA, "a", b"x", -1),
    ],
)
def test_a_broken_chain(found: ShareControl | None) -> None:
    with pytest.raises(ValueError, match="group a at offset 7"):
        ChainWalk("a", ControlChain(3, 7)).take(found)


def test_a_checkpoint_that_may_still_fail_does_not_let_the_saved_one_go() -> None:
    log = Log()
    log.append(("a", 0, b"old"))
    anew = log.chains.records([("a", 0, b"new")], 7)
    assert log.chains.below(5) == ["a"]
    log.chains.confirm(anew.ends)
    assert log.chains.below(5) == []
