"""The options of `kbroker acls` that say which resources, users and operations are meant."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from kbroker.cli.params import each_not_blank, options

if TYPE_CHECKING:
    from kbroker.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType

CLUSTER: Final = "kafka-cluster"
_ALL: Final = "*"

OPERATIONS: Final = (
    "all", "read", "write", "create", "delete", "alter", "describe", "describe-configs", "alter-configs",
    "cluster-action", "idempotent-write", "two-phase-commit",
)  # fmt: skip


class EntryChoice(NamedTuple):
    """What the options name. `resources`: (kind, name)."""

    resources: tuple[tuple[ResourceType, str], ...]
    prefixed: bool
    users: tuple[str, ...]
    hosts: tuple[str, ...]
    operations: tuple[str, ...]
    role: str | None

    @property
    def pattern(self) -> PatternType:
        from kbroker.security.acls import PatternType

        return PatternType.PREFIXED if self.prefixed else PatternType.LITERAL


role_options = options(
    click.option(
        "--producer",
        "role",
        flag_value="producer",
        help="What a producer needs: write, describe and create the topic; write and describe the "
        "transactional id, if one is given.",
    ),
    click.option(
        "--consumer",
        "role",
        flag_value="consumer",
        help="What a consumer needs: read and describe the topic, read the group.",
    ),
    click.option(
        "--worker",
        "role",
        flag_value="worker",
        help="What a worker of a queue needs: read and describe the topic, read the share group, "
        "which is that of the same name unless --group names one.",
    ),
    click.option(
        "--sender",
        "role",
        flag_value="sender",
        help="What a sender of jobs needs, also of delayed ones: write and describe the topic, and read "
        "the settings of the topic and of the share group, which is that of the same name unless --group "
        "names one.",
    ),
)
"""`--producer`, `--consumer`, `--worker`, `--sender`."""


entry_options = options(
    click.option(
        "--user",
        "-u",
        "users",
        metavar="NAME",
        multiple=True,
        callback=each_not_blank,
        help="The user; may be repeated; '*': everyone; ANONYMOUS: without a log-in; 'CN=alice,O=Acme':"
        " the name in a client's certificate.",
    ),
    click.option(
        "--host",
        "hosts",
        metavar="ADDRESS",
        multiple=True,
        callback=each_not_blank,
        help="Only from this IP address, or this range of addresses, such as 10.0.0.0/8 or "
        "2001:db8::/32; may be repeated. `acls list` shows entries for exactly this host.  "
        "[default: from any]",
    ),
    click.option(
        "--operation",
        "-o",
        "operations",
        type=click.Choice(OPERATIONS, case_sensitive=False),
        multiple=True,
        help="The operation that is allowed, or denied; may be repeated.",
    ),
    click.option(
        "--topic",
        "-t",
        "topics",
        metavar="T",
        multiple=True,
        callback=each_not_blank,
        help="This topic; may be repeated; '*': all topics.",
    ),
    click.option(
        "--group",
        "-g",
        "groups",
        metavar="G",
        multiple=True,
        callback=each_not_blank,
        help="This group, of any type; may be repeated; '*': all groups.",
    ),
    click.option(
        "--transactional-id",
        "transactional_ids",
        metavar="ID",
        multiple=True,
        callback=each_not_blank,
        help="This transactional id; may be repeated.",
    ),
    click.option(
        "--cluster",
        is_flag=True,
        help="The broker as a whole: creating topics, ACLs, users, settings of brokers.",
    ),
    click.option(
        "--prefixed",
        is_flag=True,
        help="The names are prefixes: the entry holds for every name that begins so.",
    ),
)
"""Users, hosts and operations, then resources; `choice_of` takes them, and `role_options`."""


def choice_of(
    *,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    transactional_ids: tuple[str, ...],
    cluster: bool,
    prefixed: bool,
    users: tuple[str, ...],
    hosts: tuple[str, ...],
    operations: tuple[str, ...],
    role: str | None = None,
) -> EntryChoice:
    """Raises UsageError."""
    from kbroker.security.acls import ResourceType

    if prefixed and (cluster or _ALL in (*topics, *groups, *transactional_ids)):
        raise click.UsageError("--prefixed goes with the beginning of a name, not with --cluster or '*'")
    resources = (
        *((ResourceType.TOPIC, name) for name in topics),
        *((ResourceType.GROUP, name) for name in groups),
        *((ResourceType.TRANSACTIONAL_ID, name) for name in transactional_ids),
        *(((ResourceType.CLUSTER, CLUSTER),) if cluster else ()),
    )
    return EntryChoice(resources, prefixed, users, hosts, operations, role)


def entries(choice: EntryChoice, permission: Permission) -> list[Acl]:
    """The entries that the options describe in full. Raises UsageError if something is missing."""
    from kbroker.security.acls import Acl

    role = choice.role
    if not choice.users:
        raise click.UsageError("--user is needed: for whom is the entry? '*' means everyone")
    if role is not None and choice.operations:
        raise click.UsageError(f"--{role} and --operation exclude each other")
    rights = list(_role(role, choice) if role else _plain(choice))
    found = [
        Acl(kind, choice.pattern, name, f"User:{user}", host, operation, permission)
        for (kind, name, operation), user, host in product(rights, choice.users, choice.hosts or (_ALL,))
    ]
    return list(dict.fromkeys(found))


def check_new(wanted: list[Acl]) -> None:
    """Raises UsageError for a new entry that would match no client or no topic. Such entries can
    still be listed and removed."""
    from kbroker.protocol.topic_names import is_legal, is_legal_prefix
    from kbroker.security.acls import PatternType, ResourceType
    from kbroker.settings.hosts import is_address, is_range

    for acl in wanted:
        user = acl.principal.removeprefix("User:")
        if user.startswith("User:"):
            raise click.UsageError(f"--user {user}: only the name is needed, {user.removeprefix('User:')}")
        may_exist = is_legal_prefix if acl.pattern is PatternType.PREFIXED else is_legal
        if acl.kind is ResourceType.TOPIC and acl.name != _ALL and not may_exist(acl.name):
            raise click.UsageError(
                f"--topic {acl.name}: no topic has such a name; --prefixed means every name that begins so"
            )
        if acl.host != _ALL and not is_address(acl.host) and not is_range(acl.host):
            raise click.UsageError(
                f"--host {acl.host}: the IP address of a client is needed, or a range such as 10.0.0.0/8"
            )
        try:
            acl.check_host()
        except ValueError as error:
            raise click.UsageError(f"--host {acl.host}: {error}") from None


def _plain(choice: EntryChoice) -> Iterator[tuple[ResourceType, str, Operation]]:
    from kbroker.security.acls import SUPPORTED, Operation

    if not choice.resources or not choice.operations:
        raise click.UsageError(
            "a resource (--topic, --group, --transactional-id or --cluster) and --operation are needed; or "
            "--producer, --consumer, --worker or --sender"
        )
    for (kind, name), text in product(choice.resources, choice.operations):
        operation = operation_of(text)
        if operation is not Operation.ALL and operation not in SUPPORTED[kind]:
            known = ", ".join(word(each) for each in SUPPORTED[kind])
            raise click.UsageError(f"a {word(kind)} has no operation {text}: it has {known}")
        yield kind, name, operation


def _role(role: str, choice: EntryChoice) -> Iterator[tuple[ResourceType, str, Operation]]:
    from kbroker.security.acls import Operation, ResourceType

    names = {
        kind: [name for each, name in choice.resources if each is kind]
        for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
    }
    if not names[ResourceType.TOPIC]:
        raise click.UsageError(f"--{role} needs --topic")
    allowed = ResourceType.TRANSACTIONAL_ID if role == "producer" else ResourceType.GROUP
    if any(kind not in (ResourceType.TOPIC, allowed) for kind, _ in choice.resources):
        raise click.UsageError(f"--{role} takes --topic and --{word(allowed)} only")
    if role == "consumer" and not names[ResourceType.GROUP]:
        raise click.UsageError("--consumer needs --group")
    if role in ("worker", "sender") and not names[ResourceType.GROUP]:
        names[ResourceType.GROUP] = names[ResourceType.TOPIC]
    reading = {
        ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
        ResourceType.GROUP: (Operation.READ,),
    }
    needed = {
        "producer": {
            ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
            ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
        },
        "consumer": reading,
        "worker": reading,
        "sender": {
            ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS),
            ResourceType.GROUP: (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS),
        },
    }
    for kind, operations in needed[role].items():
        yield from ((kind, name, operation) for name, operation in product(names[kind], operations))


def filters(choice: EntryChoice, permission: Permission) -> list[AclFilter]:
    """What selects entries by the options that are given."""
    from kbroker.security.acls import AclFilter, Operation, PatternType, ResourceType

    chosen = [AclFilter(kind, choice.pattern, name) for kind, name in choice.resources] or [
        AclFilter(ResourceType.ANY, choice.pattern if choice.prefixed else PatternType.ANY)
    ]
    return [
        each._replace(
            principal=None if user is None else f"User:{user}",
            host=host,
            operation=operation_of(text) if text else Operation.ANY,
            permission=permission,
        )
        for each, user, host, text in product(
            chosen, choice.users or (None,), choice.hosts or (None,), choice.operations or ("",)
        )
    ]


def operation_of(text: str) -> Operation:
    from kbroker.security.acls import Operation

    return Operation[text.upper().replace("-", "_")]


def word(member: Operation | ResourceType | PatternType | Permission) -> str:
    """As in an option: `describe-configs`."""
    return member.name.lower().replace("_", "-")
