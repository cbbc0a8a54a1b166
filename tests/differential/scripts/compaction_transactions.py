"""Transactions in a compacted log: which batches and markers stay, and what readers get."""

from __future__ import annotations

from kbroker.formats.batches import TRANSACTIONAL, ProducerInfo
from kbroker.formats.compression import Codec
from tests.differential.compaction import CompactedLog, compacted
from tests.differential.script import Session, script
from tests.differential.transactions import describe, produce, transactional


def pass_over(log: CompactedLog, turns: int = 1) -> None:
    """Passes, and the log after each."""
    for turn in range(turns):
        log.put(f"own {turn}")
        log.clean()
        log.show(f"after pass {turn + 1}")
        log.committed()


@script()
def a_committed_transaction(s: Session) -> None:
    for generation in (1, 2):
        log = compacted(s)
        t = transactional(s, f"t{generation}", generation)
        log.put("a", "b", "c")
        log.send(t, "a", "d")
        log.send(t, "b", "d")
        t.ended(True)
        pass_over(log)


@script()
def an_aborted_transaction(s: Session) -> None:
    """Its records go at once; its marker stays as long as one of its batches was there."""
    for generation in (1, 2):
        log = compacted(s)
        t = transactional(s, f"t{generation}", generation)
        log.put("a", "b")
        log.send(t, "a", "c")
        log.send(t, "b")
        t.ended(False)
        pass_over(log, 2)


@script()
def aborted_ones_overwrite_nothing(s: Session) -> None:
    log = compacted(s)
    t = transactional(s)
    log.put("a", "b")
    log.send(t, "a", ("b", None))
    t.ended(False)
    log.put("c")
    pass_over(log)


@script()
def the_marker_of_an_aborted_one_goes(s: Session) -> None:
    log = compacted(s, delete_retention_ms=0)
    t = transactional(s)
    log.send(t, "a")
    t.ended(False)
    log.send(t, "b")
    t.ended(True)
    pass_over(log, 4)


@script()
def the_marker_of_a_committed_one_goes(s: Session) -> None:
    log = compacted(s, delete_retention_ms=0)
    t = transactional(s)
    log.send(t, "a")
    t.ended(True)
    log.send(t, "b")
    t.ended(True)
    log.put("a")
    pass_over(log, 4)


@script()
def the_last_transaction_of_a_producer(s: Session) -> None:
    """Of its data the header stays."""
    for committed in (True, False):
        log = compacted(s, delete_retention_ms=0)
        t = transactional(s, f"t-{committed}")
        log.send(t, "a")
        log.send(t, "a", "b")
        t.ended(committed)
        log.put("a", "b")
        pass_over(log, 4)


@script()
def markers_without_data(s: Session) -> None:
    """Of a producer that wrote nothing else."""
    for generation in (1, 2):
        for committed in (True, False):
            log = compacted(s, delete_retention_ms=0)
            t = transactional(s, f"t{generation}-{committed}", generation)
            log.put("a")
            t.added({log.topic: (0,)})
            t.ended(committed)
            t.added({log.topic: (0,)})
            t.ended(committed)
            log.put("a")
            pass_over(log, 3)


@script()
def interleaved_producers(s: Session) -> None:
    log = compacted(s)
    t, u, v = (transactional(s, name) for name in "tuv")
    for number in range(2):
        for each in (t, u, v):
            log.send(each, "shared", f"{each.on}{number}")
    for each, committed in ((u, False), (t, True), (v, False)):
        each.ended(committed)
    log.put("plain")
    pass_over(log, 2)


@script()
def transactions_of_one_producer(s: Session) -> None:
    log = compacted(s, delete_retention_ms=0)
    t = transactional(s)
    for turn, committed in enumerate((True, False, False, True, False)):
        log.send(t, "a", f"own {turn}")
        log.cut()
        log.send(t, "b")
        t.ended(committed)
    pass_over(log, 3)


@script()
def deletions_in_transactions(s: Session) -> None:
    log = compacted(s, delete_retention_ms=0)
    t = transactional(s)
    log.put("a", "b", "c")
    log.send(t, ("a", None), "d")
    t.ended(True)
    log.send(t, ("b", None))
    t.ended(False)
    pass_over(log, 3)


@script()
def an_aborted_one_over_two_passes(s: Session) -> None:
    """The first pass ends before its last batch: nothing of it is decided yet."""
    log = compacted(s)
    t = transactional(s)
    log.put("a")
    gone = log.put("a")
    log.put("a")
    log.cut()
    log.send(t, "a", "b")
    log.close()
    log.run_until_gone(gone)
    log.show("while it is open")
    log.committed()
    log.send(t, "c")
    t.ended(False)
    pass_over(log, 2)


@script()
def a_transaction_open_over_a_pass(s: Session) -> None:
    log = compacted(s)
    t = transactional(s)
    u = transactional(s, "u")
    log.put("a")
    gone = log.put("a")
    log.put("a")
    log.cut()
    log.send(t, "t")
    log.send(u, "a")
    u.ended(True)
    log.close()
    log.run_until_gone(gone)
    log.committed()
    log.put("t")
    t.ended(True)
    pass_over(log)


@script()
def a_fenced_producer_s_transaction(s: Session) -> None:
    log = compacted(s, delete_retention_ms=0)
    for generation in (1, 2):
        t = transactional(s, f"t{generation}", generation)
        log.send(t, "a", f"fenced {generation}")
        t.prepared()
        log.send(t, "a", f"own {generation}")
        t.ended(True)
    pass_over(log, 3)


@script("BASE-34")
def records_without_a_key(s: Session) -> None:
    """The batch is refused, the transaction remains open."""
    log = compacted(s)
    for generation in (1, 2):
        t = transactional(s, f"t{generation}", generation)
        if generation == 1:
            t.added({log.topic: (0,)})
        t.produce(log.topic, "one", "two")
        describe(s, t.id)
        log.send(t, f"key {generation}")
        t.end(True)
        t.settle()
    log.show()


@script()
def sequences_continue_after_a_pass(s: Session) -> None:
    log = compacted(s)
    t = transactional(s, generation=1)
    log.send(t, "a")
    t.ended(True)
    log.put("a")
    log.clean()
    t.added({log.topic: (0,)})
    first, later = (
        log.batch("b", producer=ProducerInfo(*t.who, sequence), bits=TRANSACTIONAL) for sequence in (1, 7)
    )
    for batch in (first, first, later):
        produce(s, t.id, {log.topic: {0: batch}}, 11, on=t.on)
    t.end(False)
    t.settle()
    log.show()
    log.committed()


@script()
def compressed_batches_of_transactions(s: Session) -> None:
    log = compacted(s)
    t = transactional(s)
    for codec in Codec:
        log.send(t, f"gone {codec}", f"stays {codec}", codec=codec)
    t.ended(True)
    for codec in Codec:
        log.send(t, f"aborted {codec}", codec=codec)
    t.ended(False)
    log.put(*(f"gone {codec}" for codec in Codec))
    pass_over(log)
