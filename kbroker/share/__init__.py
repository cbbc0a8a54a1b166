"""Share groups, pure (KIP-932): which member holds which record, and what becomes of it.

    share_partition.py    a queue: one share group over one topic partition. Begin here.
      rules.py              what becomes of a record: every rule of its life
      record_state.py       its states, and their codes in the window
      in_flight.py          the window of records in flight, over columns.py and locks.py
      saves.py              writes under way, and what waits for the next one
      offers.py             what a member could get now
      acquire.py            which records a fetch gets; throttle.py near the delivery limit
      acknowledge.py        accept, release, reject, renew; ack_validation.py comes before it
      redelivery.py         delays before a record is delivered again
      archiving.py          records on their way to the dead letter queue; dead_letter.py
      scanning.py           records that are examined before members get them
      ordering.py           one record of a key at a time, by key_order.py
      log_start.py          the log's start moves: records are finished, or kept beside the log
    parking.py            records that wait outside the window, in the store; parked.py
      returned.py           the window of those that are due; returning.py: members get them
      row_writes.py         what a write saves of them
    session.py            share sessions: the partitions of a member, and its epochs
    persister.py          the SPI that saves all this; state_batches.py merges saved batches
    effects.py            the values that go in and out
    lag.py                how much of a log a group has not finished

Nothing here does I/O, waits, or reads a clock: time is an argument. `broker/queues/` carries out
the decisions, and `share_state/` decides how they are stored.
"""
