"""What is wrong with the acknowledgement batches of one partition before anybody looks at the records (KIP-932, ShareAcknowledge).

Checked per partition and in order; the first failing batch decides, and the partition's row is answered INVALID_REQUEST without a
message while other partitions of the request go on. It knows no records: whether they are acquired is the share-partition's.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.effects import AckBatch
from kbroker.share.record_state import Event

RENEW_SINCE_VERSION = 2
"""ShareFetch and ShareAcknowledge know RENEW from this version on."""


def check_ack_batches(batches: Iterable[AckBatch], *, version: int, is_renew_ack: bool) -> None:
    """Raises KafkaError(invalid_request) without a message. `version` is the request's, `is_renew_ack` its flag (false in v1).

    A batch may begin at the last offset of the one before: released Kafka lets that pass, and the record is found to be taken
    afterwards. It may also begin at -1, which then counts as "the start offset lies inside the batch".
    """
    highest_type = Event.RENEW if version >= RENEW_SINCE_VERSION else Event.REJECT
    previous_last = -1
    for first, last, types in batches:
        size = last - first + 1
        count = len(types)
        in_order = size >= 1 and first >= previous_last
        if not in_order or count == 0 or (count > 1 and count != size):
            raise KafkaError(ErrorCode.invalid_request)
        if min(types) < Event.GAP or max(types) > highest_type or (not is_renew_ack and Event.RENEW in types):
            raise KafkaError(ErrorCode.invalid_request)
        previous_last = last
