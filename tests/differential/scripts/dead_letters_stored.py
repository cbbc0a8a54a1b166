"""Records that a leader finds as ARCHIVING in the stored state, as after a crash: scripts write
that state through the share coordinator, before the first client uses the share-partition."""

from __future__ import annotations

from collections.abc import Sequence

from tests.differential.dead_letters import ARCHIVING, Queue, leader_epoch, letter_name, letter_topic
from tests.differential.script import ACCEPT, Session, script
from tests.differential.scripts.share_state import ACKNOWLEDGED, ARCHIVED, AVAILABLE

Batches = Sequence[tuple[int, int, int, int]]


def stored(
    s: Session,
    *batches: tuple[int, int, int, int],
    letters: str | None = None,
    copies: bool = False,
    **group: str,
) -> Queue:
    """A group without sessions over a topic with the records "0" to "7". Its stored state has these
    batches: first and last offset, state, delivery count."""
    if letters is None:
        letters = letter_topic(s).name
    topic = s.topic()
    settings = {
        "errors_deadletterqueue_topic_name": letters,
        "errors_deadletterqueue_copy_record_enable": str(copies).lower(),
    }
    group_id = s.group(**{**settings, **group})
    s.join(group_id, "m", topic)
    q = Queue(s, topic, s.member(group_id), letters)
    q.put(*(f"{index}" for index in range(8)))
    write(q, batches)
    return q


def write(q: Queue, batches: Batches) -> None:
    """Retried: Kafka initializes a share-partition after the heartbeat's answer."""
    rows = [
        {"first_offset": a, "last_offset": b, "delivery_state": state, "delivery_count": count}
        for a, b, state, count in batches
    ]
    epoch = leader_epoch(q.s, q.topic)

    def written() -> bool:
        (read,) = _call(q, "read_share_group_state", 0, {"leader_epoch": epoch})
        if read.error_code.value:
            return False
        values = {
            "state_epoch": read.state_epoch, "leader_epoch": epoch, "start_offset": 0, "state_batches": rows,
            "delivery_complete_count": 0,
        }  # fmt: skip
        (row,) = _call(q, "write_share_group_state", 1, values)
        return not row.error_code.value

    q.s.until(written, "the state is written")


def _call(q: Queue, api: str, version: int, row: dict[str, object]) -> Sequence:
    topics = [{"topic_id": q.topic.topic_id, "partitions": [{"partition": 0, **row}]}]
    return q.s.prepare(api, version, group_id=q.group, topics=topics).results[0].partitions


def loaded(q: Queue) -> None:
    """Steps: the first fetch of a client, which loads the share-partition, and what follows."""
    q.fetch(wait_ms=5_000)
    q.outcome()


@script("DLQ-20", "DLQ-19")
def below_the_limit(s: Session) -> None:
    loaded(stored(s, (0, 3, ARCHIVING, 2)))


@script("DLQ-20", "DLQ-19")
def at_the_limit(s: Session) -> None:
    loaded(stored(s, (0, 1, ARCHIVING, 5), (2, 3, ARCHIVING, 6), (4, 4, ARCHIVING, 4)))


@script("DLQ-20")
def above_a_limit_that_was_lowered(s: Session) -> None:
    q = stored(s, (0, 1, ARCHIVING, 3), (2, 3, ARCHIVING, 1))
    q.configure(share_delivery_count_limit="2")
    loaded(q)


@script("DLQ-20")
def below_a_limit_that_was_raised(s: Session) -> None:
    q = stored(s, (0, 1, ARCHIVING, 5), share_delivery_count_limit="5")
    q.configure(share_delivery_count_limit="10")
    loaded(q)


@script("DLQ-20", "DLQ-8", "LOAD-17")
def without_a_name(s: Session) -> None:
    q = stored(s, (0, 3, ARCHIVING, 2))
    q.configure(errors_deadletterqueue_topic_name="")
    loaded(q)


@script("DLQ-20", "DLQ-8")
def without_a_topic(s: Session) -> None:
    loaded(stored(s, (0, 3, ARCHIVING, 2), letters=letter_name(s)))


@script("DLQ-20", "DLQ-8")
def a_topic_that_is_not_for_letters(s: Session) -> None:
    loaded(stored(s, (0, 3, ARCHIVING, 2), letters=s.topic(name=letter_name(s)).name))


@script("DLQ-20", "DLQ-26")
def with_copies(s: Session) -> None:
    loaded(stored(s, (1, 2, ARCHIVING, 1), copies=True))


@script("DLQ-20", "DLQ-19")
def between_others(s: Session) -> None:
    q = stored(
        s, (0, 0, AVAILABLE, 1), (1, 2, ARCHIVING, 1), (3, 3, ACKNOWLEDGED, 1), (4, 4, ARCHIVED, 1),
        (5, 5, ARCHIVING, 5),
    )  # fmt: skip
    loaded(q)
    q.acknowledge((0, 0, [ACCEPT]), (6, 7, [ACCEPT]))
    q.outcome()
    q.state()


@script("DLQ-20", "DLQ-19")
def behind_the_end_of_the_log(s: Session) -> None:
    loaded(stored(s, (6, 7, ARCHIVING, 1)))


@script("DLQ-20")
def everything(s: Session) -> None:
    q = stored(s, (0, 7, ARCHIVING, 1))
    q.fetch(wait_ms=500)
    q.settle()
    q.put("next")
    q.fetch(wait_ms=5_000)
    q.acknowledge((8, 8, [ACCEPT]))
    q.outcome()
    q.state()
