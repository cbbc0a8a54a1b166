"""The metadata and assignments that consumers send in the classic protocol: every version, future
versions, and other bytes, which must never end the process."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest

from kbroker.protocol.consumer_protocol import (
    Subscription,
    read_assignment,
    read_subscribed_topics,
    read_subscription,
    write_assignment,
)


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def topic_rows(*rows: tuple[str, list[int]]) -> bytes:
    return struct.pack(">i", len(rows)) + b"".join(
        text(name) + struct.pack(f">i{len(each)}i", len(each), *each) for name, each in rows
    )


SUBSCRIPTION_V3 = (
    struct.pack(">hi", 3, 2)
    + text("b")
    + text("a")
    + struct.pack(">i", -1)
    + topic_rows(("a", [1]))
    + struct.pack(">i", 7)
    + text("rack-1")
)
ASSIGNMENT_V1 = struct.pack(">h", 1) + topic_rows(("b", [1, 0]), ("a", [2])) + struct.pack(">i", -1)
ABSURD_TOPICS = [struct.pack(">hi", version, 0x7FFFFFFF) for version in range(4)]
ABSURD_OWNED = [struct.pack(">hiii", version, 0, -1, 0x7FFFFFFF) for version in (1, 2, 3)]
"""Counts for which no machine has the memory. In an assignment these bytes are read as other
fields."""


def test_what_members_tell_each_other() -> None:
    assert read_subscription(SUBSCRIPTION_V3) == Subscription(3, ("b", "a"), {"a": (1,)}, "rack-1")
    assert read_subscribed_topics(SUBSCRIPTION_V3) == {"a", "b"}
    assert read_assignment(ASSIGNMENT_V1) == ({"a": (2,), "b": (1, 0)}, None)


@pytest.mark.parametrize("version", range(6))
def test_assignments_in_each_version(version: int) -> None:
    written = write_assignment({"a": (0, 2)}, version)
    assert struct.unpack_from(">h", written) == (min(version, 3),)
    assert read_assignment(written) == ({"a": (0, 2)}, None)


def test_versions_that_are_still_to_come_are_read_as_the_newest() -> None:
    assert read_assignment(struct.pack(">h", 9) + ASSIGNMENT_V1[2:] + b"more").partitions == {
        "a": (2,),
        "b": (1, 0),
    }
    assert (
        read_subscription(struct.pack(">h", 9) + SUBSCRIPTION_V3[2:] + b"more")[1:]
        == read_subscription(SUBSCRIPTION_V3)[1:]
    )


def test_topics_are_there_whatever_follows() -> None:
    assert read_subscribed_topics(struct.pack(">hi", -7, 1) + text("a") + struct.pack(">i", -1)) == {"a"}


@pytest.mark.parametrize(
    "data", [b"", b"\0", struct.pack(">h", -1), ASSIGNMENT_V1[:9], struct.pack(">hi", 0, -1), *ABSURD_TOPICS]
)
def test_bytes_that_mean_nothing(data: bytes) -> None:
    for read in (read_assignment, read_subscription):
        with pytest.raises(ValueError, match="malformed"):
            read(data)


@pytest.mark.parametrize("data", ABSURD_OWNED)
def test_owned_partitions_that_are_not_there(data: bytes) -> None:
    with pytest.raises(ValueError, match="malformed"):
        read_subscription(data)


def test_absurd_counts_do_not_end_a_process_with_little_memory() -> None:
    """kio allocates memory for the announced number of elements, and aborts if it cannot."""
    program = (
        "import resource, sys\n"
        "from kbroker.protocol.consumer_protocol import read_assignment, read_subscribed_topics, "
        "read_subscription\n"
        "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "for data in map(bytes.fromhex, sys.argv[1:]):\n"
        "    for read in (read_assignment, read_subscription, read_subscribed_topics):\n"
        "        try:\n"
        "            read(data)\n"
        "        except ValueError:\n"
        "            pass\n"
        "print('alive')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *(data.hex() for data in ABSURD_TOPICS + ABSURD_OWNED)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "alive\n", done.stderr[-2000:]
