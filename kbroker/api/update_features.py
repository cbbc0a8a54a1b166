"""UpdateFeatures (57), v0-2 (KIP-584, KIP-778): levels of features. kbroker's are fixed: the levels
that ApiVersions calls final are done, and nothing ever changes.

One feature with another level, an unknown feature or an unknown type of update refuses the request
as a whole (95), with a message that names the feature.

With an authorizer it needs ALTER on the cluster (31).

Not done: the request's timeout.
"""

from __future__ import annotations

from typing import Any, Final

from kbroker.api.api_versions import FEATURES
from kbroker.api.authorization import allows_on_cluster, refusal
from kbroker.api.request import Message, Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.security.acls import Operation, ResourceType

_UPGRADE: Final = 1
_TYPES: Final = frozenset({_UPGRADE, 2, 3})
"""Upgrade, safe and unsafe downgrade. Version 0 has no types."""
_FINAL: Final = {name: final for name, _, _, final in FEATURES}


def handle(request: Request) -> Message:
    updates = request.body.feature_updates
    error = next(filter(None, map(_wrong, updates)), None)
    if not allows_on_cluster(request, Operation.ALTER):
        error = refusal(ResourceType.CLUSTER)
    if error is not None:
        return {"error_code": error.code, "error_message": error.message, "results": ()}
    rows = [
        {"feature": each.feature, "error_code": ErrorCode.none, "error_message": None} for each in updates
    ]
    return {"error_code": ErrorCode.none, "error_message": None, "results": rows}


def _wrong(update: Any) -> KafkaError | None:
    level, final = update.max_version_level, _FINAL.get(update.feature)
    if getattr(update, "upgrade_type", _UPGRADE) not in _TYPES:
        why = "There is no such type of update."
    elif final is None:
        why = "This broker does not support this feature."
    elif level != final:
        why = f"This broker has version {final}, and cannot change it."
    else:
        return None
    what = (
        "The update failed for all features since the following feature had an error: "
        f"Invalid update version {level} for feature {update.feature}. {why}"
    )
    return KafkaError(ErrorCode.invalid_update_version, what)
