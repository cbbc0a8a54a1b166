"""Classic members of consumer groups, for scripts: the content of JoinGroup and SyncGroup that real
consumers send and brokers parse.

ConsumerProtocolSubscription and ConsumerProtocolAssignment: a version (2 bytes), then arrays and
strings of the oldest encoding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.differential.classic import ClassicMember, classic_group, strings, until_state
from tests.differential.consumers import wait_for_partitions
from tests.differential.script import Session, Topic, Value

NO_BYTES = b"\xff\xff\xff\xff"
Owned = Mapping[Topic, Sequence[int]]


def topics_and_partitions(owned: Owned) -> bytes:
    rows = [
        _string(topic.name) + _int(len(which)) + b"".join(map(_int, which)) for topic, which in owned.items()
    ]
    return _int(len(rows)) + b"".join(rows)


def subscribed(
    *topics: Topic,
    owned: Owned | None = None,
    generation: int = -1,
    version: int = 3,
    rack: str | None = None,
) -> bytes:
    """ConsumerProtocolSubscription without user data."""
    data = version.to_bytes(2, "big") + strings(*(topic.name for topic in topics)) + NO_BYTES
    if version >= 1:
        data += topics_and_partitions(owned or {})
    if version >= 2:
        data += _int(generation)
    if version >= 3:
        data += b"\xff\xff" if rack is None else _string(rack)
    return data


def assigned(owned: Owned, version: int = 3) -> bytes:
    """ConsumerProtocolAssignment without user data."""
    return version.to_bytes(2, "big") + topics_and_partitions(owned) + NO_BYTES


def offered(metadata: bytes, *names: str) -> list[dict[str, Value]]:
    return [{"name": name, "metadata": metadata} for name in names or ("range",)]


def classic_with(
    s: Session, topic: Topic, *names: str, instance_id: str | None = None, **how: int
) -> ClassicMember:
    """The only member, named a, of a stable classic group g: it has all partitions of a topic with
    two. Not part of the transcript."""
    group = classic_group(s)
    wait_for_partitions(s, group, topic)
    member = ClassicMember(s, group, "a", instance_id=instance_id, **how)
    answer = member.enter(protocols=offered(subscribed(topic), *names))()
    if answer.error_code.value:
        raise AssertionError(f"{s.name}: {answer.error_code.name}")
    share = {"member_id": member.member_id, "assignment": assigned({topic: [0, 1]})}
    member.sync(quiet=True, assignments=[share])
    until_state(s, group, "Stable", 1)
    return member


def _int(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def _string(value: str) -> bytes:
    return len(value).to_bytes(2, "big") + value.encode()
