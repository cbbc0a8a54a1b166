"""What the log says about ACLs: each change, and at the start the entries that an administrator may
misjudge.

- Entries for ranges of addresses. Kafka matches them since 4.4; before, they matched no client.
- Entries that deny, but can match no request, such as one for the host `localhost`. As in Kafka,
  clients may create them. An entry that allows nothing is noticed when it is needed; one that
  denies nothing is not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from kbroker.protocol.topic_names import is_legal, is_legal_prefix
from kbroker.security.acls import SUPPORTED, Acl, Operation, PatternType, Permission, ResourceType
from kbroker.security.principals import USER
from kbroker.settings.hosts import WILDCARD, is_address, is_range

logger = logging.getLogger(__name__)

MOST_NAMED: Final = 100
"""Entries of each kind that get a line of their own at the start."""


def noun(kind: ResourceType) -> str:
    return kind.name.lower().replace("_", " ")


def described(acl: Acl) -> str:
    pattern = "" if acl.pattern is PatternType.LITERAL else "prefix "
    verb = acl.permission.name.lower()
    return (
        f"{verb} {acl.principal} at {acl.host} the operation {acl.operation.name} on {noun(acl.kind)} "
        f"{pattern}{acl.name}"
    )


def log_changes(added: Iterable[Acl], removed: Iterable[Acl], *, is_judged: bool) -> None:
    """`is_judged`: the built-in authorizer decides, so that the broker knows which entries match
    no request."""
    for verb, acls in (("added", added), ("removed", removed)):
        for acl in acls:
            logger.info("ACL %s: %s", verb, described(acl))
            if is_judged and verb == "added" and (why := why_idle(acl)):
                _warn_of_idle(acl, why)


def log_loaded(acls: Iterable[Acl], *, is_judged: bool) -> None:
    """Name the entries of the module's docstring, those that deny first."""
    ordered = sorted(acls, key=lambda acl: acl.permission)
    ranges = [acl for acl in ordered if is_range(acl.host) and acl.range is not None]
    for acl in ranges[:MOST_NAMED]:
        logger.info("ACL for a range of addresses, all of which it matches: %s", described(acl))
    _log_more(logging.INFO, len(ranges), "ACLs for ranges of addresses")
    idle = [(acl, why) for acl in ordered if is_judged and (why := why_idle(acl))]
    for acl, why in idle[:MOST_NAMED]:
        _warn_of_idle(acl, why)
    _log_more(logging.WARNING, len(idle), "ACLs that deny nothing")


def _warn_of_idle(acl: Acl, why: str) -> None:
    logger.warning("ACL that denies nothing, because %s: %s", why, described(acl))


def _log_more(level: int, count: int, what: str) -> None:
    if count > MOST_NAMED:
        logger.log(level, "and %d more %s: `kbroker acls list` shows all", count - MOST_NAMED, what)


def why_idle(acl: Acl) -> str | None:
    """Why an entry that denies can match no request; None: it can, or it allows."""
    if acl.permission is not Permission.DENY:
        return None
    if not acl.principal.startswith(f"{USER}:"):
        return f"all clients are of the type {USER}"
    if is_range(acl.host):
        if acl.range is None:
            return "its host is no range of addresses"
    elif acl.host != WILDCARD and not is_address(acl.host):
        return "no client has such an address"
    if acl.operation is not Operation.ALL and acl.operation not in SUPPORTED.get(acl.kind, Operation):
        return f"no request needs this operation on a {noun(acl.kind)}"
    if acl.kind is ResourceType.TOPIC and acl[1:3] != (PatternType.LITERAL, WILDCARD):
        may_exist = is_legal_prefix if acl.pattern is PatternType.PREFIXED else is_legal
        return None if may_exist(acl.name) else "no topic has such a name"
    return None
