"""`kbroker acls`: list, add and remove entries that say who may do what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli.acls.choice import (
    check_new,
    entries,
    filters,
    resource_options,
    resources_of,
    role_options,
    user_options,
    word,
)
from kbroker.cli.exits import CommandFailed, ask, refuse
from kbroker.cli.output import print_json, print_table, table_lines
from kbroker.cli.params import Bootstrap, json_option, yes_option
from kbroker.cli.stopped_state import place_options
from kbroker.cli.suggesting import SuggestingGroup

if TYPE_CHECKING:
    from kbroker.security.acls import Acl, Permission

_COLUMNS = ("TYPE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION")


@click.group(cls=SuggestingGroup)
def acls() -> None:
    """List, add and remove the entries that say what users may do.

    A broker with an authorizer (authorizer.class.name) refuses everything that no entry allows. An
    entry allows or denies one operation on one resource to one user. If one entry allows something
    and another one denies it, it is denied. Super users (super.users) need no entries.
    """


@acls.command("list")
@user_options
@resource_options
@json_option("An array of objects: type, name, pattern, principal, host, operation, permission.")
@place_options
def list_acls(
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    transactional_ids: tuple[str, ...],
    cluster: bool,
    prefixed: bool,
    users: tuple[str, ...],
    hosts: tuple[str, ...],
    operations: tuple[str, ...],
    as_json: bool,
    data_dir: Path | None,
    bootstrap: Bootstrap,
) -> None:
    """List entries: all, or those that concern the given resources and users.

    With --topic orders that includes entries for prefixes of the name and for all topics. With
    --prefixed it lists only entries for exactly that prefix.

    \b
    Examples:
      kbroker acls list
      kbroker acls list --topic orders
      kbroker acls list --user alice --json
    """
    from kbroker.cli.acls.places import entries_at
    from kbroker.security.acls import PatternType, Permission

    resources = resources_of(topics, groups, transactional_ids, cluster, prefixed)
    chosen = filters(resources, users, hosts, operations, Permission.ANY)
    if not prefixed and resources.named:
        chosen = [each._replace(pattern=PatternType.MATCH) for each in chosen]
    with entries_at(bootstrap, data_dir) as present:
        found = present.matching(chosen)
    if as_json:
        print_json([_as_json(each) for each in found])
    elif found:
        print_table(_COLUMNS, [_row(each) for each in found])
    else:
        click.echo("there are no such entries")


@acls.command()
@role_options
@click.option("--deny", is_flag=True, help="Deny the operations, whatever other entries allow.")
@user_options
@resource_options
@json_option("An array of the added entries: type, name, pattern, principal, host, operation, permission.")
@place_options
def add(
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    transactional_ids: tuple[str, ...],
    cluster: bool,
    prefixed: bool,
    users: tuple[str, ...],
    hosts: tuple[str, ...],
    operations: tuple[str, ...],
    role: str | None,
    deny: bool,
    as_json: bool,
    data_dir: Path | None,
    bootstrap: Bootstrap,
) -> None:
    """Allow, or with --deny forbid, users to do something.

    read, write, delete and alter include describe, and alter-configs includes describe-configs.
    Entries that exist are left as they are. A host that is neither an address nor a range, and a
    name that no topic can have, are refused: such an entry would match nothing.

    \b
    Examples:
      kbroker acls add --worker --user app --topic orders
      kbroker acls add --sender --user shop --topic orders
      kbroker acls add --producer --user shop --topic events
      kbroker acls add --consumer --user audit --topic orders --group audit
      kbroker acls add --user ops --cluster --operation describe --operation alter
      kbroker acls add --user bob --topic secret. --prefixed --operation all --deny
      kbroker acls add --user '*' --cluster --operation all --deny --host 10.0.0.0/8
    """
    from kbroker.cli.acls.places import entries_at

    if role and deny:
        raise click.UsageError(f"--{role} and --deny exclude each other")
    resources = resources_of(topics, groups, transactional_ids, cluster, prefixed)
    wanted = entries(resources, role, users, hosts, operations, _permission(deny))
    check_new(wanted)
    with entries_at(bootstrap, data_dir) as present:
        results = present.create(wanted)
    added = [acl for acl, error in zip(wanted, results, strict=True) if error is None]
    if as_json:
        print_json([_as_json(each) for each in added])
    elif added:
        print_table(_COLUMNS, [_row(each) for each in added])
    refuse(
        [
            f"{_text(acl)}: {error.message or error.code.name}"
            for acl, error in zip(wanted, results, strict=True)
            if error is not None
        ]
    )


@acls.command()
@role_options
@click.option("--deny", is_flag=True, help="Only entries that deny.")
@click.option("--allow", is_flag=True, help="Only entries that allow.")
@click.option("--all", "everything", is_flag=True, help="All entries of the broker.")
@user_options
@resource_options
@yes_option
@json_option("An array of the removed entries: type, name, pattern, principal, host, operation, permission.")
@place_options
def remove(
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    transactional_ids: tuple[str, ...],
    cluster: bool,
    prefixed: bool,
    users: tuple[str, ...],
    hosts: tuple[str, ...],
    operations: tuple[str, ...],
    role: str | None,
    yes: bool,
    as_json: bool,
    data_dir: Path | None,
    bootstrap: Bootstrap,
    **which: bool,
) -> None:
    """Remove entries: those for exactly the given resources, users, hosts and operations.

    An option that is left out means any. The command shows the entries and asks. Without an entry
    that denies, others may allow.

    \b
    Examples:
      kbroker acls remove --user alice
      kbroker acls remove --worker --user app --topic orders
      kbroker acls remove --topic orders --operation write --allow
    """
    from kbroker.cli.acls.places import entries_at
    from kbroker.security.acls import AclFilter, Permission

    if which["deny"] and which["allow"]:
        raise click.UsageError("--deny and --allow exclude each other")
    resources = resources_of(topics, groups, transactional_ids, cluster, prefixed)
    if which["everything"] == bool(resources.named or users or hosts or operations or role):
        raise click.UsageError("either --all or a choice is needed: --user, --topic, --group, ...")
    permission = _permission(which["deny"]) if which["deny"] or which["allow"] else Permission.ANY
    if role is not None:
        chosen = [
            AclFilter(*each) for each in entries(resources, role, users, hosts, operations, Permission.ALLOW)
        ]
    else:
        chosen = filters(resources, users, hosts, operations, permission)
    with entries_at(bootstrap, data_dir) as present:
        found = present.matching(chosen)
        if not found:
            raise CommandFailed("there are no such entries: `kbroker acls list` shows all")
        if not yes:
            _confirm(found)
        results = present.delete(found)
    removed = [acl for acl, error in zip(found, results, strict=True) if error is None]
    if as_json:
        print_json([_as_json(each) for each in removed])
    else:
        click.echo(f"removed {_count(removed)}")
    refuse([f"{_text(acl)}: {error.message}" for acl, error in zip(found, results, strict=True) if error])


def _confirm(found: Sequence[Acl]) -> None:
    for line in table_lines(_COLUMNS, [_row(each) for each in found]):
        click.echo(line, err=True)
    ask(f"Remove {_count(found)}?", "nothing was removed")


def _count(found: Sequence[Any]) -> str:
    return "1 entry" if len(found) == 1 else f"{len(found)} entries"


def _permission(deny: bool) -> Permission:
    from kbroker.security.acls import Permission

    return Permission.DENY if deny else Permission.ALLOW


def _row(acl: Acl) -> tuple[str, ...]:
    return (
        word(acl.kind),
        acl.name,
        word(acl.pattern),
        acl.principal,
        acl.host,
        word(acl.operation),
        word(acl.permission),
    )


def _text(acl: Acl) -> str:
    return f"{word(acl.permission)} {acl.principal} {word(acl.operation)} on {word(acl.kind)} {acl.name}"


def _as_json(acl: Acl) -> dict[str, str]:
    return dict(zip((column.lower() for column in _COLUMNS), _row(acl), strict=True))
