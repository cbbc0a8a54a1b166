"""The window: counted units, its end, and clients that fail, hang or leave."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from perf.workloads import window
from perf.workloads.client_process import SLOT_S, ClientReport, Work
from perf.workloads.window import Client, Plan, Span, Window, WorkloadFailed, measure
from tests.workloads.window_clients import (
    counting,
    counting_so_many,
    failing,
    hanging_at_the_end,
    hanging_before_its_report,
    leaving,
)

SHORT = Plan(seconds=0.2, warm_up_s=0.02)


class Told:
    """A Watch that keeps its notifications."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def opened(self) -> None:
        self.words.append("opened")

    def closed(self) -> None:
        self.words.append("closed")


def test_what_happened_in_the_window_is_summed_up() -> None:
    told = Told()
    clients = [Client(counting, {"latency_ms": latency_ms}) for latency_ms in (1.0, 5.0)]
    outcome = measure(SHORT._replace(watch=told), clients).outcome(more=2)
    assert told.words == ["opened", "closed"]
    assert outcome.records > 0
    assert outcome.bytes == 3 * outcome.records
    assert outcome.requests == outcome.records
    assert 0 < outcome.seconds <= SHORT.seconds + SLOT_S or outcome.seconds == pytest.approx(
        outcome.records / outcome.records_per_s
    )
    assert outcome.latencies_ms is not None
    assert outcome.latencies_ms.max == 5
    assert outcome.latencies_ms.count <= outcome.records + 2  # a count and its latency may be in two slots
    assert outcome.first_record_ms is not None
    assert not outcome.ran_dry
    assert outcome.details == {"more": 2}


def test_only_the_slots_of_the_window_count() -> None:
    report = ClientReport()
    report.units.update({9: 1, 10: 2, 11: 4, 12: 8})
    for slot in (9, 10, 11, 12):
        report.times.append((slot + 0.5) * SLOT_S)
        report.latencies_ms.append(float(slot))
    found = Window([report], Span(first=10, last=12, seconds=2 * SLOT_S))
    assert found.sum([report.units, report.units]) == 2 * (2 + 4)
    assert list(found.latencies_ms()) == [10, 11]
    assert found.outcome().records_per_s == pytest.approx((2 + 4) / (2 * SLOT_S))


def test_a_window_ends_before_all_is_used_up() -> None:
    window_of_an_hour = Plan(seconds=3600, warm_up_s=3600)
    found = measure(window_of_an_hour, [Client(counting, {"latency_ms": 0.0})], most=500)
    assert not found.span.ran_dry
    assert 0 < found.outcome().records < 500


def test_a_topic_that_is_used_up_at_once_gives_no_figure() -> None:
    assert measure(
        Plan(seconds=3600, warm_up_s=0), [Client(counting, {"latency_ms": 0.0})], most=1
    ).span.ran_dry


def test_all_of_it_is_from_the_first_successes_to_the_last_unit() -> None:
    """Nothing counted before "go", and nothing twice: the rest of `most` after the first
    successes."""
    told, clients = Told(), [Client(counting_so_many, {"first": 5, "then": 20}) for _ in range(2)]
    found = measure(Plan(seconds=60, watch=told), clients, most=50, all_of_it=True)
    assert told.words == ["opened", "closed"]
    assert found.outcome().records == 40
    assert found.outcome().seconds > 0
    assert not found.outcome().ran_dry


def test_all_of_it_fails_when_some_is_never_done() -> None:
    clients = [Client(counting_so_many, {"first": 5, "then": 20})]
    with pytest.raises(WorkloadFailed, match="25 of 26 records were finished within 1 s"):
        measure(Plan(seconds=0.6), clients, most=26, all_of_it=True)


def test_without_seconds_only_the_first_success_is_waited_for() -> None:
    told = Told()
    outcome = measure(Plan(seconds=0, watch=told), [Client(counting, {"latency_ms": 0.0})]).outcome()
    assert (outcome.records, outcome.records_per_s, outcome.megabytes_per_s, outcome.ran_dry, told.words) == (
        0,
        0,
        0,
        False,
        [],
    )
    assert outcome.first_record_ms is not None


@pytest.mark.parametrize(
    ("work", "text"), [(failing, "^ValueError: two lines$"), (leaving, "ended by itself, exit code 3")]
)
def test_a_client_that_fails_ends_the_run(work: Work, text: str) -> None:
    with pytest.raises(WorkloadFailed, match=text):
        measure(SHORT, [Client(counting, {"latency_ms": 0.0}), Client(work, {})])
    assert multiprocessing.active_children() == []


def test_a_client_that_hangs_when_it_closes_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "_CLOSE_TIMEOUT_S", 0.1)
    outcome = measure(SHORT, [Client(hanging_at_the_end, {"latency_ms": 0.0})]).outcome()
    assert outcome.records > 0
    assert outcome.details == {}
    assert multiprocessing.active_children() == []


def test_a_client_that_hangs_before_its_report_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "_CLOSE_TIMEOUT_S", 0.1)
    found = measure(Plan(seconds=0.2, warm_up_s=0), [Client(hanging_before_its_report, {})])
    assert found.reports[0].units.total() == 7
    assert found.outcome().details == {"stuck": 1}


def test_clients_end_with_their_parent(tmp_path: Path) -> None:
    """Whatever kills it: after SIGKILL they have to end themselves."""
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent("""
        import os
        from perf.workloads.window import Client, Plan, measure
        from tests.workloads.window_clients import says_its_pid

        if __name__ == "__main__":
            measure(Plan(seconds=3600), [Client(says_its_pid, {})])
        """)
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(
        [sys.executable, str(script)], **streams, text=True, env=environment, cwd=root
    ) as parent:
        assert parent.stdout is not None
        assert int(parent.stdout.readline()) != parent.pid
        parent.kill()
        assert parent.stdout.read() == ""  # The last process that holds the pipe has ended.
