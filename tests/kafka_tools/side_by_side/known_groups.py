"""Known differences of tools for groups."""

from __future__ import annotations

from collections.abc import Sequence

from tests.kafka_tools.side_by_side.known import WORDING, Known, known

_EARLIER = (
    "kbroker answers a heartbeat once new share-partitions have their state; Kafka answers before, "
    "and assigns them with one more epoch"
)

KNOWN: Sequence[Known] = (
    known(
        "share groups",
        "left: --state verbose",
        _EARLIER,
        [r"share-group ADDRESS \(1\) Empty 4 4 0"],
        [r"share-group ADDRESS \(1\) Empty 3 3 0"],
    ),
    known(
        "share groups",
        "joined: --state verbose",
        _EARLIER,
        [r"share-group ADDRESS \(1\) Stable 5 5 1"],
        [r"share-group ADDRESS \(1\) Stable 4 4 1"],
    ),
    known(
        "share groups",
        "joined: --members verbose",
        _EARLIER,
        [r"share-group MEMBER .* 1 5 share-group:0"],
        [r"share-group MEMBER .* 1 4 share-group:0"],
    ),
    known(
        "share groups",
        "delete offsets in use",
        WORDING,
        [".*Error: The group is not empty."],
        [".*Error: Group share-group is not empty."],
    ),
    known(
        "share groups",
        "delete offsets of a missing topic",
        WORDING,
        ["missing Error: This server does not host this topic-partition."],
        ["missing Error: There is no offset information to delete."],
    ),
)
