"""Acknowledgement batches that are refused before any record is checked: INVALID_REQUEST without a
message."""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode, KafkaError
from kbroker.share.ack_validation import check_ack_batches
from tests.share.queue_driver import ACCEPT, GAP, REJECT, RELEASE, RENEW, ack

REFUSED = {
    "upside down": [ack(5, 4, ACCEPT)],
    "before the one before": [ack(0, 4, ACCEPT), ack(3, 6, ACCEPT)],
    "out of order": [ack(10, 14, ACCEPT), ack(0, 4, ACCEPT)],
    "no types": [ack(0, 4)],
    "too few types": [ack(0, 4, ACCEPT, ACCEPT)],
    "too many types": [ack(0, 1, ACCEPT, ACCEPT, ACCEPT)],
    "negative type": [ack(0, 1, ACCEPT, -1)],
    "unknown type": [ack(0, 0, 5)],
    "below -1": [ack(-2, 3, ACCEPT)],
    "second batch wrong": [ack(0, 4, ACCEPT), ack(5, 9)],
}

ALLOWED = {
    "nothing": [],
    "one type for all": [ack(0, 499, RELEASE)],
    "one per offset": [ack(0, 3, GAP, ACCEPT, RELEASE, REJECT)],
    "single offset": [ack(7, 7, ACCEPT)],
    "first equals previous last": [ack(0, 4, ACCEPT), ack(4, 6, ACCEPT)],  # detected later, by the records
    "from -1": [ack(-1, 3, ACCEPT)],
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("batches", REFUSED.values(), ids=REFUSED)
def test_refused(batches: list, version: int) -> None:  # RPC-25..30
    with pytest.raises(KafkaError) as caught:
        check_ack_batches(batches, version=version, is_renew_ack=False)
    assert caught.value.code is ErrorCode.invalid_request
    assert caught.value.message is None


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("batches", ALLOWED.values(), ids=ALLOWED)
def test_allowed(batches: list, version: int) -> None:  # RPC-27, RPC-28
    check_ack_batches(batches, version=version, is_renew_ack=False)


@pytest.mark.parametrize(
    ("version", "is_renew_ack", "types", "passes"),
    [
        (1, False, (RENEW,), False),
        (1, True, (RENEW,), False),
        (2, False, (RENEW,), False),
        (2, False, (ACCEPT, RENEW), False),
        (2, True, (RENEW,), True),
        (3, True, (RENEW,), True),
        (2, True, (ACCEPT, RENEW), True),
        (2, True, (ACCEPT,), True),
    ],
)
def test_renew(version: int, is_renew_ack: bool, types: tuple[int, ...], passes: bool) -> None:  # RPC-31..33
    """RENEW needs version 2 and the flag; the flag does not forbid the other types."""
    batches = [ack(0, len(types) - 1, *types)]
    if passes:
        check_ack_batches(batches, version=version, is_renew_ack=is_renew_ack)
    else:
        with pytest.raises(KafkaError):
            check_ack_batches(batches, version=version, is_renew_ack=is_renew_ack)
