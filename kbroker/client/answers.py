"""Error codes of responses and their rows, as exceptions and as text.

`needs` and `name`, in all functions: the operation that the client needs, as `kbroker acls add
--operation` takes it, and the name of the resource. A refusal for lack of rights then names both,
and the command that grants the right; Kafka's message names neither.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final

from ..errors import ErrorCode, KafkaError

KINDS: Final[Mapping[int, str]] = {
    ErrorCode.topic_authorization_failed: "topic",
    ErrorCode.group_authorization_failed: "group",
    ErrorCode.cluster_authorization_failed: "cluster",
    ErrorCode.transactional_id_authorization_failed: "transactional-id",
}
"""The kind of resource that a right is missing on, as `kbroker acls add` names it."""
WRITES_NOWHERE: Final = (
    "this user may write to no topic: `kbroker acls add --producer --user NAME --topic TOPIC` lets it"
)
"""A refused producer id: it needs the right to write to any topic."""


def check(code: ErrorCode, message: str | None = None, *, needs: str = "", name: str = "") -> None:
    """Raises KafkaError unless the code is none."""
    if code is not ErrorCode.none:
        raise KafkaError(code, lacking(code, needs, name) or message)


def reason(code: ErrorCode, message: str | None = None, *, needs: str = "", name: str = "") -> str:
    """Text for a person: the missing right, or else the broker's message, or else the code's
    name."""
    return lacking(code, needs, name) or message or code.name.replace("_", " ")


def lacking(code: int, needs: str, name: str = "") -> str | None:
    """The text about a missing right. None for other codes, and if the operation or the resource is
    not known."""
    kind = KINDS.get(code)
    if kind is None or not needs or (not name and kind != "cluster"):
        return None
    resource, option = f"{kind.replace('-', ' ')} {name}", f"--{kind} {shlex.quote(name)}"
    if kind == "cluster":
        resource, option = "the cluster", "--cluster"
    right, command = needs.upper().replace("-", "_"), f"kbroker acls add --user NAME {option}"
    return f"this user lacks {right} on {resource}: `{command} --operation {needs}` grants it"
