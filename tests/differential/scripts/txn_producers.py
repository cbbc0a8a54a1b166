"""InitProducerId with a transactional id: versions, time-outs, epochs, and fences."""

from __future__ import annotations

import struct

from tests.differential.script import Session, script
from tests.differential.scripts.base_other import framed, header, sent
from tests.differential.transactions import ADMIN, LOG, describe, fresh, init, transactional

WITH_EPOCH = (3, 4, 5)
"""Versions of InitProducerId in which a producer names itself."""


@script()
def new_ids_in_each_version(s: Session) -> None:
    for version in range(6):
        t = fresh(s, f"t{version}")
        t.init(version)
        t.init(version)
        describe(s, t.id)


@script("BASE-1")
def versions_that_are_not_served(s: Session) -> None:
    for key, version in (
        (22, 6), (22, 7), (24, 6), (25, 5), (26, 6), (27, 0), (27, 3), (28, 6), (61, 1), (65, 1), (66, 3),
    ):  # fmt: skip
        sent(s, f"API {key} in version {version}", framed(header(key, version, flexible=True)))


@script("BASE-1")
def a_complete_request_in_version_6(s: Session) -> None:
    """With the two fields of KIP-939, which clients of Kafka 4.2 and later know."""
    name = f"{s.name}-t".encode()
    body = bytes((len(name) + 1,)) + name + struct.pack(">iqh??b", 60_000, -1, -1, False, False, 0)
    for version in (6, 5):
        # Without the two, version 5 has the same fields.
        end = body if version == 6 else body[:-3] + body[-1:]
        sent(s, f"InitProducerId in version {version}", framed(header(22, version, flexible=True) + end))


@script("BASE-1")
def versions_that_are_served(s: Session) -> None:
    answer = s.prepare("api_versions", 3, client_software_name="kbroker", client_software_version="1")
    rows = {row.api_key: [row.min_version, row.max_version] for row in answer.api_keys}
    for key in (10, 22, 24, 25, 26, 27, 28, 61, 65, 66):
        s.note(f"API {key}", rows.get(key))


@script("BASE-41")
def an_empty_id(s: Session) -> None:
    for version in range(6):
        init(s, "", version)
    init(s, "", 5, timeout_ms=0)
    init(s, "", 5, who=(7, -1))
    init(s, "", 5, who=(7, 0))


@script("BASE-42")
def times_that_are_out_of_bounds(s: Session) -> None:
    t = fresh(s)
    for timeout_ms in (0, -1, -(1 << 31), 900_001, (1 << 31) - 1, 1, 900_000):
        t.init(timeout_ms=timeout_ms)
    for version in (0, 3):
        t.init(version, timeout_ms=0)
        t.init(version, timeout_ms=900_001)
    describe(s, t.id)
    t.init(timeout_ms=0, who=(t.producer_id, 9))


@script()
def the_newest_time_counts(s: Session) -> None:
    t = fresh(s)
    for timeout_ms in (60_000, 5_000, 70_000):
        t.init(timeout_ms=timeout_ms)
        describe(s, t.id)
    t.init(timeout_ms=8_000, who=t.who)
    describe(s, t.id)
    t.init(timeout_ms=9_000, who=(t.producer_id, t.epoch - 1))
    describe(s, t.id)


@script("BASE-41")
def only_one_of_id_and_epoch(s: Session) -> None:
    t = transactional(s)
    for version in WITH_EPOCH:
        for who in ((t.producer_id, -1), (-1, 0), (-2, 0), (t.producer_id, -2), (-2, -2)):
            init(s, t.id, version, who=who)
    init(s, None, 5, who=(-1, 0))
    init(s, None, 5, who=(7, -1))


@script()
def without_a_transactional_id(s: Session) -> None:
    for version in range(6):
        init(s, None, version)
    for timeout_ms in (0, -1, (1 << 31) - 1):
        init(s, None, timeout_ms=timeout_ms)
    answer = init(s, None)
    init(s, None, who=(answer.producer_id, 0))
    init(s, None, who=(1 << 40, 7))


@script("BASE-42")
def own_epochs(s: Session) -> None:
    t = transactional(s)
    first = t.who
    t.init(who=first)
    t.init(who=first)
    t.init(who=t.who)
    t.init(who=first)
    t.init(who=(t.producer_id, t.epoch + 1))
    t.init(who=(t.producer_id, 32_767))
    t.init(who=t.who)
    t.init()
    describe(s, t.id)


