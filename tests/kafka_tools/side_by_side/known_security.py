"""Known differences of kafka-acls, and of users and quotas."""

from __future__ import annotations

from collections.abc import Sequence

from tests.kafka_tools.side_by_side.known import WORDING, Known, known

KNOWN: Sequence[Known] = (
    known(
        "acls",
        "add a bad range",
        WORDING,
        [r".*Invalid CIDR notation '10\.0\.0\.0/33': Value .33. not in range .0,32."],
        [r".*Invalid CIDR notation '10\.0\.0\.0/33': expected an IPv4 address .*"],
    ),
)
