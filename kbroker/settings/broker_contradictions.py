"""Contradictions between broker settings that are each within their bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from kbroker.settings.broker_authorizer import AUTHORIZER, OPENS_UNLISTED, SUPER_USERS
from kbroker.settings.broker_groups import GROUP_CONSUMER_TRIPLES
from kbroker.settings.broker_share_groups import GROUP_SHARE_TRIPLES

_TOGETHER: Final = "raise the one or lower the other, both in one request where both are altered"


class Contradiction(NamedTuple):
    message: str
    names: tuple[str, ...]


def contradictions(values: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Contradictions between settings that are each within their bounds (Kafka's checks of share
    and consumer groups at the start)."""
    for name in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
        if values[name] is not None and (values[name] == 0 or values[name] < -1):
            yield Contradiction(f"{name} must be unlimited (-1) or, equal or greater than 1", (name,))
    node_id, broker_id = values["node.id"], values["broker.id"]
    if broker_id not in (None, node_id):
        text = f"broker.id ({broker_id}) is another name of node.id ({node_id}): leave out one of the two"
        yield Contradiction(text, ("node.id", "broker.id"))
    for name in (SUPER_USERS, OPENS_UNLISTED) if not values[AUTHORIZER] else ():
        if values[name]:
            yield Contradiction(f"{name} has no effect unless {AUTHORIZER} is set, too", (name,))
    pairs = []
    for kind, triples in (("share", GROUP_SHARE_TRIPLES), ("consumer", GROUP_CONSUMER_TRIPLES)):
        for triple in triples:
            least, default, most = (
                f"group.{kind}.min.{triple}",
                f"group.{kind}.{triple}",
                f"group.{kind}.max.{triple}",
            )
            pairs += [(most, least), (default, least), (most, default)]
    pairs.append(("group.share.max.share.sessions", "group.share.max.size"))
    for greater, lesser in pairs:
        if values[greater] < values[lesser]:
            they = f"must be greater than or equal to {lesser} ({values[lesser]})"
            yield Contradiction(f"{greater} ({values[greater]}) {they}: {_TOGETHER}", (greater, lesser))
    for kind in ("share", "consumer"):
        timeout, heartbeat = f"group.{kind}.session.timeout.ms", f"group.{kind}.heartbeat.interval.ms"
        if values[timeout] <= values[heartbeat]:
            they = f"{timeout} ({values[timeout]}) must be greater than {heartbeat} ({values[heartbeat]})"
            yield Contradiction(f"{they}: {_TOGETHER}", (timeout, heartbeat))