@script("BASE-42")
def the_wrong_producer(s: Session) -> None:
    t, other = transactional(s), transactional(s, "other")
    for version in WITH_EPOCH:
        init(s, t.id, version, who=other.who)
        init(s, t.id, version, who=(t.producer_id, 5))
        init(s, t.id, version, who=(1 << 40, 0))
    describe(s, t.id)


@script("BASE-42")
def ids_that_are_unknown_with_a_producer(s: Session) -> None:
    other = transactional(s, "other")
    for version in WITH_EPOCH:
        t = fresh(s, f"t{version}")
        init(s, t.id, version, who=other.who)
        init(s, t.id, version, who=(1 << 40, 3))
        describe(s, t.id)


@script()
def ids_with_odd_characters(s: Session) -> None:
    for index, name in enumerate((" ", "a b", "a/b", "ä€", ".", "\t", "x" * 200)):
        t = fresh(s, name)
        t.init()
        describe(s, t.id)
        topic = s.topic(**LOG)
        t.send(topic, f"v{index}")
        t.end(True)


@script("BASE-42")
def a_second_instance(s: Session) -> None:
    topic = s.topic(**LOG)
    for generation in (1, 2):
        first = transactional(s, f"t{generation}", generation)
        second = fresh(s, f"t{generation}", generation)
        second.init()
        first.produce(topic, "late")
        first.add({topic: (0,)})
        first.add_offsets(f"{s.name}-g")
        first.end(True)
        first.end(False)
        init(s, first.id, who=first.who)
        second.send(topic, "mine")
        second.end(True)
        second.settle()
        describe(s, first.id)


@script()
def an_open_transaction_is_aborted(s: Session) -> None:
    topic = s.topic(**LOG)
    for generation in (1, 2):
        first = transactional(s, f"t{generation}", generation)
        first.send(topic, "open")
        second = fresh(s, f"t{generation}", generation)
        second.init()
        second.settle()
        describe(s, first.id)
        first.produce(topic, "late")
        first.end(True)
        first.end(False)
        second.init()
        describe(s, first.id)


@script()
def its_own_open_transaction_is_aborted(s: Session) -> None:
    topic = s.topic(**LOG)
    for generation in (1, 2):
        t = transactional(s, f"t{generation}", generation)
        t.send(topic, "open")
        t.init(who=t.who)
        t.settle()
        describe(s, t.id)
        t.init(who=t.who)
        describe(s, t.id)


@script()
def with_the_own_epoch_after_an_end(s: Session) -> None:
    topic = s.topic(**LOG)
    for generation in (1, 2):
        for committed in (True, False):
            t = transactional(s, f"t{generation}-{committed}", generation)
            before = t.who
            t.send(topic, "one")
            t.ended(committed)
            s.note("epoch", t.epoch)
            init(s, t.id, who=before)
            init(s, t.id, who=t.who)
            describe(s, t.id)


@script()
def the_versions_of_a_fenced_producer(s: Session) -> None:
    t = transactional(s)
    first = t.who
    t.init()
    for version in WITH_EPOCH:
        init(s, t.id, version, who=first)


@script()
def between_the_generations(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s)
    for generation in (1, 2, 1, 2):
        t.generation = generation
        t.send(topic, "one")
        t.end(True)
        t.settle()
        t.init(who=t.who)
        describe(s, t.id)


@script()
def coordinators_of_ids(s: Session) -> None:
    t = transactional(s)
    for version in range(1, 7):
        if version < 4:
            s.call("find_coordinator", version, on=ADMIN, key=t.id, key_type=1)
            s.call("find_coordinator", version, on=ADMIN, key="", key_type=1)
        else:
            s.call(
                "find_coordinator", version, on=ADMIN, key_type=1, coordinator_keys=[t.id, "", f"{s.name}-x"]
            )
            s.call("find_coordinator", version, on=ADMIN, key_type=1, coordinator_keys=[])
            s.call("find_coordinator", version, on=ADMIN, key_type=1, coordinator_keys=[t.id, t.id])


@script()
def requests_over_another_connection(s: Session) -> None:
    topic = s.topic(**LOG)
    t = transactional(s)
    t.send(topic, "one")
    s.disconnect(t.on)
    describe(s, t.id)
    t.on = "elsewhere"
    t.produce(topic, "two")
    t.end(True)
    t.settle()
    describe(s, t.id)
