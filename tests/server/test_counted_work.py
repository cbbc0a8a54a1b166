"""The hot path stays lean: the calls, writes, syncs, sends and receives of a request are counted,
never timed.

counted_work.txt has the counts to compare with. When a request does more, or the same with less,
renew them with `python -m tests.server.counted_work --write` and look at the difference.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.brokers import require_engine
from tests.server.counted_work import BROKERS, Counted, Work, counted_requests, read_table
from tests.server.hot_requests import BURST, SERIES

SLACK = 1.1


def complaints(broker: str, name: str, counted: Counted, before: Work) -> list[str]:
    grown = [
        f"{field} {was:g} -> {now:g}"
        for field, was, now in zip(Work._fields, before, counted.work, strict=True)
        if now > was * SLACK + 0.01
    ]
    return (
        [f"{name!r} on {broker} does more for a request: {', '.join(grown)}. Its calls:\n{counted.most(25)}"]
        if grown
        else []
    )


@pytest.mark.parametrize("broker", BROKERS)
def test_requests_do_no_more_than_they_did(broker: str, tmp_path: Path) -> None:
    require_engine(BROKERS[broker][0])
    table = read_table()
    found: list[str] = []
    for name, counted in counted_requests(broker, tmp_path / "data"):
        found += complaints(broker, name, counted, table[broker, name])
    assert not found, "\n\n".join(found)


def test_the_table_has_every_request_and_no_slow_answer() -> None:
    table = read_table()
    assert set(table) == {(broker, name) for broker in BROKERS for name in SERIES}
    seldom = ("heartbeat", "transaction")
    slow = [key for key, work in table.items() if work.encodes and not any(each in key[1] for each in seldom)]
    assert slow == [], "hot answers are packed by hand (kbroker/protocol/responses.py)"


def test_a_burst_is_received_written_and_answered_at_once() -> None:
    table = read_table()
    for broker in BROKERS:
        one, many = table[broker, "produce"], table[broker, "produce, in a burst"]
        calls = (many.sends, many.receives, many.writes, many.syncs)
        assert calls == pytest.approx(
            [number / BURST for number in (one.sends, one.receives, one.writes, one.syncs)]
        )


def test_acks_of_the_leader_cost_no_more_than_those_of_all() -> None:
    table = read_table()
    for broker in BROKERS:
        one, every = table[broker, "produce, acks=1"], table[broker, "produce"]
        assert all(a <= b for a, b in zip(one, every, strict=True)), broker


def test_growth_is_told_with_the_calls_that_make_it() -> None:
    before = Work(100, 50, 1, 1, 1, 1, 0)
    calls = Counted(
        before._replace(python=111, syncs=2), Counter({"kbroker/new.py:loop": 1000, "C len": 3}), 10
    )
    (text,) = complaints("segment-os", "fetch", calls, before)
    assert "'fetch' on segment-os does more for a request: python 100 -> 111, syncs 1 -> 2." in text
    assert "    100.00  kbroker/new.py:loop" in text
    assert not complaints("segment-os", "fetch", calls._replace(work=before._replace(python=110)), before)
