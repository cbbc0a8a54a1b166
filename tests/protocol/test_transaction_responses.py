"""The hand-packed answers of a transaction, byte for byte against kio's encoder."""

from __future__ import annotations

import pytest

from kbroker.protocol.messages import encode_response
from kbroker.protocol.transaction_responses import add_partitions_response, end_response

ADD_PARTITIONS, END = 24, 26
LONG = "ö" * 100


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize(
    "topics",
    [[], [("orders", [(0, 0)])], [(LONG, [(index, 51) for index in range(200)]), ("none", [])]],
    ids=["empty", "one", "several"],
)
def test_added_partitions(version: int, topics: list[tuple[str, list[tuple[int, int]]]]) -> None:
    expected = [
        {
            "name": name,
            "results_by_partition": [
                {"partition_index": index, "partition_error_code": code} for index, code in rows
            ],
        }
        for name, rows in topics
    ]
    assert add_partitions_response(version, topics) == encode_response(
        ADD_PARTITIONS, version, {"results_by_topic_v3_and_below": expected}
    )


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("answer", [(0, 2**40, 7), (90, -1, -1)])
def test_the_end(version: int, answer: tuple[int, int, int]) -> None:
    code, producer_id, producer_epoch = answer
    assert end_response(version, code, producer_id, producer_epoch) == encode_response(
        END,
        version,
        {"error_code": code, "producer_id": producer_id, "producer_epoch": producer_epoch},
    )
