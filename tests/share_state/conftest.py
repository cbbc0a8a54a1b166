"""A share coordinator for each test."""

from __future__ import annotations

import pytest

from kbroker.errors import ErrorCode
from tests.share_state.coordinator_driver import Share


@pytest.fixture
def share() -> Share:
    share = Share()
    assert share.initialize(5, 100).code is ErrorCode.none
    assert share.read(7).code is ErrorCode.none
    return share
