"""ApiVersions (18), v0-5: the table of kbroker.api as ranges, and the features.

Only this API answers an unsupported version: with a v0 body, code 35 and its own range (KIP-511).
An empty or malformed client software name or version is INVALID_REQUEST without ranges. So is a
cluster id without a node id, or the reverse (v5, KIP-1242); if one of them is wrong, the answer is
REBOOTSTRAP_REQUIRED, also without ranges.

Supported features whose minimum is 0 are left out below v4, since older Java clients refuse them
(KAFKA-17492). Features of kbroker's own are supported ones only: nothing about them is finalised.
"""

from __future__ import annotations

import re
from typing import Any

from kbroker.api import APIS
from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode
from kbroker.protocol.messages import encode_response
from kbroker.protocol.reject_reasons import FEATURE

API_KEY = 18
SHARE_VERSION = 2
_NO_NODE = -1
_NAMES_BROKER_FROM = 5
FEATURES = (
    # name, lowest and highest level supported, level finalised
    ("metadata.version", 7, 33, 33),
    ("group.version", 0, 1, 1),
    ("share.version", 0, 2, SHARE_VERSION),
    ("transaction.version", 0, 2, 2),
)
OWN_FEATURES = (
    # name, lowest and highest level supported
    (FEATURE, 1, 1),
)
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(request: Request) -> Message:
    if code := _refusal(request):
        return {"error_code": code, "api_keys": (), "throttle_time": 0}
    return {
        "error_code": ErrorCode.none,
        "api_keys": [
            {"api_key": api.key, "min_version": api.first, "max_version": api.last}
            for api in APIS.values()
            if api.listed
        ],
        "throttle_time": 0,
        "supported_features": [
            {"name": name, "min_version": first, "max_version": last}
            for name, first, last in (*(feature[:3] for feature in FEATURES), *OWN_FEATURES)
            if first > 0 or request.version >= 4
        ],
        "finalized_features_epoch": request.broker.generation,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, _, _, level in FEATURES
        ],
        "zk_migration_ready": False,
    }


def unsupported_version() -> bytes:
    """The v0 body for a version that is not served."""
    own = APIS[API_KEY]
    row = {"api_key": own.key, "min_version": own.first, "max_version": own.last}
    return encode_response(API_KEY, 0, {"error_code": ErrorCode.unsupported_version, "api_keys": [row]})


def _refusal(request: Request) -> ErrorCode:
    body, broker = request.body, request.broker
    if request.version >= 3 and not _software_is_named(body):
        return ErrorCode.invalid_request
    if request.version < _NAMES_BROKER_FROM or (body.cluster_id, body.node_id) == (None, _NO_NODE):
        return ErrorCode.none
    if body.cluster_id is None or body.node_id == _NO_NODE:
        return ErrorCode.invalid_request
    is_this = (body.cluster_id, body.node_id) == (broker.cluster_id, broker.node_id)
    return ErrorCode.none if is_this else ErrorCode.rebootstrap_required


def _software_is_named(body: Any) -> bool:
    return all(
        _SOFTWARE.fullmatch(text) for text in (body.client_software_name, body.client_software_version)
    )
