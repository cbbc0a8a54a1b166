"""Values of records: the same in every run and for every broker."""

from __future__ import annotations

import random

POOL_BYTES = 2_000_000
"""More than a batch has, so that no batch contains a record twice: a codec would compress the
repetition."""
_SEED = 20
_RANDOM_SHARE = 3
_TEXT = (
    b'{"customer": "jones", "article": "a pound of tea", "currency": "EUR", "state": "paid", '
    b'"comment": "none"}, '
)


def values(record_bytes: int) -> list[bytes]:
    """Different values of this size. A third of each is random and the rest is the same in all, so
    lz4 compresses them to a third."""
    source = random.Random(_SEED)
    random_bytes = -(-record_bytes // _RANDOM_SHARE)
    rest = (_TEXT * (record_bytes // len(_TEXT) + 1))[: record_bytes - random_bytes]
    return [
        source.randbytes(random_bytes) + rest
        for _ in range(min(20_000, max(100, POOL_BYTES // max(1, record_bytes))))
    ]


def chunks(record_bytes: int, chunk_records: int) -> list[list[dict[str, bytes]]]:
    """The same, as arguments of Producer.produce_batch."""
    messages = [{"value": value} for value in values(record_bytes)]
    whole = len(messages) // chunk_records * chunk_records
    return [messages[at : at + chunk_records] for at in range(0, whole, chunk_records)]
