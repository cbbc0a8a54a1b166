"""Fewer records per response near the delivery limit (KAFKA-17541), so that one poison record does
not exhaust its neighbours as well.

    delivered so far               3      4      5      6      7      8      9 times
    limit 5,  batch of 500       250  alone                                          records at once
    limit 10, batch of 500                     250    125     62     31  alone

With a limit of 2, Kafka does not deliver the last attempt alone. Groups with queue settings
(`is_queue` of ShareSettings) do: there a worker that dies twice gives up one record.

Pure arithmetic over two columns of the in-flight window; it changes nothing.
"""

from __future__ import annotations

from kbroker.share.effects import ShareSettings
from kbroker.share.record_state import AVAILABLE
from kbroker.share.rules import alone_from, suspect_from


def has_reached(states: bytearray, counts: bytearray, i: int, j: int, delivery_count: int) -> bool:
    """True if an AVAILABLE record among column indexes i..j-1 has that count, or a higher one."""
    if j - i == 1:
        return states[i] == AVAILABLE and counts[i] >= delivery_count
    chunk = counts[i:j]
    if not chunk.translate(None, bytes(range(min(delivery_count, 256)))):
        return False
    return any(
        state == AVAILABLE and count >= delivery_count
        for state, count in zip(states[i:j], chunk, strict=True)
    )


def pick(
    states: bytearray,
    counts: bytearray,
    i: int,
    j: int,
    settings: ShareSettings,
    *,
    batch_size: int,
    room: int,
) -> list[tuple[int, int]]:
    """Which AVAILABLE records of i..j-1 to deliver now, as index runs [start, stop) of equal
    delivery count.

    - At most `room` records.
    - From the first suspect one on, at most batch_size >> n, where n grows with its count.
      `batch_size` is the size of the whole cached batch.
    - A record that is on its last attempt is delivered alone.
    """
    suspect, last_attempt = suspect_from(settings), alone_from(settings)
    picked: list[tuple[int, int]] = []
    taken, halved = 0, False
    for k in range(i, j):
        if states[k] != AVAILABLE:
            continue
        count = counts[k]
        if taken >= room or (count == last_attempt and taken):
            break
        if count >= suspect and not halved:
            halved, room = True, min(room, max(1, batch_size >> (count - suspect + 1)))
            if taken >= room:
                break
        if picked and picked[-1][1] == k and counts[k - 1] == count:
            picked[-1] = (picked[-1][0], k + 1)
        else:
            picked.append((k, k + 1))
        taken += 1
        if count == last_attempt:
            break
    return picked
