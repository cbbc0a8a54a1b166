"""The broker's settings that say who decides what clients may do."""

from __future__ import annotations

from kbroker.settings.definition import ConfigDef, ConfigType, Value

AUTHORIZER, SUPER_USERS, OPENS_UNLISTED = (
    "authorizer.class.name",
    "super.users",
    "allow.everyone.if.no.acl.found",
)


def _users_fault(value: Value) -> str | None:
    parts = [part.strip() for part in str(value).split(";") if part.strip()]
    wrong = next((part for part in parts if ":" not in part), None)
    return None if wrong is None else f"{wrong!r} is not TYPE:NAME, such as User:alice"


AUTHORIZER_CONFIGS = (
    ConfigDef(
        name=AUTHORIZER,
        type=ConfigType.STRING,
        default="",
        doc="What decides which client may do what: empty: nothing, so that every client may do everything; "
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer: ACLs, by the authorizer that is built in; "
        "or the name of an installed plugin.",
    ),
    ConfigDef(
        name=SUPER_USERS,
        type=ConfigType.STRING,
        default="",
        fault=_users_fault,
        doc="Principals that may do everything, whatever the ACLs say: User:alice;User:bob.",
    ),
    ConfigDef(
        name=OPENS_UNLISTED,
        type=ConfigType.BOOLEAN,
        default="false",
        doc="Whether a resource for which there is no ACL at all is open to every client.",
    ),
)
