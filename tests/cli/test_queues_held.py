"""Which jobs each worker holds, in `kbroker queues describe --admin`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kbroker.cli.queues.describe import _holds
from kbroker.client.queues.report import Held, Worker, _with_jobs


def _range(first: int, last: int, member: str | None, left_ms: int = 9) -> dict[str, Any]:
    return {
        "first_offset": first, "last_offset": last, "member_id": member, "lock_ms_left": left_ms,
        "client_id": "gone", "client_host": "10.0.0.1",
    }  # fmt: skip


def test_jobs_side_by_side_are_one_range() -> None:
    """Whatever their delivery counts are, and whether they are in the window or kept beside it."""
    anna = Worker("m1", "anna", "10.0.0.2", True, None, None, None)
    idle = anna._replace(member_id="m2", client_id="idle")
    partitions = [
        {"partition": 1, "ranges": [_range(0, 0, "m1")]},
        {
            "partition": 0,
            "ranges": [_range(5, 6, "m1"), _range(7, 7, "m1", 4), _range(8, 8, None), _range(9, 9, "m3")],
            "parked_ranges": [_range(2, 2, "m1"), _range(4, 4, "m1")],
        },
    ]
    assert _with_jobs([anna, idle], partitions) == [
        anna._replace(jobs=6, left_ms=4, held=(Held(0, 2, 2), Held(0, 4, 7), Held(1, 0, 0))),
        idle._replace(jobs=0, held=()),
        Worker("m3", "gone", "10.0.0.1", False, 1, 9, (Held(0, 9, 9),)),
    ]


@pytest.mark.parametrize(
    ("held", "text"),
    [
        ([], None),
        ([Held(0, 4, 4), Held(0, 7, 9)], "0:4, 0:7-9"),
        ([Held(0, 2 * n, 2 * n) for n in range(4)], "0:0, 0:2, 0:4, 0:6"),
        ([Held(0, 2 * n, 2 * n) for n in range(5)], "0:0, 0:2, 0:4, 0:6, …"),
    ],
)
def test_the_first_four_places_are_shown(held: Sequence[Held], text: str | None) -> None:
    assert _holds([each._asdict() for each in held]) == text
