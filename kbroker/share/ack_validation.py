"""Checks the acknowledgement batches of one partition before its records are looked at (KIP-932,
ShareAcknowledge).

Batches are checked in order, and the first that fails decides: the partition's row gets
INVALID_REQUEST without a message, while other partitions of the request proceed. Whether the
records are acquired is the share-partition's decision.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.effects import AckBatch
from kbroker.share.rules import Event

RENEW_SINCE_VERSION = 2
"""ShareFetch and ShareAcknowledge have RENEW from this version on."""


_WITHOUT_RENEW = bytes(range(Event.RENEW))
_WITH_RENEW = bytes(range(Event.RENEW + 1))


def pack_types(types: Sequence[int]) -> bytes:
    """Acknowledge types, 8-bit numbers, as bytes, which are quick to search. Negative ones become
    unknown types."""
    try:
        return bytes(types)
    except ValueError:
        return array("b", types).tobytes()


def check_ack_batches(batches: Iterable[AckBatch], *, version: int, is_renew_ack: bool) -> None:
    """Raises KafkaError(invalid_request) without a message. `version` is the request's,
    `is_renew_ack` its flag (false in v1).

    A batch may begin at the last offset of the one before: released Kafka allows that, and finds
    the record taken afterwards. It may also begin at -1, which counts as "the start offset lies
    inside the batch".
    """
    known = _WITH_RENEW if is_renew_ack and version >= RENEW_SINCE_VERSION else _WITHOUT_RENEW
    previous_last = -1
    for first, last, types in batches:
        size = last - first + 1
        count = len(types)
        in_order = size >= 1 and first >= previous_last
        if not in_order or count == 0 or (count > 1 and count != size):
            raise KafkaError(ErrorCode.invalid_request)
        if (types if type(types) is bytes else pack_types(types)).translate(None, known):
            raise KafkaError(ErrorCode.invalid_request)
        previous_last = last
