"""Records without a value: how long a compacted log keeps them."""

from __future__ import annotations

from kbroker.formats.batches import ProducerInfo
from kbroker.formats.compression import Codec
from tests.differential.compaction import compacted
from tests.differential.script import Session, script
from tests.differential.scripts.compaction_layout import producer


@script()
def the_first_pass_sets_the_horizon(s: Session) -> None:
    log = compacted(s)
    log.put("a", "b", "c")
    log.put(("a", None), "d", ("b", None), times=(300, 100, 200))
    log.clean()
    log.show()


@script()
def within_the_retention_they_stay(s: Session) -> None:
    log = compacted(s)
    log.put("a", "b")
    log.put(("a", None))
    log.clean()
    for turn in range(2):
        log.put(f"turn {turn}")
        log.clean()
        log.show(f"after pass {turn + 2}")


@script()
def they_go_after_the_retention(s: Session) -> None:
    log = compacted(s, delete_retention_ms=0)
    log.put("a", "b", "c")
    log.put(("a", None), "d", ("b", None))
    log.put(("c", None))
    log.clean()
    log.show()
    log.put("e")
    log.clean()
    log.show("after another pass")


@script()
def the_retention_is_that_of_the_first_pass(s: Session) -> None:
    """A lower one later does not concern a batch that has a horizon."""
    log = compacted(s)
    log.put("a", "b")
    log.put(("a", None))
    log.clean()
    log.alter(delete_retention_ms="0")
    log.put(("b", None))
    log.clean()
    log.show()
    log.put("c")
    log.clean()
    log.show("after another pass")


@script()
def overwritten_ones_go_at_once(s: Session) -> None:
    log = compacted(s)
    log.put("a")
    log.put(("a", None), ("b", None))
    log.put("a")
    log.put(("b", None))
    log.put(("b", None), "c")
    log.clean()
    log.show()


@script()
def a_key_comes_back(s: Session) -> None:
    log = compacted(s)
    log.put("a")
    log.put(("a", None), "b")
    log.clean()
    log.put("a")
    log.clean()
    log.show()
    log.put(("a", None))
    log.clean()
    log.show("after another pass")


@script()
def of_keys_that_never_were(s: Session) -> None:
    log = compacted(s, delete_retention_ms=0)
    log.put(("a", None), ("b", None))
    log.clean()
    log.show()
    log.put("c")
    log.clean()
    log.show("after another pass")


@script()
def a_batch_keeps_its_horizon_when_it_loses_records(s: Session) -> None:
    log = compacted(s)
    log.put("a", ("b", None), "c", ("d", None), times=(10, 0, 500, 20))
    log.clean()
    log.show()
    log.put("a", "d", "c")
    log.clean()
    log.show("after another pass")


@script()
def codecs_with_a_horizon(s: Session) -> None:
    log = compacted(s)
    for codec in Codec:
        log.put(f"gone {codec}", (f"deleted {codec}", None), f"stays {codec}", codec=codec)
    log.put(*(f"gone {codec}" for codec in Codec))
    log.clean()
    log.show()


@script()
def times_of_the_broker_with_a_horizon(s: Session) -> None:
    log = compacted(s, message_timestamp_type="LogAppendTime")
    gone = log.put("a", ("b", None), "c")
    log.put("a")
    log.close()
    log.run_until_gone(gone)
    log.show()


@script()
def the_last_batch_of_a_producer_was_deleted(s: Session) -> None:
    log = compacted(s, delete_retention_ms=0)
    log.put("a", producer=producer(s, 0))
    log.put(("a", None), producer=producer(s, 1))
    log.clean()
    log.show()
    log.put("b")
    log.clean()
    log.show("after another pass")


@script()
def a_horizon_far_ahead(s: Session) -> None:
    log = compacted(s, delete_retention_ms=(1 << 63) - 1)
    log.put("a", ("b", None))
    log.put("a")
    log.clean()
    s.note("layout", [{**row, "base_time": "a horizon"} for row in log.batches()])


@script()
def headers_with_a_horizon(s: Session) -> None:
    log = compacted(s)
    log.put("a", ("b", None), headers=(("h", b"1"), ("n", None)))
    log.put(("", None), ("a", ""), producer=ProducerInfo())
    log.clean()
    log.show()
