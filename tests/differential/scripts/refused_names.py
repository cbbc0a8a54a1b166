"""Metadata that may create topics, for names whose CreateTopics was refused for their settings."""

from __future__ import annotations

import time

from tests.differential.scripts.base_topics import create, wanted
from tests.differential.secured import Secured, secured_script

_WAIT_S = 3.0
"""Kafka creates a topic after its answer; a topic that is missing for so long is not created."""


def becomes(s: Secured, name: str) -> str:
    """The code of the first answer that is not 3, or of the last one."""
    rows = [{"topic_id": None, "name": name}]
    deadline = time.monotonic() + _WAIT_S
    while True:
        answer = s.prepare("metadata", 12, topics=rows, allow_auto_topic_creation=True,
                           include_topic_authorized_operations=False)  # fmt: skip
        code = answer.topics[0].error_code.name
        if code not in ("unknown_topic_or_partition", "leader_not_available") or time.monotonic() > deadline:
            return str(code)
        time.sleep(0.05)


@secured_script("BASE-72", seconds=_WAIT_S)
def metadata_after_a_refused_creation(s: Secured) -> None:
    name = f"{s.name}-refused"
    create(s, wanted(name, retention_ms="-1", file_delete_delay_ms="-1"))
    s.note("asked for", becomes(s, name))


@secured_script("BASE-72", seconds=_WAIT_S)
def metadata_after_refused_replicas(s: Secured) -> None:
    """Of a topic with settings, and of one without."""
    one, two = (f"{s.name}-{end}" for end in ("one", "two"))
    create(s, wanted(one, replicas=3, retention_ms="-1"), wanted(two, replicas=3))
    for name in (one, two):
        s.note("asked for", becomes(s, name))


@secured_script("BASE-72")
def metadata_after_other_refusals(s: Secured) -> None:
    """Of a dry run, for another reason than settings, and followed by a success."""
    one, two, three = (f"{s.name}-{end}" for end in ("one", "two", "three"))
    create(s, wanted(one, segment_jitter_ms="-1"), validate_only=True)
    create(s, wanted(two, partitions=0))
    create(s, wanted(three, segment_jitter_ms="-1"))
    create(s, wanted(three, segment_jitter_ms="1"))
    for name in (one, two, three):
        s.note("asked for", becomes(s, name))
